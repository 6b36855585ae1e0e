"""The expected outcome of every record, from what was sent and append times alone.

Plain lists, searched from end to end, and nothing shared with the join but the names of its states. The oracle gets
the records in the order in which the journal says they were applied; `checks.py` checks that order.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from stream.task.join import JoinSettings
from stream.task.join_table import Input, State
from stream.wire.ledger import Ledger


class ExpectedExample(NamedTuple):
    """A settled decision, as it must stand in the topic."""

    id: str
    outcome: str
    reward: int | None
    delay_ms: int | None
    settled_at_ms: int
    feedback_offset: int | None


class Correction(NamedTuple):
    """Late feedback, the first for a decision that had expired."""

    id: str
    bit: int


class ExpectedDeadLetter(NamedTuple):
    """A dead letter, as it must stand in the topic."""

    contexts: bool  # of the contexts, not of the feedback
    offset: int
    kind: str


@dataclass(slots=True)
class _Decision:
    id: str
    step: int
    action: int
    decided_ms: int | None = None  # None: the tick of its step was not applied yet
    matched: bool = False
    reward: int | None = None
    settled_at_ms: int = -1
    corrected: bool = False
    aside: bool = False

    @property
    def state(self) -> State:
        if self.aside:
            return State.UNMATCHED
        return State.MATCHED if self.matched else State.EXPIRED


class _Waiting(NamedTuple):
    id: str
    bit: int
    append_ms: int
    offset: int
    kept_at_ms: int
    action: int | None


@dataclass(slots=True)
class Oracle:
    """Tell it everything in its order; it says what must come of it."""

    limits: JoinSettings
    assumed_reward: int | None
    rows: Counter[tuple[State, Input]] = field(default_factory=Counter)  # which rows of the join's table occurred
    counts: Counter[str] = field(default_factory=Counter)  # by the ledger's names, and overflows
    examples: list[ExpectedExample] = field(default_factory=list)
    dead_letters: list[ExpectedDeadLetter] = field(default_factory=list)
    to_learn: list[ExpectedExample | Correction] = field(default_factory=list)  # since it was last emptied
    time_ms: int = 0
    pending: list[_Decision] = field(default_factory=list)
    settled: list[_Decision] = field(default_factory=list)  # and not forgotten
    orphans: list[_Waiting] = field(default_factory=list)

    def poison(self, *, contexts: bool, offset: int) -> None:
        """A record came that cannot be read."""
        self.counts["contexts" if contexts else "feedback"] += 1
        self.counts["context_malformed" if contexts else "feedback_malformed"] += 1
        self.dead_letters.append(ExpectedDeadLetter(contexts, offset, "malformed"))

    def context(self, event_id: str, decided: tuple[int, int] | None, *, aside: bool = False) -> str | None:
        """A context came, and was decided in this step by this action, or not at all; what is wrong with that.

        Aside: the log cannot tell the bit of this action.
        """
        state = self._state(event_id)
        self.counts["contexts"] += 1
        if state in (State.PENDING, State.MATCHED, State.EXPIRED, State.UNMATCHED):
            self.rows[state, Input.CONTEXT] += 1
            self.counts["context_duplicates"] += 1
            return None if decided is None else f"{event_id} is {state.name}, and was decided once more"
        if decided is None:
            return f"{event_id} is {state.name}, and was not decided"
        self.counts["decided"] += 1
        decision = _Decision(event_id, *decided)
        waiting = [orphan for orphan in self.orphans if orphan.id == event_id]
        if aside:
            self.rows[state, Input.ASIDE] += 1
            self.counts["unmatched"] += 1
            self.counts["feedback_unmatched"] += len(waiting)
            self.orphans = [orphan for orphan in self.orphans if orphan.id != event_id]
            passed = waiting[0].offset if waiting else None
            self.examples.append(ExpectedExample(event_id, "unmatched", None, None, self.time_ms, passed))
            decision.aside = True
            self._keep(decision)
            return None
        differs = bool(waiting) and waiting[0].action not in (None, decision.action)
        self.rows[state, Input.CONTEXT_MISMATCH if differs else Input.CONTEXT] += 1
        for orphan in waiting:
            self.orphans.remove(orphan)
            if not differs:
                self._match(decision, orphan.bit, orphan.append_ms, orphan.offset)
                return None
            self._refuse(orphan.offset)
        self.pending.append(decision)
        if len(self.pending) > self.limits.pending_max:
            self.counts["overflow of pending"] += 1
            self._expire(self.pending.pop(0))
        return None

    def feedback(self, event_id: str, bit: int, append_ms: int, offset: int, action: int | None = None) -> None:
        """Feedback came, for this action or without saying for which."""
        self.time(append_ms)
        state = self._state(event_id)
        decided = [decision.action for decision in (*self.pending, *self.settled) if decision.id == event_id]
        differs = bool(decided) and action not in (None, decided[0])
        self.rows[state, Input.MISMATCH if differs else Input.FEEDBACK] += 1
        self.counts["feedback"] += 1
        if state is State.UNMATCHED:
            self.counts["feedback_unmatched"] += 1
        elif differs:
            self._refuse(offset)
        elif state is State.PENDING:
            decision = next(decision for decision in self.pending if decision.id == event_id)
            self.pending.remove(decision)
            self._match(decision, bit, append_ms, offset)
        elif state is State.EXPIRED:
            self.counts["late"] += 1
            late = next(decision for decision in self.settled if decision.id == event_id)
            if not late.corrected:
                self.to_learn.append(Correction(event_id, bit))
            late.corrected = True
        elif state is State.UNSEEN:
            self.orphans.append(_Waiting(event_id, bit, append_ms, offset, self.time_ms, action))
            if len(self.orphans) > self.limits.orphans_max:
                self.counts["overflow of orphans"] += 1
                self._drop(self.orphans.pop(0))
        else:
            first: int | None = None
            if state is State.ORPHAN:
                first = next(orphan.bit for orphan in self.orphans if orphan.id == event_id)
            else:
                first = next(decision.reward for decision in self.settled if decision.id == event_id)
            self.counts["feedback_duplicates"] += 1
            self.counts["conflicts"] += first != bit

    def tick(self, step: int, append_ms: int) -> None:
        """The tick of a step came: its decisions were made at the tick's append time."""
        self.time(append_ms)
        for decision in self.pending:
            if decision.step == step:
                decision.decided_ms = append_ms

    def time(self, now_ms: int) -> None:
        """A record of the feedback partition came with this append time."""
        if now_ms <= self.time_ms:
            return
        self.time_ms = now_ms
        dated = [(d, d.decided_ms) for d in self.pending if d.decided_ms is not None]
        for decision in [d for d, decided_ms in dated if now_ms > decided_ms + self.limits.window_ms]:
            self.rows[State.PENDING, Input.DEADLINE] += 1
            self.pending.remove(decision)
            self._expire(decision)
        for orphan in [o for o in self.orphans if now_ms > o.kept_at_ms + self.limits.orphan_ms]:
            self.rows[State.ORPHAN, Input.DEADLINE] += 1
            self.orphans.remove(orphan)
            self._drop(orphan)
        for decision in [d for d in self.settled if now_ms > d.settled_at_ms + self.limits.retain_ms]:
            self.rows[decision.state, Input.DEADLINE] += 1
            self.settled.remove(decision)

    def ledger(self) -> Ledger:
        """The books."""
        counted = {name: self.counts[name] for name in Ledger._fields}
        return Ledger(**(counted | {"pending": len(self.pending), "orphans_waiting": len(self.orphans)}))

    def _state(self, event_id: str) -> State:
        if any(decision.id == event_id for decision in self.pending):
            return State.PENDING
        for decision in self.settled:
            if decision.id == event_id:
                return decision.state
        return State.ORPHAN if any(orphan.id == event_id for orphan in self.orphans) else State.UNSEEN

    def _match(self, decision: _Decision, bit: int, append_ms: int, offset: int) -> None:
        self.counts["matched"] += 1
        delay_ms = 0 if decision.decided_ms is None else append_ms - decision.decided_ms
        self._settle(ExpectedExample(decision.id, "matched", bit, delay_ms, self.time_ms, offset))
        decision.matched, decision.reward = True, bit
        self._keep(decision)

    def _expire(self, decision: _Decision) -> None:
        self.counts["expired"] += 1
        self._settle(ExpectedExample(decision.id, "expired", self.assumed_reward, None, self.time_ms, None))
        decision.reward = self.assumed_reward
        self._keep(decision)

    def _settle(self, example: ExpectedExample) -> None:
        self.examples.append(example)
        self.to_learn.append(example)

    def _keep(self, decision: _Decision) -> None:
        decision.settled_at_ms = self.time_ms
        self.settled.append(decision)
        if len(self.settled) > self.limits.retained_max:
            self.counts["overflow of retained"] += 1
            self.settled.pop(0)

    def _refuse(self, offset: int) -> None:
        self.counts["mismatched"] += 1
        self.dead_letters.append(ExpectedDeadLetter(False, offset, "mismatched"))

    def _drop(self, orphan: _Waiting) -> None:
        self.counts["orphans_dropped"] += 1
        self.dead_letters.append(ExpectedDeadLetter(False, orphan.offset, "orphan"))
