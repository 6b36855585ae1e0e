"""Topics with a retention: idle tasks renew their snapshots, and a stopped pipeline recovers without its journal."""

from itertools import pairwise

import pytest

from consumers.learner.program import LearnerProgram
from stream.recovery.chunks import Complete, Stored
from stream.recovery.recover import settings_in_force
from stream.recovery.state import task_digest
from stream.recovery.steps import MissingRecordsError
from stream.task.settings import TaskSettings
from stream.wire.records import TopicPartition
from stream.wire.topics import partition_for
from tests.pipeline import (
    TOPICS,
    Pipeline,
    digest,
    plan,
    run_until_idle,
    small_synsep,
    small_task,
    synsep_task,
)

KEEP_MS = 100_000
GROUP = "onebit-learner"
JOURNAL = TopicPartition(TOPICS.journal, 0)
MODELS: dict[str, tuple[TaskSettings, int]] = {
    "own": (synsep_task(), 1),
    "shared": (synsep_task("late-ucb", parameters={"project": 8}, model="shared"), 3),
}


def kept_pipeline(name: str) -> tuple[Pipeline, LearnerProgram]:
    """A pipeline with a retention and settled events."""
    pipeline = Pipeline(*MODELS[name], keep_ms=KEEP_MS)
    learner = kept_learner(pipeline)
    dataset = small_synsep()
    pipeline.run((pipeline.replay(dataset, 90), pipeline.feedback(dataset, plan("lognormal:100ms,1.0"))), learner)
    return pipeline, learner


def kept_learner(pipeline: Pipeline, instance: str = "learner-1") -> LearnerProgram:
    return pipeline.learner(instance, keep_ms=KEEP_MS, snapshot_interval_ms=200)


def digests(learner: LearnerProgram) -> list[str]:
    return [task_digest(task) for _, task in sorted(learner.tasks.items())]


def idle(pipeline: Pipeline, learner: LearnerProgram, for_ms: int) -> None:
    """Let time pass without records. The broker deletes records after the retention."""
    for _ in range(for_ms // 5_000):
        pipeline.wait(5_000)
        run_until_idle(learner)
        pipeline.broker.delete_expired()


def expire_everything(pipeline: Pipeline) -> None:
    pipeline.wait(2 * KEEP_MS)
    pipeline.broker.delete_expired()
    assert not pipeline.records(TOPICS.journal)


@pytest.mark.parametrize("name", MODELS)
def test_killed_learner_of_an_idle_pipeline_recovers_after_many_retentions(name: str) -> None:
    pipeline, learner = kept_pipeline(name)
    idle(pipeline, learner, 5 * KEEP_MS)
    model = digest(learner)
    pipeline.wait(KEEP_MS // 2)
    pipeline.broker.delete_expired()
    before = digests(learner)
    again = kept_learner(pipeline)
    again.step(0)
    assert (digests(again), digest(again)) == (before, model)


def test_idle_task_takes_a_few_steps_per_retention() -> None:
    pipeline, learner = kept_pipeline("own")
    steps = learner._running[0].last_step.number
    idle(pipeline, learner, 4 * KEEP_MS)
    assert 16 <= learner._running[0].last_step.number - steps <= 17


def test_idle_task_forgets_settled_ids() -> None:
    pipeline, learner = kept_pipeline("own")
    assert learner.tasks[0].join.settled.entries
    idle(pipeline, learner, KEEP_MS)
    assert not learner.tasks[0].join.settled.entries


def test_restarts_of_an_idle_task_renew_its_snapshot() -> None:
    pipeline, learner = kept_pipeline("own")
    for _ in range(30):
        pipeline.wait(KEEP_MS // 5)
        pipeline.broker.delete_expired()
        learner = kept_learner(pipeline)
        run_until_idle(learner)
    assert learner.ready


@pytest.mark.parametrize("name", MODELS)
def test_stopped_pipeline_recovers_without_its_journal(name: str) -> None:
    pipeline, learner = kept_pipeline(name)
    learner.finish(1_000)
    before, ledger, number = digests(learner), pipeline.ledger(), learner._running[0].last_step.number
    learner.close()
    expire_everything(pipeline)
    again = kept_learner(pipeline)
    again.step(0)
    assert digests(again) == before
    pipeline.context("new")
    run_until_idle(again)
    assert pipeline.ledger().contexts == ledger.contexts + 1
    assert pipeline.journal()[0].number > number


def test_task_without_records_starts_in_order_to_write_the_shared_models_snapshot() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"), partitions=2, keep_ms=KEEP_MS)
    learner = kept_learner(pipeline)
    run_until_idle(learner)
    assert not pipeline.journal(0)
    event_id = next(name for name in "abcd" if partition_for(name.encode(), 2) == 1)
    pipeline.context(event_id)
    run_until_idle(learner)
    pipeline.answer(event_id, 1)
    run_until_idle(learner)
    learner.finish(1_000)
    learner.close()
    model = digest(learner)
    pipeline.wait(2 * KEEP_MS)
    pipeline.broker.delete_expired()
    assert not pipeline.records(TOPICS.updates)
    again = kept_learner(pipeline)
    again.step(0)
    assert digest(again) == model
    assert again.tasks[0].join.records == 0


def test_settings_are_known_without_the_journal() -> None:
    pipeline, learner = kept_pipeline("own")
    learner.finish(1_000)
    before = settings_in_force(pipeline.broker, TOPICS, 0)
    expire_everything(pipeline)
    assert settings_in_force(pipeline.broker, TOPICS, 0) == before


def test_recovery_without_a_journal_names_the_applied_records_that_the_snapshot_lacks() -> None:
    pipeline, learner = kept_pipeline("own")
    learner.finish(1_000)
    learner.close()
    number = pipeline.generations()[-1]
    killed = pipeline.learner(snapshot_interval_ms=0)
    pipeline.context("lost")
    run_until_idle(killed)
    expire_everything(pipeline)
    ends = pipeline.ends()
    with pytest.raises(MissingRecordsError) as raised:
        kept_learner(pipeline).step(0)
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (JOURNAL, number + 1, True)
    assert f"{TOPICS.contexts}/0 from offset 90 to 91" in str(raised.value)
    assert pipeline.ends() == ends


def test_inputs_that_end_at_the_snapshot_replace_expired_group_offsets() -> None:
    pipeline, learner = kept_pipeline("own")
    learner.finish(1_000)
    learner.close()
    expire_everything(pipeline)
    pipeline.broker._groups[GROUP].committed.clear()
    kept_learner(pipeline).step(0)
    pipeline.broker.delete_records(JOURNAL, pipeline.ends()[JOURNAL])
    pipeline.broker._groups[GROUP].committed.clear()
    pipeline.context("unread")
    with pytest.raises(MissingRecordsError):
        kept_learner(pipeline).step(0)


def test_unread_records_that_were_deleted_are_named() -> None:
    pipeline, learner = kept_pipeline("own")
    learner.finish(1_000)
    learner.close()
    pipeline.context("deleted before it was read")
    expire_everything(pipeline)
    with pytest.raises(MissingRecordsError) as raised:
        kept_learner(pipeline).step(0)
    assert (raised.value.tp, raised.value.needed) == (TopicPartition(TOPICS.contexts, 0), 90)


def test_last_snapshot_is_written_in_several_steps_and_only_once() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_bytes_max=1, snapshot_chunk_bytes=200)
    pipeline.context("a")
    run_until_idle(learner)
    steps = len(pipeline.journal())
    learner.finish(1_000)
    written = len(pipeline.journal())
    assert written > steps + 2
    assert pipeline.generations() == [steps + 1]
    learner.finish(1_000)
    assert pipeline.generations()[-1] > steps + 1


def test_learner_that_has_no_time_left_writes_no_last_snapshot() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    run_until_idle(learner)
    learner.finish(0)
    assert pipeline.generations() == []


@pytest.mark.parametrize(
    ("spacing_ms", "written", "slot"),
    [
        (0, "", "a"),
        (0, "a1@0", "b"),
        (0, "a1@0 b2@100", "a"),
        (0, "b2@100 a3@200", "b"),
        (50, "a1@0", "b"),
        (50, "a1@0 b2@10", "c"),
        (50, "a1@0 b2@10 c3@20", "b"),
        (50, "a1@0 b2@50 c3@60", "d"),
        (50, "a1@0 b2@50 c3@100 d4@150 e5@200 f6@210", "a"),
        (50, "a1@0 b2@50 c3@100 d4@150 e5@190 f6@210", "e"),
        (50, "a7@220 b2@50 c3@100 d4@150 e5@200 f6@210", "f"),
    ],
)
def test_generations_are_kept_for_the_past_at_intervals(spacing_ms: int, written: str, slot: str) -> None:
    stored = Stored("0")
    stored.spacing_ms = spacing_ms
    for each in written.split():
        number, append_ms = each[1:].split("@")
        stored.complete[each[0]] = Complete(int(number), int(append_ms))
    assert stored.next_slot == slot


def test_snapshots_of_an_active_task_cover_most_of_the_retention() -> None:
    pipeline = Pipeline(small_task(), keep_ms=KEEP_MS)
    learner = kept_learner(pipeline)
    for number in range(300):
        pipeline.context(f"{number}")
        run_until_idle(learner)
        pipeline.wait(KEEP_MS // 100)
        run_until_idle(learner)
    times_ms = sorted(each.append_ms for each in learner._running[0].snapshots.complete.values())
    assert pipeline.now_ms() - times_ms[0] >= 3 * KEEP_MS // 4
    assert pipeline.now_ms() - times_ms[0] <= 1.5 * KEEP_MS
    assert max(later - earlier for earlier, later in pairwise(times_ms)) <= KEEP_MS // 3
