"""Connections to Kafka: valid addresses, available clients, and the deferred import of clients."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from stream.kafka.connection import ADAPTERS, connect, servers_of
from stream.kafka.port import BrokerError
from tests.test_structure import ONLY_IMPORTER

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")}
CLIENTS = ("kafka", "confluent_kafka", "aiokafka")


@pytest.mark.parametrize(
    ("bootstrap", "servers"),
    [
        ("localhost:9092", ["localhost:9092"]),
        ("127.0.0.1:1,b-2.kafka_x:65535", ["127.0.0.1:1", "b-2.kafka_x:65535"]),
        ("a:9092, b:9093", ["a:9092", "b:9093"]),
        ("[::1]:9092", ["[::1]:9092"]),
    ],
)
def test_address_can_list_several_servers(bootstrap: str, servers: list[str]) -> None:
    assert servers_of(bootstrap) == servers


@pytest.mark.parametrize(
    "bootstrap",
    ["", "foo", "foo:bar", ":9092", "host:", "host:99999", "host:0", "host:-1", "host:9092,", ",host:9092", "a:1;b:2",
     "host:9092/path", "http://host:9092", "::1:9092", "ho st:9092", "host:٩"],
)  # fmt: skip
def test_invalid_address_is_rejected_with_the_expected_form(bootstrap: str) -> None:
    with pytest.raises(BrokerError) as raised:
        connect(bootstrap)
    assert repr(bootstrap) in str(raised.value)


@pytest.mark.parametrize("client", ADAPTERS)
def test_every_adapter_is_found_in_its_own_package(client: str) -> None:
    module, _, name = ADAPTERS[client].adapter.partition(":")
    assert module.startswith("stream.kafka.")
    assert module.rpartition(".")[0] in ONLY_IMPORTER.values()
    assert callable(getattr(import_module(module), name))


def test_commands_that_do_not_use_kafka_import_no_client(tmp_path: Path) -> None:
    commands = [["--help"], ["learn", "--help"], ["learners"], ["run", "--events", "50", "--no-report"]]
    program = f"""
import sys
from onebit.cli import app
for arguments in {commands!r}:
    try:
        app.main(arguments)
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    imported = sorted(set({CLIENTS!r}) & sys.modules.keys())
    assert not imported, (arguments, imported)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
