"""How long the log of a shared model cannot be read to its end, because a transaction is open in it.

A reader of committed records gets nothing behind the first open transaction, whoever writes there: a learner that died
in its step holds the others up until the broker ends its transaction, at the time-out. A transaction of every step is
open for a moment; so what counts is since when reading has stood at one offset.
"""

from collections.abc import Callable
from typing import NamedTuple

from stream.brokers.port import Ends


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
