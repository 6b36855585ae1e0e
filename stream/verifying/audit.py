"""The audit behind `onebit verify`: the ledger again, from the topics alone.

It shares neither counters nor the join with the learner. It reads what came in and what went out, and accounts for
every offset of the inputs that the journal says were applied:

    contexts   an offset has a prediction, or a dead letter, or its id was decided at an earlier offset
    feedback   an offset settled an example, or has a dead letter, or its id had been settled, or it waits

Topics are read record by record, and judged id by id (`evidence`, `lives`), so that memory does not grow with them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stream.journal.format import JournalError, JournalStep
from stream.journal.reading import read_journal
from stream.kafka.partitioner import partition_for
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.learners import KernelLearner, registered
from stream.reporting.latency import quantiles
from stream.shared.view import room_error
from stream.task.settings import TaskSettings
from stream.telemetry.sketch import Sketch, total_sketch
from stream.verifying.evidence import CONTEXTS, FEEDBACK, Evidence, PredictionSeen
from stream.verifying.lives import Judge
from stream.verifying.settings_by_step import SettingsByStep
from stream.verifying.step_predictions import StepPredictions
from stream.wire import codec
from stream.wire.codec import MalformedError
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED, decode_dead_letter
from stream.wire.events import Example, Feedback, Logged
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition, place_of
from stream.wire.ticks import is_tick, tick_step
from stream.wire.topics import Topics


class Finding(NamedTuple):
    """The audit of one partition."""

    partition: int
    learner: Ledger  # as the learner counted, in the last record of its journal
    audited: Ledger  # as the topics say
    faults: tuple[str, ...]  # what is wrong beside the counts: each names a record
    contexts_behind: int  # context offsets that have not been applied yet
    feedback_behind: int
    gone: tuple[str, ...] = ()  # what has been deleted of the topics: then nothing was recomputed
    foreign: tuple[str, ...] = ()  # records in the learner's topics that it did not write, the first ones
    foreign_count: int = 0
    latencies: Sketch = Sketch()  # of its decisions

    @property
    def ok(self) -> bool:
        """Whether the two ledgers agree, add up, and nothing else is wrong."""
        return self.learner == self.audited and self.audited.balances and not self.faults and not self.gone

    def as_json(self) -> dict[str, object]:
        """The finding as plain values."""
        return {
            "partition": self.partition,
            "ok": self.ok,
            "learner": self.learner._asdict(),
            "audited": self.audited._asdict(),
            "faults": self.faults,
            "gone": self.gone,
            "foreign": self.foreign,
            "foreign_count": self.foreign_count,
            "contexts_behind": self.contexts_behind,
            "feedback_behind": self.feedback_behind,
            "latency": latency._asdict() if (latency := quantiles(self.latencies)) else None,
        }


def latencies_of(findings: Iterable[Finding]) -> Sketch:
    """How long the decisions of all partitions took."""
    return total_sketch(finding.latencies for finding in findings)


def _sketch(latencies_ms: Iterable[tuple[int, int]]) -> Sketch:
    sketch = Sketch()
    for latency_ms, decisions in latencies_ms:
        sketch.add(latency_ms, decisions)
    return sketch


FAULTS_SHOWN_MAX = 20
"""A partition that is wrong in one way is often wrong in thousands of records; the first ones tell enough."""

PROGRESS_RECORDS = 100_000
"""After so many records of a topic its reader says how far it has come."""

Progress = Callable[[str], None]


def audit_partition(
    broker: Broker, topics: Topics, partition: int, progress: Progress = lambda message: None
) -> Finding:
    """Recompute one partition's ledger from its topics.

    Raises:
        JournalError: the journal cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    books = _Books()
    if broker.beginnings([journal])[journal] == 0:
        _read_journal(broker, journal, books)
    if gone := _gone(broker, topics, partition, books):
        return Finding(partition, Ledger(), Ledger(), (), 0, 0, gone)
    audit = _Audit(broker, topics, partition, books, progress)
    try:
        finding = audit.of_nothing() if books.settings is None else audit.find(books.settings)
    finally:
        books.evidence.close()
    return finding._replace(gone=_gone(broker, topics, partition, books))  # it may have been deleted while it was read


_NO_STEP = JournalStep(0, (0, 0), (0, 0), 0, Ledger())


@dataclass(slots=True)
class _Books:
    """What the journal says, and what was found."""

    settings: SettingsByStep | None = None  # None: nothing has begun
    last: JournalStep = _NO_STEP
    begun_at: tuple[int, int] | None = None  # the offsets at which the first step began; None: there is none
    alarms: dict[int, tuple[int, int]] = field(default_factory=dict)  # drift alarms of a step: at least, at most
    told_alarms: Counter[int] = field(default_factory=Counter)  # examples that tell of one, by step
    evidence: Evidence = field(default_factory=Evidence)
    made: StepPredictions | None = None  # what the steps tell of their predictions; None: the model is the task's own
    faults: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    foreign_count: int = 0

    def fault(self, message: str) -> None:
        if len(self.faults) < FAULTS_SHOWN_MAX:
            self.faults.append(message)

    def is_foreign(self, what: str, reason: str) -> None:
        """Take note of a record that no learner has written."""
        self.foreign_count += 1
        if len(self.foreign) < FAULTS_SHOWN_MAX:
            self.foreign.append(f"{what} is not of a learner: {reason}")


def _gone(broker: Broker, topics: Topics, partition: int, books: _Books) -> tuple[str, ...]:
    """Which topics begin behind what the ledger takes: the inputs from the first step on, and all that was written."""
    needed = dict.fromkeys((topics.journal, topics.predictions, topics.examples, topics.dead_letter), 0)
    needed |= dict(zip((topics.contexts, topics.feedback), books.begun_at or (), strict=False))
    beginnings = broker.beginnings([TopicPartition(topic, partition) for topic in needed])
    return tuple(
        f"{tp.topic}/{tp.partition} begins at offset {beginning}, and the ledger is counted from offset "
        f"{needed[tp.topic]} on: what was before is deleted; set its retention.ms to -1 for pipelines that are to be "
        "verified"
        for tp, beginning in beginnings.items()
        if beginning > needed[tp.topic]
    )


def _read_journal(broker: Broker, tp: TopicPartition, books: _Books) -> None:
    """Read the settings and steps of a journal."""
    for record, step in read_journal(broker, tp, open_ms=OPEN_MS):
        place = f"journal at offset {record.offset}"
        if books.settings is None:
            if step.settings is None or step.number != 1:
                raise JournalError(
                    f"{tp.topic}/{tp.partition}: expected step 1 with the task's settings; got step {step.number}: the "
                    "first record of the journal is gone, and nothing can be audited"
                )
            books.settings = SettingsByStep(step.settings, books.evidence.stream_ms)
            books.made = StepPredictions() if step.settings.model == "shared" else None
        elif step.settings is not None and (wrong := books.settings.change(step.number, step.settings)):
            books.fault(f"{place}: {wrong}")
        _take_step(books, books.settings, step, place)


def _take_step(books: _Books, settings: SettingsByStep, step: JournalStep, place: str) -> None:
    last = books.last
    follows = last.number == 0 or (step.contexts[0], step.feedback[0]) == (last.contexts[1], last.feedback[1])
    if step.number != last.number + 1 or not follows:
        books.fault(f"{place}: step {step.number} does not follow on {last.number}")
    if step.settings_from != settings.settings_from:
        books.fault(
            f"{place}: step {step.number} has the settings of step {step.settings_from}; the journal holds those of "
            f"step {settings.settings_from} before it"
        )
    if step.alarms > last.alarms:
        raised = step.alarms - last.alarms
        # The first count may hold those of an imported model.
        books.alarms[step.number] = (raised if last.number else 0, raised)
    elif step.alarms < last.alarms:
        books.fault(f"{place}: step {step.number} counts {step.alarms} drift alarms, after {last.alarms} before it")
    books.begun_at = books.begun_at or (step.contexts[0], step.feedback[0])
    books.last = step
    if books.made is not None:
        books.made.add(step)
    books.evidence.add_step(step.contexts[1], step.feedback[1])


@dataclass(slots=True)
class _Audit:
    """Reads the topics of one partition, and judges what they say."""

    broker: Broker
    topics: Topics
    partition: int
    books: _Books
    progress: Progress
    latest_step: int = 0  # of those that have published
    ticks_behind: set[int] = field(default_factory=set)  # steps whose ticks are not applied yet
    misplaced: list[int] = field(default_factory=lambda: [0, 0])  # records of each input
    behind: list[int] = field(default_factory=lambda: [0, 0])  # records of each input that are not applied yet

    def of_nothing(self) -> Finding:
        """The finding where no learner has begun: then nothing may have been published."""
        published = sum(1 for _ in self._predictions())
        if published:
            self.books.fault(f"{published} predictions, and no journal")
        for of_input, topic in enumerate((self.topics.contexts, self.topics.feedback)):
            deque(self._applied(of_input, topic, 0), maxlen=0)
        return self._finding(Ledger())

    def find(self, settings: SettingsByStep) -> Finding:
        """The finding where a learner has begun."""
        topics, evidence, latest = self.topics, self.books.evidence, settings.latest
        evidence.add_predictions(self._predictions())
        evidence.add_contexts(self._contexts(latest))
        evidence.add_feedback(self._feedback(latest))
        if latest.dated_by == "context":
            evidence.date_by_contexts()
        else:
            self._check_ticks()
        evidence.add_examples(self._examples())
        evidence.add_dead_letters(self._dead_letters())
        self._check_journal_is_whole()
        self._check_alarms()
        judge = Judge(evidence, settings, self.books.last.number, self.books.fault)
        self.progress("judging each event id")
        if evidence.examples > settings.retained_max:
            evidence.index_settlements()
        for life in evidence.lives():
            judge.judge(life)
        counts = judge.counts
        counts["context_malformed"] = self._unreadable(CONTEXTS, "context")
        counts["feedback_malformed"] = self._unreadable(FEEDBACK, "feedback")
        counts["contexts"] += counts["context_malformed"]
        counts["feedback"] += counts["feedback_malformed"]
        counts["contexts_misplaced"], counts["feedback_misplaced"] = self.misplaced
        counts["pending"] = counts["decided"] - counts["matched"] - counts["expired"] - counts["unmatched"]
        for offset in evidence.dead_letters_again():
            self.books.fault(f"{topics.dead_letter} at offset {offset}: a second dead letter of the same record")
        return self._finding(Ledger(**counts))

    def _finding(self, audited: Ledger) -> Finding:
        books = self.books
        return Finding(
            self.partition,
            books.last.ledger,
            audited,
            tuple(books.faults),
            self.behind[CONTEXTS],
            self.behind[FEEDBACK],
            foreign=tuple(books.foreign),
            foreign_count=books.foreign_count,
            latencies=_sketch(books.evidence.latencies_ms()),
        )

    def _records(self, topic: str, open_ms: int = 0) -> Iterator[Record]:
        self.progress(topic)
        tp = TopicPartition(topic, self.partition)
        for number, record in enumerate(read_partition(self.broker, tp, open_ms=open_ms), start=1):
            yield record
            if number % PROGRESS_RECORDS == 0:
                self.progress(f"{topic}: {number:,} records")

    def _published(self, topic: str) -> Iterator[tuple[Record, int]]:
        """What the steps up to the last one read have published: the learner may go on meanwhile."""
        for record in self._records(topic, OPEN_MS):
            step = codec.step_of(record)
            if step is None:
                self.books.is_foreign(f"{topic}/{self.partition} offset {record.offset}", "it names no step")
                continue
            self.latest_step = max(self.latest_step, step)
            if self.books.settings is None or step <= self.books.last.number:
                yield record, step

    def _predictions(self) -> Iterator[PredictionSeen]:
        for record, step in self._made(self.topics.predictions):
            try:
                prediction, context_offset = codec.decode_prediction(record)
            except MalformedError as error:
                self._cannot_read("prediction", record, step, error)
                continue
            action, _, propensity, *_ = prediction.decision
            yield PredictionSeen(
                prediction.id, record.offset, step, context_offset, action, propensity, record.append_ms,
                prediction.target,
            )  # fmt: skip

    def _made(self, topic: str) -> Iterator[tuple[Record, int]]:
        """Of the published predictions those that steps made, where the journal tells which."""
        books = self.books
        if books.made is None:
            return self._published(topic)
        return books.made.tell_apart(
            self._published(topic),
            lambda record: books.is_foreign(place_of(record), "no step has made it, by the journal"),
            lambda step: books.fault(f"step {step} has made other predictions, by its journal, than stand in {topic}"),
        )

    def _contexts(self, settings: TaskSettings) -> Iterator[tuple[int, int, str | None, Logged | None]]:
        log, encoder = settings.log_reading, settings.feature_encoder()
        shared = settings.make_learner() if settings.model == "shared" else None
        for record in self._applied(CONTEXTS, self.topics.contexts, self.books.last.contexts[1]):
            event_id: str | None
            try:
                event_id, x, logged = codec.decode_context(record, settings.n_features, log, encoder)
            except MalformedError:
                event_id, logged = None, None
            else:
                if isinstance(shared, KernelLearner) and room_error(shared, x):
                    event_id, logged = None, None
            self._look_at_place(record, CONTEXTS, event_id)
            yield record.offset, record.append_ms, event_id, logged

    def _feedback(self, settings: TaskSettings) -> Iterator[tuple[int, int, Feedback | int | None]]:
        n_classes, needs_label = settings.n_classes, registered()[settings.learner].needs_label
        for record in self._applied(FEEDBACK, self.topics.feedback, self.books.last.feedback[1]):
            event: Feedback | int | None
            if is_tick(record):
                event = tick_step(record) or 0
            else:
                try:
                    event = codec.decode_feedback(record, n_classes, needs_label=needs_label)
                except MalformedError:
                    event = None
                self._look_at_place(record, FEEDBACK, None if event is None else event.id)
            yield record.offset, record.append_ms, event

    def _look_at_place(self, record: Record, of_input: int, event_id: str | None) -> None:
        """Count a record whose key, or id where it has none, belongs to another partition."""
        partitions = self.books.last.partitions
        key = record.key if record.key is not None or event_id is None else event_id.encode()
        if partitions > 1 and key is not None and partition_for(key, partitions) != self.partition:
            self.misplaced[of_input] += 1

    def _applied(self, of_input: int, topic: str, end: int) -> Iterator[Record]:
        for record in self._records(topic):
            if record.offset < end:
                yield record
            elif of_input == FEEDBACK and is_tick(record):
                self.ticks_behind.add(tick_step(record) or 0)
            else:
                self.behind[of_input] += 1

    def _examples(self) -> Iterator[tuple[int, int, Example, int | None]]:
        for record, step in self._published(self.topics.examples):
            try:
                example, feedback_offset = codec.decode_example(record)
            except MalformedError as error:
                self._cannot_read("example", record, step, error)
            else:
                if example.drift is not None:
                    self.books.told_alarms[step] += 1
                yield record.offset, step, example, feedback_offset

    def _dead_letters(self) -> Iterator[tuple[int, int, int, str, int]]:
        inputs = {self.topics.contexts: CONTEXTS, self.topics.feedback: FEEDBACK}
        for record, step in self._published(self.topics.dead_letter):
            try:
                topic, partition, offset, kind, *_ = decode_dead_letter(record)
            except MalformedError as error:
                self._cannot_read("dead letter", record, step, error)
                continue
            if topic not in inputs:
                continue  # of another program
            if partition != self.partition:
                self.books.fault(f"dead letter at offset {record.offset} is of {topic}/{partition}, another partition")
                continue
            yield record.offset, inputs[topic], offset, kind, step

    def _cannot_read(self, kind: str, record: Record, step: int, error: MalformedError) -> None:
        """Take note of a record that says of no step that it wrote it, or of one that a step wrote so."""
        if step == 0:
            self.books.is_foreign(f"{record.topic}/{self.partition} offset {record.offset}", str(error))
        else:
            self.books.fault(f"{kind} at offset {record.offset} cannot be read: {error}")

    def _check_journal_is_whole(self) -> None:
        """See that what has been published is in the journal, which may have gone on since it was read."""
        if self.latest_step <= self.books.last.number:
            return
        again = _Books()
        _read_journal(self.broker, TopicPartition(self.topics.journal, self.partition), again)
        again.evidence.close()
        if again.last.number < self.latest_step:
            self.books.fault(
                f"step {self.latest_step} has published, and the journal ends with step {again.last.number}"
            )

    def _check_ticks(self) -> None:
        """See that each step with decisions has a tick, up to the last that is found: without one none expires."""
        evidence = self.books.evidence
        newest = max(evidence.latest_dated, *self.ticks_behind, 0)
        for step in evidence.undated():
            if step < newest and step not in self.ticks_behind:
                self.books.fault(f"step {step} has decided, and {self.topics.feedback} has no tick of it")

    def _check_alarms(self) -> None:
        """See that as many examples tell of a drift alarm as their step has counted."""
        books = self.books
        for step in sorted(books.alarms.keys() | books.told_alarms.keys()):
            least, most = books.alarms.get(step, (0, 0))
            if not least <= books.told_alarms[step] <= most:
                books.fault(
                    f"step {step} raised {most} drift alarms by its journal; {books.told_alarms[step]} of its examples "
                    "tell of one"
                )

    def _unreadable(self, of_input: int, name: str) -> int:
        count = 0
        for offset, dead_letter in self.books.evidence.unreadable(of_input):
            count += 1
            if dead_letter != DEAD_LETTER_MALFORMED:
                self.books.fault(f"{name} at offset {offset} is malformed and has no dead letter")
        return count
