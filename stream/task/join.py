"""The join of decisions with their feedback. Each event id has a state machine, driven by the table in `join_table`.

All times are *stream time*, the largest append time of the feedback applied so far. Append times alone therefore
determine whether feedback is matched or late. The time at which a record is read has no effect:

    feedback appended  ─────●───────────────●──────────●────────▶ broker's time
                            in time         │          late
    decision     decided ├──── window_ms ───┤ deadline (still in time)

Each input has one method. It looks up the id's state, applies the rule for this state and input, and returns the
resulting events. Only the table defines the next states and the counts in the ledger's equations.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, TypeVar

from stream.settings.task_fields import JoinSettings
from stream.task.answers import Answer, Combination
from stream.task.carry import Stage
from stream.task.join_table import TRANSITIONS, Input, Move, State, check_table
from stream.wire.ledger import Ledger
from stream.wire.records import Arm, Decision, DecisionTime, Features, Feedback, Headers, Outcome, Record, make


class Pending(NamedTuple):
    """A decision waiting for its feedback, or a deferred decision waiting to be shown."""

    x: Features
    decision: Decision
    time: DecisionTime  # start of the window: time of the decision or, if deferred, of the shown record
    trace: Headers = ()  # the context's trace headers
    arm: Arm | None = None  # None if the learner made the decision
    class_name: str | None = None  # the action's id; None without actions with features

    @property
    def action(self) -> int | str:
        """The decision's action as feedback names it: a class, or an action's id."""
        return self.decision.action if self.class_name is None else self.class_name

    @property
    def since_ms(self) -> int | None:
        """The start of the window, or None if it is not known yet."""
        return self.time.ms


class Orphan(NamedTuple):
    """Feedback that is waiting for its context."""

    feedback: Feedback | None  # None for a shown record
    record: Record  # the record as received; its offset is -1 if a move has carried it over from another topic
    since_ms: int  # stream time at which the record was received

    @property
    def state(self) -> State:
        """The state of the orphan's id."""
        return State.SHOWN_ORPHAN if self.feedback is None else State.ORPHAN


class Retained(NamedTuple):
    """A settled decision, stored to recognise later records with the same id. Ids with equal values share an entry."""

    outcome: Outcome
    reward: int | float | None  # the first one; None if unmatched, unshown, or expired without an assumed reward
    action: int | str  # the decision's action, as feedback names it
    pending: Pending | None = None  # stored only if a later reward can correct the decision's reward

    @property
    def state(self) -> State:
        """The state of the decision's id."""
        return _SETTLED_STATES[self.outcome]


class Settled(NamedTuple):
    """A decision that has just been settled."""

    id: str
    pending: Pending
    outcome: Outcome
    feedback: Feedback | None  # None if expired, unmatched or unshown
    record: Record | None  # the feedback's record or, for an unmatched decision, the orphan's


class Late(NamedTuple):
    """A reward that arrives for a settled decision.

    If the join has stored the decision for corrections, the reward replaces the learned one.
    """

    feedback: Feedback
    retained: Retained  # the id's entry before this reward arrived


class Mismatched(NamedTuple):
    """Feedback for an action other than the decision's action."""

    feedback: Feedback
    record: Record
    action: int | str  # the decision's action, as feedback names it


class Excess(NamedTuple):
    """A part of a reward that already has the maximum number of parts."""

    feedback: Feedback
    record: Record


class DroppedOrphan(NamedTuple):
    """Feedback whose context did not arrive in time."""

    id: str
    orphan: Orphan


Event = Settled | Late | Mismatched | Excess | DroppedOrphan
"""An event for the task. In response, the task learns, makes a correction, or writes a dead letter."""

Waiting = TypeVar("Waiting", Pending, Orphan)


class Queue(OrderedDict[str, Waiting]):
    """Entries that wait, keyed by event id, in the order of their deadlines. Any of them can be removed."""

    limit_ms = 0  # maximum time that an entry waits

    @property
    def due_ms(self) -> float:
        """The deadline of the oldest entry, or infinity if there is none or its time is not known yet."""
        for entry in self.values():
            since_ms = entry.since_ms
            return inf if since_ms is None else since_ms + self.limit_ms
        return inf


class Decisions(Queue[Pending]):
    """Unsettled decisions in one state."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


class SettledIds:
    """The settled ids with their entries, oldest first. Only the oldest id can be removed.

    These ids are the most numerous. A plain dict and a queue use 70 bytes less per id than an `OrderedDict`.
    """

    __slots__ = ("_equal", "_head", "_ids", "_times_ms", "entries", "limit_ms")

    def __init__(self) -> None:
        self.entries: dict[str, Retained] = {}
        self.limit_ms = 0  # how long an id is remembered
        self._equal: dict[Retained, Retained] = {}  # entries shared by several ids
        self._ids: deque[str] = deque()
        self._times_ms = array("q")  # entries before `_head` belong to removed ids
        self._head = 0

    @property
    def due_ms(self) -> float:
        """The time at which the oldest id is forgotten, or infinity if there is none."""
        return self._times_ms[self._head] + self.limit_ms if self._ids else inf

    def append(self, event_id: str, entry: Retained, settled_ms: int) -> None:
        """Add the newest id."""
        self.entries[event_id] = self._shared(entry)
        self._ids.append(event_id)
        self._times_ms.append(settled_ms)

    def replace(self, event_id: str, entry: Retained) -> None:
        """Replace an id's entry."""
        self.entries[event_id] = self._shared(entry)

    def _shared(self, entry: Retained) -> Retained:
        """Return the object that is shared by all entries with these values. An entry with a decision is not shared."""
        return entry if entry.pending is not None else self._equal.setdefault(entry, entry)

    def oldest(self) -> Retained:
        """Return the oldest id's entry."""
        return self.entries[self._ids[0]]

    def popleft(self) -> None:
        """Remove the oldest id. Periodically free the memory of removed ids."""
        del self.entries[self._ids.popleft()]
        self._head += 1
        if self._head > len(self._ids) >> 2:
            del self._times_ms[: self._head]
            self._head = 0
            # A dict does not reuse the space that removed ids occupied. Without a copy, the dict would grow to twice
            # its size.
            self.entries = dict(self.entries)
            self._equal.clear()  # later entries share new objects, so that values that no id has any more are freed

    def times_ms(self) -> "array[int]":
        """Return a copy of the times, oldest first."""
        return self._times_ms[self._head :]


_SETTLED_STATES = {outcome: State[outcome.name] for outcome in Outcome}

_CONTEXT_INPUTS: dict[tuple[bool, Input | None], Input] = {
    (False, None): Input.CONTEXT,
    (False, Input.FEEDBACK): Input.CONTEXT,
    (False, Input.PARTIAL): Input.CONTEXT_PARTIAL,
    (False, Input.MISMATCH): Input.CONTEXT_MISMATCH,
    (True, None): Input.DEFERRED,
    (True, Input.FEEDBACK): Input.DEFERRED,
    (True, Input.PARTIAL): Input.CONTEXT_PARTIAL,
    (True, Input.MISMATCH): Input.DEFERRED_MISMATCH,
}
"""The input of a context, by whether its decision is deferred, and by the input of its waiting feedback, if any."""


class Join:
    """The state machines for all event ids in one task.

    The task passes each input to the method for this input and processes the returned events. Stream time never
    decreases, so the oldest entry in each queue is due first. Pending decisions that were deferred have a separate
    queue, because their windows begin in the order in which the decisions are shown, not in the order in which they are
    made.
    """

    def __init__(
        self,
        settings: JoinSettings,
        *,
        assumed_reward: float | None = None,
        corrects: bool = False,
        combination: Combination = Combination(),  # noqa: B008  # immutable
    ) -> None:
        """Create an empty join. `combination` combines the feedback for a decision; see also `change_settings`.

        Raises:
            TableError: the table is inconsistent.
        """
        check_table(TRANSITIONS)
        self.stream_ms = 0
        self.dated_ms = 0  # latest decision time so far
        self._quiet_until_ms: float = -1  # no entry is due before stream time exceeds this value
        self.pending = Decisions(State.PENDING)  # in the order in which they were decided
        self.deferred = Decisions(State.DEFERRED)
        self.shown = Decisions(State.PENDING)  # decisions that were deferred, in the order of their shown records
        self.orphans: Queue[Orphan] = Queue()
        self.more: dict[str, list[Orphan]] = {}  # feedback that waits with an earlier orphan, by id, oldest first
        self._more_count = 0  # records in `more`; counting them for each new record takes milliseconds
        self.answers: dict[str, Answer] = {}  # feedback for pending decisions that wait for more, by id
        self._combination = combination
        self._is_combined = combination.rule != "first"
        self.settled = SettledIds()
        self._unsettled = (self.pending, self.deferred, self.shown)
        self._counts = dict.fromkeys(Ledger._fields, 0)
        self.change_settings(settings, assumed_reward=assumed_reward, corrects=corrects)
        self._is_changed = False  # True if the settings have changed since the last `settle_changed`

    def change_settings(self, settings: JoinSettings, *, assumed_reward: float | None, corrects: bool) -> None:
        """Change the settings. Afterwards, call `settle_changed` to settle entries that are due under the new settings.

        Args:
            settings: the windows and limits.
            assumed_reward: the reward that is learned from an expired decision, or None.
            corrects: whether a later reward corrects the reward that the model has learned.
        """
        self._settings = settings
        self.assumed_reward = assumed_reward
        replaces = self._combination.rule == "max" or TRANSITIONS[State.MATCHED, Input.FEEDBACK].move is Move.REPLACE
        correctable = (Outcome.EXPIRED, Outcome.MATCHED) if replaces else (Outcome.EXPIRED,)
        self._correctable = correctable if corrects else ()
        self.pending.limit_ms = self.shown.limit_ms = settings.window_ms
        self.deferred.limit_ms = settings.activation_limit_ms
        self.orphans.limit_ms = settings.orphan_window_ms
        self.settled.limit_ms = settings.retain_ms
        self._is_changed = True

    def convert(self, carried: Callable[..., Decision]) -> None:
        """Replace each decision after a change of the learner; see `stream.task.carry.Conversion`."""
        for queue in (self.pending, self.deferred, self.shown):
            for event_id, one in queue.items():
                queue[event_id] = one._replace(decision=carried(one.x, one.decision))
        for event_id, retained in self.retained.items():
            if (kept := retained.pending) is not None:
                decision = carried(kept.x, kept.decision, Stage.SETTLED)
                self.settled.replace(event_id, retained._replace(pending=kept._replace(decision=decision)))

    def settle_changed(self) -> Sequence[Event]:
        """After the settings have changed, settle entries that are overdue or exceed the limits."""
        if not self._is_changed:
            return ()
        self._is_changed = False
        events = self._settle_due()
        while self._unsettled_count > self._settings.pending_max:
            events.append(self._evict_decision())
        while self._waiting_count > self._settings.orphans_max:
            events += self._drop_orphan("orphans_evicted")
        while len(self.retained) > self._settings.retained_max:
            self._forget("retained_evicted")
        return events

    @property
    def retained(self) -> dict[str, Retained]:
        """The settled ids' entries, oldest first."""
        return self.settled.entries

    def ledger(self) -> Ledger:
        """Return the current counts."""
        self._counts["pending"] = len(self.pending) + len(self.shown)
        self._counts["deferred"] = len(self.deferred)
        self._counts["orphans_waiting"] = self._waiting_count
        self._counts["answered"] = len(self.answers)
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

    def state_of(self, event_id: str) -> State:
        """Return an id's state."""
        if (queue := self._queue_of(event_id)) is not None:
            return State.ANSWERED if event_id in self.answers else queue.state
        entry = self.retained.get(event_id) or self.orphans.get(event_id)
        return State.UNSEEN if entry is None else entry.state

    def has_decision(self, event_id: str) -> bool:
        """Return whether an id has a decision. If so, its context is a duplicate."""
        return event_id in self.settled.entries or self._queue_of(event_id) is not None

    def receive_duplicate(self, event_id: str) -> None:
        """Apply a context whose id has a decision."""
        self._counts["contexts"] += 1
        self._follow(self.state_of(event_id), Input.CONTEXT)

    def receive_context(
        self, event_id: str, pending: Pending, is_unmatched: bool = False, is_deferred: bool = False
    ) -> Sequence[Event]:
        """Apply a context whose id had no decision, and return the resulting events for the task, in order.

        Args:
            event_id: the context's id.
            pending: the task's decision for the context.
            is_unmatched: whether feedback is impossible, because a replayed log has a different action.
            is_deferred: whether the decision waits until it is shown.
        """
        self._counts["contexts"] += 1
        if pending.time.ms is not None:
            self.date(pending.time, pending.time.ms)
        orphan = self.orphans.pop(event_id, None) if self.orphans else None
        state, answer, of_feedback = State.UNSEEN, None, None
        if orphan is not None:
            state = orphan.state
            if orphan.feedback is not None:
                answer, of_feedback = self._combination.add(None, orphan.feedback, orphan.record)
                if not _fits(orphan.feedback, pending.action):
                    of_feedback = Input.MISMATCH
        move = self._follow(state, Input.UNMATCHED if is_unmatched else _CONTEXT_INPUTS[is_deferred, of_feedback])
        if move.settles is not None:
            feedback = None if is_unmatched or answer is None else answer.feedback
            record = None if orphan is None else orphan.record
            events: list[Event] = [self._settle(event_id, pending, move.settles, feedback, record)]
        else:
            events = []
            if move is Move.DECIDE_AND_COLLECT and answer is not None:
                self.answers[event_id] = answer
            if (move is Move.DECIDE_AND_REFUSE or move is Move.DEFER_AND_REFUSE) and orphan is not None:
                events.append(make(Mismatched, (orphan.feedback, orphan.record, pending.action)))
            queue = self.deferred if move is Move.DEFER or move is Move.DEFER_AND_REFUSE else self.pending
            queue[event_id] = pending
            if self._unsettled_count > self._settings.pending_max:
                events.append(self._evict_decision())
        for one in self._pop_more(event_id) if self.more else ():
            assert one.feedback is not None
            self._counts["feedback"] -= 1  # it was counted at its arrival
            events += self.receive_feedback(one.feedback, one.record)
        return events

    def receive_feedback(self, feedback: Feedback, record: Record) -> Sequence[Event]:
        """Apply feedback and return the resulting events for the task. Call `pass_time` first."""
        self._counts["feedback"] += 1
        queue = self._queue_of(feedback.id)
        if queue is not None:
            if self._is_combined:
                return self._combine(queue, feedback, record)
            return self._feedback_for_unsettled(queue, feedback, record)
        retained = self.retained.get(feedback.id)
        if retained is not None:
            return self._feedback_for_settled(retained, feedback, record)
        return self._feedback_without_decision(feedback, record)

    def _feedback_for_unsettled(self, queue: Decisions, feedback: Feedback, record: Record) -> Sequence[Event]:
        event_id, pending = feedback.id, queue[feedback.id]
        move = self._follow(queue.state, Input.FEEDBACK if _fits(feedback, pending.action) else Input.MISMATCH)
        if move is Move.REFUSE:
            return (make(Mismatched, (feedback, record, pending.action)),)
        del queue[event_id]
        return (self._settle(event_id, pending, Outcome.MATCHED, feedback, record),)

    def _combine(self, queue: Decisions, feedback: Feedback, record: Record) -> Sequence[Event]:
        """Apply feedback for an unsettled decision whose reward depends on several records."""
        event_id, pending = feedback.id, queue[feedback.id]
        answer = self.answers.get(event_id)
        after, happened = self._combination.add(answer, feedback, record)
        if _fits(feedback, pending.action):
            self._counts["conflicts"] += self._combination.conflicts(answer, feedback)
        else:
            happened = Input.MISMATCH
        move = self._follow(queue.state if answer is None else State.ANSWERED, happened)
        if move is Move.REFUSE:
            return (make(Mismatched, (feedback, record, pending.action)),)
        if move is Move.REFUSE_PART:
            return (Excess(feedback, record),)
        if move is Move.MATCH:
            del queue[event_id]
            self.answers.pop(event_id, None)
            return (self._settle(event_id, pending, Outcome.MATCHED, after.feedback, after.record),)
        if move is Move.REPLACE:
            self.answers[event_id], _ = self._combination.add(None, feedback, record)
        if move is Move.COLLECT:
            self.answers[event_id] = after
            if queue is self.deferred:  # the decision has been shown
                del queue[event_id]
                self.shown[event_id] = pending._replace(time=DecisionTime(0, self.stream_ms))
        return ()

    def _feedback_for_settled(self, retained: Retained, feedback: Feedback, record: Record) -> Sequence[Event]:
        if not _fits(feedback, retained.action):
            happened = Input.MISMATCH
        elif not self._is_combined:
            happened = Input.FEEDBACK
        elif retained.state is State.MATCHED and not self._combination.would_change(feedback, retained.reward):
            happened = Input.REPEATED
        else:
            happened = Input.PARTIAL
        move = self._follow(retained.state, happened)
        if move is Move.REFUSE:
            return (make(Mismatched, (feedback, record, retained.action)),)
        if move is Move.TAKE_LATE or move is Move.TAKE_MORE:
            return (self._late(retained, feedback),)
        if (move is Move.IGNORE_FEEDBACK or move is Move.REPLACE) and feedback.reward != retained.reward:
            self._counts["conflicts"] += not self._is_combined
            if move is Move.REPLACE:
                self.settled.replace(feedback.id, retained._replace(reward=feedback.reward))
                return (Late(feedback, retained),)
        return ()

    def _late(self, retained: Retained, feedback: Feedback) -> Late:
        """Return late feedback with the decision that it corrects, and update the id's entry.

        The first late feedback corrects the decision or, with the rule `max`, each higher reward does.
        """
        without = retained._replace(pending=None)
        if not self._correctable or self._combination.rule != "max" or retained.pending is None:
            self.settled.replace(feedback.id, without)
            return Late(feedback, retained if self._correctable else without)
        if not self._combination.would_change(feedback, retained.reward):
            return Late(feedback, without)
        self.settled.replace(feedback.id, retained._replace(reward=feedback.reward))
        return Late(feedback, retained)

    def _feedback_without_decision(self, feedback: Feedback, record: Record) -> Sequence[Event]:
        orphan = self.orphans.get(feedback.id)
        happened = Input.PARTIAL if self._is_combined else Input.FEEDBACK
        move = self._follow(State.UNSEEN if orphan is None else orphan.state, happened)
        if orphan is not None and move is Move.KEEP_MORE:
            self.keep_more(feedback.id, Orphan(feedback, record, orphan.since_ms))
            return self._enforce_orphans_max()
        if orphan is None or orphan.feedback is None or move is Move.KEEP_ORPHAN:
            return self._keep_orphan(feedback.id, feedback, record)
        if feedback.reward != orphan.feedback.reward:
            self._counts["conflicts"] += 1
            if move is Move.REPLACE:
                self.orphans[feedback.id] = orphan._replace(feedback=feedback, record=record)
        return ()

    def receive_shown(self, event_id: str, record: Record) -> Sequence[Event]:
        """Apply a shown record and return the resulting events for the task. Call `pass_time` first."""
        self._counts["feedback"] += 1
        move = self._follow(self.state_of(event_id), Input.SHOWN)
        if move is Move.SHOW:
            pending = self.deferred.pop(event_id)
            self.shown[event_id] = pending._replace(time=DecisionTime(0, self.stream_ms))
        elif move is Move.KEEP_SHOWN:
            return self._keep_orphan(event_id, None, record)
        return ()

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
        return any((*self._unsettled, self.orphans))

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of all unsettled decisions and orphans."""
        due_ms = min(queue.due_ms for queue in (*self._unsettled, self.orphans))
        return None if due_ms == inf else int(due_ms)

    def date(self, time: DecisionTime, ms: int) -> None:
        """Set the time of a step's decisions.

        The time is never earlier than the time of previous decisions, even if the clock of a partition's new leader is
        behind. The task calls this method once for each step. Until the call, the step's decisions cannot become due.
        """
        time.ms = self.dated_ms = max(ms, self.dated_ms)
        limit_ms = min(self.pending.limit_ms, self.deferred.limit_ms)
        self._quiet_until_ms = min(self._quiet_until_ms, self.dated_ms + limit_ms)

    def _follow(self, state: State, happened: Input) -> Move:
        """Look up the rule for an input, increment the rule's counts, and return its move."""
        move, _, counted = TRANSITIONS[state, happened]
        for name in counted:
            self._counts[name] += 1
        return move

    def _queue_of(self, event_id: str) -> Decisions | None:
        """Return the queue that contains an id's unsettled decision, or None if there is no such decision."""
        for queue in self._unsettled:
            if event_id in queue:
                return queue
        return None

    @property
    def _unsettled_count(self) -> int:
        return len(self.pending) + len(self.deferred) + len(self.shown)

    @property
    def _waiting_count(self) -> int:
        return len(self.orphans) + self._more_count

    def _settle_due(self) -> list[Event]:
        events: list[Event] = []
        for queue in self._unsettled:
            while queue.due_ms < self.stream_ms:
                events.append(self._end_decision(queue))
        while self.orphans.due_ms < self.stream_ms:
            events += self._drop_orphan()
        while self.settled.due_ms < self.stream_ms:
            self._forget()
        # Entries added from now on have this stream time or a later one.
        queues = (*self._unsettled, self.orphans, self.settled)
        self._quiet_until_ms = min(min(queue.due_ms, self.stream_ms + queue.limit_ms) for queue in queues)
        return events

    def _end_decision(self, queue: Decisions) -> Settled:
        """Settle the oldest decision in a queue with its feedback so far, if there is any."""
        event_id, pending = next(iter(queue.items()))
        answer = self.answers.pop(event_id, None) if self.answers else None
        outcome = self._follow(queue.state if answer is None else State.ANSWERED, Input.DEADLINE).settles
        assert outcome is not None
        del queue[event_id]
        feedback, record = (None, None) if answer is None else (answer.feedback, answer.record)
        return self._settle(event_id, pending, outcome, feedback, record)

    def _evict_decision(self) -> Settled:
        """Settle the oldest deferred decision or, if there is none, the decision that is due first."""
        queue = self.deferred or min(self.pending, self.shown, key=lambda queue: queue.due_ms)
        self._counts["deferred_evicted" if self.deferred else "pending_evicted"] += 1
        return self._end_decision(queue)

    def _settle(
        self, event_id: str, pending: Pending, outcome: Outcome, feedback: Feedback | None, record: Record | None
    ) -> Settled:
        """Remember a decision as settled, and return the event."""
        reward = self.assumed_reward if outcome is Outcome.EXPIRED else None
        if feedback is not None:
            reward = feedback.reward
        correctable = pending if outcome in self._correctable else None
        self.settled.append(event_id, make(Retained, (outcome, reward, pending.action, correctable)), self.stream_ms)
        if len(self.settled.entries) > self._settings.retained_max:
            self._forget("retained_evicted")
        return make(Settled, (event_id, pending, outcome, feedback, record))

    def _forget(self, *counted: str) -> None:
        """Forget the oldest settled id, and increment these counts."""
        self.count(*counted)
        self._follow(self.settled.oldest().state, Input.DEADLINE)
        self.settled.popleft()

    def _keep_orphan(self, event_id: str, feedback: Feedback | None, record: Record) -> Sequence[Event]:
        """Add an orphan, which replaces any orphan with this id."""
        self.orphans.pop(event_id, None)
        self.orphans[event_id] = make(Orphan, (feedback, record, self.stream_ms))
        return self._enforce_orphans_max()

    def keep_more(self, event_id: str, orphan: Orphan) -> None:
        """Add feedback that waits with an earlier orphan."""
        self.more.setdefault(event_id, []).append(orphan)
        self._more_count += 1

    def _pop_more(self, event_id: str) -> list[Orphan]:
        """Remove and return the feedback that waits with an orphan."""
        more = self.more.pop(event_id, [])
        self._more_count -= len(more)
        return more

    def _enforce_orphans_max(self) -> Sequence[Event]:
        return self._drop_orphan("orphans_evicted") if self._waiting_count > self._settings.orphans_max else ()

    def _drop_orphan(self, *counted: str) -> Sequence[Event]:
        """Drop the oldest orphan with all feedback that waits with it. Increment these counts for each record."""
        event_id, orphan = next(iter(self.orphans.items()))
        del self.orphans[event_id]
        dropped = (orphan, *self._pop_more(event_id))
        for one in dropped:
            self.count(*counted)
            self._follow(one.state, Input.DEADLINE)
        return [DroppedOrphan(event_id, one) for one in dropped]


def _fits(feedback: Feedback, action: int | str) -> bool:
    """Return whether feedback is for this action. Feedback that names no action fits every action."""
    return feedback.action is None or feedback.action == action
