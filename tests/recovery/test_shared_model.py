"""A model that several tasks share: decisions, crashes and recovery.

The reference implementation in `tests.oracles.shared_model` recomputes every prediction in a run from the log, the
prediction's model version and the task's earlier decisions.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.shared_model import SharedModel as Process
from onebit.simulation.faulty_broker import FaultyBroker
from stream.learners import ParameterError, create
from stream.randomness.draws import Draws, Purpose
from stream.recovery.chunks import read_snapshots
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.recover import recover
from stream.recovery.state import state_digest, task_digest
from stream.recovery.steps import JournalError
from stream.settings.task_fields import JoinSettings
from stream.shared.replica import Replica, unchanged
from stream.task.settings import TaskSettings
from stream.task.stored_settings import SettingsDifferError
from stream.task.task import Task
from stream.verifying.audit import audit_partition
from stream.wire.codec import decode_context, decode_prediction, step_of
from stream.wire.control import Replaced
from stream.wire.records import Decision, Features, TopicPartition
from stream.wire.topics import partition_for
from stream.wire.updates import CORRECTED, DECIDED, HEADERS, SETTLED, Entry, Update, decode_update, encode_updates
from tests.oracles.shared_model import LogEntry, SharedModel
from tests.pipeline import (
    TOPICS,
    CrashingLearner,
    Pipeline,
    plan,
    run_until_idle,
    small_synsep,
    small_task,
    synsep_task,
)

EVENTS = 60
KINDS = {DECIDED: "decided", SETTLED: "settled", CORRECTED: "corrected"}
LEARNERS = {
    "late-ucb": synsep_task("late-ucb", parameters={"project": 8}, model="shared"),
    "stack-igw": synsep_task("stack-igw", model="shared"),
    "igw-logistic, scaled": synsep_task("igw-logistic", model="shared", scale="standard"),
    "late-ucb, floor": synsep_task("late-ucb", parameters={"project": 8}, model="shared", floor=0.2),
    "soba-diag, corrected": synsep_task(model="shared", on_expiry="negative", late="correct"),
}
each = pytest.mark.parametrize("learner", LEARNERS)


def replicas(*learners: LearnerProgram) -> list[tuple[int, str]]:
    """Return the version and digest of each learner's replica after it has read the whole log."""
    found = []
    for learner in learners:
        learner.read_log()
        assert learner.replica is not None
        found.append((learner.replica.version, state_digest([learner.replica.learner.state()])))
    return found


def log_of(pipeline: Pipeline) -> list[Update]:
    return [update for record in pipeline.records(TOPICS.updates) if (update := decode_update(record)) is not None]


def entries_of(update: Update, K: int) -> list[LogEntry]:
    entries, made, start = update.entries, [], 0
    for place, size in enumerate(entries.sizes.tolist()):
        x = Features(entries.indices[start : start + size], entries.values[start : start + size])
        row = entries.scores[place].copy()
        decision = Decision(
            int(entries.actions[place]),
            int(entries.greedy[place]),
            float(entries.propensities[place]),
            row[:K],
            row[K:],
        )
        kind = KINDS[int(entries.kinds[place])]
        bits = int(entries.rewards[place]), int(entries.assumed[place])
        label = int(entries.labels[place])
        made.append(LogEntry(update.partition, kind, x, decision, *bits, float(entries.v[place]), label))
        start += size
    return made


def differing_predictions(pipeline: Pipeline) -> list[str]:
    """Return descriptions of the predictions that differ from those of the reference implementation."""
    settings = pipeline.settings.resolved()
    oracle, steps = SharedModel(settings.make_learner), list[tuple[int, int]]()
    for update in log_of(pipeline):
        made = entries_of(update, settings.n_classes)
        oracle.log += made
        steps += [(update.partition, update.step)] * len(made)
    draw = Draws(settings.seed, Purpose.ACTION)
    wrong = []
    for partition in range(pipeline.partitions):
        contexts = {record.offset: record for record in pipeline.records(TOPICS.contexts, partition)}
        before: dict[int, int] = {}  # for each step, the number of earlier predictions
        for record in pipeline.records(TOPICS.predictions, partition):
            prediction, offset = decode_prediction(record)
            step = step_of(record) or 0
            x = decode_context(contexts[offset], settings.n_features).x
            before[step] = before.get(step, -1) + 1
            # Of the log entries after the model version, use only earlier decisions of the same task.
            n, own, seen = prediction.model_version, list[LogEntry](), 0
            for entry, (task, number) in zip(oracle.log[n:], steps[n:], strict=True):
                if task == partition and entry.kind == "decided" and number <= step:
                    seen += number == step
                    if seen <= before[step]:
                        own.append(entry)
            model = oracle.model(n)
            for entry in own:
                model.observe_early(entry.x, entry.decision)
            again = model.predict(x, draw(prediction.id))
            if again[:3] != prediction.decision[:3] or not np.array_equal(again.scores, prediction.decision.scores):
                wrong.append(f"{prediction.id} of partition {partition}, step {step}, version {n}")
    return wrong


def whole_run(
    pipeline: Pipeline, crashes: tuple[set[tuple[int, int]], ...] = (set(), set()), **options: Any
) -> list[CrashingLearner]:
    """Replay events with late, lost and duplicate feedback. Two learners die at the given points."""
    dataset = small_synsep()
    learners = [
        CrashingLearner(lambda crash, name=f"learner-{n}": pipeline.learner(name, crash, **options), points)  # type: ignore[misc]
        for n, points in enumerate(crashes)
    ]
    late = pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1, duplicates=0.1))
    pipeline.run((pipeline.replay(dataset, EVENTS, rate=200), late), *learners)
    return learners


@each
def test_two_processes_share_one_reproducible_model(learner: str) -> None:
    pipeline = Pipeline(LEARNERS[learner], partitions=3)
    one, other = whole_run(pipeline)
    assert replicas(one.program)[0][0] > 50
    assert replicas(one.program) == replicas(other.program)
    assert {len(one.program.tasks), len(other.program.tasks)} == {1, 2}
    assert differing_predictions(pipeline) == []
    assert all(finding.ok for finding in pipeline.audits())
    assert pipeline.ledger().expired > 0


@pytest.mark.parametrize("number", COMMIT_STEPS)
def test_death_after_a_commit_step_does_not_affect_the_model(number: int) -> None:
    pipeline = Pipeline(LEARNERS["late-ucb"], partitions=2)
    one, other = whole_run(pipeline, ({(5, number), (30, number)}, {(9, number)}))
    assert one.crashed + other.crashed == 3
    assert replicas(one.program) == replicas(other.program)
    assert differing_predictions(pipeline) == []
    assert all(finding.ok for finding in pipeline.audits())
    for partition in range(2):
        recovered = recover(pipeline.broker, TOPICS, partition, pipeline.settings)
        running = (one.program.tasks | other.program.tasks)[partition]
        assert task_digest(recovered.task) == task_digest(running)


@each
def test_task_continues_from_snapshot_and_own_predictions(learner: str) -> None:
    pipeline = Pipeline(LEARNERS[learner], partitions=2)
    one, other = whole_run(pipeline, ({(20, 6)}, {(25, 3), (40, 6)}), snapshot_interval_ms=50)
    assert len(pipeline.records(TOPICS.snapshots, 0)) > 1
    assert differing_predictions(pipeline) == []
    assert replicas(one.program) == replicas(other.program)


def test_pending_decisions_are_recovered_bit_for_bit_with_logged_values() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    for name in "abc":
        pipeline.context(name)
    learner = pipeline.learner()
    run_until_idle(learner)
    (task,) = learner.tasks.values()
    recovered = recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert len(task.join.pending) == 3
    assert task_digest(recovered.task) == task_digest(task)
    assert all(p.decision.logged.size for p in recovered.task.join.pending.values())


def test_id_decided_twice_in_a_step_is_recovered_exactly() -> None:
    limits = JoinSettings(window_ms=1_000, orphan_window_ms=500, retain_ms=10_000, retained_max=1)
    pipeline = Pipeline(small_task("late-ucb", model="shared", join=limits))
    learner = pipeline.learner()
    run_until_idle(learner)
    for event in ("a", "b"):
        pipeline.context(event)
        pipeline.clock.advance_to(pipeline.now_ms() + 1)
        pipeline.answer(event, 1)
        pipeline.clock.advance_to(pipeline.now_ms() + 1)
    pipeline.context("a", 1)
    run_until_idle(learner)
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)] == ["a", "b", "a"]
    assert len({step_of(record) for record in pipeline.records(TOPICS.predictions)}) == 1
    recovered = recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert task_digest(recovered.task) == task_digest(learner.tasks[0])
    assert differing_predictions(pipeline) == []


def decided(model: str = "shared", **changes: Any) -> Pipeline:
    """Return a pipeline with two decisions in one step."""
    pipeline = Pipeline(small_task("late-ucb", model=model, **changes))
    pipeline.context("a")
    pipeline.context("b", 1, 3)
    run_until_idle(pipeline.learner())
    return pipeline


def test_recovery_waits_for_open_transactions_before_its_predictions() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    running = pipeline.learner()
    run_until_idle(running)
    hanging = pipeline.broker.transactional_producer("another")
    hanging.begin()
    hanging.send(TOPICS.predictions, 0, None, b"{}", ())
    hanging.flush()
    pipeline.context("a")
    run_until_idle(running)
    left = task_digest(running.tasks[0])
    running.close()
    messages: list[str] = []
    learner = pipeline.learner(announce=messages.append)
    run_until_idle(learner)
    assert learner.tasks == {}
    assert ["or from another program in its predictions" in line for line in messages] == [True]
    hanging.abort()
    assert task_digest(recover(pipeline.broker, TOPICS, 0, pipeline.settings).task) == left
    run_until_idle(learner)
    assert list(learner.tasks) == [0]


def test_task_never_continues_below_the_version_of_its_last_step() -> None:
    pipeline = Pipeline(small_task("banditron", parameters={"gamma": 0.4}, model="shared"), partitions=2)
    names = [next(f"e{n}" for n in range(99) if partition_for(b"e%d" % n, 2) == partition) for partition in range(2)]
    lagging = FaultyBroker(pipeline.broker, "learner-1", lambda call: None)
    lagging.lag(TopicPartition(TOPICS.updates, 0), times=1_000)
    learner = pipeline.learner()
    run_until_idle(learner)
    pipeline.context(names[1])
    run_until_idle(learner)
    pipeline.answer(names[1], 1)
    run_until_idle(learner)
    pipeline.context(names[0])
    run_until_idle(learner)
    assert learner.tasks[0].version == 1, "the task used the other task's update and wrote no update itself"
    learner.close()
    behind = pipeline.learner(broker=lagging)
    run_until_idle(behind)
    assert behind.tasks == {}
    lagging.end_lag()
    run_until_idle(behind)
    assert sorted(behind.tasks) == [0, 1]


def test_open_transaction_blocks_log_reading_but_not_decisions() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner()
    run_until_idle(learner)
    (entries,) = encode_updates(9, 1, 0, log_entries(pipeline))
    hanging = pipeline.broker.transactional_producer("another")
    hanging.begin()
    hanging.send(TOPICS.updates, 0, None, entries, HEADERS)
    hanging.flush()
    for name in "abc":
        pipeline.context(name)
        run_until_idle(learner)
    versions = [p["model_version"] for p in pipeline.values(TOPICS.predictions)]
    assert versions == [0, 0, 0]
    assert len({p["action"] for p in pipeline.values(TOPICS.predictions)}) == 3, "the task uses its own decisions"
    hanging.abort()
    assert differing_predictions(pipeline) == []
    assert replicas(learner)[0][0] == 3


def log_entries(pipeline: Pipeline) -> list[Entry]:
    settings = pipeline.settings.resolved()
    learner = create(settings.learner, settings.n_classes, settings.n_features, **settings.parameters)
    x = Features(np.array([0], np.int32), np.ones(1))
    return [Entry(DECIDED, x, learner.predict(x, 0.5))]


@pytest.mark.parametrize(("stored", "given"), [("own", "shared"), ("shared", "own")])
def test_pipeline_keeps_its_kind_of_model(stored: Any, given: Any) -> None:
    pipeline = decided(stored)
    other = replace(pipeline.settings, model=given)
    with pytest.raises(SettingsDifferError) as raised:
        recover(pipeline.broker, TOPICS, 0, other)
    assert raised.value.differences == {"model": Replaced(stored, given)}
    assert recover(pipeline.broker, TOPICS, 0, other, given=("seed",)).task.settings.model == stored


def test_shared_model_rejects_play_logged() -> None:
    with pytest.raises(ParameterError):
        Task(small_task("late-ucb", model="shared", play="logged"), TOPICS.contexts)


def test_context_too_large_for_a_log_record_is_malformed() -> None:
    pipeline = Pipeline(replace(small_task(model="shared"), n_features=80_000))
    run_until_idle(pipeline.learner())
    pipeline.send(TOPICS.contexts, orjson.dumps({"id": "large", "x": {"i": list(range(75_000))}}))
    learner = pipeline.learner()
    run_until_idle(learner)
    (reason,) = [dict(record.headers)["onebit-reason"] for record in pipeline.records(TOPICS.dead_letter)]
    assert reason.startswith(b"x: expected at most 74994 features")
    assert task_digest(recover(pipeline.broker, TOPICS, 0, pipeline.settings).task) == task_digest(learner.tasks[0])
    assert audit_partition(pipeline.broker, TOPICS, 0).ok


def snapshots_of_the_model(pipeline: Pipeline) -> list[str]:
    keys = [(record.key or b"").decode() for record in pipeline.records(TOPICS.snapshots, 0)]
    return [key for key in keys if key.startswith("0/model/")]


@each
def test_replica_started_from_a_snapshot_equals_one_that_read_the_whole_log(learner: str) -> None:
    pipeline = Pipeline(LEARNERS[learner], partitions=2)
    one, other = whole_run(pipeline, ({(30, 5)}, {(21, 2)}), snapshot_interval_ms=40, snapshot_chunk_bytes=20_000)
    assert {key.split("/")[2] for key in snapshots_of_the_model(pipeline)} == {"a", "b"}
    following = shared_model(pipeline, pipeline.settings)
    before = following.replica.version
    assert all(following.read_on())
    assert 0 < before <= following.replica.version
    whole = Replica(pipeline.settings)
    whole.read(pipeline.records(TOPICS.updates))
    assert following.replica.places == whole.places
    assert (following.replica.updates, following.replica.offset) == (whole.updates, whole.offset)
    expected = (whole.version, state_digest([whole.learner.state()]))
    assert (following.replica.version, state_digest([following.replica.learner.state()])) == expected
    assert replicas(one.program, other.program) == [expected] * 2


def test_owner_of_partition_0_writes_model_snapshots_and_keeps_a_complete_one() -> None:
    pipeline = Pipeline(small_task("late-ucb", parameters={"expand": "none"}, model="shared"))
    options: dict[str, Any] = {"snapshot_interval_ms": 1, "snapshot_bytes_max": 1, "snapshot_chunk_bytes": 400}
    versions = []
    for name in ("learner-1", "learner-2", "learner-3"):
        learner = pipeline.learner(name, **options)
        for event in range(4):
            pipeline.context(f"{name}-{event}")
            pipeline.clock.advance_to(pipeline.now_ms() + 5)
            for _ in range(60 if event < 3 else 3):  # the last snapshot is incomplete when the next learner starts
                learner.step(0)
        learner.close()
        newest = read_snapshots(pipeline.broker, TOPICS, None).newest
        versions.append(0 if newest is None else newest.number)
    assert 0 < versions[0] < versions[1] < versions[2]


def test_snapshot_of_another_model_is_rejected() -> None:
    pipeline = Pipeline(LEARNERS["late-ucb"], partitions=2)
    whole_run(pipeline, snapshot_interval_ms=40)
    with pytest.raises(JournalError):
        shared_model(pipeline, replace(pipeline.settings, seed=77))


def shared_model(pipeline: Pipeline, settings: TaskSettings) -> Process:
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    return Process(pipeline.broker, TOPICS, settings, newest, settings_after=unchanged, host_ms=pipeline.now_ms)
