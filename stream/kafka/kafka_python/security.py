"""Connects to secured Kafka clusters with kafka-python and explains why access is denied.

Workarounds for kafka-python:

- If the broker rejects a password, or the broker's certificate is not trusted, the client retries until its timeout
  expires and does not report the reason. `Manager` keeps the error and raises it at the next attempt.
- The client discards data that a broker sends just before closing the connection. The data can contain the reason for
  the refusal.
- The client creates a TLS context for each connection and reports "handshake failed" if a file is missing. Here, the
  context is created once, before connecting.
- The client does not escape a SCRAM user's name.
- The client waits indefinitely for a TLS handshake. Here, the handshake must complete within the time that remains for
  connecting.
"""

import ssl
from typing import Any
from weakref import WeakSet

from kafka import errors as kafka_errors
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.transport import KafkaSSLTransport

from stream.kafka.client_config import BY_TOKEN, ClientConfig
from stream.kafka.port import AccessError
from stream.kafka.tls import context_of, tls_error_of
from stream.kafka.token_command import TokenCommand

NOT_LET_IN = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
_TIMEOUTS = (kafka_errors.RequestTimedOutError, kafka_errors.KafkaTimeoutError)


def settings_of(config: ClientConfig) -> dict[str, Any]:
    """Return the settings for a kafka-python client.

    Raises:
        ClientConfigError: a certificate or a key cannot be read.
    """
    settings: dict[str, Any] = {"security_protocol": config.security_protocol, "client_id": config.client_id}
    if config.uses_tls:
        settings["ssl_context"] = context_of(config)
    if config.uses_sasl:
        settings["sasl_mechanism"] = config.sasl_mechanism
        if config.sasl_mechanism == BY_TOKEN:
            settings["sasl_oauth_token_provider"] = _Tokens(config.sasl_oauthbearer_token_command)
        else:
            assert config.sasl_password is not None
            name = config.sasl_username or ""
            if config.sasl_mechanism != "PLAIN":  # SCRAM escapes = and , (RFC 5802, section 5.1)
                name = name.replace("=", "=3D").replace(",", "=2C")
            settings["sasl_plain_username"] = name
            settings["sasl_plain_password"] = config.sasl_password.get_secret_value()
    return settings


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """A connection manager that keeps the reasons for failed connections."""

    def __init__(self, net: Any, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.last_failure: BaseException | None = None
        self._failures: dict[Any, BaseException] = {}  # each node's last error
        self._refusals: dict[Any, BaseException] = {}  # errors by node; a retry would fail with the same error
        self._transports: WeakSet[Any] = WeakSet()

    def get_connection(self, node_id: Any, **settings: Any) -> Any:
        """Return a connection to a node. If the node has already refused a connection, raise the same error again."""
        if node_id in self._refusals:
            raise self._refusals[node_id]
        known = self._conns.get(node_id)
        connection = super().get_connection(node_id, **settings)
        if connection is not known:
            connection.close_future.add_errback(lambda error: self._on_failure(node_id, error))
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """Build a transport that returns all data received before the connection was closed."""
        if self.ssl_enabled:
            transport = await self._build_tls(node, timeout_at)
        else:
            transport = await super()._build_transport(node, timeout_at=timeout_at)
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, Exception | None]:
            received, error = receive()
            return received, None if received else error  # the next call reports the error again

        transport._sock_recv = receive_all
        self._transports.add(transport)
        return transport

    def close(self, node_id: Any = None, timeout_ms: float | None = None) -> None:
        """Close connections, including those that kafka-python leaves open because of unwritten data."""
        super().close(node_id, timeout_ms)
        if node_id is None:
            for transport in list(self._transports):  # the client's thread can add transports
                transport._close()

    async def _build_tls(self, node: Any, timeout_at: float | None) -> Any:
        options, proxy_url = self.config["socket_options"], self.config["proxy_url"]
        plain = await create_connection(
            self._net, node.host, node.port, options, proxy_url=proxy_url, timeout_at=timeout_at
        )
        transport = KafkaSSLTransport(self._net, plain, host=node.host, ssl_context=self.config["ssl_context"])
        try:
            while True:
                try:
                    transport._sock.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._net.wait_read(transport._sock, timeout_at)
                except ssl.SSLWantWriteError:
                    await self._net.wait_write(transport._sock, timeout_at)
        except BaseException as error:  # kafka-python leaves the socket to the garbage collector
            transport._sock.close()
            if isinstance(error, OSError | kafka_errors.KafkaError):
                raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport

    def unreachable(self) -> dict[str, BaseException]:
        """Return the addresses in the cluster's metadata to which connections have failed, with the last error."""
        nodes = {node.node_id: f"{node.host}:{node.port}" for node in self.cluster.brokers()}
        connected = {node_id for node_id, connection in self._conns.items() if connection.connected}
        return {
            address: self._failures[node_id]
            for node_id, address in nodes.items()
            if node_id in self._failures and node_id not in connected
        }

    def _on_failure(self, node_id: Any, error: BaseException) -> None:
        self._failures[node_id] = error
        if not isinstance(error, _TIMEOUTS):
            self.last_failure = error
        if isinstance(error, (*NOT_LET_IN, AccessError)) or tls_error_of(error) is not None:
            self._refusals[node_id] = error


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Provides kafka-python with tokens from a command."""

    def __init__(self, command: str | None) -> None:
        super().__init__()
        self._command = TokenCommand(command or "")

    def token(self) -> str:
        """Return a valid token."""
        return self._command.token().value
