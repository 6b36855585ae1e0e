"""A direct implementation of the join. The oracle stores all decisions in a list, and searches this list.

The oracle compares the append time of feedback with the deadline of its decision. The join does not compare these
times: it expires each decision when stream time passes the deadline. Both methods must give the same results.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from stream.settings.task_fields import JoinSettings
from stream.wire.ledger import Ledger
from stream.wire.rewards import FeedbackRule


@dataclass
class Decided:
    """A decision. The oracle's list also contains the decisions that the join has forgotten."""

    id: str
    decided_at_ms: int
    action: int
    is_deferred: bool = False  # also False if the shown record arrived before the context
    shown_at_ms: int | None = None  # time of the shown record; None if the decision is not shown or never deferred
    shown_as: int = -1  # number of decisions that were shown before this decision
    outcome: str = ""  # empty until the decision is settled
    reward: float | None = None
    counted: list[tuple[float, str | None]] = field(default_factory=list)  # rewards and parts, if more can follow
    settled_at_ms: int = -1
    settled_as: int = -1  # number of decisions that were settled before this decision
    gave_way: bool = False  # settled early, because the number of unsettled decisions exceeded the limit
    forgotten: bool = False


@dataclass
class Waiting:
    """Feedback that arrived before its context."""

    id: str
    reward: float | None  # None if this is a shown record
    since_ms: int
    action: int | None
    part: str | None = None
    final: bool = False


@dataclass
class JoinOracle:
    """The join's expected results. Each call returns descriptions of its effects, such as `matched a 1`."""

    settings: JoinSettings
    assumed_reward: float | None = None
    rule: FeedbackRule = "first"
    highest: float = 1  # the largest reward; the smallest is 0
    parts_max: int = 64
    time_ms: int = 0
    decisions: list[Decided] = field(default_factory=list)
    orphans: list[Waiting] = field(default_factory=list)
    contexts: int = 0
    context_duplicates: int = 0
    feedback_count: int = 0
    late: int = 0
    duplicates: int = 0
    mismatched: int = 0
    conflicts: int = 0
    dropped: int = 0
    settled: int = 0
    gave_way: int = 0
    orphans_gave_way: int = 0
    forgotten_early: int = 0
    passed_over: int = 0
    deferred_gave_way: int = 0
    shown: int = 0
    shown_later: int = 0
    combined: int = 0
    excess: int = 0

    def context(
        self, event_id: str, decided_at_ms: int, action: int = 0, *, unmatched: bool = False, deferred: bool = False
    ) -> list[str]:
        """Process a context and its decision.

        Args:
            event_id: the context's id.
            decided_at_ms: the time of the decision.
            action: the decided action.
            unmatched: whether the log has no bit for this decision.
            deferred: whether the decision waits for its shown record.
        """
        self.contexts += 1
        if self._known(event_id) is not None:
            self.context_duplicates += 1
            return ["context duplicate"]
        decision = Decided(event_id, decided_at_ms, action, deferred)
        self.decisions.append(decision)
        waiting = [orphan for orphan in self.orphans if orphan.id == event_id]
        self.orphans = [orphan for orphan in self.orphans if orphan.id != event_id]
        if unmatched:
            self.passed_over += len(waiting[:1])
            happened = self._settle(decision, "unmatched", None)
        else:
            happened = self._decided(decision, waiting[:1], deferred)
        for later in waiting[1:]:
            assert later.reward is not None
            applied = self._apply(event_id, later.reward, self.time_ms, later.action, later.part, later.final)
            happened += [what for what in applied if not what.startswith("feedback")]
        return happened

    def _decided(self, decision: Decided, waiting: list[Waiting], deferred: bool) -> list[str]:
        event_id, action = decision.id, decision.action
        raised = []
        if waiting:
            first = waiting[0]
            if first.reward is None:
                self.shown += deferred
                self.duplicates += not deferred
                decision.is_deferred = False
            elif first.action in (None, action):
                decision.counted = [(first.reward, first.part)]
                if self._is_last(first.reward, first.final):
                    return self._settle_counted(decision)
                decision.is_deferred = False
            else:
                raised = [self._refuse(event_id, first.action, action)]
        unsettled = [d for d in self.decisions if not d.outcome]
        if len(unsettled) <= self.settings.pending_max:
            return raised
        deferrals = [d for d in unsettled if d.is_deferred and d.shown_at_ms is None]
        if deferrals:
            self.deferred_gave_way += 1
            deferrals[0].gave_way = True
            return raised + self._settle(deferrals[0], "unshown", None)
        self.gave_way += 1
        oldest = min(unsettled, key=lambda d: (self._begins_ms(d), d.shown_at_ms is not None, d.shown_as))
        oldest.gave_way = True
        return raised + self._expire(oldest)

    def feedback(
        self,
        event_id: str,
        reward: float,
        append_ms: int,
        action: int | None = None,
        part: str | None = None,
        *,
        final: bool = False,
    ) -> list[str]:
        """Process feedback with this append time."""
        happened = self.time(append_ms)
        self.feedback_count += 1
        return happened + self._apply(event_id, reward, append_ms, action, part, final)

    def _apply(
        self, event_id: str, reward: float, append_ms: int, action: int | None, part: str | None, final: bool
    ) -> list[str]:
        decision = self._known(event_id)
        if decision is None:
            return self._without_decision(event_id, reward, action, part, final)
        if decision.outcome == "unmatched":
            self.passed_over += 1
            return []
        if action not in (None, decision.action):
            return [self._refuse(event_id, action, decision.action)]
        if decision.outcome == "matched":
            if self.rule == "first":
                return [self._duplicate(decision.reward, reward)]
            if self.rule == "max" and reward <= (decision.reward or 0):
                return [self._duplicate(reward, reward)]
            self.late += 1
            return [f"late {event_id}"]
        if append_ms <= self._ends_ms(decision) and not decision.gave_way:
            return self._count(decision, reward, part, final)
        self.late += 1
        return [] if decision.outcome == "unshown" else [f"late {event_id}"]

    def _count(self, decision: Decided, reward: float, part: str | None, final: bool) -> list[str]:
        """Process feedback for an unsettled decision."""
        is_first, happened = not decision.counted, []
        if decision.is_deferred and decision.shown_at_ms is None and not self._is_last(reward, final):
            decision.shown_at_ms, decision.shown_as = self.time_ms, self.shown_later
            self.shown_later += 1
        earlier = [value for value, known in decision.counted if known == part]
        if self.rule == "sum":
            if not earlier and len(decision.counted) >= self.parts_max:
                self.excess += 1
                return [f"excess {decision.id} {part}"]
            if earlier and earlier[0] != reward:
                self.conflicts += 1
                happened = ["feedback conflict"]
            is_new = not earlier
        else:
            is_new = all(reward > value for value, _ in decision.counted)
        if is_new:
            decision.counted.append((reward, part))
        if self._is_last(reward, final):
            self.combined += not is_first
            return happened + self._settle_counted(decision)
        if is_new:
            self.combined += not is_first
            return happened
        self.duplicates += 1
        return happened or ["feedback duplicate"]

    def _is_last(self, reward: float, final: bool) -> bool:
        return self.rule == "first" or final or (self.rule == "max" and reward == self.highest)

    def _expire(self, decision: Decided) -> list[str]:
        if decision.counted:
            return self._settle_counted(decision)
        return self._settle(decision, "expired", self.assumed_reward)

    def _settle_counted(self, decision: Decided) -> list[str]:
        rewards = [reward for reward, _ in decision.counted]
        decision.counted = []
        total = max(rewards)
        if self.rule == "sum":
            total = float(min(max(sum(map(Fraction, rewards)), 0), self.highest))
        return self._settle(decision, "matched", total)

    def show(self, event_id: str, append_ms: int) -> list[str]:
        """Process a shown record with this append time."""
        happened = self.time(append_ms)
        self.feedback_count += 1
        decision = self._known(event_id)
        if decision is None:
            return happened + self._without_decision(event_id, None, None)
        if decision.outcome in ("unmatched", "unshown"):
            self.passed_over += decision.outcome == "unmatched"
            self.late += decision.outcome == "unshown"
            return happened
        if decision.outcome or not decision.is_deferred or decision.shown_at_ms is not None:
            self.duplicates += 1
            return [*happened, "feedback duplicate"]
        decision.shown_at_ms, decision.shown_as = self.time_ms, self.shown_later
        self.shown += 1
        self.shown_later += 1
        return happened

    def time(self, now_ms: int) -> list[str]:
        """Advance stream time. All feedback before this time has been processed."""
        if now_ms <= self.time_ms:
            return []
        self.time_ms = now_ms
        happened: list[str] = []
        due = [d for d in self.decisions if not d.outcome and now_ms > self._ends_ms(d)]
        for decision in due:
            if decision.shown_at_ms is None and not decision.is_deferred:
                happened += self._expire(decision)
        for decision in due:
            if decision.shown_at_ms is None and decision.is_deferred:
                happened += self._settle(decision, "unshown", None)
        for decision in sorted(due, key=lambda d: d.shown_as):
            if decision.shown_at_ms is not None:
                happened += self._expire(decision)
        while self.orphans and now_ms > self.orphans[0].since_ms + self.settings.orphan_window_ms:
            happened += self._drop(self.orphans[0].id)
        for decision in self.decisions:
            if decision.outcome and now_ms > decision.settled_at_ms + self.settings.retain_ms:
                decision.forgotten = True
        return happened

    def _begins_ms(self, decision: Decided) -> int:
        return decision.decided_at_ms if decision.shown_at_ms is None else decision.shown_at_ms

    def _ends_ms(self, decision: Decided) -> int:
        limits = self.settings
        waits = decision.is_deferred and decision.shown_at_ms is None and limits.activation_window_ms is not None
        return self._begins_ms(decision) + ((limits.activation_window_ms or 0) if waits else limits.window_ms)

    def _known(self, event_id: str) -> Decided | None:
        known = [d for d in self.decisions if d.id == event_id and not d.forgotten]
        assert len(known) <= 1
        return known[0] if known else None

    def _without_decision(
        self,
        event_id: str,
        reward: float | None,
        action: int | None,
        part: str | None = None,
        final: bool = False,
    ) -> list[str]:
        waiting = [orphan for orphan in self.orphans if orphan.id == event_id]
        since_ms = self.time_ms
        if waiting and reward is not None and waiting[0].reward is None:
            self.shown += 1
            self.orphans.remove(waiting[0])
        elif waiting and (self.rule == "first" or reward is None):
            return [self._duplicate(waiting[0].reward, waiting[0].reward if reward is None else reward)]
        elif waiting:
            since_ms = waiting[0].since_ms
        self.orphans.append(Waiting(event_id, reward, since_ms, action, part, final))
        if len(self.orphans) > self.settings.orphans_max:
            dropped = self._drop(self.orphans[0].id)
            self.orphans_gave_way += len(dropped)
            return dropped
        return []

    def _duplicate(self, first: float | None, reward: float | None) -> str:
        self.duplicates += 1
        self.conflicts += first != reward
        return "feedback duplicate" if first == reward else "feedback conflict"

    def _refuse(self, event_id: str, action: int | None, decided: int) -> str:
        self.mismatched += 1
        return f"mismatched {event_id} {action} for {decided}"

    def _settle(self, decision: Decided, outcome: str, reward: float | None) -> list[str]:
        decision.outcome, decision.reward = outcome, reward
        decision.settled_at_ms, decision.settled_as = self.time_ms, self.settled
        self.settled += 1
        remembered = [d for d in self.decisions if d.outcome and not d.forgotten]
        if len(remembered) > self.settings.retained_max:
            self.forgotten_early += 1
            min(remembered, key=lambda d: d.settled_as).forgotten = True
        return [f"{outcome} {decision.id} {reward}"]

    def _drop(self, event_id: str) -> list[str]:
        """Drop all records that wait for an id's context."""
        count = len(self.orphans)
        self.orphans = [orphan for orphan in self.orphans if orphan.id != event_id]
        self.dropped += count - len(self.orphans)
        return [f"dropped {event_id}"] * (count - len(self.orphans))

    def ledger(self) -> Ledger:
        """Return the expected ledger."""
        return Ledger(
            contexts=self.contexts,
            decided=len(self.decisions),
            context_duplicates=self.context_duplicates,
            feedback=self.feedback_count,
            matched=sum(d.outcome == "matched" for d in self.decisions),
            expired=sum(d.outcome == "expired" for d in self.decisions),
            pending=sum(not d.outcome and not (d.is_deferred and d.shown_at_ms is None) for d in self.decisions),
            deferred=sum(not d.outcome and d.is_deferred and d.shown_at_ms is None for d in self.decisions),
            unshown=sum(d.outcome == "unshown" for d in self.decisions),
            shown=self.shown,
            late=self.late,
            feedback_duplicates=self.duplicates,
            conflicts=self.conflicts,
            orphans_waiting=len(self.orphans),
            orphans_dropped=self.dropped,
            mismatched=self.mismatched,
            unmatched=sum(d.outcome == "unmatched" for d in self.decisions),
            feedback_unmatched=self.passed_over,
            pending_evicted=self.gave_way,
            deferred_evicted=self.deferred_gave_way,
            orphans_evicted=self.orphans_gave_way,
            retained_evicted=self.forgotten_early,
            answered=sum(not d.outcome and bool(d.counted) for d in self.decisions),
            combined=self.combined,
            feedback_excess=self.excess,
        )
