"""Settings of the services in the Compose files."""

import re
import stat
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from stream.devkafka.security import LocalSecurity
from stream.kafka.client_config import client_config, read_properties

FOLDER = Path(__file__).parents[2] / "docker"


class ComposeLoader(yaml.SafeLoader):
    """Ignores the Compose tags !reset and !override, but reads the tagged values."""


def _value(loader: yaml.SafeLoader, _tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node)
    return None


ComposeLoader.add_multi_constructor("!", _value)


def services(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load((FOLDER / name).read_text(), ComposeLoader)  # noqa: S506  # ComposeLoader is a SafeLoader
    return read["services"]  # type: ignore[no-any-return]


def test_only_the_service_that_builds_the_image_can_pull_it() -> None:
    files = [path.name for path in FOLDER.glob("compose*.yaml")]
    found = [
        (name, each, own) for name in files for each, own in services(name).items() if "onebit" in own.get("image", "")
    ]

    assert [(name, each) for name, each, own in found if own.get("pull_policy") != "never"] == [
        ("compose.yaml", "topics")
    ]
    assert "build" in services("compose.yaml")["topics"]
    assert services("compose.secure.yaml")["users"]["pull_policy"] == "never"


def test_each_program_reads_its_credentials_from_client_properties() -> None:
    plain, secured = services("compose.yaml"), services("compose.secure.yaml")
    programs = {name for name, service in plain.items() if "onebit" in service["image"]}
    comes_in = {
        "environment": {"ONEBIT_CLIENT_CONFIG": "/security/client.properties"},
        "volumes": ["client-security:/security:ro"],
    }

    assert secured.keys() - plain.keys() == {"certificates", "users"}
    assert programs == plain.keys() - {"kafka", "prometheus"}
    assert {name: {part: secured[name][part] for part in comes_in} for name in programs} == dict.fromkeys(
        programs, comes_in
    )


def test_kafka_in_compose_has_the_security_settings_of_the_local_kafka() -> None:
    environment = services("compose.secure.yaml")["kafka"]["environment"]
    local = LocalSecurity(Path("/")).settings()
    same = [name for name in local if name.startswith(("ssl.", "sasl.", "authorizer."))]
    given = {name: environment[f"KAFKA_{name.upper().replace('.', '_')}"].replace("$$", "$") for name in same}
    protocols = dict(one.split(":") for one in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    listeners = re.findall(r"(\w+)://", environment["KAFKA_LISTENERS"])

    assert len(same) == 7
    assert given == {name: local[name] for name in same}
    assert [protocols[name] for name in listeners] == ["SASL_SSL", "SASL_SSL", "SSL", "SSL"]
    for name in listeners:  # a listener without passwords requires client certificates
        if protocols[name] == "SSL":
            assert environment[f"KAFKA_LISTENER_NAME_{name}_SSL_CLIENT_AUTH"] == "required"


def test_compose_file_contains_no_secrets() -> None:
    text = (FOLDER / "compose.secure.yaml").read_text()
    assert [line for line in text.splitlines() if re.search(r"password\s*[:=]", line, re.IGNORECASE)] == []


def test_generated_security_files_use_the_given_user_and_host_names(tmp_path: Path) -> None:
    security = LocalSecurity(tmp_path, user="onebit", names=("kafka", "localhost"))
    password = security.make()
    read = client_config(read_properties(security.client_config))
    pem = security.broker.read_bytes()
    names = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :]).extensions

    assert names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == [
        "kafka", "localhost",
    ]  # fmt: skip
    assert (read.sasl_username, read.ssl_ca_location) == ("onebit", str(security.ca))
    assert read.sasl_password is not None
    assert read.sasl_password.get_secret_value() == password == security.password()
    assert {stat.S_IMODE(file.stat().st_mode) for file in security.folder.iterdir()} == {0o600}
