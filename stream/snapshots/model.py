"""Snapshots of a shared model: what a replica was at a version, so that the next one need not read the whole log.

They stand in partition 0 of the snapshots topic, in slots of their own, and are written by the learner that has the
task of that partition, in the transactions of its steps. A generation's number is the version. Its payloads are
sections: a `model` with the values below, the learner's, and `end`. A model that was imported for all tasks is the one
of version 0.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stream.journal.format import JournalError
from stream.journal.stored_settings import MODEL_SETTINGS, stored_settings
from stream.kafka.port import Broker
from stream.learners import State
from stream.shared.replica import Place, Replica
from stream.snapshots.chunks import CHUNK_BYTES, MODEL_KEYS, ChunkWriter, Generation, Stored, chunks_of
from stream.snapshots.reading import read_snapshots
from stream.snapshots.state import Pulse, SnapshotError, learner_part, learner_sections
from stream.task.settings import TaskSettings
from stream.wire.sections import Section, SectionReader, encode_section
from stream.wire.topics import Topics

PARTITION = 0
"""Who has the task of this partition writes the snapshots of the model."""


class ModelSnapshot(NamedTuple):
    """A replica at a version, with no part that it changes later."""

    settings: Mapping[str, Any]  # of the model, as `stored_settings` has them
    version: int
    updates: int
    offset: int
    places: Mapping[int, Place]
    learner: State


def take_model(replica: Replica, settings: TaskSettings, spare: State | None = None) -> ModelSnapshot:
    """A snapshot of a replica; `spare` is a state of an earlier one, whose arrays are overwritten."""
    assert not replica.is_overlaid
    learner = replica.learner
    state = learner.state() if spare is None else learner.state_into(spare)
    of_model = _of_model(settings)
    return ModelSnapshot(of_model, replica.version, replica.updates, replica.offset, dict(replica.places), state)


def restore_model(snapshot: ModelSnapshot, replica: Replica, settings: TaskSettings) -> None:
    """Make a fresh replica what the one was that a snapshot was taken of.

    Raises:
        JournalError: it is one of another model.
    """
    if (expected := _of_model(settings)) != snapshot.settings:
        raise JournalError(
            f"the snapshot of the shared model at version {snapshot.version} is of {snapshot.settings}; expected "
            f"{expected}: another pipeline has written it"
        )
    replica.learner.load(snapshot.learner)
    replica.version, replica.updates, replica.offset = snapshot.version, snapshot.updates, snapshot.offset
    replica.places.update(snapshot.places)


def model_writer(snapshot: ModelSnapshot, slot: str, chunks_before: int, chunk_bytes: int = CHUNK_BYTES) -> ChunkWriter:
    """What writes a snapshot into a slot, over so many chunks of an earlier one."""
    parts = (part for section in _sections(snapshot) for part in encode_section(section))
    return ChunkWriter(chunks_of(snapshot.version, parts, chunk_bytes), MODEL_KEYS, slot, chunks_before)


def read_model_snapshots(broker: Broker, topics: Topics, pulse: Pulse = lambda: None) -> Stored:
    """Find the newest whole snapshot of the shared model; the pulse is called after each record.

    Raises:
        SnapshotError: one is of another format.
    """
    return read_snapshots(broker, topics, PARTITION, pulse=pulse, keys=MODEL_KEYS)


def imported_model(broker: Broker, topics: Topics, pulse: Pulse = lambda: None) -> str | None:
    """The name of the model that was imported for all tasks, see `Generation.whole`; None: they begin with nothing.

    Raises:
        SnapshotError: one is of another format.
    """
    imported = read_model_snapshots(broker, topics, pulse).imported
    return None if imported is None else imported.whole


def decode_model(generation: Generation) -> ModelSnapshot:
    """The snapshot in a whole generation.

    Raises:
        SnapshotError: it cannot be read.
    """
    reader = SectionReader(generation.payloads)
    try:
        values = reader.section().values
        learner: State = {}
        while (section := reader.section()).name != "end":
            learner |= learner_part(section)
        places = {partition: Place(*place) for partition, *place in values["places"]}
        numbers = values["version"], values["updates"], values["offset"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(
            f"{generation.place}: the shared model at version {generation.number} cannot be read: {error!r}"
        ) from error
    return ModelSnapshot(values["settings"], *numbers, places, learner)


def _of_model(settings: TaskSettings) -> dict[str, Any]:
    stored = stored_settings(settings)
    return {name: stored[name] for name in MODEL_SETTINGS}


def _sections(snapshot: ModelSnapshot) -> Iterator[Section]:
    places = [[partition, *place] for partition, place in sorted(snapshot.places.items())]
    values = {"settings": snapshot.settings, "version": snapshot.version, "updates": snapshot.updates,
              "offset": snapshot.offset, "places": places}  # fmt: skip
    yield Section("model", values)
    yield from learner_sections(snapshot.learner)
    yield Section("end")
