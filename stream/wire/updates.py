"""Encodes and decodes the records in the updates topic, which is a shared model's log.

The *entries* from one step form one record, or several records (parts) if one record would be too large. A record's
value is a section (see `stream.wire.sections`). Its arrays contain the step's entries as columns, in order:

    {"name": "updates", "arrays": [...],
     "values": {"partition": 2, "step": 41, "part": 0, "follows": 39, "control": 3, "names": []}}

    kind         |i1 [n]        0 decided, 1 settled, 2 corrected, 3 changed, 4 named
    action       <i4 [n]        the decision's action
    greedy       <i4 [n]        the decision's greedy class
    propensity   <f8 [n]        the decision's propensity
    scores       <f8 [n, K+L]   the decision's scores, then additional numbers that the learner stores
    reward       |i1 [n]        the bit, or <f8 for graded rewards: a share of their range; -1 for a decision
    nnz          <i4 [n]        the number of features in x
    x.indices    <i4            the indices of all x, concatenated
    x.values     <f8            the values of all x, concatenated; omitted if all are 1
    assumed      |i1 [n]        the bit (<f8: the share) that a correction replaces, or -1; omitted if all are -1
    v            <f8 [n]        the draw for a randomised update; omitted if all are 0
    label        <i4 [n]        the true class, or -1; omitted if all are -1

An entry contains all the data that a reader needs to apply it, so readers of the log do not store pending decisions.
`follows` is the number of the task's previous step that wrote to the log, or 0. Readers use this number to detect
missing and repeated steps. `names` contains a text for each entry of kind 3 or 4, in order. For kind 4, it is a class
name; a name that is not in the log yet gets the next index. For kind 3, it is the offset in the control topic up to
which all requests are in force from this entry on. Such an entry is the last one of its step.

`control` is the offset in the control topic up to which requests were in force when the task made the step. It
determines the learners, the classes and thus K and L. An entry of kind 3 from another task can precede the record, so
that other settings are in force at this point of the log; see `stream.shared.history`.

A record's `onebit-version` header contains the format version. A record without this header, or without a section named
`updates`, was written by another program.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.wire.codec import VERSION_HEADER
from stream.wire.records import NO_FEATURES, Decision, Features, FloatArray, Headers, IndexArray, Record, place_of
from stream.wire.sections import Section, SectionReader, encode_section, section_name

FORMAT = 1
HEADERS: Headers = ((VERSION_HEADER[0], b"%d" % FORMAT),)

RECORD_BYTES_MAX = 900_000
"""Size limit for the entries in one record. The limit is below Kafka's default of 1 MB, to leave room for the section's
head.
"""

DECIDED, SETTLED, CORRECTED, CHANGED, NAMED = 0, 1, 2, 3, 4
"""Kinds of entries: a decision, its bit (real or assumed), the real bit that replaces an assumed bit, changed settings,
and a class name. The last two kinds have an empty x and an all-zero decision, and a text instead."""

NO_BIT, NO_LABEL = -1, -1

_NAME = "updates"
FEATURE_BYTES = 12  # size of an index and a value in x
_ENTRY_BYTES = 38  # size of an entry without scores and x


class UpdatesError(OnebitError):
    """Raised when the update log cannot be read any further."""

    def __init__(self, message: str, place: str) -> None:
        """Describe the problem with the record at `place`. The message begins with the place."""
        super().__init__(f"{place}: {message}")
        self.place = place


class Entry(NamedTuple):
    """An entry that a step wrote to the log."""

    kind: int
    x: Features
    decision: Decision
    reward: float = NO_BIT  # a bit as an int, or a share as a float
    assumed: float = NO_BIT
    v: float = 0.0
    label: int = NO_LABEL
    name: str = ""


def entry_without_decision(kind: int, n_classes: int, logged_size: int, name: str) -> Entry:
    """Create an entry for changed settings or a class name. Its decision has K scores and L logged numbers, all 0."""
    decision = Decision(0, 0, 0.0, np.zeros(n_classes), np.zeros(logged_size))
    return Entry(kind, NO_FEATURES, decision, name=name)


class Entries(NamedTuple):
    """Entries as columns, in order."""

    kinds: NDArray[np.int8]  # int8[n]
    actions: NDArray[np.int32]  # int32[n]
    greedy: NDArray[np.int32]  # int32[n]
    propensities: FloatArray  # float64[n]
    scores: FloatArray  # float64[n, K + L]: the logged numbers follow the scores
    rewards: NDArray[np.int8] | FloatArray  # int8[n] for bits, float64[n] for shares
    sizes: NDArray[np.int32]  # int32[n], number of features in each x
    indices: IndexArray  # int32[sum of sizes]
    values: FloatArray  # float64[sum of sizes]
    assumed: NDArray[np.int8] | FloatArray  # int8[n] or float64[n]
    v: FloatArray  # float64[n]
    labels: NDArray[np.int32]  # int32[n]


class _Column(NamedTuple):
    """The storage format for a field in `Entries`."""

    name: str
    dtype: type[np.generic]  # for a reward, the type of a bit; shares have the type float64
    absent: float | None = None  # the column is omitted if all values equal this one; None: never omitted


_COLUMNS = (  # in field order
    _Column("kind", np.int8),
    _Column("action", np.int32),
    _Column("greedy", np.int32),
    _Column("propensity", np.float64),
    _Column("scores", np.float64),
    _Column("reward", np.int8),
    _Column("nnz", np.int32),
    _Column("x.indices", np.int32),
    _Column("x.values", np.float64, absent=1.0),
    _Column("assumed", np.int8, absent=NO_BIT),
    _Column("v", np.float64, absent=0.0),
    _Column("label", np.int32, absent=NO_LABEL),
)
_REWARDS = ("reward", "assumed")


class Update(NamedTuple):
    """One record in the log."""

    partition: int  # the task's partition
    step: int  # the task's step
    part: int  # part number, starting at 0
    follows: int  # the task's previous step in the log; 0 if there is none
    control: int  # offset in the control topic up to which requests were in force when the task made the step
    names: tuple[str, ...]  # texts, one for each entry of kind CHANGED or NAMED
    entries: Entries

    @property
    def classes(self) -> list[str]:
        """The class names."""
        return _texts(self.entries, self.names, NAMED)

    @property
    def change(self) -> int:
        """The offset in the control topic up to which requests are in force after this record; 0 if it changes none."""
        return max(map(int, _texts(self.entries, self.names, CHANGED)), default=0)


def columns_of(entries: Sequence[Entry]) -> Entries:
    """Convert one or more entries from the same model's log to columns."""
    kinds, xs, decisions, rewards, assumed, v, labels, _ = zip(*entries, strict=True)
    actions, greedy, propensities, scores, logged = zip(*decisions, strict=True)
    indices, values = zip(*xs, strict=True)
    rows = np.concatenate([row for pair in zip(scores, logged, strict=True) for row in pair])
    columns = (
        kinds, actions, greedy, propensities, rows.reshape(len(entries), -1), rewards,
        [array.size for array in indices], np.concatenate(indices), np.concatenate(values), assumed, v, labels,
    )  # fmt: skip
    return Entries(*(_as_stored(column, stored) for column, stored in zip(columns, _COLUMNS, strict=True)))


def _as_stored(column: Any, stored: _Column) -> NDArray[Any]:
    if stored.name not in _REWARDS:
        return np.asarray(column, stored.dtype)
    rewards = np.asarray(column)
    return rewards if rewards.dtype == np.float64 else rewards.astype(stored.dtype)


def entry_at(entries: Entries, place: int, end: int, n_classes: int) -> Entry:
    """Return the entry at an index, without a text. `end` is the index after the entry's last feature."""
    part = slice(end - int(entries.sizes[place]), end)
    row = entries.scores[place].copy()  # a decision's scores and logged numbers share an array
    decision = Decision(
        int(entries.actions[place]), int(entries.greedy[place]), float(entries.propensities[place]),
        row[:n_classes], row[n_classes:],
    )  # fmt: skip
    return Entry(
        int(entries.kinds[place]), Features(entries.indices[part], entries.values[part]), decision,
        entries.rewards[place].item(), entries.assumed[place].item(), float(entries.v[place]),
        int(entries.labels[place]),
    )  # fmt: skip


def joined(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries from the same model's log."""
    return parts[0] if len(parts) == 1 else Entries(*map(np.concatenate, zip(*parts, strict=True)))


def encode_updates(
    partition: int,
    step: int,
    follows: int,
    entries: Sequence[Entry],
    *,
    control: int = 0,
    bytes_max: int = RECORD_BYTES_MAX,
) -> list[bytes]:
    """Encode a step's entries as the values of one or more records, each with at least one entry.

    Args:
        partition: the task's partition.
        step: the step's number.
        follows: the number of the task's previous step with entries, or 0 if there is none.
        entries: one or more entries.
        control: the offset in the control topic up to which requests were in force when the task made the step.
        bytes_max: size limit for the entries in a record.
    """
    records = []
    for part, portion in enumerate(_portions(entries, bytes_max)):
        names = [entry.name for entry in portion if entry.kind >= CHANGED]
        values = {"partition": partition, "step": step, "part": part, "follows": follows, "control": control}
        records.append(
            b"".join(encode_section(Section(_NAME, values | {"names": names}, _arrays(columns_of(portion)))))
        )
    return records


def decode_update(record: Record) -> Update | None:
    """Decode a record from the log.

    Returns None for a record from another program, which has no version or no updates section. Such a record cannot
    hide a missing step, because each record contains the number of the task's previous step in the log.

    Raises:
        UpdatesError: the record has a different format or cannot be decoded.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    if version is None or section_name(record.value or b"") != _NAME:
        return None
    place = place_of(record)
    if version != HEADERS[0][1]:
        raise UpdatesError(
            f"expected the header {VERSION_HEADER[0]}={FORMAT}; got {version!r}. The log cannot be read further", place
        )
    try:
        return _update(SectionReader([memoryview(record.value or b"")]).section())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UpdatesError(f"expected an update record; decoding failed: {error!r}", place) from error


def entry_bytes(nnz: int, width: int) -> int:
    """Return the size of an entry with nnz features in x and width (K + L) numbers in its decision."""
    return _ENTRY_BYTES + FEATURE_BYTES * nnz + 8 * width


def _portions(entries: Sequence[Entry], bytes_max: int) -> Iterator[Sequence[Entry]]:
    first = size = 0
    for place, (_, x, decision, *_, name) in enumerate(entries):
        more = entry_bytes(x.indices.size, decision.scores.size + decision.logged.size) + 4 * len(name)
        if size + more > bytes_max and place > first:
            yield entries[first:place]
            first, size = place, 0
        size += more
    yield entries[first:]


def _arrays(entries: Entries) -> dict[str, NDArray[Any]]:
    columns: tuple[NDArray[Any], ...] = entries
    return {
        stored.name: column
        for stored, column in zip(_COLUMNS, columns, strict=True)
        if stored.absent is None or np.any(column != stored.absent)
    }


def _update(section: Section) -> Update:
    arrays = section.arrays
    if unknown := arrays.keys() - {stored.name for stored in _COLUMNS}:
        raise ValueError(f"{min(unknown)}: unknown column")
    count, size = arrays["kind"].size, arrays["x.indices"].size
    columns = []
    for name, dtype, absent in _COLUMNS:
        rows = size if name.startswith("x.") else count
        column = arrays[name] if absent is None or name in arrays else np.full(rows, absent, dtype)
        is_share = name in _REWARDS and column.dtype == np.float64
        has_shape = column.shape[:1] == (rows,) and column.ndim == (2 if name == "scores" else 1)
        if (column.dtype != dtype and not is_share) or not has_shape:
            raise ValueError(
                f"{name}: expected length {rows}, type {np.dtype(dtype)}; got {column.shape}, {column.dtype}"
            )
        columns.append(column)
    entries = Entries(*columns)
    if entries.sizes.min(initial=0) < 0 or entries.sizes.sum() != size:
        raise ValueError(f"nnz: expected a sum of {size}; got {entries.sizes.sum()}")
    partition, step, part, follows, control = numbers = [section.values[name] for name in Update._fields[:5]]
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{', '.join(Update._fields[:5])}: expected whole numbers; got {numbers}")
    names, count = tuple(section.values["names"]), int(np.count_nonzero(entries.kinds >= CHANGED))
    if len(names) != count or not all(type(name) is str for name in names):
        raise ValueError(f"names: expected {count} strings; got {names}")
    if (entries.kinds[:-1] == CHANGED).any():
        raise ValueError("kind: expected changed settings only in the last entry")
    for text in _texts(entries, names, CHANGED):
        int(text)
    return Update(partition, step, part, follows, control, names, entries)


def _texts(entries: Entries, names: Sequence[str], kind: int) -> list[str]:
    """Return the texts of the entries of one kind."""
    return [text for text, one in zip(names, entries.kinds[entries.kinds >= CHANGED], strict=True) if one == kind]
