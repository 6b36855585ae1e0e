"""Counts the events in a run and records a line for each event."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onebit.simulation.faulty_broker import Transaction
from onebit.simulation.schedule import IN_COMMIT, Item
from stream.kafka.embedded import VirtualClock


class Happened(NamedTuple):
    """One line in a trace."""

    at_ms: int
    who: str
    what: str


WAITS_FOR_FOLLOWERS = "learner waits for followers"

BEHIND_ITS_LOG = "task waits until its log can be read"
FOREIGN_IN_LOG = "foreign record in the log"
OPEN_IN_LOG = "pauses with an open transaction in the log"
NAMED_TWICE = "class added to the log by two tasks"
BEFORE_CHANGE = "entry with earlier settings follows a change in the log"
APPLIED = "request applied"
REFUSED = "request refused"
MOVED = "pipeline moved"
MOVE_DIED = "move dies and is repeated"
FED_AFTER_MOVE = "feedback after a move for a decision before it"

_COUNTED = {
    "waits for a transaction": "blocked by a transaction",
    "waits until": BEHIND_ITS_LOG,
    "the group has rebalanced": "step aborted after a rebalance",
}
"""The events to count, keyed by the text that identifies them in a learner's log message."""


@dataclass
class Trace:
    """Records the events in one run."""

    clock: VirtualClock
    fired: Counter[str] = field(default_factory=Counter)  # number of occurrences of each event
    lines: list[Happened] = field(default_factory=list)

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        self.lines.append(Happened(self.clock.now_ms, who, what))

    def fire(self, item: Item, who: str) -> None:
        """Record a fault."""
        self.fired[f"{item.kind} {item.number}" if item.kind in IN_COMMIT else str(item.kind)] += 1
        self.note(who, f"FAULT {item.text()}")

    def announced(self, who: str, message: str) -> None:
        """Record a learner's log message."""
        counted = next((name for part, name in _COUNTED.items() if part in message), None)
        if counted is not None:
            self.fired[counted] += 1
        self.note(who, message)

    def committed(self, transaction: Transaction) -> None:
        """Record a commit whose result the client received."""
        counts = Counter(tp.topic.removeprefix("sim.") for tp, _ in transaction.records)
        self.note(transaction.process, "commits " + ", ".join(f"{count} {name}" for name, count in counts.items()))


def trace_digest(happened: Sequence[Happened]) -> str:
    """Return the digest of a trace. Identical runs have identical digests on every machine."""
    return hashlib.sha256("".join(repr(tuple(line)) for line in happened).encode()).hexdigest()[:16]
