"""Decision times on a real Kafka broker: the append times of the steps' ticks. An idle learner also writes ticks."""

import time
from pathlib import Path

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.codec import HEADERS, decode_example, is_tick, step_of, tick_step
from stream.wire.records import Outcome, Record, TopicPartition
from tests.pipeline import N_CLASSES, N_FEATURES, context_value, feedback_value
from tests.processes import Pipeline

WINDOW_MS = 5_000
SETTINGS = {"n_classes": N_CLASSES, "n_features": N_FEATURES, "learner": "banditron", "window": f"{WINDOW_MS}ms"}


def read(broker: Broker, topic: str) -> list[Record]:
    return list(read_partition(broker, TopicPartition(topic, 0)))


def ticks_by_step(broker: Broker, pipeline: Pipeline) -> dict[int, int]:
    """Return the append time of each step's tick."""
    ticks = [record for record in read(broker, pipeline.topics.feedback) if is_tick(record)]
    found = {step: tick.append_ms for tick in ticks if (step := tick_step(tick)) is not None}
    assert len(found) == len(ticks)
    return found


def send(broker: Broker, topic: str, event_id: str, value: bytes) -> None:
    producer = broker.producer()
    producer.send(topic, 0, event_id.encode(), value, HEADERS)
    producer.close()


def test_delays_and_deadlines_start_at_the_tick_of_the_step(
    kafka: LocalKafka, prefix: str, tmp_path: Path, client: str
) -> None:
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, **SETTINGS, client=client)
    pipeline.create_topics()
    topics, broker = pipeline.topics, pipeline.broker()
    try:
        learner = pipeline.start("learn")
        with pipeline.watch() as watch:
            for number, event_id in enumerate(("answered", "forgotten"), 1):
                send(broker, topics.contexts, event_id, context_value(event_id))
                watch.wait_until_decided(number)
            time.sleep(0.2)  # the delay that the test measures
            send(broker, topics.feedback, "answered", feedback_value("answered", 1))
            watch.wait_until(lambda ledger: not ledger.pending, "all decisions are settled")
        assert learner.stop() == 0
        ticks = ticks_by_step(broker, pipeline)
        steps = {record.key: step_of(record) for record in read(broker, topics.predictions)}
        examples = {example.id: example for example in map(decode_example, read(broker, topics.examples))}
        feedback = next(record for record in read(broker, topics.feedback) if record.key == b"answered")
        decided_ms = {key: ticks[step or 0] for key, step in steps.items()}
        assert examples["answered"].delay_ms == feedback.append_ms - decided_ms[b"answered"]
        assert examples["forgotten"].outcome is Outcome.EXPIRED
        after_ms = examples["forgotten"].settled_at_ms - decided_ms[b"forgotten"]
        assert WINDOW_MS < after_ms <= 1.5 * WINDOW_MS
        # While the decision was pending and no record arrived, only ticks advanced stream time.
        assert examples["forgotten"].settled_at_ms in set(ticks.values())
        assert len(ticks.keys() - steps.values()) >= 3
    finally:
        broker.close()
        pipeline.close()
