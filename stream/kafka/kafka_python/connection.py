"""Connects with kafka-python and translates its errors.

Workarounds for kafka-python:

- If a client's constructor cannot connect, the client's thread keeps running and its sockets stay open.
  `Connection.make` closes them, and `_Socket` closes the socket after each failed attempt. A client that is closed
  during a write also leaves its socket open; `Manager` closes it.
- A new consumer's first metadata request names no topics. The consumer requests metadata for its topics only after the
  retry interval, which is 100 ms by default. Readers use a shorter interval. `make_consumer` also sets the interval in
  the client's metadata object, because the client does not pass it on.
- If a broker does not respond, kafka-python waits 10 s, and later 30 s, before it tries another broker. Here, the limit
  is lower.
- Shortly after an outage, a partition has no leader, and the client sends a request to "broker -1". Such errors are
  transient, although the client does not mark them as retriable.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from stream.kafka.client_config import BY_TOKEN, MECHANISMS
from stream.kafka.connection import Connection, ConnectionSettings
from stream.kafka.kafka_python.foreign import PartitionRecords
from stream.kafka.kafka_python.security import NOT_LET_IN, Manager, settings_of
from stream.kafka.port import (
    FETCH_WAIT_MS,
    AccessError,
    Acl,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    StaleMemberError,
    TransactionTimeoutError,
)
from stream.kafka.tls import reason_of, tls_error_of

CLOSE_S = 5.0

TRANSIENT = (kafka_errors.RetriableError, kafka_errors.UnknownBrokerIdError)

_KINDS: dict[type[BrokerError], tuple[type[BaseException], ...]] = {
    FencedError: (
        kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError, kafka_errors.FencedInstanceIdError
    ),
    StaleMemberError: (
        kafka_errors.CommitFailedError, kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError,
        kafka_errors.RebalanceInProgressError,
    ),
}  # fmt: skip


_FORBIDDEN = {
    kafka_errors.TopicAuthorizationFailedError.__name__: "topic",
    kafka_errors.GroupAuthorizationFailedError.__name__: "group",
    kafka_errors.TransactionalIdAuthorizationFailedError.__name__: "transactional-id",
    kafka_errors.ClusterAuthorizationFailedError.__name__: "topic",  # raised if a producer cannot write to any topic
}
"""The kind of resource to which each error denies access. An error is identified by its name, because kafka-python
raises some of these errors only as the text of another error."""


def kind_of(error: object) -> str | None:
    """Return the kind of resource to which an error denies access, or None for other errors."""
    if not isinstance(error, kafka_errors.KafkaError):
        return None
    return next((kind for name, kind in _FORBIDDEN.items() if name in f"{type(error).__name__} {error}"), None)


class KafkaConnection(Connection):
    """See Connection."""

    RAISED = (kafka_errors.KafkaError,)

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self._security = settings_of(settings.config)
        self._managers: WeakSet[Manager] = WeakSet()  # those of all open clients
        self._failure: BaseException | None = None  # error from the last client that failed to connect
        logger = logging.getLogger("kafka")
        if logger.level == logging.NOTSET:  # kafka-python logs errors that it retries; final errors are raised
            logger.setLevel(logging.CRITICAL)

    def classify(self, error: Any) -> tuple[type[BrokerError], str]:
        """See Connection."""
        if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
            return BrokerError, f"a topic or partition does not exist: {error}; create the topics first"
        for reason in (error, error.__cause__, *error.args):  # kafka-python passes the reason as a second argument
            for kind, types in _KINDS.items():
                if isinstance(reason, types):
                    return kind, f"{type(reason).__name__}: {reason}"
        if kafka_errors.InvalidTransactionTimeoutError.__name__ in str(error):  # raised as text of another error
            return TransactionTimeoutError, str(error)
        kind = BrokerUnavailableError if isinstance(error, TRANSIENT) else BrokerError
        return kind, f"{type(error).__name__}: {error}"

    def access_error(self, what: str, error: Any, needs: Iterable[Acl]) -> AccessError | None:
        """See Connection."""
        for reason in (error, error.__cause__, *error.args):
            if isinstance(reason, AccessError):
                return reason
            if isinstance(reason, NOT_LET_IN):
                why = self._why_not_let_in(reason)
                return AccessError(f"Kafka at {self.bootstrap} rejected {self.user()}: {why}")
            if (resource := kind_of(reason)) is not None:
                parts = (part if isinstance(part, set | list | tuple) else (part,) for part in reason.args)
                named = {str(name) for part in parts for name in part}
                return self.forbidden(what, needs, resource, named.__contains__)
        if (failed := tls_error_of(error)) is None:
            return None
        return AccessError(f"no connection to Kafka at {self.bootstrap}: {reason_of(failed, self.config)}")

    def make(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Create a kafka-python client. If the client cannot connect, close everything that it has opened."""
        made: list[Any] = []

        def network(**configs: Any) -> Any:
            configs["socket_connection_setup_timeout_ms"] = self.setup_timeout_ms
            configs["socket_connection_setup_timeout_max_ms"] = self.setup_timeout_ms
            net = NetworkSelector(**configs)
            manager = Manager(net, **configs)
            self._managers.add(manager)
            made.append(KafkaNetClient(net, manager))
            return made[-1]

        shared = {
            "bootstrap_servers": self.servers,
            "bootstrap_timeout_ms": self.request_timeout_ms,
            "request_timeout_ms": self.request_timeout_ms,
            "reconnect_backoff_max_ms": 1000,
            "kafka_client": network,
            "proxy_url": "direct://",  # selects _Socket; no proxy is used
        }
        try:
            return kind(**(shared | self._security | settings))
        except BaseException:
            for client in made:
                self._failure = client._manager.last_failure
                client.close()
            if self._failure is not None:
                refused = self.access_error("connect", self._failure, ())
                if refused is not None:
                    raise refused from self._failure
            raise

    def make_consumer(self, fetch_wait_ms: int = FETCH_WAIT_MS, **settings: Any) -> Any:
        """Create a kafka-python consumer that reads only committed records."""
        with self.translating("connect a consumer"):
            client = self.make(
                KafkaConsumer,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                metrics_enabled=False,
                fetch_max_wait_ms=min(fetch_wait_ms, self.request_timeout_ms // 2),
                **settings,
            )
        client._cluster.config["retry_backoff_ms"] = client.config["retry_backoff_ms"]
        client._fetcher.PartitionRecords = PartitionRecords
        return client

    def unreachable(self) -> str:
        """See Connection."""
        failures = {address: why for manager in list(self._managers) for address, why in manager.unreachable().items()}
        address = next((address for address in failures if address not in self.servers), None)
        if address is None:
            return ""
        return (
            f". The broker advertises the address {address}, to which no connection is possible ({failures[address]}). "
            "Set advertised.listeners on the broker to an address that this machine can resolve and reach"
        )

    def hint(self) -> str:
        """Return the likely cause of the last failed connection if the server closed it, or "" for other failures."""
        failure, config = self._failure, self.config
        if not isinstance(failure, kafka_errors.KafkaProtocolError) and "socket disconnected" not in str(failure):
            return ""
        by = f"{config.security_protocol} {config.sasl_mechanism}" if config.uses_sasl else config.security_protocol
        return f"; the broker uses a different protocol than {by}; check security.protocol"

    def _why_not_let_in(self, error: BaseException) -> str:
        mechanism = self.config.sasl_mechanism
        if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
            others = ", ".join(one for one in MECHANISMS if one != mechanism)
            return f"the broker does not offer sasl.mechanism={mechanism}; try a different mechanism ({others})"
        if isinstance(error, kafka_errors.IllegalSaslStateError):
            protocol = "SSL" if self.config.uses_tls else "PLAINTEXT"
            return f"SASL is not enabled on this port; check the port, or set security.protocol={protocol}"
        if mechanism == BY_TOKEN:
            return "the broker does not accept the token printed by sasl.oauthbearer.token.command"
        return f"the name or the password is wrong (sasl.username, sasl.password; {mechanism})"


class _Socket(KafkaNetSocket):  # type: ignore[misc]
    """A socket that is closed if it fails to connect. The scheme of `proxy_url` selects this class."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
