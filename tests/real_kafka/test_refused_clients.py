"""A broker that a client can reach, but cannot use, is reported with the cause."""

from collections.abc import Iterator

import pytest

from stream.devkafka.local_kafka import LocalKafka, local_kafka
from stream.errors import ExitCode
from stream.kafka.connection import ADAPTERS, ConnectionSettings, connect
from stream.kafka.port import BrokerUnavailableError, TransactionTimeoutError

ADVERTISED = "kafka.internal.invalid:29092"
each_client = pytest.mark.parametrize("name", ADAPTERS)


@pytest.fixture(scope="module")
def unresolvable() -> Iterator[LocalKafka]:
    """A broker that advertises an address without a DNS entry."""
    with local_kafka(settings={"advertised.listeners": f"PLAINTEXT://{ADVERTISED}"}) as running:
        yield running


@each_client
def test_advertised_address_that_does_not_resolve_is_named(unresolvable: LocalKafka, name: str) -> None:
    broker = connect(ConnectionSettings(unresolvable.bootstrap, request_timeout_ms=1_000), client=name)
    with pytest.raises(BrokerUnavailableError, match=ADVERTISED) as refused:
        broker.describe_topics(["topic"])
    assert refused.value.exit_code == ExitCode.UNAVAILABLE
    broker.close()


@each_client
def test_transaction_timeout_above_the_brokers_limit_is_refused(kafka: LocalKafka, prefix: str, name: str) -> None:
    broker = connect(ConnectionSettings(kafka.bootstrap, transaction_timeout_ms=1_200_000), client=name)
    with pytest.raises(TransactionTimeoutError, match=r"transaction\.max\.timeout\.ms") as refused:
        broker.transactional_producer(prefix)
    assert refused.value.exit_code == ExitCode.USAGE
    broker.close()
