"""A cluster of three real brokers on this machine, each with a different clock."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onebit.testing.processes import wait_for
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import HOST
from stream.kafka.kafka_python.admin import settings_of
from stream.wire.topics import Topics
from tests.processes import free_port, freeze

NODES = (1, 2, 3)
SESSION_S = 8
"""A broker's session timeout. If a follower is killed, the high watermark does not advance until the timeout."""


class Cluster:
    """Three brokers. Node 1 runs the controller and all coordinators, so tests stop only nodes 2 and 3."""

    def __init__(self, directory: Path, shifts_ms: Mapping[int, int]) -> None:
        """Prepare the cluster without starting it. `shifts_ms` contains each node's clock offset."""
        self.shifts_ms = shifts_ms
        self._directory = directory
        self._ports = {node: free_port() for node in NODES}
        self._controller_port = free_port()
        self._preloaded = directory / "shifted_clock.so"
        source = Path(__file__).with_name("shifted_clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self._preloaded, source, "-ldl"], check=True)
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in self._ports.values())

    def start_all(self) -> None:
        """Start the brokers."""
        self.start(1)
        self._create_internal_topics()
        for node in NODES[1:]:
            self._format_like_the_first(node)
            self.start(node)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wait_for(lambda: len(self._admin.list_topics(timeout=30).brokers) == len(NODES), "all brokers have joined")

    def start(self, node: int) -> None:
        """Start a broker with its data directory and wait until it responds."""
        listeners = f"PLAINTEXT://{HOST}:{self._ports[node]}"
        settings = {
            "node.id": str(node),
            "process.roles": "broker,controller" if node == 1 else "broker",
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "advertised.listeners": listeners,
            "listeners": listeners + (f",CONTROLLER://{HOST}:{self._controller_port}" if node == 1 else ""),
            "broker.session.timeout.ms": str(1000 * SESSION_S),
        }
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(self._preloaded))
            environment.setenv("SHIFT_MS", str(self.shifts_ms[node]))
            local_kafka.start(self._ports[node], self._home(node), settings=settings, timeout_s=180)

    def kill(self, node: int) -> None:
        """Kill a broker with SIGKILL to simulate a machine failure."""
        os.kill(self._pid(node), signal.SIGKILL)

    def freeze(self, node: int) -> None:
        """Pause a broker. The broker remains a member of the cluster until its session times out."""
        freeze(self._pid(node))

    def thaw(self, node: int) -> None:
        """Resume a paused broker."""
        os.kill(self._pid(node), signal.SIGCONT)

    def stop(self) -> None:
        """Stop all brokers."""
        for node in reversed(NODES):
            if local_kafka.status(self._home(node)) is not None:
                self.kill(node)
            local_kafka.stop(self._home(node))

    def create_topics(self, topics: Topics, feedback_on: list[int]) -> None:
        """Create a pipeline's topics. Node 1 leads all topics except `feedback`, which `feedback_on[0]` leads."""
        new = [
            NewTopic(
                spec.name, 1, replica_assignment=[feedback_on if spec.name == topics.feedback else [1]],
                config=settings_of(spec),
            )
            for spec in topics.specs(1)
        ]  # fmt: skip
        for created in self._admin.create_topics(new).values():
            created.result(30)

    def leader_and_in_sync(self, topic: str) -> tuple[int, set[int]]:
        """The leader and the in-sync replicas of a topic's only partition."""
        (partition,) = self._admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
        return partition.leader, set(partition.isrs)

    def _home(self, node: int) -> Path:
        return self._directory / f"broker-{node}"

    def _pid(self, node: int) -> int:
        running = local_kafka.status(self._home(node))
        assert running is not None
        return running.pid

    def _create_internal_topics(self) -> None:
        """Create Kafka's internal topics for groups and transactions on node 1, the only node that is running."""
        producer = Producer({"bootstrap.servers": f"{HOST}:{self._ports[1]}", "transactional.id": "first"})
        producer.init_transactions(60)
        consumer = Consumer({"bootstrap.servers": f"{HOST}:{self._ports[1]}", "group.id": "first"})
        with suppress(KafkaException):  # raised while the coordinator is loading; by then, the topic exists
            consumer.committed([TopicPartition("none", 0)], 60)
        consumer.close()

    def _format_like_the_first(self, node: int) -> None:
        """Format a storage directory with the first broker's cluster id. By default, `local_kafka` creates a new id."""
        first = (self._home(1) / "storage" / "meta.properties").read_text().splitlines()
        kept = [line for line in first if line.startswith(("version", "cluster.id"))]
        storage = self._home(node) / "storage"
        storage.mkdir(parents=True)
        (storage / "meta.properties").write_text("\n".join([*kept, f"node.id={node}", ""]))
