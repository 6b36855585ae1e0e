"""Steps of the broker's clock neither expire decisions nor forget ids, in the learner, in recovery and in the audit."""

import pytest

from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task

HOUR_MS = 3_600_000
WINDOW_MS = 1_000  # of `small_task`
TICKS = 5


def run_for(pipeline: Pipeline, learner: object, seconds: float) -> None:
    """Let time pass in steps of 100 ms, as a learner that polls."""
    for _ in range(int(seconds * 10)):
        pipeline.wait(100)
        run_until_idle(learner)  # type: ignore[arg-type]


def outcomes(pipeline: Pipeline) -> dict[str, str]:
    return {value["id"]: value["outcome"] for value in pipeline.values(TOPICS.examples)}


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_step_of_the_clock_expires_nothing_and_forgets_no_id(step_ms: int) -> None:
    pipeline = Pipeline(small_task())
    pipeline.clock.advance_to(10 * HOUR_MS)
    learner = pipeline.learner()
    pipeline.context("settled")
    run_for(pipeline, learner, 0.5)
    pipeline.answer("settled", 1)
    pipeline.context("waits")
    run_for(pipeline, learner, 0.5)
    pipeline.broker.clock_ahead_ms = step_ms
    pipeline.context("settled")
    run_for(pipeline, learner, 0.3)
    assert outcomes(pipeline) == {"settled": "matched"}
    assert pipeline.ledger().context_duplicates == 1
    pipeline.answer("waits", 1)
    pipeline.context("after")
    run_for(pipeline, learner, 0.2)
    assert outcomes(pipeline) == {"settled": "matched", "waits": "matched"}
    run_for(pipeline, learner, 2)
    assert outcomes(pipeline)["after"] == "expired"


def test_recovery_and_audit_follow_steps_of_the_clock() -> None:
    pipeline = Pipeline(small_task())
    pipeline.clock.advance_to(10 * HOUR_MS)
    learner = pipeline.learner(snapshot_interval_ms=0)
    for number, ahead_ms in enumerate((0, HOUR_MS, 0, -HOUR_MS, 0)):
        pipeline.broker.clock_ahead_ms = ahead_ms
        for letter in "ab":
            pipeline.context(f"{letter}{number}")
        run_for(pipeline, learner, 0.3)
        pipeline.answer(f"a{number}", 1)
        run_for(pipeline, learner, 2)
    counts = pipeline.ledger()
    assert (counts.matched, counts.expired, counts.pending) == (5, 5, 0)
    assert task_digest(rebuild(pipeline.broker, TOPICS, 0).task) == task_digest(learner.tasks[0])
    (finding,) = pipeline.audits()
    assert finding.ok
    shifts_ms = [shift_ms for _, shift_ms in finding.clock_steps]
    assert [round(shift_ms / HOUR_MS) for shift_ms in shifts_ms] == [1, 0, -1, 0]


def test_restarted_learner_keeps_the_shift() -> None:
    pipeline = Pipeline(small_task())
    pipeline.clock.advance_to(10 * HOUR_MS)
    learner = pipeline.learner()
    pipeline.context("a")
    run_for(pipeline, learner, 0.2)
    pipeline.broker.clock_ahead_ms = HOUR_MS
    run_for(pipeline, learner, 0.2)
    learner.close()
    again = pipeline.learner("learner-2")
    run_for(pipeline, again, 0.3)
    assert outcomes(pipeline) == {}
    pipeline.answer("a", 1)
    run_until_idle(again)
    assert outcomes(pipeline) == {"a": "matched"}


def test_quiet_time_is_not_a_step_of_the_clock() -> None:
    pipeline = Pipeline(small_task())
    pipeline.clock.advance_to(10 * HOUR_MS)
    learner = pipeline.learner()
    pipeline.context("a")
    run_for(pipeline, learner, 0.2)
    pipeline.answer("a", 1)
    run_for(pipeline, learner, 0.2)
    pipeline.wait(HOUR_MS)
    pipeline.context("a")  # forgotten, so it is decided again
    run_for(pipeline, learner, 2)
    pipeline.context("b")
    run_for(pipeline, learner, 0.2)
    assert {step.clock_shift_ms for step in pipeline.journal()} == {0}
