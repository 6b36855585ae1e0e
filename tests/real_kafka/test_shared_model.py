"""Three learner processes share a model across several partitions on a real Kafka broker. One learner is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.verifying.shared_log import audit_log
from tests.processes import Pipeline

EVENTS = 1_500
STREAM = {
    "data": "synsep",
    "learner": "late-ucb",
    "events": EVENTS,
    "rate": 400,
    "delay": "exponential:200ms",
    "window": "3s",
    "loss": 0.05,
    "seed": 3,
    "partitions": 3,
    "snapshot_interval": "1s",
    "session_timeout": "30s",  # a killed learner's successor replaces it at once; a slow machine does not end sessions
}


@pytest.fixture
def shared(kafka: LocalKafka, prefix: str, tmp_path: Path, client: str) -> Iterator[Pipeline]:
    """A pipeline without topics on this test run's Kafka broker."""
    made = Pipeline(kafka.bootstrap, prefix, tmp_path, **STREAM, client=client)
    yield made
    made.close()


def test_three_learners_share_one_model_although_one_is_killed(shared: Pipeline) -> None:
    assert shared.start("topics", "create").wait() == 0
    learners = {name: shared.start("learn", "--instance", name) for name in "abc"}
    with shared.watch() as watch:
        watch.wait_until_assigned("abc")
        assert f"3 partitions share a model (log: {shared.topics.updates})\n" in learners["a"].said()
        shared.start("feedback")
        shared.start("replay")
        watch.wait_until_decided(EVENTS // 3)
        learners["b"].kill()
        learners["b"] = shared.start("learn", "--instance", "b")
        shared.assert_every_context_is_decided_and_settled_once(EVENTS)
        wait_for(
            lambda: len({replica.version for replica in audit_log(watch.broker, shared.topics, 3).replicas}) == 1,
            "all learners have reported the model at the same version",
        )
    found = shared.verify("--replay")
    assert (found["ok"], found["model"]) == (True, "shared"), found
    assert [replica["instance"] for replica in found["replicas"]] == ["learner-a", "learner-b", "learner-c"]
    assert {replica["version"] for replica in found["replicas"]} == {found["model_version"]}
    assert len({replica["sha256"] for replica in found["replicas"]}) == 1
    assert found["model_version"] > EVENTS
    assert found["model_log"]["faults"] == []
    assert [one["version"] for one in found["replay"]] == [found["model_version"]] * 3
    assert {one["state"] for one in found["replay"]} == {found["replicas"][0]["sha256"]}

    learners["a"].stop()
    other = shared.start("learn", "--model", "own", "--instance", "a")
    assert other.wait() == 2
    assert "has model = 'shared'; got 'own': " in other.said()
