"""Programs that reconnect after a broker outage."""

from collections.abc import Iterator

import pytest

from stream.app import connection
from stream.app.connection import keep_running
from stream.app.settings import Settings, SettingsError
from stream.app.sources import load_settings
from stream.app.watching import Watched
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import Broker, BrokerUnavailableError
from stream.wire.topics import Topics


def kafka(partitions: int) -> Broker:
    broker = EmbeddedBroker(VirtualClock(1_000))
    broker.create_topics(Topics.with_prefix().specs(partitions))
    return broker


def recreated(broker: Broker) -> Broker:
    topics = Topics.with_prefix()
    broker.delete_topics([topics.feedback])
    broker.create_topics(topics.specs(2))
    return broker


def run(monkeypatch: pytest.MonkeyPatch, brokers: Iterator[Broker]) -> list[int]:
    """Run a program against several brokers that fail one after another. Return each broker's partition count."""
    reported: list[int] = []

    def next_one(settings: Settings, stop: object) -> Broker:
        return next(brokers)

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        reported.append(partitions)
        raise BrokerUnavailableError("gone")

    monkeypatch.setattr(connection, "connect", next_one)
    keep_running(load_settings({}), "program", lambda: len(reported) == 3, work)
    return reported


def test_program_restarts_its_work_after_reconnecting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, iter([kafka(2), kafka(2), kafka(2)])) == [2, 2, 2]


def test_topics_altered_during_an_outage_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"2 partitions; got 3"):
        run(monkeypatch, iter([kafka(2), kafka(2), kafka(3)]))


def test_topic_recreated_during_an_outage_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"recreated: .*feedback"):
        run(monkeypatch, iter([kafka(2), kafka(2), recreated(kafka(2))]))


def test_topic_deleted_during_an_outage_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = kafka(2)
    gone.delete_topics([Topics.with_prefix().feedback])
    with pytest.raises(SettingsError, match=r"changed while .*feedback"):
        run(monkeypatch, iter([kafka(2), gone]))
