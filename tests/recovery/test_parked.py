"""A learner parks the task for a lost partition. The task resumes later if its journal has no new steps."""

from collections.abc import Sequence
from typing import Any

import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.recovery import PARKED_MS, Parked
from stream.kafka.port import BrokerUnavailableError, Consumer
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def started(model: str = "own", **options: Any) -> tuple[Pipeline, LearnerProgram]:
    pipeline = Pipeline(small_task("late-ucb", model=model))
    learner = pipeline.learner(**options)
    for name in "ab":
        pipeline.context(name)
        run_until_idle(learner)
    return pipeline, learner


def assert_nothing_is_lost(pipeline: Pipeline, learner: LearnerProgram, decided: str) -> None:
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)] == [*decided]
    assert [step.number for step in pipeline.journal()] == [*range(1, len(pipeline.journal()) + 1)]
    assert task_digest(rebuild(pipeline.broker, TOPICS, 0).task) == task_digest(learner.tasks[0])
    assert pipeline.audits()[0].ok


@pytest.mark.parametrize("model", ["own", "shared"])
@pytest.mark.parametrize("moves_on", [False, True])
def test_reassigned_task_resumes_unless_its_journal_has_new_steps(model: str, moves_on: bool) -> None:
    messages: list[str] = []
    pipeline, learner = started(model, announce=messages.append)
    messages.clear()
    before = learner.tasks[0]
    other = pipeline.learner("learner-0")
    if moves_on:
        learner.step(0)
        pipeline.context("c")
        run_until_idle(other)
    other.close()
    pipeline.context("d")
    run_until_idle(learner)
    assert (learner.tasks[0] is before) == (not moves_on)
    assert any("recovering" in line for line in messages) == moves_on
    assert_nothing_is_lost(pipeline, learner, "abcd" if moves_on else "abd")


@pytest.mark.parametrize("moves_on", [False, True])
def test_journals_of_all_parked_tasks_are_checked_once_and_together(
    monkeypatch: pytest.MonkeyPatch, *, moves_on: bool
) -> None:
    pipeline = Pipeline(small_task(), partitions=6)
    learner = pipeline.learner()
    for name in "abcdefghijkl":
        pipeline.context(name)
    run_until_idle(learner)
    other = pipeline.learner("learner-0")
    if moves_on:
        run_until_idle(other, learner)
        for name in "mnopqrstuvwx":
            pipeline.context(name)
        run_until_idle(other, learner)
    other.close()
    reads, reader = [], pipeline.broker.reader

    def counted(tps: Sequence[TopicPartition], fetch_wait_ms: int) -> Consumer:
        if journals := [tp.partition for tp in tps if tp.topic == TOPICS.journal]:
            reads.append(journals)
        return reader(tps, fetch_wait_ms)

    monkeypatch.setattr(pipeline.broker, "reader", counted)
    monkeypatch.setattr("consumers.learner.recovery.SLICE_MS", 0)  # each recovery takes many steps
    learner.step(0)
    while not learner.ready:
        learner.step(0)
    assert (len(reads[0]) > 3, len(reads) > 1) == (True, moves_on)
    assert all(len(partitions) <= 1 for partitions in reads[1:])


@pytest.mark.parametrize(("passed_ms", "kept"), [(PARKED_MS - 1, [0, 1]), (PARKED_MS, [0])])
def test_task_of_a_lost_partition_is_parked_for_a_limited_time(passed_ms: int, kept: list[int]) -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    learner = pipeline.learner("learner-1")
    for name in "abcdef":  # each partition gets some of the events
        pipeline.context(name)
    run_until_idle(learner)
    other = pipeline.learner("learner-2")
    run_until_idle(learner, other)
    pipeline.clock.advance_to(pipeline.clock.now_ms + passed_ms)
    learner.step(0)
    assert (list(learner.tasks), sorted(learner.park().partitions)) == ([0], kept)


@pytest.mark.parametrize("number", COMMIT_STEPS)
def test_only_the_failed_commit_is_retried(number: int) -> None:
    armed: list[bool] = []

    def fails(reached: int) -> None:
        if armed and reached == number:
            armed.clear()
            raise BrokerUnavailableError("away")

    pipeline, learner = started(crash_point=fails, snapshot_interval_ms=0)
    pipeline.context("c")
    armed.append(True)
    task, steps = learner.tasks[0], learner.tasks[0].join.ledger().decided
    with pytest.raises(BrokerUnavailableError):
        run_until_idle(learner)
    assert task.join.ledger().decided == steps + 1
    parked = learner.park()
    learner.close()
    again = pipeline.learner(parked=parked, snapshot_interval_ms=0)
    pipeline.context("d")
    run_until_idle(again)
    assert again.tasks[0] is task
    assert_nothing_is_lost(pipeline, again, "abcd")


def test_step_rejected_by_the_group_is_retried_if_its_partition_stays_assigned() -> None:
    armed: list[bool] = []

    def rebalances(reached: int) -> None:
        if armed and reached == 4:
            armed.clear()
            pipeline.learner("learner-0").close()

    pipeline, learner = started(crash_point=rebalances)
    task = learner.tasks[0]
    pipeline.context("c")
    armed.append(True)
    run_until_idle(learner)
    assert (armed, learner.tasks[0] is task) == ([], True)
    assert_nothing_is_lost(pipeline, learner, "abc")


def test_program_without_parked_tasks_recovers() -> None:
    pipeline, learner = started()
    task = learner.tasks[0]
    learner.close()
    again = pipeline.learner(parked=Parked())
    run_until_idle(again)
    assert again.tasks[0] is not task
    assert_nothing_is_lost(pipeline, again, "ab")
