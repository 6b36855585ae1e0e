"""The journal, the numbered commit, and recovery: what makes a task's state a function of the topics.

The journal of a task starts with a record of its settings. Each step then adds one record: which offsets it applied,
what time it was, and the counts. Records of the journal are JSON:

    {"n": 0, "settings": {...}}
    {"n": 7, "contexts": [120, 150], "feedback": [80, 95], "now_ms": ..., "feedback_end_ms": ..., "updates": 31,
     "ledger": [150, 149, ...]}                                                  (in the order of Ledger's fields)
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import orjson

from stream import codec
from stream.broker import Broker, BrokerUnavailableError, Consumer, TransactionalProducer
from stream.engine import Effects, Task, TaskSettings, merge
from stream.ledger import Ledger, total_ledger
from stream.records import Record, TopicPartition
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
    for partition, _, _, effects in commits:
        _send_effects(producer, topics, partition, effects)
    after(2)
    for partition, settings, step, _ in commits:
        if settings is not None:
            producer.send(topics.journal, partition, None, encode_settings(settings), codec.HEADERS)
        producer.send(topics.journal, partition, None, encode_step(step), codec.HEADERS)
    after(3)
    producer.flush()
    after(4)
    offsets: dict[TopicPartition, int] = {}
    for partition, _, step, _ in commits:
        offsets[TopicPartition(topics.contexts, partition)] = step.contexts[1]
        offsets[TopicPartition(topics.feedback, partition)] = step.feedback[1]
    producer.send_offsets(offsets, consumer)
    after(5)
    append_ms = producer.commit()
    after(6)
    return append_ms


COMMIT_STEPS = range(1, 7)


def _send_effects(producer: TransactionalProducer, topics: Topics, partition: int, effects: Effects) -> None:
    send = producer.send
    for prediction, offset in effects.predictions:
        value = codec.encode_prediction(prediction, offset)
        send(topics.predictions, partition, prediction.id.encode(), value, codec.HEADERS)
    for example, feedback_offset in effects.examples:
        value = codec.encode_example(example, feedback_offset)
        send(topics.examples, partition, example.id.encode(), value, codec.HEADERS)
    for record, kind, reason in effects.dead_letters:
        send(topics.dead_letter, partition, *codec.encode_dead_letter(record, kind, reason))


def encode_settings(settings: TaskSettings) -> bytes:
    """The record that opens a journal."""
    return orjson.dumps({"n": 0, "settings": asdict(settings)})


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


def read_partition(broker: Broker, tp: TopicPartition, timeout_ms: int = READ_TIMEOUT_MS) -> Iterator[Record]:
    """All that can be read of a partition at the moment of asking.

    Raises:
        BrokerUnavailableError: nothing came for `timeout_ms`.
    """
    end = broker.ends([tp])[tp].stable
    consumer = broker.reader([tp])
    try:
        while consumer.position(tp) < end:
            for record in _read_towards(consumer, tp, end, timeout_ms):
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


def recover(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recovered:
    """Bring a task to its last commit: apply again, in the journal's order, what it had applied; write nothing.

    Raises:
        JournalError: the journal was written with other settings, or records that it names are gone.
    """
    journal = TopicPartition(topics.journal, partition)
    records = list(read_partition(broker, journal))
    task = Task(settings, topics.contexts)
    if not records:
        _check_untouched(broker, journal)
        starts = broker.beginnings(
            [TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)]
        )
        contexts_offset, feedback_offset = starts.values()
        return Recovered(task, 0, contexts_offset, feedback_offset)
    opening, *rest = (decode_step(record) for record in records)
    _check_settings(opening, settings, journal)
    steps = [step for step in rest if isinstance(step, JournalStep)]
    _check_numbers(steps, journal)
    last = steps[-1]
    progress(0, last.number)
    inputs = _Inputs(broker, topics, partition, steps[0], last)
    try:
        for step in steps:
            task.step(inputs.of(step), step.now_ms, step.feedback_end_ms)
            if step.number % 1_000 == 0:
                progress(step.number, last.number)
    finally:
        inputs.close()
    progress(last.number, last.number)
    _check_same(task, last, journal)
    return Recovered(task, last.number, last.contexts[1], last.feedback[1])


def _check_untouched(broker: Broker, journal: TopicPartition) -> None:
    """Take a journal without records for a new one only when nothing was deleted from it."""
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0:
        raise JournalError(
            f"{journal.topic}/{journal.partition} is kept from offset {beginning} on: what came before it is gone; set "
            "its retention.ms to -1, and start anew under another --topic-prefix"
        )


def _check_numbers(steps: Sequence[JournalStep], journal: TopicPartition) -> None:
    """Refuse a journal that two learners have written at once, or that has lost steps."""
    for number, step in enumerate(steps, 1):
        if step.number != number:
            raise JournalError(
                f"{journal.topic}/{journal.partition}: expected step {number}; got {step.number}: another program has "
                "written to it; start anew under another --topic-prefix"
            )


def _check_settings(opening: JournalStep | dict[str, Any], settings: TaskSettings, journal: TopicPartition) -> None:
    """Refuse to continue a journal under settings that would have given another state."""
    if isinstance(opening, JournalStep):
        raise JournalError(
            f"{journal.topic}/{journal.partition} begins with step {opening.number}: what came before it is gone; set "
            "its retention.ms to -1, and start anew under another --topic-prefix"
        )
    given = _flat(orjson.loads(encode_settings(settings))["settings"])
    opening = _flat(opening)
    for name in sorted(given.keys() | opening.keys()):
        if opening.get(name) != given.get(name):
            raise JournalError(
                f"{journal.topic}/{journal.partition} was begun with {name} = {opening.get(name)!r}; got "
                f"{given.get(name)!r}: start with the settings of before, or anew under another --topic-prefix"
            )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name; those of the join and the learner's parameters stand one level down, as `join.window_ms`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _check_same(task: Task, last: JournalStep, journal: TopicPartition) -> None:
    """Recovery must end where the journal says that the task stood."""
    if (task.join.ledger(), task.updates) != (last.ledger, last.updates):
        raise JournalError(
            f"recovery from {journal.topic}/{journal.partition}: expected {last.ledger} after {last.updates} updates; "
            f"got {task.join.ledger()} after {task.updates}: the inputs have changed since they were applied"
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


class _Input:
    def __init__(self, broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
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
