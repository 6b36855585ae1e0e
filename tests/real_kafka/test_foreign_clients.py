"""Records written by other clients do not stop the programs or the audit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.reading import read_partition
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger
from stream.wire.records import Headers, TopicPartition
from tests.contract.test_foreign_records import CODECS, NOT_UTF_8, Name
from tests.processes import Pipeline

SETTINGS = {"n_classes": 3, "n_features": 4, "window": "60s", "orphan_window": "60s", "snapshot_interval": "1s"}


@pytest.fixture
def ours(kafka: LocalKafka, prefix: str, tmp_path: Path, client: str) -> Iterator[Pipeline]:
    made = Pipeline(kafka.bootstrap, prefix, tmp_path, client=client, **SETTINGS)
    made.create_topics()
    yield made
    made.close()


class Foreign:
    """Kafka clients that do not use Onebit's code."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def write(self, topic: str, *records: tuple[bytes | None, bytes | None, Any], codec: str = "none") -> None:
        """Write (key, value, headers) records in one batch, using librdkafka."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 50})
        for key, value, headers in records:
            producer.produce(topic, value, key, 0, headers=headers)
        assert producer.flush(30) == 0

    def write_not_utf_8(self, topic: str, key: bytes, value: bytes) -> None:
        """Write a record with a header name that is not UTF-8. librdkafka's Python binding rejects such names."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap)
        producer.send(topic, value, key, headers=[(Name("ignored"), b"kept"), ("plain", b"1")], partition=0)
        producer.close()


def context(event_id: str) -> tuple[bytes, bytes, None]:
    return event_id.encode(), json.dumps({"id": event_id, "x": {"i": [0, 2]}}).encode(), None


def feedback(event_id: str) -> tuple[bytes, bytes, None]:
    return event_id.encode(), json.dumps({"id": event_id, "reward": 1}).encode(), None


def test_foreign_records_stop_neither_learner_nor_audit(ours: Pipeline, kafka: LocalKafka, client: str) -> None:
    topics, foreign = ours.topics, Foreign(kafka.bootstrap)
    own: list[tuple[str, bytes]] = [("traceparent", b"00-ab"), ("onebit-offset", b"77"), ("onebit-kind", b"orphan")]
    foreign.write(topics.contexts, (None, None, None), (None, None, own), (b"key", b"{", own))
    foreign.write(topics.feedback, (None, None, None), (None, b"", [("empty", None)]))
    for codec in CODECS:
        foreign.write(topics.contexts, *(context(f"{codec}-{number}") for number in range(50)), codec=codec)
        foreign.write(topics.feedback, *(feedback(f"{codec}-{number}") for number in range(50)), codec=codec)
    foreign.write_not_utf_8(topics.contexts, b"latin", context("latin")[1])
    foreign.write_not_utf_8(topics.contexts, b"bad", b"{")
    foreign.write_not_utf_8(topics.feedback, b"latin", feedback("latin")[1])
    # This feedback remains an orphan, so the snapshot contains an orphan.
    foreign.write_not_utf_8(topics.feedback, b"nobody", feedback("nobody")[1])

    learner = ours.start("learn", "--learner", "banditron")
    expected = Ledger(
        contexts=205, decided=201, context_malformed=4, feedback=204, matched=201, feedback_malformed=2,
        orphans_waiting=1,
    )  # fmt: skip
    with ours.watch() as watch:
        watch.wait_until(lambda ledger: ledger == expected, "all records are applied")
        foreign.write(topics.contexts, context("later"))  # a new record, so that the next snapshot is due
        snapshots = TopicPartition(topics.snapshots, 0)
        watch.wait_until(lambda ledger: watch.broker.ends([snapshots])[snapshots].stable > 0, "a snapshot is taken")
    assert learner.stop() == 0
    found = ours.verify("--replay")
    assert found["ok"], found
    assert found["replay"][0]["snapshot"] > 0

    kept_own = (("traceparent", b"00-ab"), ("original-onebit-offset", b"77"), ("original-onebit-kind", b"orphan"))
    plain = ("plain", b"1")
    latin: Headers = ((NOT_UTF_8.decode(errors="surrogateescape"), b"kept"), plain)
    if client == "confluent":  # confluent-kafka cannot return the header's name
        latin = (plain,)
        named = f"{topics.contexts}/0, offset 203: omitted 1 of the record's headers, including {NOT_UTF_8!r}"
        assert named in learner.said()
    broker = ours.broker()
    letters = list(read_partition(broker, TopicPartition(topics.dead_letter, 0)))
    broker.close()
    places = [decode_dead_letter(letter)[:4] for letter in letters]
    contents = [(letter.key, letter.value, letter.headers[7:]) for letter in letters]
    assert dict(zip(places, contents, strict=True)) == {
        (topics.contexts, 0, 0, "malformed"): (None, None, ()),
        (topics.contexts, 0, 1, "malformed"): (None, None, kept_own),
        (topics.contexts, 0, 2, "malformed"): (b"key", b"{", kept_own),
        (topics.contexts, 0, 204, "malformed"): (b"bad", b"{", latin),
        (topics.feedback, 0, 0, "malformed"): (None, None, ()),
        (topics.feedback, 0, 1, "malformed"): (None, b"", (("empty", b""),)),
    }
