"""A fixture for fault tests: a broker that a test can kill and restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from tests.processes import free_port


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A Kafka broker that keeps its records on disk. The test can kill and restart this broker."""
    home = tmp_path / "kafka"
    yield local_kafka.start(free_port(), home)
    local_kafka.stop(home)
