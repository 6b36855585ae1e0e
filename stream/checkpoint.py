"""The journal, the numbered commit, and recovery: what makes a task's state a function of the topics.

The journal of a task starts with a record of its settings (and, where it began with an imported model, of which one).
Each step then adds one record: which offsets it applied, what time it was, and the counts. Records are JSON:

    {"n": 0, "settings": {...}, "import": "c0ffee..."}
    {"n": 7, "contexts": [120, 150], "feedback": [80, 95], "now_ms": ..., "feedback_end_ms": ..., "updates": 31,
     "ledger": [150, 149, ...]}                                                  (in the order of Ledger's fields)
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import orjson

from stream import codec
from stream.broker import Broker, BrokerUnavailableError, Consumer, TransactionalProducer
from stream.engine import Effects, Task, TaskSettings, merge
from stream.join import JoinSettings
from stream.learners import absent_parameters, registered
from stream.ledger import Ledger, total_ledger
from stream.records import Record, TopicPartition
from stream.snapshot import Generation, Message, Snapshot, SnapshotError, Stored, decode, restore
from stream.topics import Topics

READ_TIMEOUT_MS = 60_000
_POLL_MS = 100


class JournalStep(NamedTuple):
    """What one step applied, and where it left the task."""

    number: int  # 1 for a task's first step
    contexts: tuple[int, int]  # offsets: from the first one of the step, up to but without the second
    feedback: tuple[int, int]
    now_ms: int
    feedback_end_ms: int
    updates: int
    ledger: Ledger


class JournalError(Exception):
    """The journal cannot be continued; the message says what to do."""


class Commit(NamedTuple):
    """One task's part of a transaction."""

    partition: int
    settings: TaskSettings | None  # for the first step of a task: its settings open the journal
    step: JournalStep
    effects: Effects
    snapshot: Sequence[Message] = ()  # chunks of a snapshot of this or of an earlier step
    imported: str | None = None  # for the first step: the model that the task began with


CrashPoint = Callable[[int], None]
"""Called with the number of each commit step when it is done; a test lets it raise."""


def commit(
    producer: TransactionalProducer,
    consumer: Consumer,
    topics: Topics,
    commits: Sequence[Commit],
    after: CrashPoint = lambda number: None,
) -> int:
    """Publish one step of some tasks in one transaction; the broker's time of it.

    The numbers are those of the crash tests. The records are in the log before the offsets are sent (5), which only a
    current member of the group can do: so whoever recovers a task either sees an open transaction in its journal, and
    waits for it, or knows that none can come.
    """
    producer.begin()
    after(1)
    for part in commits:
        _send_effects(producer, topics, part)
    after(2)
    for partition, settings, step, _, chunks, imported in commits:
        if settings is not None:
            producer.send(topics.journal, partition, None, encode_settings(settings, imported), codec.HEADERS)
        producer.send(topics.journal, partition, None, encode_step(step), codec.HEADERS)
        for key, value in chunks:
            producer.send(topics.snapshots, partition, key, value, codec.HEADERS)
    after(3)
    producer.flush()
    after(4)
    offsets: dict[TopicPartition, int] = {}
    for part in commits:
        offsets[TopicPartition(topics.contexts, part.partition)] = part.step.contexts[1]
        offsets[TopicPartition(topics.feedback, part.partition)] = part.step.feedback[1]
    producer.send_offsets(offsets, consumer)
    after(5)
    append_ms = producer.commit()
    after(6)
    return append_ms


COMMIT_STEPS = range(1, 7)


def _send_effects(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    send, partition, headers = producer.send, part.partition, codec.step_headers(part.step.number)
    for prediction, offset in part.effects.predictions:
        value = codec.encode_prediction(prediction, offset)
        send(topics.predictions, partition, prediction.id.encode(), value, headers)
    for example, feedback_offset in part.effects.examples:
        value = codec.encode_example(example, feedback_offset)
        send(topics.examples, partition, example.id.encode(), value, headers)
    for record, kind, reason in part.effects.dead_letters:
        key, letter, place = codec.encode_dead_letter(record, kind, reason)
        send(topics.dead_letter, partition, key, letter, (*headers, *place[1:]))


def encode_settings(settings: TaskSettings, imported: str | None = None) -> bytes:
    """The record that opens a journal; it names every parameter, so that a later default changes nothing."""
    fields: dict[str, Any] = {"n": 0, "settings": asdict(settings.resolved())}
    return orjson.dumps(fields if imported is None else {**fields, "import": imported})


def settings_of(values: Mapping[str, Any], place: str) -> TaskSettings:
    """Task settings as the journal and snapshots hold them.

    A setting or a parameter that they do not have came with a later version of Onebit, and means what it was before.

    Raises:
        JournalError: they hold something that this version does not know.
    """
    unknown = ["learner"]
    if values["learner"] in registered():
        unknown = sorted(_flat(values).keys() - _flat(with_defaults({"learner": values["learner"]})).keys())
    if not unknown:
        parameters = {**absent_parameters(values["learner"]), **values.get("parameters", {})}
        return TaskSettings(**{**values, "parameters": parameters, "join": JoinSettings(**values.get("join", {}))})
    raise JournalError(
        f"{place} was begun with {unknown[0]} = {_flat(values)[unknown[0]]!r}, which this version of Onebit does not "
        "know: go on with the version that it was begun with, or a later one"
    )


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the journal holds them; those that they do not have are what they were before there was a choice."""
    defaults = asdict(TaskSettings(values["learner"], 0, 0))
    return {
        **defaults,
        **values,
        "parameters": {**absent_parameters(values["learner"]), **values.get("parameters", {})},
        "join": {**defaults["join"], **values.get("join", {})},
    }


def _continued(given: TaskSettings | None, begun: Mapping[str, Any], place: str) -> TaskSettings:
    """The settings under which a task goes on: parameters that are not given are those that it was begun with.

    Raises:
        JournalError: it was begun with others than those given.
    """
    found = settings_of(begun, place)
    if given is None:
        return found
    if given.learner == found.learner:
        given = replace(given, parameters={**found.parameters, **given.parameters})
    _check_settings(begun, given, place)
    return given


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
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise JournalError(f"{_place(record)}: expected a journal record; cannot be read: {error!r}") from error


def _place(record: Record) -> str:
    return f"{record.topic}/{record.partition} offset {record.offset}"


def state_digest(states: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of learners' states in a canonical byte form: the same state has the same digest anywhere."""
    digest = sha256()
    for state in states:
        for name in sorted(state):
            array = np.asarray(state[name])
            if array.dtype.kind == "U":
                content, kind = str(array).encode(), "text"
            else:
                array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
                content, kind = array.tobytes(), array.dtype.str
            digest.update(f"{name} {kind} {array.shape} {len(content)}\n".encode() + content)
    return digest.hexdigest()


OPEN_MS = 20_000
"""How long an open transaction is waited for: what one of its topics shows as committed, another may not show yet."""


def read_partition(
    broker: Broker,
    tp: TopicPartition,
    timeout_ms: int = READ_TIMEOUT_MS,
    start: int | None = None,
    open_ms: int = 0,
) -> Iterator[Record]:
    """All that can be read of a partition at the moment of asking, from its beginning or from an offset on.

    Args:
        broker: where the partition is.
        tp: the partition.
        timeout_ms: how long to wait for the next records.
        start: the offset to begin with; None for the first one.
        open_ms: how long to wait for the end of a transaction that is open at that moment. A committed one stays open
            in some of its partitions for a little longer than in others, until each broker has written its marker.

    Raises:
        BrokerUnavailableError: nothing came for `timeout_ms`.
    """
    ends = broker.ends([tp])[tp]
    end = ends.high_watermark if open_ms else ends.stable
    consumer = broker.reader([tp])
    try:
        if start is not None:
            consumer.seek(tp, start)
        while (position := consumer.position(tp)) < end:
            try:
                records = _read_towards(consumer, tp, end, timeout_ms if position < ends.stable else open_ms)
            except BrokerUnavailableError:
                if position < ends.stable:
                    raise
                return
            for record in records:
                if record.offset < end:
                    yield record
    finally:
        consumer.close()


def _read_towards(consumer: Consumer, tp: TopicPartition, end: int, timeout_ms: int = READ_TIMEOUT_MS) -> list[Record]:
    """Some of the next records, or none when the position has reached an offset.

    In short polls: what stands before the end may be the marker of a commit, which is passed without any record.
    """
    for _ in range(timeout_ms // _POLL_MS):
        records = consumer.poll(_POLL_MS, 5_000)
        if records or consumer.position(tp) >= end:
            return records
    raise BrokerUnavailableError(
        f"could not read {tp.topic}/{tp.partition} up to offset {end}: nothing came for {timeout_ms} ms after offset "
        f"{consumer.position(tp)}; see that the broker runs and is reachable"
    )


class Recovered(NamedTuple):
    """A task as its last commit left it, and where it goes on."""

    task: Task
    number: int  # of its last step; 0: it has made none
    contexts_offset: int
    feedback_offset: int
    stored: Stored  # what its snapshots topic holds
    snapshot_ms: int  # the broker's time of its newest snapshot, or else of its first step; -1: there is neither
    snapshot_ledger: Ledger  # as it was then
    imported: str | None  # the model that it began with


class Progress(NamedTuple):
    """How far a recovery has come."""

    number: int  # of the last step applied again
    first: int  # of the first one to be applied again, and of the last
    last: int
    records: int  # applied again so far


Report = Callable[[Progress], None]


def recover(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Report = lambda progress: None,
) -> Recovered:
    """Bring a task to its last commit, from where it can go on; write nothing.

    Raises:
        JournalError: it was written with other settings, or records that are needed are gone.
    """
    recovered = rebuild(broker, topics, partition, settings, progress)
    if recovered.number > 0:
        for topic, offset in (
            (topics.contexts, recovered.contexts_offset),
            (topics.feedback, recovered.feedback_offset),
        ):
            _check_kept(broker, TopicPartition(topic, partition), offset, offset)
    return recovered


Observer = Callable[[int, Effects], None]
"""Told the number of a step and what it publishes."""


def rebuild(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None,
    progress: Report = lambda progress: None,
    *,
    until: int | None = None,
    snapshots: bool = True,
    observe: Observer = lambda number, effects: None,
) -> Recovered:
    """The state of a task after its last step, or after an earlier one; write nothing.

    That is its newest whole snapshot, and what it had applied after that applied again, in the journal's order.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: its settings; None for those that it was begun with.
        progress: is told after each step how far it has come.
        until: the number of the step after which to stop; None for the last.
        snapshots: False to begin with the journal's first step.
        observe: is told what each step that is applied again would publish.

    Raises:
        JournalError: it was written with other settings, or records that are needed are gone.
    """
    journal = TopicPartition(topics.journal, partition)
    stored = _read_snapshots(broker, topics, partition, until if snapshots else 0)
    last = last_step(broker, journal)
    if stored.newest is not None:
        start = _from_snapshot(broker, topics, stored, stored.newest, last, journal, settings)
    elif last is not None:
        start = _from_opening(broker, topics, stored, journal, settings)
    else:
        return _untouched(broker, topics, partition, stored, settings)
    return _apply_again(broker, topics, partition, start, last, until, progress, observe)


class _Start(NamedTuple):
    """Where the application of the journal begins."""

    recovered: Recovered
    journal_offset: int


def _read_snapshots(broker: Broker, topics: Topics, partition: int, number_max: int | None) -> Stored:
    tp = TopicPartition(topics.snapshots, partition)
    stored = Stored(number_max)
    for record in read_partition(broker, tp):
        try:
            stored.add(record.key, record.value)
        except SnapshotError as error:
            raise JournalError(f"{_place(record)}: {error}") from error
    return stored


def _decoded(topics: Topics, journal: TopicPartition, generation: Generation) -> Snapshot:
    try:
        return decode(generation)
    except SnapshotError as error:
        raise JournalError(f"{topics.snapshots}/{journal.partition}: {error}") from error


def _restored(found: Snapshot, settings: TaskSettings, topics: Topics, journal: TopicPartition) -> Task:
    try:
        return restore(found, settings, topics.contexts)
    except SnapshotError as error:
        raise JournalError(f"{topics.snapshots}/{journal.partition}: {error}") from error


def _from_snapshot(
    broker: Broker,
    topics: Topics,
    stored: Stored,
    newest: Generation,
    last: JournalStep | None,
    journal: TopicPartition,
    settings: TaskSettings | None,
) -> _Start:
    place = f"the snapshot in {topics.snapshots}/{journal.partition}, generation {newest.number},"
    found = _decoded(topics, journal, newest)
    settings = _continued(settings, found.settings, place)
    number, journal_offset, contexts_offset, feedback_offset, taken_ms = found.position
    if last is None and broker.beginnings([journal])[journal] > 0:
        pass  # all has been deleted, which is refused where the steps are missed
    elif last is None or last.number < number:
        raise JournalError(
            f"{place} was taken after step {number} of {journal.topic}/{journal.partition}, which holds "
            f"{'no step' if last is None else f'steps up to {last.number}'}: the topic was made anew since; start anew "
            "under another --topic-prefix"
        )
    task = _restored(found, settings, topics, journal)
    recovered = Recovered(task, number, contexts_offset, feedback_offset, stored, taken_ms, found.ledger, None)
    return _Start(recovered, journal_offset)


def _from_opening(
    broker: Broker, topics: Topics, stored: Stored, journal: TopicPartition, settings: TaskSettings | None
) -> _Start:
    record = next(iter(read_partition(broker, journal)))
    opening = decode_step(record)
    if isinstance(opening, JournalStep):
        raise JournalError(
            f"{journal.topic}/{journal.partition} begins with step {opening.number}, without a snapshot of before: "
            "what came before it is gone; set its retention.ms to -1, and start anew under another --topic-prefix"
        )
    settings = _continued(settings, opening, f"{journal.topic}/{journal.partition}")
    imported = orjson.loads(record.value or b"").get("import")
    if imported is None:
        task = Task(settings, topics.contexts)
    else:
        task = _imported(topics, journal, stored, imported, settings)
    recovered = Recovered(task, 0, -1, -1, stored, record.append_ms, Ledger(), imported)
    return _Start(recovered, record.offset + 1)


def _imported(topics: Topics, journal: TopicPartition, stored: Stored, wanted: str, settings: TaskSettings) -> Task:
    """The task as an imported model starts it."""
    if stored.imported is None or stored.imported.whole != wanted:
        raise JournalError(
            f"{journal.topic}/{journal.partition} was begun with the imported model {wanted[:16]}; "
            f"{topics.snapshots}/{journal.partition} does not hold it any more; start anew under another --topic-prefix"
        )
    found = _decoded(topics, journal, stored.imported)
    place = f"the model imported into {topics.snapshots}/{journal.partition}"
    of_model = settings_of(found.settings, place)
    if settings.learner == of_model.learner:
        settings = replace(settings, parameters={**of_model.parameters, **settings.parameters})
    begun = with_defaults(asdict(of_model))
    given = with_defaults(asdict(settings))
    for name in found.settings:  # those that a model depends on
        if given[name] != begun[name]:
            raise JournalError(
                f"{place} is of {name} = {begun[name]!r}; got {given[name]!r}: start with the settings of the model"
            )
    return _restored(found, settings, topics, journal)


def _untouched(
    broker: Broker, topics: Topics, partition: int, stored: Stored, settings: TaskSettings | None
) -> Recovered:
    """The task of a journal without records: a new one, if nothing was deleted."""
    journal = TopicPartition(topics.journal, partition)
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0:
        raise JournalError(
            f"{journal.topic}/{journal.partition} is kept from offset {beginning} on: what came before it is gone; set "
            "its retention.ms to -1, and start anew under another --topic-prefix"
        )
    if settings is None:
        raise JournalError(f"{journal.topic}/{journal.partition} is empty: no step has been made")
    starts = broker.beginnings([TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)])
    imported = None if stored.imported is None else stored.imported.whole
    task = Task(settings, topics.contexts)
    if imported is not None:
        task = _imported(topics, journal, stored, imported, settings)
    contexts_offset, feedback_offset = starts.values()
    return Recovered(task, 0, contexts_offset, feedback_offset, stored, -1, Ledger(), imported)


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


def _apply_again(
    broker: Broker,
    topics: Topics,
    partition: int,
    start: _Start,
    last: JournalStep | None,
    until: int | None,
    progress: Report,
    observe: Observer,
) -> Recovered:
    recovered, journal_offset = start
    journal = TopicPartition(topics.journal, partition)
    task, first = recovered.task, recovered.number + 1
    final = recovered.number if last is None else last.number if until is None else min(until, last.number)
    number, applied, records = recovered.number, None, 0
    inputs: _Inputs | None = None
    beginning = broker.beginnings([journal])[journal]
    try:
        for record in read_partition(broker, journal, start=max(beginning, journal_offset)):
            step = decode_step(record)
            if not isinstance(step, JournalStep) or step.number < first:
                continue  # the steps before the snapshot was taken, of which the last stand behind its position
            if step.number != number + 1:
                raise _wrong_step(journal, number + 1, step.number, journal_offset, beginning)
            if until is not None and step.number > until:
                break
            if inputs is None:
                inputs = _Inputs(broker, topics, partition, step, last or step)
                progress(Progress(number, first, final, 0))
            batch = inputs.of(step)
            observe(step.number, task.step(batch, step.now_ms, step.feedback_end_ms))
            _check_same(task, step, journal)
            number, applied, records = step.number, step, records + len(batch)
            progress(Progress(number, first, final, records))
    finally:
        if inputs is not None:
            inputs.close()
    if applied is None:
        if beginning > journal_offset:
            raise _wrong_step(journal, number + 1, None, journal_offset, beginning)
        return recovered
    return recovered._replace(number=number, contexts_offset=applied.contexts[1], feedback_offset=applied.feedback[1])


def _wrong_step(
    journal: TopicPartition, expected: int, got: int | None, journal_offset: int, beginning: int
) -> JournalError:
    """The journal was written by two learners at once, or has lost steps."""
    place = f"{journal.topic}/{journal.partition}"
    if beginning > journal_offset:
        return JournalError(
            f"recovery needs {place} from offset {journal_offset} on, where step {expected} stands; it is kept from "
            f"{beginning} on: set its retention.ms to -1, and start anew under another --topic-prefix"
        )
    return JournalError(
        f"{place}: expected step {expected}; got {got}: another program has written to it; start anew under another "
        "--topic-prefix"
    )


def _check_settings(begun: Mapping[str, Any], settings: TaskSettings, place: str) -> None:
    """Refuse to continue under settings that would have given another state."""
    given = _flat(with_defaults(orjson.loads(encode_settings(settings))["settings"]))
    begun = _flat(with_defaults(asdict(settings_of(begun, place))))
    for name in sorted(given.keys() | begun.keys()):
        if begun.get(name) != given.get(name):
            raise JournalError(
                f"{place} was begun with {name} = {begun.get(name)!r}; got {given.get(name)!r}: start with the "
                "settings of before, or anew under another --topic-prefix"
            )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name; those of the join and the learner's parameters stand one level down, as `join.window_ms`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _check_same(task: Task, last: JournalStep, journal: TopicPartition) -> None:
    """A step that is applied again must leave the task where the journal says that it stood."""
    if (task.join.ledger(), task.updates) != (last.ledger, last.updates):
        raise JournalError(
            f"step {last.number} of {journal.topic}/{journal.partition}: expected {last.ledger} after {last.updates} "
            f"updates; got {task.join.ledger()} after {task.updates}: the inputs have changed since they were applied"
        )


class _Inputs:
    """The two inputs of a task, read again in the portions that its journal names."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        self._contexts = _Input(broker, contexts, first.contexts[0], last.contexts[1])
        self._feedback = _Input(broker, feedback, first.feedback[0], last.feedback[1])

    def of(self, step: JournalStep) -> list[Record]:
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        records_max = len(contexts) + len(feedback)
        return merge(contexts, feedback, contexts_ended=True, feedback_ended=True, records_max=records_max)

    def close(self) -> None:
        self._contexts.close()
        self._feedback.close()


def _check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Refuse to go on when records of an input that are still needed were deleted."""
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise JournalError(
            f"recovery needs {tp.topic}/{tp.partition} from offset {offset}; it is kept from {beginning} on: raise "
            "its retention.ms, and start anew under another --topic-prefix"
        )
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise JournalError(
            f"recovery needs {tp.topic}/{tp.partition} up to offset {end}; it ends at {kept_to}: the topic was "
            "made anew since; start anew under another --topic-prefix"
        )


class _Input:
    def __init__(self, broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
        _check_kept(broker, tp, offset, end)
        self._tp = tp
        self._consumer = broker.reader([tp])
        self._consumer.seek(tp, offset)
        self._buffer: deque[Record] = deque()

    def up_to(self, end: int) -> deque[Record]:
        """The records before an offset that have not been taken yet."""
        taken: deque[Record] = deque()
        while True:
            while self._buffer and self._buffer[0].offset < end:
                taken.append(self._buffer.popleft())
            if self._buffer or self._consumer.position(self._tp) >= end:
                return taken
            self._buffer.extend(_read_towards(self._consumer, self._tp, end))

    def close(self) -> None:
        self._consumer.close()


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
