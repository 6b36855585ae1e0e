"""What the tests on a real Kafka share beside `stream.testing`: pipelines without any help from Onebit.

What is in the topics is read by a plain client, which knows nothing of Onebit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import HOST, LocalKafka
from stream.journal.reading import JournalFollower
from stream.kafka.connecting import ADAPTERS
from stream.kafka.connection import ConnectionSettings
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.port import BrokerError
from stream.testing.processes import WAIT_S, Program, Programs, wait_for
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

CLIENTS = tuple(os.environ.get("ONEBIT_TEST_CLIENTS", ",".join(reversed(ADAPTERS))).split(","))
"""The clients of the tests on a real Kafka beyond the contract. Tests that take the fixture `client` are run with each,
all others with the first: so CLIENTS=kafka-python makes all of them by that one."""


def free_port() -> int:
    """Return a port that is free on this machine."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def freeze(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands still: on a busy machine one may go on for a while."""
    os.kill(pid, signal.SIGSTOP)

    def stands_still() -> bool:
        with suppress(FileNotFoundError):  # a thread that has just ended
            threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in threads)
        return False

    wait_for(stands_still, f"process {pid} stands still")


def kill_broker(kafka: LocalKafka, down_s: float = 0.0) -> None:
    """Kill a broker, and start it again on its disk."""
    running = local_kafka.status(kafka.home)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    time.sleep(down_s)
    local_kafka.start(int(kafka.bootstrap.rpartition(":")[2]), kafka.home, timeout_s=180)


class Pipeline:
    """The topics of one pipeline on a Kafka, and the programs that work on them."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path, **settings: object) -> None:
        """Settings are those of every program, by their names."""
        self.topics = Topics.with_prefix(prefix)
        self.partitions = int(str(settings.get("partitions", 1)))
        self._shares_model = settings.get("model", "shared" if self.partitions > 1 else "own") == "shared"
        self._bootstrap = bootstrap
        own = {"bootstrap": bootstrap, "client": CLIENTS[0], "topic_prefix": prefix, "session_timeout": "3s"}
        given: dict[str, object] = {**own, **settings}
        self._programs = Programs(directory, {f"ONEBIT_{name.upper()}": str(value) for name, value in given.items()})

    def start(self, *arguments: str) -> Program:
        """Start a program; what it says goes to a file."""
        return self._programs.start(*arguments)

    def create_topics(self) -> None:
        """Make the topics."""
        broker = self.broker()
        broker.create_topics(self.topics.specs(self.partitions, shares_model=self._shares_model))
        broker.close()

    def broker(self) -> KafkaBroker:
        """A connection of the test's own."""
        return KafkaBroker(ConnectionSettings(self._bootstrap))

    @contextmanager
    def watch(self) -> Iterator["Watch"]:
        """Follow the journals."""
        broker = self.broker()
        try:
            yield Watch(broker, self.topics, self.partitions, self._programs.said)
        finally:
            broker.close()

    def verify(self, *arguments: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """What `onebit verify --json` finds."""
        done = subprocess.run(
            [sys.executable, "-m", "stream.cli", "verify", "--json", *arguments],
            cwd=self._programs.directory, env=self._programs.environment,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.stdout, f"verify ended with exit code {done.returncode} and said only:\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == found["ok"]
        return found

    def committed_records(self, topic: str) -> list[Any]:
        """All records of a topic that a reader of committed records sees, by a plain client."""
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        tps = [KafkaTopicPartition(topic, partition) for partition in range(self.partitions)]
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        records: list[Any] = []
        deadline_s = time.monotonic() + WAIT_S
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline_s, f"{topic} could not be read to its end"
            for polled in consumer.poll(200).values():
                records += polled
        consumer.close()
        return records

    def committed_ids(self, topic: str) -> Counter[str]:
        """How often each event id stands in a topic."""
        return Counter(json.loads(record.value)["id"] for record in self.committed_records(topic))

    def assert_every_context_is_decided_and_settled_once(self, events: int, *verify: str) -> None:
        """The books are exact, nothing is left, and every event has one prediction and one example."""
        found = self.verify("--wait-events", str(events), "--timeout", "90s", *verify)
        assert found["ok"], found
        once = Counter(self.committed_ids(self.topics.contexts).keys())
        assert len(once) == events
        assert self.committed_ids(self.topics.predictions) == once
        assert self.committed_ids(self.topics.examples) == once

    def assert_model_is_that_of_the_journal(self) -> None:
        """The journal applied again from its first step, without a snapshot, gives the model that there is."""
        found = self.verify("--replay", timeout_s=300)
        assert found["ok"], found

    def close(self) -> None:
        """Kill what is left."""
        self._programs.close()


class Watch:
    """How far the learners of a pipeline have come."""

    def __init__(self, broker: KafkaBroker, topics: Topics, partitions: int, said: Callable[[], str]) -> None:
        self.broker = broker
        self._said = said
        self._follower = JournalFollower(broker, topics, partitions)
        self._topics = topics
        self._partitions = partitions
        self._ledger = Ledger()

    def ledger(self) -> Ledger:
        """The sum of the tasks' ledgers; while the broker is away, as it was."""
        with suppress(BrokerError):
            self._ledger = self._follower.read(20)
        return self._ledger

    def applied_to(self, partition: int) -> tuple[int, int]:
        """How far a task has applied its contexts and its feedback, as its journal says."""
        step = self._follower.steps[partition]
        return step.contexts[1], step.feedback[1]

    def wait_until(self, claim: Callable[[Ledger], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until the ledger is so."""
        wait_for(lambda: claim(self.ledger()), what, timeout_s, lambda: f"{self._ledger}\n{self._said()}")

    def wait_until_decided(self, events: int) -> None:
        """Wait until so many contexts are decided."""
        self.wait_until(lambda ledger: ledger.decided >= events, f"{events} contexts are decided")

    def members(self) -> list[str]:
        """The learners that are in their group, by what `--instance` they have."""
        return sorted(self._holdings())

    def wait_until_dealt(self, instances: Iterable[str]) -> None:
        """Wait until just these learners are in their group, each has partitions, and none is about to join anew."""
        wanted = sorted(instances)
        wait_for(
            lambda: sorted(name for name, held in self._holdings().items() if held) == self.members() == wanted,
            f"{', '.join(wanted)} have the partitions", otherwise=lambda: f"{self._holdings()}\n{self._said()}",
        )  # fmt: skip

    def _holdings(self) -> dict[str, frozenset[TopicPartition]]:
        held = self.broker.members(self._topics.contexts.removesuffix("contexts") + "learner")
        return {name.removeprefix("learner-"): partitions for name, partitions in held.items()}

    def open_transactions(self) -> list[TopicPartition]:
        """The partitions that hold records of a learner's transaction that has not ended."""
        topics = self._topics
        written = (topics.predictions, topics.examples, topics.dead_letter, topics.journal, topics.snapshots)
        tps = [TopicPartition(topic, number) for topic in written for number in range(self._partitions)]
        return [tp for tp, ends in self.broker.ends(tps).items() if ends.stable < ends.high_watermark]
