"""A fixture for tests with faults: a broker that the test can kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from tests.processes import free_port


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A Kafka broker with records on disk, which the test can kill and restart."""
    home = tmp_path / "kafka"
    yield local_kafka.start(free_port(), home)
    local_kafka.stop(home)
