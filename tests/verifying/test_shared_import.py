"""Import of a shared model. The imported model becomes version 0 for all tasks."""

from dataclasses import replace
from typing import Any

import pytest

from stream.kafka.reading import read_partition
from stream.recovery.chunks import read_snapshots
from stream.recovery.model_files import Model, ModelError
from stream.recovery.recover import pipeline_settings, recover
from stream.recovery.state import state_digest
from stream.recovery.steps import JournalError, UnrecoverableError, read_journal
from stream.verifying.models import export_model, import_model, import_shared_model
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, plan, run_until_idle, small_synsep, synsep_task

PARTITIONS = 3
TASK = synsep_task("late-ucb", parameters={"project": 8}, model="shared")


def continue_run(pipeline: Pipeline, start: int, events: int, **options: Any) -> None:
    """Run learners a and b on events from the data set, with feedback."""
    dataset = small_synsep()
    learners = [pipeline.learner(name, **{"snapshot_interval_ms": 0, **options}) for name in "ab"]
    sources = pipeline.replay(dataset, start + events, rate=200, start=start), pipeline.feedback(dataset, plan())
    pipeline.run(sources, *learners)


@pytest.fixture(scope="module")
def model() -> Model:
    """A shared model after 60 events."""
    pipeline = Pipeline(TASK, PARTITIONS)
    continue_run(pipeline, 0, 60)
    return export_model(pipeline.broker, TOPICS, 0)


def imported(model: Model) -> Pipeline:
    pipeline = Pipeline(TASK, PARTITIONS)
    import_shared_model(pipeline.broker, TOPICS, PARTITIONS, model, "import")
    return pipeline


def assert_all_adds_up(pipeline: Pipeline) -> None:
    assert [(one.ok, one.faults) for one in pipeline.audits()] == [(True, ())] * PARTITIONS
    assert audit_log(pipeline.broker, TOPICS, PARTITIONS).faults == ()
    found = [replay_journal(pipeline.broker, TOPICS, partition) for partition in range(PARTITIONS)]
    assert [(one.fault, one.ok) for one in found] == [("", True)] * PARTITIONS
    assert {one.state for one in found} == {export_model(pipeline.broker, TOPICS, 0).meta["digest"]}


@pytest.mark.parametrize("interval_ms", [0, 40])
def test_all_tasks_begin_with_the_imported_model_and_record_its_name(model: Model, interval_ms: int) -> None:
    pipeline = imported(model)
    for start in (60, 90):
        continue_run(pipeline, start, 30, snapshot_interval_ms=interval_ms)
    stored = read_snapshots(pipeline.broker, TOPICS, None).imported
    name = stored and stored.whole
    for partition in range(PARTITIONS):
        _, step = next(read_journal(pipeline.broker, TopicPartition(TOPICS.journal, partition)))
        assert step.settings is not None
        assert (step.imported, step.settings.model) == (name, "shared")
        first = next(step for step in pipeline.journal(partition) if step.replica)
        if first.updates == 0:
            assert first.replica is not None
            assert first.replica.sha256 == model.meta["digest"]
    assert_all_adds_up(pipeline)
    bare = Pipeline(TASK, PARTITIONS)
    continue_run(bare, 60, 30)
    decided = [[p["scores"] for p in one.values(TOPICS.predictions)][:3] for one in (pipeline, bare)]
    assert decided[0] != decided[1]


def test_imported_shared_model_determines_settings(model: Model) -> None:
    stored = pipeline_settings(imported(model).broker, TOPICS, PARTITIONS).settings
    assert (stored["learner"], stored["model"], stored["parameters.project"]) == ("late-ucb", "shared", 8)
    other = imported(model)
    with pytest.raises(JournalError):
        run_until_idle(other.learner(settings=replace(TASK, parameters={"project": 4})))


def test_idle_learners_use_a_shared_model_that_is_imported_before_their_first_events(model: Model) -> None:
    pipeline = Pipeline(TASK, PARTITIONS)
    waiting = [pipeline.learner(name) for name in "ab"]
    run_until_idle(*waiting)
    import_shared_model(pipeline.broker, TOPICS, PARTITIONS, model, "import")
    dataset = small_synsep()
    pipeline.run((pipeline.replay(dataset, 90, rate=200, start=60), pipeline.feedback(dataset, plan())), *waiting)
    assert_all_adds_up(pipeline)
    reported = [
        step.replica for n in range(PARTITIONS) for step in pipeline.journal(n) if step.replica and not step.updates
    ]
    assert {one.sha256 for one in reported} == {model.meta["digest"]}


def test_tasks_wait_for_a_shared_import_in_progress(model: Model) -> None:
    pipeline = Pipeline(TASK, PARTITIONS)
    producer = pipeline.broker.transactional_producer("import")
    producer.begin()
    producer.send(TOPICS.snapshots, 0, b"0/model/import/0", b"")
    learner = pipeline.learner()
    learner.step(0)
    assert learner.tasks == {}
    producer.abort()
    learner.step(0)
    assert sorted(learner.tasks) == list(range(PARTITIONS))


def test_shared_model_can_be_imported_only_before_the_first_step_of_any_task(model: Model) -> None:
    pipeline = imported(model)
    with pytest.raises(ModelError):
        import_shared_model(pipeline.broker, TOPICS, PARTITIONS, model, "import")
    with pytest.raises(ModelError):
        import_model(pipeline.broker, TOPICS, 2, model, "import")
    own = Pipeline(TASK, PARTITIONS)
    import_model(own.broker, TOPICS, 2, model, "import")
    with pytest.raises(ModelError):
        import_shared_model(own.broker, TOPICS, PARTITIONS, model, "import")
    continue_run(pipeline, 60, 5)
    with pytest.raises(ModelError):
        import_shared_model(pipeline.broker, TOPICS, PARTITIONS, model, "import")


def test_recovery_of_a_shared_model_requires_the_imported_model(model: Model) -> None:
    pipeline = imported(model)
    continue_run(pipeline, 60, 20)
    chunks = list(read_partition(pipeline.broker, TopicPartition(TOPICS.snapshots, 0)))
    pipeline.broker.delete_topics([TOPICS.snapshots])
    pipeline.broker.create_topics(TOPICS.specs(PARTITIONS))
    with pytest.raises(UnrecoverableError) as raised:
        recover(pipeline.broker, TOPICS, 1, TASK)
    assert raised.value.place == "test.journal/1"
    for chunk in chunks:
        pipeline.broker.producer().send(TOPICS.snapshots, 0, chunk.key, chunk.value, chunk.headers)
    assert recover(pipeline.broker, TOPICS, 1, TASK).step.number > 0


def test_digest_of_version_0_equals_the_imported_file(model: Model) -> None:
    pipeline = imported(model)
    learner = pipeline.learner()
    run_until_idle(learner)
    assert learner.replica is not None
    assert state_digest([learner.replica.learner.state()]) == model.meta["digest"]
    assert learner.replica.updates == model.meta["updates"]
