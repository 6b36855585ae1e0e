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
OAUTH = SASL | {"sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"sasl.mecanism": "PLAIN"}, "sasl.mechanism"),
        ({"zzz": "1"}, "zzz"),
        ({"security.protocol": "TLS"}, "security.protocol"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"ssl.truststore.location": "/t.jks"}, "ssl.truststore.location"),
        ({"ssl.keystore.password": SECRET}, "ssl.keystore.password"),
        ({"acks": "1"}, "acks"),
        ({"session.timeout.ms": "1"}, "session_timeout"),
        ({"sasl.login.callback.handler.class": "X"}, "sasl.mechanism=OAUTHBEARER"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name"),
        ({"enable.ssl.certificate.verification": "false"}, "ssl.ca.location"),
        (USER, "security.protocol=SASL_SSL"),
        ({"ssl.ca.location": "/ca.pem"}, "security.protocol"),
        (SASL | USER, "sasl.mechanism"),
        (SASL | {"sasl.mechanism": "PLAIN"}, "sasl.username"),
        (SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "ada"}, "ONEBIT_SASL_PASSWORD"),
        (OAUTH, "sasl.oauthbearer.token.command"),
        (OAUTH | {"sasl.oauthbearer.token.command": f"echo '{SECRET}"}, "sasl.oauthbearer.token.command"),
        (OAUTH | {"sasl.oauthbearer.token.command": "  "}, "sasl.oauthbearer.token.command"),
        (SCRAM | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanisms"),
        ({"sasl.jaas.config": jaas("plain.Plain", f'username="a" password="{SECRET}"b"')}, "sasl.jaas.config"),
        (SCRAM | {"ssl.key.location": "/key"}, "ssl.certificate.location"),
        (SCRAM | {"ssl.ca.location": ""}, "ssl.ca.location"),
        ({"sasl.jaas.config": f"com.sun.Krb5LoginModule required password={SECRET};"}, "PlainLoginModule"),
        ({"sasl.jaas.config": jaas("plain.Plain", f'password="{SECRET}"')}, "username=..."),
        (
            SASL | {"sasl.jaas.config": jaas("scram.Scram", f'username="a" password="{SECRET}"')},
            "sasl.mechanism=SCRAM-SHA-512",
        ),
    ],
)
def test_error_names_the_property_to_change_and_shows_no_secret(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ClientConfigError) as raised:
        client_config(properties)
    assert named in str(raised.value)
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
    ("text", "place"),
    [
        (f"client.id=a\n{SECRET}\n", "line 2"),
        (f"sasl.password={SECRET}\nsasl.password={SECRET}\n", "line 2"),
        (f"sasl.password={SECRET}\\x\n", "line 1"),
        (None, ""),
    ],
)
def test_invalid_line_is_reported_by_number_without_its_text(tmp_path: Path, text: str | None, place: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClientConfigError) as raised:
        read_properties(path)
    assert str(path) in str(raised.value)
    assert place in str(raised.value)
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
