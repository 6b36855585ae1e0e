"""What a learner does while one of its tasks is recovered, which may take long."""

from collections.abc import Callable

from stream.recovery.recover import Progress

REPORT_INTERVAL_MS = 5_000
POLL_INTERVAL_MS = 2_000
"""So often a learner polls while it recovers: well within any session."""


class RecoveryStoppedError(Exception):
    """The learner was asked to stop while it recovered a task; nothing was written."""


class Recovering:
    """One recovery: it ends when the program is asked to stop, polls, and tells people how far it has come."""

    def __init__(
        self,
        partition: int,
        host_ms: Callable[[], int],
        announce: Callable[[str], None],
        stop: Callable[[], bool],
        poll: Callable[[], None],
    ) -> None:
        """Begin; `poll` is called now and then, because a rebalance throws out members that do not hear of it."""
        self._partition = partition
        self._host_ms = host_ms
        self._announce = announce
        self._stop = stop
        self._poll = poll
        self._where = "while snapshots were read"
        self._started_ms = self._told_ms = self._polled_ms = host_ms()

    def pulse(self) -> None:
        """Go on, or not.

        Raises:
            RecoveryStoppedError: the program was asked to stop.
        """
        if self._stop():
            raise RecoveryStoppedError(f"asked to stop {self._where}")
        now_ms = self._host_ms()
        if now_ms - self._polled_ms >= POLL_INTERVAL_MS:
            self._polled_ms = now_ms
            self._poll()

    def reads_log(self, offset: int, end: int) -> bool:
        """The log of a shared model was read on: the same, and people are told now and then; it is to be read on."""
        self._where = f"at offset {offset:,} of {end:,} of the model's log"
        self.pulse()
        if self._host_ms() - self._told_ms >= REPORT_INTERVAL_MS:
            self._told_ms = self._host_ms()
            self._announce(f"recovering partition {self._partition}: offset {offset:,} of {end:,} of the model's log")
        return True

    def progress(self, progress: Progress) -> None:
        """A step was applied again: the same, and people are told at the beginning, now and then, and at the end."""
        number, first, last, records = progress
        self._where = f"at step {number:,} of {first:,} to {last:,}"
        self.pulse()
        now_ms = self._host_ms()
        if first <= number < last and now_ms - self._told_ms < REPORT_INTERVAL_MS:
            return
        self._told_ms = now_ms
        took_ms = now_ms - self._started_ms
        rate = f", {1_000 * records / took_ms:,.0f} records/s" if took_ms > 0 else ""
        self._announce(f"recovering partition {self._partition}: step {number:,} of {first:,} to {last:,}{rate}")
