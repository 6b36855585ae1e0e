"""A pipeline on a Kafka broker, with its own topics and a learner process."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from onebit.testing.pipeline import PipelineUnderTest
from onebit.testing.processes import Program, Programs, wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import ConnectionSettings, connect
from stream.kafka.port import BrokerError
from stream.settings.sources import client_config_of, given_settings
from stream.settings.values import CONFIG_VARIABLE
from stream.wire.topics import Topics

_READY_S_MAX = 10.0  # the learner is ready while its ready file is younger than this


class Kafka(NamedTuple):
    """A Kafka broker for tests."""

    bootstrap: str  # HOST:PORT
    client_config: Path | None = None  # client properties file, if the broker is secured
    local: LocalKafka | None = None  # None if the tests did not start the broker


class KafkaPipeline(PipelineUnderTest):
    """A pipeline on a Kafka broker. Its programs run as processes, and its methods wait for their results."""

    _poll_ms = 20

    def __init__(self, kafka: Kafka, directory: Path, **settings: Any) -> None:
        """Create the topics and start a learner.

        Args:
            kafka: The broker to use.
            directory: Folder for the programs' output.
            settings: The programs' settings by name: `n_classes=3, window="5s"`.
        """
        own: dict[str, Any] = {
            "bootstrap": kafka.bootstrap,
            "topic_prefix": f"test-{uuid4().hex[:12]}.",
            "session_timeout": "5s",
        }
        access = {} if kafka.client_config is None else {"client_config": kafka.client_config}
        self._ready_file = directory / "ready"
        given = given_settings({**own, **access, "ready_file": str(self._ready_file), **settings})
        self._is_local = kafka.local is not None
        self.bootstrap = given.bootstrap
        topics = Topics.with_prefix(given.topic_prefix)
        broker = connect(ConnectionSettings(given.bootstrap, client_config_of(given)), given.client)
        shares_model = given.model_of(given.partitions) == "shared"
        self._specs = topics.specs(given.partitions, shares_model=shares_model)
        broker.create_topics(self._specs)
        super().__init__(broker, topics, given.partitions)
        no_file = directory / "onebit.toml"  # an empty file is used instead of the working directory's settings
        no_file.touch()
        variables = {**given.environment(), CONFIG_VARIABLE: str(no_file)}
        self.programs = Programs(directory, variables, Path.cwd())  # settings can contain relative paths
        try:
            self.learner = self.start_learner()
        except AssertionError:
            self.close()
            raise

    def start_learner(self) -> Program:
        """Start a learner and wait until it is ready. Call this method again after killing or stopping the learner."""
        self._ready_file.unlink(missing_ok=True)
        self.learner = self.programs.start("learn")
        self.learner.wait_until(self._is_ready, "the learner is ready")
        return self.learner

    def _is_ready(self) -> bool:
        with suppress(FileNotFoundError):
            return time.time() - self._ready_file.stat().st_mtime < _READY_S_MAX
        return False

    def _wait(self, claim: Callable[[], bool], what: str, timeout_s: float) -> None:
        wait_for(claim, what, timeout_s, self.programs.said)

    def finish(self) -> None:
        """See PipelineUnderTest."""
        if self.learner.process.poll() is None:
            assert self.learner.stop() == 0, self.learner.said()
        self.verify()

    def story(self) -> str:
        """See PipelineUnderTest. The report also contains the programs' last output."""
        return f"{super().story()}\n{self.programs.said()}"

    def close(self) -> None:
        """Kill the running programs. Delete the topics, unless the broker was started only for these tests."""
        self.programs.close()
        with suppress(BrokerError):
            super().close()
            if not self._is_local:
                self.broker.delete_topics([topic.name for topic in self._specs])
            self.broker.close()
