"""A direct implementation of the join. The oracle stores all decisions in a list, and searches this list.

The oracle compares the append time of feedback with the deadline of its decision. The join does not compare these
times: it expires each decision when stream time passes the deadline. Both methods must give the same results.
"""

from dataclasses import dataclass, field

from stream.settings.task_fields import JoinSettings
from stream.wire.ledger import Ledger


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
    reward: int | None = None
    settled_at_ms: int = -1
    settled_as: int = -1  # number of decisions that were settled before this decision
    gave_way: bool = False  # settled early, because the number of unsettled decisions exceeded the limit
    forgotten: bool = False


@dataclass
class Waiting:
    """Feedback that arrived before its context."""

    id: str
    reward: int | None  # None if this is a shown record
    since_ms: int
    action: int | None


@dataclass
class JoinOracle:
    """The join's expected results. Each call returns descriptions of its effects, such as `matched a 1`."""

    settings: JoinSettings
    assumed_reward: int | None = None
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
        if unmatched:
            self.passed_over += len(waiting)
            self.orphans = [orphan for orphan in self.orphans if orphan.id != event_id]
            return self._settle(decision, "unmatched", None)
        raised = []
        if waiting:
            self.orphans.remove(waiting[0])
            if waiting[0].reward is None:
                self.shown += deferred
                self.duplicates += not deferred
                decision.is_deferred = False
            elif waiting[0].action in (None, action):
                return self._settle(decision, "matched", waiting[0].reward)
            else:
                raised = [self._refuse(event_id, waiting[0].action, action)]
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
        return raised + self._settle(oldest, "expired", self.assumed_reward)

    def feedback(self, event_id: str, reward: int, append_ms: int, action: int | None = None) -> list[str]:
        """Process feedback with this append time."""
        happened = self.time(append_ms)
        self.feedback_count += 1
        decision = self._known(event_id)
        if decision is None:
            return happened + self._without_decision(event_id, reward, action)
        if decision.outcome == "unmatched":
            self.passed_over += 1
            return happened
        if action not in (None, decision.action):
            return [*happened, self._refuse(event_id, action, decision.action)]
        if decision.outcome == "matched":
            return [*happened, self._duplicate(decision.reward, reward)]
        if append_ms <= self._ends_ms(decision) and not decision.gave_way:
            return happened + self._settle(decision, "matched", reward)
        self.late += 1
        return happened if decision.outcome == "unshown" else [*happened, f"late {event_id}"]

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
                happened += self._settle(decision, "expired", self.assumed_reward)
        for decision in due:
            if decision.shown_at_ms is None and decision.is_deferred:
                happened += self._settle(decision, "unshown", None)
        for decision in sorted(due, key=lambda d: d.shown_as):
            if decision.shown_at_ms is not None:
                happened += self._settle(decision, "expired", self.assumed_reward)
        for orphan in [o for o in self.orphans if now_ms > o.since_ms + self.settings.orphan_window_ms]:
            happened += self._drop(orphan)
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

    def _without_decision(self, event_id: str, reward: int | None, action: int | None) -> list[str]:
        waiting = [orphan for orphan in self.orphans if orphan.id == event_id]
        if waiting and reward is not None and waiting[0].reward is None:
            self.shown += 1
            self.orphans.remove(waiting[0])
        elif waiting:
            return [self._duplicate(waiting[0].reward, waiting[0].reward if reward is None else reward)]
        self.orphans.append(Waiting(event_id, reward, self.time_ms, action))
        if len(self.orphans) > self.settings.orphans_max:
            self.orphans_gave_way += 1
            return self._drop(self.orphans[0])
        return []

    def _duplicate(self, first: int | None, reward: int | None) -> str:
        self.duplicates += 1
        self.conflicts += first != reward
        return "feedback duplicate" if first == reward else "feedback conflict"

    def _refuse(self, event_id: str, action: int | None, decided: int) -> str:
        self.mismatched += 1
        return f"mismatched {event_id} {action} for {decided}"

    def _settle(self, decision: Decided, outcome: str, reward: int | None) -> list[str]:
        decision.outcome, decision.reward = outcome, reward
        decision.settled_at_ms, decision.settled_as = self.time_ms, self.settled
        self.settled += 1
        remembered = [d for d in self.decisions if d.outcome and not d.forgotten]
        if len(remembered) > self.settings.retained_max:
            self.forgotten_early += 1
            min(remembered, key=lambda d: d.settled_as).forgotten = True
        return [f"{outcome} {decision.id} {reward}"]

    def _drop(self, orphan: Waiting) -> list[str]:
        self.orphans.remove(orphan)
        self.dropped += 1
        return [f"dropped {orphan.id}"]

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
        )
