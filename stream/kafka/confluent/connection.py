"""Connecting to Kafka, asking it, and its answers and errors in the words of the port."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

from confluent_kafka import KafkaError, KafkaException

from stream.kafka.access import Asked, Lacking, everything
from stream.kafka.bootstrap import servers_of
from stream.kafka.client_config import ClientConfig
from stream.kafka.confluent.security import access_error, security_of
from stream.kafka.open_clients import OpenClients
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, FencedError, StaleMemberError

Result = TypeVar("Result")

RETRY_S = 0.1

_SLACK_S = 2.0  # what a wait here is longer than the client's own time-out, so that the client's reason is heard
_REFUSAL_S = 15.0  # a client that is not let in says so at each attempt, at least this often
_CONNECTION_MS_MAX = 5_000

_SILENT = logging.getLogger("librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_code: Any = KafkaError  # its codes are attributes that mypy does not see

FENCED = frozenset(
    (_code._FENCED, _code._FATAL, _code.PRODUCER_FENCED, _code.INVALID_PRODUCER_EPOCH, _code.FENCED_INSTANCE_ID)
)
"""Another has the place. Of a consumer `_FATAL` says just that: librdkafka knows no other fatal error of one."""

STALE = frozenset((_code.ILLEGAL_GENERATION, _code.UNKNOWN_MEMBER_ID, _code.REBALANCE_IN_PROGRESS))

MISSING = frozenset((_code.UNKNOWN_TOPIC_OR_PART, _code._UNKNOWN_TOPIC, _code._UNKNOWN_PARTITION))

_TRANSIENT = frozenset(
    (
        _code._TRANSPORT, _code._ALL_BROKERS_DOWN, _code._TIMED_OUT, _code._MSG_TIMED_OUT, _code._TIMED_OUT_QUEUE,
        _code._RESOLVE, _code._WAIT_COORD, _code._WAIT_CACHE, _code._UNKNOWN_BROKER, _code._RETRY, _code._PURGE_QUEUE,
        _code._PURGE_INFLIGHT, _code._DESTROY, _code._IN_PROGRESS, _code.LEADER_NOT_AVAILABLE,
        _code.NOT_LEADER_FOR_PARTITION,
        _code.REQUEST_TIMED_OUT, _code.BROKER_NOT_AVAILABLE, _code.REPLICA_NOT_AVAILABLE, _code.NETWORK_EXCEPTION,
        _code.COORDINATOR_LOAD_IN_PROGRESS, _code.COORDINATOR_NOT_AVAILABLE, _code.NOT_COORDINATOR,
        _code.NOT_ENOUGH_REPLICAS, _code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _code.KAFKA_STORAGE_ERROR,
        _code.UNSTABLE_OFFSET_COMMIT, _code.CONCURRENT_TRANSACTIONS, _code.NOT_CONTROLLER,
        _code.FENCED_LEADER_EPOCH, _code.UNKNOWN_LEADER_EPOCH,
    )
)  # fmt: skip


def is_transient(error: Any) -> bool:
    """Whether what the client refuses now it may do later."""
    return bool(error.retriable()) or error.code() in _TRANSIENT


RAISED = (KafkaException, SystemError)
"""What the client raises. A fatal error ends whatever is under way, and within a callback Python calls that a
SystemError."""


def error_of(raised: BaseException) -> Any:
    """The client's error in what it has raised."""
    if not isinstance(raised, KafkaException):
        if raised.__cause__ is None:
            raise raised
        return error_of(raised.__cause__)
    return raised.args[0]


@runtime_checkable
class Speaking(Protocol):
    """A client that tells how its broker does when it is listened to, and is not listened to all the time."""

    def listen(self) -> None:
        """Have it say now what it has to say."""


class Connection(OpenClients):
    """How a Kafka is reached, and the clients that are open there."""

    def __init__(self, bootstrap: str, request_timeout_ms: int, config: ClientConfig) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.config = config
        self.request_timeout_ms = request_timeout_ms
        self.request_timeout_s = request_timeout_ms / 1000
        self.patience_s = self.request_timeout_s + _SLACK_S
        self.cut_off_s = 0.0  # when a client last said that a broker is out of reach, by this host's monotonic clock
        self.lacking: Lacking = everything
        self._servers = ",".join(servers_of(bootstrap))
        self._security = security_of(config)
        self._refusal: Any = None  # why a broker let a client of ours in no more
        self._refused_s = -math.inf  # and when it last said so, by this host's monotonic clock

    def properties(self, **own: Any) -> dict[str, Any]:
        """The properties of a client by librdkafka's names: those of all, and its own, where `_` stands for a dot."""
        setup_ms = min(self.request_timeout_ms, _CONNECTION_MS_MAX)
        return {
            "bootstrap.servers": self._servers,
            "client.id": "onebit",
            # What it logs as errors it then tries again; what is final is raised.
            "log_level": 0,
            "logger": _SILENT,
            "error_cb": self._hear,
            "socket.timeout.ms": self.request_timeout_ms,
            "socket.connection.setup.timeout.ms": max(1_000, setup_ms),
            "api.version.request.timeout.ms": setup_ms,
            "reconnect.backoff.max.ms": 1_000,
            **self._security,
            **{name.replace("_", "."): value for name, value in own.items()},
        }

    def listen(self) -> None:
        """Hear what the clients have to say that nobody has heard, while a question was put, say."""
        for client in self._clients:
            if isinstance(client, Speaking):
                client.listen()

    def _hear(self, error: Any) -> None:
        if error.code() in (_code._ALL_BROKERS_DOWN, _code._TRANSPORT):
            self.cut_off_s = time.monotonic()
        elif access_error(error, Asked("connect", self.bootstrap, self.config)) is not None:
            self._refusal, self._refused_s = error, time.monotonic()

    def deadline_s(self) -> float:
        """When a request that begins now must be answered, by this host's monotonic clock."""
        return time.monotonic() + self.request_timeout_s

    def ask(self, what: str, question: Callable[[], Result], needs: Iterable[Acl] = ()) -> Result:
        """Put a question to the broker, and again while it cannot answer, for the time that a request may take.

        Args:
            what: is asked for, for messages.
            question: asks.
            needs: what must be allowed for it.
        """
        deadline_s = self.deadline_s()
        while True:
            try:
                return question()
            except KafkaException as raised:
                error = error_of(raised)
                if error.code() in MISSING:
                    raise BrokerError(
                        f"cannot {what} at {self.bootstrap}: a topic or partition does not exist ({error}); "
                        f"create the topics first"
                    ) from raised
                if not is_transient(error) or time.monotonic() > deadline_s:
                    self.refuse(what, error, raised, needs)
            time.sleep(RETRY_S)

    def refuse(self, what: str, error: Any, raised: BaseException | None = None, needs: Iterable[Acl] = ()) -> NoReturn:
        """Raise the port's error for one of the client's; for `needs`, see `ask`."""
        is_refused = time.monotonic() - self._refused_s < max(_REFUSAL_S, self.patience_s)
        told = self._refusal if is_refused and is_transient(error) else error
        asked = Asked(what, self.bootstrap, self.config, needs, self.lacking)
        if (refused := access_error(told, asked)) is not None:
            raise refused from raised
        said = f"{error.name()}: {error.str()}"
        if error.code() in FENCED:
            raise FencedError(f"could not {what}: another process has taken over ({said})") from raised
        if error.code() in STALE:
            raise StaleMemberError(f"could not {what}: the group has moved on without this member ({said})") from raised
        if is_transient(error):
            raise BrokerUnavailableError(
                f"could not {what}: Kafka at {self.bootstrap} did not answer as expected within "
                f"{self.request_timeout_ms} ms ({said}); see that it runs and is reachable"
            ) from raised
        raise BrokerError(f"could not {what} at {self.bootstrap} ({said})") from raised

    @contextmanager
    def translating(self, what: str, needs: Iterable[Acl] = ()) -> Iterator[None]:
        """Raise the port's errors for the client's; for `needs`, see `ask`."""
        try:
            yield
        except RAISED as raised:
            self.refuse(what, error_of(raised), raised, needs)
        except (ValueError, TypeError) as raised:
            raise BrokerError(f"could not {what} at {self.bootstrap} ({type(raised).__name__}: {raised})") from raised
