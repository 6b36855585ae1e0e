"""What a data set is: numbered rows of features and labels, event ids that lead back to a row, and an order of replay.

An event id names the data set, the epoch and the row: `optdigits-0-000123`. It does not name the position in the
stream, so that it stays the same however the rows are shuffled, and so that the feedback program finds the label of an
event from its id alone.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.randomness import splitmix
from stream.randomness.draws import Draws, Purpose
from stream.wire.events import Features, FloatArray, IndexArray, Logged
from stream.wire.records import make

LabelArray = NDArray[np.int64]
OffsetArray = NDArray[np.int64]


class DatasetError(OnebitError, ValueError):
    """A data set that does not exist or cannot be read."""


class UnknownEventError(ValueError):
    """An event id that is not one of this data set."""


class Row(NamedTuple):
    """One row."""

    x: Features
    label: int  # the true class, 0 to K-1


class Block(NamedTuple):
    """Rows [start, stop) in compressed rows: row j holds the entries offsets[j] to offsets[j+1]."""

    offsets: OffsetArray  # int64[n + 1], from 0
    indices: IndexArray  # int32[nnz]
    values: FloatArray  # float64[nnz]
    labels: LabelArray  # int64[n]


class Rows(Protocol):
    """Where the rows come from; the row numbers are in range, `Dataset` has seen to it."""

    def row(self, row: int) -> Row:
        """One row, cheap in any order; its arrays are not to be written to."""
        ...

    def label(self, row: int) -> int:
        """The label of one row."""
        ...

    def block(self, start: int, stop: int) -> Block:
        """The rows [start, stop); its arrays are not to be written to."""
        ...


@dataclass(frozen=True, slots=True)
class SparseRows:
    """All rows in compressed rows: row i holds the entries offsets[i] to offsets[i+1]."""

    offsets: OffsetArray  # int64[n + 1]
    indices: IndexArray  # int32[nnz]
    values: FloatArray  # float64[nnz]
    labels: LabelArray  # int64[n]

    def row(self, row: int) -> Row:
        """A row, as views of the whole."""
        start, stop = self.offsets[row], self.offsets[row + 1]
        return Row(Features(self.indices[start:stop], self.values[start:stop]), int(self.labels[row]))

    def label(self, row: int) -> int:
        """The label of a row."""
        return int(self.labels[row])

    def block(self, start: int, stop: int) -> Block:
        """The rows [start, stop), as views of the whole where that is possible."""
        first, last = self.offsets[start], self.offsets[stop]
        return Block(
            self.offsets[start : stop + 1] - first,
            self.indices[first:last],
            self.values[first:last],
            self.labels[start:stop],
        )


class Known(NamedTuple):
    """What is known of the outcome of an event, whatever is played for it."""

    label: int | None = None  # the true class
    action: int | None = None  # the class that a log played
    reward: int | None = None  # whether that was right
    delay_ms: int | None = None  # how long after the decision the log had its feedback

    def bit(self, action: int) -> int | None:
        """Whether an action is right; None: nobody knows.

        >>> Known(label=2).bit(1), Known(action=1, reward=1).bit(1), Known(action=1, reward=1).bit(2)
        (0, 1, None)
        """
        if self.action == action and self.reward is not None:
            return self.reward
        return None if self.label is None else int(action == self.label)


class Slot(NamedTuple):
    """A place in the order of replay."""

    event_id: str
    row: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows with labels, of which every one can be had at any time."""

    name: str  # as people call it
    id_prefix: str  # what its event ids begin with
    rows: int
    n_features: int
    n_classes: int
    class_names: tuple[str, ...]  # class k was called class_names[k] where the data came from
    terms: str  # under which the data may be used
    source: Rows

    def row(self, row: int) -> Row:
        """The features and the label of a row."""
        return self.source.row(self._checked(row))

    def label(self, row: int) -> int:
        """The label of a row."""
        return self.source.label(self._checked(row))

    def block(self, start: int, stop: int) -> Block:
        """The rows [start, stop) at once, for loops that are compiled."""
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"{self.name} has the rows 0 to {self.rows - 1}; rows [{start}, {stop}) were asked for")
        return self.source.block(start, stop)

    def event_id(self, row: int, epoch: int = 0) -> str:
        """The id of the event that replays this row in this epoch; its text sorts in the order of the rows."""
        return f"{self.id_prefix}-{epoch}-{row:06}"

    def parse_event_id(self, event_id: str) -> tuple[int, int]:
        """Return the epoch and the row of an event, or raise UnknownEventError when it is not one of this data set."""
        parts = event_id.rsplit("-", 2)
        # Nothing is accepted that `event_id` does not write: one row in one epoch has one id.
        if len(parts) == 3 and parts[0] == self.id_prefix and _is_written(parts[1], 1) and _is_written(parts[2], 6):
            row = int(parts[2])
            if row < self.rows:
                return int(parts[1]), row
        raise UnknownEventError(
            f"event {event_id[:100]!r} is not one of {self.name}: expected {self.id_prefix}-EPOCH-ROW with a row from "
            f"{0:06} to {self.rows - 1:06}; give the data set (and the seed of synthetic data) that was replayed"
        )

    def label_of(self, event_id: str) -> int:
        """The true class of an event, from its id alone."""
        return self.source.label(self.parse_event_id(event_id)[1])

    def known_of(self, event_id: str) -> Known:
        """What is known of the outcome of an event, from its id alone."""
        return make(Known, (self.label_of(event_id), None, None, None))

    def logged(self, row: int) -> Logged | None:
        """The decision that a log has for a row; None: this is no log, or it does not say."""
        return None

    def order(self, epoch: int, shuffle_seed: int | None = None) -> Sequence[int]:
        """The rows of an epoch in the order of their replay: as they stand, or shuffled anew in each epoch.

        The shuffled order sorts the rows by a hash of (seed, epoch, row), so it does not depend on a library's
        generator: a replay can be resumed with another version of everything.
        """
        if shuffle_seed is None:
            return range(self.rows)
        key = Draws(shuffle_seed, Purpose.SHUFFLE).bits(f"{self.id_prefix}-{epoch}")
        order = np.argsort(splitmix.words(key, self.rows), kind="stable").astype(np.int64)
        return array("q", order.tobytes())  # gives Python's integers, and takes 8 bytes a row

    def schedule(self, start: int, stop: int, shuffle_seed: int | None = None) -> Iterator[Slot]:
        """The events at the positions [start, stop) of a replay; position p is in epoch p // rows."""
        position = start
        while position < stop:
            epoch, first = divmod(position, self.rows)
            order = self.order(epoch, shuffle_seed)
            last = min(self.rows, first + stop - position)
            for place in range(first, last):
                row = order[place]
                yield make(Slot, (self.event_id(row, epoch), row))
            position += last - first

    def _checked(self, row: int) -> int:
        if not 0 <= row < self.rows:
            raise IndexError(f"{self.name} has the rows 0 to {self.rows - 1}; row {row} was asked for")
        return row


def dense_dataset(name: str, x: FloatArray, labels: Sequence[object], terms: str = "") -> Dataset:
    """A data set in memory.

    Args:
        name: as people call it; event ids begin with it.
        x: the features, float64[n, d].
        labels: the class of each row; classes are numbered in the order in which they first come.
        terms: under which the data may be used.

    >>> data = dense_dataset("two-points", np.array([[1.0, 0.0], [0.0, 2.0]]), ["left", "right"])
    >>> data.rows, data.class_names, data.row(1).x.values.tolist(), data.event_id(1)
    (2, ('left', 'right'), [2.0], 'two-points-0-000001')
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or len(labels) != len(x) or not np.isfinite(x).all():
        raise DatasetError(f"{name}: expected finite x [n, d] and n labels; got {x.shape} and {len(labels)} labels")
    names = list(dict.fromkeys(map(str, labels)))
    rows, columns = np.nonzero(x)
    source = SparseRows(
        np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(x))))).astype(np.int64),
        columns.astype(np.int32),
        x[rows, columns],
        np.array([names.index(str(label)) for label in labels], dtype=np.int64),
    )
    return Dataset(name, name, len(x), x.shape[1], len(names), tuple(names), terms, source)


def _is_written(text: str, width: int) -> bool:
    """Whether a text is a whole number as Python writes it, with zeros before it up to a width and not beyond."""
    digits = len(text)
    return (digits == width or (width < digits <= 18 and text[0] != "0")) and text.isascii() and text.isdecimal()
