"""On a real Kafka: decisions after a pause, or behind a foreign transaction, have their whole window before them."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream.brokers.local_kafka import LocalKafka
from stream.brokers.port import Broker, Producer, TransactionalProducer
from stream.testing.processes import Program
from stream.wire.codec import HEADERS
from tests.pipeline import N_CLASSES, N_FEATURES, context_value, feedback_value
from tests.processes import Pipeline, Watch

WINDOW_MS = 5_000
PAUSE_S = 6.0  # longer than the window, shorter than the session
SETTINGS = {
    "n_classes": N_CLASSES, "n_features": N_FEATURES, "learner": "banditron", "on_expiry": "negative",
    "window": f"{WINDOW_MS}ms", "session_timeout": "20s",
}  # fmt: skip


def send_contexts(producer: Producer | TransactionalProducer, pipeline: Pipeline, *event_ids: str) -> None:
    for event_id in event_ids:
        producer.send(pipeline.topics.contexts, 0, event_id.encode(), context_value(event_id), HEADERS)
    producer.flush()


def send_answers(broker: Broker, pipeline: Pipeline, *event_ids: str) -> None:
    producer = broker.producer()
    for event_id in event_ids:
        producer.send(pipeline.topics.feedback, 0, event_id.encode(), feedback_value(event_id, 1), HEADERS)
    producer.close()


def ages_ms(pipeline: Pipeline) -> list[int]:
    """How long before the append time of its prediction each decision is dated."""
    records = pipeline.committed_records(pipeline.topics.predictions)
    return [record.timestamp - json.loads(record.value)["decided_at_ms"] for record in records]


@contextmanager
def idle_learner(
    kafka: LocalKafka, prefix: str, directory: Path, client: str
) -> Iterator[tuple[Pipeline, Program, Watch, Broker]]:
    """A learner that has settled a first decision, so that none waits."""
    pipeline = Pipeline(kafka.bootstrap, prefix, directory, **SETTINGS, client=client)
    pipeline.create_topics()
    broker = pipeline.broker()
    try:
        learner = pipeline.start("learn")
        with pipeline.watch() as watch:
            send_contexts(broker.producer(), pipeline, "first")
            watch.wait_until_decided(1)
            send_answers(broker, pipeline, "first")
            watch.wait_until(lambda ledger: ledger.matched == 1, "the first is matched")
            yield pipeline, learner, watch, broker
        assert learner.stop() == 0
    finally:
        broker.close()
        pipeline.close()


def assert_all_are_matched_that_are_answered_at_once(
    pipeline: Pipeline, watch: Watch, broker: Broker, *event_ids: str
) -> None:
    watch.wait_until_decided(1 + len(event_ids))
    send_answers(broker, pipeline, *event_ids)
    watch.wait_until(lambda ledger: not ledger.pending, "all are settled")
    assert (watch.ledger().matched, watch.ledger().expired) == (1 + len(event_ids), 0)
    assert max(ages_ms(pipeline)) <= WINDOW_MS / 10


def test_decisions_after_a_pause_of_the_process_wait_as_long_as_any_other(
    kafka: LocalKafka, prefix: str, tmp_path: Path, client: str
) -> None:
    with idle_learner(kafka, prefix, tmp_path, client) as (pipeline, learner, watch, broker):
        learner.signal(signal.SIGSTOP)
        send_contexts(broker.producer(), pipeline, *"abcde")
        time.sleep(PAUSE_S)
        learner.signal(signal.SIGCONT)
        assert_all_are_matched_that_are_answered_at_once(pipeline, watch, broker, *"abcde")


def test_decisions_that_waited_behind_a_foreign_transaction_wait_as_long_as_any_other(
    kafka: LocalKafka, prefix: str, tmp_path: Path, client: str
) -> None:
    with idle_learner(kafka, prefix, tmp_path, client) as (pipeline, _, watch, broker):
        foreign = broker.transactional_producer(f"{prefix}foreign")
        foreign.begin()
        send_contexts(foreign, pipeline, "theirs")
        send_contexts(broker.producer(), pipeline, *"abcde")
        time.sleep(PAUSE_S)
        foreign.commit()
        assert_all_are_matched_that_are_answered_at_once(pipeline, watch, broker, "theirs", *"abcde")


def test_member_without_a_partition_says_who_holds_it(
    kafka: LocalKafka, prefix: str, tmp_path: Path, client: str
) -> None:
    with idle_learner(kafka, prefix, tmp_path, client) as (pipeline, _, _, _):
        second = pipeline.start("learn", "--instance", "second")
        second.wait_until_it_says(r"no partition is assigned: learner-1 holds them; learner-second waits")
        assert second.stop() == 0
