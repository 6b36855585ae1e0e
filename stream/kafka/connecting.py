"""The table of supported Kafka clients, and `connect`. A client is imported at its first use."""

from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, cast

from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import Broker, BrokerError


class Client(NamedTuple):
    """A Kafka client, and the adapter that implements the Broker interface with it."""

    package: str  # the import name
    adapter: str  # MODULE:CLASS of the Broker


ADAPTERS = {
    "kafka-python": Client("kafka", "stream.kafka.kafka_python.broker:KafkaBroker"),
    "confluent": Client("confluent_kafka", "stream.kafka.confluent.broker:ConfluentBroker"),
}
"""The supported clients, ordered from slowest to fastest."""

AUTO = "auto"
"""Selects the fastest client that is installed."""


class ClientMissingError(BrokerError):
    """The chosen client is not installed."""


def chosen(client: str) -> str:
    """Return the name of the client to use. For AUTO, this is the fastest installed client.

    Raises:
        ClientMissingError: the client is not installed.
    """
    installed = [name for name, known in ADAPTERS.items() if find_spec(known.package) is not None]
    if client == AUTO:
        return installed[-1]
    if client not in installed:
        raise ClientMissingError(
            f"the client {client} is not installed. Run: pip install 'onebit[{client}]', or choose an installed one: "
            f"{', '.join(installed)}"
        )
    return client


def connect(settings: ConnectionSettings | str, client: str = AUTO) -> Broker:
    """Connect to a Kafka cluster. Wait if the cluster is not running yet.

    Args:
        settings: The connection's settings, or just its address.
        client: One of ADAPTERS, or AUTO.

    Raises:
        BootstrapError: the address is malformed.
        ClientMissingError: the client is not installed.
        ClientConfigError: a certificate cannot be read.
        AccessError: the broker rejects this client, or cannot be trusted.
        BrokerUnavailableError: no broker responded within `connect_timeout_ms`.
    """
    module, _, name = ADAPTERS[chosen(client)].adapter.partition(":")
    adapter = getattr(import_module(module), name)
    return cast(Broker, adapter(ConnectionSettings(settings) if isinstance(settings, str) else settings))
