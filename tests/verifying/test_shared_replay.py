"""A replay checks a shared model's decisions against their model versions, and reported replicas against the log."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from stream.recovery.chunks import MODEL_KEYS, ChunkWriter, read_snapshots
from stream.recovery.model_files import ModelError, read_model, write_model
from stream.recovery.state import ModelSnapshot, decode_model, encode, restored_replica, state_digest
from stream.verifying.models import TooEarlyError, export_model
from stream.verifying.reapply import Replay, replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.codec import step_headers
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import decode_update
from tests.pipeline import TOPICS, Pipeline, edited_copy, plan, run_until_idle, small_synsep, small_task, synsep_task

PARTITIONS = 2
LEARNERS = {
    "late-ucb": synsep_task("late-ucb", parameters={"project": 8, "m": 8}, model="shared"),
    "stack-igw": synsep_task("stack-igw", model="shared"),
    "soba-diag, corrected": synsep_task(model="shared", on_expiry="negative", late="correct"),
}


def run_of(learner: str, forged: Sequence[tuple[str, bytes]] = (), step: int = 3) -> Pipeline:
    """Run two learners and restart both halfway. `forged`: another program's records, with a step in their headers."""
    pipeline = Pipeline(LEARNERS[learner], PARTITIONS)
    producer = pipeline.broker.producer()
    for topic, value in forged:
        producer.send(topic, 0, None, value, step_headers(step))
    dataset = small_synsep()
    for start in (0, 40):
        learners = [pipeline.learner(name, snapshot_interval_ms=100) for name in ("a", "b")]
        source = pipeline.replay(dataset, start + 40, rate=200, start=start)
        pipeline.run((source, pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1))), *learners)
    return pipeline


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """A pipeline after a run with the late-ucb learner."""
    return run_of("late-ucb")


def replays(pipeline: Pipeline) -> list[Replay]:
    return [replay_journal(pipeline.broker, TOPICS, partition) for partition in range(PARTITIONS)]


def with_other(pipeline: Pipeline, topic: str, change: dict[int, bytes]) -> Pipeline:
    """Copy a pipeline and replace record values in partition 0 of a topic. `change` maps indices to values."""

    def edit(records: list[Record]) -> list[Record]:
        return [one._replace(value=change.get(number, one.value)) for number, one in enumerate(records)]

    return edited_copy(pipeline, {TopicPartition(topic, 0): edit})


@pytest.mark.parametrize("learner", LEARNERS)
def test_replay_reproduces_every_decision_with_its_model_version(learner: str) -> None:
    pipeline = run_of(learner)
    found = replays(pipeline)
    assert [(one.fault, one.ok) for one in found] == [("", True)] * PARTITIONS
    assert len({(one.version, one.state) for one in found}) == 1
    assert all(one.snapshot > 0 for one in found)
    assert read_snapshots(pipeline.broker, TOPICS, None).newest is not None


def test_replica_that_differs_from_the_log_is_a_fault(pipeline: Pipeline) -> None:
    journal = [orjson.loads(record.value or b"") for record in pipeline.records(TOPICS.journal)]
    number, reported = next((n, value) for n, value in enumerate(journal) if n > 20 and "replica" in value)
    reported["replica"]["sha256"] = "0" * 64
    found = replays(with_other(pipeline, TOPICS.journal, {number: orjson.dumps(reported)}))
    assert f"at step {reported['number']} has 0000000000000000" in found[0].fault
    assert found[1].ok


def test_task_whose_classes_differ_from_the_log_is_a_fault() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared", open_classes=True), PARTITIONS)
    learner = pipeline.learner()
    for event_id in "abcd":
        pipeline.context(event_id, eligible=["news"])
    run_until_idle(learner)
    journal = [record.value or b"" for record in pipeline.records(TOPICS.journal)]
    changed = {n: value.replace(b"news", b"help") for n, value in enumerate(journal) if b'"names":["news"]' in value}
    other = with_other(pipeline, TOPICS.journal, changed)
    assert len(changed) == len(audit_log(other.broker, TOPICS, PARTITIONS).faults) == 1
    assert [one.ok for one in replays(other)] == [False, True]


def with_snapshot(pipeline: Pipeline, change: Callable[[ModelSnapshot], None]) -> Pipeline:
    """Copy a pipeline and apply `change` to the copy's newest model snapshot."""
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    assert newest is not None
    snapshot = decode_model(newest)
    change(snapshot)
    (chunk,) = ChunkWriter(snapshot.version, encode(snapshot), MODEL_KEYS, newest.slot).portion(1_000_000)
    place = max(n for n, record in enumerate(pipeline.records(TOPICS.snapshots)) if record.key == chunk.key)
    return with_other(pipeline, TOPICS.snapshots, {place: chunk.value or b""})


def last_bit(snapshot: ModelSnapshot) -> None:
    array = next(
        value for value in snapshot.learner.values() if isinstance(value, np.ndarray) and value.dtype == np.float64
    )
    array.flat[0] = np.nextafter(array.flat[0], np.inf)


def test_model_snapshot_that_differs_from_the_log_is_a_fault(pipeline: Pipeline) -> None:
    found = replays(with_snapshot(pipeline, last_bit))
    assert "the model's newest snapshot has" in found[0].fault
    assert found[1].ok
    assert all(one.ok for one in replays(with_snapshot(pipeline, lambda state: None)))


def test_decision_that_differs_from_its_model_version_is_a_fault(pipeline: Pipeline) -> None:
    records = pipeline.records(TOPICS.predictions)
    prediction = orjson.loads(records[30].value or b"")
    prediction["scores"][0] += 1e-12
    found = replays(with_other(pipeline, TOPICS.predictions, {30: orjson.dumps(prediction)}))
    assert not found[0].ok


@pytest.mark.parametrize("topic", [TOPICS.predictions, TOPICS.examples])
def test_foreign_records_with_a_step_number_are_skipped_and_reported(topic: str) -> None:
    pipeline = run_of("late-ucb", forged=[(topic, b"{}")])
    records = pipeline.records(topic)
    last = records[-1]
    other = orjson.dumps({**orjson.loads(last.value or b""), "action": 3})
    for value in (other, last.value):
        pipeline.broker.producer().send(topic, 0, last.key, value, last.headers)
    found = replays(pipeline)
    assert [one.ok for one in found] == [True] * PARTITIONS
    assert f"{topic}/0 offset 0" in found[0].foreign
    assert found[1].foreign == ""


def test_audit_identifies_foreign_predictions_by_the_journal() -> None:
    topic = TOPICS.predictions
    pipeline = run_of("late-ucb", forged=[(topic, b"{}")])
    last = pipeline.records(topic)[-1]
    other = orjson.dumps({**orjson.loads(last.value or b""), "action": 3})
    for value, headers in ((other, last.headers), (last.value, last.headers), (last.value, step_headers(0))):
        pipeline.broker.producer().send(topic, 0, last.key, value, headers)
    found = pipeline.audits()
    assert [(one.ok, one.faults) for one in found] == [(True, ())] * PARTITIONS
    places = [0, last.offset + 1, last.offset + 2, last.offset + 3]
    assert found[0].foreign == tuple(
        f"{topic}/0 offset {offset} is not from a learner: according to the journal, no step wrote it"
        for offset in places
    )


def test_foreign_prediction_before_the_predictions_of_the_named_step_is_a_fault(pipeline: Pipeline) -> None:
    number = next(step.number for step in pipeline.journal() if step.log and step.log.predictions)
    found = run_of("late-ucb", forged=[(TOPICS.predictions, b"{}")], step=number).audits()
    assert [one.ok for one in found] == [False, True]
    assert any(fault.startswith(f"step {number}: {TOPICS.predictions}") for fault in found[0].faults)


def test_audit_can_check_predictions_if_a_journal_step_is_missing(pipeline: Pipeline) -> None:
    number = next(n for n, step in enumerate(pipeline.journal()) if n > 5)
    journal = TopicPartition(TOPICS.journal, 0)
    lacking = edited_copy(pipeline, {journal: lambda records: records[:number] + records[number + 1 :]})
    faults = lacking.audits()[0].faults
    assert any(f"step {number + 2} does not follow step {number}" in fault for fault in faults)
    assert not any("does not match the journal's digest" in fault for fault in faults)


def test_audit_detects_predictions_that_differ_from_the_journal_digest(pipeline: Pipeline) -> None:
    prediction = orjson.loads(pipeline.records(TOPICS.predictions)[3].value or b"")
    prediction["scores"][0] += 1e-12
    found = with_other(pipeline, TOPICS.predictions, {3: orjson.dumps(prediction)}).audits()
    assert len(found[0].faults) == 1
    assert f": {TOPICS.predictions}/0 does not match the journal's digest" in found[0].faults[0]
    assert found[1].ok


def test_example_that_its_step_does_not_reproduce_is_a_fault(pipeline: Pipeline) -> None:
    found = replays(with_other(pipeline, TOPICS.examples, {3: b"{}"}))
    assert f"{TOPICS.examples}/0 offset 3: " in found[0].fault
    assert "got b'{}'" in found[0].fault


def test_replay_detects_predictions_that_differ_from_the_journal_digest(pipeline: Pipeline) -> None:
    journal = [orjson.loads(record.value or b"") for record in pipeline.records(TOPICS.journal)]
    number, step = next((n, value) for n, value in enumerate(journal) if value.get("log", {}).get("predictions"))
    step["log"]["sha256"] = "0" * 64
    found = replays(with_other(pipeline, TOPICS.journal, {number: orjson.dumps(step)}))
    assert f"step {step['number']} of partition 0" in found[0].fault
    assert f"{step['log']['predictions']} predictions with digest {'0' * 16}" in found[0].fault


def test_updates_in_the_log_that_differ_from_the_replayed_step_are_a_fault(pipeline: Pipeline) -> None:
    records = pipeline.records(TOPICS.updates)
    last = {update.partition: number for number, record in enumerate(records) if (update := decode_update(record))}
    value = records[last[0]].value or b""
    x = np.float64(0.5).tobytes()  # a propensity that differs from the decision's
    update = decode_update(records[last[0]])
    assert update is not None
    was = update.entries.propensities[:1].tobytes()
    broken = with_other(pipeline, TOPICS.updates, {last[0]: value.replace(was, x, 1)})
    found = replays(broken)
    assert "the step produces different updates" in found[0].fault


def test_model_of_any_version_can_be_exported_from_the_log(pipeline: Pipeline, tmp_path: Path) -> None:
    whole = export_model(pipeline.broker, TOPICS, 0)
    step = pipeline.journal(1)[30]
    then = export_model(pipeline.broker, TOPICS, 1, number=step.number)
    assert then.meta["position"]["version"] == step.updates
    assert export_model(pipeline.broker, TOPICS, 0, version=step.updates).meta["digest"] == then.meta["digest"]

    replica = restored_replica(pipeline.settings)
    for record in pipeline.records(TOPICS.updates):
        if replica.version == step.updates:
            assert state_digest([replica.learner.state()]) == then.meta["digest"]
            at = export_model(pipeline.broker, TOPICS, 0, at_ms=record.append_ms - 1)
            assert at.meta["position"]["version"] <= step.updates
        replica.read([record])
    assert (whole.meta["position"]["version"], whole.meta["digest"]) == (
        replica.version, state_digest([replica.learner.state()])
    )  # fmt: skip

    write_model(tmp_path / "now.npz", whole)
    read = read_model(tmp_path / "now.npz")
    assert read.moment == f"at version {replica.version:,} of the shared model"


def test_export_of_a_missing_model_version_is_rejected(pipeline: Pipeline) -> None:
    with pytest.raises(ModelError):
        export_model(pipeline.broker, TOPICS, 0, version=10_000)
    with pytest.raises(ModelError):
        export_model(pipeline.broker, TOPICS, 0, number=10_000)
    with pytest.raises(TooEarlyError):
        export_model(pipeline.broker, TOPICS, 0, at_ms=1)
    own = Pipeline(replace(pipeline.settings, model="own"))
    own.run((own.replay(small_synsep(), 5),), own.learner())
    with pytest.raises(ModelError):
        export_model(own.broker, Topics.with_prefix("test."), 0, version=3)
