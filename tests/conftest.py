"""What tests share: a real Kafka of this test run, and names that no other test uses."""

import itertools
import os
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
from xdist.scheduler import LoadScopeScheduling

import stream.cli  # noqa: F401  # one BLAS thread, before numpy is imported: the last bits depend on their number
from stream.devkafka.local_kafka import LocalKafka, local_kafka
from stream.kafka.clocks import VirtualClock
from stream.kafka.connecting import ADAPTERS, connect
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker
from stream.testing.on_kafka import Kafka
from tests.processes import CLIENTS
from tests.progress import Progress
from tests.secured import SETTINGS, Secured

pytest_plugins = ["onebit.pytest_plugin"]  # where Onebit was installed before it had one, too

_numbers = itertools.count()

KAFKA_FOLDERS = ("tests/real_kafka/", "tests/cluster/", "tests/faults/", "examples/")
KAFKA_FIXTURES = {"kafka", "secured", "client", "onebit_kafka"}


class KafkaByClient(LoadScopeScheduling):  # type: ignore[misc]
    """Where tests run side by side, those that need a Kafka go to two processes, which have one each.

    One takes what is about kafka-python, the other all else: so each has about half of the work.
    """

    def _split_scope(self, nodeid: str) -> str:
        folders = ("tests/real_kafka/", "tests/contract/", "examples/")
        if not nodeid.startswith(folders) or "[embedded" in nodeid:
            return nodeid
        return "kafka-python" if "kafka-python" in nodeid else "kafka"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """See pytest-xdist."""
    return KafkaByClient(config, log)


@pytest.hookimpl(trylast=True)  # after the terminal reporter's
def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and config.getoption("dist", "no") != "no":
        config.pluginmanager.register(Progress(reporter))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one client of each test, mark the tests that need a real Kafka as slow, and put slow tests first.

    Otherwise the other processes would have nothing left to do during the last slow test. The client is chosen by a
    hash of the test's name, unless the test has the mark `each_client`. The contract tests show that programs cannot
    tell the clients apart. A test needs a Kafka if its folder or its fixtures do.
    """
    others = {item for item in items if not _is_its_client(item)}
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]
    for item in items:
        if (
            _parameters(item).get("broker") in ADAPTERS
            or item.nodeid.startswith(KAFKA_FOLDERS)
            or not KAFKA_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        ):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _is_its_client(item: pytest.Item) -> bool:
    client = _parameters(item).get("client")
    if client is None or item.get_closest_marker("each_client") is not None:
        return True
    name = item.nodeid.replace(client, "")
    return CLIENTS[crc32(name.encode()) % len(CLIENTS)] == client


def _parameters(item: pytest.Item) -> dict[str, str]:
    return getattr(getattr(item, "callspec", None), "params", {})


@pytest.fixture(scope="session")
def kafka(onebit_kafka: Kafka) -> LocalKafka:
    """A Kafka that lives as long as the test run; when it cannot start, the tests that need it fail."""
    assert onebit_kafka.local is not None, "these tests look into a Kafka of their own: leave --onebit-kafka out"
    return onebit_kafka.local


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A Kafka with TLS, SASL and ACLs that lives as long as the test run."""
    with local_kafka(secure=True, settings=SETTINGS) as running:
        made = Secured(running, tmp_path_factory.mktemp("users"))
        yield made
        made.admin.close()


@pytest.fixture
def prefix() -> str:
    """A prefix for topics, groups and transactional ids that no other test uses."""
    return f"test{os.getpid()}.{next(_numbers)}."


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """One of the clients; every one of them in a test with the mark `each_client`."""
    return str(request.param)


@pytest.fixture(params=["embedded", *ADAPTERS])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Each of the brokers in turn: the embedded one, and a real Kafka by each of the clients."""
    if request.param == "embedded":
        yield EmbeddedBroker(VirtualClock(1_000))
        return
    running: LocalKafka = request.getfixturevalue("kafka")
    made = connect(running.bootstrap, client=request.param)
    yield made
    made.close()
