"""A run's faults, and their effects on the processes' calls to the broker.

A process can pause only within a call to the broker. The call runs the rest of the simulation up to the end of the
pause and then returns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from sched import scheduler

from onebit.simulation.faulty_broker import COMMIT_STEP, REPLICATE, SENDS_MODEL, SENDS_SNAPSHOT, CrashError
from onebit.simulation.outside import PREFIX, TOPICS
from onebit.simulation.processes import Process, Processes
from onebit.simulation.retention import Retention
from onebit.simulation.schedule import IN_COMMIT, Item, ItemKind, Schedule
from onebit.simulation.tracing import OPEN_IN_LOG, WAITS_FOR_FOLLOWERS, Trace
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import BrokerUnavailableError, FencedError
from stream.wire.records import TopicPartition


@dataclass(eq=False)
class Faults:
    """A run's faults. A fault takes effect immediately or stays armed until its process makes a matching call."""

    _schedule: Schedule
    _processes: Processes
    _broker: EmbeddedBroker
    _retention: Retention
    _timers: scheduler
    _trace: Trace
    _run_until: Callable[[int], None]  # runs all other programs up to a given time while a process is blocked in a call
    _armed: dict[str, list[Item]] = field(default_factory=dict)
    _slow_until_ms: int = 0
    _call_ms: int = 0  # duration of each operation before `_slow_until_ms`
    _held: dict[TopicPartition, int] = field(default_factory=dict)  # time at which each partition's replication resumes

    @property
    def _clock(self) -> VirtualClock:
        return self._broker.clock

    def do(self, item: Item) -> None:
        """Inject a fault now, or arm it for a later call."""
        process = self._processes.named(item.member)
        if item.kind is ItemKind.JOIN:
            self._trace.fire(item, "world")
            self._processes.join()
        elif item.kind is ItemKind.OUTAGE:
            self._trace.fire(item, "broker")
            self._processes.outage_until_ms = self._clock.now_ms + item.for_ms
            self._timers.enter(item.for_ms, 0, lambda: None)  # the clock stops at the end
        elif item.kind is ItemKind.SLOW:
            self._trace.fire(item, "broker")
            self._slow_until_ms, self._call_ms = self._clock.now_ms + item.for_ms, item.number
        elif item.kind is ItemKind.HOLD:
            self._hold(item)
        elif item.kind is ItemKind.RETENTION:
            self._trace.fire(item, "broker")
            self._retention.delete(item)
        elif item.kind is ItemKind.STOP:
            self._trace.fire(item, "world")
            self._armed.clear()  # a learner that dies instead of stopping must be restarted within the retention
            self._processes.stop_all(item.for_ms)
        elif process is not None:
            self._do_to(process, item)

    def _hold(self, item: Item) -> None:
        """Temporarily suspend a partition's replication."""
        name = PREFIX + item.call
        tp = TopicPartition(name, 0 if name == TOPICS.updates else item.number % self._schedule.partitions)
        if tp not in self._held:
            self._trace.fire(item, str(tp))
            self._held[tp] = self._clock.now_ms + item.for_ms
            self._broker.hold(tp)
            self._timers.enter(item.for_ms, 0, lambda: self._release(tp))

    def _release(self, tp: TopicPartition) -> None:
        if self._held.pop(tp, None) is not None:
            self._broker.release(tp)

    def end(self) -> None:
        """End all faults."""
        self._armed.clear()
        self._slow_until_ms = 0
        self._processes.outage_until_ms = 0
        self._processes.end_faults()
        for tp in list(self._held):
            self._release(tp)

    def consult(self, process: Process, call: str) -> None:
        """Inject the faults for an operation. Called before each operation; see `faulty_broker.Consult`.

        Also called after each numbered step in a commit. Outages and slow calls do not affect these steps.
        """
        if call.startswith(COMMIT_STEP):
            self._meet(process, call)
            return
        self._refuse_in_outage(call)
        if self._clock.now_ms < self._slow_until_ms and not call.startswith("send "):
            self._run_until(self._clock.now_ms + self._call_ms)
        if call == REPLICATE and self._held:
            self._trace.fired[WAITS_FOR_FOLLOWERS] += 1
            until_ms = min(self._clock.now_ms + self._schedule.replication_timeout_ms, max(self._held.values()))
            self._pause(process, until_ms - self._clock.now_ms)
            return
        self._meet(process, call)
        self._refuse_in_outage(call)  # an outage can have started during a pause

    def _refuse_in_outage(self, call: str) -> None:
        if self._clock.now_ms < self._processes.outage_until_ms:
            self._trace.fired["operation during an outage"] += 1
            raise BrokerUnavailableError(f"{call}: no answer")

    def _do_to(self, process: Process, item: Item) -> None:
        processes = self._processes
        actions: dict[ItemKind, Callable[[], object]] = {
            ItemKind.CRASH: lambda: processes.die(process, item.for_ms),
            ItemKind.ZOMBIE: lambda: processes.replace(process),
            ItemKind.EXPELLED: lambda: processes.expel(process),
            ItemKind.LEAVE: lambda: processes.close(process),
            ItemKind.SLEEP: lambda: processes.sleep(process, item.for_ms),
            ItemKind.LAG: partial(process.broker.lag, TopicPartition(TOPICS.updates, 0), item.number),
        }
        act = actions.get(item.kind)
        if act is None:
            self._armed.setdefault(process.name, []).append(item)
            if item.kind is ItemKind.CRASH_IN_RECOVERY:
                processes.die(process, 0)
        elif not (item.kind is ItemKind.LEAVE and len(processes.live()) == 1):
            self._trace.fire(item, process.name)
            act()

    def _meet(self, process: Process, call: str) -> None:
        """Inject the first armed fault that matches a call."""
        armed = self._armed.get(process.name, [])
        for index, item in enumerate(armed):
            if not _is_for(item, call):
                continue
            if (
                item.kind not in IN_COMMIT and item.number > 1 and not _begins(item)
            ):  # the fault occurs in the Nth matching call
                armed[index] = item._replace(number=item.number - 1)
                continue
            del armed[index]
            self._strike(process, item, call)
            return

    def _strike(self, process: Process, item: Item, call: str) -> None:
        """Inject an armed fault."""
        self._trace.fire(item, process.name)
        kind = item.kind
        if kind is ItemKind.COMMIT_UNKNOWN:
            process.broker.transaction.commit()
        if kind is ItemKind.COMMIT_REPEATED and _begins(item):
            process.broker.repeat_commit()
            self._armed.setdefault(process.name, []).append(item._replace(call=_IN_NEXT))
            return
        if kind is ItemKind.COMMIT_REPEATED:
            process.broker.late_end(True)
        if kind in (ItemKind.REFUSED, ItemKind.COMMIT_UNKNOWN, ItemKind.COMMIT_LOST):
            raise BrokerUnavailableError(f"{call}: no answer")
        process.away_ms = item.for_ms
        if kind is ItemKind.PAUSE:
            self._trace.note(process.name, f"pauses before {call}")
        elif kind is ItemKind.ZOMBIE_IN_COMMIT:
            self._processes.replace(process)
        elif kind in (ItemKind.EXPELLED_IN_COMMIT, ItemKind.MOVE_IN_SNAPSHOT):
            self._processes.expel(process)
        elif kind is ItemKind.JOIN_IN_COMMIT:
            self._processes.join()
        else:
            if kind is ItemKind.COMMIT_HANGS:
                self._timers.enter(item.for_ms // 2, 0, partial(self._finish_commit, process))
            raise CrashError
        self._pause(process, item.for_ms)

    def _finish_commit(self, process: Process) -> None:
        """Complete a commit whose process has died."""
        try:
            process.broker.transaction.commit()
        except FencedError:
            self._trace.note(process.name, "its hanging commit is fenced")
        else:
            self._trace.note(process.name, "its hanging commit has completed")

    def _pause(self, process: Process, for_ms: int) -> None:
        """Run the rest of the simulation while one process is blocked in a call."""
        if process.broker.is_open_in(TOPICS.updates):
            self._trace.fired[OPEN_IN_LOG] += 1
        if for_ms:
            self._processes.leave_behind(process)
            self._run_until(self._clock.now_ms + for_ms)
        else:
            self._processes.poll_all()
        self._trace.note(process.name, "wakes up")


_CALLS = {
    ItemKind.CRASH_IN_RECOVERY: ("read",),
    ItemKind.CRASH_IN_SNAPSHOT: (SENDS_SNAPSHOT, SENDS_MODEL),
    ItemKind.MOVE_IN_SNAPSHOT: (SENDS_MODEL,),
    ItemKind.COMMIT_UNKNOWN: ("commit",),
    ItemKind.COMMIT_LOST: ("commit",),
    ItemKind.COMMIT_HANGS: ("commit",),
    ItemKind.COMMIT_REPEATED: ("commit",),
}
"""The operations in which a fault of these kinds can occur. The item of any other fault names its operation."""


_IN_NEXT = "in the next transaction"
_WRITES = ("send record", SENDS_SNAPSHOT, SENDS_MODEL, "flush", "send_offsets", "commit")
"""The operations in a transaction during which a delayed commit can arrive. The process then dies."""


def _begins(item: Item) -> bool:
    """Return whether a repeated commit has not happened yet. Later, its first request arrives."""
    return item.kind is ItemKind.COMMIT_REPEATED and item.call != _IN_NEXT


def _is_for(item: Item, call: str) -> bool:
    """Return whether an armed fault matches an operation."""
    if item.call == _IN_NEXT:
        return call in _WRITES
    if item.kind in IN_COMMIT:
        return call == f"{COMMIT_STEP}{item.number}"
    if item.kind is ItemKind.PAUSE:
        return not call.startswith(COMMIT_STEP)
    return call in _CALLS.get(item.kind, (item.call,))
