"""How kafka-python comes in at a secured Kafka, and how its refusals are heard.

What kafka-python leaves to its caller:

- It tries again, until nothing is left of the time, to come in with a password that was refused or at a broker whose
  certificate it does not trust, and does not say why. `Manager` keeps such an answer, and the next attempt raises it.
- It throws away what a broker has said in the moment in which it hangs up: why it lets nobody in.
- It builds TLS anew for each connection, and says "handshake failed" of a file that is not there. Here that is done
  once, before anything is connected.
- It sends the name of a SCRAM user as it is, whatever its characters mean there.
- It waits for the end of a handshake without a limit. Here it has what is left of the time to connect.
"""

import ssl
from typing import Any
from weakref import WeakSet

from kafka import errors as kafka_errors
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.transport import KafkaSSLTransport

from stream.kafka.access import Asked, user_of
from stream.kafka.client_config import BY_TOKEN, MECHANISMS, ClientConfig
from stream.kafka.port import AccessError
from stream.kafka.tls import context_of, reason_of
from stream.kafka.token_command import TokenCommand

_NOT_LET_IN = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
_NOT_IN_TIME = (kafka_errors.RequestTimedOutError, kafka_errors.KafkaTimeoutError)
_KINDS = {
    kafka_errors.TopicAuthorizationFailedError.__name__: "topic",
    kafka_errors.GroupAuthorizationFailedError.__name__: "group",
    kafka_errors.TransactionalIdAuthorizationFailedError.__name__: "transactional-id",
    kafka_errors.ClusterAuthorizationFailedError.__name__: "topic",  # of a producer that may write to no topic at all
}
"""What each refusal is about, by the name of its error: some come as the text of another error alone."""


def settings_of(config: ClientConfig) -> dict[str, Any]:
    """The settings of a client of kafka-python.

    Raises:
        ClientConfigError: a certificate or a key cannot be read.
    """
    settings: dict[str, Any] = {"security_protocol": config.security_protocol}
    if config.client_id is not None:
        settings["client_id"] = config.client_id
    if config.uses_tls:
        settings["ssl_context"] = context_of(config)
        settings["ssl_context"].sslsocket_class = _TlsSocket
    if config.uses_sasl:
        settings["sasl_mechanism"] = config.sasl_mechanism
        if config.sasl_mechanism == BY_TOKEN:
            settings["sasl_oauth_token_provider"] = _Tokens(config)
        else:
            assert config.sasl_password is not None
            settings["sasl_plain_username"] = _saslname(config)
            settings["sasl_plain_password"] = config.sasl_password.get_secret_value()
    return settings


def _saslname(config: ClientConfig) -> str:
    """The user's name as the mechanism writes it: in SCRAM = and , mean something (RFC 5802, section 5.1)."""
    name = config.sasl_username or ""
    return name if config.sasl_mechanism == "PLAIN" else name.replace("=", "=3D").replace(",", "=2C")


class _TlsSocket(ssl.SSLSocket):
    """Is closed when its handshake fails or is given up, which kafka-python leaves to the garbage collector."""

    _is_up = False

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise
        self._is_up = True

    def __del__(self) -> None:
        if not self._is_up:
            self.close()


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Keeps why connections failed."""

    def __init__(self, net: Any, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.last_failure: BaseException | None = None
        self._refusals: dict[Any, BaseException] = {}  # by node: what it has answered, and will answer again
        self._transports: WeakSet[Any] = WeakSet()

    def get_connection(self, node_id: Any, **settings: Any) -> Any:
        """A connection; for a node that has refused one, an error."""
        if node_id in self._refusals:
            raise self._refusals[node_id]
        known = self._conns.get(node_id)
        connection = super().get_connection(node_id, **settings)
        if connection is not known:
            connection.close_future.add_errback(lambda error: self._heard(node_id, error))
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """A transport that reads what came before the end; so a broker's last word is heard."""
        if self.ssl_enabled:
            transport = await self._build_tls(node, timeout_at)
        else:
            transport = await super()._build_transport(node, timeout_at=timeout_at)
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, Exception | None]:
            received, error = receive()
            return received, None if received else error  # at the next reading it ends again

        transport._sock_recv = receive_all
        self._transports.add(transport)
        return transport

    def close_sockets(self) -> None:
        """Close what is left open after the end: each connection for which something waits to be written."""
        for transport in self._transports:
            if transport._sock is not None:
                transport._sock.close()

    async def _build_tls(self, node: Any, timeout_at: float | None) -> Any:
        options, proxy_url = self.config["socket_options"], self.config["proxy_url"]
        plain = await create_connection(
            self._net, node.host, node.port, options, proxy_url=proxy_url, timeout_at=timeout_at
        )
        transport = KafkaSSLTransport(self._net, plain, host=node.host, ssl_context=self.config["ssl_context"])
        try:
            while (wait_for := self._shake_hands(transport._sock)) is not None:
                await wait_for(transport._sock, timeout_at)
        except (OSError, kafka_errors.KafkaError) as error:
            raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
        return transport

    def _shake_hands(self, sock: Any) -> Any:
        """Go on with a handshake; what is to be waited for, or None."""
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            return self._net.wait_read
        except ssl.SSLWantWriteError:
            return self._net.wait_write
        return None

    def _heard(self, node_id: Any, error: BaseException) -> None:
        if not isinstance(error, _NOT_IN_TIME):
            self.last_failure = error
        if isinstance(error, (*_NOT_LET_IN, AccessError)) or is_about_tls(error):
            self._refusals[node_id] = error


def access_error(error: BaseException, asked: Asked) -> AccessError | None:
    """The port's error for one by which the broker lets nobody in or forbids something; None for all others."""
    for reason in (error, error.__cause__, *error.args):
        if isinstance(reason, AccessError):
            return reason
        if isinstance(reason, _NOT_LET_IN):
            user, why = user_of(asked.config), _why(reason, asked.config)
            return AccessError(f"Kafka at {asked.bootstrap} does not let {user} in: {why}")
        if isinstance(reason, kafka_errors.KafkaError) and (kind := _kind_of(reason)) is not None:
            return asked.forbidden(kind, _named_in(reason).__contains__)
    told = reason_of(error, asked.config) if is_about_tls(error) else None
    return AccessError(f"no connection to Kafka at {asked.bootstrap}: {told}") if told else None


def is_refusal(error: object) -> bool:
    """Whether somebody was not allowed to do something."""
    return isinstance(error, kafka_errors.KafkaError) and _kind_of(error) is not None


def hint_of(failure: BaseException | None, config: ClientConfig) -> str:
    """What may be wrong when a broker is there, and closes the connections; else nothing."""
    if not isinstance(failure, kafka_errors.KafkaProtocolError) and "socket disconnected" not in str(failure):
        return ""
    by = f"{config.security_protocol} {config.sasl_mechanism}" if config.uses_sasl else config.security_protocol
    return (
        "; something listens there, and speaks otherwise: does it expect another security.protocol or "
        f"sasl.mechanism than {by}?"
    )


def is_about_tls(error: BaseException) -> bool:
    """Whether a connection failed by TLS."""
    return any(isinstance(one, ssl.SSLError) for one in (error, error.__context__, *error.args))


def _why(reason: BaseException, config: ClientConfig) -> str:
    if isinstance(reason, kafka_errors.UnsupportedSaslMechanismError):
        others = ", ".join(one for one in MECHANISMS if one != config.sasl_mechanism)
        return f"it does not offer sasl.mechanism={config.sasl_mechanism}; ask which it does offer ({others})"
    if isinstance(reason, kafka_errors.IllegalSaslStateError):
        protocol = "SSL" if config.uses_tls else "PLAINTEXT"
        return f"it knows no SASL at this port; is security.protocol={protocol} right, or the port?"
    if config.sasl_mechanism == BY_TOKEN:
        return "it does not accept the token that sasl.oauthbearer.token.command has printed"
    return f"the name or the password is wrong (sasl.username, sasl.password; {config.sasl_mechanism})"


def _named_in(reason: BaseException) -> set[str]:
    """The resources that an answer names."""
    named: set[str] = set()
    for one in reason.args:
        named |= {str(name) for name in one} if isinstance(one, set | list | tuple) else {str(one)}
    return named


def _kind_of(error: BaseException) -> str | None:
    return next((kind for name, kind in _KINDS.items() if name in f"{type(error).__name__} {error}"), None)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of a command, for kafka-python."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__()
        assert config.sasl_oauthbearer_token_command is not None
        self._command = TokenCommand(config.sasl_oauthbearer_token_command)

    def token(self) -> str:
        """A token that is valid."""
        return self._command.token().value
