"""A service that learns which of three pages its visitors want, from one late bit: were they content?

It is a program like yours: it knows Kafka and JSON, and nothing of Onebit. It writes what is known about each visitor
to the contexts, reads which page the learner chose, shows it, and later writes whether that was right. It ends by
itself, says how many visitors got the right page, and exits with 1 when predictions do not come.

Against programs started by hand:

    onebit kafka up
    onebit topics create --topic-prefix own.
    onebit learn --topic-prefix own. --n-classes 3 --n-features 4 --learner banditron     # in a terminal of its own
    python examples/own_service.py --topic-prefix own.

Against docker compose:

    export ONEBIT_TOPIC_PREFIX=own. ONEBIT_N_CLASSES=3 ONEBIT_N_FEATURES=4 ONEBIT_LEARNER=banditron
    docker compose -f docker/compose.yaml up --build --detach --wait kafka topics learner
    python examples/own_service.py

It needs a Kafka client, here kafka-python: `pip install kafka-python`; where Onebit is installed, it is there.
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

ROUNDS, VISITORS = 15, 20  # the feedback of one round is written before the next one begins
PAGES = 3


class ServiceError(Exception):
    """The service cannot do its work; the message says why."""


class Service:
    """The service's side of a pipeline: contexts and feedback out, actions in."""

    def __init__(self, bootstrap: str, prefix: str, timeout_s: float) -> None:
        self._prefix = prefix
        # The client must choose the partition from the key as Kafka's own does, by murmur2, so that all records of an
        # event meet. kafka-python does so by default. librdkafka (confluent-kafka and others) takes CRC32 instead
        # unless it is told: there give {"partitioner": "murmur2_random"}.
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, bootstrap_timeout_ms=1_000 * timeout_s, linger_ms=0)
        self._predictions = KafkaConsumer(
            bootstrap_servers=bootstrap,
            bootstrap_timeout_ms=1_000 * timeout_s,
            isolation_level="read_committed",  # the learner writes in transactions, and some are not committed
            enable_auto_commit=False,
        )
        topic = f"{prefix}predictions"
        partitions = self._predictions.partitions_for_topic(topic)
        if not partitions:
            raise ServiceError(f"there is no topic {topic}; create it: onebit topics create --topic-prefix {prefix}")
        # From now on. A service that must not miss a prediction while it is down has a group_id, and commits.
        self._predictions.assign([TopicPartition(topic, partition) for partition in partitions])
        self._predictions.seek_to_end()
        for tp in self._predictions.assignment():
            self._predictions.position(tp)  # where the end is, is asked now and not at the first poll

    def ask(self, event_id: str, x: list[float]) -> None:
        """Ask for an action."""
        self._send("contexts", event_id, {"id": event_id, "x": x})

    def tell(self, event_id: str, *, right: bool) -> None:
        """Tell the bit."""
        self._send("feedback", event_id, {"id": event_id, "reward": int(right)})

    def _send(self, topic: str, event_id: str, value: dict[str, object]) -> None:
        self._producer.send(f"{self._prefix}{topic}", key=event_id.encode(), value=json.dumps(value).encode())

    def flush(self) -> None:
        """Wait until Kafka has all that was written."""
        self._producer.flush()

    def actions(self, event_ids: set[str], timeout_s: float) -> dict[str, int]:
        """The actions for these events, fewer when they do not come in time; those of others are passed over."""
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
    """Serve all visitors; how it went.

    Raises:
        ServiceError: predictions did not come.
    """
    run = uuid.uuid4().hex[:8]  # an id that has been decided already would not be decided again
    right = []
    for number in range(ROUNDS):
        wanted = {f"visit-{run}-{number}-{visitor}": random.randrange(PAGES) for visitor in range(VISITORS)}
        for event_id, page in wanted.items():
            service.ask(event_id, [*(random.uniform(0.0, 0.5) + (index == page) for index in range(PAGES)), 1.0])
        service.flush()
        shown = service.actions(set(wanted), timeout_s)
        if len(shown) < len(wanted):
            raise ServiceError(
                f"got {len(shown)} of {len(wanted)} predictions within {timeout_s:g} s; does a learner run on the same "
                f"topics, with --n-classes {PAGES} and --n-features {PAGES + 1}?"
            )
        for event_id, action in shown.items():
            service.tell(event_id, right=action == wanted[event_id])
        service.flush()
        right.append(sum(action == wanted[event_id] for event_id, action in shown.items()))
    third = ROUNDS // 3
    first, last = (100 * sum(part) / (third * VISITORS) for part in (right[:third], right[-third:]))
    return (
        f"{ROUNDS * VISITORS} visitors got a page; it was the right one for {first:.0f} % of the first third, and for "
        f"{last:.0f} % of the last third"
    )


def main() -> int:
    """Serve, and say how it went; the exit code."""
    parser = argparse.ArgumentParser(description="An example of a service of your own.")
    parser.add_argument("--bootstrap", default=os.environ.get("ONEBIT_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--topic-prefix", default=os.environ.get("ONEBIT_TOPIC_PREFIX", "onebit."))
    parser.add_argument("--timeout-s", type=float, default=30.0, help="how long Kafka, or a prediction, is waited for")
    given = parser.parse_args()
    where = f"own_service on {given.topic_prefix}* at {given.bootstrap}"
    try:
        service = Service(given.bootstrap, given.topic_prefix, given.timeout_s)
        print(f"{where}: {serve(service, given.timeout_s)}")
    except ServiceError as error:
        print(f"{where}: {error}", file=sys.stderr)
        return 1
    except KafkaError as error:
        print(f"{where}: {error!r}; does Kafka run there?", file=sys.stderr)
        return 1
    service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
