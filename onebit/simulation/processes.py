"""The learner processes in a run, and the broker's timeouts for them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from sched import scheduler
from typing import NamedTuple

from consumers.learner.program import LearnerProgram
from consumers.learner.recovery import Parked
from onebit.simulation.faulty_broker import COMMIT_STEP, CrashError, Fate, FaultyBroker, Transaction
from onebit.simulation.outside import TOPICS
from onebit.simulation.schedule import Schedule
from onebit.simulation.tracing import Trace
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import BrokerError, FencedError
from stream.recovery.state import state_digest
from stream.task.task import Task
from stream.wire.records import TopicPartition


@dataclass(slots=True, eq=False)
class Process:
    """One learner process."""

    name: str
    broker: FaultyBroker = field(init=False)
    program: LearnerProgram | None = None
    busy: bool = False  # True while the process is in a call
    dead: bool = False
    zombie: bool = False  # True if a newer process has the same name
    away_ms: int = 0  # time until the restart if the process dies now
    asleep_until_ms: int = 0
    parked: Parked | None = None  # state from the process's previous program, or None


class SeenModel(NamedTuple):
    """A process's replica of a shared model at a specific version."""

    process: str
    version: int
    sha256: str


ROUNDS_MAX = 2_000
"""Limit on polling rounds at a single point in time. Only learners that never become idle reach this limit."""

DRY_ROUNDS_MAX = 8
"""Number of rounds at a single point in time in which a poll may return nothing although records are available."""

FINISH_MS = 5_000
"""Time for a process's last snapshots."""

RESTARTS_MAX = 500
"""Limit on the number of process starts in one run."""


class UnexpectedError(Exception):
    """Raised when a learner behaves in a way that no fault explains."""


@dataclass(eq=False)
class Processes:
    """All learner processes in a run. This class runs their programs and stops or restarts processes after errors."""

    _schedule: Schedule
    _broker: EmbeddedBroker
    _timers: scheduler
    _trace: Trace
    consult: Callable[[Process, str], None] = field(init=False)  # see `Faults.consult`
    transactions: list[Transaction] = field(default_factory=list)
    outage_until_ms: int = 0  # end of the outage, before which no process starts
    models: set[SeenModel] = field(default_factory=set)  # all replica states that were seen in the run
    _all: list[Process] = field(default_factory=list)
    _names: int = 0
    _starts: int = 0

    @property
    def _clock(self) -> VirtualClock:
        return self._broker.clock

    def live(self) -> list[Process]:
        """Return the processes that are neither dead nor zombies."""
        return [process for process in self._all if not process.zombie]

    def named(self, number: int) -> Process | None:
        """Return a live process that is not in a call, selected by number, or None if there is no such process."""
        live = [process for process in self.live() if not process.busy]
        return live[number % len(live)] if live else None

    def tasks(self) -> dict[int, Task]:
        """Return all processes' running tasks, keyed by partition."""
        tasks: dict[int, Task] = {}
        for process in self.live():
            if process.program is not None:
                tasks |= process.program.tasks
        return tasks

    def committed(self) -> dict[tuple[TopicPartition, int], Transaction]:
        """Return the committed transactions, keyed by the partition and offset of each of their records."""
        return {
            place: transaction
            for transaction in self.transactions
            if transaction.fate is Fate.COMMITTED
            for place in transaction.records
        }

    def next_due_ms(self) -> int | None:
        """Return the earliest future time at which a process has work due."""
        dues = []
        for process in self._all:
            if process.program is None or process.busy:
                continue
            due_ms = process.program.next_due_ms()
            if due_ms is not None:
                dues.append(max(due_ms, process.asleep_until_ms, self._clock.now_ms + 1))
        return min(dues, default=None)

    def poll_all(self) -> None:
        """Run steps in all processes until no work is left."""
        for number in range(ROUNDS_MAX):
            done = 0
            for process in list(self._all):
                process.broker.may_be_dry = number < DRY_ROUNDS_MAX
                program = process.program
                if program is None or process.busy or process.dead or process.asleep_until_ms > self._clock.now_ms:
                    continue
                done += self._guard(process, partial(program.step, 0))
            if not done:
                return
        raise UnexpectedError(f"the learners did not become idle at {self._clock.now_ms} ms")

    def _guard(self, process: Process, call: Callable[[], int]) -> int:
        """Call a function on behalf of a process. If the function fails, stop or restart the process.

        Returns the amount of work done.
        """
        broker = process.broker
        process.busy = True
        moved = broker.moved
        try:
            done = call()
            if done:
                self._see_model(process)
            return done + broker.moved - moved
        except CrashError:
            self.die(process, process.away_ms)
        except FencedError as error:
            self._trace.fired["removed and ends" if "was removed from group" in str(error) else "fenced"] += 1
            self._trace.note(process.name, f"is fenced and ends: {error}")
            self.close(process)
            if not process.zombie:
                self._restart(process, 0)
        except BrokerError as error:
            self._trace.note(process.name, f"closes and will be restarted: {error}")
            parked = process.parked if process.program is None else process.program.park()
            self.close(process)
            self._restart(process, 0, parked)
        finally:
            process.busy = False
        return 1

    def read_logs(self) -> None:
        """Have every process read to the end of the shared model's log."""
        for process in self.live():
            if process.program is not None:
                process.program.read_log()
                self._see_model(process)

    def _see_model(self, process: Process) -> None:
        replica = None if process.program is None else process.program.replica
        if replica is not None:
            self.models.add(SeenModel(process.name, replica.version, state_digest([replica.learner.state()])))

    def join(self) -> None:
        """Start another process."""
        self._names += 1
        self._start(f"learner-{self._names}")

    def replace(self, process: Process) -> None:
        """Start a second process with this name. The first process becomes a zombie."""
        process.zombie = True
        self._start(process.name)

    def close(self, process: Process) -> None:
        """Close a process's program. Broker errors are recorded in the trace."""
        process.busy = True
        if process.program is not None:
            try:
                process.program.close()
            except (BrokerError, CrashError) as error:
                self._trace.note(process.name, f"could not close: {error}")
                self.leave_behind(process)
        self._remove(process)

    def stop_all(self, for_ms: int) -> None:
        """Stop all processes, one after another, and start them again after a time."""
        for process in [each for each in self._all if each.program is not None and not each.busy]:
            process.broker.may_be_dry = False
            self._guard(process, partial(self._finish, process))
            if not process.dead:
                self.close(process)
                if not process.zombie:
                    self._timers.enter(for_ms, 0, partial(self._start_once, process.name, None))
            self.poll_all()

    def _finish(self, process: Process) -> int:
        if process.program is not None:
            process.program.finish(FINISH_MS)
        return 1

    def die(self, process: Process, away_ms: int) -> None:
        """Stop a process without closing anything."""
        self._trace.note(process.name, "is dead")
        self.leave_behind(process)
        self._remove(process)
        if not process.zombie:
            self._restart(process, away_ms)

    def sleep(self, process: Process, for_ms: int) -> None:
        """Pause a process. After the session timeout, the group removes the process."""
        process.asleep_until_ms = self._clock.now_ms + for_ms
        self._timers.enter(for_ms, 0, lambda: None)  # the clock stops at the end of the pause
        if for_ms > self._schedule.session_timeout_ms:
            self._timers.enter(self._schedule.session_timeout_ms, 0, lambda: self._session_ends(process))

    def end_faults(self) -> None:
        """Wake all processes and report the partitions' true ends to them."""
        for process in self._all:
            process.asleep_until_ms = 0
            process.broker.end_lag()

    def expel(self, process: Process) -> None:
        """Remove a process from the group, if it is a member."""
        if process.broker.member is not None:
            self._broker.leave(process.broker.member)

    def leave_behind(self, process: Process) -> None:
        """Schedule the broker's timeouts for a dead or paused process."""
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN and transaction.process == process.name:
                self._timers.enter(self._schedule.transaction_timeout_ms, 0, partial(self._time_out, transaction))
        if process.broker.member is not None:
            self._timers.enter(self._schedule.session_timeout_ms, 0, lambda: self._session_ends(process))

    def _start(self, name: str, parked: Parked | None = None) -> None:
        """Start a process. If an error occurs during startup, restart it."""
        self._starts += 1
        if self._starts > RESTARTS_MAX:
            raise UnexpectedError(f"{name} was restarted repeatedly but exited each time")
        schedule, process = self._schedule, Process(name, parked=parked)
        self._all.append(process)
        process.broker = FaultyBroker(
            self._broker,
            name,
            lambda call: self.consult(process, call),
            self.transactions,
            self._trace.committed,
            lingers=schedule.lingers,
            poll_max=schedule.poll_max,
            dry_every=schedule.dry_every,
            old_lags=schedule.old_lags,
        )
        self._trace.note(name, "starts")

        def start() -> int:
            process.program = LearnerProgram(
                process.broker,
                TOPICS,
                schedule.task,
                replace(schedule.options, instance=name),
                host_ms=lambda: self._clock.now_ms,
                announce=partial(self._trace.announced, name),
                crash_point=lambda number: self.consult(process, f"{COMMIT_STEP}{number}"),
                given=(),
                parked=parked,
            )
            return 1

        self._guard(process, start)

    def _remove(self, process: Process) -> None:
        process.dead = True
        self._all.remove(process)

    def _restart(self, process: Process, away_ms: int, parked: Parked | None = None) -> None:
        """Restart a process after a delay, but not before the end of an outage.

        If some of its tasks are parked, the same process continues with a new program.
        """
        name = process.name
        away_ms = max(away_ms, self.outage_until_ms - self._clock.now_ms)
        if away_ms > 0:
            self._timers.enter(away_ms, 0, lambda: self._start_once(name, parked))
        else:
            self._start_once(name, parked)

    def _start_once(self, name: str, parked: Parked | None) -> None:
        if all(process.name != name for process in self.live()):
            self._start(name, parked)

    def _time_out(self, transaction: Transaction) -> None:
        """Abort a transaction and fence its producer, as the broker does."""
        if transaction.fate is Fate.OPEN:
            self._trace.note("broker", f"transaction of {transaction.process} times out")
            self._trace.fired["transaction timeout"] += 1
            self._broker.transactional_producer(transaction.transactional_id)
            transaction.end(Fate.ABORTED)

    def _session_ends(self, process: Process) -> None:
        if process.dead or process.busy or process.asleep_until_ms > self._clock.now_ms:
            self.expel(process)
