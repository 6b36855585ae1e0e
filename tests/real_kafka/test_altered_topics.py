"""Topics altered while the programs are running. Each program reports the change and exits."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer

from onebit.cli.app import main
from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode
from stream.kafka.connection import connect
from stream.kafka.reading import read_partition
from stream.programs import connection
from stream.programs.process import every
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.contract.records import confluent, set_config
from tests.limits import slowness
from tests.pipeline import context_value
from tests.processes import CLIENTS

pytestmark = pytest.mark.usefixtures("own_signals")

INTERVAL_MS = 300

CREATE_TIME = ("message.timestamp.type", "CreateTime")

Alter = Callable[[Any, Topics], None]


def more_partitions(admin: Any, names: tuple[str, ...]) -> None:
    for done in admin.create_partitions([confluent.NewPartitions(name, 3) for name in names]).values():
        done.result(20)


def recreated(admin: Any, name: str) -> None:
    admin.delete_topics([name])[name].result(20)
    wanted = confluent.NewTopic(name, 2, 1, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})

    def is_made() -> bool:
        try:
            admin.create_topics([wanted])[name].result(20)
        except KafkaException:  # the old topic is still being deleted
            return False
        return True

    wait_for(is_made, "the topic is recreated")


ALTERATIONS: dict[str, tuple[Alter, str]] = {
    "create time": (
        lambda admin, topics: set_config(admin, topics.feedback, *CREATE_TIME),
        r"{feedback}: expected message\.timestamp\.type LogAppendTime; got CreateTime",
    ),
    "compaction": (
        lambda admin, topics: set_config(admin, topics.feedback, "cleanup.policy", "compact"),
        r"{feedback}: expected cleanup\.policy delete; got compact",
    ),
    "partitions added to one topic": (
        lambda admin, topics: more_partitions(admin, (topics.examples,)),
        r"partitions.*{examples}': 3",
    ),
    "partitions added to all topics": (
        lambda admin, topics: more_partitions(admin, tuple(topics)), r"2 partitions; got 3",
    ),
    "topic recreated": (
        lambda admin, topics: recreated(admin, topics.feedback),
        r"(recreated|do not exist): {feedback}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "name"),
    [*(("learn", name) for name in ALTERATIONS), ("feedback", "create time"), ("replay", "topic recreated")],
)
def test_program_ends_when_its_topics_are_altered(
    kafka: LocalKafka,
    prefix: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    name: str,
) -> None:
    alter, expected_message = ALTERATIONS[name]
    monkeypatch.setattr(connection, "WATCH_INTERVAL_MS", INTERVAL_MS)
    topics = Topics.with_prefix(prefix)
    broker = connect(kafka.bootstrap)
    broker.create_topics(topics.specs(2))
    broker.close()
    arguments = [program, "--bootstrap", kafka.bootstrap, "--client", CLIENTS[0], "--topic-prefix", prefix]
    arguments += ["--data", "optdigits"]
    arguments += {"learn": ["--learner", "banditron"], "replay": ["--rate", "20"]}.get(program, [])
    altered_s: list[float] = []
    watches = threading.Event()

    def check_and_report(interval_ms: int, look: Callable[[], None]) -> Callable[[], None]:
        watches.set()
        return every(interval_ms, look)

    monkeypatch.setattr(connection, "every", check_and_report)

    def change() -> None:
        watches.wait(60)
        alter(confluent.AdminClient({"bootstrap.servers": kafka.bootstrap}), topics)
        altered_s.append(time.monotonic())

    later = threading.Thread(target=change)
    later.start()
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        later.join()
    assert time.monotonic() - altered_s[0] < 10 * slowness()
    assert ended.value.code == ExitCode.USAGE
    assert re.search(expected_message.format(**topics._asdict()), capsys.readouterr().err)


def test_record_with_sender_timestamp_ends_the_learner_and_is_not_applied(
    kafka: LocalKafka, prefix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, client: str
) -> None:
    topics = Topics.with_prefix(prefix)
    broker = connect(kafka.bootstrap)
    broker.create_topics(topics.specs(1))
    ready = tmp_path / "ready"
    kept: list[tuple[int, float]] = []  # the offset and write time of the record with the sender's timestamp

    def on_delivery(error: object, message: Any) -> None:
        if message.timestamp()[1] == 1_000:
            kept.append((message.offset(), time.monotonic()))

    def change() -> None:
        deadline_s = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        set_config(confluent.AdminClient({"bootstrap.servers": kafka.bootstrap}), topics.contexts, *CREATE_TIME)
        producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap})
        for number in range(1_000):  # a busy broker applies the new setting with a short delay
            event_id = f"event-{number}"
            producer.produce(
                topics.contexts, context_value(event_id), event_id.encode(), 0, timestamp=1_000, on_delivery=on_delivery
            )
            producer.flush(30)
            if kept:
                break

    writer = threading.Thread(target=change)
    writer.start()
    arguments = ["--bootstrap", kafka.bootstrap, "--client", client, "--topic-prefix", prefix, "--learner", "banditron"]
    arguments += ["--n-classes", "3", "--n-features", "4", "--ready-file", str(ready)]
    try:
        with pytest.raises(SystemExit) as ended:
            main(["learn", *arguments])
    finally:
        writer.join()
    offset, written_s = kept[0]
    assert time.monotonic() - written_s < slowness() * connection.WATCH_INTERVAL_MS / 1_000 / 3
    assert ended.value.code == ExitCode.USAGE
    assert re.search(
        rf"while the program was running.*{topics.contexts}: .*offset {offset} of partition 0 has a timestamp set",
        capsys.readouterr().err,
    )
    predictions = read_partition(broker, TopicPartition(topics.predictions, 0))
    assert f"event-{offset}".encode() not in [record.key for record in predictions]
    broker.close()


def test_topics_are_checked_at_least_every_30_seconds() -> None:
    assert connection.WATCH_INTERVAL_MS <= 30_000
