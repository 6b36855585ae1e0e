"""The topic of updates, the log of a model that many tasks share: its records as bytes, and back.

What one step of one task has for the model is one record, or several parts where it would be too large. Its value is a
section, see `stream.wire.sections`, whose arrays are columns of the step's *entries* in their order:

    {"name": "updates", "values": {"partition": 2, "step": 41, "part": 0, "follows": 39}, "arrays": [...]}

    kind         |i1 [n]        0 decided, 1 settled, 2 corrected
    action       <i4 [n]        as in the decision, and so are
    greedy       <i4 [n]
    propensity   <f8 [n]
    scores       <f8 [n, K+L]   the scores, and behind them what the learner itself logged
    reward       |i1 [n]        the bit; -1 of a decided one
    nnz          <i4 [n]        how many features the x has
    x.indices    <i4            the x one after the other
    x.values     <f8            absent: ones
    assumed      |i1 [n]        the bit that a correction replaces; -1 of the others. Absent: -1
    v            <f8 [n]        the draw of an update that is randomised. Absent: 0
    label        <i4 [n]        the true class; -1: none was given. Absent: -1

An entry has all that a model needs to take it in, so that whoever reads the log keeps no waiting decisions. `follows`
is the step before that wrote to the log, 0 for the first: so a reader knows when one is missing, or came twice.

The header `onebit-version` holds the format. A record without it, or that is no section of this name, is of another
program.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.wire.codec import VERSION_HEADER
from stream.wire.events import Decision, Features, FloatArray, IndexArray
from stream.wire.records import Headers, Record, place_of
from stream.wire.sections import Section, SectionReader, encode_section, section_name

FORMAT = 1
HEADERS: Headers = ((VERSION_HEADER[0], b"%d" % FORMAT),)

RECORD_BYTES_MAX = 900_000
"""Of the entries in one record: under the 1 MB that Kafka lets a record have by default, with room for the head."""

DECIDED, SETTLED, CORRECTED = 0, 1, 2
"""Kinds of entries: a decision was made, its bit came or was assumed, an assumed bit is replaced by the real one."""

NO_BIT, NO_LABEL = -1, -1

_NAME = "updates"
_ENTRY_BYTES = 38  # of an entry, beside its scores and its x
_NEEDED = ("kind", "action", "greedy", "propensity", "scores", "reward", "nnz", "x.indices")
_OPTIONAL = ("x.values", "assumed", "v", "label")


class UpdatesError(Exception):
    """The log of updates cannot be read on; the message says what to do."""


class Entry(NamedTuple):
    """What a step has for the model: one decision, one bit, or one correction."""

    kind: int
    x: Features
    decision: Decision
    reward: int = NO_BIT
    assumed: int = NO_BIT
    v: float = 0.0
    label: int = NO_LABEL


class Entries(NamedTuple):
    """Entries in columns, in their order."""

    kinds: NDArray[np.int8]  # int8[n]
    actions: NDArray[np.int32]  # int32[n]
    greedy: NDArray[np.int32]  # int32[n]
    propensities: FloatArray  # float64[n]
    scores: FloatArray  # float64[n, K + L]: what is logged stands behind the scores
    rewards: NDArray[np.int8]  # int8[n]
    assumed: NDArray[np.int8]  # int8[n]
    v: FloatArray  # float64[n]
    labels: NDArray[np.int32]  # int32[n]
    sizes: NDArray[np.int32]  # int32[n], the features of each x
    indices: IndexArray  # int32[sum of sizes]
    values: FloatArray  # float64[sum of sizes]


class Update(NamedTuple):
    """One record of the log."""

    partition: int  # the task
    step: int  # of it
    part: int  # from 0 on
    follows: int  # the step before that wrote to the log; 0: none did
    entries: Entries


def columns_of(entries: Sequence[Entry]) -> Entries:
    """The columns of one entry or more, all of one model."""
    kinds, xs, decisions, rewards, assumed, v, labels = zip(*entries, strict=True)
    actions, greedy, propensities, scores, logged = zip(*decisions, strict=True)
    indices, values = zip(*xs, strict=True)
    rows = [row for pair in zip(scores, logged, strict=True) for row in pair]
    return Entries(
        np.array(kinds, np.int8),
        np.array(actions, np.int32),
        np.array(greedy, np.int32),
        np.array(propensities, np.float64),
        np.concatenate(rows).reshape(len(entries), -1),
        np.array(rewards, np.int8),
        np.array(assumed, np.int8),
        np.array(v, np.float64),
        np.array(labels, np.int32),
        np.array([array.size for array in indices], np.int32),
        np.concatenate(indices),
        np.concatenate(values),
    )


def joined(parts: Sequence[Entries]) -> Entries:
    """Entries of one model, one after the other."""
    return parts[0] if len(parts) == 1 else Entries(*map(np.concatenate, zip(*parts, strict=True)))


def encode_updates(
    partition: int, step: int, follows: int, entries: Sequence[Entry], bytes_max: int = RECORD_BYTES_MAX
) -> list[bytes]:
    """The values of the records of a step that has entries; each has as many as `bytes_max` allows, and one at least.

    Args:
        partition: the task.
        step: its number.
        follows: the number of the task's step before that had entries, 0 if this is the first.
        entries: one or more.
        bytes_max: of the entries in a record.
    """
    return [
        b"".join(encode_section(_section(Update(partition, step, part, follows, columns_of(portion)))))
        for part, portion in enumerate(_portions(entries, bytes_max))
    ]


def decode_update(record: Record) -> Update | None:
    """Read a record of the log; None for one of another program, which has no version, or is no section of updates.

    It can hide no step: those of a task are chained by their numbers.

    Raises:
        UpdatesError: it is of another format, or cannot be read.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    if version is None or section_name(record.value or b"") != _NAME:
        return None
    place = place_of(record)
    if version != HEADERS[0][1]:
        raise UpdatesError(
            f"{place}: expected the header {VERSION_HEADER[0]}={FORMAT}; got {version!r}: the log cannot be read on"
        )
    try:
        section = SectionReader([memoryview(record.value or b"")]).section()
        return _update(section.values, section.arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UpdatesError(f"{place}: expected a record of updates; cannot be read: {error!r}") from error


def entry_bytes(nnz: int, width: int) -> int:
    """How much of a record an entry takes, for an x of so many features and K + L = width numbers of a decision."""
    return _ENTRY_BYTES + 12 * nnz + 8 * width


def _portions(entries: Sequence[Entry], bytes_max: int) -> Iterator[Sequence[Entry]]:
    first = size = 0
    for place, (_, x, decision, *_) in enumerate(entries):
        more = entry_bytes(x.indices.size, decision.scores.size + decision.logged.size)
        if size + more > bytes_max and place > first:
            yield entries[first:place]
            first, size = place, 0
        size += more
    yield entries[first:]


def _section(update: Update) -> Section:
    entries = update.entries
    arrays: dict[str, NDArray[Any]] = {
        "kind": entries.kinds,
        "action": entries.actions,
        "greedy": entries.greedy,
        "propensity": entries.propensities,
        "scores": entries.scores,
        "reward": entries.rewards,
        "nnz": entries.sizes,
        "x.indices": entries.indices,
    }
    optional: tuple[tuple[str, NDArray[Any], float], ...] = (
        ("x.values", entries.values, 1.0),
        ("assumed", entries.assumed, NO_BIT),
        ("v", entries.v, 0.0),
        ("label", entries.labels, NO_LABEL),
    )
    arrays |= {name: column for name, column, absent in optional if np.any(column != absent)}
    values = {"partition": update.partition, "step": update.step, "part": update.part, "follows": update.follows}
    return Section(_NAME, values, arrays)


def _update(values: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> Update:
    if unknown := sorted(columns.keys() - {*_NEEDED, *_OPTIONAL}):
        raise ValueError(f"{unknown[0]}: no column of updates")
    count, size = columns["kind"].size, columns["x.indices"].size
    entries = Entries(
        columns["kind"],
        columns["action"],
        columns["greedy"],
        columns["propensity"],
        columns["scores"],
        columns["reward"],
        columns["assumed"] if "assumed" in columns else np.full(count, NO_BIT, np.int8),
        columns["v"] if "v" in columns else np.zeros(count),
        columns["label"] if "label" in columns else np.full(count, NO_LABEL, np.int32),
        columns["nnz"],
        columns["x.indices"],
        columns["x.values"] if "x.values" in columns else np.ones(size),
    )
    made: tuple[NDArray[Any], ...] = entries
    for name, column, dtype in zip(Entries._fields, made, _DTYPES, strict=True):
        rows = size if name in ("indices", "values") else count
        if column.dtype != dtype or column.shape[:1] != (rows,) or column.ndim != (2 if name == "scores" else 1):
            raise ValueError(f"{name}: expected {rows} of {np.dtype(dtype)}; got {column.shape} of {column.dtype}")
    if entries.sizes.min(initial=0) < 0 or entries.sizes.sum() != size:
        raise ValueError(f"nnz: expected {size} in all; got {entries.sizes.sum()}")
    partition, step, part, follows = place = [values[name] for name in ("partition", "step", "part", "follows")]
    if not all(type(number) is int for number in place):
        raise ValueError(f"partition, step, part, follows: expected whole numbers; got {place}")
    return Update(partition, step, part, follows, entries)


_DTYPES = (
    np.int8, np.int32, np.int32, np.float64, np.float64, np.int8, np.int8, np.float64, np.int32, np.int32, np.int32,
    np.float64,
)  # fmt: skip
