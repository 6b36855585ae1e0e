"""How confluent-kafka comes in at a secured Kafka, and how its refusals are heard.

Who connects is let in, or hears why not, by kafka-python, which the adapter asks for topics and groups before it makes
any client of its own (`stream.kafka.confluent.admin`). What is left here is what comes later: that something is not
allowed, and that a password or a certificate has changed meanwhile. librdkafka tries again for ever then, and says so
beside what it was asked.
"""

import time
from typing import Any

from confluent_kafka import KafkaError

from stream.kafka.access import Asked
from stream.kafka.client_config import BY_TOKEN, ClientConfig
from stream.kafka.port import AccessError
from stream.kafka.token_command import TokenCommand

_code: Any = KafkaError  # its codes are attributes that mypy does not see

_NOT_LET_IN = frozenset((_code._AUTHENTICATION, _code.SASL_AUTHENTICATION_FAILED))
_KINDS = {
    _code.TOPIC_AUTHORIZATION_FAILED: "topic",
    _code.GROUP_AUTHORIZATION_FAILED: "group",
    _code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    _code.CLUSTER_AUTHORIZATION_FAILED: "topic",  # of a producer that may write to no topic at all
}
"""What each refusal is about."""

_TOKEN_S = 300.0
"""A token that does not tell when it ends is taken to be valid for so long, and another is got then."""


def security_of(config: ClientConfig) -> dict[str, Any]:
    """The properties of a client of confluent-kafka."""
    properties: dict[str, Any] = dict(config.librdkafka())
    if not config.uses_tls:
        del properties["ssl.endpoint.identification.algorithm"]
    if config.uses_sasl and config.sasl_mechanism == BY_TOKEN:
        assert config.sasl_oauthbearer_token_command is not None
        properties["oauth_cb"] = _Tokens(config.sasl_oauthbearer_token_command)
    return properties


class _Tokens:
    """Tokens of a command, for librdkafka: it asks from a thread of its own, in time before a token ends."""

    def __init__(self, command: str) -> None:
        self._command = TokenCommand(command)

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        token = self._command.token()
        return token.value, token.expires_s or time.time() + _TOKEN_S, token.subject, {}


def access_error(error: Any, asked: Asked) -> AccessError | None:
    """The port's error for one by which the broker lets nobody in or forbids something; None for all others."""
    if error.code() in _KINDS:
        return asked.forbidden(_KINDS[error.code()], lambda name: name in error.str())
    if error.code() in _NOT_LET_IN or (error.code() == _code._SSL and "certificate" in error.str()):
        return AccessError(f"Kafka at {asked.bootstrap} does not let this client in any more: {error.str()}")
    return None


def is_refusal(error: Any) -> bool:
    """Whether somebody was not allowed to do something."""
    return error.code() in _KINDS
