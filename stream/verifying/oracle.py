"""The expected outcome for every record, computed by an independent implementation of the join's rules.

`onebit verify` and the simulation compare the learner with this oracle. The oracle shares the settings and the record
types with `stream.task.join`, but none of its code. The join's limits also apply to the oracle, so its memory use does
not grow with the topics.
"""

from collections import Counter, OrderedDict
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

from stream.recovery.state import Snapshot
from stream.task.settings import TaskSettings
from stream.wire.dead_letters import (
    DEAD_LETTER_EXCESS,
    DEAD_LETTER_MALFORMED,
    DEAD_LETTER_MISMATCHED,
    DEAD_LETTER_ORPHAN,
)
from stream.wire.ledger import Ledger
from stream.wire.records import Arm, Context, Example, Feedback, Outcome, Prediction, Record


class Decided(NamedTuple):
    """A context with its decision."""

    context: Context
    offset: int
    prediction: Prediction
    is_unmatched: bool  # True if the log has no bit for this action


class Corrected(NamedTuple):
    """Late feedback that corrects the reward which the model has learned."""

    id: str
    reward: float
    learned: float


class SettingsChanged(NamedTuple):
    """A change of the settings."""

    settings: TaskSettings


class Letter(NamedTuple):
    """An expected dead letter."""

    topic: str  # the original record's topic
    partition: int
    offset: int
    kind: str

    def __str__(self) -> str:
        return f"a dead letter ({self.kind}) for {self.topic}/{self.partition} offset {self.offset}"


AuditedEvent = Decided | Example | Corrected | SettingsChanged | Letter
"""An event that the oracle expects. Expected examples have no drift alarm."""


PARTS_MAX = 64
"""Limit on the parts of a sum."""

_LEVELS = ("pending", "deferred", "orphans_waiting", "answered")
"""The fields of the ledger that contain a number of entries."""


class _Pending(NamedTuple):
    id: str
    action: int
    propensity: float | None
    date: list[int]  # empty until the step's tick is applied; a step's decisions share this list
    arm: Arm | None
    name: str | None  # the action's id, if contexts have actions

    @property
    def played(self) -> int | str:
        """The action as feedback names it."""
        return self.action if self.name is None else self.name


class _Orphan(NamedTuple):
    feedback: Feedback | None  # None for a shown record
    record: Record
    kept_ms: int


class _Known(NamedTuple):
    """A settled decision whose id has not been forgotten yet."""

    outcome: Outcome
    reward: float | None
    played: int | str  # as feedback names it
    settled_ms: int
    is_final: bool  # whether later feedback cannot correct the decision any more


class Oracle:
    """Applies records in journal order and appends the expected outcomes to `events`."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings
        self.events: list[AuditedEvent] = []
        self.counts: Counter[str] = Counter()  # counts by ledger field
        self.rows: Counter[tuple[str, str]] = Counter()  # number of times that each input occurred in each state
        self.undated: dict[int, list[int]] = {}  # decision times of steps whose ticks have not been applied yet
        self.dated_step = 0  # the last step whose tick was applied
        self._stream_ms = 0
        self._dated_ms = 0
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._deferred: OrderedDict[str, _Pending] = OrderedDict()
        self._shown: OrderedDict[str, _Pending] = OrderedDict()  # the window begins at the shown record's append time
        # Records that wait for a context, by id, oldest first. The first one determines how long they wait.
        self._orphans: OrderedDict[str, list[_Orphan]] = OrderedDict()
        # The feedback that determines the reward of a pending decision, in order, by id. Other feedback can follow.
        self._counted: dict[str, list[tuple[Feedback, Record]]] = {}
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def start_from(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot's entries and with the counts after its step."""
        self.counts = Counter({name: n for name, n in snapshot.step.ledger._asdict().items() if name not in _LEVELS})
        self.undated = {step: [] for step in snapshot.undated}
        self._stream_ms, self._dated_ms = snapshot.stream_ms, snapshot.dated_ms
        for waiting, entries in (
            (self._pending, snapshot.pending),
            (self._deferred, snapshot.deferred),
            (self._shown, snapshot.shown),
        ):
            for event_id, entry in zip(*entries, strict=True):
                date = self.undated[entry.time.step] if entry.time.ms is None else [entry.time.ms]
                propensity = entry.decision.known_propensity
                action, name = entry.decision.action, entry.class_name
                waiting[event_id] = _Pending(event_id, action, propensity, date, entry.arm, name)
        for entries in (snapshot.orphans, snapshot.more):
            for event_id, orphan in zip(*entries, strict=True):
                kept = _Orphan(orphan.feedback, orphan.record, orphan.since_ms)
                self._orphans.setdefault(event_id, []).append(kept)
        for event_id, answer in zip(*snapshot.answers, strict=True):
            rewards = answer.parts or {None: answer.feedback.reward}
            self._counted[event_id] = [
                (answer.feedback._replace(part=part, reward=reward), answer.record) for part, reward in rewards.items()
            ]
        for event_id, known, settled_ms in zip(*snapshot.retained, strict=True):
            self._known[event_id] = _Known(
                known.outcome, known.reward, known.action, settled_ms, is_final=known.pending is None
            )  # fmt: skip

    def change_settings(self, settings: TaskSettings) -> None:
        """Change limits and policies, and settle the entries that are due under the new limits."""
        self.events.append(SettingsChanged(settings))
        self.settings = settings
        self._settle_due()
        self._enforce_limits()

    def ledger(self) -> Ledger:
        """Return the expected counts."""
        orphans = sum(map(len, self._orphans.values()))
        waiting = len(self._pending) + len(self._shown), len(self._deferred), orphans, len(self._counted)
        levels = dict(zip(_LEVELS, waiting, strict=True))
        return Ledger(**{name: self.counts[name] for name in Ledger._fields} | levels)

    def malformed(self, record: Record, name: str) -> None:
        """Apply a malformed record; `name` is "context" or "feedback"."""
        self.counts["contexts" if name == "context" else name] += 1
        self.counts[f"{name}_malformed"] += 1
        self._reject(record, DEAD_LETTER_MALFORMED)

    def context(
        self, context: Context, record: Record, prediction: Prediction | None, date: list[int], *, is_unmatched: bool
    ) -> str:
        """Apply a context. Return a description of the error in its prediction, or "" if the prediction is correct.

        Args:
            context: the context.
            record: the context's record.
            prediction: the prediction for the record's offset, or None.
            date: a list for the time of the step's decisions. It is empty until the step's tick is applied.
            is_unmatched: whether the log has no bit for the decision's action.
        """
        event_id, state = context.id, self._state(context.id)
        self.counts["contexts"] += 1
        if state not in ("unseen", "orphan", "shown_orphan"):
            self.rows[state, "context"] += 1
            self.counts["context_duplicates"] += 1
            return f"{event_id!r} is already {state}, but has another prediction" if prediction else ""
        if prediction is None:
            return f"{event_id!r} has no prediction"
        if prediction.id != event_id:
            return f"expected a prediction for {event_id!r}; got one for {prediction.id!r}"
        self.counts["decided"] += 1
        self.events.append(Decided(context, record.offset, prediction, is_unmatched))
        if self.settings.dated_by == "context":
            self._dated_ms = max(self._dated_ms, record.append_ms)
            date = [self._dated_ms]
        action, propensity = prediction.decision.action, prediction.decision.known_propensity
        name = None if context.actions is None else context.actions[action]
        pending = _Pending(event_id, action, propensity, date, prediction.arm, name)
        waiting = self._orphans.pop(event_id, [])
        self._decide(pending, waiting[0] if waiting else None, context, state, is_unmatched)
        for orphan in waiting[1:]:
            assert orphan.feedback is not None
            self._apply(orphan.feedback, orphan.record)
        return ""

    def _decide(
        self, pending: _Pending, orphan: _Orphan | None, context: Context, state: str, is_unmatched: bool
    ) -> None:
        """Apply a decision and the first record that has waited for its context."""
        event_id = pending.id
        if is_unmatched:
            self.rows[state, "unmatched"] += 1
            self.counts["feedback_unmatched"] += orphan is not None
            self._settle(pending, Outcome.UNMATCHED, None, None, None if orphan is None else orphan.record.offset)
            return
        happened = "deferred" if context.is_deferred else "context"
        if orphan is not None:
            first = orphan.feedback
            if first is None:
                self.counts["shown" if context.is_deferred else "feedback_duplicates"] += 1
            elif first.action in (None, pending.played) and self._is_last(first):
                self.rows[state, happened] += 1
                self._match(pending, [(first, orphan.record)])
                return
            elif first.action in (None, pending.played):
                happened = "context_partial"
                self._counted[event_id] = [(first, orphan.record)]
            else:
                happened += "_mismatch"
                self.counts["mismatched"] += 1
                self._reject(orphan.record, DEAD_LETTER_MISMATCHED)
        self.rows[state, happened] += 1
        is_deferred = context.is_deferred and state != "shown_orphan" and event_id not in self._counted
        (self._deferred if is_deferred else self._pending)[event_id] = pending
        self._enforce_limits()

    def feedback(self, feedback: Feedback, record: Record) -> None:
        """Apply feedback. Stream time must have advanced to its append time."""
        self.counts["feedback"] += 1
        self._apply(feedback, record)

    def _apply(self, feedback: Feedback, record: Record) -> None:
        event_id, state = feedback.id, self._state(feedback.id)
        waiting, known = self._waiting(event_id), self._known.get(event_id)
        decision = known if waiting is None else waiting[event_id]
        is_mismatch = decision is not None and feedback.action not in (None, decision.played)
        is_first_only = self.settings.feedback == "first"
        if is_mismatch:
            self.rows[state, "mismatch"] += 1
        elif is_first_only:
            self.rows[state, "feedback"] += 1
        elif waiting is None and state != "matched":
            self.rows[state, "partial"] += 1
        if state == "unmatched":
            self.counts["feedback_unmatched"] += 1
        elif is_mismatch:
            self.counts["mismatched"] += 1
            self._reject(record, DEAD_LETTER_MISMATCHED)
        elif waiting is not None and is_first_only:
            self._match(waiting.pop(event_id), [(feedback, record)])
        elif waiting is not None:
            self._count(waiting, feedback, record, state)
        elif state == "unshown":
            self.counts["late"] += 1
        elif known is not None and state == "expired":
            self.counts["late"] += 1
            self._take_late(known, feedback)
        elif not is_first_only and known is not None:
            is_raised = self.settings.feedback == "sum" or known.reward is None or feedback.reward > known.reward
            self.rows[state, "partial" if is_raised else "repeated"] += 1
            self.counts["late" if is_raised else "feedback_duplicates"] += 1
            if is_raised:
                self._take_late(known, feedback)
        elif not is_first_only and state == "orphan":
            self._orphans[event_id].append(_Orphan(feedback, record, self._orphans[event_id][0].kept_ms))
            self._enforce_limits()
        elif state in ("unseen", "shown_orphan"):
            self.counts["shown"] += self._orphans.pop(event_id, None) is not None
            self._keep(event_id, feedback, record)
        else:
            orphans = self._orphans.get(event_id)
            first = orphans[0].feedback if orphans is not None else known
            self.counts["feedback_duplicates"] += 1
            self.counts["conflicts"] += first is not None and first.reward != feedback.reward

    def _take_late(self, known: _Known, feedback: Feedback) -> None:
        """Apply late feedback for an expired decision, or for a matched one whose reward it could have changed."""
        learned, corrects = known.reward, self.settings.late == "correct"
        if self.settings.feedback == "max" and corrects and not known.is_final:  # each higher reward corrects the model
            if learned is not None and feedback.reward <= learned:
                return
            self._known[feedback.id] = known._replace(reward=feedback.reward)
        else:
            self._known[feedback.id] = known._replace(is_final=True)
        if corrects and not known.is_final and learned is not None:
            self.events.append(Corrected(feedback.id, feedback.reward, learned))

    def _is_last(self, feedback: Feedback) -> bool:
        """Return whether feedback settles its decision at once."""
        settings = self.settings
        is_highest = settings.feedback == "max" and feedback.reward == settings.range_of_rewards.high
        return settings.feedback == "first" or feedback.is_final or is_highest

    def _count(self, waiting: OrderedDict[str, _Pending], feedback: Feedback, record: Record, state: str) -> None:
        """Apply feedback for an unsettled decision whose reward depends on several records."""
        event_id, counted = feedback.id, self._counted.get(feedback.id, [])
        is_sum = self.settings.feedback == "sum"
        same_part = [earlier for earlier, _ in counted if earlier.part == feedback.part] if is_sum else []
        if is_sum and not same_part and len(counted) >= PARTS_MAX:
            self.rows[state, "excess"] += 1
            self.counts["feedback_excess"] += 1
            self._reject(record, DEAD_LETTER_EXCESS)
            return
        self.counts["conflicts"] += any(earlier.reward != feedback.reward for earlier in same_part)
        is_new = not same_part if is_sum else all(feedback.reward > earlier.reward for earlier, _ in counted)
        is_last = self._is_last(feedback)
        self.rows[state, "feedback" if is_last else "partial" if is_new else "repeated"] += 1
        if counted:
            self.counts["combined" if is_new or is_last else "feedback_duplicates"] += 1
        counted = [*counted, (feedback, record)] if is_new else counted
        if is_last:
            self._counted.pop(event_id, None)
            self._match(waiting.pop(event_id), counted)
            return
        self._counted[event_id] = counted
        if state == "deferred":  # the decision has been shown
            self._shown[event_id] = waiting.pop(event_id)._replace(date=[self._stream_ms])

    def shown(self, event_id: str, record: Record) -> None:
        """Apply a shown record. Stream time must have advanced to its append time."""
        state = self._state(event_id)
        self.rows[state, "shown"] += 1
        self.counts["feedback"] += 1
        if state == "deferred":
            self.counts["shown"] += 1
            self._shown[event_id] = self._deferred.pop(event_id)._replace(date=[self._stream_ms])
        elif state == "unseen":
            self._keep(event_id, None, record)
        elif state == "unshown":
            self.counts["late"] += 1
        else:
            self.counts["feedback_unmatched" if state == "unmatched" else "feedback_duplicates"] += 1

    def _keep(self, event_id: str, feedback: Feedback | None, record: Record) -> None:
        self._orphans[event_id] = [_Orphan(feedback, record, self._stream_ms)]
        self._enforce_limits()

    def tick(self, step: int, append_ms: int) -> None:
        """Set the time of a step's decisions. The time is never earlier than the time of previous decisions."""
        date = self.undated.pop(step, None)
        if date is not None:
            self._dated_ms = max(self._dated_ms, append_ms)
            date.append(self._dated_ms)
            self.dated_step = max(self.dated_step, step)

    def pass_time(self, stream_ms: int) -> None:
        """Advance stream time and settle entries that are due. An earlier time has no effect."""
        if stream_ms > self._stream_ms:
            self._stream_ms = stream_ms
            self._settle_due()

    def _settle_due(self) -> None:
        now_ms, limits = self._stream_ms, self.settings.join
        for waiting in (self._pending, self._deferred, self._shown):
            window_ms = limits.activation_limit_ms if waiting is self._deferred else limits.window_ms
            while _first_date(waiting) + window_ms < now_ms:
                self.rows[self._state(next(iter(waiting))), "deadline"] += 1
                self._expire(waiting)
        while (
            self._orphans
            and (first := next(iter(self._orphans.values()))[0]).kept_ms + limits.orphan_window_ms < now_ms
        ):
            self.rows["shown_orphan" if first.feedback is None else "orphan", "deadline"] += 1
            self._drop_oldest()
        while self._known and (oldest := next(iter(self._known.values()))).settled_ms + limits.retain_ms < now_ms:
            self.rows[oldest.outcome, "deadline"] += 1
            self._known.popitem(last=False)

    def _waiting(self, event_id: str) -> OrderedDict[str, _Pending] | None:
        """Return the unsettled decisions that contain an id's decision, or None if the id has no such decision."""
        unsettled = self._pending, self._deferred, self._shown
        return next((waiting for waiting in unsettled if event_id in waiting), None)

    def _state(self, event_id: str) -> str:
        """Return an id's state.

        This is "unseen", "orphan", "shown_orphan", "deferred", "pending", "answered" or the decision's outcome.
        """
        waiting, known, orphans = self._waiting(event_id), self._known.get(event_id), self._orphans.get(event_id)
        if event_id in self._counted:
            return "answered"
        if waiting is not None:
            return "deferred" if waiting is self._deferred else "pending"
        if known is not None:
            return known.outcome
        if orphans is None:
            return "unseen"
        return "shown_orphan" if orphans[0].feedback is None else "orphan"

    def _enforce_limits(self) -> None:
        """Settle or drop the oldest entries until no limit is exceeded. Deferred decisions are settled first."""
        limits = self.settings.join
        while len(self._pending) + len(self._deferred) + len(self._shown) > limits.pending_max:
            self.counts["deferred_evicted" if self._deferred else "pending_evicted"] += 1
            self._expire(self._deferred or min(self._pending, self._shown, key=_first_date))
        while sum(map(len, self._orphans.values())) > limits.orphans_max:
            self.counts["orphans_evicted"] += self._drop_oldest()
        while len(self._known) > limits.retained_max:
            self.counts["retained_evicted"] += 1
            self._known.popitem(last=False)

    def _match(self, pending: _Pending, counted: list[tuple[Feedback, Record]]) -> None:
        """Settle a decision with the feedback that determines its reward."""
        reward = counted[-1][0].reward  # with the rule `max`, each of them is larger than the one before
        if self.settings.feedback == "sum":
            low, high = self.settings.range_of_rewards
            total = sum((Fraction(feedback.reward) for feedback, _ in counted), Fraction(0))
            reward = float(min(max(total, Fraction(low)), Fraction(high)))
        last = counted[-1][1]
        delay_ms = max(0, last.append_ms - pending.date[0]) if pending.date else 0
        self._settle(pending, Outcome.MATCHED, reward, delay_ms, last.offset)

    def _expire(self, waiting: OrderedDict[str, _Pending]) -> None:
        """Settle the oldest of these decisions with the feedback so far, or as one that received none."""
        if (counted := self._counted.pop(next(iter(waiting)), None)) is not None:
            self._match(waiting.popitem(last=False)[1], counted)
            return
        outcome = Outcome.UNSHOWN if waiting is self._deferred else Outcome.EXPIRED
        assumed: float | None = None
        if outcome is Outcome.EXPIRED and self.settings.on_expiry == "negative":
            assumed = 0 if self.settings.graded is None else self.settings.graded.low
        self._settle(waiting.popitem(last=False)[1], outcome, assumed, None, None)

    def _settle(
        self, pending: _Pending, outcome: Outcome, reward: float | None, delay_ms: int | None, offset: int | None
    ) -> None:
        event_id, action, propensity, _, arm, name = pending
        offset = None if offset is None or offset < 0 else offset  # a moved orphan is not in the feedback topic
        self.counts[outcome] += 1
        self.events.append(
            Example(event_id, outcome, action, propensity, reward, delay_ms, self._stream_ms, offset, None, arm, name)
        )
        is_final = self.settings.late != "correct"  # late feedback corrects only decisions settled from then on
        self._known[event_id] = _Known(outcome, reward, pending.played, self._stream_ms, is_final)
        if len(self._known) > self.settings.join.retained_max:
            self.counts["retained_evicted"] += 1
            self._known.popitem(last=False)

    def _drop_oldest(self) -> int:
        """Drop all records that wait for the context of the oldest orphan, and return their number."""
        _, orphans = self._orphans.popitem(last=False)
        self.counts["orphans_dropped"] += len(orphans)
        for orphan in orphans:
            self._reject(orphan.record, DEAD_LETTER_ORPHAN)
        return len(orphans)

    def _reject(self, record: Record, kind: str) -> None:
        self.events.append(Letter(record.topic, record.partition, record.offset, kind))


def _first_date(waiting: OrderedDict[str, _Pending]) -> float:
    """Return the oldest decision's time, or infinity if there is no decision or its tick has not been applied yet."""
    date = next(iter(waiting.values())).date if waiting else []
    return date[0] if date else inf


def differing(expected: Any, got: Any) -> str:
    """Describe the fields in which two named tuples or structs of the same type differ. Used in messages."""
    pairs = ((name, getattr(expected, name), getattr(got, name)) for name in type(expected).__match_args__)
    return ", ".join(f"{name} {one}; got {other}" for name, one, other in pairs if one != other)
