"""The log interface: contexts in decision order, with known outcomes.

A log is read as a stream of column batches, in constant memory. Missing values are `MISSING` in integer columns and NaN
in propensities.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import OffsetArray, Rows
from stream.estimating.rows import DecisionLog, Eligible
from stream.wire.records import FloatArray, IndexArray

MISSING = -1

OnBadRow = Literal["stop", "skip"]
"""Handling of an invalid row: stop with an error, or skip and count the row."""


class LogBatch(NamedTuple):
    """n rows of a log as columns. Row j has the entries offsets[j] to offsets[j+1] - 1 of indices and values."""

    ids: Sequence[str]  # n event ids
    offsets: OffsetArray  # int64[n + 1], from 0
    indices: IndexArray  # int32[nnz], 0-based, strictly increasing in a row
    values: FloatArray  # float64[nnz]
    decided_at_ms: NDArray[np.int64]  # [n], milliseconds since 1970; or MISSING
    labels: NDArray[np.int64]  # [n], the true class; or MISSING
    actions: NDArray[np.int64]  # [n], the played class; or MISSING
    propensities: FloatArray  # [n], the probability of the played class; or NaN
    rewards: NDArray[np.int64]  # [n], 1 or 0; MISSING if unknown
    delays_ms: NDArray[np.int64]  # [n], milliseconds from the decision to its feedback; or MISSING
    eligible: Eligible | None = None  # the eligible classes of each row; None means all classes


class Log(DecisionLog, Protocol):
    """A log in a file."""

    def batches(self) -> Iterator[LogBatch]:
        """Return the rows in order.

        Raises:
            DatasetError: a row is invalid, unless invalid rows are skipped.
        """
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """The number of rows skipped by the last pass, by reason."""
        ...

    @property
    def first_skipped(self) -> dict[str, str]:
        """The position and value of the first skipped row per reason, such as "line 17; got 'abc'"."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Remarks from the last pass about columns with empty cells or decimal commas."""
        ...

    @property
    def uneven(self) -> str:
        """A warning about a column that varies much more than the others in the last pass, or an empty string."""
        ...


def remarks_of(log: Log) -> Iterator[str]:
    """Yield one line per reason for skipped rows in the last pass, and then the remarks on the columns."""
    for reason, count in log.skipped.items():
        rows = "1 row" if count == 1 else f"{count:,} rows"
        first = log.first_skipped.get(reason)
        where = "" if first is None else f" ({'at' if count == 1 else 'first at'} {first})"
        yield f"{rows} of {log.name} skipped: {reason}{where}"
    for remark in log.remarks:
        yield f"{log.name}: {remark}"


class LoggedOutcome(NamedTuple):
    """The logged values of a row without its context. Missing values are None."""

    decided_at_ms: int | None
    label: int | None
    action: int | None
    propensity: float | None
    reward: int | None
    delay_ms: int | None
    eligible: IndexArray | None = None  # the eligible classes, in increasing order; None means all classes


class LogRows(Rows, Protocol):
    """The rows of a log stored as columns on disk, with random access in constant memory.

    A row without a label has the label MISSING.
    """

    def outcome(self, row: int) -> LoggedOutcome:
        """Return the logged values of a row."""
        ...

    def event_id(self, row: int) -> str:
        """Return the id of a row."""
        ...

    def row_of(self, event_id: str) -> int | None:
        """Return the row with this id, or None."""
        ...
