"""The journal of a task: what it was begun with, what each step applied, and when its settings changed.

The records of a journal in their order are an `Opening`, and then one `JournalStep` for each step. A `SettingsChange`
stands before the first step that was made under its settings, in the same transaction. They are JSON:

    {"n": 0, "settings": {...}, "import": "c0ffee..."}                       ("import" only after a model's import)
    {"n": 7, "contexts": [120, 150], "feedback": [80, 95], "updates": 31,
     "ledger": {"contexts": 150, "decided": 149, ...}, "partitions": 1}               (counts that are 0 are left out)
    {"n": 8, "settings": {...}}
    {"n": 8, "contexts": [150, 150], ..., "settings_from": 8}       (0 is left out: the settings are the opening's)
    {"n": 9, "contexts": [150, 170], ..., "settings_from": 8, "alarms": 1}            (0 is left out)
    {"n": 9, ..., "log": {"offset": 6, "follows": 7, "entries": 40, "predictions": 20, "sha256": "5eb6..."}}
                                                                                         (with a shared model only)
    {"n": 10, ..., "replica": {"instance": "learner-a", "sha256": "9f86...", "processor": "znver3",
     "versions": {"onebit": "0.9.0", ...}}}                             (now and then, of the model it was decided on)

`stream.journal.stored_settings` names the settings. The header `onebit-version` holds the format, 1.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from stream.journal.stored_settings import named, stored_settings, task_settings
from stream.task.settings import TaskSettings
from stream.wire.codec import VERSION_HEADER
from stream.wire.ledger import Ledger
from stream.wire.records import Headers, Record, place_of

FORMAT = 1
HEADERS: Headers = ((VERSION_HEADER[0], b"%d" % FORMAT),)
"""Of each record of a journal."""


class JournalError(Exception):
    """The journal cannot be continued; the message says what to do."""


class UnrecoverableError(JournalError):
    """What a recovery needs is gone, or is not what it was: a pipeline under these topics cannot go on."""


class Opening(NamedTuple):
    """What a task was begun with."""

    settings: TaskSettings
    imported: str | None = None  # the name of the model that it began with, see `Generation.whole`


class LogStep(NamedTuple):
    """What a step has to do with the log of a shared model. It was decided on the version that is its `updates`."""

    offset: int  # up to here the log was read
    follows: int  # the task's step before that wrote to the log; 0: none did
    entries: int  # that the step wrote
    predictions: int  # that it published
    sha256: str  # of their values, one after the other

    def wrote(self, number: int) -> int:
        """The last step that wrote to the log, after the step of this number."""
        return number if self.entries else self.follows


class ReplicaTold(NamedTuple):
    """What the model of the process was that made a step, at the version that the step was decided on."""

    instance: str  # the learner process
    sha256: str  # of the model's state
    processor: str  # that its bits may depend on
    versions: Mapping[str, Any]  # likewise, by name

    @property
    def made_with(self) -> str:
        """Processor and versions, for people."""
        return ", ".join((self.processor, *(f"{name} {version}" for name, version in sorted(self.versions.items()))))


class JournalStep(NamedTuple):
    """What one step applied, and where it left the task."""

    number: int  # 1 for a task's first step
    contexts: tuple[int, int]  # offsets: from the first one of the step, up to but without the second
    feedback: tuple[int, int]
    updates: int
    ledger: Ledger
    settings_from: int = 0  # the first step that was made under the same settings; 0: they are the opening's
    partitions: int = 1  # of the inputs
    alarms: int = 0  # drift alarms of the model so far
    log: LogStep | None = None  # None: the model is the task's own
    replica: ReplicaTold | None = None  # None: the step does not tell it


class SettingsChange(NamedTuple):
    """The settings from some step on: all of them, not only those that changed."""

    number: int  # of the first step that is made under them
    settings: TaskSettings


Entry = Opening | JournalStep | SettingsChange


def encode_entry(entry: Entry) -> bytes:
    """The value of a journal's record."""
    if isinstance(entry, Opening):
        opening = {"n": 0, "settings": stored_settings(entry.settings)}
        return orjson.dumps(opening if entry.imported is None else {**opening, "import": entry.imported})
    if isinstance(entry, SettingsChange):
        return orjson.dumps({"n": entry.number, "settings": stored_settings(entry.settings)})
    fields = {
        "n": entry.number,
        "contexts": entry.contexts,
        "feedback": entry.feedback,
        "updates": entry.updates,
        "ledger": {name: count for name, count in zip(Ledger._fields, entry.ledger, strict=True) if count},
        "partitions": entry.partitions,
    }
    log = None if entry.log is None else entry.log._asdict()
    replica = None if entry.replica is None else entry.replica._asdict()
    optional = {"settings_from": entry.settings_from, "alarms": entry.alarms, "log": log, "replica": replica}
    return orjson.dumps(fields | {name: value for name, value in optional.items() if value})


def decode_step(record: Record) -> Entry:
    """Read a record of a journal: a step, most often.

    Raises:
        JournalError: a record of another format, or one that cannot be read.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    if version != HEADERS[0][1]:
        raise JournalError(
            f"{place_of(record)}: expected a journal record with the header {VERSION_HEADER[0]}={FORMAT}; got "
            f"{'no such header' if version is None else repr(version)}: nothing can be recovered past it"
        )
    try:
        fields = orjson.loads(record.value or b"")
        if "settings" not in fields:
            return _step(fields)
        settings = task_settings(named(fields["settings"]))
        return SettingsChange(fields["n"], settings) if fields["n"] else Opening(settings, fields.get("import"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise JournalError(f"{place_of(record)}: expected a journal record; cannot be read: {error!r}") from error


def is_foreign(record: Record) -> bool:
    """Whether another program has written a record of a journal, which can be passed over.

    It has not the header of Onebit's records, nor a value like theirs. It cannot hide a step: these are chained by
    their numbers. A value with an `n` may be a step that has lost its headers on the way here, and is not foreign.
    """
    if VERSION_HEADER[0] in dict(record.headers):
        return False
    try:
        value = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(value, dict) and "n" in value)


def _step(fields: Mapping[str, Any]) -> JournalStep:
    return JournalStep(
        fields["n"],
        (fields["contexts"][0], fields["contexts"][1]),
        (fields["feedback"][0], fields["feedback"][1]),
        fields["updates"],
        Ledger(**fields["ledger"]),
        fields.get("settings_from", 0),
        fields["partitions"],
        fields.get("alarms", 0),
        LogStep(**{name: fields["log"][name] for name in LogStep._fields}) if "log" in fields else None,
        ReplicaTold(**{name: fields["replica"][name] for name in ReplicaTold._fields}) if "replica" in fields else None,
    )
