"""Connecting to a Kafka, by the client that was chosen; none is imported before that."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

from stream.kafka.client_config import ClientConfig
from stream.kafka.port import Broker, BrokerError

CONNECT_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 15_000
SESSION_TIMEOUT_MS = 10_000
TRANSACTION_TIMEOUT_MS = 60_000
NO_SECURITY = ClientConfig()


class Client(NamedTuple):
    """A client behind the port."""

    package: str  # that it is imported by
    adapter: str  # its module, and its Broker there


ADAPTERS = {
    "kafka-python": Client("kafka", "stream.kafka.kafka_python.broker:KafkaBroker"),
    "confluent": Client("confluent_kafka", "stream.kafka.confluent.broker:ConfluentBroker"),
}
"""The clients behind the port, the fastest last: a new one is its folder and its line here."""

AUTO = "auto"
"""Stands for the fastest client that is installed."""


class ClientMissingError(BrokerError):
    """The client that was chosen is not installed."""


class Adapter(Protocol):
    """What makes a Broker of an address: see `connect`."""

    def __call__(
        self,
        bootstrap: str,
        *,
        config: ClientConfig,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        session_timeout_ms: int,
        transaction_timeout_ms: int,
        progress: Callable[[str], None] | None,
    ) -> Broker:
        """Connect."""


def chosen(client: str) -> str:
    """The client that a name stands for.

    Raises:
        ClientMissingError: it is not installed.
    """
    installed = [name for name, known in ADAPTERS.items() if find_spec(known.package) is not None]
    if client == AUTO:
        return installed[-1]
    if client not in installed:
        raise ClientMissingError(
            f"the client {client} is not installed: pip install 'onebit[{client}]', or take another one; "
            f"installed: {', '.join(installed)}"
        )
    return client


def adapter(client: str) -> Adapter:
    """The adapter of a client, imported now."""
    module, _, name = ADAPTERS[chosen(client)].adapter.partition(":")
    return cast(Adapter, getattr(import_module(module), name))


def connect(
    bootstrap: str,
    *,
    client: str = AUTO,
    config: ClientConfig = NO_SECURITY,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    progress: Callable[[str], None] | None = None,
) -> Broker:
    """Connect to a Kafka, and wait for one that is not up yet.

    Args:
        bootstrap: HOST:PORT of a broker, or several with commas between.
        client: One of ADAPTERS, or AUTO.
        config: How the client comes in.
        connect_timeout_ms: How long to wait for the first answer.
        request_timeout_ms: How long any other operation may take.
        session_timeout_ms: After so long without a sign of life a group member's partitions go to the others.
        transaction_timeout_ms: After so long the broker aborts a transaction that is still open.
        progress: Is told what is waited for, a line at a time.

    Raises:
        BootstrapError: `bootstrap` is no such address.
        ClientMissingError: the client is not installed.
        ClientConfigError: a certificate that `config` names cannot be read.
        AccessError: the broker does not let this client in, or cannot be trusted.
        BrokerUnavailableError: no broker answered within `connect_timeout_ms`.
    """
    return adapter(client)(
        bootstrap,
        config=config,
        connect_timeout_ms=connect_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        transaction_timeout_ms=transaction_timeout_ms,
        progress=progress,
    )
