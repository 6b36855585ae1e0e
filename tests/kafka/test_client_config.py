"""Client properties: validation, and protection of the secrets among them."""

from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import SecretStr

from stream.devkafka.security import LocalSecurity
from stream.kafka.client_config import (
    PROPERTIES,
    ClientConfig,
    ClientConfigError,
    client_config,
    read_properties,
)

SECRET = "correct-horse"  # noqa: S105  # must not appear in any output
USER = {"sasl.username": "ada", "sasl.password": SECRET}
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **USER}


def test_properties_are_passed_to_librdkafka_unchanged() -> None:
    given = {**SCRAM, "ssl.ca.location": "/ca.pem", "client.id": "ours"}
    assert client_config(given).librdkafka() == given | {"ssl.endpoint.identification.algorithm": "https"}


def test_empty_properties_configure_no_security() -> None:
    assert client_config({}) == ClientConfig()
    assert ClientConfig().librdkafka() == {
        "security.protocol": "PLAINTEXT", "ssl.endpoint.identification.algorithm": "https", "client.id": "onebit"
    }  # fmt: skip


def jaas(module: str, options: str) -> str:
    return f"org.apache.kafka.common.security.{module}LoginModule required {options};"


@pytest.mark.parametrize(
    ("java", "meant"),
    [
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "scram-sha-512", **USER}, SCRAM),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": jaas("scram.Scram", f'username="ada" password="{SECRET}"'),
            },
            SCRAM,
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": jaas("plain.Plain", f"username=ada password='{SECRET}' "),
            },
            SCRAM | {"sasl.mechanism": "PLAIN"},
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"},
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.type": "pem", "ssl.keystore.location": "/own.pem"},
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/own.pem",
                "ssl.key.location": "/own.pem",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
        ),
        ({"bootstrap.servers": "kafka:9092"}, {}),
    ],
    ids=["case", "SCRAM in JAAS", "PLAIN in JAAS", "truststore", "keystore", "no hostname check", "address only"],
)
def test_java_and_librdkafka_properties_are_equivalent(java: dict[str, str], meant: dict[str, str]) -> None:
    assert client_config(java) == client_config(meant)


SASL = {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"sasl.mecanism": "PLAIN"}, "sasl.mecanism: unknown property; did you mean sasl.mechanism"),
        ({"zzz": "1"}, "zzz: unknown property; remove this line, or see docs/security.md"),
        ({"security.protocol": "TLS"}, "security.protocol: expected one of PLAINTEXT, SSL, .*; got 'TLS'"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism: expected one of PLAIN, .*; got 'GSSAPI'"),
        ({"ssl.truststore.location": "/t.jks"}, r"ssl.truststore.location: Java keystores .* export PEM"),
        ({"ssl.keystore.password": SECRET}, "ssl.keystore.password: Java keystores"),
        ({"acks": "1"}, "acks: Onebit sets this.*remove this line"),
        ({"session.timeout.ms": "1"}, "session.timeout.ms: use the session_timeout setting"),
        ({"sasl.login.callback.handler.class": "X"}, "set sasl.mechanism=OAUTHBEARER and .*token.command"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name: Kerberos is not supported"),
        ({"enable.ssl.certificate.verification": "false"}, "certificates are always verified; .*ssl.ca.location"),
        (USER, "security.protocol: with PLAINTEXT, sasl.password has no effect; expected security.protocol=SASL_SSL"),
        ({"ssl.ca.location": "/ca.pem"}, "security.protocol: with PLAINTEXT, ssl.ca.location has no effect"),
        (SASL | USER, "sasl.mechanism: SASL_SSL requires one of PLAIN, .*; got none"),
        (SASL | {"sasl.mechanism": "PLAIN"}, "sasl.username: required for PLAIN; got none"),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "ada"},
            "sasl.password: required for PLAIN; got none .*ONEBIT_SASL_PASSWORD",
        ),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER"},
            "sasl.oauthbearer.token.command: required for OAUTHBEARER; got none",
        ),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.command": f"echo '{SECRET}"},
            "sasl.oauthbearer.token.command: expected a command .*; no closing quotation",
        ),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.command": "  "},
            "sasl.oauthbearer.token.command: expected a command .*; it is empty",
        ),
        (SCRAM | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanism and sasl.mechanisms are the same property"),
        (
            {"sasl.jaas.config": jaas("plain.Plain", f'username="a" password="{SECRET}"b"')},
            "write a quote within quotes",
        ),
        (SCRAM | {"ssl.key.location": "/key"}, "ssl.certificate.location and ssl.key.location: .*; set both"),
        (SCRAM | {"ssl.ca.location": ""}, "ssl.ca.location: expected a value; got none"),
        ({"sasl.jaas.config": f"com.sun.Krb5LoginModule required password={SECRET};"}, "expected PlainLoginModule or"),
        ({"sasl.jaas.config": jaas("plain.Plain", f'password="{SECRET}"')}, "expected username=... .*; got password"),
        (
            SASL | {"sasl.jaas.config": jaas("scram.Scram", f'username="a" password="{SECRET}"')},
            "sasl.jaas.config: .*; add sasl.mechanism=SCRAM-SHA-512",
        ),
    ],
)
def test_invalid_properties_are_rejected_with_a_one_line_remedy(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ClientConfigError, match=message) as raised:
        client_config(properties)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_unsupported_properties_are_reported_together() -> None:
    handed_out = {"client.dns.lookup": "use_all_dns_ips", "session.timeout.ms": "45000", "acks": "all"}
    with pytest.raises(ClientConfigError) as raised:
        client_config(SCRAM | USER | handed_out)
    assert all(f"{name}: " in str(raised.value) for name in handed_out), raised.value


def test_file_supports_comments_continuations_and_equals_signs(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text('# ours\n! theirs\n\n security.protocol = SSL\nsasl.jaas.config=a required \\\n  b="c=d";\n')
    assert read_properties(path) == {"security.protocol": "SSL", "sasl.jaas.config": 'a required b="c=d";'}


def test_file_stored_by_java_is_read(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    meant = 'p\\a"t:h'
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    stored = f'{module} required username\\="ada" password\\="p\\\\\\\\a\\\\"t\\:h";'
    path.write_text(
        f"bootstrap.servers: kafka\\:9092\nsecurity.protocol=SASL_SSL\nsasl.jaas.config={stored}\n",
        encoding="utf-8-sig",
    )
    properties = read_properties(path)
    assert properties["bootstrap.servers"] == "kafka:9092"
    config = client_config(properties)
    assert config.sasl_password is not None
    assert (config.sasl_username, config.sasl_password.get_secret_value()) == ("ada", meant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"client.id=a\n{SECRET}\n", "line 2: expected NAME=VALUE, or # before a comment"),
        (f"sasl.password={SECRET}\nsasl.password={SECRET}\n", "line 2: sasl.password is set twice; remove one"),
        (f"sasl.password={SECRET}\\x\n", "line 1: sasl.password has a backslash, .*ONEBIT_SASL_PASSWORD"),
        (None, "cannot read the properties: No such file or directory"),
    ],
)
def test_invalid_line_is_reported_by_number_without_its_text(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClientConfigError, match=f"{path}.*{message}") as raised:
        read_properties(path)
    assert SECRET not in str(raised.value)


def test_printed_config_contains_no_secrets() -> None:
    config = client_config(SCRAM | {"ssl.key.password": SECRET})
    assert isinstance(config.sasl_password, SecretStr)
    for shown in (repr(config), str(config), f"{config}", repr(asdict(config))):
        assert SECRET not in shown
    assert [name for name in PROPERTIES if name.endswith("password")] == ["sasl.password", "ssl.key.password"]


def test_properties_of_a_local_broker_have_its_current_address(tmp_path: Path) -> None:
    security = LocalSecurity(tmp_path)
    security.folder.mkdir()
    security.client_config.write_text("sasl.username=admin\n")
    for port in (9092, 9093):
        security.write_address(f"127.0.0.1:{port}")
    assert read_properties(security.client_config) == {
        "bootstrap.servers": "127.0.0.1:9093",
        "sasl.username": "admin",
    }
