"""A learner whose command line omits, contradicts or changes its pipeline's settings, on a real Kafka broker."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.testing.processes import Program
from stream.wire.codec import HEADERS
from tests.processes import Pipeline

INITIAL = (
    "--learner",
    "banditron",
    "--param",
    "gamma=0.25",
    "--n-classes",
    "3",
    "--n-features",
    "4",
    "--window",
    "60s",
)


@pytest.fixture
def pipeline(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka.bootstrap, prefix, tmp_path)
    made.create_topics()
    yield made
    made.close()


def send_contexts(pipeline: Pipeline, *event_ids: str) -> None:
    broker: KafkaBroker = pipeline.broker()
    producer = broker.producer()
    for event_id in event_ids:
        value = json.dumps({"id": event_id, "x": {"i": [0, 2]}}).encode()
        producer.send(pipeline.topics.contexts, 0, event_id.encode(), value, HEADERS)
    producer.close()
    broker.close()


def until(pipeline: Pipeline, program: Program, claim: Callable[[int, int], bool], what: str) -> None:
    """Wait until `claim` is true for the numbers of decisions and expired decisions. Then stop the learner."""
    with pipeline.watch() as watch:
        watch.wait_until(lambda ledger: claim(ledger.decided, ledger.expired), what)
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


def test_restarted_learner_changes_a_setting_only_on_request(pipeline: Pipeline) -> None:
    send_contexts(pipeline, "a", "b")
    until(pipeline, pipeline.start("learn", *INITIAL), lambda decided, _: decided == 2, "two decisions")

    again = pipeline.start("learn")  # the command specifies only the topics
    again.wait_until_it_says("banditron on .*: started")
    send_contexts(pipeline, "c")
    until(pipeline, again, lambda decided, expired: (decided, expired) == (3, 0), "three pending decisions")

    raised = pipeline.start("learn", "--window", "500ms")
    assert raised.wait() == 2
    assert "has window_ms = 60000; got 500" in raised.said()
    assert "--change-settings to change --window" in " ".join(raised.said().split())

    changed = pipeline.start("learn", "--window", "500ms", "--change-settings")
    changed.wait_until_it_says(r"from step \d+ on.* window_ms = 500")
    until(pipeline, changed, lambda _, expired: expired == 3, "all decisions expire under the shorter window")

    last = pipeline.start("learn")
    send_contexts(pipeline, "d")
    until(pipeline, last, lambda _, expired: expired == 4, "a decision made after another restart also expires")
    pipeline.assert_model_equals_replay()
