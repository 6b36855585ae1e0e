"""A producer with a repeated commit gets a new epoch. A step that was committed in part is detected."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from unittest.mock import patch

import pytest

from stream.kafka.port import BrokerUnavailableError
from stream.kafka.producers import TransactionProducer
from stream.recovery.recover import rebuild, recover
from stream.recovery.steps import JournalError, UnrecoverableError
from stream.recovery.torn import REMEDY
from stream.task.settings import Sharing
from stream.wire.codec import step_headers
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, CrashError, Pipeline, run_until_idle, small_task

LEARNER = "onebit-learner-learner-1"  # the transactional id
MODELS: tuple[Sharing, ...] = ("own", "shared")
each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture
def same_epoch() -> Iterator[None]:
    """Producers that keep their epoch after a repeated commit, as Kafka's clients do."""
    with patch.object(TransactionProducer, "_renew", lambda self: None):
        yield


def pipeline_with_a_step(model: Sharing) -> Pipeline:
    pipeline = Pipeline(small_task("late-ucb", model=model))
    learner = pipeline.learner()
    pipeline.context("first")
    pipeline.answer("first", 1)
    run_until_idle(learner)
    learner.close()
    return pipeline


def tear(pipeline: Pipeline, stage: int, *, commits: bool) -> None:
    """Repeat the commit of one step, and deliver the first request at a stage of the next step's commit.

    If the request commits, the learner then dies. If it aborts, as the end of an aborted transaction would, the learner
    continues.
    """
    repeated: list[Callable[[bool], None]] = []

    def late(number: int) -> None:
        if number == 6:
            repeated.append(pipeline.broker.repeat_end(LEARNER))
        elif number == stage and is_armed:
            repeated[-1](commits)
            if commits:
                raise CrashError

    is_armed = False
    learner = pipeline.learner(crash_point=late)
    pipeline.context("second")
    run_until_idle(learner)
    is_armed = True
    pipeline.context("third", 1)
    with suppress(CrashError):
        run_until_idle(learner)


@each_model
@pytest.mark.parametrize("stage", [2, 3, 4, 5])
def test_late_commit_of_a_repeated_request_leaves_the_next_step_whole(model: Sharing, stage: int) -> None:
    pipeline = pipeline_with_a_step(model)
    tear(pipeline, stage, commits=True)
    run_until_idle(pipeline.learner())
    assert [found["id"] for found in pipeline.values(TOPICS.predictions)] == ["first", "second", "third"]
    assert pipeline.audits()[0].ok


@each_model
def test_recovery_is_rejected_if_only_the_outputs_of_a_step_were_committed(model: Sharing, same_epoch: None) -> None:
    pipeline = pipeline_with_a_step(model)
    tear(pipeline, 2, commits=True)
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert REMEDY in str(raised.value)
    assert any(REMEDY in fault for fault in pipeline.audits()[0].faults)


@each_model
def test_recovery_is_rejected_if_the_outputs_of_the_last_step_were_aborted(model: Sharing, same_epoch: None) -> None:
    pipeline = pipeline_with_a_step(model)
    tear(pipeline, 2, commits=False)
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert REMEDY in str(raised.value)
    assert any(REMEDY in fault for fault in pipeline.audits()[0].faults)


def test_recovery_is_rejected_if_only_the_updates_of_a_step_were_committed() -> None:
    pipeline = pipeline_with_a_step("shared")
    record = pipeline.records(TOPICS.updates)[-1]
    other = pipeline_with_a_step("shared")
    pipeline.context("second")
    other.context("second")
    run_until_idle(other.learner())
    later = other.records(TOPICS.updates)[-1]
    assert later.offset > record.offset
    pipeline.broker.producer().send(TOPICS.updates, 0, later.key, later.value, later.headers)
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert REMEDY in str(raised.value)


def test_model_of_a_torn_pipeline_can_be_rebuilt(same_epoch: None) -> None:
    pipeline = pipeline_with_a_step("own")
    tear(pipeline, 2, commits=True)
    with pytest.raises(JournalError):
        recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert rebuild(pipeline.broker, TOPICS, 0).step.number > 0


def test_parked_task_is_not_resumed_if_its_uncommitted_step_was_committed_in_part() -> None:
    def lose(number: int) -> None:
        if number == 5 and pipeline.values(TOPICS.predictions):
            raise BrokerUnavailableError("no answer")

    pipeline = Pipeline(small_task())
    first = pipeline.learner(crash_point=lose)
    pipeline.context("first")
    run_until_idle(first)
    pipeline.context("second", 1)
    with pytest.raises(BrokerUnavailableError):
        run_until_idle(first)
    parked = first.park()
    first.close()
    sent = pipeline.records(TOPICS.predictions)[-1]
    step = parked.partitions[0].newest_step.number
    pipeline.broker.producer().send(TOPICS.predictions, 0, sent.key, sent.value, step_headers(step))
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner(parked=parked))
    assert raised.value.place == "test.predictions/0"


def test_foreign_record_with_a_later_step_number_does_not_stop_a_recovery() -> None:
    pipeline = pipeline_with_a_step("own")
    for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):
        pipeline.broker.producer().send(topic, 0, None, b"{}", step_headers(1_000))
    pipeline.context("second")
    run_until_idle(pipeline.learner())
    assert [found.get("id") for found in pipeline.values(TOPICS.predictions)] == ["first", None, "second"]


def test_recovery_does_not_depend_on_deleted_outputs() -> None:
    pipeline = pipeline_with_a_step("own")
    for topic in (TOPICS.predictions, TOPICS.examples):
        tp = TopicPartition(topic, 0)
        pipeline.broker.delete_records(tp, pipeline.broker.ends([tp])[tp].stable)
    pipeline.context("second")
    run_until_idle(pipeline.learner())
    assert [found["id"] for found in pipeline.values(TOPICS.predictions)] == ["second"]
