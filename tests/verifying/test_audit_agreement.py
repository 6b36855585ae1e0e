"""The audit agrees with the learner's counts, even if events occur in an unusual order."""

from random import Random

import pytest

from stream.settings.task_fields import JoinSettings
from stream.task.settings import DatedBy
from stream.telemetry.sketch import Sketch
from stream.verifying.audit import Finding, audit_partition
from stream.verifying.reapply import replay_journal
from stream.wire.codec import tick_headers
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task
from tests.verifying.tampering import GOOD, add_snapshot, cut, hand_made_run


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


def random_run(seed: int, dated_by: DatedBy) -> tuple[Pipeline, JoinSettings]:
    """A run with events in an unusual order, clock steps and foreign ticks."""
    rng = Random(seed)
    limits = JoinSettings(
        window_ms=rng.choice((20, 200)),
        activation_window_ms=rng.choice((None, 60)),
        orphan_window_ms=50,
        retain_ms=300,
        pending_max=rng.choice((3, 9)),
        orphans_max=rng.choice((2, 1_000)),
        retained_max=rng.choice((5, 20, 1_000)),
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
    return pipeline, limits


@pytest.mark.parametrize("dated_by", ["tick", "context"])
@pytest.mark.parametrize("seed", range(20))
def test_audit_agrees_with_the_learner_despite_clock_steps_and_foreign_ticks(seed: int, dated_by: DatedBy) -> None:
    pipeline, limits = random_run(seed, dated_by)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.faults == ()
    assert finding.ok, finding
    found = finding.audited
    assert min(found.expired, found.matched, found.shown, found.unshown, found.orphans_dropped) > 0
    assert (found.orphans_evicted > 0) == (limits.orphans_max == 2)
    assert (found.retained_evicted > 0) == (limits.retained_max < 1_000)


@pytest.mark.parametrize("dated_by", ["tick", "context"])
@pytest.mark.parametrize("seed", range(10))
def test_audit_of_every_range_finds_the_same_counts_as_the_whole(seed: int, dated_by: DatedBy) -> None:
    pipeline, _ = random_run(seed, dated_by)
    whole = audit_partition(pipeline.broker, TOPICS, 0)
    last = pipeline.journal()[-1].number
    for number in range(1, last, max(1, last // 10)):
        add_snapshot(pipeline, pipeline, number)
        finding = audit_partition(pipeline.broker, TOPICS, 0, from_step=number + 1)
        assert (finding.audited, finding.faults, finding.exact_from) == (whole.audited, (), number + 1)
    number = last // 2
    add_snapshot(pipeline, pipeline, number)
    cut(pipeline, number)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert (finding.audited, finding.faults, finding.exact_from) == (whole.audited, (), number + 1)
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert (replay.ok, replay.start, replay.steps) == (True, number, last - number)
