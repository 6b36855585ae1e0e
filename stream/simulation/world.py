"""Runs a schedule: the world outside, the learner processes, and what the broker does by itself after a while.

Everything happens in this one thread. A process that is paused in the middle of a call is a call that, before it
returns, lets the rest of the world go on.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from stream.brokers.clocks import VirtualClock
from stream.brokers.embedded import EmbeddedBroker, EmbeddedTransactionalProducer
from stream.brokers.partitioner import partition_for
from stream.brokers.port import Broker, BrokerError, BrokerUnavailableError, FencedError
from stream.joining.task import Task, TaskSettings
from stream.recovery.commit import CrashPoint
from stream.recovery.journal import JournalError
from stream.simulation.faulty_broker import (
    CrashError,
    Fate,
    FaultyBroker,
    FaultyTransactionalProducer,
    Transaction,
    Transactions,
    Verdict,
)
from stream.simulation.schedule import ENVIRONMENT, IN_COMMIT, N_CLASSES, N_FEATURES, START_MS, Item, Kind, Schedule
from stream.wire.codec import HEADERS
from stream.wire.records import Headers, TopicPartition
from stream.wire.topics import Topics

TOPICS = Topics.with_prefix("sim.")
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

    def close(self) -> None:
        """Leave in order."""


class LearnerSetup(NamedTuple):
    """How a learner program is to be made."""

    broker: Broker
    topics: Topics
    task: TaskSettings
    group: str
    instance: str
    records_max: int
    idle_ms: int
    snapshot_interval_ms: int
    snapshot_bytes_max: int
    snapshot_chunk_bytes: int
    now_ms: Callable[[], int]
    announce: Callable[[str], None]
    crash_point: CrashPoint


MakeLearner = Callable[[LearnerSetup], Learner]


class Happened(NamedTuple):
    """One line of a trace."""

    at_ms: int
    who: str
    what: str


class Sent(NamedTuple):
    """A record of an input as it was meant: what an oracle may know without reading it."""

    event_id: str | None  # None: poison
    bit: int
    action: int | None = None  # the one that feedback names


@dataclass(slots=True, eq=False)
class Process:
    """One learner process, from its start until it is gone."""

    name: str
    broker: FaultyBroker | None = None
    program: Learner | None = None
    busy: bool = False  # in a call
    dead: bool = False
    zombie: bool = False  # a newer process has its name
    away_ms: int = 0  # how long until it is started again, if it dies now
    asleep_until_ms: int = 0


ROUNDS_MAX = 2_000
"""More rounds than any moment of a run needs; beyond it the learners work on and on without getting anywhere."""

SETTLING_MAX = 400
"""After the last item so many more things may fall due; what is then not settled never will be."""

DRY_ROUNDS_MAX = 8
"""So many polls at one moment may give nothing although something is there."""

RESTARTS_MAX = 500
"""A program that is started so often cannot live."""

POISON_CONTEXTS: tuple[tuple[bytes | None, Headers], ...] = (
    (b"{", HEADERS),
    (None, HEADERS),
    (b"[]", HEADERS),
    (b'{"x":{"i":[0]}}', HEADERS),
    (b'{"id":"p","x":{"i":[2,1]}}', HEADERS),
    (b'{"id":"p","x":{"i":[8]}}', HEADERS),
    (b'{"id":"p","x":[1,2]}', HEADERS),
    (b'{"id":"p","x":{"i":[0]}}', (("onebit-version", b"9"),)),
)
POISON_FEEDBACK: tuple[tuple[bytes | None, Headers], ...] = (
    (b"", HEADERS),
    (None, HEADERS),
    (b'{"id":"p","reward":2,"label":0}', HEADERS),
    (b'{"id":"p","reward":"1","label":0}', HEADERS),
    (b'{"id":"p","reward":1,"label":0,"action":3}', HEADERS),
    (b'{"reward":1,"label":0}', HEADERS),
    (b'{"id":"p","reward":1,"label":7}', HEADERS),
    (b'{"id":"","reward":1,"label":0}', HEADERS),
)

_FEATURES = tuple(
    b'{"i":[%d,%d,%d],"v":[%d,0.5,-1.25]}' % (n % 3, 3 + n % 2, 5 + n % (N_FEATURES - 5), 1 + n % 4) for n in range(24)
)


def label_of(event_id: str) -> int:
    """The true class that feedback tells, for learners that want it."""
    return int(event_id[1:]) % N_CLASSES


class UnexpectedError(Exception):
    """A learner did what it must never do, whatever fails around it."""


@dataclass
class World:
    """One run of a schedule."""

    schedule: Schedule
    make_learner: MakeLearner
    tracing: bool = False
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START_MS))
    transactions: Transactions = field(default_factory=Transactions)
    sent: dict[tuple[str, int, int], Sent] = field(default_factory=dict)  # by topic, partition, offset
    fired: Counter[str] = field(default_factory=Counter)
    trace: list[Happened] = field(default_factory=list)
    broker: EmbeddedBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = EmbeddedBroker(self.clock)
        self.broker.create_topics(TOPICS.specs(self.schedule.partitions))
        self._producer = self.broker.producer()
        self._foreign_producers: dict[int, EmbeddedTransactionalProducer] = {}
        self._processes: list[Process] = []
        self._armed: dict[str, list[Item]] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._todo = deque(self.schedule.items)
        self._outage_until_ms = 0
        self._faults_over = False
        self._names = 0
        self._starts = 0
        self._latest_fed = -1

    # ------------------------------------------------------------------------------------------------ the main loop

    def run(self) -> None:
        """Run to the end, until everything is settled.

        Raises:
            UnexpectedError: a learner broke, or the learners do not come to rest.
        """
        for _ in range(self.schedule.members):
            self._join()
        self._poll_all()
        while self._todo:
            self._next_item()
        self._settle()

    def tasks(self) -> dict[int, Task]:
        """The tasks that run, each in one process."""
        tasks: dict[int, Task] = {}
        for process in self._live():
            if process.program is not None:
                tasks |= process.program.tasks
        return tasks

    def _next_item(self) -> None:
        item = self._todo[0]
        self._advance_to(item.at_ms)
        if not self._todo or self._todo[0] is not item:
            return  # a paused process has let it happen meanwhile
        self._todo.popleft()
        self._do(item)
        if item.polls:
            self._poll_all()

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
            while self._timers and self._timers[0][0] <= self.clock.now_ms:
                heapq.heappop(self._timers)[2]()
            self._poll_all()
        self.clock.advance_to(to_ms)

    def _due_ms(self) -> int | None:
        """The next time at which something happens by itself."""
        now_ms = self.clock.now_ms
        dues = [self._timers[0][0]] if self._timers else []
        for process in self._processes:
            if process.program is None or process.busy or process.dead:
                continue
            due_ms = process.program.next_due_ms()
            if due_ms is not None:
                dues.append(max(due_ms, process.asleep_until_ms, now_ms + 1))
        return min(dues, default=None)

    def _after(self, ms: int, action: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (self.clock.now_ms + ms, self._timer_count, action))

    def _settle(self) -> None:
        """End all faults, and let time pass until nothing waits."""
        self._faults_over = True
        self._outage_until_ms = 0
        self._armed.clear()
        for number in list(self._foreign_producers):
            self._end_foreign(number, commits=False)
        for process in self._processes:
            process.asleep_until_ms = 0
        if not self._live() and not self._timers:
            self._join()
        self._poll_all()
        for _ in range(SETTLING_MAX):
            due_ms = self._due_ms()
            if due_ms is None:
                return
            self._advance_to(due_ms)
        raise UnexpectedError("the learners do not come to rest after the last item")

    # ------------------------------------------------------------------------------------------------ what happens

    def _do(self, item: Item) -> None:
        if item.kind in ENVIRONMENT:
            self._note("world", item.text())
            self._do_outside(item)
            return
        process = self._named(item.member)
        if item.kind is Kind.JOIN:
            self._fire(item, "world")
            self._join()
        elif item.kind is Kind.OUTAGE:
            self._fire(item, "broker")
            self._outage_until_ms = self.clock.now_ms + item.for_ms
            self._after(item.for_ms, lambda: None)
        elif process is not None:
            self._do_to(process, item)

    def _do_to(self, process: Process, item: Item) -> None:
        kind = item.kind
        if kind is Kind.CRASH:
            self._fire(item, process.name)
            self._die(process, item.for_ms)
        elif kind is Kind.ZOMBIE:
            self._fire(item, process.name)
            self._replace(process)
        elif kind is Kind.EXPELLED:
            self._fire(item, process.name)
            self._expel(process)
        elif kind is Kind.LEAVE:
            if len(self._live()) > 1:
                self._fire(item, process.name)
                self._close(process)
        elif kind is Kind.SLEEP:
            self._fire(item, process.name)
            process.asleep_until_ms = self.clock.now_ms + item.for_ms
            self._after(item.for_ms, lambda: None)
            if item.for_ms > self.schedule.session_timeout_ms:
                self._after(self.schedule.session_timeout_ms, lambda: self._session_ends(process))
        else:
            self._armed.setdefault(process.name, []).append(item)
            if kind is Kind.CRASH_IN_RECOVERY:
                self._die(process, 0)

    def _do_outside(self, item: Item) -> None:
        kind = item.kind
        if kind in (Kind.CONTEXT, Kind.CONTEXT_AGAIN):
            self._send_context(item)
        elif kind in (Kind.CONTEXT_POISON, Kind.FEEDBACK_POISON):
            self._send_poison(item)
        elif kind is Kind.FOREIGN_BEGIN:
            self._foreign_producers[item.number] = self.broker.transactional_producer(f"foreign-{item.number}")
            self._foreign_producers[item.number].begin()
        elif kind is Kind.FOREIGN_FEEDBACK:
            self._send_feedback(item)
        elif kind in (Kind.FOREIGN_COMMIT, Kind.FOREIGN_ABORT):
            self._end_foreign(item.number, commits=kind is Kind.FOREIGN_COMMIT)
        elif kind not in (Kind.FEEDBACK_LOST, Kind.TICK):
            self._send_feedback(item)
        self.fired[kind] += 1

    def _send_context(self, item: Item) -> None:
        key = item.id.encode()
        value = b'{"id":"%s","x":%s}' % (key, _FEATURES[int(item.id[1:]) % len(_FEATURES)])
        partition = partition_for(key, self.schedule.partitions)
        self._note_sent(TOPICS.contexts, partition, Sent(item.id, 0))
        self._producer.send(TOPICS.contexts, partition, key, value, HEADERS)

    def _send_feedback(self, item: Item) -> None:
        key = item.id.encode()
        action = b"null" if item.action is None else b"%d" % item.action
        value = b'{"id":"%s","reward":%d,"label":%d,"action":%s}' % (key, item.bit, label_of(item.id), action)
        partition = partition_for(key, self.schedule.partitions)
        self._note_sent(TOPICS.feedback, partition, Sent(item.id, item.bit, item.action))
        if item.kind is Kind.FOREIGN_FEEDBACK and item.number in self._foreign_producers:
            self._foreign_producers[item.number].send(TOPICS.feedback, partition, key, value, HEADERS)
        else:
            self._producer.send(TOPICS.feedback, partition, key, value, HEADERS)
        if item.kind is Kind.FEEDBACK:
            event = int(item.id[1:])
            self.fired["reordered feedback"] += event < self._latest_fed
            self._latest_fed = max(self._latest_fed, event)

    def _send_poison(self, item: Item) -> None:
        contexts = item.kind is Kind.CONTEXT_POISON
        topic = TOPICS.contexts if contexts else TOPICS.feedback
        poisons = POISON_CONTEXTS if contexts else POISON_FEEDBACK
        value, headers = poisons[item.number % len(poisons)]
        partition = item.number % self.schedule.partitions
        self._note_sent(topic, partition, Sent(None, 0))
        self._producer.send(topic, partition, None, value, headers)

    def _note_sent(self, topic: str, partition: int, sent: Sent) -> None:
        tp = TopicPartition(topic, partition)
        self.sent[topic, partition, self.broker.ends((tp,))[tp].high_watermark] = sent

    def _end_foreign(self, number: int, *, commits: bool) -> None:
        producer = self._foreign_producers.pop(number, None)
        if producer is not None:
            if commits:
                producer.commit()
            else:
                producer.abort()

    # --------------------------------------------------------------------------------------------------- processes

    def _live(self) -> list[Process]:
        """The processes that are the present ones of their names."""
        return [process for process in self._processes if not process.zombie and not process.dead]

    def _named(self, number: int) -> Process | None:
        """The process that a fault is for; one that is in a call is left alone."""
        live = [process for process in self._live() if not process.busy]
        return live[number % len(live)] if live else None

    def _join(self) -> None:
        self._names += 1
        self._start(f"learner-{self._names}")

    def _start(self, name: str) -> None:
        """Start a process; what its start runs into ends it, and it is tried again."""
        self._starts += 1
        if self._starts > RESTARTS_MAX:
            raise UnexpectedError(f"{name} is started again and again, and ends each time")
        process = Process(name)
        self._processes.append(process)
        process.broker = FaultyBroker(
            self.broker,
            name,
            lambda call: self._consult(process, call),
            self.transactions,
            self._hang(process),
            self._note_commit if self.tracing else lambda transaction: None,
            lingers=self.schedule.lingers,
            poll_max=self.schedule.poll_max,
            dry_every=self.schedule.dry_every,
        )
        schedule = self.schedule
        setup = LearnerSetup(
            broker=process.broker,
            topics=TOPICS,
            task=schedule.task,
            group=GROUP,
            instance=name,
            records_max=schedule.records_max,
            idle_ms=schedule.idle_ms,
            snapshot_interval_ms=schedule.snapshot_interval_ms,
            snapshot_bytes_max=schedule.snapshot_bytes_max,
            snapshot_chunk_bytes=schedule.snapshot_chunk_bytes,
            now_ms=lambda: self.clock.now_ms,
            announce=lambda message: self._announced(process, message),
            crash_point=lambda number: self._commit_step(process, number),
        )
        self._note(name, "starts")

        def start() -> int:
            process.program = self.make_learner(setup)
            return 1

        self._guard(process, start)

    def _poll_all(self) -> None:
        """Let every process that can do something do it, until none can."""
        for number in range(ROUNDS_MAX):
            done = 0
            for process in list(self._processes):
                if process.broker is not None:
                    process.broker.may_be_dry = number < DRY_ROUNDS_MAX
                program = process.program
                if program is None or process.busy or process.dead or process.asleep_until_ms > self.clock.now_ms:
                    continue
                done += self._guard(process, partial(program.step, 0))
            if not done:
                return
        raise UnexpectedError(f"the learners work on and on at {self.clock.now_ms} ms without coming to an end")

    def _guard(self, process: Process, call: Callable[[], int]) -> int:
        """Run a call of a process, and do with the process what its end asks for; how much was done."""
        broker = process.broker
        assert broker is not None
        process.busy = True
        moved = broker.moved
        try:
            return call() + broker.moved - moved
        except CrashError:
            self._die(process, process.away_ms)
        except FencedError as error:
            self.fired["thrown out and ends" if "was thrown out" in str(error) else "fenced"] += 1
            self._note(process.name, f"is fenced and ends: {error}")
            self._end(process)
        except BrokerError as error:
            self._note(process.name, f"closes, and is to start anew: {error}")
            self._close(process)
            self._restart(process, 0)
        except JournalError as error:
            raise UnexpectedError(
                f"{process.name} at {self.clock.now_ms} ms: {type(error).__name__}: {error}"
            ) from error
        finally:
            process.busy = False
        return 1

    def _end(self, process: Process) -> None:
        """A process that was told to end does; one whose name nobody else has is started again."""
        zombie = process.zombie
        self._close(process)
        if not zombie:
            self._restart(process, 0)

    def _close(self, process: Process) -> None:
        """Close as a program does that ends in order, as far as the broker lets it."""
        if process.program is not None:
            try:
                process.program.close()
            except (BrokerError, CrashError) as error:
                self._note(process.name, f"could not close: {error}")
                self._leave_behind(process)
        self._remove(process)

    def _die(self, process: Process, away_ms: int) -> None:
        """End a process without anything being closed."""
        if process.dead:
            return
        self._note(process.name, "is dead")
        self._leave_behind(process)
        self._remove(process)
        if not process.zombie:
            self._restart(process, away_ms)

    def _remove(self, process: Process) -> None:
        process.dead = True
        if process in self._processes:
            self._processes.remove(process)

    def _restart(self, process: Process, away_ms: int) -> None:
        """Start a process of this name again, at once or after a while; when the broker is away, after that."""
        name = process.name
        away_ms = max(away_ms, self._outage_until_ms - self.clock.now_ms)
        if away_ms > 0:
            self._after(away_ms, lambda: self._start_once(name))
        else:
            self._start_once(name)

    def _start_once(self, name: str) -> None:
        if all(process.name != name for process in self._live()):
            self._start(name)

    def _leave_behind(self, process: Process) -> None:
        """What a dead or paused process leaves open, the broker ends after a while."""
        for transaction in self.transactions.open.values():
            if transaction.process == process.name:
                self._after(self.schedule.transaction_timeout_ms, partial(self._time_out, transaction))
        member = process.broker.member if process.broker is not None else None
        if member is not None:
            self._after(self.schedule.session_timeout_ms, lambda: self._session_ends(process))

    def _time_out(self, transaction: Transaction) -> None:
        """End a transaction as the broker does: its producer is fenced."""
        if transaction.fate is Fate.OPEN:
            self._note("broker", f"transaction of {transaction.process} times out")
            self.fired["transaction time-out"] += 1
            self.broker.transactional_producer(transaction.transactional_id)
            self.transactions.end(transaction, Fate.ABORTED)

    def _session_ends(self, process: Process) -> None:
        if process.dead or process.busy or process.asleep_until_ms > self.clock.now_ms:
            self._expel(process)

    def _expel(self, process: Process) -> None:
        """Take a process out of the group, if it is in it."""
        if process.broker is not None and process.broker.member is not None:
            self.broker.leave(process.broker.member)

    def _replace(self, process: Process) -> None:
        """Start a second process of this name; the first one lives on and does not know."""
        process.zombie = True
        self._start(process.name)

    # ------------------------------------------------------------------------------------------------------ faults

    def _consult(self, process: Process, call: str) -> Verdict:
        """What goes wrong with an operation of a process."""
        if process.dead:
            raise CrashError
        if self.clock.now_ms < self._outage_until_ms:
            self.fired["operation during an outage"] += 1
            raise BrokerUnavailableError(f"{call}: no answer")
        armed = self._armed.get(process.name)
        if armed:
            for index, item in enumerate(armed):
                if not _meets(item, call):
                    continue
                if item.kind in (Kind.CRASH_IN_RECOVERY, Kind.CRASH_IN_SNAPSHOT) and item.number > 1:
                    armed[index] = item._replace(number=item.number - 1)
                    continue
                del armed[index]
                return self._strike(process, item, call)
        return Verdict.PROCEEDS

    def _commit_step(self, process: Process, number: int) -> None:
        """The crash point of the numbered commit."""
        if process.dead:
            raise CrashError
        armed = self._armed.get(process.name, [])
        for index, item in enumerate(armed):
            if item.kind in IN_COMMIT and item.number == number:
                del armed[index]
                self._strike(process, item, f"commit step {number}")
                return

    def _strike(self, process: Process, item: Item, call: str) -> Verdict:
        """Let an armed fault happen."""
        self._fire(item, process.name)
        kind = item.kind
        if kind is Kind.REFUSED:
            raise BrokerUnavailableError(f"{call}: no answer")
        if kind is Kind.COMMIT_UNKNOWN:
            return Verdict.ANSWER_IS_LOST
        if kind is Kind.COMMIT_LOST:
            return Verdict.IS_LOST
        process.away_ms = item.for_ms
        if kind is Kind.COMMIT_HANGS:
            return Verdict.HANGS
        if kind is Kind.ZOMBIE_IN_COMMIT:
            self._replace(process)
            self._pause(process, item)
        elif kind is Kind.EXPELLED_IN_COMMIT:
            self._expel(process)
            self._pause(process, item)
        elif kind is Kind.JOIN_IN_COMMIT:
            self._join()
            self._pause(process, item)
        else:
            raise CrashError
        return Verdict.PROCEEDS

    def _pause(self, process: Process, item: Item) -> None:
        """Let the world go on while a process stands still in a call."""
        if item.for_ms:
            self._leave_behind(process)
            self._run_until(self.clock.now_ms + item.for_ms)
        else:
            self._poll_all()
        self._note(process.name, "wakes up")
        if process.dead:
            raise CrashError

    def _hang(self, process: Process) -> Callable[[FaultyTransactionalProducer], None]:
        """What is done with a commit that hangs: the process dies of it, and it takes place some time later."""

        def hang(producer: FaultyTransactionalProducer) -> None:
            def finish() -> None:
                try:
                    producer.finish()
                except FencedError:
                    self._note(process.name, "its commit that hung came too late")
                else:
                    self._note(process.name, "its commit that hung has taken place")

            self._after(process.away_ms // 2, finish)
            raise CrashError

        return hang

    # ------------------------------------------------------------------------------------------------------- trace

    def _fire(self, item: Item, who: str) -> None:
        label = str(item.kind)
        if item.kind in IN_COMMIT:
            label = f"{label} {item.number}"
        self.fired[label] += 1
        self._note(who, f"FAULT {item.text()}")

    def _announced(self, process: Process, message: str) -> None:
        if "waits for a transaction" in message:
            self.fired["held up by a transaction"] += 1
        elif "group has moved on" in message:
            self.fired["stale member gives up its step"] += 1
        self._note(process.name, message)

    def _note_commit(self, transaction: Transaction) -> None:
        counts = Counter(tp.topic.removeprefix("sim.") for tp, _ in transaction.records)
        self._note(transaction.process, "commits " + ", ".join(f"{count} {name}" for name, count in counts.items()))

    def _note(self, who: str, what: str) -> None:
        if self.tracing:
            self.trace.append(Happened(self.clock.now_ms, who, what))


_IN_COMMIT_CALL = (Kind.COMMIT_UNKNOWN, Kind.COMMIT_LOST, Kind.COMMIT_HANGS)


def _meets(item: Item, call: str) -> bool:
    """Whether an armed fault is for this operation."""
    if item.call:
        return item.call == call
    if item.kind is Kind.CRASH_IN_RECOVERY:
        return call == "read"
    if item.kind is Kind.CRASH_IN_SNAPSHOT:
        return call == "send snapshot"
    return call == "commit" and item.kind in _IN_COMMIT_CALL
