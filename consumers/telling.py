"""When the journals of a process tell what its replica of a shared model is, so that replicas can be compared.

A task's first step in a process tells it, which is made even if nothing comes, and then one in every interval. Who
audits the topics knows by the last that was told which process, on which processor, made a step.
"""

from consumers.running_task import RunningTask
from stream.recovery.broker_time import BrokerTime
from stream.recovery.digests import state_digest
from stream.recovery.journal import ReplicaTold
from stream.reporting.versions import processor, versions
from stream.sharing.replica import Replica
from stream.sharing.view import View


class Telling:
    """What one process tells of its replica."""

    def __init__(self, instance: str, interval_ms: int, time: BrokerTime) -> None:
        """Tell nothing yet; with an interval of 0 each task tells it once. `time` is what is known of the broker's."""
        self._instance = instance
        self._interval_ms = interval_ms
        self._time = time
        self._latest = (-1, "")  # a version, and its digest

    def waits(self, running: RunningTask) -> bool:
        """Whether a step without records is needed, to tell it or to learn whether it is time for that."""
        if running.number == 0 or not self._has_news(running):
            return False
        return self._is_due(running) or 0 < self._interval_ms <= self._time.silent_ms

    def told(self, running: RunningTask, replica: Replica | None) -> ReplicaTold | None:
        """What the step says that is being made; None: nothing."""
        if replica is None or not self._has_news(running) or not self._is_due(running):
            return None
        if self._latest[0] != replica.version:
            self._latest = replica.version, state_digest([replica.learner.state()])
        running.told_ms, running.told_version = self._time.now_ms, replica.version
        return ReplicaTold(self._instance, self._latest[1], processor(), versions())

    def forget(self) -> None:
        """Let go of the digest that was told last: the model begins otherwise."""
        self._latest = (-1, "")

    def _has_news(self, running: RunningTask) -> bool:
        view = running.task.view
        return isinstance(view, View) and view.version != running.told_version

    def _is_due(self, running: RunningTask) -> bool:
        if running.told_ms < 0:
            return True
        return 0 < self._interval_ms <= self._time.now_ms - running.told_ms
