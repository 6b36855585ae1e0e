"""The journal of a task: what it was begun with, what each step applied, and when its settings changed.

The records of a journal in their order are an `Opening`, and then one `JournalStep` for each step. A `SettingsChange`
stands before the first step that was made under its settings, in the same transaction. They are JSON:

    {"n": 0, "settings": {...}, "import": "c0ffee..."}                       ("import" only after a model's import)
    {"n": 7, "contexts": [120, 150], "feedback": [80, 95], "now_ms": ..., "feedback_end_ms": ..., "updates": 31,
     "ledger": {"contexts": 150, "decided": 149, ...}, "rules": 2, "partitions": 1}    (counts that are 0 are left out)
    {"n": 8, "settings": {...}}
    {"n": 8, "contexts": [150, 150], ..., "settings_from": 8}       (0 is left out: the settings are the opening's)
    {"n": 9, "contexts": [150, 170], ..., "settings_from": 8, "alarms": 1}            (0 is left out)
    {"n": 9, ..., "log": {"offset": 6, "follows": 7, "entries": 40, "predictions": 20, "sha256": "5eb6..."}}
                                                                                         (with a shared model only)
    {"n": 10, ..., "replica": {"instance": "learner-a", "sha256": "9f86...", "processor": "znver3",
     "versions": {"onebit": "0.9.0", ...}}}                             (now and then, of the model it was decided on)

`stream.recovery.stored_settings` names the settings. The header `onebit-version` holds the format, 2. Format 1 had the
ledger as a list of the counts in FORMAT_1_LEDGER, the window and the limits in an object of their own, and neither
`settings_from` nor `rules` and `partitions`: its steps were read by the first rules. A journal that was begun in it
goes on in format 2.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from stream.joining.task import READING_1, Reading
from stream.joining.task_settings import TaskSettings
from stream.recovery.stored_settings import (
    UnknownSettingError,
    from_format_1,
    named,
    stored_settings,
    task_settings,
)
from stream.wire.codec import VERSION_HEADER
from stream.wire.ledger import Ledger
from stream.wire.records import Headers, Record, place_of

FORMAT = 2
HEADERS: Headers = ((VERSION_HEADER[0], b"%d" % FORMAT),)
"""Of each record of a journal. It is the header that events have, too, so that a version that knows format 1 alone
refuses a record of format 2, and does not take it for one of its own."""

FORMAT_1_LEDGER = (
    "contexts", "decided", "context_duplicates", "context_malformed", "feedback", "matched", "expired", "pending",
    "late", "feedback_duplicates", "conflicts", "orphans_waiting", "orphans_dropped", "feedback_malformed",
)  # fmt: skip
"""The counts of a ledger in format 1, in their order."""


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
    now_ms: int
    feedback_end_ms: int
    updates: int
    ledger: Ledger
    settings_from: int = 0  # the first step that was made under the same settings; 0: they are the opening's
    reading: Reading = Reading()
    alarms: int = 0  # drift alarms of the model so far; 0 also where the version that wrote it did not tell them
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
        "now_ms": entry.now_ms,
        "feedback_end_ms": entry.feedback_end_ms,
        "updates": entry.updates,
        "ledger": {name: count for name, count in zip(Ledger._fields, entry.ledger, strict=True) if count},
        "rules": entry.reading.rules,
        "partitions": entry.reading.partitions,
    }
    log = None if entry.log is None else entry.log._asdict()
    replica = None if entry.replica is None else entry.replica._asdict()
    optional = {"settings_from": entry.settings_from, "alarms": entry.alarms, "log": log, "replica": replica}
    return orjson.dumps(fields | {name: value for name, value in optional.items() if value})


def decode_step(record: Record) -> Entry:
    """Read a record of a journal: a step, most often.

    Raises:
        JournalError: a record that Onebit did not write, or wrote in a later version.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    decode = _DECODERS.get(version or b"")
    if version is None:
        raise JournalError(
            f"{place_of(record)}: expected a journal of format 1 or {FORMAT}; got a record without the header "
            f"{VERSION_HEADER[0]}: another program has written it, and nothing can be recovered past it"
        )
    if decode is None:
        raise JournalError(
            f"{place_of(record)}: expected a journal of format 1 or {FORMAT}; got {version!r}: a later version of "
            "Onebit has written to it; go on with that version"
        )
    try:
        return decode(orjson.loads(record.value or b""))
    except UnknownSettingError as error:
        raise JournalError(
            f"{place_of(record)} has the setting {error}, which this version of Onebit does not know: go on with the "
            "version that wrote it, or a later one"
        ) from error
    except _UnknownCountError as error:
        raise JournalError(
            f"{place_of(record)} counts {error}, which this version of Onebit does not know: it was written by a "
            "later version; go on with that version"
        ) from error
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


class _UnknownCountError(ValueError):
    """A ledger with a count of a later version."""


def _decode_1(fields: Mapping[str, Any]) -> Entry:
    if fields["n"] == 0:
        settings = task_settings(named(from_format_1(fields["settings"])))
        return Opening(settings, fields.get("import"))
    return _step(fields, dict(zip(FORMAT_1_LEDGER, fields["ledger"], strict=True)), READING_1)


def _decode_2(fields: Mapping[str, Any]) -> Entry:
    if "settings" not in fields:
        return _step(fields, fields["ledger"], Reading(fields["rules"], fields["partitions"]))
    settings = task_settings(named(fields["settings"]))
    return SettingsChange(fields["n"], settings) if fields["n"] else Opening(settings, fields.get("import"))


_DECODERS: Mapping[bytes, Callable[[Mapping[str, Any]], Entry]] = {b"1": _decode_1, b"2": _decode_2}


def _step(fields: Mapping[str, Any], counts: Mapping[str, int], reading: Reading) -> JournalStep:
    if unknown := sorted(counts.keys() - set(Ledger._fields)):
        raise _UnknownCountError(unknown[0])
    return JournalStep(
        fields["n"],
        (fields["contexts"][0], fields["contexts"][1]),
        (fields["feedback"][0], fields["feedback"][1]),
        fields["now_ms"],
        fields["feedback_end_ms"],
        fields["updates"],
        Ledger(**counts),
        fields.get("settings_from", 0),
        reading,
        fields.get("alarms", 0),
        LogStep(**{name: fields["log"][name] for name in LogStep._fields}) if "log" in fields else None,
        ReplicaTold(**{name: fields["replica"][name] for name in ReplicaTold._fields}) if "replica" in fields else None,
    )
