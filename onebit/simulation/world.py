"""Runs a schedule in virtual time on a single thread, with simulated clients, learner processes and timeouts."""

from collections import deque
from sched import scheduler

from onebit.simulation.faults import Faults
from onebit.simulation.outside import TOPICS, Outside
from onebit.simulation.processes import Processes, UnexpectedError
from onebit.simulation.retention import Retention
from onebit.simulation.schedule import ENVIRONMENT, START_MS, Schedule
from onebit.simulation.tracing import Trace
from stream.kafka.embedded import EmbeddedBroker, VirtualClock

SETTLING_MAX = 400
"""Limit on the number of points in time, after the last item, at which actions are due."""


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.clock = VirtualClock(START_MS)
        self.broker = EmbeddedBroker(self.clock)
        self.broker.create_topics(TOPICS.specs(schedule.partitions, shares_model=schedule.task.model == "shared"))
        self.trace = Trace(self.clock)
        self.outside = Outside(self.broker, schedule.partitions, self.trace, schedule.task)
        self._timers = scheduler(lambda: self.clock.now_ms, lambda ms: None)
        self.processes = Processes(schedule, self.broker, self._timers, self.trace)
        self.retention = Retention(schedule, self.broker)
        self._faults = Faults(
            schedule, self.processes, self.broker, self.retention, self._timers, self.trace, self._run_until
        )
        self.processes.consult = self._faults.consult
        self._todo = deque(schedule.items)

    def run(self) -> None:
        """Run the schedule and then continue until no action is due.

        Raises:
            UnexpectedError: the learners did not become idle.
        """
        for _ in range(self.schedule.members):
            self.processes.join()
        self.processes.poll_all()
        while self._todo:
            self._next_item()
        self._settle()
        self.processes.read_logs()

    def _next_item(self) -> None:
        item = self._todo[0]
        self._advance_to(item.at_ms)
        if not self._todo or self._todo[0] is not item:
            return  # the item was executed while a process was paused
        self._todo.popleft()
        (self.outside if item.kind in ENVIRONMENT else self._faults).do(item)
        if item.polls:
            self.processes.poll_all()

    def _run_until(self, until_ms: int) -> None:
        """Run the simulation up to a given time while one process is blocked in a call."""
        while self._todo and self._todo[0].at_ms <= until_ms:
            self._next_item()
        self._advance_to(until_ms)

    def _advance_to(self, to_ms: int) -> None:
        """Advance time and run the actions that are due."""
        while True:
            due_ms = self._due_ms()
            if due_ms is None or due_ms > to_ms:
                break
            self.clock.advance_to(due_ms)
            self._timers.run(blocking=False)
            self.processes.poll_all()
        self.clock.advance_to(to_ms)

    def _due_ms(self) -> int | None:
        """Return the next time at which an action is due."""
        first = next(iter(self._timers.queue), None)
        dues = (None if first is None else int(first.time), self.processes.next_due_ms())
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def _settle(self) -> None:
        """End all faults and advance time until no more actions are due."""
        self._faults.end()
        self.outside.abort_transactions()
        if not self.processes.live() and self._timers.empty():
            self.processes.join()
        self.processes.poll_all()
        for _ in range(SETTLING_MAX):
            due_ms = self._due_ms()
            if due_ms is None:
                return
            self._advance_to(due_ms)
        raise UnexpectedError("the learners did not become idle after the last item")
