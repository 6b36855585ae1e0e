"""Measure the gaps between a partition's decisions when a learner joins or leaves, or when the broker pauses.

    python benchmarks/standstill.py [--ids 200000] [--partitions 10] [--client confluent] [--results FILE.json]

On a single-node Kafka broker, a learner first settles and retains N ids in each partition. Contexts then arrive at a
steady rate. After the learner has caught up, the benchmark measures the longest gap between the append times of
consecutive predictions in each partition: while a second learner joins, while it leaves, and around a broker pause
(SIGSTOP). The duration of the pause is subtracted. The longest gap in steady operation is also reported.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import confluent_kafka

from onebit.testing.processes import Programs, wait_for
from stream.devkafka.local_kafka import LocalKafka, local_kafka
from stream.kafka.connection import ADAPTERS, connect
from stream.kafka.port import Broker
from stream.reporting.runs import versions
from stream.settings.sources import load_settings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

RATE = 1_000
PAUSE_S = 1.5
LOOK_S = 40.0
FILL_S = 1_800.0


def context(number: int) -> bytes:
    """Return a context with four features."""
    return json.dumps({"id": f"{number:020}", "x": [1, number % 2, number % 3, number % 5]}).encode()


def fill(producer: Any, topics: Topics, partitions: int, ids: int) -> None:
    """Write contexts, each followed by its feedback, to the partitions in turn."""
    for number in range(partitions * ids):
        key, partition = b"%020d" % number, number % partitions
        for topic, value in (
            (topics.contexts, context(number)),
            (topics.feedback, b'{"id":"%s","reward":%d}' % (key, number % 2)),
        ):
            while True:
                try:
                    producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.flush()


@contextmanager
def steady(producer: Any, topics: Topics, partitions: int) -> Iterator[None]:
    """Write contexts at a steady rate to the partitions in turn."""
    stop, numbers = threading.Event(), count(10**12)

    def send() -> None:
        while not stop.wait(0.01):
            for number in (next(numbers) for _ in range(RATE // 100)):
                producer.produce(topics.contexts, context(number), b"%020d" % number, number % partitions)
            producer.poll(0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush()


class Gaps:
    """Measures the gaps between the append times of predictions."""

    def __init__(self, bootstrap: str, topics: Topics, partitions: int) -> None:
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "gaps", "isolation.level": "read_committed"}
        )
        self._topic = topics.predictions
        self._partitions = partitions

    def during(self, act: Callable[[], None]) -> dict[int, int]:
        """Return each partition's longest gap in ms, from 2 s before an action until LOOK_S seconds after it.

        The time from a partition's last prediction to the end of the measurement counts as a gap.
        """
        end = confluent_kafka.OFFSET_END
        self._consumer.assign([confluent_kafka.TopicPartition(self._topic, n, end) for n in range(self._partitions)])
        times: dict[int, list[int]] = defaultdict(list)
        while len(times) < self._partitions:  # the consumer takes about a second to start
            self._add(times)
        times = {partition: each[-1:] for partition, each in times.items()}
        done = threading.Event()

        def run() -> None:
            time.sleep(2.0)
            act()
            time.sleep(LOOK_S)
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        while not done.is_set():
            self._add(times)
        thread.join()
        ended_ms = int(1_000 * time.time())
        return {
            partition: max(after - before for before, after in pairwise([*times[partition], ended_ms]))
            for partition in range(self._partitions)
        }

    def _add(self, times: dict[int, list[int]]) -> None:
        for message in self._consumer.consume(1_000, 0.1):
            if message.error() is None:
                times[message.partition() or 0].append(message.timestamp()[1])


def held_by(broker: Broker, group: str, instance: str) -> set[int]:
    """Return the partitions assigned to one group member."""
    members = broker.members(group)
    return {tp.partition for name, tps in members.items() if name.endswith(instance) for tp in tps}


def behind(broker: Broker, group: str, topics: Topics, partitions: int) -> int:
    """Return the number of contexts that the group has not yet processed."""
    contexts = [TopicPartition(topics.contexts, n) for n in range(partitions)]
    ends, committed = broker.ends(contexts), broker.committed(group, contexts)
    return sum(ends[tp].stable - committed.get(tp, 0) for tp in contexts)


def measure(kafka: LocalKafka, client: str, partitions: int, ids: int) -> dict[str, Any]:
    """Fill the partitions and return the longest gaps."""
    settings = load_settings({
        "bootstrap": kafka.bootstrap, "client": client, "learner": ["banditron"], "n_classes": 2, "n_features": 4,
        "window": "1m", "retain": "24h", "model": "own", "retained_max": ids, "partitions": partitions,
    })  # fmt: skip
    topics = Topics.with_prefix(settings.topic_prefix)
    broker = connect(kafka.bootstrap, client=client)
    broker.create_topics(topics.specs(partitions))
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    found: dict[str, Any] = {"client": client, "partitions": partitions, "ids": ids, "rate": RATE}
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), settings.environment())
        try:
            programs.start("learn", "--instance", "first")
            fill(producer, topics, partitions, ids)
            group = f"{settings.topic_prefix}learner"
            with steady(producer, topics, partitions):
                gaps = Gaps(kafka.bootstrap, topics, partitions)

                def settled() -> None:
                    wait_for(lambda: behind(broker, group, topics, partitions) < RATE // 4, "no learner lags", FILL_S)

                settled()
                found["steady"] = gaps.during(lambda: None)
                second = []

                def join() -> None:
                    second.append(programs.start("learn", "--instance", "second"))
                    wait_for(lambda: bool(held_by(broker, group, "second")), "the second learner has partitions")

                found["joins"] = gaps.during(join)
                found["moved"] = sorted(held_by(broker, group, "second"))
                settled()
                found["leaves"] = gaps.during(lambda: _ends(second[0].stop()))
                settled()
                found["pause"] = gaps.during(lambda: _pause(kafka.pid))
        except AssertionError:
            print(programs.said(), file=sys.stderr)
            raise
        finally:
            programs.close()
    broker.close()
    return found


def _ends(code: int) -> None:
    if code:
        raise AssertionError(f"the second learner ended with exit code {code}")


def _pause(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(pid, signal.SIGCONT)


def main() -> None:
    """Run the measurements, print the longest gap of each kind, and store the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ids", type=int, default=200_000, help="number of settled ids per partition")
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--client", choices=list(ADAPTERS), default="confluent")
    parser.add_argument("--results", type=Path, help="write the gaps as JSON")
    arguments = parser.parse_args()
    with local_kafka() as kafka:
        found = measure(kafka, arguments.client, arguments.partitions, arguments.ids)
    moved = set(found["moved"])
    stays = [partition for partition in range(arguments.partitions) if partition not in moved]
    print(f"steady: {max(found['steady'].values()):,} ms")
    for what in ("joins", "leaves"):
        of = found[what]
        stay_ms, move_ms = max(of[n] for n in stays), max(of[n] for n in moved)
        print(f"second learner {what}: partitions that stay: {stay_ms:,} ms, partitions that move: {move_ms:,} ms")
    print(f"broker pause of {PAUSE_S:g} s: {max(found['pause'].values()) - 1_000 * PAUSE_S:,.0f} ms after the pause")
    if arguments.results is not None:
        about = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "versions": versions()}
        arguments.results.write_text(json.dumps(about | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
