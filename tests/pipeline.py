"""Helpers for pipeline tests: small tasks, hand-made records, and a complete pipeline on the embedded broker."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from consumers.learner.program import LearnerOptions, LearnerProgram
from consumers.learner.recovery import Parked
from producers.datasets.base import Dataset
from producers.datasets.synthetic import synsep
from producers.feedback.program import FeedbackOptions, FeedbackProgram
from producers.replay.options import ReplayOptions
from producers.replay.program import ReplayProgram
from stream.kafka.embedded import EmbeddedBroker, Program, VirtualClock, run_until_settled
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.learners import registered
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.recovery.chunks import Stored
from stream.recovery.commit import Commit
from stream.recovery.control import read_requests
from stream.recovery.recover import pipeline_settings
from stream.recovery.state import state_digest
from stream.recovery.steps import JournalStep, decode_step
from stream.settings.task_fields import JoinSettings
from stream.task.changes import Changed
from stream.task.settings import TaskSettings
from stream.task.stored_settings import Given, restored_settings, stored_settings
from stream.verifying.audit import Finding, audit_partition
from stream.wire.codec import HEADERS, encode_feedback, tick_headers
from stream.wire.control import Replaced, Request, encode_request
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Record, Shown, TopicPartition
from stream.wire.topics import Topics, partition_for

TOPICS = Topics.with_prefix("test.")
N_CLASSES, N_FEATURES = 3, 4


def context_value(event_id: str, *indices: int, **fields: Any) -> bytes:
    """The value of a context record with N_FEATURES features. `fields` are additional fields."""
    return orjson.dumps({"id": event_id, "x": {"i": indices or (0, 2)}, **fields})


def feedback_value(
    event_id: str,
    reward: float,
    label: int | None = None,
    action: int | str | None = None,
    part: str | None = None,
    final: bool | None = None,
) -> bytes:
    """A feedback record's value."""
    optional = {"label": label, "action": action, "part": part, "final": final}
    given = {name: value for name, value in optional.items() if value is not None}
    return orjson.dumps({"id": event_id, "reward": reward, **given})


def small_task(learner: str = "banditron", **changes: Any) -> TaskSettings:
    """Settings for hand-made events: 3 classes, 4 features, and a window of 1 s.

    A learner for actions gets contexts with 4 features and up to 3 actions with one feature; see `offered`.
    """
    limits = JoinSettings(window_ms=1_000, orphan_window_ms=500, retain_ms=10_000)
    if "actions" not in changes and registered()[learner].for_actions:
        changes = {"actions": {"context": N_FEATURES, "features": None}, **changes}
    sizes = {"n_classes": N_CLASSES, "n_features": N_FEATURES + N_CLASSES * 2 * ("actions" in changes)}
    return TaskSettings(learner, **{**sizes, "join": limits, **changes})


def offered(settings: TaskSettings) -> dict[str, Any]:
    """The additional fields of a context for `small_task`: three actions, if the learner decides among actions."""
    actions = [{"id": f"item-{k}", "x": [0.5 * k]} for k in range(N_CLASSES)]
    return {} if settings.actions is None else {"actions": actions}


@dataclass
class Inputs:
    """The records in one partition of each input topic, with the offsets that a broker would assign."""

    records: list[Record] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, topic: str, append_ms: int, value: bytes | None) -> Record:
        offset = self.counts.get(topic, 0)
        self.counts[topic] = offset + 1
        self.records.append(Record(topic, 0, offset, append_ms, None, value, HEADERS))
        return self.records[-1]

    def context(self, event_id: str, append_ms: int, *indices: int, **fields: Any) -> Record:
        return self.add(TOPICS.contexts, append_ms, context_value(event_id, *indices, **fields))

    def shown(self, event_id: str, append_ms: int) -> Record:
        return self.add(TOPICS.feedback, append_ms, encode_feedback(Shown(event_id)))

    def feedback(
        self, event_id: str, reward: float, append_ms: int, label: int | None = None, **optional: Any
    ) -> Record:
        return self.add(TOPICS.feedback, append_ms, feedback_value(event_id, reward, label, **optional))

    def feedback_of(self, fields: dict[str, Any], append_ms: int) -> Record:
        """Add feedback with these fields."""
        return self.add(TOPICS.feedback, append_ms, orjson.dumps(fields))

    def tick(self, step: int, append_ms: int) -> Record:
        """Add a step's tick. Because there is no step 0, a tick for step 0 only advances stream time."""
        record = self.add(TOPICS.feedback, append_ms, None)
        self.records[-1] = record._replace(headers=tick_headers(step))
        return self.records[-1]

    def of(self, topic: str) -> deque[Record]:
        return deque(record for record in self.records if record.topic == topic)


class CrashError(Exception):
    """A simulated process crash. A crash does not close any resources."""


def crash_at(wanted: int) -> Callable[[int], None]:
    """Return a crash point that simulates a crash at the given step of every commit."""

    def crash(number: int) -> None:
        if number == wanted:
            raise CrashError

    return crash


@dataclass
class LearnerGroup:
    """A program that runs several learners. Each call to `step` runs one step of every learner."""

    clock: VirtualClock
    learners: Sequence[Program]
    started: bool = False

    def step(self, timeout_ms: int) -> int:
        self.started = True
        return sum(learner.step(timeout_ms) for learner in self.learners)

    def next_due_ms(self) -> int | None:
        if not self.started:
            return self.clock.now_ms
        return min((due for learner in self.learners if (due := learner.next_due_ms()) is not None), default=None)


@dataclass
class CrashingLearner:
    """A learner that crashes at the given points and restarts immediately."""

    make: Callable[[Callable[[int], None]], LearnerProgram]
    crashes: set[tuple[int, int]]  # each crash is (number of the commit, number of the crash point in the commit)
    commits: int = 0
    crashed: int = 0
    program: LearnerProgram = field(init=False)

    def __post_init__(self) -> None:
        self.program = self.make(self._crash_point)

    def _crash_point(self, number: int) -> None:
        self.commits += number == 1
        if (self.commits, number) in self.crashes:
            raise CrashError

    def step(self, timeout_ms: int) -> int:
        try:
            return self.program.step(timeout_ms)
        except CrashError:
            self.crashed += 1
            self.program = self.make(self._crash_point)
            return 1

    def next_due_ms(self) -> int | None:
        return self.program.next_due_ms()


@dataclass
class Pipeline:
    """A complete pipeline on the embedded broker. Tests can kill and restart its programs."""

    settings: TaskSettings
    partitions: int = 1
    keep_ms: int = -1  # retention of the topics; -1 means unlimited
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(1_000))
    broker: EmbeddedBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = EmbeddedBroker(self.clock)
        shares_model = self.settings.model == "shared"
        self.broker.create_topics(TOPICS.specs(self.partitions, keep_ms=self.keep_ms, shares_model=shares_model))

    def now_ms(self) -> int:
        return self.clock.now_ms

    def wait(self, for_ms: int) -> None:
        """Advance the clock."""
        self.clock.advance_to(self.clock.now_ms + for_ms)

    def learner(
        self,
        instance: str = "learner-1",
        crash_point: Callable[[int], None] = lambda number: None,
        settings: TaskSettings | None = None,
        given: Given = None,
        begin: Changed | None = None,
        parked: Parked | None = None,
        broker: Broker | None = None,
        host_ms: Callable[[], int] | None = None,
        announce: Callable[[str], None] = lambda message: None,
        stop: Callable[[], bool] = lambda: False,
        committed: Callable[[Sequence[Commit]], None] = lambda commits: None,
        **options: Any,
    ) -> LearnerProgram:
        return LearnerProgram(
            broker or self.broker,
            TOPICS,
            self.settings if settings is None else settings,
            LearnerOptions(instance=instance, **options),
            host_ms or self.now_ms,
            announce,
            crash_point,
            stop,
            given=given,
            begin=begin,
            committed=committed,
            parked=parked,
        )

    def replay(self, dataset: Dataset, events: int, rate: float = 1_000.0, start: int = 0) -> ReplayProgram:
        options = ReplayOptions(events, rate, partitions=self.partitions, start=start)
        return ReplayProgram(self.broker, TOPICS, dataset, options, self.now_ms)

    def feedback(
        self,
        dataset: Dataset,
        plan: FeedbackPlan,
        announce: Callable[[str], None] = lambda message: None,
        **options: Any,
    ) -> FeedbackProgram:
        known_of, made = dataset.known_of, FeedbackOptions(**options)
        return FeedbackProgram(self.broker, TOPICS, known_of, plan, made, self.now_ms, announce=announce)

    def run(self, sources: Sequence[Program], *learners: Program) -> None:
        """Run the programs until no work is left. The learners first process the records already in the topics."""
        run_until_settled(self.clock, sources, LearnerGroup(self.clock, learners))

    def send(self, topic: str, value: bytes | None, partition: int = 0, key: bytes | None = None) -> None:
        self.broker.producer().send(topic, partition, key, value, HEADERS)

    def context(self, event_id: str, *indices: int, **fields: Any) -> None:
        partition = partition_for(event_id.encode(), self.partitions)
        self.send(TOPICS.contexts, context_value(event_id, *indices, **fields), partition, event_id.encode())

    def show(self, event_id: str) -> None:
        partition = partition_for(event_id.encode(), self.partitions)
        self.send(TOPICS.feedback, encode_feedback(Shown(event_id)), partition, event_id.encode())

    def answer(self, event_id: str, reward: float, action: int | str | None = None, **optional: Any) -> None:
        partition = partition_for(event_id.encode(), self.partitions)
        value = feedback_value(event_id, reward, action=action, **optional)
        self.send(TOPICS.feedback, value, partition, event_id.encode())

    def request(self, **changes: Any) -> Request:
        """Request new values of settings, starting from the values after all earlier requests."""
        stored = pipeline_settings(self.broker, TOPICS, self.partitions)
        start = restored_settings(stored.settings) if stored.settings else self.settings
        requests = read_requests(self.broker, TOPICS)
        now = stored_settings(requests.after(start, stored.control).settings)
        replaced = {name: Replaced(now.get(name), value) for name, value in changes.items()}
        request = Request(f"request-{requests.end}", "tests", replaced)
        self.send(TOPICS.control, encode_request(request), key=request.id.encode())
        return request

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        return list(read_partition(self.broker, TopicPartition(topic, partition)))

    def values(self, topic: str, partition: int = 0) -> list[dict[str, Any]]:
        return [orjson.loads(record.value or b"null") for record in self.records(topic, partition)]

    def all_values(self, topic: str) -> list[dict[str, Any]]:
        return [value for partition in range(self.partitions) for value in self.values(topic, partition)]

    def journal(self, partition: int = 0) -> list[JournalStep]:
        return list(map(decode_step, self.records(TOPICS.journal, partition)))

    def generations(self, partition: int = 0) -> list[int]:
        """The numbers of the complete snapshots in a partition, in order of completion."""
        found, numbers = Stored(str(partition)), []
        for record in self.records(TOPICS.snapshots, partition):
            before = found.newest
            found.add(record)
            if found.newest is not before and found.newest is not None:
                numbers.append(found.newest.number)
        return numbers

    def ends(self) -> dict[TopicPartition, int]:
        """The high watermark of every partition, which is above the offsets of records in open transactions."""
        tps = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(self.partitions)]
        return {tp: end.high_watermark for tp, end in self.broker.ends(tps).items()}

    def ledger(self) -> Ledger:
        return total_ledger(steps[-1].ledger for p in range(self.partitions) if (steps := self.journal(p)))

    def audits(self) -> list[Finding]:
        return [audit_partition(self.broker, TOPICS, partition) for partition in range(self.partitions)]


Edit = Callable[[list[Record]], list[Record]]


def edited_copy(
    pipeline: Pipeline, edits: Mapping[TopicPartition, Edit] | None = None, partitions: int | None = None
) -> Pipeline:
    """Copy all topics of a pipeline, and edit the records in some of their partitions. Append times do not change."""
    shares_model = pipeline.settings.model == "shared"
    other = Pipeline(pipeline.settings, partitions or pipeline.partitions)
    copies: list[Record] = []
    for topic in TOPICS.all_of(shares_model=shares_model):
        for partition in range(1 if topic in (TOPICS.updates, TOPICS.control) else pipeline.partitions):
            edit = (edits or {}).get(TopicPartition(topic, partition), list)
            copies += edit(pipeline.records(topic, partition))
    for record in sorted(copies, key=lambda record: record.append_ms):
        other.clock.advance_to(record.append_ms)
        other.broker.producer().send(record.topic, record.partition, record.key, record.value, record.headers)
    return other


STEPS_MAX = 1_000


def run_until_idle(*programs: Program) -> None:
    """Run all programs step by step until none has work left. Raises an error after STEPS_MAX rounds."""
    for _ in range(STEPS_MAX):
        if not sum(program.step(0) for program in programs):
            return
    raise AssertionError(f"still busy after {STEPS_MAX} steps")


def digest(*learners: LearnerProgram) -> str:
    """The digest of the learner states for all tasks in these programs."""
    tasks = {partition: task for learner in learners for partition, task in learner.tasks.items()}
    return state_digest(task.learner.state() for _, task in sorted(tasks.items()))


def plan(delay: str = "none", loss: float = 0.0, duplicates: float = 0.0, seed: int = 1) -> FeedbackPlan:
    """A feedback plan, which determines delays, losses and duplicates."""
    return FeedbackPlan(seed, parse_delay(delay), loss, duplicates)


def small_synsep(rows: int = 400) -> Dataset:
    return synsep(seed=3, rows=rows)


def synsep_task(learner: str = "soba-diag", **changes: Any) -> TaskSettings:
    """Settings for the SynSep data set. With log-normal delays, some feedback arrives after the window."""
    dataset = small_synsep()
    limits = JoinSettings(window_ms=500, orphan_window_ms=500, retain_ms=5_000)
    return TaskSettings(learner, dataset.n_classes, dataset.n_features, **{"join": limits, "seed": 5, **changes})
