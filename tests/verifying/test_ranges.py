"""Checks and exports of a pipeline whose topics have a retention start at a snapshot."""

from typing import Any

import pytest

from consumers.learner.program import LearnerProgram
from stream.recovery.chunks import ChunkWriter, read_snapshots
from stream.recovery.model_files import ModelError
from stream.recovery.state import decode, encode, state_digest
from stream.recovery.steps import MissingRecordsError
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.models import TooEarlyError, export_model
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.verifying.starts import starts_of
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, plan, run_until_idle, small_synsep, small_task, synsep_task
from tests.verifying.tampering import GOOD, add_snapshot, cut, hand_made_run

KEEP_MS = 4_000
SHARED = synsep_task("late-ucb", parameters={"project": 8}, model="shared")
MODELS: dict[str, tuple[TaskSettings, int]] = {"own": (synsep_task(), 1), "shared": (SHARED, 3)}


@pytest.fixture(scope="module", params=MODELS)
def kept(request: pytest.FixtureRequest) -> tuple[Pipeline, LearnerProgram]:
    """A pipeline that has run for several retentions, with late, lost and duplicate feedback."""
    pipeline = Pipeline(*MODELS[request.param], keep_ms=KEEP_MS)
    learner = pipeline.learner(keep_ms=KEEP_MS, snapshot_interval_ms=50)
    dataset = small_synsep()
    for round_number in range(12):
        sources = (
            pipeline.replay(dataset, 60 * (round_number + 1), rate=60, start=60 * round_number),
            pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1, duplicates=0.1)),
        )
        pipeline.run(sources, learner)
        pipeline.broker.delete_expired()
    return pipeline, learner


def test_retained_part_of_every_task_is_checked(kept: tuple[Pipeline, LearnerProgram]) -> None:
    pipeline, _ = kept
    for partition in range(pipeline.partitions):
        finding = audit_partition(pipeline.broker, TOPICS, partition)
        assert (finding.ok, finding.faults, finding.deleted) == (True, (), ())
        journal = pipeline.journal(partition)
        assert 1 < journal[0].number < finding.exact_from < journal[-1].number
        assert finding.audited == journal[-1].ledger
        replay = replay_journal(pipeline.broker, TOPICS, partition)
        assert (replay.ok, replay.start) == (True, finding.exact_from - 1), replay
        assert replay.steps == journal[-1].number - replay.start


def test_check_can_start_at_a_later_step_or_time(kept: tuple[Pipeline, LearnerProgram]) -> None:
    pipeline, _ = kept
    starts = starts_of(pipeline.broker, TOPICS, 0)
    assert len(starts) > 2
    for start in starts[1:]:
        by_step = audit_partition(pipeline.broker, TOPICS, 0, from_step=start.step.number + 1)
        assert (by_step.ok, by_step.exact_from) == (True, start.step.number + 1)
        by_time = audit_partition(pipeline.broker, TOPICS, 0, since_ms=start.append_ms + 1)
        expected = max(each.step.number for each in starts if each.append_ms <= start.append_ms)
        assert (by_time.ok, by_time.exact_from) == (True, expected + 1)


def test_shared_log_is_checked_from_a_snapshot_of_the_model() -> None:
    pipeline = Pipeline(SHARED, 3, keep_ms=KEEP_MS)
    learner = pipeline.learner(keep_ms=KEEP_MS, snapshot_interval_ms=50)
    dataset = small_synsep()
    for round_number in range(10):
        sources = (
            pipeline.replay(dataset, 60 * (round_number + 1), rate=60, start=60 * round_number),
            pipeline.feedback(dataset, plan("lognormal:100ms,1.0")),
        )
        pipeline.run(sources, learner)
        pipeline.broker.delete_expired()
    assert learner.replica is not None
    found = audit_log(pipeline.broker, TOPICS, 3)
    assert (found.faults, found.version) == ((), learner.replica.version)
    assert 0 < found.exact_from < found.version
    log = pipeline.broker.log((TOPICS.updates, 0))
    del log.records[len(log.records) // 2 : len(log.records) // 2 + 3]  # the offsets of later records stay the same
    assert audit_log(pipeline.broker, TOPICS, 3).faults


def test_export_as_of_an_earlier_time_names_the_earliest_time(kept: tuple[Pipeline, LearnerProgram]) -> None:
    pipeline, learner = kept
    with pytest.raises(TooEarlyError) as raised:
        export_model(pipeline.broker, TOPICS, 0, at_ms=1_500)
    first_ms = raised.value.first_ms
    assert pipeline.now_ms() - 1.5 * KEEP_MS < first_ms < pipeline.now_ms() - KEEP_MS / 2
    earliest = export_model(pipeline.broker, TOPICS, 0, at_ms=first_ms)
    newest = export_model(pipeline.broker, TOPICS, 0)
    assert earliest.meta["updates"] < newest.meta["updates"]
    assert newest.meta["digest"] == state_digest([learner.tasks[0].learner.state()])


def test_export_of_a_deleted_step_is_rejected(kept: tuple[Pipeline, LearnerProgram]) -> None:
    pipeline, _ = kept
    with pytest.raises((ModelError, MissingRecordsError)):
        export_model(pipeline.broker, TOPICS, 0, number=50)


def test_model_can_be_exported_after_the_whole_journal_was_deleted() -> None:
    pipeline = Pipeline(synsep_task(), keep_ms=KEEP_MS)
    learner = pipeline.learner(keep_ms=KEEP_MS)
    dataset = small_synsep()
    pipeline.run((pipeline.replay(dataset, 60), pipeline.feedback(dataset, plan("lognormal:100ms,1.0"))), learner)
    learner.finish(1_000)
    pipeline.wait(2 * KEEP_MS)
    pipeline.broker.delete_expired()
    model = export_model(pipeline.broker, TOPICS, 0)
    assert model.meta["digest"] == state_digest([learner.tasks[0].learner.state()])


def test_range_before_the_first_snapshot_is_checked_from_the_beginning() -> None:
    pipeline = hand_made_run()
    add_snapshot(pipeline, pipeline, 3)
    assert audit_partition(pipeline.broker, TOPICS, 0).exact_from == 1
    assert audit_partition(pipeline.broker, TOPICS, 0, from_step=3).exact_from == 1
    assert audit_partition(pipeline.broker, TOPICS, 0, from_step=4).exact_from == 4
    assert audit_partition(pipeline.broker, TOPICS, 0, from_step=1_000).exact_from == 4


@pytest.mark.parametrize("topic", [TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter])
def test_check_starts_where_the_outputs_of_all_later_steps_are_retained(topic: str) -> None:
    pipeline = hand_made_run()
    for number, slot in ((1, "a"), (3, "b"), (4, "c")):
        add_snapshot(pipeline, pipeline, number, slot=slot)
    cut(pipeline, 1)
    tp = TopicPartition(topic, 0)
    pipeline.broker.delete_records(tp, pipeline.broker.beginnings([tp])[tp] + 1)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert (finding.audited, finding.faults, finding.exact_from) == (GOOD, (), 4)


@pytest.mark.parametrize("entries", ["pending", "orphans"])
def test_snapshot_that_lost_an_entry_is_a_fault(entries: str) -> None:
    pipeline = hand_made_run()
    add_snapshot(pipeline, pipeline, 2)
    newest = read_snapshots(pipeline.broker, TOPICS, 0).newest
    assert newest is not None
    snapshot = decode(newest)
    fields: dict[str, Any] = {entries: tuple(column[1:] for column in getattr(snapshot, entries))}
    lost = snapshot._replace(**fields)
    for key, value in ChunkWriter(2, encode(lost), "0", "a").portion(10**9):
        pipeline.send(TOPICS.snapshots, value, key=key)
    cut(pipeline, 2)
    assert audit_partition(pipeline.broker, TOPICS, 0).faults


def test_task_without_steps_after_its_snapshot_is_valid() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    run_until_idle(learner)
    last = pipeline.journal()[-1].number
    add_snapshot(pipeline, pipeline, last)
    cut(pipeline, last)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert (finding.ok, finding.exact_from) == (True, last + 1)
