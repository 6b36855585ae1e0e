"""Kafka's own test clients write contexts, while the test kills these clients, the learners and the broker."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Message

from onebit.testing.processes import WAIT_S, wait_for
from stream.devkafka.local_kafka import LocalKafka
from tests.faults.kafka_tools import Tool, class_path
from tests.independent_reader import committed, header, value
from tests.processes import Pipeline, kill_broker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SEED = 20_27
EVENTS, NUMBERS_PER_LIFE = 4_000, 300
PARTITIONS = (0, 1)
RAW, OURS = "raw.", "run."
SETTINGS = {
    "data": "synsep", "shuffle": "true", "events": EVENTS, "rate": 400, "learner": "banditron", "partitions": 2,
    "model": "own", "window": "3s", "delay": "lognormal:300ms,1.0", "loss": 0.01, "duplicates": 0.01,
    "snapshot_interval": "2s",
}  # fmt: skip


class Clients:
    """A producer that writes numbers to the raw contexts topic, and copiers that copy them to the learners' topic."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._jars = class_path()
        self.started: list[Tool] = []
        self.producer = self.produce()
        self.copiers = {partition: self.copy(partition) for partition in PARTITIONS}

    def produce(self) -> Tool:
        """Start a producer that writes numbers. Each producer has its own prefix, so all values are distinct."""
        return self._start(
            "VerifiableProducer", "--bootstrap-server", self._bootstrap, "--topic", f"{RAW}contexts",
            "--throughput", "100", "--max-messages", str(NUMBERS_PER_LIFE), "--value-prefix", str(len(self.started)),
        )  # fmt: skip

    def copy(self, partition: int) -> Tool:
        """Start a copier for one partition. The copier copies the current records, and aborts some transactions."""
        return self._start(
            "TransactionalMessageCopier", "--broker-list", self._bootstrap, "--input-topic", f"{RAW}contexts",
            "--input-partition", str(partition), "--output-topic", f"{OURS}contexts", "--consumer-group", "copier",
            "--transactional-id", f"copier-{partition}", "--transaction-size", "50", "--transaction-timeout", "3000",
            "--enable-random-aborts", "--use-group-metadata",
        )  # fmt: skip

    def copy_on(self) -> None:
        """Restart the copiers that have finished."""
        for partition, copier in self.copiers.items():
            if copier.process.poll() is not None:
                self.copiers[partition] = self.copy(partition)

    def finish(self) -> None:
        """Wait until the producer is done and all records have been copied.

        A copier copies only the records that exist when it starts. Therefore, the last copiers start after the producer
        is done.
        """
        assert self.producer.process.wait(WAIT_S) == 0
        for partition, copier in self.copiers.items():
            copier.process.wait(WAIT_S)
            wait_for(lambda: self.copy(partition).process.wait(WAIT_S) == 0, "a copier has finished")  # noqa: B023

    def fail(self, draw: random.Random) -> None:
        """Kill a copier and the producer, and restart the producer."""
        self.copiers[draw.choice(PARTITIONS)].kill()
        self.producer.kill()
        self.producer = self.produce()

    def acknowledged(self) -> set[str]:
        """The values that the producers reported as acknowledged."""
        lines = (line for tool in self.started for line in tool.output_lines())
        return {str(line["value"]) for line in lines if line.get("name") == "producer_send_success"}

    def close(self) -> None:
        """Kill all clients."""
        for tool in self.started:
            tool.kill()

    def _start(self, name: str, *arguments: str) -> Tool:
        log = self._directory / f"{len(self.started)}-{name}.out"
        self.started.append(Tool(name, log, self._jars, *arguments))
        return self.started[-1]


def copied(messages: list[Message]) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """Each record's partition, key and value. The copiers do not change these fields."""
    return [(message.partition(), message.key(), message.value()) for message in messages]


def is_context(message: Message) -> bool:
    """Whether the replay sent this record. The replay sends JSON objects; the producer sends values such as `0.17`."""
    return (message.value() or b"").startswith(b"{")


def test_every_foreign_context_gets_one_prediction_or_one_dead_letter(own_kafka: LocalKafka, tmp_path: Path) -> None:
    raw = Pipeline(own_kafka.bootstrap, RAW, tmp_path, **SETTINGS)
    ours = Pipeline(own_kafka.bootstrap, OURS, tmp_path / "ours", **SETTINGS)
    (tmp_path / "ours").mkdir()
    raw.create_topics()
    ours.create_topics()
    draw = random.Random(SEED)
    learners = {name: ours.start("learn", "--instance", name) for name in "ab"}
    ours.start("feedback")
    replay = raw.start("replay", "--resume")
    clients = Clients(own_kafka.bootstrap, tmp_path)
    try:
        with ours.watch() as watch:
            for number, fault in enumerate(["clients", "a", "broker", "clients", "b", "clients"], start=1):
                while watch.ledger().decided < number * EVENTS // 8:
                    clients.copy_on()
                    time.sleep(0.2)
                time.sleep(draw.uniform(0, 0.3))
                if fault == "clients":
                    clients.fail(draw)
                elif fault == "broker":
                    kill_broker(own_kafka)
                else:
                    if learners[fault].process.poll() is None:  # a session timeout may have ended the learner
                        learners[fault].kill()
                    learners[fault] = ours.start("learn", "--instance", fault)
            assert replay.wait() == 0, replay.said()
            clients.finish()
            found = ours.verify("--wait-events", str(EVENTS), "--timeout", "90s")
            assert found["ok"], found
    finally:
        clients.close()
        raw.close()
        ours.close()
    ours.assert_topics_follow_the_documentation()
    contexts = list(committed(own_kafka.bootstrap, f"{OURS}contexts"))
    assert copied(contexts) == copied(list(committed(own_kafka.bootstrap, f"{RAW}contexts")))
    numbers = {
        (b"%d" % (one.partition() or 0), b"%d" % (one.offset() or 0)): one.value()
        for one in contexts
        if not is_context(one)
    }
    assert clients.acknowledged() <= {(number or b"").decode() for number in numbers.values()}
    assert len(numbers) > NUMBERS_PER_LIFE
    letters = list(committed(own_kafka.bootstrap, f"{OURS}dead-letter"))
    places = Counter((header(one, "onebit-partition"), header(one, "onebit-offset")) for one in letters)
    assert places == Counter(numbers.keys())
    once = Counter({value(one)["id"] for one in contexts if is_context(one)})
    assert len(once) == EVENTS
    for topic in ("predictions", "examples"):
        assert Counter(value(one)["id"] for one in committed(own_kafka.bootstrap, f"{OURS}{topic}")) == once
