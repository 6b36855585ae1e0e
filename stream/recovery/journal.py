"""The journal of a task: what it was begun with, and what each step applied.

The journal of a task starts with a record of its settings (and, where it began with an imported model, of which one).
Each step then adds one record: which offsets it applied, what time it was, and the counts. Records are JSON:

    {"n": 0, "settings": {...}, "import": "c0ffee..."}
    {"n": 7, "contexts": [120, 150], "feedback": [80, 95], "now_ms": ..., "feedback_end_ms": ..., "updates": 31,
     "ledger": [150, 149, ...], "rules": 2, "partitions": 1}                     (in the order of Ledger's fields)

A step without `rules` was made by a version that had the first ones, and its ledger lacks the later counts.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.joining.join import JoinSettings
from stream.joining.task import READING_1, Reading, TaskSettings
from stream.learners import check_parameters, registered
from stream.wire import codec
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class JournalStep(NamedTuple):
    """What one step applied, and where it left the task."""

    number: int  # 1 for a task's first step
    contexts: tuple[int, int]  # offsets: from the first one of the step, up to but without the second
    feedback: tuple[int, int]
    now_ms: int
    feedback_end_ms: int
    updates: int
    ledger: Ledger
    reading: Reading = Reading()


class JournalError(Exception):
    """The journal cannot be continued; the message says what to do."""


def encode_settings(settings: TaskSettings, imported: str | None = None) -> bytes:
    """The record that opens a journal."""
    fields: dict[str, Any] = {"n": 0, "settings": asdict(settings)}
    return orjson.dumps(fields if imported is None else {**fields, "import": imported})


def settings_of(values: Mapping[str, Any], place: str) -> TaskSettings:
    """Task settings as the journal and snapshots hold them.

    A setting or a parameter that they do not have came with a later version of Onebit, and is by default what it was
    before.

    Raises:
        JournalError: they hold something that this version does not know.
    """
    unknown = ["learner"]
    if values["learner"] in registered():
        unknown = sorted(_flat(values).keys() - _flat(with_defaults({"learner": values["learner"]})).keys())
    if not unknown:
        return TaskSettings(**{**values, "join": JoinSettings(**values.get("join", {}))})
    raise JournalError(
        f"{place} was begun with {unknown[0]} = {_flat(values)[unknown[0]]!r}, which this version of Onebit does not "
        "know: go on with the version that it was begun with, or a later one"
    )


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the journal holds them, with today's defaults for those that they do not have."""
    defaults = asdict(TaskSettings(values["learner"], 0, 0))
    return {
        **defaults,
        **values,
        "parameters": {**check_parameters(values["learner"], {}), **values.get("parameters", {})},
        "join": {**defaults["join"], **values.get("join", {})},
    }


def encode_step(step: JournalStep) -> bytes:
    """The record of one step."""
    return orjson.dumps(
        {
            "n": step.number,
            "contexts": step.contexts,
            "feedback": step.feedback,
            "now_ms": step.now_ms,
            "feedback_end_ms": step.feedback_end_ms,
            "updates": step.updates,
            "ledger": tuple(step.ledger),
            "rules": step.reading.rules,
            "partitions": step.reading.partitions,
        }
    )


def decode_step(record: Record) -> JournalStep | dict[str, Any]:
    """Read a journal record: a step, or the settings that open the journal.

    Raises:
        JournalError: a record that Onebit did not write, or wrote in a later version.
    """
    version = dict(record.headers).get(codec.VERSION_HEADER[0])
    if version != codec.VERSION_HEADER[1]:
        raise JournalError(f"{_place(record)}: expected journal version {codec.VERSION}; got {version!r}")
    try:
        fields = orjson.loads(record.value or b"")
        if fields["n"] == 0:
            return dict(fields["settings"])
        return JournalStep(
            fields["n"],
            (fields["contexts"][0], fields["contexts"][1]),
            (fields["feedback"][0], fields["feedback"][1]),
            fields["now_ms"],
            fields["feedback_end_ms"],
            fields["updates"],
            Ledger(*fields["ledger"]),
            Reading(fields["rules"], fields["partitions"]) if "rules" in fields else READING_1,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise JournalError(f"{_place(record)}: expected a journal record; cannot be read: {error!r}") from error


def _place(record: Record) -> str:
    return f"{record.topic}/{record.partition} offset {record.offset}"


def last_step(broker: Broker, journal: TopicPartition) -> JournalStep | None:
    """The newest step in a journal, found from its end."""
    beginning = broker.beginnings([journal])[journal]
    end = broker.ends([journal])[journal].stable
    reach = 100  # offsets: beside its record each transaction has a marker
    while True:
        start = max(beginning, end - reach)
        entries = [decode_step(record) for record in read_partition(broker, journal, start=start)]
        steps = [entry for entry in entries if isinstance(entry, JournalStep)]
        if steps or start == beginning:
            return steps[-1] if steps else None
        reach *= 10


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name; those of the join and the learner's parameters stand one level down, as `join.window_ms`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


class JournalFollower:
    """Follows the journals of a pipeline: where each of its tasks stands."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int) -> None:
        self._consumer = broker.reader([TopicPartition(topics.journal, partition) for partition in range(partitions)])
        self.steps: dict[int, JournalStep] = {}  # the last step of each task that has made one

    def read(self, timeout_ms: int) -> Ledger:
        """Read what has come, and return the sum of the tasks' ledgers."""
        for record in self._consumer.poll(timeout_ms, 10_000):
            entry = decode_step(record)
            if isinstance(entry, JournalStep):
                self.steps[record.partition] = entry
        return total_ledger(step.ledger for step in self.steps.values())

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()
