"""Connecting to Kafka, asking it, and its answers and errors in the words of the port.

What kafka-python leaves to its caller:

- A client whose constructor cannot connect leaves its thread and its sockets behind. `Connection.make` closes them, and
  `_Socket` the socket of each attempt that failed. One that is closed while it writes leaves that socket behind.
- A connection to a broker that froze is given 10 s, later 30 s, before another is tried. Here it is given less.
- For a moment after an outage a partition has no leader, and the client asks "broker -1": such errors are transient,
  though the client does not call them retriable.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from stream.kafka.access import Asked, Lacking, everything
from stream.kafka.bootstrap import servers_of
from stream.kafka.client_config import ClientConfig
from stream.kafka.kafka_python.security import Manager, access_error, hint_of, settings_of
from stream.kafka.open_clients import OpenClients
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, FencedError, StaleMemberError

Result = TypeVar("Result")

RETRY_S = 0.1
CLOSE_S = 5.0

_SLACK_S = 2.0  # what a wait here is longer than the client's own time-out, so that the client's reason is heard
_CONNECTION_MS_MAX = 5_000

FENCED = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.FencedInstanceIdError,
)
STALE = (
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
)
TRANSIENT = (kafka_errors.RetriableError, kafka_errors.UnknownBrokerIdError)


class Connection(OpenClients):
    """How a Kafka is reached, and the clients that are open there."""

    def __init__(self, bootstrap: str, request_timeout_ms: int, config: ClientConfig) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.config = config
        self.request_timeout_ms = request_timeout_ms
        self.patience_s = request_timeout_ms / 1000 + _SLACK_S
        self._servers = servers_of(bootstrap)
        self._security = settings_of(config)
        self._failure: BaseException | None = None  # of the last client that could not be made
        self.lacking: Lacking = everything
        _quieten()

    def deadline_s(self) -> float:
        """When a request that begins now must be answered, by this host's monotonic clock."""
        return time.monotonic() + self.request_timeout_ms / 1000

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
            except kafka_errors.UnknownTopicOrPartitionError as error:
                raise BrokerError(
                    f"cannot {what} at {self.bootstrap}: a topic or partition does not exist ({error}); "
                    f"create the topics first"
                ) from error
            except kafka_errors.KafkaError as error:
                if not isinstance(error, TRANSIENT) or time.monotonic() > deadline_s:
                    self.refuse(what, error, needs)
            time.sleep(RETRY_S)

    def refuse(self, what: str, error: BaseException, needs: Iterable[Acl] = ()) -> NoReturn:
        """Raise the port's error for one of the client's; for `needs`, see `ask`."""
        asked = Asked(what, self.bootstrap, self.config, needs, self.lacking)
        if (refused := access_error(error, asked)) is not None:
            raise refused from error
        chain = [error, error.__cause__, *error.args]  # kafka-python hands the reason on as a second argument
        reason = next((one for one in chain if isinstance(one, (*FENCED, *STALE))), error)
        said = f"{type(reason).__name__}: {reason}"
        if isinstance(reason, FENCED):
            raise FencedError(f"could not {what}: another process has taken over ({said})") from error
        if isinstance(reason, STALE):
            raise StaleMemberError(f"could not {what}: the group has moved on without this member ({said})") from error
        if isinstance(reason, TRANSIENT):
            raise BrokerUnavailableError(
                f"could not {what}: Kafka at {self.bootstrap} did not answer as expected within "
                f"{self.request_timeout_ms} ms ({said}); see that it runs and is reachable"
            ) from error
        raise BrokerError(f"could not {what} at {self.bootstrap} ({said})") from error

    @contextmanager
    def translating(self, what: str, needs: Iterable[Acl] = ()) -> Iterator[None]:
        """Raise the port's errors for the client's; for `needs`, see `ask`."""
        try:
            yield
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            self.refuse(what, error, needs)

    def forbid(self, what: str, missing: Sequence[Acl]) -> NoReturn:
        """Raise the error for rights that are missing, as an answer of the broker tells."""
        raise Asked(what, self.bootstrap, self.config).lacks(missing)

    def make(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Make a client of kafka-python; one that cannot connect leaves nothing open."""
        made: list[Any] = []

        def network(**configs: Any) -> Any:
            setup_ms = min(self.request_timeout_ms, _CONNECTION_MS_MAX)
            configs |= {
                "socket_connection_setup_timeout_ms": setup_ms,
                "socket_connection_setup_timeout_max_ms": setup_ms,
            }
            net = NetworkSelector(**configs)
            made.append(_NetClient(net, Manager(net, **configs)))
            return made[-1]

        try:
            return kind(
                **{
                    "bootstrap_servers": self._servers,
                    "bootstrap_timeout_ms": self.request_timeout_ms,
                    "request_timeout_ms": self.request_timeout_ms,
                    "reconnect_backoff_max_ms": 1000,
                    "kafka_client": network,
                    "proxy_url": "direct://",  # no proxy: see _Socket
                    **self._security,
                    **settings,
                }
            )
        except BaseException:
            for client in made:
                self._failure = client._manager.last_failure
                client.close()
            if self._failure is not None:
                refused = access_error(self._failure, Asked("connect", self.bootstrap, self.config))
                if refused is not None:
                    raise refused from self._failure
            raise

    def hint(self) -> str:
        """What may be wrong, when the last attempt to connect has failed in a way that tells."""
        return hint_of(self._failure, self.config)


class _NetClient(KafkaNetClient):  # type: ignore[misc]
    """Leaves no socket open when it is closed."""

    def close(self, node_id: Any = None) -> None:
        super().close(node_id)
        if node_id is None:
            self._manager.close_sockets()


class _Socket(KafkaNetSocket):  # type: ignore[misc]
    """Closes the socket of a failed attempt, which kafka-python leaves open; chosen by the scheme of `proxy_url`."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


def _quieten() -> None:
    """kafka-python logs as errors what it then retries; what is final is raised. A level set by the user stands."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
