"""Snapshots: a task's whole state as bytes, and back. No pickle, no topic, no clock.

The state is a row of sections, see `stream.wire.sections`:

    state     values: the task's settings, its place in its topics, its counts (see `_state_values`); comes first
    learner   arrays and scalars of `Learner.state()`; as many sections as it has arrays
    pending   a block of decisions that wait, oldest first; as many sections as needed
    orphans   a block of feedback that waits
    retained  a block of settled ids
    end       nothing; comes last

The columns of a block are those of `stream.recovery.snapshot_columns`.

**Formats.** 3 is the current one. 2 had the window and the limits in an object `join` of the settings, and no
`settings_from`. 1 had besides neither `taken_ms` nor `overflows`. MIGRATIONS supplies what is missing. A snapshot of a
later format is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stream.joining.join import Orphan, Overflows, Pending, Retained
from stream.learners import State
from stream.recovery.snapshot_columns import (
    Columns,
    UnknownColumnError,
    orphan_block,
    pending_block,
    read_orphan_block,
    read_pending_block,
    read_retained_block,
    retained_block,
)
from stream.recovery.stored_settings import from_format_1
from stream.wire.ledger import Ledger
from stream.wire.sections import Section, SectionReader, encode_section

FORMAT = 3

BLOCK_ENTRIES = 2_000
"""Entries of the join in one section: what is encoded at once, 5 ms or so."""


Pulse = Callable[[], None]
"""Is called again and again during long work; what it raises ends the work."""


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the message says what to do."""


class Position(NamedTuple):
    """Where a task stands in its topics."""

    number: int  # of the last step applied; 0: none
    journal_offset: int  # the next step stands here or later in the journal
    contexts_offset: int  # of the first record that is not applied
    feedback_offset: int
    taken_ms: int  # the broker's time when the snapshot was taken
    settings_from: int = 0  # the first step that was made under the task's settings, as its journal says
    predictions_offset: int = 0  # with a shared model: predictions of the next step stand here or later


class Snapshot(NamedTuple):
    """A task's whole state at one position."""

    settings: Mapping[str, Any]  # of the task, as `stored_settings` has them; of an import only those of its model
    position: Position
    updates: int
    decided_at_ms: int
    watermark_ms: int
    ledger: Ledger
    overflows: Overflows
    learner: State
    pending: tuple[Sequence[str], Sequence[Pending]]  # ids, and what is kept for each
    orphans: tuple[Sequence[str], Sequence[Orphan]]
    retained: tuple[Sequence[str], Sequence[Retained]]


Entry = TypeVar("Entry", Pending, Orphan, Retained)


def encode_state(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The bytes of a snapshot, in parts that are made when they are asked for."""
    for section in _sections(snapshot):
        yield from encode_section(section)


def decode_state(payloads: list[memoryview], written_format: int, name: str, pulse: Pulse = lambda: None) -> Snapshot:
    """The snapshot whose bytes these are; each payload is let go when it has been read.

    Args:
        payloads: the bytes, in as many pieces as it may be.
        written_format: the format that they were written in.
        name: what to call the snapshot in messages.
        pulse: is called between two sections.

    Raises:
        SnapshotError: it cannot be read.
    """
    try:
        return _decode(SectionReader(payloads), written_format, pulse)
    except (UnknownColumnError, _UnknownCountError) as error:
        raise SnapshotError(
            f"{name} holds {error}, which this version of Onebit does not know: it was written by a later version; "
            "start that one"
        ) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(f"{name}, format {written_format}, cannot be read: {error!r}") from error


class _UnknownCountError(ValueError):
    """A count of a later version."""


def _counts(values: Mapping[str, int], known: Sequence[str]) -> Mapping[str, int]:
    """Counts by name; those that are absent are 0."""
    if unknown := sorted(values.keys() - set(known)):
        raise _UnknownCountError(unknown[0])
    return values


def _sections(snapshot: Snapshot) -> Iterator[Section]:
    yield Section("state", _state_values(snapshot))
    yield from learner_sections(snapshot.learner)
    yield from _blocks("pending", snapshot.pending, pending_block)
    yield from _blocks("orphans", snapshot.orphans, orphan_block)
    yield from _blocks("retained", snapshot.retained, retained_block)
    yield Section("end")


def learner_sections(state: State) -> Iterator[Section]:
    """The state of a learner, a section for each of its parts."""
    for name, value in state.items():
        if isinstance(value, np.ndarray | np.generic):
            shaped = value.reshape(1) if value.ndim == 0 else value
            yield Section("learner", {"scalar": value.ndim == 0}, {name: shaped})
        elif isinstance(value, float):
            yield Section("learner", {"scalar": True, "python": True}, {name: np.array([value])})
        else:
            yield Section("learner", {"values": {name: value}})


def learner_part(section: Section) -> State:
    """The part of a learner's state in a section; the inverse of `learner_sections`."""
    part: State = dict(section.values.get("values", {}))
    for name, array in section.arrays.items():
        if section.values.get("python"):
            part[name] = float(array[0])
        else:
            part[name] = array.reshape(()) if section.values["scalar"] else array
    return part


def _blocks(
    name: str,
    kept: tuple[Sequence[str], Sequence[Entry]],
    block_of: Callable[[Sequence[str], Sequence[Entry]], Columns],
) -> Iterator[Section]:
    ids, entries = kept
    for start in range(0, len(ids), BLOCK_ENTRIES):
        part = slice(start, start + BLOCK_ENTRIES)
        yield Section(name, arrays=block_of(ids[part], entries[part]))


def _state_values(snapshot: Snapshot) -> dict[str, Any]:
    position = snapshot.position
    return {
        "settings": snapshot.settings,
        "settings_from": position.settings_from,
        **({"predictions_offset": position.predictions_offset} if position.predictions_offset else {}),
        "number": position.number,
        "journal_offset": position.journal_offset,
        "contexts_offset": position.contexts_offset,
        "feedback_offset": position.feedback_offset,
        "taken_ms": position.taken_ms,
        "updates": snapshot.updates,
        "decided_at_ms": snapshot.decided_at_ms,
        "watermark_ms": snapshot.watermark_ms,
        "ledger": snapshot.ledger._asdict(),
        "overflows": snapshot.overflows._asdict(),
    }


def _from_1(values: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had no time, for which the feedback watermark stands in, and did not keep the overflows' counts."""
    return {**values, "taken_ms": values["watermark_ms"], "overflows": {}}


def _from_2(values: dict[str, Any]) -> dict[str, Any]:
    """Format 2 had the settings as the journal's format 1, and none that had changed."""
    return {**values, "settings": from_format_1(values["settings"]), "settings_from": 0}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}
"""For each earlier format, what makes the values of its `state` section those of the next one."""


_READERS: Mapping[str, Callable[[Columns], tuple[list[str], list[Any]]]] = {
    "pending": read_pending_block,
    "orphans": read_orphan_block,
    "retained": read_retained_block,
}


def _decode(reader: SectionReader, written_format: int, pulse: Pulse) -> Snapshot:
    opening = reader.section()
    values = dict(opening.values)
    for older in range(written_format, FORMAT):
        values = MIGRATIONS[older](values)
    learner: State = {}
    ids: dict[str, list[str]] = {name: [] for name in _READERS}
    entries: dict[str, list[Any]] = {name: [] for name in _READERS}
    while (section := reader.section()).name != "end":
        pulse()
        if section.name == "learner":
            learner |= learner_part(section)
            continue
        block_ids, block = _READERS[section.name](section.arrays)
        ids[section.name] += block_ids
        entries[section.name] += block
    return Snapshot(
        values["settings"],
        Position(**{name: values[name] for name in Position._fields if name in values or name != "predictions_offset"}),
        values["updates"],
        values["decided_at_ms"],
        values["watermark_ms"],
        Ledger(**_counts(values["ledger"], Ledger._fields)),
        Overflows(**_counts(values["overflows"], Overflows._fields)),
        learner,
        (ids["pending"], entries["pending"]),
        (ids["orphans"], entries["orphans"]),
        (ids["retained"], entries["retained"]),
    )
