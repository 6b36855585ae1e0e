"""The join of decisions and their feedback: one machine for each event id, and its whole table of transitions.

Time here is the *feedback watermark*: the broker's time up to which all feedback has been applied. It is the append
time of the last feedback applied, or, when the feedback partition was read to its end, the broker's time at that
reading. So what is matched and what is late depends on append times alone, not on when they were read:

    feedback appended  ─────●───────────────●──────────●────────▶ broker's time
                            in time         │          late
    decision  decided_at ├──── window_ms ───┤ deadline (the deadline itself is in time)
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from operator import itemgetter
from typing import NamedTuple, TypeVar

from stream.wire.events import Decision, Features, Feedback, Outcome
from stream.wire.ledger import Ledger
from stream.wire.records import Record


class State(IntEnum):
    """Where an event id stands."""

    UNSEEN = auto()
    ORPHAN = auto()
    PENDING = auto()
    MATCHED = auto()
    EXPIRED = auto()


class Input(IntEnum):
    """What can happen to an event id."""

    CONTEXT = auto()
    FEEDBACK = auto()
    DEADLINE = auto()


class Action(Enum):
    """What the engine is to do."""

    DECIDE = auto()  # predict, and wait for the feedback
    DECIDE_AND_MATCH = auto()  # predict, and learn at once from the feedback that waited
    IGNORE_CONTEXT = auto()  # the first decision stands
    KEEP_ORPHAN = auto()  # the feedback waits for its context
    MATCH = auto()  # learn
    IGNORE_FEEDBACK = auto()  # the first feedback wins
    LATE = auto()  # the decision had expired: ignore, or correct what was assumed
    EXPIRE = auto()  # settle without feedback
    DROP_ORPHAN = auto()  # the context did not come
    FORGET = auto()  # the id may be used again


TRANSITIONS: dict[tuple[State, Input], tuple[Action, State]] = {
    (State.UNSEEN, Input.CONTEXT): (Action.DECIDE, State.PENDING),
    (State.UNSEEN, Input.FEEDBACK): (Action.KEEP_ORPHAN, State.ORPHAN),
    (State.ORPHAN, Input.CONTEXT): (Action.DECIDE_AND_MATCH, State.MATCHED),
    (State.ORPHAN, Input.FEEDBACK): (Action.IGNORE_FEEDBACK, State.ORPHAN),
    (State.ORPHAN, Input.DEADLINE): (Action.DROP_ORPHAN, State.UNSEEN),
    (State.PENDING, Input.CONTEXT): (Action.IGNORE_CONTEXT, State.PENDING),
    (State.PENDING, Input.FEEDBACK): (Action.MATCH, State.MATCHED),
    (State.PENDING, Input.DEADLINE): (Action.EXPIRE, State.EXPIRED),
    (State.MATCHED, Input.CONTEXT): (Action.IGNORE_CONTEXT, State.MATCHED),
    (State.MATCHED, Input.FEEDBACK): (Action.IGNORE_FEEDBACK, State.MATCHED),
    (State.MATCHED, Input.DEADLINE): (Action.FORGET, State.UNSEEN),
    (State.EXPIRED, Input.CONTEXT): (Action.IGNORE_CONTEXT, State.EXPIRED),
    (State.EXPIRED, Input.FEEDBACK): (Action.LATE, State.EXPIRED),
    (State.EXPIRED, Input.DEADLINE): (Action.FORGET, State.UNSEEN),
}
"""All that can happen. A pair that is not here cannot happen: there is no deadline for an unseen id."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """The limits of the join. Each limit overflows by settling the oldest first, and is counted."""

    window_ms: int = 300_000  # how long a decision waits for its feedback
    orphan_ms: int = 300_000  # how long feedback waits for its context
    retain_ms: int = 3_600_000  # how long a settled id is remembered, to know duplicates and late feedback
    pending_max: int = 1_000_000  # beyond it, the oldest decision expires at once
    orphans_max: int = 100_000  # beyond it, the oldest orphan is dropped at once
    retained_max: int = 5_000_000  # beyond it, the oldest settled id is forgotten at once


class Pending(NamedTuple):
    """A decision that waits for its feedback."""

    x: Features
    decision: Decision
    decided_at_ms: int


class Orphan(NamedTuple):
    """Feedback that waits for its context."""

    feedback: Feedback
    record: Record  # as it came
    kept_at_ms: int  # the watermark when it was kept


class Retained(NamedTuple):
    """A settled event, kept so that what still comes for its id is known for what it is."""

    outcome: Outcome
    reward: int | None  # the bit that counted; None: expired, nothing assumed
    settled_at_ms: int
    pending: Pending | None  # for the correction by late feedback, where the late policy asks for one


class Settled(NamedTuple):
    """A decision that has just been settled."""

    id: str
    pending: Pending
    outcome: Outcome
    feedback: Feedback | None  # None: expired
    record: Record | None  # the record that the feedback came in


EntryType = TypeVar("EntryType", Pending, Orphan, Retained)


class Overflows(NamedTuple):
    """How often each limit was met."""

    pending: int = 0
    orphans: int = 0
    retained: int = 0


_ledger_counts = itemgetter(*Ledger._fields)


class DroppedOrphan(NamedTuple):
    """Feedback whose context did not come."""

    id: str
    orphan: Orphan


class Join:
    """The machines of all event ids of one task.

    The engine asks what an input means (`receive_*`, `pass_time`), does it, and reports decisions back (`hold`).
    Deadlines of each kind fall due in the order in which they were set, because watermarks never go back: so the
    oldest entry of each map is the next one due.
    """

    def __init__(self, settings: JoinSettings, *, assumes_negative: bool = False, corrects: bool = False) -> None:
        self.settings = settings
        self.assumed_reward = 0 if assumes_negative else None
        self._corrects = corrects
        self.watermark_ms = 0
        self._quiet_until_ms = -1  # nothing falls due as long as the watermark has not passed this
        self._is_changed = False  # the settings were, since anything was settled by them
        self.pending: OrderedDict[str, Pending] = OrderedDict()
        self.orphans: OrderedDict[str, Orphan] = OrderedDict()
        self.retained: OrderedDict[str, Retained] = OrderedDict()
        self._counts = dict.fromkeys((*Ledger._fields, "overflow_pending", "overflow_orphans", "overflow_retained"), 0)

    def change_settings(self, settings: JoinSettings, *, assumes_negative: bool, corrects: bool) -> None:
        """Go by other settings; `settle_changed` then gives what these settle at once."""
        self.settings = settings
        self.assumed_reward = 0 if assumes_negative else None
        self._corrects = corrects
        self._is_changed = True

    def settle_changed(self) -> Iterable[Settled | DroppedOrphan]:
        """Settle what is overdue and what is beyond the limits, as it can be only after the settings were changed."""
        return self._settle_changed() if self._is_changed else ()

    def _settle_changed(self) -> Iterator[Settled | DroppedOrphan]:
        self._is_changed = False
        yield from self._settle_due()
        limits = self.settings
        while len(self.pending) > limits.pending_max:
            self._counts["overflow_pending"] += 1
            yield self._expire()
        while len(self.orphans) > limits.orphans_max:
            self._counts["overflow_orphans"] += 1
            yield self._drop_orphan()
        while len(self.retained) > limits.retained_max:
            self._counts["overflow_retained"] += 1
            self.retained.popitem(last=False)

    def state_of(self, event_id: str) -> State:
        """Where an id stands."""
        if event_id in self.pending:
            return State.PENDING
        retained = self.retained.get(event_id)
        if retained is not None:
            return State.MATCHED if retained.outcome is Outcome.MATCHED else State.EXPIRED
        return State.ORPHAN if event_id in self.orphans else State.UNSEEN

    def ledger(self) -> Ledger:
        """The counts as they stand."""
        counts = self._counts
        counts["pending"] = len(self.pending)
        counts["orphans_waiting"] = len(self.orphans)
        return Ledger._make(_ledger_counts(counts))

    def overflows(self) -> Overflows:
        """How often each limit was met."""
        return Overflows(*(self._counts[f"overflow_{name}"] for name in Overflows._fields))

    def restore_counts(self, ledger: Ledger, overflows: Overflows) -> None:
        """Take over the counts of a stored state."""
        self._counts.update(ledger._asdict())
        self._counts.update({f"overflow_{name}": count for name, count in overflows._asdict().items()})

    def receive_context(self, event_id: str) -> Action:
        """Count a context, and say what it means: decide, decide and match, or ignore."""
        self._counts["contexts"] += 1
        action, _ = TRANSITIONS[self.state_of(event_id), Input.CONTEXT]
        if action is Action.IGNORE_CONTEXT:
            self._counts["context_duplicates"] += 1
        return action

    def receive_malformed(self, kind: Input) -> None:
        """Count a record that could not be read."""
        if kind is Input.CONTEXT:
            self._counts["contexts"] += 1
            self._counts["context_malformed"] += 1
        else:
            self._counts["feedback"] += 1
            self._counts["feedback_malformed"] += 1

    def hold(self, event_id: str, pending: Pending) -> Settled | None:
        """Take in a decision just made; what that settles: itself, if its feedback waited, or an overflow."""
        self._counts["decided"] += 1
        if event_id in self.orphans:
            orphan = self.orphans.pop(event_id)
            return self._match(event_id, pending, orphan.feedback, orphan.record)
        self.pending[event_id] = pending
        if len(self.pending) > self.settings.pending_max:
            self._counts["overflow_pending"] += 1
            return self._expire()
        return None

    def receive_feedback(self, feedback: Feedback, record: Record) -> Settled | Retained | DroppedOrphan | None:
        """Count a feedback whose append time has been given to `pass_time`, and return what comes of it.

        That is the decision it settles; the retained event that it is too late for; an older orphan that had to go to
        make room; or nothing, for an orphan and for a duplicate.
        """
        self._counts["feedback"] += 1
        event_id = feedback.id
        action, _ = TRANSITIONS[self.state_of(event_id), Input.FEEDBACK]
        if action is Action.MATCH:
            return self._match(event_id, self.pending.pop(event_id), feedback, record)
        if action is Action.KEEP_ORPHAN:
            self.orphans[event_id] = Orphan(feedback, record, self.watermark_ms)
            if len(self.orphans) <= self.settings.orphans_max:
                return None
            self._counts["overflow_orphans"] += 1
            return self._drop_orphan()
        if action is Action.LATE:
            self._counts["late"] += 1
            retained = self.retained[event_id]
            self.retained[event_id] = retained._replace(pending=None)  # it is corrected once
            return retained
        self._counts["feedback_duplicates"] += 1
        first = self.orphans[event_id].feedback if event_id in self.orphans else self.retained[event_id]
        if first.reward != feedback.reward:
            self._counts["conflicts"] += 1
        return None

    def pass_time(self, watermark_ms: int) -> Iterable[Settled | DroppedOrphan]:
        """Move the watermark, and settle all whose deadline it has passed, one as each is taken from what is returned.

        An earlier watermark changes nothing.
        """
        if watermark_ms <= self.watermark_ms:
            return ()
        self.watermark_ms = watermark_ms
        return self._settle_due() if watermark_ms > self._quiet_until_ms else ()

    def _settle_due(self) -> Iterator[Settled | DroppedOrphan]:
        limits, watermark_ms = self.settings, self.watermark_ms
        while self.pending and self._oldest(self.pending).decided_at_ms + limits.window_ms < watermark_ms:
            yield self._expire()
        while self.orphans and self._oldest(self.orphans).kept_at_ms + limits.orphan_ms < watermark_ms:
            yield self._drop_orphan()
        while self.retained and self._oldest(self.retained).settled_at_ms + limits.retain_ms < watermark_ms:
            self.retained.popitem(last=False)
        # What is still to come is dated by this watermark or later.
        self._quiet_until_ms = min(
            (self._oldest(self.pending).decided_at_ms if self.pending else watermark_ms) + limits.window_ms,
            (self._oldest(self.orphans).kept_at_ms if self.orphans else watermark_ms) + limits.orphan_ms,
            (self._oldest(self.retained).settled_at_ms if self.retained else watermark_ms) + limits.retain_ms,
        )

    def next_deadline_ms(self) -> int | None:
        """The next time at which a decision expires or an orphan is dropped, if nothing else happens."""
        deadlines = []
        if self.pending:
            deadlines.append(self._oldest(self.pending).decided_at_ms + self.settings.window_ms)
        if self.orphans:
            deadlines.append(self._oldest(self.orphans).kept_at_ms + self.settings.orphan_ms)
        return min(deadlines, default=None)

    @staticmethod
    def _oldest(entries: OrderedDict[str, EntryType]) -> EntryType:
        return entries[next(iter(entries))]

    def _match(self, event_id: str, pending: Pending, feedback: Feedback, record: Record) -> Settled:
        self._counts["matched"] += 1
        self._retain(event_id, Retained(Outcome.MATCHED, feedback.reward, self.watermark_ms, None))
        return Settled(event_id, pending, Outcome.MATCHED, feedback, record)

    def _expire(self) -> Settled:
        event_id, pending = self.pending.popitem(last=False)
        self._counts["expired"] += 1
        kept = pending if self._corrects else None
        self._retain(event_id, Retained(Outcome.EXPIRED, self.assumed_reward, self.watermark_ms, kept))
        return Settled(event_id, pending, Outcome.EXPIRED, None, None)

    def _drop_orphan(self) -> DroppedOrphan:
        event_id, orphan = self.orphans.popitem(last=False)
        self._counts["orphans_dropped"] += 1
        return DroppedOrphan(event_id, orphan)

    def _retain(self, event_id: str, retained: Retained) -> None:
        self.retained[event_id] = retained
        if len(self.retained) > self.settings.retained_max:
            self._counts["overflow_retained"] += 1
            self.retained.popitem(last=False)
