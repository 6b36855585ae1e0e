"""A learner does not continue if an input has other records than those that it has applied."""

import pytest

from stream.recovery.inputs import LOST_RECORDS, record_digest
from stream.recovery.steps import UnrecoverableError
from stream.task.settings import Sharing
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task

MODELS: tuple[Sharing, ...] = ("own", "shared")
each_model = pytest.mark.parametrize("model", MODELS)
each_input = pytest.mark.parametrize("topic", [TOPICS.contexts, TOPICS.feedback])


def send(pipeline: Pipeline, name: str, count: int) -> None:
    for number in range(count):
        pipeline.context(f"{name}-{number}", number % 4)
        pipeline.answer(f"{name}-{number}", number % 2)


def rewrite(pipeline: Pipeline, topic: str, end: int, count: int) -> None:
    """Truncate an input, and write other records. The other input stays."""
    pipeline.wait(1)
    pipeline.broker.truncate(TopicPartition(topic, 0), end)
    for number in range(count):
        if topic == TOPICS.contexts:
            pipeline.context(f"other-{number}", number % 4)
        else:
            pipeline.answer(f"other-{number}", number % 2)


def stopped(model: Sharing = "own", snapshot_interval_ms: int = 0) -> Pipeline:
    """Return a pipeline whose learner has applied a few records, and has stopped. A snapshot is the last step."""
    pipeline = Pipeline(small_task("late-ucb", model=model))
    learner = pipeline.learner(snapshot_interval_ms=snapshot_interval_ms)
    for name in ("first", "second"):
        send(pipeline, name, 5)
        run_until_idle(learner)
        pipeline.wait(100)
    run_until_idle(learner)
    learner.close()
    return pipeline


def assert_rejected(pipeline: Pipeline, topic: str) -> None:
    before = pipeline.ends()
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert raised.value.place == f"{topic}/0"
    assert LOST_RECORDS in str(raised.value)
    assert pipeline.ends() == before


@each_model
@each_input
@pytest.mark.parametrize("count", [0, 3, 40])
def test_recovery_is_rejected_if_an_input_was_truncated_and_written_again(
    model: Sharing, topic: str, count: int
) -> None:
    pipeline = stopped(model)
    rewrite(pipeline, topic, 4, count)
    assert_rejected(pipeline, topic)


@each_input
def test_recovery_is_rejected_even_if_the_snapshot_is_the_last_step(topic: str) -> None:
    pipeline = stopped(snapshot_interval_ms=10)
    assert pipeline.generations()[-1] == pipeline.journal()[-1].number
    rewrite(pipeline, topic, 4, 40)
    assert_rejected(pipeline, topic)


@each_input
def test_parked_task_is_not_resumed_if_an_input_was_written_again(topic: str) -> None:
    pipeline = Pipeline(small_task())
    first = pipeline.learner()
    send(pipeline, "first", 10)
    run_until_idle(first)
    parked = first.park()
    first.close()
    rewrite(pipeline, topic, 4, 40)
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner(parked=parked))
    assert raised.value.place == f"{topic}/0"


@each_input
def test_running_learner_notices_that_an_input_was_written_again(topic: str) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    send(pipeline, "first", 10)
    run_until_idle(learner)
    learner.check_inputs()
    rewrite(pipeline, topic, 4, 40)
    with pytest.raises(UnrecoverableError) as raised:
        learner.check_inputs()
    assert raised.value.place == f"{topic}/0"


@each_model
def test_loss_of_unread_records_does_not_prevent_a_recovery(model: Sharing) -> None:
    pipeline = stopped(model)
    tp = TopicPartition(TOPICS.contexts, 0)
    end = pipeline.broker.ends([tp])[tp].stable
    send(pipeline, "lost", 3)
    pipeline.broker.truncate(tp, end)
    send(pipeline, "third", 2)
    run_until_idle(pipeline.learner())
    assert [found["id"] for found in pipeline.values(TOPICS.predictions)][-2:] == ["third-0", "third-1"]


def test_deleted_record_is_not_compared() -> None:
    pipeline = stopped(snapshot_interval_ms=10)
    last = pipeline.journal()[-1]
    for topic, (_, end) in ((TOPICS.contexts, last.contexts), (TOPICS.feedback, last.feedback)):
        pipeline.broker.delete_records(TopicPartition(topic, 0), end)
    send(pipeline, "third", 2)
    run_until_idle(pipeline.learner())
    assert len(pipeline.values(TOPICS.predictions)) == 12


def test_digest_depends_on_every_part_of_a_record() -> None:
    record = Record("topic", 0, 5, 1_000, b"key", b"value", (("a", b"b"),))
    others = [
        record._replace(append_ms=1_001),
        record._replace(key=b"ke", value=b"yvalue"),
        record._replace(key=None),
        record._replace(key=b""),
        record._replace(value=None),
        record._replace(headers=()),
        record._replace(headers=(("ab", b""),)),
    ]
    assert len({record_digest(each) for each in (record, *others)}) == len(others) + 1
