"""The learner processes of a run, from their start until they are gone, and what the broker does about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from stream.journal.commit import CrashPoint
from stream.journal.digests import state_digest
from stream.journal.format import JournalError
from stream.kafka.clocks import VirtualClock
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker, BrokerError, FencedError
from stream.shared.replica import Replica
from stream.simulation.faulty_broker import (
    CrashError,
    Fate,
    FaultyBroker,
    FaultyTransactionalProducer,
    Transaction,
    Transactions,
    Verdict,
)
from stream.simulation.outside import TOPICS
from stream.simulation.schedule import Schedule
from stream.simulation.timers import Timers
from stream.simulation.tracing import Trace
from stream.task.task import Task
from stream.wire.topics import Topics

GROUP = "learners"


class Learner(Protocol):
    """A learner program, as the simulation sees it."""

    def step(self, timeout_ms: int) -> int:
        """Poll once and do what can be done; how much was done."""

    def next_due_ms(self) -> int | None:
        """When there will be something to do by itself."""

    @property
    def tasks(self) -> Mapping[int, Task]:
        """The tasks that run in it."""

    @property
    def replica(self) -> Replica | None:
        """A shared model, as far as it has read its log."""

    def read_log(self) -> None:
        """Read the log of a shared model to its end."""

    def park(self) -> object:
        """What the next program of the process may go on with."""

    def close(self) -> None:
        """Leave in order."""


class LearnerSetup(NamedTuple):
    """How a learner program is to be made."""

    broker: Broker
    topics: Topics
    group: str
    instance: str
    schedule: Schedule
    now_ms: Callable[[], int]
    announce: Callable[[str], None]
    crash_point: CrashPoint
    parked: object  # what the program before left in the process; None: there was none


MakeLearner = Callable[[LearnerSetup], Learner]


@dataclass(slots=True, eq=False)
class Process:
    """One learner process, from its start until it is gone."""

    name: str
    broker: FaultyBroker = field(init=False)
    program: Learner | None = None
    busy: bool = False  # in a call
    dead: bool = False
    zombie: bool = False  # a newer process has its name
    away_ms: int = 0  # how long until it is started again, if it dies now
    asleep_until_ms: int = 0
    parked: object = None  # see LearnerSetup


class SeenModel(NamedTuple):
    """A shared model as a process had read it."""

    process: str
    version: int
    sha256: str


class Strikes(Protocol):
    """What is wrong with operations of a process."""

    def consult(self, process: Process, call: str) -> Verdict:
        """Before each operation of the broker; see faulty_broker.Consult."""

    def commit_step(self, process: Process, number: int) -> None:
        """After each numbered step of a commit."""

    def hang(self, process: Process, producer: FaultyTransactionalProducer) -> None:
        """Take over a commit that hangs."""


ROUNDS_MAX = 2_000
"""More rounds than any moment of a run needs; beyond it the learners work on and on without getting anywhere."""

DRY_ROUNDS_MAX = 8
"""So many polls at one moment may give nothing although something is there."""

RESTARTS_MAX = 500
"""A program that is started so often cannot live."""


class UnexpectedError(Exception):
    """A learner did what it must never do, whatever fails around it."""


@dataclass(eq=False)
class Processes:
    """All processes of a run: makes their calls, and ends or restarts a process as its call ends."""

    _schedule: Schedule
    _make_learner: MakeLearner
    _broker: EmbeddedBroker
    _timers: Timers
    _trace: Trace
    strikes: Strikes = field(init=False)
    transactions: Transactions = field(default_factory=Transactions)
    outage_until_ms: int = 0  # until then the broker does not answer, and no process starts
    models: set[SeenModel] = field(default_factory=set)  # all states of a shared model that processes decided on
    _all: list[Process] = field(default_factory=list)
    _names: int = 0
    _starts: int = 0

    @property
    def _clock(self) -> VirtualClock:
        return self._broker.clock

    # -------------------------------------------------------------------------------------------- who there is

    def live(self) -> list[Process]:
        """The processes that are the present ones of their names."""
        return [process for process in self._all if not process.zombie and not process.dead]

    def named(self, number: int) -> Process | None:
        """The process that a fault is for; one that is in a call is left alone."""
        live = [process for process in self.live() if not process.busy]
        return live[number % len(live)] if live else None

    def tasks(self) -> dict[int, Task]:
        """The tasks that run, each in one process."""
        tasks: dict[int, Task] = {}
        for process in self.live():
            if process.program is not None:
                tasks |= process.program.tasks
        return tasks

    def next_due_ms(self) -> int | None:
        """When one of them will have something to do by itself, after this moment."""
        dues = []
        for process in self._all:
            if process.program is None or process.busy or process.dead:
                continue
            due_ms = process.program.next_due_ms()
            if due_ms is not None:
                dues.append(max(due_ms, process.asleep_until_ms, self._clock.now_ms + 1))
        return min(dues, default=None)

    # ----------------------------------------------------------------------------------------------- their calls

    def poll_all(self) -> None:
        """Let every process that can do something do it, until none can."""
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
        raise UnexpectedError(f"the learners work on and on at {self._clock.now_ms} ms without coming to an end")

    def _guard(self, process: Process, call: Callable[[], int]) -> int:
        """Run a call of a process, and do with the process what its end asks for; how much was done."""
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
            self._trace.fired["thrown out and ends" if "was thrown out" in str(error) else "fenced"] += 1
            self._trace.note(process.name, f"is fenced and ends: {error}")
            self._end(process)
        except BrokerError as error:
            self._trace.note(process.name, f"closes, and is to start anew: {error}")
            if process.program is not None:
                process.parked = process.program.park()
            self.close(process)
            self._restart(process, 0, process.parked)
        except JournalError as error:
            raise UnexpectedError(
                f"{process.name} at {self._clock.now_ms} ms: {type(error).__name__}: {error}"
            ) from error
        finally:
            process.busy = False
        return 1

    def read_logs(self) -> None:
        """Have every process read the log of a shared model to its end."""
        for process in self.live():
            if process.program is not None:
                process.program.read_log()
                self._see_model(process)

    def _see_model(self, process: Process) -> None:
        replica = None if process.program is None else process.program.replica
        if replica is not None:
            self.models.add(SeenModel(process.name, replica.version, state_digest([replica.learner.state()])))

    # ------------------------------------------------------------------------------------- how they come and go

    def join(self) -> None:
        """Start one more."""
        self._names += 1
        self._start(f"learner-{self._names}")

    def replace(self, process: Process) -> None:
        """Start a second process of this name; the first one lives on and does not know."""
        process.zombie = True
        self._start(process.name)

    def close(self, process: Process) -> None:
        """Close as a program does that ends in order, as far as the broker lets it."""
        process.busy = True
        if process.program is not None:
            try:
                process.program.close()
            except (BrokerError, CrashError) as error:
                self._trace.note(process.name, f"could not close: {error}")
                self.leave_behind(process)
        self._remove(process)

    def die(self, process: Process, away_ms: int) -> None:
        """End a process without anything being closed."""
        if process.dead:
            return
        self._trace.note(process.name, "is dead")
        self.leave_behind(process)
        self._remove(process)
        if not process.zombie:
            self._restart(process, away_ms)

    def sleep(self, process: Process, for_ms: int) -> None:
        """Let a process call nothing for a while; its group throws it out when that is too long."""
        process.asleep_until_ms = self._clock.now_ms + for_ms
        self._timers.after(for_ms)
        if for_ms > self._schedule.session_timeout_ms:
            self._timers.after(self._schedule.session_timeout_ms, lambda: self._session_ends(process))

    def end_faults(self) -> None:
        """Wake all processes, and report the present end of the log to them."""
        for process in self._all:
            process.asleep_until_ms = 0
            process.broker.end_lag()

    def expel(self, process: Process) -> None:
        """Take a process out of the group, if it is in it."""
        if process.broker.member is not None:
            self._broker.leave(process.broker.member)

    def leave_behind(self, process: Process) -> None:
        """What a dead or paused process leaves open, the broker ends after a while."""
        for transaction in self.transactions.open.values():
            if transaction.process == process.name:
                self._timers.after(self._schedule.transaction_timeout_ms, partial(self._time_out, transaction))
        if process.broker.member is not None:
            self._timers.after(self._schedule.session_timeout_ms, lambda: self._session_ends(process))

    def _start(self, name: str, parked: object = None) -> None:
        """Start a process; what its start runs into ends it, and it is tried again."""
        self._starts += 1
        if self._starts > RESTARTS_MAX:
            raise UnexpectedError(f"{name} is started again and again, and ends each time")
        process = Process(name, parked=parked)
        self._all.append(process)
        process.broker = FaultyBroker(
            self._broker,
            name,
            lambda call: self.strikes.consult(process, call),
            self.transactions,
            lambda producer: self.strikes.hang(process, producer),
            self._trace.committed,
            lingers=self._schedule.lingers,
            poll_max=self._schedule.poll_max,
            dry_every=self._schedule.dry_every,
            old_lags=self._schedule.old_lags,
        )
        setup = self._setup(process, process.broker)
        self._trace.note(name, "starts")

        def start() -> int:
            process.program = self._make_learner(setup)
            return 1

        self._guard(process, start)

    def _setup(self, process: Process, broker: FaultyBroker) -> LearnerSetup:
        return LearnerSetup(
            broker=broker,
            topics=TOPICS,
            group=GROUP,
            instance=process.name,
            schedule=self._schedule,
            now_ms=lambda: self._clock.now_ms,
            announce=lambda message: self._trace.announced(process.name, message),
            crash_point=lambda number: self.strikes.commit_step(process, number),
            parked=process.parked,
        )

    def _end(self, process: Process) -> None:
        """A process that was told to end does; one whose name nobody else has is started again."""
        zombie = process.zombie
        self.close(process)
        if not zombie:
            self._restart(process, 0)

    def _remove(self, process: Process) -> None:
        process.dead = True
        if process in self._all:
            self._all.remove(process)

    def _restart(self, process: Process, away_ms: int, parked: object = None) -> None:
        """Start a process of this name again, at once or after a while; when the broker is away, after that.

        With what was parked it is the same process, with a new program.
        """
        name = process.name
        away_ms = max(away_ms, self.outage_until_ms - self._clock.now_ms)
        if away_ms > 0:
            self._timers.after(away_ms, lambda: self._start_once(name, parked))
        else:
            self._start_once(name, parked)

    def _start_once(self, name: str, parked: object) -> None:
        if all(process.name != name for process in self.live()):
            self._start(name, parked)

    def _time_out(self, transaction: Transaction) -> None:
        """End a transaction as the broker does: its producer is fenced."""
        if transaction.fate is Fate.OPEN:
            self._trace.note("broker", f"transaction of {transaction.process} times out")
            self._trace.fired["transaction time-out"] += 1
            self._broker.transactional_producer(transaction.transactional_id)
            self.transactions.end(transaction, Fate.ABORTED)

    def _session_ends(self, process: Process) -> None:
        if process.dead or process.busy or process.asleep_until_ms > self._clock.now_ms:
            self.expel(process)
