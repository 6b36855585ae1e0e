"""Programs that cannot connect to a broker, and programs that reconnect after a broker outage."""

import time
from collections.abc import Iterator

import pytest

from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import Broker, BrokerUnavailableError, TransactionTimeoutError
from stream.programs import connection
from stream.programs.connection import keep_running, require_topics, watch_topics
from stream.programs.watching import Watched
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import load_settings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.cli.conftest import Onebit
from tests.limits import within
from tests.processes import free_port


def kafka(partitions: int) -> EmbeddedBroker:
    broker = EmbeddedBroker(VirtualClock(1_000))
    broker.create_topics(Topics.with_prefix().specs(partitions))
    return broker


def recreated(broker: Broker) -> Broker:
    topics = Topics.with_prefix()
    broker.delete_topics([topics.feedback])
    broker.create_topics(topics.specs(2))
    return broker


def run(monkeypatch: pytest.MonkeyPatch, brokers: Iterator[Broker]) -> list[int]:
    """Run a program on a sequence of brokers, each of which fails. Return each broker's partition count."""
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


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("program", ["learn", "feedback", "replay", "verify"])
def test_program_without_a_broker_waits_then_exits_with_4(program: str, onebit: Onebit) -> None:
    port, started_s = free_port(), time.monotonic()
    with within(30):
        ended = onebit(program, "--bootstrap", f"127.0.0.1:{port}", "--connect-timeout", "300ms")
    assert ended.code == ExitCode.UNAVAILABLE
    assert time.monotonic() - started_s >= 0.3
    assert f"onebit kafka up --port {port}" in " ".join(ended.err.split())


def test_program_whose_requests_always_fail_ends_after_the_connection_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0

    def connect(settings: Settings, stop: object) -> Broker:
        nonlocal connections
        connections += 1
        return kafka(1)

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr(connection, "connect", connect)
    started_s = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match="no answer"):
        keep_running(load_settings({"connect_timeout": "1s"}), "program", lambda: False, work)
    assert time.monotonic() - started_s >= 1.0
    assert 2 <= connections <= 5  # it pauses between connections


def test_program_with_a_refused_transaction_timeout_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        raise TransactionTimeoutError("too long")

    monkeypatch.setattr(connection, "connect", lambda settings, stop: kafka(1))
    with pytest.raises(TransactionTimeoutError) as refused:
        keep_running(load_settings({}), "program", lambda: False, work)
    assert refused.value.exit_code == ExitCode.USAGE


def test_topic_with_a_small_batch_limit_is_rejected() -> None:
    broker = kafka(1)
    name = Topics.with_prefix().snapshots
    broker._topics[name] = broker._topics[name]._replace(batch_bytes_max=100_000)
    with pytest.raises(SettingsError, match=rf"{name}.*max\.message\.bytes"):
        require_topics(broker, load_settings({}))


def test_altered_retention_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WATCH_INTERVAL_MS", 0)
    broker, found, topics = kafka(2), list[int](), Topics.with_prefix()
    watch = watch_topics(broker, load_settings({}), 2, on_retention=found.append)
    watch()
    broker.alter_topics([spec for spec in topics.specs(2, keep_ms=7_000) if spec.name == topics.journal])
    watch()
    broker.alter_topics([spec for spec in topics.specs(2, keep_ms=5_000) if spec.name == topics.snapshots])
    watch()
    assert found == [-1, 7_000, 7_000]


def test_new_leader_of_an_input_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WATCH_INTERVAL_MS", 0)
    broker, new_leaders = kafka(2), list[str]()
    watch = watch_topics(broker, load_settings({}), 2, on_new_leader=lambda: new_leaders.append("new"))
    watch()
    assert new_leaders == []
    broker.truncate(TopicPartition(Topics.with_prefix().feedback, 1), 0)
    watch()
    watch()
    assert new_leaders == ["new"]
