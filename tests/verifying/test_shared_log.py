"""The audit compares a shared model's log with the journals. It detects missing records and unequal replicas."""

import pytest

from stream.kafka.embedded import EmbeddedBroker
from stream.verifying.shared_log import LogFinding, audit_log, shares_model
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, Edit, Pipeline, edited_copy, plan, small_synsep, synsep_task
from tests.verifying.tampering import change

PARTITIONS = 3


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """A pipeline with three partitions and two learners. Each learner reports its replica every 100 ms."""
    pipeline = Pipeline(synsep_task("late-ucb", parameters={"project": 8}, model="shared"), PARTITIONS)
    dataset = small_synsep()
    learners = [pipeline.learner(name, snapshot_interval_ms=100) for name in ("a", "b")]
    sources = pipeline.replay(dataset, 60, rate=200), pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1))
    pipeline.run(sources, *learners)
    for learner in (*learners, *learners):
        learner.finish(1_000)
    return pipeline


def copied(pipeline: Pipeline, topic: str, edit: Edit) -> LogFinding:
    """Copy the topics, edit the records in partition 0 of a topic, and audit the copy's log."""
    return audit_log(edited_copy(pipeline, {TopicPartition(topic, 0): edit}).broker, TOPICS, PARTITIONS)


def test_log_and_journals_of_a_run_agree(pipeline: Pipeline) -> None:
    found = audit_log(pipeline.broker, TOPICS, PARTITIONS)
    assert (found.faults, found.warnings) == ((), ())
    entries = [step.log.entries for number in range(PARTITIONS) for step in pipeline.journal(number) if step.log]
    assert found.version == sum(entries)
    assert [(replica.instance, replica.version) for replica in found.replicas] == [
        ("a", found.version), ("b", found.version)
    ]  # fmt: skip
    assert len({replica.sha256 for replica in found.replicas}) == 1
    assert found.behind is not None
    assert 0 < found.behind.max < found.version
    assert shares_model(pipeline.broker, TOPICS, PARTITIONS)


def test_first_step_of_every_task_names_the_instance_of_the_learner(pipeline: Pipeline) -> None:
    firsts = [pipeline.journal(partition)[0] for partition in range(PARTITIONS)]
    assert sorted(step.replica.instance for step in firsts if step.replica) == ["a", "a", "b"]
    reported = [step.replica for number in range(PARTITIONS) for step in pipeline.journal(number) if step.replica]
    assert PARTITIONS + 2 < len(reported) < sum(len(pipeline.journal(number)) for number in range(PARTITIONS)) / 2


def test_missing_log_record_is_reported(pipeline: Pipeline) -> None:
    middle = copied(pipeline, TOPICS.updates, lambda records: records[:5] + records[6:])
    assert any("the previous step in the log" in fault for fault in middle.faults)
    end = copied(pipeline, TOPICS.updates, lambda records: records[:-1])
    assert len(end.faults) == 1
    assert "but the log ends before that step" in end.faults[0]


def test_duplicate_log_record_is_ignored_and_foreign_log_record_is_reported(pipeline: Pipeline) -> None:
    def insert(records: list[Record]) -> list[Record]:
        return [*records[:5], records[4], records[4]._replace(value=b"hello", headers=()), *records[5:]]

    found = copied(pipeline, TOPICS.updates, insert)
    assert found.faults == ()
    assert found.version == audit_log(pipeline.broker, TOPICS, PARTITIONS).version
    assert [warning.split(" is not")[0] for warning in found.warnings] == ["test.updates offset 6"]


def test_replicas_that_differ_at_the_same_version_are_a_fault(pipeline: Pipeline) -> None:
    values = pipeline.values(TOPICS.journal)
    number, step = [(n, value) for n, value in enumerate(values) if "replica" in value][-1]
    step["replica"]["sha256"] = "0" * 64
    found = copied(pipeline, TOPICS.journal, change(number, **step))
    assert any("differ" in fault and "0" * 16 in fault for fault in found.faults)
    assert not found.ok


def test_step_whose_entry_count_differs_from_the_log_is_reported(pipeline: Pipeline) -> None:
    values = pipeline.values(TOPICS.journal)
    number, step = next((n, value) for n, value in enumerate(values) if value.get("log", {}).get("entries"))
    step["log"]["entries"] += 1
    found = copied(pipeline, TOPICS.journal, change(number, **step))
    assert found.faults == (
        f"step {step['number']} of partition 0 wrote {step['log']['entries']} entries according to its journal; "
        f"test.updates has {step['log']['entries'] - 1}",
    )


def test_pipeline_with_own_models_has_no_shared_log() -> None:
    pipeline = Pipeline(synsep_task("late-ucb"), 1)
    assert not shares_model(pipeline.broker, TOPICS, 1)
    pipeline.run((pipeline.replay(small_synsep(), 5),), pipeline.learner())
    assert not shares_model(pipeline.broker, TOPICS, 1)
    assert isinstance(pipeline.broker, EmbeddedBroker)
