"""An in-process pipeline in virtual time. It does not need Kafka, does not wait, and gives reproducible results."""

from collections.abc import Callable
from typing import Any

from consumers.learner.loop import check_given
from consumers.learner.program import LearnerOptions, LearnerProgram
from onebit.testing.pipeline import PipelineUnderTest
from producers.data import data_sizes
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.parsing import parse_duration
from stream.programs.pipeline_settings import settings_for
from stream.settings.sources import given_settings
from stream.wire.topics import Topics

BEGINS_MS = 1_000


class EmbeddedPipeline(PipelineUnderTest):
    """A pipeline on the embedded broker. Only the test advances its clock."""

    def __init__(self, **settings: Any) -> None:
        """Create the topics and a learner.

        Args:
            settings: The learner's settings by name: `n_classes=3, window="5s"`.
        """
        given = given_settings(settings)
        check_given(given)
        topics = Topics.with_prefix(given.topic_prefix)
        self.clock = VirtualClock(BEGINS_MS)
        broker = EmbeddedBroker(self.clock)
        model = given.model_of(given.partitions)
        broker.create_topics(topics.specs(given.partitions, shares_model=model == "shared"))
        super().__init__(broker, topics, given.partitions)
        self.first_settings = settings_for(given, {}, topics.journal, model, sizes_of=data_sizes).task
        self._options = LearnerOptions(
            group=f"{given.topic_prefix}learner", snapshot_interval_ms=given.snapshot_interval_ms
        )
        self.learner = self._new_learner()

    def _new_learner(self) -> LearnerProgram:
        """Create a learner. A task that has started keeps the settings in its journal, which requests may change."""
        return LearnerProgram(
            self.broker, self.topics, self.first_settings, self._options, lambda: self.clock.now_ms, given=()
        )

    def restart_learner(self) -> None:
        """Kill the learner and recover a new one from the topics."""
        self.learner = self._new_learner()
        self.work()

    def work(self) -> None:
        """Run the learner until it is idle. `prediction`, `example` and `wait_until` also run it."""
        while self.learner.step(0):
            pass

    def advance(self, duration: str) -> None:
        """Advance virtual time, for example by `10s`. The learner runs whenever work becomes due in this period."""
        until_ms = self.clock.now_ms + parse_duration(duration)
        self.work()
        while (due_ms := self.learner.next_due_ms()) is not None and due_ms <= until_ms:
            self.clock.advance_to(max(due_ms, self.clock.now_ms))
            self.work()
        self.clock.advance_to(until_ms)
        self.work()

    def _wait(self, claim: Callable[[], bool], what: str, timeout_s: float) -> None:
        self.work()
        assert claim(), f"condition not met after {self.clock.now_ms - BEGINS_MS} ms of virtual time: {what}"

    def finish(self) -> None:
        """See PipelineUnderTest."""
        self.work()
        self.verify()
