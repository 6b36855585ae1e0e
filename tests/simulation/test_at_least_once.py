"""The replay and the feedback program write each record at least once. Duplicates do not change the results."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from producers.datasets.synthetic import synsep
from producers.replay.options import ReplayOptions
from producers.replay.program import ReplayProgram, resume_position
from stream.kafka.embedded import EmbeddedBroker, EmbeddedSink, Program, VirtualClock
from stream.kafka.port import BrokerUnavailableError
from stream.kafka.producers import PlainProducer
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.wire.codec import HEADERS
from stream.wire.ledger import Ledger
from stream.wire.records import Headers, TopicPartition
from stream.wire.topics import partition_for
from tests.pipeline import TOPICS, LearnerGroup, Pipeline, digest, feedback_value, plan, run_until_idle

EVENTS = 150
DATASET = synsep(seed=3, rows=200)
LATE = plan("lognormal:60ms,1.0", loss=0.05, duplicates=0.05)
PLACES = ("context_offset", "feedback_offset")
"""Fields with the offsets of input records. Duplicates shift these offsets; all other fields must be the same."""

Published = tuple[list[dict[str, Any]], list[dict[str, Any]], str]


def pipeline_of(partitions: int = 2, broker: Callable[[VirtualClock], EmbeddedBroker] | None = None) -> Pipeline:
    limits = JoinSettings(window_ms=400, orphan_window_ms=400, retain_ms=60_000)
    settings = TaskSettings("soba-diag", DATASET.n_classes, DATASET.n_features, seed=5, join=limits)
    pipeline = Pipeline(settings, partitions)
    if broker is not None:
        pipeline.broker = broker(pipeline.clock)
        pipeline.broker.create_topics(TOPICS.specs(partitions))
    return pipeline


def published(pipeline: Pipeline, *learners: Any) -> Published:
    """Return the predictions and examples, without the offsets of input records, and the learners' digest."""
    findings = pipeline.audits()
    assert all(finding.ok for finding in findings), findings
    assert all(finding.contexts_behind == finding.feedback_behind == 0 for finding in findings)

    def values(topic: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in value.items() if k not in PLACES} for value in pipeline.all_values(topic)]

    return values(TOPICS.predictions), values(TOPICS.examples), digest(*learners)


@pytest.fixture(scope="module")
def once() -> Published:
    """The result of a run that writes every record exactly once."""
    pipeline = pipeline_of()
    learner = pipeline.learner(idle_ms=1)
    pipeline.run((pipeline.replay(DATASET, EVENTS), pipeline.feedback(DATASET, LATE)), learner)
    return published(pipeline, learner)


def run_to(pipeline: Pipeline, until_ms: int, *programs: Program) -> None:
    """Run the programs until `until_ms`. Schedule their steps in the same way as `run_until_settled` does."""
    while pipeline.now_ms() < until_ms:
        run_until_idle(*programs)
        dues = [due_ms for program in programs if (due_ms := program.next_due_ms()) is not None]
        pipeline.clock.advance_to(min(until_ms, *(max(due_ms, pipeline.now_ms() + 1) for due_ms in dues)))


def test_feedback_resent_after_a_crash_has_no_effect(once: Published) -> None:
    pipeline = pipeline_of()
    learner = pipeline.learner(idle_ms=1)
    replay = pipeline.replay(DATASET, EVENTS)
    first = pipeline.feedback(DATASET, LATE, commit_interval_ms=40)
    run_to(pipeline, 1_101, replay, first, learner)
    assert first.waiting > 0
    pipeline.run(
        (replay, pipeline.feedback(DATASET, LATE)), learner
    )  # the first program is not closed, as after a crash
    ledger = pipeline.ledger()
    assert published(pipeline, learner) == once
    assert ledger.feedback_duplicates > 10
    assert ledger.conflicts == 0


class RestartedReplay:
    """A replay that resends the last `back` contexts when it reaches position 100, as after a crash and a restart."""

    def __init__(self, pipeline: Pipeline, back: int) -> None:
        self.pipeline = pipeline
        self.back = back
        self.program = pipeline.replay(DATASET, EVENTS)
        self.died = False

    def step(self, timeout_ms: int) -> int:
        sent = self.program.step(timeout_ms)
        if self.program.position >= 100 and not self.died:
            self.died = True
            for event in range(100 - self.back, 100):  # the replay has already written these contexts
                self.pipeline.send(TOPICS.contexts, *context_of(self.pipeline, event))
            return sent + self.back
        return sent

    def next_due_ms(self) -> int | None:
        return self.program.next_due_ms()


def context_of(pipeline: Pipeline, position: int) -> tuple[bytes | None, int, bytes | None]:
    """Return the value, partition and key of a context in the topic, given its position in the replay."""
    (slot,) = DATASET.schedule(position, position + 1, None)
    partition = partition_for(slot.event_id.encode(), pipeline.partitions)
    written = [r for r in pipeline.records(TOPICS.contexts, partition) if r.key == slot.event_id.encode()]
    return written[0].value, partition, written[0].key


@pytest.mark.parametrize("back", [1, 20, 100])
def test_contexts_resent_after_a_crash_have_no_effect(back: int, once: Published) -> None:
    pipeline = pipeline_of()
    learner = pipeline.learner(idle_ms=1)
    pipeline.run((RestartedReplay(pipeline, back), pipeline.feedback(DATASET, LATE)), learner)
    ledger = pipeline.ledger()
    assert published(pipeline, learner) == once
    assert (ledger.contexts, ledger.decided, ledger.context_duplicates) == (EVENTS + back, EVENTS, back)


@pytest.mark.parametrize("writes", [True, False], ids=["written", "not written"])
def test_failed_flushes_and_restarts_do_not_change_the_results(writes: bool, once: Published) -> None:
    pipeline = pipeline_of(broker=lambda clock: FlushFailingBroker(clock, writes=writes))
    learner = pipeline.learner(idle_ms=1)
    replay, feedback = RestartingReplay(pipeline), RestartingFeedback(pipeline)
    pipeline.run((replay, feedback), learner)
    assert replay.failures > 5
    assert feedback.failures > 5
    assert published(pipeline, learner) == once


class FlushFailingBroker(EmbeddedBroker):
    """A broker on which every seventh flush fails. `writes` determines whether a failed flush writes its records."""

    def __init__(self, clock: VirtualClock, *, writes: bool) -> None:
        super().__init__(clock)
        self.writes = writes
        self.flushes = 0

    def producer(self) -> PlainProducer:
        return FlushFailingProducer(self)


class FlushFailingProducer(PlainProducer):
    """A producer for a `FlushFailingBroker`."""

    def __init__(self, broker: FlushFailingBroker) -> None:
        super().__init__(lambda: EmbeddedSink(broker), set())
        self.forgetful = broker
        self.queue: list[Any] = []

    def send(self, *record: Any) -> None:
        self.queue.append(record)

    def flush(self) -> Mapping[TopicPartition, int]:
        self.forgetful.flushes += bool(self.queue)
        fails = bool(self.queue) and self.forgetful.flushes % 7 == 0
        if self.forgetful.writes or not fails:
            for record in self.queue:
                super().send(*record)
        self.queue.clear()
        if fails:
            raise BrokerUnavailableError("no answer")
        return super().flush()

    def close(self) -> None:
        self.flush()


class RestartingFeedback:
    """A feedback program that restarts after an error, as `onebit feedback` does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.failures = 0
        self.program = pipeline.feedback(DATASET, LATE, commit_interval_ms=20)

    def step(self, timeout_ms: int) -> int:
        try:
            return self.program.step(timeout_ms)
        except BrokerUnavailableError:
            self.failures += 1
            self.program.close()
            self.program = self.pipeline.feedback(DATASET, LATE, commit_interval_ms=20)
            return 1 + self.step(timeout_ms)  # repeat the step before the learner's next step

    def next_due_ms(self) -> int | None:
        return self.program.next_due_ms()


class RestartingReplay:
    """A replay that restarts after an error, as `onebit replay` does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.started_ms = pipeline.now_ms()
        self.failures = 0
        self.program = self._make(0)

    def _make(self, start: int) -> ReplayProgram:
        # A restart does not change the schedule: position n is due n ms after the first start.
        started_ms = [self.started_ms + start]
        options = ReplayOptions(EVENTS, partitions=self.pipeline.partitions, start=start)
        return ReplayProgram(
            self.pipeline.broker,
            TOPICS,
            DATASET,
            options,
            lambda: started_ms.pop() if started_ms else self.pipeline.now_ms(),
        )

    def step(self, timeout_ms: int) -> int:
        try:
            return self.program.step(timeout_ms)
        except BrokerUnavailableError:
            self.failures += 1
            options = ReplayOptions(EVENTS, partitions=self.pipeline.partitions)
            self.program = self._make(resume_position(self.pipeline.broker, TOPICS, DATASET, options))
            return 1 + self.step(timeout_ms)  # repeat the step before the learner's next step

    def next_due_ms(self) -> int | None:
        return self.program.next_due_ms()


def answers(pipeline: Pipeline, sent: set[str]) -> list[tuple[int, bytes, bytes]]:
    """Return feedback (partition, key, value) for all predictions that have no feedback yet."""
    unanswered = []
    for partition in range(pipeline.partitions):
        for prediction in pipeline.values(TOPICS.predictions, partition):
            event_id = prediction["id"]
            if event_id not in sent:
                sent.add(event_id)
                reward = int(prediction["action"] == DATASET.label_of(event_id))
                unanswered.append((partition, event_id.encode(), feedback_value(event_id, reward)))
    return unanswered


@pytest.mark.parametrize("headers", [HEADERS, ()], ids=["with version", "plain"])
def test_feedback_resent_by_a_plain_producer_has_no_effect(headers: Headers) -> None:
    def run(times: int) -> tuple[Published, Ledger]:
        pipeline = pipeline_of()
        learner = pipeline.learner(idle_ms=1)
        replay = pipeline.replay(DATASET, EVENTS)
        service = pipeline.broker.producer()
        sent: set[str] = set()
        unsure: list[tuple[int, bytes, bytes]] = []
        while not replay.finished:
            run_to(pipeline, pipeline.now_ms() + 10, replay, learner)
            fresh = answers(pipeline, sent)
            for partition, key, value in fresh:
                service.send(TOPICS.feedback, partition, key, value, headers)
            for _ in range(times - 1):  # the service resends the latest answers and some earlier ones
                for partition, key, value in [*fresh, *unsure[::7]]:
                    service.send(TOPICS.feedback, partition, key, value, headers)
            unsure += fresh
            run_until_idle(learner)
        pipeline.run((), LearnerGroup(pipeline.clock, [learner]))
        return published(pipeline, learner), pipeline.ledger()

    one, ledger = run(1)
    several, with_copies = run(3)
    assert several == one
    assert ledger.feedback_duplicates == 0
    assert with_copies.feedback_duplicates > 2 * EVENTS
    assert with_copies.conflicts == 0
    assert with_copies._replace(feedback=ledger.feedback, feedback_duplicates=0) == ledger
