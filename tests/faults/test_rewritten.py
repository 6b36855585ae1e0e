"""A broker that loses records of an input, as after an unclean leader election, ends the learner."""

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from onebit.testing.processes import wait_for
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode
from stream.wire.codec import HEADERS
from stream.wire.records import TopicPartition
from tests.pipeline import context_value
from tests.processes import Pipeline

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

SIZES = ("--n-classes", "3", "--n-features", "4", "--learner", "banditron", "--window", "5s")
KEPT, LOST, OTHERS = 35, 40, 70


@pytest.fixture
def pipeline(own_kafka: LocalKafka, prefix: str, tmp_path: Path, client: str) -> Iterator[Pipeline]:
    made = Pipeline(own_kafka.bootstrap, prefix, tmp_path, client=client, snapshot_interval="1s")
    made.create_topics()
    yield made
    made.close()


def send_contexts(pipeline: Pipeline, name: str, count: int) -> None:
    """Send contexts in batches of five."""
    broker = pipeline.broker()
    producer = broker.producer()
    for number in range(count):
        event_id = f"{name}-{number}"
        producer.send(pipeline.topics.contexts, 0, event_id.encode(), context_value(event_id, number % 4), HEADERS)
        if number % 5 == 4:
            producer.flush()
    producer.close()
    broker.close()


def restart_without_the_last_records(kafka: LocalKafka, tp: TopicPartition, end: int) -> None:
    """Kill the broker, truncate a partition's log at an offset, and start the broker again."""
    running = local_kafka.status(kafka.home)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: local_kafka.status(kafka.home) is None, "the broker has ended")
    folder = running.storage / f"{tp.topic}-{tp.partition}"
    (segment,) = folder.glob("*.log")
    data, place = segment.read_bytes(), 0
    while struct.unpack_from(">q", data, place)[0] < end:
        place += 12 + struct.unpack_from(">i", data, place + 8)[0]
    segment.write_bytes(data[:place])
    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        for path in folder.glob(f"*.{suffix}"):
            path.unlink()
    local_kafka.start(int(kafka.bootstrap.rpartition(":")[2]), kafka.home, timeout_s=180)


@pytest.mark.each_client
@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_learner_ends_if_applied_contexts_were_replaced(own_kafka: LocalKafka, pipeline: Pipeline, runs: bool) -> None:
    contexts = TopicPartition(pipeline.topics.contexts, 0)
    learner = pipeline.start("learn", *SIZES)
    send_contexts(pipeline, "first", KEPT + LOST)
    with pipeline.watch() as watch:
        watch.wait_until(lambda ledger: ledger.expired == KEPT + LOST, "all decisions have expired")
    if not runs:
        assert learner.stop() == ExitCode.OK
    restart_without_the_last_records(own_kafka, contexts, KEPT)
    send_contexts(pipeline, "other", OTHERS)
    if not runs:
        learner = pipeline.start("learn", *SIZES)
    assert learner.wait(90) == ExitCode.USAGE, learner.said()
    assert f"{contexts.topic}/0: expected the record at offset {KEPT + LOST - 1}" in learner.said()
