"""`onebit verify` on an embedded pipeline's topics."""

from collections.abc import Callable

import orjson
import pytest

from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.wire.records import TopicPartition
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


@pytest.fixture
def pipeline(on_broker: Callable[[Broker], None]) -> Pipeline:
    """A pipeline with three pending decisions."""
    made = Pipeline(small_task())
    for name in "abc":
        made.context(name)
    run_until_idle(made.learner())
    on_broker(made.broker)
    return made


def test_error_is_unknown_without_feedback(onebit: Onebit, pipeline: Pipeline) -> None:
    ended = onebit("verify", "--json")
    found = orjson.loads(ended.out)
    assert (ended.code, found["matched"], found["error"], found["error_last_fifth"]) == (ExitCode.OK, 0, None, None)
    assert found["latency"] == {"median_ms": 0, "p90_ms": 0, "p99_ms": 0, "max_ms": 0}


def test_deleted_records_are_reported_instead_of_wrong_counts(onebit: Onebit, pipeline: Pipeline) -> None:
    for name in "abc":
        pipeline.answer(name, 1)
    run_until_idle(pipeline.learner())
    pipeline.broker.delete_records(TopicPartition(TOPICS.feedback, 0), 2)
    ended = onebit("verify")
    assert ended.code == ExitCode.USAGE
    assert f"{TOPICS.feedback}/0 begins at offset 2" in ended.out
    assert "does not add up" not in ended.out
    (partition,) = orjson.loads(onebit("verify", "--json").out)["partitions"]
    assert partition["deleted"] != []
