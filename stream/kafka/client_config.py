"""Access settings for a Kafka cluster that uses TLS, passwords or tokens. The properties are named as in librdkafka.

Property files written for Kafka's Java client or for librdkafka can be used. Java's properties for user credentials and
PEM stores are translated. Properties that change how Onebit reads or writes are rejected. Unknown names are also
rejected. Otherwise, users would not notice that these properties have no effect.

Errors and reprs do not contain secrets.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import SecretStr

from stream.kafka.port import BrokerError
from stream.parsing import close_matches
from stream.text import read_text

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BY_TOKEN = "OAUTHBEARER"  # noqa: S105  # the name of a mechanism
MECHANISMS = (*BY_PASSWORD, BY_TOKEN)
CHECKS_OF_NAME = ("https", "none")

BOOTSTRAP = "bootstrap.servers"


class ClientConfigError(BrokerError):
    """A property cannot be used. The message contains the property's name, the expected value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """A client's access settings. Each field is named after a property, with underscores in place of dots."""

    security_protocol: str = "PLAINTEXT"  # a value in PROTOCOLS
    sasl_mechanism: str | None = None  # a value in MECHANISMS
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_oauthbearer_token_command: str | None = None  # Onebit's own property: a command that prints a token
    ssl_ca_location: str | None = None  # PEM; None means this machine's certificate store
    ssl_certificate_location: str | None = None  # PEM
    ssl_key_location: str | None = None  # PEM
    ssl_key_password: SecretStr | None = None
    ssl_endpoint_identification_algorithm: str = "https"  # a value in CHECKS_OF_NAME
    client_id: str = "onebit"

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates with SASL."""
        return self.security_protocol.startswith("SASL_")

    def librdkafka(self) -> dict[str, str]:
        """Return the properties for librdkafka, with secrets in plain text and without the token command."""
        given = {property_of(field.name): getattr(self, field.name) for field in fields(self)}
        given.pop("sasl.oauthbearer.token.command")
        return {name: _plain(value) for name, value in given.items() if value is not None}


def property_of(field: str) -> str:
    """Return the name of the property that a ClientConfig field stores.

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

_TOKENS = f"set sasl.mechanism={BY_TOKEN} and sasl.oauthbearer.token.command, a command that prints a token"
_PEM = (
    "Java keystores (JKS, PKCS12) are not supported; export PEM files and set ssl.ca.location, "
    "ssl.certificate.location, ssl.key.location (see docs/security.md)"
)
_OWN = "Onebit sets this property itself, because its guarantees depend on the value; remove this line"

_REFUSED = {
    "sasl.login.callback.handler.class": _TOKENS,
    "sasl.client.callback.handler.class": _TOKENS,
    "sasl.oauthbearer.": _TOKENS,
    "sasl.kerberos.": f"Kerberos is not supported; expected one of the mechanisms {', '.join(MECHANISMS)}",
    "ssl.keystore.": _PEM,
    "ssl.truststore.": _PEM,
    "enable.ssl.certificate.verification": (
        "certificates are always verified; set ssl.ca.location to your own CA certificate; to accept a different host "
        "name, set ssl.endpoint.identification.algorithm=none"
    ),
    "client.dns.lookup": "the client always tries every address that a host name resolves to; remove this line",
    "session.timeout.ms": "use the session_timeout setting instead, and remove this line",
    "transaction.timeout.ms": "use the transaction_timeout setting instead, and remove this line",
    **dict.fromkeys(
        ("acks", "auto.offset.reset", "batch.size", "compression.type", "delivery.timeout.ms", "enable.auto.commit",
         "enable.idempotence", "group.id", "group.instance.id", "isolation.level", "key.deserializer", "key.serializer",
         "linger.ms", "max.in.flight.requests.per.connection", "partitioner", "partitioner.class",
         "partition.assignment.strategy", "request.timeout.ms", "retries", "transactional.id", "value.deserializer",
         "value.serializer"),
        _OWN,
    ),
}  # fmt: skip
"""Properties of other clients that are rejected, each with the remedy. A name that ends with a dot is a prefix."""

_JAAS = re.compile(r"[\w.]*\.(?P<module>Scram|Plain)LoginModule\s+required\b(?P<options>.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    """Return the client configuration that these properties define.

    Raises:
        ClientConfigError: a property is unknown, a value is invalid, or values are inconsistent.
    """
    translated = _translated(properties)
    unknown = [_unknown(name) for name in translated if name not in PROPERTIES]
    if unknown:  # report all errors together, because a file often has several
        raise ClientConfigError("; ".join(unknown))
    values = {name: _value(name, text) for name, text in translated.items()}
    config = ClientConfig(**{name.replace(".", "_"): value for name, value in values.items()})  # type: ignore[arg-type]
    _check(config)
    return config


def read_properties(path: Path) -> dict[str, str]:
    """Read a property file: NAME=VALUE lines, # comments, and a backslash at the end of a continued line.

    Raises:
        ClientConfigError: the file cannot be read, or a line is not a property.
    """
    try:
        text = re.sub(r"\r\n?", "\n", read_text(path))  # Java also ends a line at a single carriage return
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8 text"
        raise ClientConfigError(f"{path}: cannot read the properties: {reason}") from None
    found: dict[str, str] = {}
    for line in _LINE.finditer(text):
        place = f"{path}, line {text.count(chr(10), 0, line.start(1)) + 1}"
        read = _PROPERTY.fullmatch(re.sub(r"\\\n\s*", "", line[1]))
        if read is None:  # the line is not shown, because it may contain a secret
            raise ClientConfigError(f"{place}: expected NAME=VALUE, or # before a comment")
        name, value = read.groups()
        if name in found:
            raise ClientConfigError(f"{place}: {name} is set twice; remove one of the lines")
        if name in SECRETS and "\\" in value:
            raise ClientConfigError(
                f"{place}: {name} has a backslash, which Java and librdkafka interpret differently; remove the line "
                f"and set the environment variable ONEBIT_{name.replace('.', '_').upper()}"
            )
        found[name] = _of_java(value) if name == "sasl.jaas.config" else re.sub(r"\\([:=#!])", r"\1", value)
    return found


_LINE = re.compile(r"^[ \t]*([^#!\s](?:[^\\\n]|\\.|\\\n)*)", re.MULTILINE)
_PROPERTY = re.compile(r"([\w.-]+)\s*[=:]\s*(.*?)\s*", re.DOTALL)
_JAVA_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_JAVA_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _of_java(value: str) -> str:
    """Unescape a value as Java does in a property file, where a backslash escapes the next character."""
    return _JAVA_ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _JAVA_CHARACTERS.get(found[2], found[2]), value
    )


_PEM_STORES = {"ssl.truststore": ("ssl.ca.location",), "ssl.keystore": ("ssl.certificate.location", "ssl.key.location")}
"""Java's keystore and truststore properties, with the librdkafka properties that replace them for PEM files."""


def _translated(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate properties to librdkafka's names."""
    given = {name: value for name, value in properties.items() if name != BOOTSTRAP}
    mechanism = given.pop("sasl.mechanisms", None)
    if mechanism is not None and given.setdefault("sasl.mechanism", mechanism) != mechanism:
        raise ClientConfigError(
            "sasl.mechanism and sasl.mechanisms are the same property but have different values; remove one of the "
            "lines"
        )
    if (jaas := given.pop("sasl.jaas.config", None)) is not None:
        given = _of_jaas(jaas, given.get("sasl.mechanism")) | given
    for store, names in _PEM_STORES.items():
        if given.get(f"{store}.type", "").upper() == "PEM" and f"{store}.location" in given:
            del given[f"{store}.type"]
            given = dict.fromkeys(names, given.pop(f"{store}.location")) | given
    if given.get("ssl.endpoint.identification.algorithm") == "":  # Java's spelling
        given["ssl.endpoint.identification.algorithm"] = "none"
    return given


def _of_jaas(text: str, mechanism: str | None) -> dict[str, str]:
    """Return the user name, password and mechanism from a Java login module's configuration."""
    found = _JAAS.fullmatch(text.strip())
    if found is None:
        raise ClientConfigError(
            "sasl.jaas.config: expected PlainLoginModule or ScramLoginModule, followed by required username=... "
            f"password=...; no other module is supported; for tokens, {_TOKENS}"
        )
    if _JAAS_OPTION.sub("", found["options"]).strip():
        raise ClientConfigError(
            "sasl.jaas.config: expected NAME=VALUE options separated by spaces; got other text. In a property file, "
            'write a quote within quotes as \\"'
        )
    options = {
        name: re.sub(r"\\(.)", r"\1", next(filter(None, values), ""))
        for name, *values in _JAAS_OPTION.findall(found["options"])
    }
    if set(options) != {"username", "password"}:
        raise ClientConfigError(
            f"sasl.jaas.config: expected username=... and password=...; got {', '.join(sorted(options)) or 'neither'}"
        )
    if mechanism is None and found["module"] == "Scram":
        raise ClientConfigError("sasl.jaas.config: the login module is for SCRAM; add sasl.mechanism=SCRAM-SHA-512")
    return {f"sasl.{name}": value for name, value in options.items()} | {"sasl.mechanism": mechanism or "PLAIN"}


def _unknown(name: str) -> str:
    for start, remedy in _REFUSED.items():
        if name == start or (start.endswith(".") and name.startswith(start)):
            return f"{name}: {remedy}"
    hint = close_matches(name, (*PROPERTIES, BOOTSTRAP)) or "; remove this line, or see docs/security.md"
    return f"{name}: unknown property{hint}"


def _value(name: str, text: str) -> str | SecretStr:
    """Check and convert a property's value. Values from a fixed list are case-insensitive."""
    if name in SECRETS:
        return SecretStr(text)
    if name in _CHOICES:
        found = next((choice for choice in _CHOICES[name] if choice.upper() == text.upper()), None)
        if found is None:
            raise ClientConfigError(f"{name}: expected one of {', '.join(_CHOICES[name])}; got {text!r}")
        return found
    if not text:
        raise ClientConfigError(f"{name}: expected a value; got none. Set a value, or remove the line")
    return text


def _check(config: ClientConfig) -> None:
    """Raise ClientConfigError for properties that are missing or have no effect."""
    given = sorted(field.name for field in fields(ClientConfig) if getattr(config, field.name) != field.default)
    protocol, mechanism = config.security_protocol, config.sasl_mechanism
    for start, is_used, expected in (
        ("sasl_", config.uses_sasl, "SASL_SSL"),
        ("ssl_", config.uses_tls, "SASL_SSL" if config.uses_sasl else "SSL"),
    ):
        useless = [name for name in given if name.startswith(start)]
        if useless and not is_used:
            raise ClientConfigError(
                f"security.protocol: with {protocol}, {property_of(useless[0])} has no effect; expected "
                f"security.protocol={expected}"
            )
    if config.uses_sasl and mechanism is None:
        raise ClientConfigError(f"sasl.mechanism: {protocol} requires one of {', '.join(MECHANISMS)}; got none")
    for name in _NEEDED.get(mechanism or "", ()):
        if not _plain(getattr(config, name) or ""):
            how = " (set the variable ONEBIT_SASL_PASSWORD, or the property)" if name == "sasl_password" else ""
            raise ClientConfigError(f"{property_of(name)}: required for {mechanism}; got none{how}")
    if (config.ssl_certificate_location is None) != (config.ssl_key_location is None):
        raise ClientConfigError(
            "ssl.certificate.location and ssl.key.location: a client certificate requires its key, and vice versa; set "
            "both (one PEM file may contain both)"
        )
    if mechanism == BY_TOKEN:
        try:
            wrong = "" if shlex.split(config.sasl_oauthbearer_token_command or "") else "it is empty"
        except ValueError as error:
            wrong = str(error).lower()
        if wrong:
            raise ClientConfigError(
                f"sasl.oauthbearer.token.command: expected a command and its arguments, quoted as in a shell; {wrong}"
            )


_NEEDED = {
    **dict.fromkeys(BY_PASSWORD, ("sasl_username", "sasl_password")),
    BY_TOKEN: ("sasl_oauthbearer_token_command",),
}


def _plain(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
