"""Status and warnings of a shared model: its version, and transactions that block its log."""

from consumers.shared_model import ENDED_BY, Hold, held_up
from stream.durations import format_duration

TOLD_MS = 5_000
"""Age at which an open transaction is reported; a step's transaction is shorter."""

OVERDUE_MS = 30_000
"""Allowance after the transaction timeout; the broker checks timeouts about every ten seconds."""


def model_line(version: int, hold: Hold | None) -> str:
    """Format the version of a process's replica.

    >>> model_line(12_000, None)
    'shared model: version 12,000'
    >>> model_line(12_000, Hold(512, 7_250, 40))
    'shared model: version 12,000, held up for 7 s before 40 offsets of its log'
    """
    held = "" if hold is None else f", held up for {hold.for_ms // 1_000} s before {hold.waiting:,} offsets of its log"
    return f"shared model: version {version:,}{held}"


class LagWarnings:
    """Warnings about blocking transactions, each once per transaction."""

    def __init__(self, topic: str, bootstrap: str, lag_max_ms: int, transaction_timeout_ms: int) -> None:
        """Start without warnings.

        Args:
            topic: The log of the model.
            bootstrap: Address of Kafka.
            lag_max_ms: See `ModelLag`.
            transaction_timeout_ms: The learner's transaction timeout.
        """
        self._topic = topic
        self._bootstrap = bootstrap
        self._lag_max_ms = lag_max_ms
        self._overdue_ms = transaction_timeout_ms + OVERDUE_MS
        self._told: set[tuple[int, int]] = set()  # offset and age of reported warnings

    def of(self, hold: Hold | None) -> list[str]:
        """Return the new warnings."""
        if hold is None:
            self._told.clear()
            return []
        due = [(after_ms, text) for after_ms, text in self._warnings(hold) if 0 <= after_ms <= hold.for_ms]
        fresh = [text for after_ms, text in due if (hold.offset, after_ms) not in self._told]
        self._told |= {(hold.offset, after_ms) for after_ms, _ in due}
        return fresh

    def _warnings(self, hold: Hold) -> list[tuple[int, str]]:
        """Return the warnings with the age at which each is due; -1: never."""
        place = held_up(f"{self._topic}/0", hold.offset)
        command = (
            f"kafka-transactions.sh --bootstrap-server {self._bootstrap} abort --topic {self._topic} --partition 0 "
            f"--start-offset {hold.offset}"
        )
        return [
            (TOLD_MS, f"{place}; decisions use the current model; {ENDED_BY}"),
            (
                self._lag_max_ms,
                f"{place}; no decisions until it ends, because of --model-lag-max "
                f"{format_duration(max(0, self._lag_max_ms))}",
            ),
            (self._overdue_ms, f"{place}, longer than any learner's transaction: it hangs. Run: {command}"),
        ]
