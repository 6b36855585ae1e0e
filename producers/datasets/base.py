"""Data sets: numbered rows of features and labels, event ids that identify rows, and the replay order.

An event id, such as `optdigits-0-000123`, contains the data set, the epoch and the row, but not the position in the
stream. The id is therefore independent of shuffling, and the feedback program can derive the label from the id.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stream.errors import OnebitError
from stream.parsing import parse_exact
from stream.randomness.draws import Draws, Purpose, words
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import text_of
from stream.wire.records import Features, FloatArray, IndexArray, Logged, make
from stream.wire.rewards import RewardRange

LabelArray = NDArray[np.int64]
OffsetArray = NDArray[np.int64]

SAMPLED = 1_000
"""Number of rows whose logged delays are used for planning."""


class DatasetError(OnebitError, ValueError):
    """Raised if a data set does not exist or cannot be read."""


class UnknownEventError(ValueError):
    """Raised if an event id does not belong to the data set."""


class Row(NamedTuple):
    """A row in a data set: its features and its true class."""

    x: Features
    label: int  # the true class, 0 to K-1


class Block(NamedTuple):
    """Rows [start, stop) as a CSR matrix: row j consists of the entries offsets[j] to offsets[j+1] - 1."""

    offsets: OffsetArray  # int64[n + 1], from 0
    indices: IndexArray  # int32[nnz]
    values: FloatArray  # float64[nnz]
    labels: LabelArray  # int64[n]


class Rows(Protocol):
    """A source of rows. `Dataset` checks the row numbers."""

    def row(self, row: int) -> Row:
        """Return a row. Random access is cheap. Do not write to the row's arrays."""
        ...

    def label(self, row: int) -> int:
        """Return a row's label."""
        ...

    def block(self, start: int, stop: int) -> Block:
        """Return the rows [start, stop). Do not write to their arrays."""
        ...


@dataclass(frozen=True, slots=True)
class SparseRows:
    """All rows as a CSR matrix: row i consists of the entries offsets[i] to offsets[i+1] - 1."""

    offsets: OffsetArray  # int64[n + 1]
    indices: IndexArray  # int32[nnz]
    values: FloatArray  # float64[nnz]
    labels: LabelArray  # int64[n]

    def row(self, row: int) -> Row:
        """Return a row, as views of the arrays."""
        start, stop = self.offsets[row], self.offsets[row + 1]
        return Row(Features(self.indices[start:stop], self.values[start:stop]), int(self.labels[row]))

    def label(self, row: int) -> int:
        """Return a row's label."""
        return int(self.labels[row])

    def block(self, start: int, stop: int) -> Block:
        """Return the rows [start, stop), as views if possible."""
        first, last = self.offsets[start], self.offsets[stop]
        return Block(
            self.offsets[start : stop + 1] - first,
            self.indices[first:last],
            self.values[first:last],
            self.labels[start:stop],
        )


class Known(NamedTuple):
    """The known outcome of an event, independent of the pipeline's action."""

    label: int | None = None  # the true class
    action: int | None = None  # the class played in a log
    reward: float | None = None  # the logged action's reward: a bit, or a number in the units of the log
    delay_ms: int | None = None  # the feedback delay in the log
    rewards: FloatArray | None = None  # the reward of each class or action, if all of them are known
    has_bits: bool = False  # whether `rewards` contains bits

    def reward_of(self, action: int) -> float | None:
        """Return an action's reward: a bit (1 right, 0 wrong) or a number; None if it is unknown.

        >>> [known.reward_of(1) for known in (Known(label=2), Known(action=1, reward=1), Known(action=2, reward=1))]
        [0, 1, None]
        """
        if self.rewards is not None:
            reward = float(self.rewards[action])
            return int(reward) if self.has_bits else reward
        if self.action == action and self.reward is not None:
            return self.reward
        return None if self.label is None else int(action == self.label)


class Slot(NamedTuple):
    """A position in the replay order."""

    event_id: str
    row: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows with labels and random access."""

    name: str  # the display name
    id_prefix: str  # the prefix of the event ids
    rows: int
    n_features: int
    n_classes: int
    class_names: tuple[str, ...]  # the class names in the source data
    terms: str  # the terms of use for the data
    source: Rows
    uneven: str = field(default="", kw_only=True)  # warning about a column in a log; see `uneven_of`
    blocks: ActionBlocks | None = field(default=None, kw_only=True)  # the layout of x; None without actions

    def row(self, row: int) -> Row:
        """Return a row's features and label."""
        return self.source.row(self._checked(row))

    def label(self, row: int) -> int:
        """Return a row's label."""
        return self.source.label(self._checked(row))

    def block(self, start: int, stop: int) -> Block:
        """Return the rows [start, stop), for compiled loops."""
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"{self.name}: expected rows in 0..{self.rows - 1}; got [{start}, {stop})")
        return self.source.block(start, stop)

    def event_id(self, row: int, epoch: int = 0) -> str:
        """Return the id of the event that replays this row in this epoch. Ids sort in row order."""
        return f"{self.id_prefix}-{epoch}-{row:06}"

    def parse_event_id(self, event_id: str) -> tuple[int, int]:
        """Return an event's epoch and row. Raise UnknownEventError if the event does not belong to this data set."""
        parts = event_id.rsplit("-", 2)
        # Only ids that `event_id` returns are accepted, so that each row has one id per epoch.
        if len(parts) == 3 and parts[0] == self.id_prefix and _is_written(parts[1], 1) and _is_written(parts[2], 6):
            row = int(parts[2])
            if row < self.rows:
                return int(parts[1]), row
        raise UnknownEventError(
            f"event {event_id[:100]!r} does not belong to {self.name}: expected {self.id_prefix}-EPOCH-ROW with a row "
            f"from {0:06} to {self.rows - 1:06}; use the replay's data set, and the replay's seed if "
            "the data are synthetic"
        )

    def label_of(self, event_id: str) -> int:
        """Return an event's true class."""
        return self.source.label(self.parse_event_id(event_id)[1])

    def known_of(self, event_id: str) -> Known:
        """Return an event's known outcome."""
        return Known(self.label_of(event_id))

    def actions(self, row: int) -> Sequence[str] | None:
        """Return the ids of a row's actions by place, or None if the data set has classes. x contains their blocks."""
        return None

    def eligible(self, row: int) -> Sequence[str | int] | None:
        """Return a row's eligible classes, in the format used in context records. None means all classes or actions."""
        return None

    def baseline(self, row: int) -> str | int | None:
        """Return the class that the service's own rule plays for a row, as in context records, or None if unknown."""
        return None

    def logged(self, row: int) -> Logged | None:
        """Return a row's logged decision, or None if this is not a log or the decision is missing."""
        return None

    def time_of(self, row: int) -> int | None:
        """Return a row's decision time in milliseconds, or None if this is not a log or the time is missing."""
        return None

    def decided_at_ms(self, row: int) -> int:
        """Return a row's decision time. Raise DatasetError if it is unknown."""
        found = self.time_of(row)
        if found is None:
            raise DatasetError(
                f"{self.name}, row {row}: no decision time; a replay at a given speed requires decision times"
            )
        return found

    def named_classes(self) -> tuple[str, ...] | None:
        """Return the class names that a log's records contain, or None if the records contain class indices."""
        return None

    def has_labels(self) -> bool:
        """Return whether any true classes are known."""
        return True

    def has_rewards(self) -> bool:
        """Return whether the reward of every class or action is known."""
        return False

    def reward_range(self) -> RewardRange | None:
        """Return the range of graded rewards, or None if rewards are bits or come from a log."""
        return None

    def has_logged(self) -> bool:
        """Return whether there are logged decisions."""
        return False

    def has_eligible(self) -> bool:
        """Return whether contexts list eligible classes."""
        return False

    def has_delays(self) -> bool:
        """Return whether there are logged feedback delays."""
        return False

    def logged_delays_ms(self) -> list[int]:
        """Return the logged feedback delays for the first rows, or an empty list if this is not a log."""
        return []

    def part(self, from_ms: int | None, to_ms: int | None, limit: int | None) -> "Dataset":
        """Return up to `limit` rows of a log, namely those whose decision times are in a range.

        The log must be in time order.

        Raises:
            DatasetError: this is not a log, it has no times, or no row is in the range.
        """
        raise DatasetError(f"{self.name} is not a log of decisions; a time range requires a log")

    def order(self, epoch: int, shuffle_seed: int | None = None) -> Sequence[int]:
        """Return an epoch's rows in replay order: unshuffled, or shuffled differently in each epoch.

        Shuffling sorts the rows by a hash of (seed, epoch, row). The order does not depend on a library's random
        generator, so a replay can be resumed with a different version of that library.
        """
        if shuffle_seed is None:
            return range(self.rows)
        key = Draws(shuffle_seed, Purpose.SHUFFLE).bits(f"{self.id_prefix}-{epoch}")
        order = np.argsort(words(key, self.rows), kind="stable").astype(np.int64)
        return array("q", order.tobytes())  # an array yields Python integers, and uses 8 bytes per row

    def schedule(self, start: int, stop: int, shuffle_seed: int | None = None) -> Iterator[Slot]:
        """Yield the events at the positions [start, stop) in a replay. Position p is in epoch p // rows."""
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
            raise IndexError(f"{self.name}: expected a row in 0..{self.rows - 1}; got {row}")
        return row


def dense_dataset(name: str, x: ArrayLike, labels: Iterable[object], terms: str = "") -> Dataset:
    """Create a data set in memory.

    Args:
        name: The display name, which is also the prefix of event ids.
        x: The features, n rows of d numbers.
        labels: The class of each row: strings, numbers or other values. Classes are numbered in numeric order if all
            are numbers, otherwise in order of first occurrence.
        terms: The terms of use for the data.

    Raises:
        DatasetError: the arrays have the wrong shapes, a number is not finite, or a label is missing.

    >>> data = dense_dataset("two-points", np.array([[1.0, 0.0], [0.0, 2.0]]), ["left", "right"])
    >>> data.rows, data.class_names, data.row(1).x.values.tolist(), data.event_id(1)
    (2, ('left', 'right'), [2.0], 'two-points-0-000001')
    """
    dense = _matrix(name, x)
    texts = _texts_of_labels(name, labels)
    if len(texts) != len(dense):
        raise DatasetError(
            f"{name}: expected one label per row of x; got {len(texts):,} labels and {len(dense):,} rows"
        )
    names = tuple(in_order(dict.fromkeys(texts)))
    if len(names) < 2:
        raise DatasetError(f"{name}: expected two or more classes; got {', '.join(names) or 'no rows'}")
    class_of = {text: k for k, text in enumerate(names)}
    rows, columns = np.nonzero(dense)
    source = SparseRows(
        np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(dense))))).astype(np.int64),
        columns.astype(np.int32),
        dense[rows, columns],
        np.fromiter(map(class_of.__getitem__, texts), np.int64, len(texts)),
    )
    return Dataset(name, name, len(dense), dense.shape[1], len(names), names, terms, source)


def _matrix(name: str, x: ArrayLike) -> FloatArray:
    try:
        dense = np.asarray(x)
        is_real = dense.dtype.kind in "biufO"
        dense = dense.astype(np.float64) if is_real else dense
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{name}: expected x with one number per row and feature: {error}") from error
    if not is_real or dense.ndim != 2 or not dense.shape[1]:
        got = f"{type(x).__name__} of shape {dense.shape} and type {dense.dtype}"
        raise DatasetError(f"{name}: expected numbers x of shape (rows, features); got {got}")
    bad = np.argwhere(~np.isfinite(dense))
    if bad.size:
        row, column = bad[0].tolist()
        raise DatasetError(f"{name}, x[{row}, {column}]: expected a finite number; got {dense[row, column]}")
    return dense


def _texts_of_labels(name: str, labels: Iterable[object]) -> list[str]:
    """Return the text that identifies each row's class, as in a file."""
    if getattr(labels, "ndim", 1) != 1:
        raise DatasetError(f"{name}: expected labels of shape (rows,); got {np.shape(cast(Any, labels))}")
    listed = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    found = []
    for row, label in enumerate(listed):
        text = text_of(label.item() if isinstance(label, np.generic) else label) or str(label)
        if not text or (text in _MISSING_LABELS and not isinstance(label, str)):
            raise DatasetError(f"{name}, label {row}: expected a class; got {label!r}")
        found.append(text)
    return found


_MISSING_LABELS = frozenset(("None", "nan", "NaT", "<NA>"))
"""The texts of the objects that numpy and pandas use for missing values."""


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names numerically if all are numbers. Otherwise keep their order.

    >>> in_order(["10", "9", "0.5"]), in_order(["10", "9", "x"])
    (['0.5', '9', '10'], ['10', '9', 'x'])
    """
    listed = list(names)
    numbers = [number for name in listed if (number := parse_exact(name)) is not None]
    if len(numbers) < len(listed):
        return listed
    return [name for _, name in sorted(zip(numbers, listed, strict=True), key=itemgetter(0))]


def _is_written(text: str, width: int) -> bool:
    """Return whether a string is a decimal integer, padded with zeros to this width."""
    digits = len(text)
    return (digits == width or (width < digits <= 18 and text[0] != "0")) and text.isascii() and text.isdecimal()
