"""Example of a service that learns which of three pages its visitors want, from one late bit per visitor.

The service uses only Kafka and JSON, not Onebit. It writes the features of each visitor to the contexts topic, reads
the page that the learner chose, shows it, and later reports whether the page was right. At the end, it prints the share
of visitors who got the right page. It exits with 1 if predictions do not arrive.

Run it against manually started programs:

    onebit kafka up
    onebit topics create --topic-prefix own.
    onebit learn --topic-prefix own. --n-classes 3 --n-features 4 --learner banditron     # in a second terminal
    python examples/own_service.py --topic-prefix own.

or against Docker Compose:

    export ONEBIT_TOPIC_PREFIX=own. ONEBIT_N_CLASSES=3 ONEBIT_N_FEATURES=4 ONEBIT_LEARNER=banditron
    docker compose -f docker/compose.yaml up --build --detach --wait kafka topics learner
    python examples/own_service.py

Requires kafka-python (`pip install kafka-python`), which is a dependency of Onebit.
"""

import argparse
import json
import os
import random
import sys
import time
import uuid

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

ROUNDS, VISITORS = 15, 20  # the feedback for each round is written before the next round starts
PAGES = 3


class ServiceError(Exception):
    """Raised when the service cannot continue."""


class Service:
    """The service's Kafka client: it writes contexts and feedback, and reads the chosen actions."""

    def __init__(self, bootstrap: str, prefix: str, timeout_s: float) -> None:
        self._prefix = prefix
        # The client must choose the partition by the murmur2 hash of the key, like Kafka's Java client, so that all
        # of an event's records have the same partition number. kafka-python does so by default. librdkafka
        # (confluent-kafka and others) defaults to CRC32; it needs {"partitioner": "murmur2_random"}.
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, bootstrap_timeout_ms=1_000 * timeout_s, linger_ms=0)
        self._predictions = KafkaConsumer(
            bootstrap_servers=bootstrap,
            bootstrap_timeout_ms=1_000 * timeout_s,
            isolation_level="read_committed",  # skip predictions in aborted transactions
            enable_auto_commit=False,
        )
        topic = f"{prefix}predictions"
        partitions = self._predictions.partitions_for_topic(topic)
        if not partitions:
            raise ServiceError(f"topic {topic} does not exist. Run: onebit topics create --topic-prefix {prefix}")
        # Start reading at the end. A service that must not miss predictions made while it is down uses a group_id and
        # commits its offsets.
        self._predictions.assign([TopicPartition(topic, partition) for partition in partitions])
        self._predictions.seek_to_end()
        for tp in self._predictions.assignment():
            self._predictions.position(tp)  # determine the end offset now, not at the first poll

    def ask(self, event_id: str, x: list[float]) -> None:
        """Request an action by writing a context."""
        self._send("contexts", event_id, {"id": event_id, "x": x})

    def tell(self, event_id: str, *, right: bool) -> None:
        """Report whether the action was right, by writing feedback."""
        self._send("feedback", event_id, {"id": event_id, "reward": int(right)})

    def _send(self, topic: str, event_id: str, value: dict[str, object]) -> None:
        self._producer.send(f"{self._prefix}{topic}", key=event_id.encode(), value=json.dumps(value).encode())

    def flush(self) -> None:
        """Wait until Kafka has acknowledged all records."""
        self._producer.flush()

    def actions(self, event_ids: set[str], timeout_s: float) -> dict[str, int]:
        """Return the actions that arrive for these events before the timeout. Ignore other events."""
        actions: dict[str, int] = {}
        deadline_s = time.monotonic() + timeout_s
        while len(actions) < len(event_ids) and time.monotonic() < deadline_s:
            for records in self._predictions.poll(timeout_ms=500).values():
                answers = (json.loads(record.value) for record in records)
                actions |= {answer["id"]: answer["action"] for answer in answers if answer["id"] in event_ids}
        return actions

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()
        self._predictions.close()


def serve(service: Service, timeout_s: float) -> str:
    """Serve all visitors and return a summary.

    Raises:
        ServiceError: predictions did not arrive in time.
    """
    run = uuid.uuid4().hex[:8]  # makes ids unique across runs, because each id is decided only once
    right = []
    for number in range(ROUNDS):
        wanted = {f"visit-{run}-{number}-{visitor}": random.randrange(PAGES) for visitor in range(VISITORS)}
        for event_id, page in wanted.items():
            service.ask(event_id, [*(random.uniform(0.0, 0.5) + (index == page) for index in range(PAGES)), 1.0])
        service.flush()
        shown = service.actions(set(wanted), timeout_s)
        if len(shown) < len(wanted):
            raise ServiceError(
                f"got {len(shown)} of {len(wanted)} predictions within {timeout_s:g} s. Check that a learner is "
                f"running on these topics with --n-classes {PAGES} and --n-features {PAGES + 1}"
            )
        for event_id, action in shown.items():
            service.tell(event_id, right=action == wanted[event_id])
        service.flush()
        right.append(sum(action == wanted[event_id] for event_id, action in shown.items()))
    third = ROUNDS // 3
    first, last = (100 * sum(part) / (third * VISITORS) for part in (right[:third], right[-third:]))
    return (
        f"{ROUNDS * VISITORS} visitors got a page; it was right for {first:.0f}% of the first third and "
        f"{last:.0f}% of the last third"
    )


def main() -> int:
    """Serve the visitors, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description="Example of a service that uses Onebit.")
    parser.add_argument("--bootstrap", default=os.environ.get("ONEBIT_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--topic-prefix", default=os.environ.get("ONEBIT_TOPIC_PREFIX", "onebit."))
    parser.add_argument("--timeout-s", type=float, default=30.0, help="timeout for Kafka and for predictions")
    given = parser.parse_args()
    where = f"own_service on {given.topic_prefix}* at {given.bootstrap}"
    try:
        service = Service(given.bootstrap, given.topic_prefix, given.timeout_s)
        print(f"{where}: {serve(service, given.timeout_s)}")
    except ServiceError as error:
        print(f"{where}: {error}", file=sys.stderr)
        return 1
    except KafkaError as error:
        print(f"{where}: {error!r}; check that Kafka is running", file=sys.stderr)
        return 1
    service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
