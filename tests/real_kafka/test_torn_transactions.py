"""A delayed EndTxn request must not end a later transaction of the same producer."""

import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from stream.devkafka.local_kafka import local_kafka
from stream.kafka.connection import ADAPTERS, ConnectionSettings, connect
from stream.kafka.port import Broker, BrokerUnavailableError, FencedError, TransactionalProducer
from stream.kafka.producers import TransactionProducer
from stream.wire.records import TopicPartition
from tests.contract.records import RebalanceLog, joined, read_to_end, settled, topic
from tests.proxy import END_TXN, INIT_PRODUCER_ID, Fault, Proxy

REQUEST_TIMEOUT_MS = 2_000
NOT_COORDINATOR = 16


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A proxy in front of a Kafka broker that advertises the proxy's address."""
    with Proxy() as made, local_kafka(settings={"advertised.listeners": f"PLAINTEXT://{made.address}"}) as kafka:
        made.broker_port = int(kafka.bootstrap.rpartition(":")[2])
        yield made


@pytest.fixture(params=ADAPTERS)
def proxied(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Broker]:
    """The broker behind the proxy, accessed through each client in turn."""
    settings = ConnectionSettings(proxy.address, request_timeout_ms=REQUEST_TIMEOUT_MS)
    made = connect(settings, client=request.param)
    yield made
    made.close()


def write_across(producer: TransactionalProducer, first: str, second: str, strike: Callable[[], None]) -> None:
    """Write a transaction of one record in each topic, with an event between the two records."""
    producer.begin()
    producer.send(first, 0, b"key", b"first half")
    producer.flush()
    strike()
    producer.send(second, 0, b"key", b"second half")
    producer.flush()


def written(broker: Broker, *names: str) -> list[list[str]]:
    """Return the committed records of each topic, without those of earlier transactions."""
    tps = [TopicPartition(name, 0) for name in names]
    for tp in tps:
        settled(broker, tp)
    return [[value for value in read_to_end(broker, tp) if value.endswith("half")] for tp in tps]


def repeated_end(proxy: Proxy, producer: TransactionalProducer, name: str, *, commits: bool) -> Fault:
    """End a transaction with a request that is repeated; return the fault that holds the first request."""
    producer.begin()
    producer.send(name, 0, b"key", b"earlier")
    producer.flush()
    held = proxy.hold(END_TXN, cuts=True)
    if commits:
        producer.commit()
    else:
        producer.abort()
    return held


def test_delayed_commit_does_not_commit_half_of_the_next_transaction(
    proxied: Broker, proxy: Proxy, prefix: str
) -> None:
    names = topic(proxied, prefix, name="a"), topic(proxied, prefix, name="b")
    producer = proxied.transactional_producer(prefix)
    held = repeated_end(proxy, producer, names[0], commits=True)
    write_across(producer, *names, held.release)
    producer.abort()
    assert written(proxied, *names) == [[], []]
    producer.close()


def test_delayed_abort_does_not_abort_half_of_the_next_transaction(proxied: Broker, proxy: Proxy, prefix: str) -> None:
    names = topic(proxied, prefix, name="a"), topic(proxied, prefix, name="b")
    producer = proxied.transactional_producer(prefix)
    held = repeated_end(proxy, producer, names[0], commits=False)
    write_across(producer, *names, held.release)
    producer.commit()
    assert written(proxied, *names) == [["first half"], ["second half"]]
    producer.close()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_client_that_repeats_the_end_of_a_transaction_gets_a_new_epoch(
    proxied: Broker, proxy: Proxy, prefix: str, commits: bool
) -> None:
    name = topic(proxied, prefix)
    producer = proxied.transactional_producer(prefix)
    held = repeated_end(proxy, producer, name, commits=commits)
    producer.begin()
    producer.send(name, 0, b"key", b"later")
    producer.commit()
    (_, first_id, first_epoch, first_commits), (_, last_id, last_epoch, _) = held.wait().end_txn, proxy.ends(prefix)[-1]
    assert first_commits is commits
    assert (last_id, last_epoch) == (first_id, first_epoch + 1)
    producer.close()


def test_producer_without_a_repeated_request_keeps_its_epoch(proxied: Broker, proxy: Proxy, prefix: str) -> None:
    name = topic(proxied, prefix)
    producer = proxied.transactional_producer(prefix)
    for _ in range(3):
        producer.begin()
        producer.send(name, 0, b"key", b"value")
        producer.commit()
        producer.begin()
        producer.send(name, 0, b"key", b"value")
        producer.flush()
        producer.abort()
    producer.close()
    assert len({end[1:3] for end in proxy.ends(prefix)}) == 1


def test_replaced_producer_with_a_repeated_commit_does_not_fence_its_successor(
    proxied: Broker, proxy: Proxy, prefix: str
) -> None:
    def check_place() -> None:
        raise FencedError("another process has taken over")

    name = topic(proxied, prefix)
    zombie = proxied.transactional_producer(prefix)
    repeated_end(proxy, zombie, name, commits=True)
    successor = proxied.transactional_producer(prefix)
    with pytest.raises(FencedError):
        zombie.begin(check_place)
    successor.begin()
    successor.send(name, 0, b"key", b"first half")
    successor.commit()
    assert written(proxied, name) == [["first half"]]
    successor.close()
    zombie.close()


def test_same_epoch_lets_a_delayed_abort_tear_the_next_transaction(proxied: Broker, proxy: Proxy, prefix: str) -> None:
    """Without the prevention, the broker tears the transaction: the tests above depend on it."""
    names = topic(proxied, prefix, name="a"), topic(proxied, prefix, name="b")
    with patch.object(TransactionProducer, "_renew", lambda self: None):
        producer = proxied.transactional_producer(prefix)
        held = repeated_end(proxy, producer, names[0], commits=False)
        write_across(producer, *names, held.release)
        producer.commit()
    assert written(proxied, *names) == [[], ["second half"]]
    producer.close()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_producer_whose_request_gets_no_response_is_unusable(
    proxied: Broker, proxy: Proxy, prefix: str, commits: bool
) -> None:
    name = topic(proxied, prefix)
    producer = proxied.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"first half")
    producer.flush()
    proxy.hold(END_TXN)
    with pytest.raises(BrokerUnavailableError):
        producer.commit() if commits else producer.abort()
    with pytest.raises(BrokerUnavailableError):
        producer.begin()
    producer.close()


def test_transaction_succeeds_after_the_broker_has_closed_all_connections(
    proxied: Broker, proxy: Proxy, prefix: str
) -> None:
    name = topic(proxied, prefix)
    tp = TopicPartition(name, 0)
    member = proxied.group_consumer(prefix, "member", [name], RebalanceLog(), rejoins=False)
    joined(member, partitions=1)
    producer = proxied.transactional_producer(prefix)
    for number in range(4):
        until_quiet = time.monotonic() + 1.0
        while time.monotonic() < until_quiet:  # the client notices the closed connections only between transactions
            member.poll(50, 10)
        producer.begin(member.check_place)
        producer.send(name, 0, b"key", b"first half")
        producer.flush()
        producer.send_offsets({tp: number}, member)  # with an unlucky client, there is no response in time
        producer.commit()
        proxy.cut()
    assert proxied.committed(prefix, [tp]) == {tp: 3}
    producer.close()
    member.close()


def test_takeover_is_retried_while_the_coordinator_moves(proxied: Broker, proxy: Proxy, prefix: str) -> None:
    rejected = proxy.reject(INIT_PRODUCER_ID, NOT_COORDINATOR)
    proxied.transactional_producer(prefix).close()
    assert rejected.request is not None
