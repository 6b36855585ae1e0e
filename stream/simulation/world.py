"""Runs a schedule: the world outside, the learner processes, and what the broker does by itself after a while.

Everything happens in this one thread, in virtual time.
"""

from collections import deque

from stream.kafka.clocks import VirtualClock
from stream.kafka.embedded import EmbeddedBroker
from stream.simulation.faults import Faults
from stream.simulation.outside import TOPICS, Outside
from stream.simulation.processes import MakeLearner, Processes, UnexpectedError
from stream.simulation.schedule import ENVIRONMENT, START_MS, Item, Schedule
from stream.simulation.timers import Timers
from stream.simulation.tracing import Trace
from stream.task.task import Task

SETTLING_MAX = 400
"""After the last item so many more things may fall due; what is then not settled never will be."""


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule, make_learner: MakeLearner, *, tracing: bool = False) -> None:
        self.schedule = schedule
        self.clock = VirtualClock(START_MS)
        self.broker = EmbeddedBroker(self.clock)
        self.broker.create_topics(TOPICS.specs(schedule.partitions, shares_model=schedule.task.model == "shared"))
        self.trace = Trace(self.clock, tracing)
        self.outside = Outside(self.broker, schedule.partitions, self.trace)
        self._timers = Timers(self.clock)
        self.processes = Processes(schedule, make_learner, self.broker, self._timers, self.trace)
        self._faults = Faults(schedule, self.processes, self.broker, self._timers, self.trace, self._run_until)
        self.processes.strikes = self._faults
        self._todo = deque(schedule.items)

    def run(self) -> None:
        """Run to the end, until everything is settled.

        Raises:
            UnexpectedError: a learner broke, or the learners do not come to rest.
        """
        for _ in range(self.schedule.members):
            self.processes.join()
        self.processes.poll_all()
        while self._todo:
            self._next_item()
        self._settle()
        self.processes.read_logs()

    def tasks(self) -> dict[int, Task]:
        """The tasks that run, each in one process."""
        return self.processes.tasks()

    def _next_item(self) -> None:
        item = self._todo[0]
        self._advance_to(item.at_ms)
        if not self._todo or self._todo[0] is not item:
            return  # a paused process has let it happen meanwhile
        self._todo.popleft()
        self._do(item)
        if item.polls:
            self.processes.poll_all()

    def _do(self, item: Item) -> None:
        if item.kind in ENVIRONMENT:
            self.outside.do(item)
        else:
            self._faults.do(item)

    def _run_until(self, until_ms: int) -> None:
        """Let the world go on until a time, from within a call of a paused process."""
        while self._todo and self._todo[0].at_ms <= until_ms:
            self._next_item()
        self._advance_to(until_ms)

    def _advance_to(self, to_ms: int) -> None:
        """Move time, and do on the way what falls due."""
        while True:
            due_ms = self._due_ms()
            if due_ms is None or due_ms > to_ms:
                break
            self.clock.advance_to(due_ms)
            self._timers.do_due()
            self.processes.poll_all()
        self.clock.advance_to(to_ms)

    def _due_ms(self) -> int | None:
        """The next time at which something happens by itself."""
        dues = (self._timers.next_ms, self.processes.next_due_ms())
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def _settle(self) -> None:
        """End all faults, and let time pass until nothing waits."""
        self._faults.end()
        self.outside.abort_transactions()
        if not self.processes.live() and self._timers.next_ms is None:
            self.processes.join()
        self.processes.poll_all()
        for _ in range(SETTLING_MAX):
            due_ms = self._due_ms()
            if due_ms is None:
                return
            self._advance_to(due_ms)
        raise UnexpectedError("the learners do not come to rest after the last item")
