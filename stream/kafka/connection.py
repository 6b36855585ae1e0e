"""Connections to a Kafka cluster: `connect`, the supported clients, and the base class for the adapters' connections.

A client is imported when it is first used. The base class stores the connection's settings and open clients, and
translates client errors.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, cast

from stream.kafka.client_config import ClientConfig
from stream.kafka.port import (
    AccessError,
    Acl,
    Broker,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    StaleMemberError,
    TransactionTimeoutError,
)

RETRY_S = 0.1
_SLACK_S = 2.0  # added to the client's own timeout, so that the client can report the reason first
_CONNECTION_MS_MAX = 5_000

REASONS = {
    FencedError: "another process has taken over",
    StaleMemberError: "the group has rebalanced without this member",
    BrokerUnavailableError: "no response in time; check that the broker is running and reachable",
    TransactionTimeoutError: (
        "the transaction timeout exceeds the brokers' limit, transaction.max.timeout.ms (15 minutes by default); "
        "reduce the transaction_timeout setting, or raise the limit"
    ),
    BrokerError: "the broker or the client refused the request",
}


class ConnectionSettings(NamedTuple):
    """A connection's address, access settings and timeouts."""

    bootstrap: str  # HOST:PORT[,HOST:PORT]
    config: ClientConfig = ClientConfig()
    connect_timeout_ms: int = 30_000  # limit on the wait for the first response
    request_timeout_ms: int = 15_000  # limit on every other operation
    session_timeout_ms: int = 10_000  # the group removes a member after this time without a heartbeat
    transaction_timeout_ms: int = 60_000  # the broker aborts a transaction that is open for longer
    progress: Callable[[str], None] = lambda _: None  # called with progress lines while waiting to connect


class Client(NamedTuple):
    """A Kafka client and the adapter that uses it to implement the Broker interface."""

    package: str  # the import name
    adapter: str  # MODULE:CLASS of the Broker


ADAPTERS = {
    "kafka-python": Client("kafka", "stream.kafka.kafka_python.broker:KafkaBroker"),
    "confluent": Client("confluent_kafka", "stream.kafka.confluent.broker:ConfluentBroker"),
}
"""The supported clients, ordered from slowest to fastest."""

AUTO = "auto"
"""Selects the fastest installed client."""


def chosen(client: str) -> str:
    """Return the name of the client to use. For AUTO, this is the fastest installed client.

    Raises:
        BrokerError: the client is not installed.
    """
    installed = [name for name, known in ADAPTERS.items() if find_spec(known.package) is not None]
    if client == AUTO:
        return installed[-1]
    if client not in installed:
        raise BrokerError(
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
        BrokerError: the address is malformed, or the client is not installed.
        ClientConfigError: a certificate cannot be read.
        AccessError: the broker rejects this client or cannot be trusted.
        BrokerUnavailableError: no broker responded within `connect_timeout_ms`.
    """
    adapter = resolve_name(ADAPTERS[chosen(client)].adapter)
    return cast(Broker, adapter(ConnectionSettings(settings) if isinstance(settings, str) else settings))


Result = TypeVar("Result")


class Connection:
    """Base class for the adapters' connections. A subclass classifies its client's errors."""

    RAISED: ClassVar[tuple[type[BaseException], ...]] = ()  # exceptions that the client raises

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.bootstrap = settings.bootstrap
        self.config = settings.config
        self.servers = servers_of(settings.bootstrap)
        self.request_timeout_ms = settings.request_timeout_ms
        self.request_timeout_s = settings.request_timeout_ms / 1000
        self.setup_timeout_ms = min(settings.request_timeout_ms, _CONNECTION_MS_MAX)
        self.patience_s = self.request_timeout_s + _SLACK_S
        self.missing_of: Callable[[Sequence[Acl]], Sequence[Acl]] = lambda needs: needs  # returns the missing ACLs
        self.clients: set[Any] = set()  # open producers and consumers

    def classify(self, error: Any) -> tuple[type[BrokerError], str]:
        """Return the BrokerError subclass and the message for a client error."""
        raise NotImplementedError

    def access_error(self, what: str, error: Any, needs: Iterable[Acl]) -> AccessError | None:
        """Return the AccessError for a failed authentication or authorization, or None for other errors."""
        raise NotImplementedError

    def close_clients(self) -> None:
        """Close all open producers and consumers."""
        for client in list(self.clients):
            with suppress(BrokerError):
                client.close()

    def ask(self, what: str, question: Callable[[], Result], needs: Iterable[Acl] = ()) -> Result:
        """Send a request. After transient errors, retry it until the request timeout expires.

        Args:
            what: a description of the request, for messages.
            question: a function that sends the request and returns the response.
            needs: the ACLs that the request requires.
        """
        deadline_s = time.monotonic() + self.request_timeout_s
        while True:
            try:
                return question()
            except self.RAISED as error:
                if self.classify(error)[0] is not BrokerUnavailableError or time.monotonic() > deadline_s:
                    self.refuse(what, error, needs)
            time.sleep(RETRY_S)

    def refuse(self, what: str, error: BaseException, needs: Iterable[Acl] = ()) -> NoReturn:
        """Raise the BrokerError that corresponds to a client error. See `ask` for `needs`."""
        if (refused := self.access_error(what, error, needs)) is not None:
            raise refused from error
        kind, text = self.classify(error)
        where = self.unreachable() if kind is BrokerUnavailableError else ""
        raise kind(f"could not {what} at {self.bootstrap}: {REASONS[kind]} ({text}){where}") from error

    def unreachable(self) -> str:
        """Return the part of a message that names advertised addresses to which no connection is possible."""
        return ""

    def unanswered(self, what: str) -> BrokerUnavailableError:
        """Return the error for a request that received no response."""
        within = f"no response within {self.request_timeout_ms} ms; check that the broker is running and reachable"
        return BrokerUnavailableError(f"could not {what} at {self.bootstrap}: {within}")

    def outcome_unknown(self, transactional_id: str, why: str) -> BrokerUnavailableError:
        """Return the error for a producer whose last transaction may or may not have been committed."""
        return BrokerUnavailableError(
            f"the outcome of a transaction with the transactional id {transactional_id} at {self.bootstrap} is "
            f"unknown: {why}; create a new producer with this id and check whether the topics contain the records"
        )

    @contextmanager
    def translating(self, what: str, needs: Iterable[Acl] = ()) -> Iterator[None]:
        """Translate client errors raised in a `with` block to BrokerErrors. See `ask` for `needs`."""
        translated: tuple[type[BaseException], ...] = (*self.RAISED, ValueError, TypeError)
        try:
            yield
        except translated as error:
            self.refuse(what, error, needs)

    def forbidden(self, what: str, needs: Iterable[Acl], kind: str, is_named: Callable[[str], bool]) -> AccessError:
        """Return the error for denied access to resources of this kind.

        The error lists the resources that are named in the broker's response. If the response names no resources, the
        error lists all required resources of this kind.
        """
        of_kind = list(dict.fromkeys(acl for acl in needs if acl.kind == kind))
        named = [acl for acl in of_kind if is_named(acl.name)]
        missing = named or [acl for acl in of_kind if acl.operation == of_kind[0].operation]
        return self.lacks(what, self.missing_of(missing))

    def lacks(self, what: str, missing: Sequence[Acl]) -> AccessError:
        """Return the error for missing ACLs."""
        acts = "; ".join(f"{acl.operation} on {acl.kind} {acl.name}" for acl in missing) or what
        user = self.config.sasl_username if self.config.uses_sasl else None
        text = f"could not {what}: Kafka at {self.bootstrap} does not allow {self.user()} to do this: {acts}"
        return AccessError(text, missing, user)

    def user(self) -> str:
        """Describe this client's user as the broker sees it, for messages."""
        if self.config.uses_sasl and self.config.sasl_username is not None:
            return f"user {self.config.sasl_username}"
        return "the owner of this token" if self.config.uses_sasl else "this client"


_SERVER = re.compile(r"([^\s:,/@\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_PORT_MAX = 65_535


def servers_of(bootstrap: str) -> list[str]:
    """Split `HOST:PORT[,HOST:PORT]` into servers. A host may be an IPv6 address in brackets.

    Raises:
        BrokerError: the address is in a different format.
    """
    servers = [server.strip() for server in bootstrap.split(",")]
    for server in servers:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[2]) <= _PORT_MAX:
            raise BrokerError(
                f"Kafka address {bootstrap!r}: expected HOST:PORT[,HOST:PORT], such as localhost:9092, with a "
                f"port from 1 to {_PORT_MAX}; got {server!r}"
            )
    return servers
