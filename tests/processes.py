"""Helpers for tests against a real Kafka broker: `onebit.testing` pipelines whose programs run as processes.

The helpers read output topics with a plain Kafka client, not with Onebit's reader.
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

from onebit.testing.processes import WAIT_S, Program, Programs, wait_for
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import HOST, LocalKafka
from stream.kafka.connection import ADAPTERS, ConnectionSettings
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.port import BrokerError
from stream.recovery.steps import JournalFollower
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.independent_audit import audit

CLIENTS = tuple(os.environ.get("ONEBIT_TEST_CLIENTS", ",".join(reversed(ADAPTERS))).split(","))
"""The Kafka clients for tests other than the contract tests. A test that uses the `client` fixture runs with one
client, or with every client if it has the `each_client` mark. Every other test runs with the first client. To select
the clients, set ONEBIT_TEST_CLIENTS."""


def free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def freeze(pid: int) -> None:
    """Stop a process and wait until all its threads have stopped. On a busy machine, this can take a while."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped() -> bool:
        with suppress(FileNotFoundError):  # raised if a thread has just ended
            threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in threads)
        return False

    wait_for(is_stopped, f"all threads of process {pid} are stopped")


def kill_broker(kafka: LocalKafka, down_s: float = 0.0) -> None:
    """Kill a broker and restart it with the same data directory."""
    running = local_kafka.status(kafka.home)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    time.sleep(down_s)
    local_kafka.start(int(kafka.bootstrap.rpartition(":")[2]), kafka.home, timeout_s=180)


class Pipeline:
    """A pipeline on a real Kafka broker: its topics and programs."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path, **settings: object) -> None:
        """Pass `settings` to every program as environment variables."""
        self.topics = Topics.with_prefix(prefix)
        self.partitions = int(str(settings.get("partitions", 1)))
        self._shares_model = settings.get("model", "shared" if self.partitions > 1 else "own") == "shared"
        self._bootstrap = bootstrap
        self._prefix = prefix
        own = {"bootstrap": bootstrap, "client": CLIENTS[0], "topic_prefix": prefix, "session_timeout": "3s"}
        given: dict[str, object] = {**own, **settings}
        self._programs = Programs(directory, {f"ONEBIT_{name.upper()}": str(value) for name, value in given.items()})

    def start(self, *arguments: str) -> Program:
        """Start a program that writes its output to a file."""
        return self._programs.start(*arguments)

    def create_topics(self) -> None:
        """Create the topics."""
        broker = self.broker()
        broker.create_topics(self.topics.specs(self.partitions, shares_model=self._shares_model))
        broker.close()

    def broker(self) -> KafkaBroker:
        """Open a new connection to the broker."""
        return KafkaBroker(ConnectionSettings(self._bootstrap))

    @contextmanager
    def watch(self) -> Iterator["Watch"]:
        """Return a context manager that follows all tasks' journals."""
        broker = self.broker()
        try:
            yield Watch(broker, self.topics, self.partitions, self._programs.said)
        finally:
            broker.close()

    def verify(self, *arguments: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """The result of `onebit verify --json`."""
        done = subprocess.run(
            [sys.executable, "-m", "onebit", "verify", "--json", *arguments],
            cwd=self._programs.directory, env=self._programs.environment,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.stdout, f"verify ended with exit code {done.returncode} and printed no result:\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == found["ok"]
        return found

    def committed_records(self, topic: str) -> list[Any]:
        """All committed records in a topic, read with a plain Kafka client."""
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
        """The number of records per event id in a topic."""
        return Counter(json.loads(record.value)["id"] for record in self.committed_records(topic))

    def assert_every_context_is_decided_and_settled_once(self, events: int, *verify: str) -> None:
        """Check that the audit passes, no decision is pending, and each event has one prediction and one example."""
        found = self.verify("--wait-events", str(events), "--timeout", "90s", *verify)
        assert found["ok"], found
        once = Counter(self.committed_ids(self.topics.contexts).keys())
        assert len(once) == events
        assert self.committed_ids(self.topics.predictions) == once
        assert self.committed_ids(self.topics.examples) == once

    def assert_model_equals_replay(self) -> None:
        """Check that a replay of the whole journal, without snapshots, produces the current model."""
        found = self.verify("--replay", timeout_s=300)
        assert found["ok"], found

    def assert_topics_follow_the_documentation(self) -> None:
        """Check the topics with the audit that was written from the documentation alone. Stop the learners first."""
        broker = self.broker()
        try:
            assert audit(broker, self._prefix) == []
        finally:
            broker.close()

    def close(self) -> None:
        """Kill the programs that are still running."""
        self._programs.close()


class Watch:
    """Follows the progress of a pipeline's learners by reading their journals."""

    def __init__(self, broker: KafkaBroker, topics: Topics, partitions: int, program_output: Callable[[], str]) -> None:
        self.broker = broker
        self._output = program_output
        self._follower = JournalFollower(broker, topics, partitions)
        self._topics = topics
        self._partitions = partitions
        self._ledger = Ledger()

    def ledger(self) -> Ledger:
        """The sum of the tasks' ledgers. While the broker is unavailable, returns the last known sum."""
        with suppress(BrokerError):
            self._ledger = self._follower.read(20)
        return self._ledger

    def applied_to(self, partition: int) -> tuple[int, int]:
        """The offsets up to which a task has read the contexts and the feedback, according to its journal."""
        return self._follower.steps[partition].read_to

    def wait_until(self, claim: Callable[[Ledger], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until the ledger satisfies a condition."""
        wait_for(lambda: claim(self.ledger()), what, timeout_s, lambda: f"{self._ledger}\n{self._output()}")

    def wait_until_decided(self, events: int) -> None:
        """Wait until at least `events` contexts are decided."""
        self.wait_until(lambda ledger: ledger.decided >= events, f"{events} contexts are decided")

    def members(self) -> list[str]:
        """The `--instance` names of the learners in the consumer group."""
        return sorted(self._holdings())

    def wait_until_assigned(self, instances: Iterable[str]) -> None:
        """Wait until the group has exactly these learners, all have partitions, and no rebalance is in progress."""
        wanted = sorted(instances)
        wait_for(
            lambda: sorted(name for name, held in self._holdings().items() if held) == self.members() == wanted,
            f"{', '.join(wanted)} have the partitions", otherwise=lambda: f"{self._holdings()}\n{self._output()}",
        )  # fmt: skip

    def _holdings(self) -> dict[str, frozenset[TopicPartition]]:
        held = self.broker.members(self._topics.contexts.removesuffix("contexts") + "learner")
        return {name.removeprefix("learner-"): partitions for name, partitions in held.items()}

    def open_transactions(self) -> list[TopicPartition]:
        """The partitions that contain records from a learner's open transaction."""
        topics = self._topics
        written = (topics.predictions, topics.examples, topics.dead_letter, topics.journal, topics.snapshots)
        tps = [TopicPartition(topic, number) for topic in written for number in range(self._partitions)]
        return [tp for tp, ends in self.broker.ends(tps).items() if ends.stable < ends.high_watermark]
