"""A run's schedule as plain data.

Half of the runs are *timeless*. Their faults take no virtual time, and a learner polls whenever something happens. Such
a run must have the same outputs, models and ledgers as a run without faults (see `checks.equal_faultless`).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from consumers.learner.program import LearnerOptions
from stream.task.settings import Sharing, TaskSettings
from stream.wire.records import Logged

EVENTS = 20
"""Number of contexts in a run: enough for all kinds of events to interact, but few enough for a readable trace."""


class ItemKind(StrEnum):
    """An item's kind. Its text appears in traces and in the coverage table."""

    # Other clients.
    CONTEXT = "context"
    CONTEXT_AGAIN = "duplicate context"
    CONTEXT_POISON = "poison context"
    FEEDBACK = "feedback"
    FEEDBACK_EARLY = "feedback before its context"
    FEEDBACK_AGAIN = "duplicate feedback"
    FEEDBACK_CONFLICT = "conflicting feedback"
    FEEDBACK_MORE = "further feedback"
    FEEDBACK_MANY = "feedback with too many parts"
    FEEDBACK_STRAY = "feedback without a context"
    FEEDBACK_LOST = "lost feedback"
    FEEDBACK_POISON = "poison feedback"
    FOREIGN_BEGIN = "another producer opens a transaction"
    FOREIGN_CONTEXT = "context in another producer's transaction"
    FOREIGN_FEEDBACK = "feedback in another producer's transaction"
    FOREIGN_OUTPUT = "another producer writes to a learner topic"
    FOREIGN_COMMIT = "another producer commits"
    FOREIGN_ABORT = "another producer aborts"
    SHOWN = "shown"
    SHOWN_EARLY = "shown before its context"
    SHOWN_AGAIN = "duplicate shown"
    SHOWN_NEVER = "never shown"
    CHANGE = "requested change"
    TIME = "time passes"
    # Faults.
    CRASH = "crash between steps"
    CRASH_IN_COMMIT = "crash after commit step"
    CRASH_IN_CALL = "crash in a broker call"
    CRASH_IN_RECOVERY = "crash during recovery"
    CRASH_IN_SNAPSHOT = "crash during a snapshot"
    ZOMBIE = "zombie beside its replacement"
    ZOMBIE_IN_COMMIT = "zombie replaced during a commit, after step"
    EXPELLED = "session timeout"
    EXPELLED_IN_COMMIT = "session timeout in a commit, after step"
    JOIN = "member joins"
    JOIN_IN_COMMIT = "rebalance in a commit, after step"
    LEAVE = "member leaves"
    REFUSED = "broker unavailable once"
    OUTAGE = "broker unavailable for a while"
    COMMIT_UNKNOWN = "commit outcome unknown: committed"
    COMMIT_LOST = "commit outcome unknown: not committed"
    COMMIT_HANGS = "commit outcome unknown: committed later"
    COMMIT_REPEATED = "commit repeated, and its first request arrives later"
    SLEEP = "learner does not poll"
    SLOW = "broker slow for a while"
    PAUSE = "learner pauses before a broker call"
    HOLD = "replication stops for a while"
    RETENTION = "retention deletes old records"
    STOP = "all learners stop for longer than the retention"
    # Faults that occur only with a shared model.
    LAG = "learner reads an old end of the log"
    MOVE_IN_SNAPSHOT = "partition 0 moves during a snapshot of the model"


DECIDING = (ItemKind.CONTEXT, ItemKind.FOREIGN_CONTEXT)
CONTEXTS = (*DECIDING, ItemKind.CONTEXT_AGAIN)
SHOWN = (ItemKind.SHOWN, ItemKind.SHOWN_EARLY, ItemKind.SHOWN_AGAIN)

WAITING = frozenset((
    ItemKind.CONTEXT, ItemKind.CONTEXT_AGAIN, ItemKind.CONTEXT_POISON, ItemKind.FEEDBACK, ItemKind.FEEDBACK_EARLY,
    ItemKind.FEEDBACK_AGAIN, ItemKind.FEEDBACK_CONFLICT, ItemKind.FEEDBACK_MORE, ItemKind.FEEDBACK_STRAY,
    ItemKind.FEEDBACK_POISON, *SHOWN,
))  # fmt: skip
"""The items that can wait in the new topics of a move."""

ENVIRONMENT = frozenset(kind for kind in ItemKind if list(ItemKind).index(kind) <= list(ItemKind).index(ItemKind.TIME))

TIMELESS_FAULTS = (
    ItemKind.CRASH, ItemKind.CRASH_IN_COMMIT, ItemKind.CRASH_IN_COMMIT, ItemKind.CRASH_IN_COMMIT,
    ItemKind.CRASH_IN_CALL, ItemKind.CRASH_IN_RECOVERY, ItemKind.CRASH_IN_SNAPSHOT, ItemKind.ZOMBIE,
    ItemKind.ZOMBIE_IN_COMMIT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED, ItemKind.EXPELLED_IN_COMMIT,
    ItemKind.JOIN_IN_COMMIT, ItemKind.JOIN, ItemKind.LEAVE, ItemKind.REFUSED, ItemKind.COMMIT_UNKNOWN,
    ItemKind.COMMIT_LOST,
)  # fmt: skip

TIMED_FAULTS = (
    *TIMELESS_FAULTS, ItemKind.OUTAGE, ItemKind.COMMIT_HANGS, ItemKind.SLEEP, ItemKind.SLEEP, ItemKind.SLOW,
    ItemKind.SLOW, ItemKind.PAUSE, ItemKind.HOLD, ItemKind.HOLD, ItemKind.HOLD,
)  # fmt: skip

SHARED_FAULTS = (
    ItemKind.LAG, ItemKind.LAG, ItemKind.MOVE_IN_SNAPSHOT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED_IN_COMMIT,
    ItemKind.CRASH_IN_COMMIT,
)  # fmt: skip
"""Additional faults in a run with a shared model."""

OTHER_FAULTS = (ItemKind.COMMIT_REPEATED, ItemKind.RETENTION, ItemKind.STOP)
"""Faults that are drawn from their own random streams."""

IN_COMMIT = (ItemKind.CRASH_IN_COMMIT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED_IN_COMMIT, ItemKind.JOIN_IN_COMMIT)
"""Faults that occur between numbered steps in a commit."""

Changes = tuple[tuple[str, Any], ...]
"""Settings with their new values; None for a parameter that the new learner lacks."""


class Item(NamedTuple):
    """An event or fault in a schedule."""

    at_ms: int
    kind: ItemKind
    id: str = ""  # empty for malformed records, and for items without an event
    bit: int = 0
    member: int = 0
    number: int = 0  # number of a commit step, poison record, transaction, call or partition; or ms per operation
    call: str = ""  # broker operation, or topic to write to or to stop replicating
    for_ms: int = 0  # duration of the fault, or time until a restart
    polls: bool = True  # True if the learners poll before the next item
    action: int | None = None  # the class to which the feedback applies; None if not given
    part: int = 0  # the number of the feedback's part of a sum
    final: bool = False  # True if the feedback settles its decision, although other feedback could change its reward
    logged: Logged | None = None  # a context's logged decision
    eligible: tuple[int, ...] | None = None  # a context's eligible classes; None means all
    baseline: int | None = None  # the class that the service's own rule plays; None if the context does not name it
    deferred: bool = False  # True if a context defers its decision until it is shown
    feature: int | None = None  # index of an additional feature of a context
    has_names: bool = False  # True if the context names its features
    changes: Changes = ()  # requested settings with their new values
    is_stale: bool = False  # True if a request starts from settings that are not the pipeline's

    def text(self) -> str:
        """Return a description for traces and reports."""
        has_bit = self.kind.value.startswith(("feedback", "duplicate feedback", "conflicting", "further")) and self.id
        parts = (
            self.kind,
            self.kind in IN_COMMIT and self.number,
            self.id,
            has_bit and ("right" if self.bit else "wrong"),
            self.deferred and "deferred",
            self.part and f"part {self.part}",
            self.final and "final",
            self.action is not None and f"for action {self.action}",
            self.call,
            " ".join(f"{name}={value}" for name, value in self.changes),
            self.for_ms and f"for {self.for_ms} ms",
        )
        return " ".join(str(part) for part in parts if part)


class MoveDraw(NamedTuple):
    """A move in the middle of a run."""

    after: int  # number of items before the move
    waiting: int  # number of items whose records go to the new topics before the move
    partitions: int
    model: Sharing
    model_from: int | None
    seed: int | None
    crashes: tuple[int, ...]  # number of calls to a broker after which each attempt but the last dies


class Schedule(NamedTuple):
    """A run's schedule."""

    seed: int
    timeless: bool
    partitions: int
    members: int
    learner: str  # key in LEARNERS or OFFERING
    task: TaskSettings
    options: LearnerOptions  # options of all learner processes, apart from the instance's name
    poll_max: int  # limit on records in one poll
    dry_every: int  # N if every Nth poll returns nothing; 0 if there are no such polls
    old_lags: bool  # True if lags are reported as of the last fetch
    lingers: bool  # True if records are sent only at a flush
    transaction_timeout_ms: int
    session_timeout_ms: int
    replication_timeout_ms: int  # limit on the time that a learner waits for followers
    clock_pauses: bool
    items: tuple[Item, ...]
    move: MoveDraw | None = None  # None if the pipeline is not moved

    def only(self, indices: Sequence[int]) -> "Schedule":
        """Return the schedule with only the items at these indices."""
        return self._replace(items=tuple(self.items[index] for index in indices))

    def faultless(self) -> "Schedule":
        """Return a schedule with the same events, one process, and no faults."""
        return self._replace(members=1, items=tuple(item for item in self.items if item.kind in ENVIRONMENT))


START_MS = 1_000

NEVER_MS = 10**9
"""A duration longer than any run."""

N_CLASSES, N_FEATURES = 3, 8
"""The sizes with which every pipeline begins."""

N_CLASSES_MAX, N_FEATURES_MAX = 5, 12
"""The largest sizes that requests ask for."""

OFFERS: tuple[tuple[int, ...], ...] = ((0, 1, 2), (2, 0), (1,), (4, 3, 1), (2, 1, 0), (0, 3))
"""The actions that contexts offer, by place. Actions are numbered as classes are; see `class_name`."""


def offer_of(event_id: str) -> tuple[int, ...]:
    """Return the actions that an event's context offers."""
    return OFFERS[int(event_id[1:]) % len(OFFERS)]


def class_name(k: int) -> str:
    """Return a class's name, in a pipeline whose classes have names."""
    return f"c{k}"


def feature_name(i: int) -> str:
    """Return a feature's name, in a pipeline whose features have names."""
    return f"f{i}"
