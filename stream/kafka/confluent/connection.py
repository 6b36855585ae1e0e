"""Connects with confluent-kafka and translates its errors.

kafka-python connects first, for topics and groups (`ConfluentBroker`), and reports why access is denied. This module
handles later refusals, for example after an ACL, a password or a certificate has changed. After a refusal, librdkafka
retries forever and reports the refusal only through its error callback.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from stream.kafka.client_config import BY_TOKEN, ClientConfig
from stream.kafka.connection import Connection, ConnectionSettings
from stream.kafka.port import (
    AccessError,
    Acl,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    StaleMemberError,
    TransactionTimeoutError,
)
from stream.kafka.token_command import TokenCommand

_REFUSAL_S = 15.0  # maximum interval between a client's reports of denied access
_STATISTICS_MS = 1_000
_TOKEN_S = 300.0  # assumed lifetime of a token without an expiry time


_code: Any = KafkaError  # mypy does not know the attributes for the error codes

RAISED = (KafkaException, SystemError)
"""Exceptions that the client raises. If a call that runs a callback ends with a fatal error, Python raises SystemError
instead of KafkaException, and the callback can clear the fatal error."""

CLEARED = _code(_code._FATAL, "the client stopped, and a callback cleared the reason", True)

FENCED = frozenset(
    (_code._FENCED, _code._FATAL, _code.PRODUCER_FENCED, _code.INVALID_PRODUCER_EPOCH, _code.FENCED_INSTANCE_ID)
)
"""Error codes for a client whose place another process has taken. A consumer has no other fatal errors."""

_STALE = frozenset((_code.ILLEGAL_GENERATION, _code.UNKNOWN_MEMBER_ID, _code.REBALANCE_IN_PROGRESS))
_MISSING = frozenset((_code.UNKNOWN_TOPIC_OR_PART, _code._UNKNOWN_TOPIC, _code._UNKNOWN_PARTITION))
_CUT_OFF = frozenset((_code._ALL_BROKERS_DOWN, _code._TRANSPORT))
_TRANSIENT = _CUT_OFF | frozenset(
    (
        _code._TIMED_OUT, _code._MSG_TIMED_OUT, _code._TIMED_OUT_QUEUE, _code._RESOLVE, _code._WAIT_COORD,
        _code._WAIT_CACHE, _code._UNKNOWN_BROKER, _code._RETRY, _code._PURGE_QUEUE, _code._PURGE_INFLIGHT,
        _code._DESTROY, _code._IN_PROGRESS, _code.LEADER_NOT_AVAILABLE, _code.NOT_LEADER_FOR_PARTITION,
        _code.REQUEST_TIMED_OUT, _code.BROKER_NOT_AVAILABLE, _code.REPLICA_NOT_AVAILABLE, _code.NETWORK_EXCEPTION,
        _code.COORDINATOR_LOAD_IN_PROGRESS, _code.COORDINATOR_NOT_AVAILABLE, _code.NOT_COORDINATOR,
        _code.NOT_ENOUGH_REPLICAS, _code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _code.KAFKA_STORAGE_ERROR,
        _code.UNSTABLE_OFFSET_COMMIT, _code.CONCURRENT_TRANSACTIONS, _code.NOT_CONTROLLER,
        _code.FENCED_LEADER_EPOCH, _code.UNKNOWN_LEADER_EPOCH,
    )
)  # fmt: skip
_NOT_LET_IN = frozenset((_code._AUTHENTICATION, _code.SASL_AUTHENTICATION_FAILED))
_FORBIDDEN = {
    _code.TOPIC_AUTHORIZATION_FAILED: "topic",
    _code.GROUP_AUTHORIZATION_FAILED: "group",
    _code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    _code.CLUSTER_AUTHORIZATION_FAILED: "topic",  # raised for a producer that is not allowed to write to any topic
}
"""The kind of resource to which each error denies access."""


def is_transient(error: Any) -> bool:
    """Return whether a retry may succeed."""
    return bool(error.retriable()) or error.code() in _TRANSIENT


def is_refusal(error: Any) -> bool:
    """Return whether the error reports a missing ACL."""
    return error.code() in _FORBIDDEN


def error_of(raised: BaseException) -> Any:
    """Return the client error contained in an exception that the client raised."""
    if not isinstance(raised, KafkaException):
        return CLEARED if raised.__cause__ is None else error_of(raised.__cause__)
    return raised.args[0]


class ConfluentConnection(Connection):
    """See Connection."""

    RAISED = RAISED

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self.cut_off_s = 0.0  # monotonic time of the last report that the broker is unreachable
        self.producers: list[Any] = []  # clients that report errors only when they are polled
        self._security = _security_of(settings.config)
        self._refusal: Any = None  # the last error that denied access
        self._refused_s = -math.inf  # monotonic time of the last error that denied access

    def properties(
        self, logger: Any = None, on_statistics: Callable[[str], None] | None = None, **own: Any
    ) -> dict[str, Any]:
        """Return a client's librdkafka properties: the common ones and `own`, with dots written as `_` in `own`.

        A logger receives the log, down to debug lines, whenever the client is polled. `on_statistics` then receives the
        client's statistics (JSON).
        """
        return {
            "bootstrap.servers": ",".join(self.servers),
            # librdkafka logs errors that it retries; final errors are raised. Without a logger, nothing reads its queue
            # of log lines.
            **({"log_level": 0} if logger is None else {"log_level": 7, "logger": logger}),
            "log.queue": True,
            **({} if on_statistics is None else {"statistics.interval.ms": _STATISTICS_MS, "stats_cb": on_statistics}),
            "error_cb": self._on_error,
            "socket.timeout.ms": self.request_timeout_ms,
            "socket.connection.setup.timeout.ms": max(1_000, self.setup_timeout_ms),
            "api.version.request.timeout.ms": self.setup_timeout_ms,
            "reconnect.backoff.max.ms": 1_000,
            **self._security,
            **{name.replace("_", "."): value for name, value in own.items()},
        }

    def call(self, what: str, call: Callable[[], Any]) -> None:
        """Run a call with a timeout, because it may never return.

        Raises:
            BrokerUnavailableError: the call did not return in time. The client can no longer be used.
        """
        try:
            bounded(call, self.patience_s)
        except TimeoutError as error:
            self.cut_off_s = time.monotonic()  # clients were not polled during the call, so they reported no errors
            raise self.unanswered(what) from error

    def _on_error(self, error: Any) -> None:
        if error.code() in _CUT_OFF:
            self.cut_off_s = time.monotonic()
        elif is_refusal(error) or _is_not_let_in(error):
            self._refusal, self._refused_s = error, time.monotonic()

    def classify(self, error: Any) -> tuple[type[BrokerError], str]:
        """See Connection."""
        if not isinstance(error, RAISED):
            return BrokerError, f"{type(error).__name__}: {error}"
        found = error_of(error)
        code, text = found.code(), f"{found.name()}: {found.str()}"
        if code in _MISSING:
            return BrokerError, f"a topic or partition does not exist: {text}; create the topics first"
        if code == _code.INVALID_TRANSACTION_TIMEOUT:
            return TransactionTimeoutError, text
        for kind, codes in ((FencedError, FENCED), (StaleMemberError, _STALE)):
            if code in codes:
                return kind, text
        return BrokerUnavailableError if is_transient(found) else BrokerError, text

    def access_error(self, what: str, error: Any, needs: Iterable[Acl]) -> AccessError | None:
        """See Connection."""
        if not isinstance(error, RAISED):
            return None
        found = error_of(error)
        if is_transient(found) and time.monotonic() - self._refused_s < max(_REFUSAL_S, self.patience_s):
            found = self._refusal
        if is_refusal(found):
            return self.forbidden(what, needs, _FORBIDDEN[found.code()], lambda name: name in found.str())
        if _is_not_let_in(found):
            return AccessError(f"Kafka at {self.bootstrap} no longer accepts this client: {found.str()}")
        return None


def _is_not_let_in(error: Any) -> bool:
    return error.code() in _NOT_LET_IN or (error.code() == _code._SSL and "certificate" in error.str())


def _security_of(config: ClientConfig) -> dict[str, Any]:
    properties: dict[str, Any] = dict(config.librdkafka())
    if config.sasl_mechanism == BY_TOKEN:
        command = TokenCommand(config.sasl_oauthbearer_token_command or "")

        def token(_: str) -> tuple[str, float, str, dict[str, str]]:  # runs on a librdkafka thread
            found = command.token()
            return found.value, found.expires_s or time.time() + _TOKEN_S, "", {}

        properties["oauth_cb"] = token
    return properties


T = TypeVar("T")

_SLICE_S = 0.1
"""Length of the slices into which a wait is divided. If the whole process is paused, the pause counts as a single
slice. A result that becomes available during the pause is therefore still returned."""


def bounded(call: Callable[[], T], seconds: float) -> T:
    """Run a call with a timeout. Return its result or raise its exception.

    The call runs in a daemon thread. The thread keeps a reference to the client until the call ends, so that no other
    thread blocks in the client's destructor.

    Raises:
        TimeoutError: the call did not return in time. The client can no longer be used.
    """
    if sys.is_finalizing():  # no thread can start any more: Thread.start would wait forever
        return call()
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except Exception as error:  # raised in the calling thread
            made.set_exception(error)

    Thread(target=make, name="onebit-bounded", daemon=True).start()
    while seconds > _SLICE_S and not wait((made,), _SLICE_S).done:
        seconds -= _SLICE_S
    return made.result(seconds)
