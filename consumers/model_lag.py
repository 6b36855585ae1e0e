"""How long the log of a shared model cannot be read to its end, because a transaction is open in it.

A reader of committed records gets nothing behind the first open transaction, whoever writes there: a learner that died
in its step holds the others up until the broker ends its transaction, at the time-out. A transaction of every step is
open for a moment; so what counts is since when reading has stood at one offset. Meanwhile a task decides on its own
decisions, as far as it may.
"""

from collections.abc import Callable
from typing import NamedTuple

from consumers.following import Following
from consumers.running_task import RunningTask
from stream.brokers.port import Ends
from stream.sharing.view import View


class Hold(NamedTuple):
    """An open transaction before which the log cannot be read."""

    offset: int  # of its first record
    for_ms: int  # since this process has met it
    waiting: int  # offsets from there to the end of the log


class ModelLag:
    """What holds a replica up, and whether decisions may still be made on it."""

    def __init__(self, host_ms: Callable[[], int], lag_max_ms: int) -> None:
        """Nothing holds it up yet.

        Args:
            host_ms: a clock of this host, for intervals.
            lag_max_ms: after so long no more decisions are made; -1: they are made however long it takes.
        """
        self._host_ms = host_ms
        self._lag_max_ms = lag_max_ms
        self._ends = Ends(0, 0)
        self._since_ms = 0

    def sees(self, ends: Ends) -> None:
        """Take note of where the log ends, and up to where it can be read, as just asked."""
        if ends.stable >= ends.high_watermark or ends.stable != self._ends.stable or not self._is_held:
            self._since_ms = self._host_ms()
        self._ends = ends

    @property
    def hold(self) -> Hold | None:
        """What holds the replica up; None: nothing does."""
        if not self._is_held:
            return None
        waiting = self._ends.high_watermark - self._ends.stable
        return Hold(self._ends.stable, self._host_ms() - self._since_ms, waiting)

    @property
    def stops_decisions(self) -> bool:
        """Whether the model is too old to decide on."""
        hold = self.hold
        return hold is not None and 0 <= self._lag_max_ms < hold.for_ms

    @property
    def _is_held(self) -> bool:
        return self._ends.stable < self._ends.high_watermark


class HoldBack:
    """How far tasks may decide ahead of a shared model.

    Their own decisions that it has not observed are put on top of it in each step: a log that stands still would make
    steps longer and longer.
    """

    def __init__(self, ahead_max: int, announce: Callable[[str], None]) -> None:
        """Hold no task back yet.

        Args:
            ahead_max: decisions of a task that its model has not observed, at most.
            announce: is told which task is held back, and when it goes on.
        """
        self._ahead_max = ahead_max
        self._announce = announce
        self._held_back: set[int] = set()

    def allowed(self, records: int, running: RunningTask, following: Following | None) -> int:
        """So many records a task may take in a step that would take `records`."""
        view, partition = running.task.view, running.contexts_tp.partition
        if following is None or not isinstance(view, View):
            return records
        room = max(0, self._ahead_max - view.ahead)
        if room and partition in self._held_back:
            self._held_back.remove(partition)
            self._announce(f"partition {partition} decides on")
        elif not room and partition not in self._held_back:
            self._held_back.add(partition)
            self._announce(
                f"partition {partition} decides nothing more for now, since {view.ahead:,} of its decisions are not "
                f"observed by its model: {following.waits_for}"
            )
        return min(records, room)

    def forget(self, partition: int) -> None:
        """Let go of a task that runs elsewhere from now on."""
        self._held_back.discard(partition)
