"""The join of decisions with their feedback. Each event id has a state machine, driven by the table in `join_table`.

All times are *stream time*, the largest append time of the feedback applied so far. Append times alone therefore
determine whether feedback is matched or late. The time at which a record is read has no effect:

    feedback appended  ─────●───────────────●──────────●────────▶ broker's time
                            in time         │          late
    decision     decided ├──── window_ms ───┤ deadline (still in time)

The code looks up the rule for an input and applies it. The next states, and the counts in the ledger's equations, are
defined only in the table.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from stream.settings.task_fields import JoinSettings
from stream.task.join_table import TRANSITIONS, Input, Move, State, TableError, check_table
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, DecisionTime, Features, Feedback, Headers, Outcome, Record, Shown, make


class Pending(NamedTuple):
    """A decision waiting for its feedback, or a deferred decision waiting to be shown."""

    x: Features
    decision: Decision
    time: DecisionTime  # start of the window: time of the decision or, if deferred, of the shown record
    trace: Headers = ()  # the context's trace headers

    @property
    def action(self) -> int:
        """The decision's action."""
        return self.decision.action


class Orphan(NamedTuple):
    """Feedback that is waiting for its context."""

    feedback: Feedback | None  # None for a shown record
    record: Record  # the record as received
    kept_at_ms: int  # stream time at which the record was received


class Retained(NamedTuple):
    """A settled decision, stored to recognise later records with the same id. Ids with equal values share an entry."""

    outcome: Outcome
    reward: int | None  # the first bit; None if unmatched, unshown, or expired without an assumed bit
    action: int  # the decision's action
    pending: Pending | None = None  # stored only if a later bit can correct the decision's bit


class Settled(NamedTuple):
    """A decision that has just been settled."""

    id: str
    pending: Pending
    outcome: Outcome
    feedback: Feedback | None  # None if expired, unmatched or unshown
    record: Record | None  # the feedback's record or, for an unmatched decision, the orphan's


class Late(NamedTuple):
    """A bit that arrives for a settled decision.

    If the join has stored the decision for corrections, the bit replaces the learned bit.
    """

    feedback: Feedback
    retained: Retained  # the id's entry before this bit arrived


class Mismatched(NamedTuple):
    """Feedback for an action other than the decision's action."""

    feedback: Feedback
    record: Record
    action: int  # the decision's action


class DroppedOrphan(NamedTuple):
    """Feedback whose context did not arrive in time."""

    id: str
    orphan: Orphan


Event = Settled | Late | Mismatched | DroppedOrphan
"""An event for the task. In response, the task learns, makes a correction, or writes a dead letter."""


class _Collection:
    """The entries for all ids in certain states, oldest first, with the limits on their age and number."""

    __slots__ = ("counted_as", "entries", "entries_max", "limit_ms", "others", "state")

    def __init__(self, state: State, entries: dict[str, Any], counted_as: str) -> None:
        self.state = state  # one of the states that share the collection
        self.entries = entries
        self.counted_as = counted_as  # the field of `Ledger` for evicted entries
        self.others: tuple[dict[str, Any], ...] = ()  # other entries that count towards `entries_max`
        self.limit_ms = self.entries_max = 0

    @property
    def is_full(self) -> bool:
        """Whether `entries_max` is exceeded."""
        entries = len(self.entries)
        for others in self.others:
            entries += len(others)
        return entries > self.entries_max


class _AgeQueue:
    """A queue of ids and times, oldest first. It uses 17 to 19 bytes per id, 70 bytes less than an `OrderedDict`."""

    __slots__ = ("_head", "_ids", "_times_ms")

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._times_ms = array("q")  # entries before `_head` belong to removed ids
        self._head = 0

    def append(self, event_id: str, time_ms: int) -> None:
        """Add the newest id."""
        self._ids.append(event_id)
        self._times_ms.append(time_ms)

    def oldest_id(self) -> str:
        """Return the oldest id. The queue must not be empty."""
        return self._ids[0]

    def oldest_ms(self) -> int | None:
        """Return the oldest id's time, or None if the queue is empty."""
        return self._times_ms[self._head] if self._ids else None

    def popleft(self) -> bool:
        """Remove the oldest id. Return whether this also freed removed ids' memory, which happens periodically."""
        self._ids.popleft()
        self._head += 1
        if self._head <= len(self._ids) >> 2:
            return False
        del self._times_ms[: self._head]
        self._head = 0
        return True

    def times_ms(self) -> "array[int]":
        """Return a copy of the times, oldest first."""
        return self._times_ms[self._head :]


_SETTLED_STATES = {outcome: State[outcome.name] for outcome in Outcome}

_REFUSALS = frozenset((Move.REFUSE, Move.DECIDE_AND_REFUSE, Move.DEFER_AND_REFUSE))
_UNDECIDED = frozenset(state for state in State if "no decision" in state.has)
_UNSETTLED = frozenset(state for state in State if "an unsettled decision" in state.has)


class Join:
    """The state machines for all event ids in one task.

    The task passes each input to `receive_context`, `receive_feedback` or `pass_time` and processes the returned
    events. Stream time never decreases, so the oldest entry in each collection is due first. Shown decisions have a
    separate collection, because their windows begin in the order in which the decisions are shown, not in the order in
    which they are made.

    Unsettled decisions and orphans can be removed in any order, so they are stored in `OrderedDict`s. Settled ids are
    the most numerous, and they are removed in insertion order, so they are stored in a plain dict and a queue.
    """

    def __init__(self, settings: JoinSettings, *, assumes_negative: bool = False, corrects: bool = False) -> None:
        """Create an empty join.

        Raises:
            TableError: the table is inconsistent.
        """
        check_table(TRANSITIONS)
        self.stream_ms = 0
        self.dated_ms = 0  # latest decision time so far
        self._quiet_until_ms: float = -1  # no entry is due before stream time exceeds this value
        self.pending: OrderedDict[str, Pending] = OrderedDict()
        self.deferred: OrderedDict[str, Pending] = OrderedDict()
        self.shown: OrderedDict[str, Pending] = OrderedDict()
        self.orphans: OrderedDict[str, Orphan] = OrderedDict()
        self.retained: dict[str, Retained] = {}
        self.settled = _AgeQueue()  # the ids in `retained`, with the times at which they were settled
        self._equal: dict[Retained, Retained] = {}  # entries shared by several ids
        self._pending = _Collection(State.PENDING, self.pending, "pending_evicted")
        self._deferred = _Collection(State.DEFERRED, self.deferred, "deferred_evicted")
        self._shown = _Collection(State.SHOWN, self.shown, "pending_evicted")
        self._orphans = _Collection(State.ORPHAN, self.orphans, "orphans_evicted")
        self._retained = _Collection(State.MATCHED, self.retained, "retained_evicted")
        self._pending.others = (self.deferred, self.shown)
        self._deferred.others = (self.pending, self.shown)
        self._shown.others = (self.pending, self.deferred)
        self._waiting = (self._pending, self._deferred, self._shown, self._orphans)
        self._collections = (*self._waiting, self._retained)
        self._collection_of = {collection.state: collection for collection in self._waiting}
        self._collection_of[State.SHOWN_ORPHAN] = self._orphans
        self._collection_of |= dict.fromkeys(_SETTLED_STATES.values(), self._retained)
        self._counts = dict.fromkeys(Ledger._fields, 0)
        self.change_settings(settings, assumes_negative=assumes_negative, corrects=corrects)
        self._is_changed = False  # True if the settings have changed since the last `settle_changed`

    def change_settings(self, settings: JoinSettings, *, assumes_negative: bool, corrects: bool) -> None:
        """Change the settings. Afterwards, call `settle_changed` to settle entries that are due under the new settings.

        Raises:
            TableError: the table requires replacing the bits of settled decisions, but the settings do not allow
                corrections.
        """
        self.assumed_reward = 0 if assumes_negative else None
        self._correctable = {State.EXPIRED} if corrects else set()
        if TRANSITIONS[State.MATCHED, Input.FEEDBACK].move is Move.REPLACE:
            if not corrects:
                raise TableError("join table, MATCHED + FEEDBACK -> REPLACE: expected late=correct; got ignore")
            self._correctable.add(State.MATCHED)
        for collection, limit_ms, entries_max in (
            (self._pending, settings.window_ms, settings.pending_max),
            (self._deferred, settings.activation_limit_ms, settings.pending_max),
            (self._shown, settings.window_ms, settings.pending_max),
            (self._orphans, settings.orphan_window_ms, settings.orphans_max),
            (self._retained, settings.retain_ms, settings.retained_max),
        ):
            collection.limit_ms, collection.entries_max = limit_ms, entries_max
        self._is_changed = True

    def settle_changed(self) -> Sequence[Event]:
        """After the settings have changed, settle entries that are overdue or exceed the limits."""
        if not self._is_changed:
            return ()
        self._is_changed = False
        events = self._settle_due()
        for collection in self._collections:
            while collection.is_full:
                events += self._evict(collection)
        return events

    def restore_retained(self, retained: Iterable[tuple[str, Retained, int]]) -> None:
        """Add the settled ids from a stored state, oldest first, with their entries and times.

        The times are the stream times at which the ids were settled.
        """
        for event_id, entry, settled_ms in retained:
            self.retained[event_id] = self._shared(entry)
            self.settled.append(event_id, settled_ms)

    def ledger(self) -> Ledger:
        """Return the current counts."""
        self._counts["pending"] = len(self.pending) + len(self.shown)
        self._counts["deferred"] = len(self.deferred)
        self._counts["orphans_waiting"] = len(self.orphans)
        return Ledger._make(self._counts.values())

    @property
    def records(self) -> int:
        """The number of contexts and feedback records received."""
        return self._counts["contexts"] + self._counts["feedback"]

    def restore_counts(self, ledger: Ledger) -> None:
        """Restore the counts from a stored state."""
        self._counts.update(ledger._asdict())

    def count(self, *names: str, by: int = 1) -> None:
        """Increment counters in the ledger. Tasks use this method for malformed records, to which no rule applies."""
        for name in names:
            self._counts[name] += by

    def receive_context(
        self, event_id: str, decide: Callable[[], tuple[Pending, bool]], is_deferred: bool = False
    ) -> Sequence[Event]:
        """Apply a context and return the resulting events for the task, in order.

        Args:
            event_id: the context's id.
            decide: function that returns the decision, and whether feedback is possible. In a replay, feedback is
                impossible if the log has a different action. The function is called only if the id has no decision.
            is_deferred: whether the decision waits until it is shown.
        """
        self._counts["contexts"] += 1
        state, kept = self._find(event_id)
        happened, feedback, record = Input.CONTEXT, None, None
        if state in _UNDECIDED:
            if kept is not None:
                feedback, record, _ = kept
            kept, has_bit = decide()
            if kept.time.ms is not None:
                self.date(kept.time, kept.time.ms)
            if not has_bit:
                happened = Input.ASIDE
            elif feedback is not None and feedback.action is not None and feedback.action != kept.action:
                happened = Input.DEFERRED_MISMATCH if is_deferred else Input.CONTEXT_MISMATCH
            elif is_deferred:
                happened = Input.DEFERRED
        return self._follow(state, happened, event_id, kept, feedback, record)

    def receive_feedback(self, feedback: Feedback | Shown, record: Record) -> Sequence[Event]:
        """Apply a feedback or shown record and return the resulting events for the task. Call `pass_time` first."""
        self._counts["feedback"] += 1
        state, kept = self._find(feedback.id)
        if isinstance(feedback, Shown):
            return self._follow(state, Input.SHOWN, feedback.id, kept, None, record)
        happened = Input.FEEDBACK
        if feedback.action is not None and state not in _UNDECIDED and feedback.action != kept.action:
            happened = Input.MISMATCH
        return self._follow(state, happened, feedback.id, kept, feedback, record)

    def pass_time(self, stream_ms: int) -> Sequence[Event]:
        """Advance stream time, settle entries that are due, and return the events for the task, in order.

        An earlier time has no effect.
        """
        if stream_ms <= self.stream_ms:
            return ()
        self.stream_ms = stream_ms
        return self._settle_due() if stream_ms > self._quiet_until_ms else ()

    @property
    def waits(self) -> bool:
        """Whether there are unsettled decisions or orphans, which can expire only when stream time advances."""
        return any(collection.entries for collection in self._waiting)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of all unsettled decisions and orphans."""
        due_ms = min(map(self._due_ms, self._waiting))
        return None if due_ms == inf else int(due_ms)

    def date(self, time: DecisionTime, ms: int) -> None:
        """Set the time of a step's decisions.

        The time is never earlier than the time of previous decisions, even if the clock of a partition's new leader is
        behind. The task calls this method once for each step. Until the call, the step's decisions cannot become due.
        """
        time.ms = self.dated_ms = max(ms, self.dated_ms)
        limit_ms = min(self._pending.limit_ms, self._deferred.limit_ms)
        self._quiet_until_ms = min(self._quiet_until_ms, self.dated_ms + limit_ms)

    def _find(self, event_id: str) -> tuple[State, Any]:
        """Return an id's state and its entry, which is a `Pending`, `Orphan` or `Retained`, or None."""
        kept: Any = self.pending.get(event_id)
        if kept is not None:
            return State.PENDING, kept
        kept = self.retained.get(event_id)
        if kept is not None:
            return _SETTLED_STATES[kept.outcome], kept
        for collection in (self._deferred, self._shown) if self.deferred or self.shown else ():
            if event_id in collection.entries:
                return collection.state, collection.entries[event_id]
        kept = self.orphans.get(event_id)
        if kept is None:
            return State.UNSEEN, None
        return (State.SHOWN_ORPHAN if kept.feedback is None else State.ORPHAN), kept

    def _settle_due(self) -> list[Event]:
        events: list[Event] = []
        # Entries added from now on have this stream time or a later one.
        self._quiet_until_ms = self.stream_ms + min(collection.limit_ms for collection in self._collections)
        for collection in self._collections:
            while (due_ms := self._due_ms(collection)) < self.stream_ms:
                events += self._end_oldest(collection)
            self._quiet_until_ms = min(self._quiet_until_ms, due_ms)
        return events

    def _due_ms(self, collection: _Collection) -> float:
        """Return the deadline of a collection's oldest entry, or infinity if there is none or its time is unknown."""
        since_ms: int | None
        if not collection.entries:
            return inf
        if collection.state in _UNSETTLED:
            since_ms = next(iter(collection.entries.values())).time.ms
        elif collection.state is State.ORPHAN:
            since_ms = next(iter(self.orphans.values())).kept_at_ms
        else:
            since_ms = self.settled.oldest_ms()
        return inf if since_ms is None else since_ms + collection.limit_ms

    def _evict(self, collection: _Collection) -> Sequence[Event]:
        """Evict an entry when a collection exceeds its limit.

        The collection's oldest entry is evicted. The exception is unsettled decisions, which share one limit: the
        oldest deferred decision is evicted or, if there is none, the decision that is due first.
        """
        if collection.state in _UNSETTLED:
            collection = self._deferred if self.deferred else min(self._pending, self._shown, key=self._due_ms)
        self._counts[collection.counted_as] += 1
        return self._end_oldest(collection)

    def _end_oldest(self, collection: _Collection) -> Sequence[Event]:
        """Apply the deadline rule to a collection's oldest entry."""
        is_settled = collection.state is State.MATCHED
        event_id = self.settled.oldest_id() if is_settled else next(iter(collection.entries))
        state, kept = self._find(event_id)
        return self._follow(state, Input.DEADLINE, event_id, kept, None, None)

    def _follow(
        self, state: State, happened: Input, event_id: str, kept: Any, feedback: Any, record: Record | None
    ) -> Sequence[Event]:
        """Apply the rule for an input: update the counts, collect events, and move the id to its next state.

        The state and the input determine which of the last three arguments are not None. `check_table` ensures that
        those arguments are sufficient for the rule.

        Args:
            state: the id's state.
            happened: the input.
            event_id: the id.
            kept: the id's entry or, if the decision for the context is made now, that decision.
            feedback: the new feedback or, for a context, the feedback that was waiting for it.
            record: the feedback's record, or the shown record.
        """
        move, after, counted = TRANSITIONS[state, happened]
        for name in counted:
            self._counts[name] += 1
        events: Sequence[Event] = ()
        outcome, reward = move.settles, None
        if outcome is not None:
            if outcome is Outcome.MATCHED:
                reward = feedback.reward
            elif outcome is Outcome.EXPIRED:
                reward = self.assumed_reward
            else:
                feedback = None
            events = (make(Settled, (event_id, kept, outcome, feedback, record)),)
        elif move in _REFUSALS:
            events = (make(Mismatched, (feedback, record, kept.action)),)
        elif move is Move.DROP_ORPHAN:
            events = (DroppedOrphan(event_id, kept),)
        if after is state:
            if move is Move.TAKE_LATE:
                rest = self.retained[event_id] = self._shared(kept._replace(pending=None))  # corrected only once
                return (Late(feedback, kept if self._correctable else rest),)
            if move is Move.IGNORE_FEEDBACK or move is Move.REPLACE:
                first = kept.feedback if state is State.ORPHAN else kept
                if feedback.reward != first.reward:
                    self._counts["conflicts"] += 1
                    if move is Move.REPLACE:
                        return self._replace(event_id, kept, feedback, record)
            return events

        if state is not State.UNSEEN:
            collection = self._collection_of[state]
            del collection.entries[event_id]
            if collection.state is State.MATCHED and self.settled.popleft():
                # A dict does not reuse the space that removed ids occupied. Without a copy, the dict would grow to
                # twice its size.
                self.retained = collection.entries = dict(self.retained)
        if after is State.UNSEEN:
            return events
        collection = self._collection_of[after]
        if move is Move.SHOW:
            collection.entries[event_id] = kept._replace(time=DecisionTime(0, self.stream_ms))
        elif after in _UNSETTLED:
            collection.entries[event_id] = kept
        elif after in _UNDECIDED:
            collection.entries[event_id] = make(Orphan, (feedback, record, self.stream_ms))
        else:
            corrected = kept if after in self._correctable else None
            entry = make(Retained, (outcome, reward, kept.action, corrected))
            collection.entries[event_id] = self._shared(entry)
            self.settled.append(event_id, self.stream_ms)
        return (*events, *self._evict(collection)) if collection.is_full else events

    def _replace(self, event_id: str, kept: Orphan | Retained, feedback: Feedback, record: Any) -> Sequence[Event]:
        """Replace the first bit for an id. The id remains in its state."""
        if isinstance(kept, Orphan):
            self.orphans[event_id] = kept._replace(feedback=feedback, record=record)
            return ()
        self.retained[event_id] = kept._replace(reward=feedback.reward)
        return (Late(feedback, kept),)

    def _shared(self, entry: Retained) -> Retained:
        """Return the object that is shared by all entries with these values. An entry with a decision is not shared."""
        return entry if entry.pending is not None else self._equal.setdefault(entry, entry)
