"""Runs a schedule in virtual time on a single thread, with simulated clients, learner processes and timeouts."""

from collections import deque
from collections.abc import Sequence
from sched import scheduler

from onebit.simulation.faults import Faults
from onebit.simulation.outside import TOPICS, Outside
from onebit.simulation.processes import Processes, UnexpectedError
from onebit.simulation.retention import Retention
from onebit.simulation.schedule import ENVIRONMENT, START_MS, WAITING, Item, Schedule
from onebit.simulation.tracing import Trace
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.recovery.control import read_requests
from stream.recovery.steps import last_steps
from stream.wire.records import TopicPartition

SETTLING_MAX = 400
"""Limit on the number of points in time, after the last item, at which actions are due."""


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule, broker: EmbeddedBroker | None = None) -> None:
        self.schedule = schedule
        self.broker = broker or EmbeddedBroker(VirtualClock(START_MS))
        self.clock = self.broker.clock
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
        self.run_items()
        self._settle()
        self.processes.read_logs()

    def run_items(self) -> None:
        """Run the schedule."""
        for _ in range(self.schedule.members):
            self.processes.join()
        self.processes.poll_all()
        while self._todo:
            self._next_item()

    def run_while(self, items: Sequence[Item], outside: Outside) -> None:
        """Let other clients send these items' contexts and feedback to another pipeline meanwhile."""
        for item in items:
            self._advance_to(item.at_ms)
            if item.kind in WAITING:
                outside.do(item)

    def stop(self) -> None:
        """End all faults, let the learners apply all records and requests, and stop them.

        Raises:
            UnexpectedError: records are left.
        """
        self._end_faults()
        for _ in range(SETTLING_MAX):
            due_ms = self._due_ms()
            if self._is_applied():
                break
            if due_ms is None:
                raise UnexpectedError("the learners did not apply all records before they were stopped")
            self._advance_to(due_ms)
        for process in self.processes.live():
            self.processes.close(process)
        group = self.schedule.options.group
        for name in self.broker.members(group):  # the sessions of dead processes end
            self.broker.expel(group, name)

    def _is_applied(self) -> bool:
        """Return whether all tasks have applied all records and requests, and no transaction is open."""
        partitions = range(self.schedule.partitions)
        tps = [TopicPartition(topic, partition) for topic in TOPICS for partition in partitions]
        if any(ends.stable < ends.high_watermark for ends in self.broker.ends(tps).values()):
            return False
        end, journals = read_requests(self.broker, TOPICS).end, [tp for tp in tps if tp.topic == TOPICS.journal]
        if any(step.control < end for step in last_steps(self.broker, journals).values()):
            return False
        programs = [process.program for process in self.processes.live() if process.program is not None]
        lags = [lag for program in programs for lag in program.lag().values()]
        return self.processes.tasks().keys() == {*partitions} and not any(lags)

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
        self._end_faults()
        for _ in range(SETTLING_MAX):
            due_ms = self._due_ms()
            if due_ms is None:
                return
            self._advance_to(due_ms)
        raise UnexpectedError("the learners did not become idle after the last item")

    def _end_faults(self) -> None:
        """End all faults, and start a process if there is none."""
        self._faults.end()
        self.outside.abort_transactions()
        if not self.processes.live() and self._timers.empty():
            self.processes.join()
        self.processes.poll_all()
