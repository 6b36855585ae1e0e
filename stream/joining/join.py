"""The join of decisions and their feedback: one machine for each event id, driven by its table of transitions.

Time here is the *feedback watermark*: the broker's time up to which all feedback has been applied. It is the append
time of the last feedback applied, or, when the feedback partition was read to its end, the broker's time at that
reading. So what is matched and what is late depends on append times alone, not on when they were read:

    feedback appended  ─────●───────────────●──────────●────────▶ broker's time
                            in time         │          late
    decision  decided_at ├──── window_ms ───┤ deadline (the deadline itself is in time)

Two tables say everything: `TRANSITIONS`, what happens to an id and which state it is in afterwards, and `STAYS`, how
long and how many ids may stay in a state. The code below looks up, does and moves; it knows no next state and no limit
of its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from stream.wire.events import Decision, Features, Feedback, Outcome
from stream.wire.ledger import Ledger
from stream.wire.records import Record, make


class State(IntEnum):  # IntEnum here and below: the tables hash a member for each event, 0.1 µs with Enum's own hash
    """Where an event id stands."""

    UNSEEN = auto()
    ORPHAN = auto()
    PENDING = auto()
    MATCHED = auto()
    EXPIRED = auto()
    UNMATCHED = auto()


class Input(IntEnum):
    """What can happen to an event id."""

    CONTEXT = auto()
    FEEDBACK = auto()
    MISMATCH = auto()  # feedback that names another action than the decided one; an orphan's shows with its context
    DEADLINE = auto()  # the time in a state has passed, or room must be made
    ASIDE = auto()  # a context for which the log holds another action than the one decided


class Move(IntEnum):
    """What is done with an event id. What the learner plays is an action; this is none."""

    DECIDE = auto()  # predict, and wait for the feedback
    DECIDE_AND_MATCH = auto()  # predict, and learn at once from the feedback that waited
    DECIDE_AND_REFUSE = auto()  # predict, and refuse the feedback that waited
    IGNORE_CONTEXT = auto()  # the first decision stands
    KEEP_ORPHAN = auto()  # the feedback waits for its context
    MATCH = auto()  # learn
    IGNORE_FEEDBACK = auto()  # the first feedback wins
    REFUSE = auto()  # the feedback is of another action: it goes to the dead letters
    TAKE_LATE = auto()  # the decision had expired: ignore, or correct what was assumed
    EXPIRE = auto()  # settle without feedback
    DROP_ORPHAN = auto()  # the context did not come
    FORGET = auto()  # the id may be used again
    SET_ASIDE = auto()  # predict, and settle at once: the log cannot tell the bit
    SET_ASIDE_AND_PASS = auto()  # the same, and pass over the feedback that waited
    PASS_OVER = auto()  # the feedback is of a decision that was set aside


TRANSITIONS: dict[tuple[State, Input], tuple[Move, State]] = {
    (State.UNSEEN, Input.CONTEXT): (Move.DECIDE, State.PENDING),
    (State.UNSEEN, Input.FEEDBACK): (Move.KEEP_ORPHAN, State.ORPHAN),
    (State.UNSEEN, Input.ASIDE): (Move.SET_ASIDE, State.UNMATCHED),
    (State.ORPHAN, Input.CONTEXT): (Move.DECIDE_AND_MATCH, State.MATCHED),
    (State.ORPHAN, Input.FEEDBACK): (Move.IGNORE_FEEDBACK, State.ORPHAN),
    (State.ORPHAN, Input.MISMATCH): (Move.DECIDE_AND_REFUSE, State.PENDING),
    (State.ORPHAN, Input.DEADLINE): (Move.DROP_ORPHAN, State.UNSEEN),
    (State.ORPHAN, Input.ASIDE): (Move.SET_ASIDE_AND_PASS, State.UNMATCHED),
    (State.PENDING, Input.CONTEXT): (Move.IGNORE_CONTEXT, State.PENDING),
    (State.PENDING, Input.FEEDBACK): (Move.MATCH, State.MATCHED),
    (State.PENDING, Input.MISMATCH): (Move.REFUSE, State.PENDING),
    (State.PENDING, Input.DEADLINE): (Move.EXPIRE, State.EXPIRED),
    (State.MATCHED, Input.CONTEXT): (Move.IGNORE_CONTEXT, State.MATCHED),
    (State.MATCHED, Input.FEEDBACK): (Move.IGNORE_FEEDBACK, State.MATCHED),
    (State.MATCHED, Input.MISMATCH): (Move.REFUSE, State.MATCHED),
    (State.MATCHED, Input.DEADLINE): (Move.FORGET, State.UNSEEN),
    (State.EXPIRED, Input.CONTEXT): (Move.IGNORE_CONTEXT, State.EXPIRED),
    (State.EXPIRED, Input.FEEDBACK): (Move.TAKE_LATE, State.EXPIRED),
    (State.EXPIRED, Input.MISMATCH): (Move.REFUSE, State.EXPIRED),
    (State.EXPIRED, Input.DEADLINE): (Move.FORGET, State.UNSEEN),
    (State.UNMATCHED, Input.CONTEXT): (Move.IGNORE_CONTEXT, State.UNMATCHED),
    (State.UNMATCHED, Input.FEEDBACK): (Move.PASS_OVER, State.UNMATCHED),
    (State.UNMATCHED, Input.MISMATCH): (Move.PASS_OVER, State.UNMATCHED),
    (State.UNMATCHED, Input.DEADLINE): (Move.FORGET, State.UNSEEN),
}
"""All that can happen. A pair that is not here cannot happen: there is no deadline for an unseen id.

Feedback that names another action than the decided one is refused in every state in which the decision is known: it
neither settles nor corrects, and it is no duplicate of what came before. Of two orphans of one id the first wins; what
the second says of its action is not looked at. Nor is it for an unmatched decision: what a log has to say is of the
log's action, and nothing is to be learned from it.
"""


class Stay(NamedTuple):
    """How long ids may stay in a state, and how many; whose time has passed, or who is one too many, is the oldest."""

    limit: str  # the field of `JoinSettings` with the time
    since: Callable[[Any], int]  # the time from which it counts, of an entry
    room: str  # the field of `JoinSettings` with the number
    overflow: str  # the count of those that had to make room


STAYS: dict[State, Stay] = {
    State.ORPHAN: Stay("orphan_ms", attrgetter("kept_at_ms"), "orphans_max", "overflow_orphans"),
    State.PENDING: Stay("window_ms", attrgetter("decided_at_ms"), "pending_max", "overflow_pending"),
    State.MATCHED: Stay("retain_ms", attrgetter("settled_at_ms"), "retained_max", "overflow_retained"),
    State.EXPIRED: Stay("retain_ms", attrgetter("settled_at_ms"), "retained_max", "overflow_retained"),
    State.UNMATCHED: Stay("retain_ms", attrgetter("settled_at_ms"), "retained_max", "overflow_retained"),
}
"""The deadlines. Settled ids are kept in one map, in the order in which they were settled, and share its room."""

COUNTED: dict[Move, tuple[str, ...]] = {
    Move.DECIDE: ("decided",),
    Move.DECIDE_AND_MATCH: ("decided", "matched"),
    Move.DECIDE_AND_REFUSE: ("decided", "mismatched"),
    Move.IGNORE_CONTEXT: ("context_duplicates",),
    Move.KEEP_ORPHAN: (),
    Move.MATCH: ("matched",),
    Move.IGNORE_FEEDBACK: ("feedback_duplicates",),
    Move.REFUSE: ("mismatched",),
    Move.TAKE_LATE: ("late",),
    Move.EXPIRE: ("expired",),
    Move.DROP_ORPHAN: ("orphans_dropped",),
    Move.FORGET: (),
    Move.SET_ASIDE: ("decided", "unmatched"),
    Move.SET_ASIDE_AND_PASS: ("decided", "unmatched", "feedback_unmatched"),
    Move.PASS_OVER: ("feedback_unmatched",),
}
"""What each move adds one to, in names of the fields of `Ledger`."""

_DECIDING = frozenset((Move.DECIDE, Move.DECIDE_AND_MATCH, Move.DECIDE_AND_REFUSE))
_SETTING_ASIDE = frozenset((Move.SET_ASIDE, Move.SET_ASIDE_AND_PASS))
_MATCHING = frozenset((Move.MATCH, Move.DECIDE_AND_MATCH))
_SILENT = frozenset((Move.DECIDE, Move.IGNORE_CONTEXT, Move.KEEP_ORPHAN, Move.FORGET, Move.PASS_OVER))
_OUTCOMES = {
    State.MATCHED: Outcome.MATCHED,
    State.EXPIRED: Outcome.EXPIRED,
    State.UNMATCHED: Outcome.UNMATCHED,
}
_SETTLED_STATES = {outcome: state for state, outcome in _OUTCOMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
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


class Aside(NamedTuple):
    """A decision of which the log that is replayed cannot tell the bit."""

    pending: Pending


class Orphan(NamedTuple):
    """Feedback that waits for its context."""

    feedback: Feedback
    record: Record  # as it came
    kept_at_ms: int  # the watermark when it was kept


class Retained(NamedTuple):
    """A settled event, kept so that what still comes for its id is known for what it is."""

    outcome: Outcome
    reward: int | None  # the bit that counted; None: expired, nothing assumed; or unmatched
    settled_at_ms: int
    pending: Pending | None  # for the correction by late feedback, where the late policy asks for one
    action: int | None = None  # the decided one; None: not known, settled by a version that did not keep it


class Settled(NamedTuple):
    """A decision that has just been settled."""

    id: str
    pending: Pending
    outcome: Outcome
    feedback: Feedback | None  # None: expired, or unmatched
    record: Record | None  # the record that the feedback came in; of an unmatched decision, what had waited for it


class Late(NamedTuple):
    """Feedback for a decision that had expired."""

    feedback: Feedback
    retained: Retained  # as it was when this feedback came


class Mismatched(NamedTuple):
    """Feedback that names another action than the one decided."""

    feedback: Feedback
    record: Record
    action: int  # the decided one


class DroppedOrphan(NamedTuple):
    """Feedback whose context did not come."""

    id: str
    orphan: Orphan


Event = Settled | Late | Mismatched | DroppedOrphan
"""What the task must act on: learn, correct, or write a dead letter."""


class Overflows(NamedTuple):
    """How often each limit was met."""

    pending: int = 0
    orphans: int = 0
    retained: int = 0


_ledger_counts = itemgetter(*Ledger._fields)


class Join:
    """The machines of all event ids of one task.

    The task gives it each input (`receive_context`, `receive_feedback`, `pass_time`) and acts on what comes back.
    Deadlines of each kind fall due in the order in which they were set, because watermarks never go back: so the
    oldest entry of each map is the next one due.
    """

    def __init__(self, settings: JoinSettings, *, assumes_negative: bool = False, corrects: bool = False) -> None:
        self.keeps_actions = True  # of settled decisions; False while steps of a version that did not are applied again
        self.watermark_ms = 0
        self._quiet_until_ms = -1  # nothing falls due as long as the watermark has not passed this
        self.pending: OrderedDict[str, Pending] = OrderedDict()
        self.orphans: OrderedDict[str, Orphan] = OrderedDict()
        self.retained: OrderedDict[str, Retained] = OrderedDict()
        self._counts = dict.fromkeys((*Ledger._fields, "overflow_pending", "overflow_orphans", "overflow_retained"), 0)
        self._kept: dict[State, OrderedDict[str, Any]] = {
            State.ORPHAN: self.orphans,
            State.PENDING: self.pending,
            State.MATCHED: self.retained,
            State.EXPIRED: self.retained,
            State.UNMATCHED: self.retained,
        }
        self.change_settings(settings, assumes_negative=assumes_negative, corrects=corrects)
        self._is_changed = False  # the settings were, since anything was settled by them

    def change_settings(self, settings: JoinSettings, *, assumes_negative: bool, corrects: bool) -> None:
        """Go by other settings; `settle_changed` then gives what these settle at once."""
        self.settings = settings
        self.assumed_reward = 0 if assumes_negative else None
        self._corrects = corrects
        self._limit_ms: dict[State, int] = {state: getattr(settings, stay.limit) for state, stay in STAYS.items()}
        self._room: dict[State, int] = {state: getattr(settings, stay.room) for state, stay in STAYS.items()}
        self._is_changed = True

    def settle_changed(self) -> Sequence[Event]:
        """Settle what is overdue and what is beyond the limits, as it can be only after the settings were changed."""
        if not self._is_changed:
            return ()
        self._is_changed = False
        events = self._settle_due()
        for state in (State.PENDING, State.ORPHAN, State.MATCHED):
            kept, stay = self._kept[state], STAYS[state]
            while len(kept) > self._room[state]:
                self._counts[stay.overflow] += 1
                events += self._end_oldest(kept)
        return events

    def state_of(self, event_id: str) -> State:
        """Where an id stands."""
        if event_id in self.pending:
            return State.PENDING
        retained = self.retained.get(event_id)
        if retained is not None:
            return _SETTLED_STATES[retained.outcome]
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

    def receive_malformed(self, kind: Input) -> None:
        """Count a record that could not be read."""
        if kind is Input.CONTEXT:
            self._counts["contexts"] += 1
            self._counts["context_malformed"] += 1
        else:
            self._counts["feedback"] += 1
            self._counts["feedback_malformed"] += 1

    def count_misplaced(self, *, contexts: int, feedback: int) -> None:
        """Count records that stand in another partition than their keys belong to."""
        self._counts["contexts_misplaced"] += contexts
        self._counts["feedback_misplaced"] += feedback

    def count_floored(self) -> None:
        """Count a decision whose logged propensity was taken for the least that is allowed."""
        self._counts["propensities_floored"] += 1

    def receive_context(self, event_id: str, decide: Callable[[], Pending | Aside]) -> Sequence[Event]:
        """Take a context, and return what comes of it, in its order.

        Args:
            event_id: whose context it is.
            decide: makes the decision, and is called only if there is to be one.
        """
        self._counts["contexts"] += 1
        state = self.state_of(event_id)
        row = TRANSITIONS[state, Input.CONTEXT]
        if row[0] not in _DECIDING:
            return self._make(row, event_id, state, None, None, None)
        pending = decide()
        if isinstance(pending, Aside):
            passed = self.orphans[event_id].record if state is State.ORPHAN else None
            return self._make(TRANSITIONS[state, Input.ASIDE], event_id, state, pending.pending, None, passed)
        if state is not State.ORPHAN:
            return self._make(row, event_id, state, pending, None, None)
        feedback, record, _ = self.orphans[event_id]
        if feedback.action is not None and feedback.action != pending.decision.action:
            row = TRANSITIONS[state, Input.MISMATCH]
        return self._make(row, event_id, state, pending, feedback, record)

    def receive_feedback(self, feedback: Feedback, record: Record) -> Sequence[Event]:
        """Take a feedback whose append time has been given to `pass_time`, and return what comes of it."""
        self._counts["feedback"] += 1
        event_id = feedback.id
        state = self.state_of(event_id)
        happened = Input.FEEDBACK
        if feedback.action is not None and self._decided_action(event_id, state) not in (None, feedback.action):
            happened = Input.MISMATCH
        return self._make(TRANSITIONS[state, happened], event_id, state, self.pending.get(event_id), feedback, record)

    def pass_time(self, watermark_ms: int) -> Sequence[Event]:
        """Move the watermark, settle all whose deadline it has passed, and return what comes of that, in its order.

        An earlier watermark changes nothing.
        """
        if watermark_ms <= self.watermark_ms:
            return ()
        self.watermark_ms = watermark_ms
        return self._settle_due() if watermark_ms > self._quiet_until_ms else ()

    def next_deadline_ms(self) -> int | None:
        """The next time at which a decision expires or an orphan is dropped, if nothing else happens."""
        return min((self._due_ms(kept) for kept in (self.pending, self.orphans) if kept), default=None)

    def _settle_due(self) -> list[Event]:
        events: list[Event] = []
        watermark_ms = self.watermark_ms
        # What is still to come is dated by this watermark or later.
        quiet_until_ms = watermark_ms + min(self._limit_ms.values())
        for kept in (self.pending, self.orphans, self.retained):
            while kept and (due_ms := self._due_ms(kept)) < watermark_ms:
                events += self._end_oldest(kept)
            if kept:
                quiet_until_ms = min(quiet_until_ms, due_ms)
        self._quiet_until_ms = quiet_until_ms
        return events

    def _due_ms(self, kept: OrderedDict[str, Any]) -> int:
        """The last moment of the oldest in a map: its time has passed after this."""
        oldest = next(iter(kept))
        state = self.state_of(oldest)
        return STAYS[state].since(kept[oldest]) + self._limit_ms[state]

    def _end_oldest(self, kept: OrderedDict[str, Any]) -> Sequence[Event]:
        """Do to the oldest in a map what its deadline does."""
        event_id = next(iter(kept))
        state = self.state_of(event_id)
        row = TRANSITIONS[state, Input.DEADLINE]
        if row[1] is state:
            raise AssertionError(f"{row}: a deadline that leaves an id where it is would fall due for ever")
        feedback, record, _ = self.orphans[event_id] if state is State.ORPHAN else _NO_ORPHAN
        return self._make(row, event_id, state, self.pending.get(event_id), feedback, record)

    def _decided_action(self, event_id: str, state: State) -> int | None:
        """The action that was decided for an id, where it is known."""
        if state is State.PENDING:
            return self.pending[event_id].decision.action
        return self.retained[event_id].action if event_id in self.retained else None

    def _make(
        self,
        row: tuple[Move, State],
        event_id: str,
        state: State,
        pending: Pending | None,
        feedback: Feedback | None,
        record: Record | None,
    ) -> Sequence[Event]:
        """Make a move: count it, tell what the task must act on, and bring the id into its next state.

        What is known of the id is passed on: its decision, and the feedback that came or had waited.
        """
        move, after = row
        for name in COUNTED[move]:
            self._counts[name] += 1
        reward = self.assumed_reward
        events: Sequence[Event] = ()
        if move in _SILENT:
            pass
        elif move in _MATCHING:
            assert pending is not None
            assert feedback is not None
            reward = feedback.reward
            events = (make(Settled, (event_id, pending, _OUTCOMES[after], feedback, record)),)
        elif move is Move.EXPIRE:
            assert pending is not None
            events = (Settled(event_id, pending, _OUTCOMES[after], None, None),)
        elif move in _SETTING_ASIDE:
            assert pending is not None
            reward = None
            events = (Settled(event_id, pending, _OUTCOMES[after], None, record),)
        else:
            events = self._tell(move, event_id, state, pending, feedback, record)
        if after is state:
            return events
        if state is not State.UNSEEN:
            del self._kept[state][event_id]
        if after is State.UNSEEN:
            return events
        kept = self._kept[after]
        kept[event_id] = self._entry(after, pending, feedback, record, reward)
        if len(kept) <= self._room[after]:
            return events
        self._counts[STAYS[after].overflow] += 1
        return (*events, *self._end_oldest(kept))

    def _tell(
        self,
        move: Move,
        event_id: str,
        state: State,
        pending: Pending | None,
        feedback: Feedback | None,
        record: Record | None,
    ) -> Sequence[Event]:
        """What comes of the moves that settle nothing."""
        if move is Move.DROP_ORPHAN:
            return (DroppedOrphan(event_id, self.orphans[event_id]),)
        assert feedback is not None
        assert record is not None
        if move is Move.TAKE_LATE:
            retained = self.retained[event_id]
            self.retained[event_id] = retained._replace(pending=None)  # it is corrected once
            return (Late(feedback, retained),)
        if move is Move.IGNORE_FEEDBACK:
            first = self.orphans[event_id].feedback if state is State.ORPHAN else self.retained[event_id]
            self._counts["conflicts"] += first.reward != feedback.reward
            return ()
        action = pending.decision.action if pending is not None else self._decided_action(event_id, state)
        assert action is not None
        return (Mismatched(feedback, record, action),)

    def _entry(
        self,
        state: State,
        pending: Pending | None,
        feedback: Feedback | None,
        record: Record | None,
        reward: int | None,
    ) -> Pending | Orphan | Retained:
        """What is kept of an id in a state."""
        if state is State.PENDING:
            assert pending is not None
            return pending
        if state is State.ORPHAN:
            assert feedback is not None
            assert record is not None
            return Orphan(feedback, record, self.watermark_ms)
        assert pending is not None
        corrected = pending if self._corrects and state is State.EXPIRED else None
        action = pending.decision.action if self.keeps_actions else None
        return make(Retained, (_OUTCOMES[state], reward, self.watermark_ms, corrected, action))


_NO_ORPHAN = (None, None, -1)
