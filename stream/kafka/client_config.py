"""How a client comes in at a Kafka: by TLS, by a user's name and password, by a token; in librdkafka's property names.

Files of properties are those that a company hands out for Kafka's Java client or for librdkafka. What both understand
is taken; Java's spelling of a user, and its stores in PEM, are translated. What changes how Onebit reads or writes is
refused, and so is every name that is not known: a property that has no effect would be noticed too late.

Nothing here shows a secret: neither an error, nor a repr.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import SecretStr

from stream.kafka.port import BrokerError
from stream.near_names import close_matches

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BY_TOKEN = "OAUTHBEARER"  # noqa: S105  # the name of a mechanism
MECHANISMS = (*BY_PASSWORD, BY_TOKEN)
CHECKS_OF_NAME = ("https", "none")

BOOTSTRAP = "bootstrap.servers"


class ClientConfigError(BrokerError):
    """Properties with which no client can be made; the message names the property, what was expected, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client comes in. A field is a property, with _ for its dots."""

    security_protocol: str = "PLAINTEXT"  # one of PROTOCOLS
    sasl_mechanism: str | None = None  # one of MECHANISMS
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_oauthbearer_token_command: str | None = None  # Onebit's own: a command that prints a token
    ssl_ca_location: str | None = None  # PEM; None: the certificates that this machine trusts
    ssl_certificate_location: str | None = None  # PEM
    ssl_key_location: str | None = None  # PEM
    ssl_key_password: SecretStr | None = None
    ssl_endpoint_identification_algorithm: str = "https"  # one of CHECKS_OF_NAME
    client_id: str | None = None

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client says who it is by SASL."""
        return self.security_protocol.startswith("SASL_")

    def librdkafka(self) -> dict[str, str]:
        """The properties as librdkafka takes them, secrets in the clear; the token command is its caller's to run."""
        own = "sasl_oauthbearer_token_command"
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != own}
        return {property_of(name): _plain(value) for name, value in given.items() if value is not None}


def property_of(field: str) -> str:
    """The property that a field of ClientConfig holds.

    >>> property_of("ssl_ca_location")
    'ssl.ca.location'
    """
    return field.replace("_", ".")


PROPERTIES = tuple(property_of(field.name) for field in fields(ClientConfig))
SECRETS = frozenset(("sasl.password", "ssl.key.password"))

_CHOICES = {
    "security.protocol": PROTOCOLS,
    "sasl.mechanism": MECHANISMS,
    "ssl.endpoint.identification.algorithm": CHECKS_OF_NAME,
}

_TOKENS = f"give sasl.mechanism={BY_TOKEN} and sasl.oauthbearer.token.command, a command that prints a token"
_PEM = (
    "Java's key stores (JKS, PKCS12) are not read; export PEM files, and name them by ssl.ca.location, "
    "ssl.certificate.location, ssl.key.location: see docs/security.md"
)
_OWN = "Onebit sets it itself, since its promises depend on it: take the line out"

_REFUSED = {
    "sasl.login.callback.handler.class": _TOKENS,
    "sasl.client.callback.handler.class": _TOKENS,
    "sasl.oauthbearer.": _TOKENS,
    "sasl.kerberos.": f"Kerberos is not supported; expected one of the mechanisms {', '.join(MECHANISMS)}",
    "ssl.keystore.": _PEM,
    "ssl.truststore.": _PEM,
    "enable.ssl.certificate.verification": (
        "certificates are always verified; name your own authority by ssl.ca.location; that the name differs can be "
        "allowed by ssl.endpoint.identification.algorithm=none"
    ),
    "client.dns.lookup": "all addresses of a name are tried in any case: take the line out",
    "session.timeout.ms": "it is a setting of its own, session_timeout: take the line out",
    "transaction.timeout.ms": "it is a setting of its own, transaction_timeout: take the line out",
    **dict.fromkeys(
        ("acks", "auto.offset.reset", "batch.size", "compression.type", "delivery.timeout.ms", "enable.auto.commit",
         "enable.idempotence", "group.id", "group.instance.id", "isolation.level", "key.deserializer", "key.serializer",
         "linger.ms", "max.in.flight.requests.per.connection", "partitioner", "partitioner.class",
         "partition.assignment.strategy", "request.timeout.ms", "retries", "transactional.id", "value.deserializer",
         "value.serializer"),
        _OWN,
    ),
}  # fmt: skip
"""Properties of other clients that cannot be taken over, or what they begin with, and what to do instead."""

_JAAS = re.compile(r"[\w.]*\.(?P<module>Scram|Plain)LoginModule\s+required\b(?P<options>.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    """The configuration that properties make.

    Raises:
        ClientConfigError: an unknown property, a value that is not accepted, or values that do not go together.
    """
    translated = _translated(properties)
    unknown = [_unknown(name) for name in translated if name not in PROPERTIES]
    if unknown:  # all at once: the files that companies hand out have several
        raise ClientConfigError("; ".join(unknown))
    values = {name: _value(name, text) for name, text in translated.items()}
    config = ClientConfig(**{name.replace(".", "_"): value for name, value in values.items()})  # type: ignore[arg-type]
    _check(config)
    return config


def read_properties(path: Path) -> dict[str, str]:
    """The properties of a file: NAME=VALUE lines, # before comments, a backslash where a line goes on in the next.

    Raises:
        ClientConfigError: the file cannot be read, or a line is no property.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ClientConfigError(f"{path}: the properties cannot be read: {reason}") from None
    found: dict[str, str] = {}
    for number, line in _whole_lines(lines):
        read = _PROPERTY.fullmatch(line)
        if read is None:  # the line is not shown: it may hold a secret
            raise ClientConfigError(f"{path}, line {number}: expected NAME=VALUE, or # before a comment")
        name, value = read.groups()
        if name in found:
            raise ClientConfigError(f"{path}, line {number}: {name} stands there twice; leave one")
        if name in SECRETS and "\\" in value:
            raise ClientConfigError(
                f"{path}, line {number}: {name} has a backslash, which Java's files and librdkafka's mean differently; "
                f"take the line out, and give it by the variable ONEBIT_{name.replace('.', '_').upper()}"
            )
        found[name] = _of_java(value) if name == "sasl.jaas.config" else re.sub(r"\\([:=#!])", r"\1", value)
    return found


_PROPERTY = re.compile(r"([\w.-]+)\s*[=:]\s*(.*?)\s*", re.DOTALL)
_JAVA_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_JAVA_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _of_java(value: str) -> str:
    """A value as Java reads it from a file of properties, where a backslash escapes what follows."""
    return _JAVA_ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _JAVA_CHARACTERS.get(found[2], found[2]), value
    )


def _whole_lines(lines: list[str]) -> list[tuple[int, str]]:
    """The lines that say something, each with its number; what goes on in the next line is one."""
    whole: list[tuple[int, str]] = []
    goes_on = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if goes_on:
            whole[-1] = (whole[-1][0], whole[-1][1] + text)
        elif text and text[0] not in "#!":
            whole.append((number, text))
        else:
            continue
        goes_on = whole[-1][1].endswith("\\") and not whole[-1][1].endswith("\\\\")
        if goes_on:
            whole[-1] = (whole[-1][0], whole[-1][1][:-1])
    return whole


def _translated(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties by librdkafka's names, whichever client they were written for."""
    given = {name: value for name, value in properties.items() if name != BOOTSTRAP}
    mechanism = given.pop("sasl.mechanisms", None)
    if mechanism is not None and given.setdefault("sasl.mechanism", mechanism) != mechanism:
        raise ClientConfigError("sasl.mechanism and sasl.mechanisms mean the same, and differ; leave one")
    if (jaas := given.pop("sasl.jaas.config", None)) is not None:
        for name, value in _of_jaas(jaas, given.get("sasl.mechanism")).items():
            given.setdefault(name, value)
    if given.get("ssl.truststore.type", "").upper() == "PEM" and "ssl.truststore.location" in given:
        del given["ssl.truststore.type"]
        given.setdefault("ssl.ca.location", given.pop("ssl.truststore.location"))
    if given.get("ssl.keystore.type", "").upper() == "PEM" and "ssl.keystore.location" in given:
        del given["ssl.keystore.type"]
        location = given.pop("ssl.keystore.location")
        given.setdefault("ssl.certificate.location", location)
        given.setdefault("ssl.key.location", location)
    if given.get("ssl.endpoint.identification.algorithm") == "":  # so Java says it
        given["ssl.endpoint.identification.algorithm"] = "none"
    return given


def _of_jaas(text: str, mechanism: str | None) -> dict[str, str]:
    """The user that Java's login module names."""
    found = _JAAS.fullmatch(text.strip())
    if found is None:
        raise ClientConfigError(
            "sasl.jaas.config: expected PlainLoginModule or ScramLoginModule required username=... password=...; of "
            f"other modules nothing is taken over; for tokens {_TOKENS}"
        )
    if _JAAS_OPTION.sub("", found["options"]).strip():
        raise ClientConfigError(
            "sasl.jaas.config: expected NAME=VALUE options with nothing between them but blanks; got something else: a "
            'quote within quotes is written \\" in a file of properties'
        )
    options = {name: next(filter(None, values), "") for name, *values in _JAAS_OPTION.findall(found["options"])}
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in options.items()}
    if set(options) != {"username", "password"}:
        raise ClientConfigError(
            f"sasl.jaas.config: expected username=... and password=...; got {', '.join(sorted(options)) or 'neither'}"
        )
    if mechanism is None and found["module"] == "Scram":
        raise ClientConfigError("sasl.jaas.config: its module is that of SCRAM; add sasl.mechanism=SCRAM-SHA-512")
    return {f"sasl.{name}": value for name, value in options.items()} | {"sasl.mechanism": mechanism or "PLAIN"}


def _unknown(name: str) -> str:
    what = next((what for start, what in _REFUSED.items() if name == start or name.startswith(_dotted(start))), None)
    if what is not None:
        return f"{name}: {what}"
    hint = close_matches(name, (*PROPERTIES, BOOTSTRAP)) or ", see docs/security.md: take the line out"
    return f"{name}: no property of this name is known{hint}"


def _dotted(start: str) -> str:
    return start if start.endswith(".") else start + "\0"


def _value(name: str, text: str) -> str | SecretStr:
    """A property's value; of a choice in whatever letters."""
    if name in SECRETS:
        return SecretStr(text)
    if name in _CHOICES:
        by_letters = {choice.upper(): choice for choice in _CHOICES[name]}
        if text.upper() not in by_letters:
            raise ClientConfigError(f"{name}: expected one of {', '.join(_CHOICES[name])}; got {text!r}")
        return by_letters[text.upper()]
    if not text:
        raise ClientConfigError(f"{name}: expected a value; got none: take it out, or give one")
    return text


def _check(config: ClientConfig) -> None:
    """Refuse what does not go together.

    Raises:
        ClientConfigError: says what is missing, or has no effect.
    """
    given = {field.name for field in fields(ClientConfig) if getattr(config, field.name) != field.default}
    sasl, tls = (sorted(name for name in given if name.startswith(start)) for start in ("sasl_", "ssl_"))
    if sasl and not config.uses_sasl:
        raise ClientConfigError(_without_effect(config, sasl[0], "SASL_SSL"))
    if tls and not config.uses_tls:
        raise ClientConfigError(_without_effect(config, tls[0], "SASL_SSL" if config.uses_sasl else "SSL"))
    if config.uses_sasl:
        _check_sasl(config)
    if (config.ssl_certificate_location is None) != (config.ssl_key_location is None):
        raise ClientConfigError(
            "ssl.certificate.location and ssl.key.location: a client's certificate needs its key, and a key its "
            "certificate; give both (one PEM file may hold both)"
        )


def _without_effect(config: ClientConfig, field: str, protocol: str) -> str:
    return (
        f"security.protocol: with {config.security_protocol} {property_of(field)} has no effect; expected {protocol}: "
        f"security.protocol={protocol}"
    )


def _check_sasl(config: ClientConfig) -> None:
    protocol, mechanism = config.security_protocol, config.sasl_mechanism
    if mechanism is None:
        raise ClientConfigError(f"sasl.mechanism: {protocol} needs one of {', '.join(MECHANISMS)}; got none")
    needed = ("sasl_username", "sasl_password") if mechanism in BY_PASSWORD else ("sasl_oauthbearer_token_command",)
    for field in needed:
        if not _plain(getattr(config, field) or ""):
            how = (
                " (by the variable ONEBIT_SASL_PASSWORD, or in the file of properties)"
                if field == "sasl_password"
                else ""
            )
            raise ClientConfigError(f"{property_of(field)}: {mechanism} needs it; got none{how}")
    if mechanism == BY_TOKEN:
        _check_command(config.sasl_oauthbearer_token_command or "")


def _check_command(command: str) -> None:
    try:
        wrong = "" if shlex.split(command) else "it is empty"
    except ValueError as error:
        wrong = str(error).lower()
    if wrong:
        raise ClientConfigError(
            f"sasl.oauthbearer.token.command: expected a command and its arguments, with quotes as in a shell; {wrong}"
        )


def _plain(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
