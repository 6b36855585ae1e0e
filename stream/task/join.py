"""The join of decisions and their feedback: a state machine per event id, driven by the table of `join_table`.

Time here is *stream time*: the largest append time of the feedback that was applied. So what is matched and what is
late depends on append times alone, not on when records were read:

    feedback appended  ─────●───────────────●──────────●────────▶ broker's time
                            in time         │          late
    decision     decided ├──── window_ms ───┤ deadline (the deadline itself is in time)

The code finds the rule for an input, and follows it: it contains no next state and no count of its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from stream.task.age_queue import AgeQueue
from stream.task.join_table import TRANSITIONS, Input, Move, Rule, State, Table, TableError, check_table
from stream.wire.events import Decision, DecisionTime, Features, Feedback, Outcome
from stream.wire.ledger import Ledger
from stream.wire.records import Record, make

_SETTLED_STATES = {
    Outcome.MATCHED: State.MATCHED,
    Outcome.EXPIRED: State.EXPIRED,
    Outcome.UNMATCHED: State.UNMATCHED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """The limits of the join. Beyond a limit the oldest entry is evicted, and counted."""

    window_ms: int = 300_000  # how long a decision waits for its feedback
    orphan_ms: int = 300_000  # how long feedback waits for its context
    retain_ms: int = 3_600_000  # how long a settled id is remembered, to know duplicates and late feedback
    pending_max: int = 150_000  # beyond it, the oldest decision expires
    orphans_max: int = 50_000  # beyond it, the oldest orphan is dropped
    retained_max: int = 1_000_000  # beyond it, the oldest settled id is forgotten


class Pending(NamedTuple):
    """A decision that waits for its feedback."""

    x: Features
    decision: Decision
    time: DecisionTime


class Aside(NamedTuple):
    """A decision for which the replayed log has no bit."""

    pending: Pending


class Orphan(NamedTuple):
    """Feedback that waits for its context."""

    feedback: Feedback
    record: Record  # as it came
    kept_at_ms: int  # stream time when it was kept


class Retained(NamedTuple):
    """A settled decision, kept to recognise what still comes for its id. Ids with equal entries share one."""

    outcome: Outcome
    reward: int | None  # the bit that counted; None: expired, nothing assumed; or unmatched
    action: int  # the decided one
    pending: Pending | None = None  # for the correction by a later bit, where corrections are asked for


class Settled(NamedTuple):
    """A decision that has just been settled."""

    id: str
    pending: Pending
    outcome: Outcome
    feedback: Feedback | None  # None: expired, or unmatched
    record: Record | None  # the record of the feedback; of an unmatched decision, that of the feedback that waited


class Late(NamedTuple):
    """A bit for a settled decision: it replaces the one that was learned, if the decision is kept for that."""

    feedback: Feedback
    retained: Retained  # as it was before


class Mismatched(NamedTuple):
    """Feedback for another action than the decided one."""

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
    """How often each limit was exceeded."""

    pending: int = 0
    orphans: int = 0
    retained: int = 0


class _Stay(NamedTuple):
    """The limits of a state: names of `JoinSettings`, and the count of the ids that had to make room."""

    limit: str
    room: str
    overflow: str


_RETAINED = _Stay("retain_ms", "retained_max", "overflow_retained")
_STAYS = {
    State.PENDING: _Stay("window_ms", "pending_max", "overflow_pending"),
    State.ORPHAN: _Stay("orphan_ms", "orphans_max", "overflow_orphans"),
    **dict.fromkeys(_SETTLED_STATES.values(), _RETAINED),
}
_COLLECTIONS = (State.PENDING, State.ORPHAN, State.MATCHED)  # a state of each; settled ids share one
_SETTLED = frozenset(_SETTLED_STATES.values())
_REFUSALS = frozenset((Move.REFUSE, Move.DECIDE_AND_REFUSE))

_ledger_counts = itemgetter(*Ledger._fields)


class Join:
    """The state machines of all event ids of one task.

    The task passes each input to `receive_context`, `receive_feedback` or `pass_time`, and acts on the events returned.
    Stream time never goes back, so the oldest entry of each collection is the next one due.

    Pending decisions and orphans leave in any order: each of them is in an `OrderedDict`. Settled ids leave in
    the order in which they came, and are the most numerous: they are in a plain dict and a queue.
    """

    def __init__(
        self,
        settings: JoinSettings,
        *,
        assumes_negative: bool = False,
        corrects: bool = False,
        table: Table = TRANSITIONS,
    ) -> None:
        """A join without entries.

        Raises:
            TableError: the table contradicts itself.
        """
        check_table(table)
        self._table = dict(table)
        self.stream_ms = 0
        self.dated_ms = 0  # the time of the newest decision that has one
        self._quiet_until_ms = -1  # nothing is due before stream time exceeds this
        self.pending: OrderedDict[str, Pending] = OrderedDict()
        self.orphans: OrderedDict[str, Orphan] = OrderedDict()
        self.retained: dict[str, Retained] = {}
        self._settled = AgeQueue()  # the ids in `retained`, and when they were settled
        self._equal: dict[Retained, Retained] = {}  # the entries that ids share
        self._kept: dict[State, dict[str, Any]] = {
            State.PENDING: self.pending,
            State.ORPHAN: self.orphans,
            **dict.fromkeys(_SETTLED_STATES.values(), self.retained),
        }
        self._counts = dict.fromkeys((*Ledger._fields, "overflow_pending", "overflow_orphans", "overflow_retained"), 0)
        self.change_settings(settings, assumes_negative=assumes_negative, corrects=corrects)
        self._is_changed = False  # the settings were, since anything was settled by them

    def change_settings(self, settings: JoinSettings, *, assumes_negative: bool, corrects: bool) -> None:
        """Use other settings; `settle_changed` then settles what is due by them.

        Raises:
            TableError: the table replaces bits of settled decisions, and the settings do not allow corrections.
        """
        self.settings = settings
        self.assumed_reward = 0 if assumes_negative else None
        self._corrects = corrects
        self._kept_for_correction = {
            state
            for (state, _), rule in self._table.items()
            if (corrects and rule.move is Move.TAKE_LATE) or (rule.move is Move.REPLACE and state is State.MATCHED)
        }
        if State.MATCHED in self._kept_for_correction and not corrects:
            raise TableError("join table, MATCHED + FEEDBACK -> REPLACE: expected the setting late=correct; got ignore")
        self._limit_ms: dict[State, int] = {state: getattr(settings, stay.limit) for state, stay in _STAYS.items()}
        self._room: dict[State, int] = {state: getattr(settings, stay.room) for state, stay in _STAYS.items()}
        self._is_changed = True

    def settle_changed(self) -> Sequence[Event]:
        """Settle what is overdue or beyond the limits, as it can be only after a change of the settings."""
        if not self._is_changed:
            return ()
        self._is_changed = False
        events = self._settle_due()
        for state in _COLLECTIONS:
            while len(self._kept[state]) > self._room[state]:
                events += self._make_room(state)
        return events

    def restore(
        self,
        pending: Iterable[tuple[str, Pending]],
        orphans: Iterable[tuple[str, Orphan]],
        retained: Iterable[tuple[str, Retained, int]],
    ) -> None:
        """Add the entries of a stored state, oldest first.

        Args:
            pending: ids and decisions.
            orphans: ids and feedback.
            retained: ids, entries, and the stream times at which they were settled.
        """
        self.pending.update(pending)
        self.orphans.update(orphans)
        for event_id, entry, settled_ms in retained:
            self.retained[event_id] = self._shared(entry)
            self._settled.append(event_id, settled_ms)

    def state_of(self, event_id: str) -> State:
        """The state of an id."""
        return self._find(event_id)[0]

    def settled_ms(self) -> Sequence[int]:
        """The stream times at which the ids in `retained` were settled, in their order; a copy."""
        return self._settled.times_ms()

    def ledger(self) -> Ledger:
        """The current counts."""
        counts = self._counts
        counts["pending"] = len(self.pending)
        counts["orphans_waiting"] = len(self.orphans)
        return Ledger._make(_ledger_counts(counts))

    @property
    def records(self) -> int:
        """Contexts and feedback received."""
        return self._counts["contexts"] + self._counts["feedback"]

    def overflows(self) -> Overflows:
        """How often each limit was exceeded."""
        return Overflows(*(self._counts[f"overflow_{name}"] for name in Overflows._fields))

    def restore_counts(self, ledger: Ledger, overflows: Overflows) -> None:
        """Use the counts of a stored state."""
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
        """Count records in another partition than the one of their keys."""
        self._counts["contexts_misplaced"] += contexts
        self._counts["feedback_misplaced"] += feedback

    def count_floored(self) -> None:
        """Count a decision whose logged propensity was raised to the minimum."""
        self._counts["propensities_floored"] += 1

    def receive_context(self, event_id: str, decide: Callable[[], Pending | Aside]) -> Sequence[Event]:
        """Apply a context, and return what the task must act on, in order.

        Args:
            event_id: its id.
            decide: makes the decision; it is called only for an id without one.
        """
        self._counts["contexts"] += 1
        state, kept = self._find(event_id)
        if state is not State.UNSEEN and state is not State.ORPHAN:
            return self._follow(state, Input.CONTEXT, event_id, kept, None, None, None)
        decided = decide()
        pending = decided.pending if isinstance(decided, Aside) else decided
        if pending.time.ms is not None:
            self.date(pending.time, pending.time.ms)
        happened, feedback, record = Input.CONTEXT, None, None
        if kept is not None:
            feedback, record, _ = kept
            if feedback.action is not None and feedback.action != pending.decision.action:
                happened = Input.MISMATCH
        if isinstance(decided, Aside):
            happened = Input.ASIDE
        return self._follow(state, happened, event_id, kept, pending, feedback, record)

    def receive_feedback(self, feedback: Feedback, record: Record) -> Sequence[Event]:
        """Apply feedback whose append time was passed to `pass_time`, and return what the task must act on."""
        self._counts["feedback"] += 1
        event_id = feedback.id
        state, kept = self._find(event_id)
        pending = kept if state is State.PENDING else None
        happened = Input.FEEDBACK
        if feedback.action is not None and state is not State.UNSEEN and state is not State.ORPHAN:
            decided = kept.action if pending is None else pending.decision.action
            if feedback.action != decided:
                happened = Input.MISMATCH
        return self._follow(state, happened, event_id, kept, pending, feedback, record)

    def pass_time(self, stream_ms: int) -> Sequence[Event]:
        """Advance stream time, settle what is due, and return what the task must act on, in order.

        An earlier time changes nothing.
        """
        if stream_ms <= self.stream_ms:
            return ()
        self.stream_ms = stream_ms
        return self._settle_due() if stream_ms > self._quiet_until_ms else ()

    def next_deadline_ms(self) -> int | None:
        """The next time at which a decision expires or an orphan is dropped, if nothing else happens."""
        due = [self._due_ms(state) for state in (State.PENDING, State.ORPHAN)]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def date(self, time: DecisionTime, ms: int) -> None:
        """Date the decisions of a step, not before those of earlier steps: a new leader's clock may be behind.

        The task calls this once per step. Until then the step's decisions are never due.
        """
        time.ms = self.dated_ms = max(ms, self.dated_ms)
        self._quiet_until_ms = min(self._quiet_until_ms, self.dated_ms + self._limit_ms[State.PENDING])

    def _find(self, event_id: str) -> tuple[State, Any]:
        """The state of an id, and its entry: a `Pending`, `Orphan` or `Retained`; None if it has none."""
        kept: Any = self.pending.get(event_id)
        if kept is not None:
            return State.PENDING, kept
        kept = self.retained.get(event_id)
        if kept is not None:
            return _SETTLED_STATES[kept.outcome], kept
        kept = self.orphans.get(event_id)
        return (State.UNSEEN if kept is None else State.ORPHAN), kept

    def _settle_due(self) -> list[Event]:
        events: list[Event] = []
        stream_ms = self.stream_ms
        # Later entries are dated by this stream time or a later one.
        quiet_until_ms = stream_ms + min(self._limit_ms.values())
        for state in _COLLECTIONS:
            while (due_ms := self._due_ms(state)) is not None and due_ms < stream_ms:
                events += self._end_oldest(state)
            if due_ms is not None:
                quiet_until_ms = min(quiet_until_ms, due_ms)
        self._quiet_until_ms = quiet_until_ms
        return events

    def _due_ms(self, state: State) -> int | None:
        """The deadline of the oldest entry of a collection; None: it is empty, or its oldest entry has no time yet."""
        since_ms: int | None = None
        if state is State.PENDING:
            for pending in self.pending.values():
                since_ms = pending.time.ms
                break
        elif state is State.ORPHAN:
            for orphan in self.orphans.values():
                since_ms = orphan.kept_at_ms
                break
        else:
            since_ms = self._settled.oldest_ms()
        return None if since_ms is None else since_ms + self._limit_ms[state]

    def _make_room(self, state: State) -> Sequence[Event]:
        """Evict the oldest entry of a collection that is beyond its limit."""
        self._counts[_STAYS[state].overflow] += 1
        return self._end_oldest(state)

    def _end_oldest(self, state: State) -> Sequence[Event]:
        """Follow the rule for the deadline of the oldest entry of a collection."""
        event_id = self._settled.oldest_id() if state in _SETTLED else next(iter(self._kept[state]))
        state, kept = self._find(event_id)
        pending = kept if state is State.PENDING else None
        return self._follow(state, Input.DEADLINE, event_id, kept, pending, None, None)

    def _follow(
        self,
        state: State,
        happened: Input,
        event_id: str,
        kept: Any,
        pending: Any,
        feedback: Any,
        record: Record | None,
    ) -> Sequence[Event]:
        """Follow the rule for an input: count, collect what the task must act on, and move the id to its next state.

        Which of the last four arguments are given depends on state and input; `check_table` has compared them with what
        the rule needs.

        Args:
            state: of the id.
            happened: the input.
            event_id: the id.
            kept: its entry.
            pending: its decision that is not settled yet.
            feedback: the feedback that came, or that waited for this context.
            record: the record of this feedback.
        """
        rule = self._table[state, happened]
        move, after, counted, outcome, _ = rule
        counts = self._counts
        for name in counted:
            counts[name] += 1
        events: Sequence[Event] = ()
        reward = self.assumed_reward
        if outcome is not None:
            if outcome is Outcome.UNMATCHED:
                feedback = reward = None
            elif outcome is Outcome.MATCHED:
                reward = feedback.reward
            events = (make(Settled, (event_id, pending, outcome, feedback, record)),)
        elif move in _REFUSALS:
            action = kept.action if pending is None else pending.decision.action
            events = (make(Mismatched, (feedback, record, action)),)
        elif move is Move.DROP_ORPHAN:
            events = (DroppedOrphan(event_id, kept),)
        elif after is state and feedback is not None:
            events = self._compare(rule, state, event_id, kept, feedback, record)
        if after is state:
            return events

        if state in _SETTLED:
            del self.retained[event_id]
            if self._settled.popleft():  # a dict does not reuse the room of removed ids, and grows to twice its size
                self.retained = dict(self.retained)
                self._kept.update(dict.fromkeys(_SETTLED, self.retained))
        elif state is not State.UNSEEN:
            del self._kept[state][event_id]
        if after is State.UNSEEN:
            return events
        entries = self._kept[after]
        if after is State.PENDING:
            entries[event_id] = pending
        elif after is State.ORPHAN:
            entries[event_id] = make(Orphan, (feedback, record, self.stream_ms))
        else:
            corrected = pending if after in self._kept_for_correction else None
            entries[event_id] = self._shared(make(Retained, (outcome, reward, pending.decision.action, corrected)))
            self._settled.append(event_id, self.stream_ms)
        return (*events, *self._make_room(after)) if len(entries) > self._room[after] else events

    def _compare(
        self, rule: Rule, state: State, event_id: str, kept: Any, feedback: Feedback, record: Any
    ) -> Sequence[Event]:
        """Follow a rule for feedback that comes after the id's first, or late, and changes no state."""
        if rule.move is Move.TAKE_LATE:
            rest = self.retained[event_id] = self._shared(kept._replace(pending=None))  # it is corrected once
            return (Late(feedback, kept if self._corrects else rest),)
        if rule.move is Move.PASS_OVER:
            return ()
        first = kept.feedback.reward if state is State.ORPHAN else kept.reward
        if feedback.reward == first:
            return ()
        for name in rule.differing:
            self._counts[name] += 1
        if rule.move is not Move.REPLACE:
            return ()
        if state is State.ORPHAN:
            self.orphans[event_id] = Orphan(feedback, record, kept.kept_at_ms)
            return ()
        self.retained[event_id] = kept._replace(reward=feedback.reward)
        return (Late(feedback, kept),)

    def _shared(self, entry: Retained) -> Retained:
        """An equal entry that other ids have, too; with a decision, the entry itself."""
        return entry if entry.pending is not None else self._equal.setdefault(entry, entry)
