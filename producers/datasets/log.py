"""What a log of decisions is: contexts in the order of their decisions, and what is known of each decision's outcome.

A log is read as a stream of batches, in columns, so that a log of any size takes constant memory. What the log does not
say of a row is `MISSING` in a column of integers, and NaN in the propensities.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import OffsetArray, Rows
from stream.estimating.rows import DecisionLog
from stream.wire.events import FloatArray, IndexArray

MISSING = -1

OnBadRow = Literal["stop", "skip"]
"""What is done at a row that cannot be used: the reading ends with an error, or the row is left out and counted."""


class LogBatch(NamedTuple):
    """n rows of a log, in columns. Row j holds the entries offsets[j] to offsets[j+1] of indices and values."""

    ids: Sequence[str]  # n event ids
    offsets: OffsetArray  # int64[n + 1], from 0
    indices: IndexArray  # int32[nnz], 0-based, strictly increasing in a row
    values: FloatArray  # float64[nnz]
    decided_at_ms: NDArray[np.int64]  # [n], since 1970; or MISSING
    labels: NDArray[np.int64]  # [n], the true class; or MISSING
    actions: NDArray[np.int64]  # [n], the class that was played; or MISSING
    propensities: FloatArray  # [n], the probability with which it was played; or NaN
    rewards: NDArray[np.int64]  # [n], 1 or 0; MISSING: no outcome is known
    delays_ms: NDArray[np.int64]  # [n], from the decision to its feedback; or MISSING


class Log(DecisionLog, Protocol):
    """A log in a file, whose name it has; class k is called class_names[k] there."""

    def batches(self) -> Iterator[LogBatch]:
        """The rows in their order.

        Raises:
            DatasetError: a bad row, where bad rows are not to be skipped.
        """
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """How many rows the last reading left out, by reason."""
        ...

    @property
    def first_skipped(self) -> dict[str, str]:
        """Of each reason, where the first of its rows is, and what stands there: "line 17; got 'abc'"."""
        ...


def rows_left_out(log: Log, *, of: str = "") -> Iterator[str]:
    """What the last reading of a log left out: a line for each reason, with the log's name if it is given."""
    for reason, count in log.skipped.items():
        rows = "1 row" if count == 1 else f"{count:,} rows"
        first = log.first_skipped.get(reason)
        where = "" if first is None else f" ({'at' if count == 1 else 'first at'} {first})"
        yield f"{rows}{of and f' of {of}'} left out: {reason}{where}"


class LoggedOutcome(NamedTuple):
    """What a log says of one row beside its context. None: it does not say."""

    decided_at_ms: int | None
    label: int | None
    action: int | None
    propensity: float | None
    reward: int | None
    delay_ms: int | None


class LogRows(Rows, Protocol):
    """The rows of a log that were stored in columns on disk: random access in constant memory, for a replay.

    The label of a row without one is MISSING.
    """

    def outcome(self, row: int) -> LoggedOutcome:
        """What the log says of a row."""
        ...

    def event_id(self, row: int) -> str:
        """The id of a row."""
        ...

    def row_of(self, event_id: str) -> int | None:
        """The row with this id; None when there is none."""
        ...
