"""The audit agrees with the learner's counts, even if events occur in an unusual order."""

from collections.abc import Callable
from random import Random

import pytest

from stream.settings.task_fields import JoinSettings
from stream.task.settings import DatedBy
from stream.telemetry.sketch import Sketch
from stream.verifying.audit import Finding, audit_partition
from stream.wire.codec import tick_headers
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task
from tests.verifying.tampering import GOOD, hand_made_run


def test_records_that_the_learner_has_not_applied_are_backlog_and_not_faults() -> None:
    pipeline = hand_made_run()
    pipeline.context("next")
    pipeline.answer("pending", 1)
    pipeline.answer("next", 1)
    assert audit_partition(pipeline.broker, TOPICS, 0) == Finding(0, GOOD, GOOD, (), 1, 2, latencies=Sketch.of([0] * 4))


def test_audit_ignores_records_that_are_written_while_it_runs() -> None:
    pipeline = hand_made_run()
    learner = pipeline.learner()

    decided: list[str] = []

    def continue_run(message: str) -> None:
        decided.append(message)
        pipeline.context(f"during {message}")
        pipeline.answer("pending", 1)
        run_until_idle(learner)

    run_until_idle(learner)
    before = audit_partition(pipeline.broker, TOPICS, 0)
    during = audit_partition(pipeline.broker, TOPICS, 0, continue_run)
    assert (during.audited, during.faults, during.ok) == (before.audited, (), True)
    assert audit_partition(pipeline.broker, TOPICS, 0).audited.decided == before.audited.decided + len(decided)


def test_feedback_after_a_dropped_orphan_is_late_and_not_a_duplicate() -> None:
    pipeline = Pipeline(
        small_task(join=JoinSettings(window_ms=1_000, orphan_window_ms=500, pending_max=1, orphans_max=1))
    )
    learner = pipeline.learner()
    makes: list[Callable[[], None]] = [
        lambda: pipeline.answer("a", 1),  # becomes an orphan
        lambda: pipeline.answer("b", 1),  # becomes an orphan; orphan a is dropped because of the limit
        lambda: pipeline.context("a"),
        lambda: pipeline.context("c"),  # decision a expires because of the pending limit
        lambda: pipeline.answer("a", 1),  # not a duplicate, because the first feedback for a was dropped
    ]
    for make in makes:
        make()
        run_until_idle(learner)
    ledger = pipeline.ledger()
    assert (ledger.late, ledger.feedback_duplicates, ledger.orphans_dropped, ledger.orphans_waiting) == (1, 0, 1, 1)
    assert pipeline.audits()[0].ok


def test_id_can_be_decided_again_after_the_retention_time() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for start_ms in (1_000, 20_000, 40_000):
        pipeline.clock.advance_to(start_ms)
        pipeline.answer(f"other-{start_ms}", 1)  # this record advances stream time
        pipeline.clock.advance_to(start_ms + 1)
        pipeline.context("a")
        run_until_idle(learner)
        pipeline.clock.advance_to(start_ms + 11)
        pipeline.answer("a", 1)
        run_until_idle(learner)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.ok, finding
    assert (finding.audited.decided, finding.audited.matched) == (3, 3)


@pytest.mark.parametrize("seed", range(12))
def test_feedback_for_a_forgotten_id_becomes_an_orphan(seed: int) -> None:
    rng = Random(seed)
    limits = JoinSettings(window_ms=1_000, orphan_window_ms=1_000, retain_ms=60_000, retained_max=rng.choice((1, 2, 5)))
    pipeline = Pipeline(small_task(join=limits))
    learner = pipeline.learner()
    for number in range(60):
        event = rng.randrange(max(1, number // 3), number + 2)
        if rng.random() < 0.4:
            pipeline.context(f"e{event}")
        for _ in range(rng.choice((0, 1, 2))):
            pipeline.answer(f"e{rng.randrange(event + 1)}", rng.randrange(2))
        if rng.random() < 0.5:
            pipeline.clock.advance_to(pipeline.clock.now_ms + rng.choice((0, 1, 400)))
        if rng.random() < 0.7:
            learner.step(0)
    run_until_idle(learner)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.ok, finding
    assert finding.audited.orphans_waiting + finding.audited.orphans_dropped > 0


@pytest.mark.parametrize("dated_by", ["tick", "context"])
@pytest.mark.parametrize("seed", range(20))
def test_audit_agrees_with_the_learner_despite_clock_steps_and_foreign_ticks(seed: int, dated_by: DatedBy) -> None:
    rng = Random(seed)
    limits = JoinSettings(
        window_ms=rng.choice((20, 200)),
        activation_window_ms=rng.choice((None, 60)),
        orphan_window_ms=50,
        retain_ms=300,
        pending_max=rng.choice((3, 9)),
    )
    pipeline = Pipeline(small_task(join=limits, dated_by=dated_by))
    learner = pipeline.learner(idle_ms=10)
    for number in range(120):
        for _ in range(rng.choice((0, 1, 2))):
            fields = rng.choice(({}, {"deferred": True}))
            pipeline.context(f"e{rng.randrange(number, number + 3)}", **fields)
        for _ in range(rng.choice((0, 1, 2))):
            pipeline.answer(f"e{rng.randrange(max(0, number - 20), number + 3)}", rng.randrange(2))
        for _ in range(rng.choice((0, 1, 2))):
            pipeline.show(f"e{rng.randrange(max(0, number - 20), number + 3)}")
        if rng.random() < 0.3:
            headers = tick_headers(rng.randrange(len(pipeline.journal()) + 3))
            pipeline.broker.producer().send(TOPICS.feedback, 0, None, None, headers)
        back = dated_by == "tick" and rng.random() < 0.1
        pipeline.clock.now_ms += -rng.choice((1, 15, 60)) if back else rng.choice((0, 0, 1, 8, 40))
        if rng.random() < 0.7:
            learner.step(0)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.faults == ()
    assert finding.ok, finding
    assert min(finding.audited.expired, finding.audited.matched, finding.audited.shown, finding.audited.unshown) > 0
