"""Ticks set decision times and advance stream time, even with clock skew, slow replication, fencing and recovery."""

from typing import Any

import pytest

from consumers.learner.program import LearnerProgram
from stream.kafka.port import BrokerUnavailableError, FencedError
from stream.recovery.recover import recover
from stream.recovery.state import task_digest
from stream.wire.codec import is_tick, tick_step
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, CrashError, Pipeline, crash_at, run_until_idle, small_task

FEEDBACK = TopicPartition(TOPICS.feedback, 0)
IDLE_MS = 100  # one tenth of the window of `small_task`
WINDOW_MS = 1_000


def ticks(pipeline: Pipeline) -> list[Record]:
    return [record for record in pipeline.records(TOPICS.feedback) if is_tick(record)]


def outcomes(pipeline: Pipeline) -> list[tuple[str, str, int | None]]:
    return [(e["id"], e["outcome"], e["delay_ms"]) for e in pipeline.values(TOPICS.examples)]


def decided(**options: Any) -> tuple[Pipeline, LearnerProgram]:
    """Return a pipeline and a learner that has decided event a, but has not read that decision's tick."""
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=0, **options)
    pipeline.context("a")
    learner.step(0)  # this step recovers the task
    learner.step(0)
    assert pipeline.ledger().decided == 1
    return pipeline, learner


def test_step_has_a_tick_if_and_only_if_it_makes_a_decision() -> None:
    pipeline, learner = decided()
    pipeline.context("b")
    pipeline.context("c")
    run_until_idle(learner)
    pipeline.answer("a", 1)
    run_until_idle(learner)
    deciding = [step.number for step in pipeline.journal() if step.contexts[0] < step.contexts[1]]
    assert len(deciding) == 2
    assert list(map(tick_step, ticks(pipeline))) == deciding


def test_decision_has_the_append_time_of_its_tick_despite_clock_skew() -> None:
    pipeline, learner = decided(host_ms=lambda: 7_000_000)
    pipeline.clock.advance_to(5_000)
    pipeline.context("b")  # the clock of the topic's broker is ahead
    log = pipeline.broker.log(TopicPartition(TOPICS.contexts, 0))
    log.records[-1] = log.records[-1]._replace(append_ms=900_000)
    learner.step(0)
    pipeline.answer("a", 1)
    run_until_idle(learner)
    assert [pending.time.ms for pending in learner.tasks[0].join.pending.values()] == [5_000]
    assert [tick.append_ms for tick in ticks(pipeline)[:2]] == [1_000, 5_000]


def test_unreplicated_feedback_in_time_is_matched_and_delays_expiry() -> None:
    pipeline, learner = decided()
    run_until_idle(learner)
    pipeline.broker.hold(FEEDBACK)
    pipeline.wait(WINDOW_MS)
    pipeline.answer("a", 1)  # exactly at the deadline
    pipeline.wait(50 * WINDOW_MS)
    with pytest.raises(BrokerUnavailableError):
        run_until_idle(learner)  # the learner's tick is not replicated either
    assert pipeline.ledger().pending == 1
    parked = learner.park()
    learner.close()
    pipeline.broker.release(FEEDBACK)
    run_until_idle(pipeline.learner(parked=parked, snapshot_interval_ms=0))
    assert outcomes(pipeline) == [("a", "matched", WINDOW_MS)]


def test_tick_of_an_idle_learner_expires_a_decision_without_feedback() -> None:
    pipeline, learner = decided()
    run_until_idle(learner)
    for _ in range(WINDOW_MS // IDLE_MS):
        pipeline.wait(IDLE_MS)
        run_until_idle(learner)
    assert outcomes(pipeline) == []  # feedback at the deadline itself would be in time
    pipeline.wait(IDLE_MS)
    run_until_idle(learner)
    assert outcomes(pipeline) == [("a", "expired", None)]
    written = len(ticks(pipeline))
    pipeline.wait(100 * IDLE_MS)
    run_until_idle(learner)
    assert len(ticks(pipeline)) == written  # no decision is pending


def test_idle_learner_writes_one_tick_per_interval() -> None:
    pipeline, learner = decided()
    run_until_idle(learner)
    pipeline.wait(IDLE_MS - 1)
    assert learner.step(0) == 0
    pipeline.wait(1)
    assert [learner.step(0) for _ in range(3)] == [1, 0, 0]
    assert len(ticks(pipeline)) == 2


def test_tick_of_an_idle_learner_drops_an_orphan() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=0)
    pipeline.answer("a", 1)
    run_until_idle(learner)
    pipeline.wait(501)
    run_until_idle(learner)
    assert (pipeline.ledger().orphans_dropped, pipeline.ledger().orphans_waiting) == (1, 0)


def test_feedback_before_the_tick_of_its_decision_has_no_delay() -> None:
    pipeline = Pipeline(small_task())

    def answers(number: int) -> None:
        if number == 2 and pipeline.ledger().decided == 0:
            pipeline.answer("a", 1)  # sent by a program that reads uncommitted predictions
            pipeline.wait(7)

    learner = pipeline.learner(crash_point=answers, snapshot_interval_ms=0)
    pipeline.context("a")
    run_until_idle(learner)
    assert outcomes(pipeline) == [("a", "matched", 0)]


@pytest.mark.parametrize("number", [4, 5])
def test_tick_of_a_fenced_learner_is_ignored(number: int) -> None:
    pipeline = Pipeline(small_task())
    new: list[LearnerProgram] = []

    def replaced(reached: int) -> None:
        if reached == number:
            pipeline.wait(500)
            new.append(pipeline.learner(snapshot_interval_ms=0))
            run_until_idle(*new)

    old = pipeline.learner(crash_point=replaced)
    pipeline.context("a")
    with pytest.raises(FencedError):
        run_until_idle(old)
    assert [tick.append_ms for tick in ticks(pipeline)] == [1_500]
    pipeline.wait(WINDOW_MS)
    pipeline.answer("a", 1)
    run_until_idle(*new)
    assert outcomes(pipeline) == [("a", "matched", WINDOW_MS)]


@pytest.mark.parametrize("snapshot_interval_ms", [0, 1])
def test_stream_time_and_decision_times_survive_recovery(snapshot_interval_ms: int) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=snapshot_interval_ms)
    for name in "abcd":
        pipeline.wait(30)
        pipeline.context(name)
        run_until_idle(learner)
    running = learner.tasks[0]
    assert len(running.undated) == 1  # the learner has read but not applied the tick of d
    recovered = recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert (recovered.stored.newest is not None) == (snapshot_interval_ms == 1)
    assert recovered.task.join.stream_ms == running.join.stream_ms > 1_000
    assert task_digest(recovered.task) == task_digest(running)


def test_decision_time_is_read_from_its_tick_after_the_learner_dies() -> None:
    pipeline, learner = decided()
    learner.close()
    pipeline.clock.advance_to(3_000)
    pipeline.answer("a", 1)
    run_until_idle(pipeline.learner())
    assert outcomes(pipeline) == [("a", "expired", None)]
    assert pipeline.ledger().late == 1
    assert pipeline.audits()[0].ok


def test_aborted_ticks_set_no_decision_times() -> None:
    pipeline = Pipeline(small_task())
    pipeline.context("a")
    with pytest.raises(CrashError):
        run_until_idle(pipeline.learner(crash_point=crash_at(5)))
    pipeline.clock.advance_to(9_000)
    again = pipeline.learner(snapshot_interval_ms=0)
    run_until_idle(again)
    pipeline.answer("a", 1)
    run_until_idle(again)
    assert [tick.append_ms for tick in ticks(pipeline)] == [9_000]
    assert outcomes(pipeline) == [("a", "matched", 0)]
