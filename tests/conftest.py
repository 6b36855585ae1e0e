"""Shared fixtures: a real Kafka broker for the test run, and topic prefixes that no other test uses."""

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import onebit.cli  # noqa: F401  # limits BLAS to one thread before numpy is imported; rounding depends on the limit
from onebit.testing.on_kafka import Kafka
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import ADAPTERS, connect
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import Broker
from stream.learners import registered
from tests.compiling import compile_once
from tests.processes import CLIENTS, free_port
from tests.progress import Progress
from tests.secured import SETTINGS, Secured

pytest_plugins = ["onebit.pytest_plugin"]  # for installations that predate the plugin's entry point

# On a busy machine, correct code can exceed these two limits on wall-clock time.
settings.register_profile("onebit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onebit")

_numbers = itertools.count()

KAFKA_FOLDERS = ("tests/real_kafka/", "tests/cluster/", "tests/faults/", "examples/")
KAFKA_FIXTURES = {"kafka", "own_kafka", "secured", "client", "onebit_kafka"}


WITH_KAFKA_PYTHON = tuple(f"tests/real_kafka/test_{name}.py" for name in ("local_kafka", "monitor", "snapshots"))


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """In a parallel run, assigns each group of tests to one process.

    The tests that require a real Kafka broker form two groups of about equal duration, each with its own broker. One
    group contains the tests for kafka-python and the files in `WITH_KAFKA_PYTHON`; the other contains the rest. All
    tests with the same learner name in their parameters form a group, because they use the same kernels.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._learners = sorted(registered(), key=len, reverse=True)

    def _split_scope(self, nodeid: str) -> str:
        _, _, parameters = nodeid.partition("[")
        folders = ("tests/real_kafka/", "tests/contract/", "examples/")
        if nodeid.startswith(folders) and not parameters.startswith("embedded"):
            return "kafka-python" if "kafka-python" in nodeid or nodeid.startswith(WITH_KAFKA_PYTHON) else "kafka"
        return next((name for name in self._learners if name in parameters), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Return the scheduler for a parallel run (pytest-xdist hook)."""
    return Groups(config, log)


@pytest.hookimpl(trylast=True)  # after the terminal reporter is registered
def pytest_configure(config: pytest.Config) -> None:
    """In a parallel run, report progress and compile each kernel only once (pytest hook)."""
    if hasattr(config, "workerinput"):
        compile_once()
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and config.getoption("dist", "no") != "no":
        config.pluginmanager.register(Progress(reporter))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select one client per test, mark the tests that require a real Kafka broker as slow, and run slow tests first.

    If slow tests ran last, most processes would be idle at the end of the run. A hash of the test's name selects the
    client. A test with the `each_client` mark runs with every client. One client is enough for other tests, because the
    contract tests cover every client. A test requires a real Kafka broker if it is in one of KAFKA_FOLDERS or uses one
    of KAFKA_FIXTURES.
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


@pytest.fixture(scope="session", autouse=True)
def frozen_modules() -> Iterator[None]:
    """Exclude the imported modules from garbage collection during the whole test run.

    Otherwise, each tested command would unfreeze the modules of all tests and scan them for garbage, which would take
    a quarter of the command tests' running time. `tests/cli/test_garbage_collection.py` tests the freezing itself.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("freeze", "unfreeze"):
            patch.setattr(gc, name, lambda: None)
        yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def kafka(onebit_kafka: Kafka) -> LocalKafka:
    """A Kafka broker for the whole test run. If it cannot start, the tests that use it fail."""
    assert onebit_kafka.local is not None, "these tests require a local broker: run them without --onebit-kafka"
    return onebit_kafka.local


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A Kafka broker with TLS, SASL and ACLs for the whole test run."""
    with local_kafka.local_kafka(secure=True, settings=SETTINGS) as running:
        made = Secured(running, tmp_path_factory.mktemp("users"))
        yield made
        made.admin.close()


@pytest.fixture
def own_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without Onebit's variables, and a temporary working directory."""
    for name in [name for name in os.environ if name.startswith("ONEBIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONEBIT_CONFIG", "")  # --config changes the variable; monkeypatch restores it after the test
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Restore the signal handlers after a test that runs programs in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A Kafka broker that keeps its records on disk. The test can kill and restart this broker."""
    home = tmp_path / "kafka"
    yield local_kafka.start(free_port(), home)
    local_kafka.stop(home)


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses, for topics, groups and transactional ids."""
    return f"test{os.getpid()}.{next(_numbers)}."


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """A Kafka client's name. A test with the `each_client` mark runs with every client; other tests run with one."""
    return str(request.param)


@pytest.fixture(params=["embedded", *ADAPTERS])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The embedded broker, then a real Kafka broker accessed through each client in turn."""
    if request.param == "embedded":
        yield EmbeddedBroker(VirtualClock(1_000))
        return
    running: LocalKafka = request.getfixturevalue("kafka")
    made = connect(running.bootstrap, client=request.param)
    yield made
    made.close()


@pytest.fixture(params=ADAPTERS)
def adapted(request: pytest.FixtureRequest, kafka: LocalKafka) -> Iterator[Broker]:
    """A real Kafka broker accessed through each client in turn."""
    made = connect(kafka.bootstrap, client=request.param)
    yield made
    made.close()
