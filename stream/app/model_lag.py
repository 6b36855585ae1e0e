"""What a running learner says of a shared model: its version, and what holds its log up."""

from consumers.shared_model import ENDED_BY, Hold, held_up
from stream.durations import format_duration

TOLD_MS = 5_000
"""A transaction that is open for so long is none of a learner that is just making a step."""

OVERDUE_MS = 30_000
"""After its time-out the broker ends a transaction within some ten seconds, when it looks for such."""


def model_line(version: int, hold: Hold | None) -> str:
    """Where the replica of a process stands.

    >>> model_line(12_000, None)
    'shared model: version 12,000'
    >>> model_line(12_000, Hold(512, 7_250, 40))
    'shared model: version 12,000, held up for 7 s before 40 offsets of its log'
    """
    held = "" if hold is None else f", held up for {hold.for_ms // 1_000} s before {hold.waiting:,} offsets of its log"
    return f"shared model: version {version:,}{held}"


class LagWarnings:
    """What people are warned of, each once for each transaction."""

    def __init__(self, topic: str, bootstrap: str, lag_max_ms: int, transaction_timeout_ms: int) -> None:
        """Warn of nothing yet.

        Args:
            topic: the log of the model.
            bootstrap: where its Kafka is.
            lag_max_ms: see `ModelLag`.
            transaction_timeout_ms: after which the broker ends a transaction of a learner.
        """
        self._topic = topic
        self._bootstrap = bootstrap
        self._lag_max_ms = lag_max_ms
        self._overdue_ms = transaction_timeout_ms + OVERDUE_MS
        self._told: set[tuple[int, int]] = set()  # offsets, and after how long

    def of(self, hold: Hold | None) -> list[str]:
        """What to say now."""
        if hold is None:
            self._told.clear()
            return []
        due = [(after_ms, text) for after_ms, text in self._warnings(hold) if 0 <= after_ms <= hold.for_ms]
        fresh = [text for after_ms, text in due if (hold.offset, after_ms) not in self._told]
        self._told |= {(hold.offset, after_ms) for after_ms, _ in due}
        return fresh

    def _warnings(self, hold: Hold) -> list[tuple[int, str]]:
        """After how long which is due; -1: never."""
        place = held_up(f"{self._topic}/0", hold.offset)
        command = (
            f"kafka-transactions.sh --bootstrap-server {self._bootstrap} abort --topic {self._topic} --partition 0 "
            f"--start-offset {hold.offset}"
        )
        return [
            (TOLD_MS, f"{place}; decisions are made on the model that there is; {ENDED_BY}"),
            (
                self._lag_max_ms,
                f"{place}; no decision is made before it ends, by --model-lag-max "
                f"{format_duration(max(0, self._lag_max_ms))}",
            ),
            (self._overdue_ms, f"{place}, and no learner's lasts so long: it hangs; end it: {command}"),
        ]
