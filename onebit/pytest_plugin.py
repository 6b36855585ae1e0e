"""pytest fixtures for testing services: a Kafka broker, pipelines on that broker, and pipelines in virtual time.

pytest loads this module in every environment in which Onebit is installed, so other imports are deferred.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onebit import check_packages

if TYPE_CHECKING:
    from onebit.testing.embedded import EmbeddedPipeline
    from onebit.testing.on_kafka import Kafka, KafkaPipeline
    from onebit.testing.pipeline import PipelineUnderTest

_pipelines: pytest.StashKey[list[Any]] = pytest.StashKey()
_failed: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Ignore a warning that importing kafka-python raises, so that the import succeeds even if warnings are errors."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add Onebit's command-line options to pytest."""
    group = parser.getgroup("onebit")
    group.addoption(
        "--onebit-kafka",
        metavar="HOST:PORT",
        help="address of a Kafka broker for the onebit_kafka fixture; by default, a local broker is started",
    )
    group.addoption("--onebit-client-config", metavar="FILE", help="client properties file for a secured Kafka broker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the ledger and the records of recent events to the report for a failed test."""
    report: pytest.TestReport = yield
    if report.failed:
        item.stash[_failed] = True
        for pipeline in item.stash.get(_pipelines, []):
            with suppress(Exception):  # the broker may have failed
                report.sections.append(("Onebit's pipeline", pipeline.story()))
    return report


@pytest.fixture(scope="session")
def onebit_kafka(pytestconfig: pytest.Config) -> "Iterator[Kafka]":
    """Return the session's Kafka broker: the one at --onebit-kafka, or a local broker that this fixture starts."""
    check_packages()
    from onebit.testing.on_kafka import Kafka
    from stream.devkafka.local_kafka import local_kafka

    bootstrap, properties = (pytestconfig.getoption(name) for name in ("onebit_kafka", "onebit_client_config"))
    if bootstrap is not None:
        yield Kafka(bootstrap, None if properties is None else Path(properties).absolute())
        return
    with local_kafka() as running:
        yield Kafka(running.bootstrap, running.client_config, running)


@pytest.fixture
def onebit_pipeline(
    request: pytest.FixtureRequest, onebit_kafka: "Kafka", tmp_path: Path
) -> "Iterator[Callable[..., KafkaPipeline]]":
    """Create pipelines on the session's broker, as in `onebit_pipeline(n_classes=3, n_features=4)`.

    Any setting can be passed by name. Each pipeline has its own topics, and its learner is ready. At the end of the
    test, the learner is stopped, and its ledger is verified.
    """
    from onebit.testing.on_kafka import KafkaPipeline

    def make(**settings: object) -> KafkaPipeline:
        directory = tmp_path / f"onebit-{len(pipelines)}"
        directory.mkdir()
        return KafkaPipeline(onebit_kafka, directory, **settings)

    pipelines: list[PipelineUnderTest] = []
    yield from _making(request.node, make, pipelines)


@pytest.fixture
def onebit_embedded(request: pytest.FixtureRequest) -> "Iterator[Callable[..., EmbeddedPipeline]]":
    """Create in-process pipelines in virtual time, as in `onebit_embedded(n_classes=3, n_features=4, window="5s")`."""
    check_packages()
    from onebit.testing.embedded import EmbeddedPipeline

    yield from _making(request.node, EmbeddedPipeline, [])


def _making(item: pytest.Item, make: Callable[..., Any], pipelines: "list[PipelineUnderTest]") -> Iterator[Any]:
    """Yield a pipeline factory. At the end of the test, verify and close the pipelines."""

    def create(**settings: object) -> Any:
        pipelines.append(make(**settings))
        item.stash.setdefault(_pipelines, []).append(pipelines[-1])
        return pipelines[-1]

    try:
        yield create
        if not item.stash.get(_failed, False):
            for pipeline in pipelines:
                pipeline.finish()
    finally:
        for pipeline in pipelines:
            pipeline.close()
