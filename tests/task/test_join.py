"""The join: every transition in its table, its limits, and comparisons with a simple oracle on random inputs."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stream.settings.task_fields import JoinSettings
from stream.task.answers import Combination
from stream.task.join import DroppedOrphan, Event, Excess, Join, Late, Mismatched, Pending, Retained
from stream.task.join_table import TRANSITIONS, Input, State
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, DecisionTime, Features, Feedback, Outcome, Record
from stream.wire.rewards import FeedbackRule, RewardRange
from tests.oracles.join_oracle import JoinOracle

LIMITS = JoinSettings(
    window_ms=100,
    activation_window_ms=70,
    orphan_window_ms=50,
    retain_ms=1_000,
    pending_max=10,
    orphans_max=10,
    retained_max=10,
)
X = Features(np.zeros(0, dtype=np.int32), np.zeros(0))
DECISION = Decision(0, 0, 1.0, np.zeros(2))
RECORD = Record("feedback", 0, 0, 0, None, None, ())
COMBINATION = Combination(rewards=RewardRange(0.0, 3.0), parts_max=3)


class Driver:
    """Calls a join's methods as the task does. Returns a description of each effect, such as `matched a 1`."""

    def __init__(
        self, limits: JoinSettings, *, negative: bool = False, corrects: bool = False, rule: FeedbackRule = "first"
    ) -> None:
        combination = COMBINATION._replace(rule=rule)
        self.join = Join(limits, assumed_reward=0 if negative else None, corrects=corrects, combination=combination)

    def context(
        self, event_id: str, decided_at_ms: int, action: int = 0, *, unmatched: bool = False, deferred: bool = False
    ) -> list[str]:
        """Pass a context to the join. `unmatched` means that the log has no bit for the decision."""
        if self.join.has_decision(event_id):
            self.join.receive_duplicate(event_id)
            return ["context duplicate"]
        pending = Pending(X, DECISION._replace(action=action), DecisionTime(0, decided_at_ms))
        events = self.join.receive_context(event_id, pending, unmatched, deferred)
        return [self._describe(event) for event in events]

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
        happened = self.time(append_ms)
        before = self.join.ledger()
        given = Feedback(event_id, reward, action=action, part=part, is_final=final)
        events = self.join.receive_feedback(given, RECORD)
        return happened + self._compared(before) + [self._describe(event) for event in events]

    def show(self, event_id: str, append_ms: int) -> list[str]:
        happened = self.time(append_ms)
        before = self.join.ledger()
        events = self.join.receive_shown(event_id, RECORD)
        return happened + self._compared(before) + [self._describe(event) for event in events]

    def _compared(self, before: Ledger) -> list[str]:
        after = self.join.ledger()
        if after.conflicts > before.conflicts:
            return ["feedback conflict"]
        return ["feedback duplicate"] * (after.feedback_duplicates > before.feedback_duplicates)

    def time(self, now_ms: int) -> list[str]:
        return [self._describe(event) for event in self.join.pass_time(now_ms)]

    def _describe(self, event: Event) -> str:
        if isinstance(event, DroppedOrphan):
            return f"dropped {event.id}"
        if isinstance(event, Late):
            return f"late {event.feedback.id}"
        if isinstance(event, Excess):
            return f"excess {event.feedback.id} {event.feedback.part}"
        if isinstance(event, Mismatched):
            return f"mismatched {event.feedback.id} {event.feedback.action} for {event.action}"
        reward = self.join.assumed_reward if event.feedback is None else event.feedback.reward
        if event.outcome in (Outcome.UNMATCHED, Outcome.UNSHOWN):
            reward = None
        return f"{event.outcome} {event.id} {reward}"

    def run(self, script: str) -> list[str]:
        """Apply inputs such as `context a@0`, `unmatched a@0`, `deferred a@0`, `shown a@5`, `right 2 a@5`, `time@9`.

        The optional number after `context`, `unmatched` or `deferred` is the decided action (0 by default). The
        optional number after `right` or `wrong` is the `action` field of the feedback. `reward 2 a@5`, `part p 2 a@5`
        and `final p 2 a@5` are feedback with the reward 2, the last two with the part p.
        """
        happened: list[str] = []
        for line in script.split(","):
            what, at = line.strip().split("@")
            kind, *numbers, event_id = what.split(" ") if " " in what else (what, "")
            action = int(numbers[0]) if numbers and kind not in ("reward", "part", "final") else None
            if kind == "context":
                happened += self.context(event_id, int(at), action or 0)
            elif kind == "unmatched":
                happened += self.context(event_id, int(at), action or 0, unmatched=True)
            elif kind == "deferred":
                happened += self.context(event_id, int(at), action or 0, deferred=True)
            elif kind == "shown":
                happened += self.show(event_id, int(at))
            elif kind == "time":
                happened += self.time(int(at))
            elif kind in ("reward", "part", "final"):
                part = numbers[0] if len(numbers) > 1 else None
                happened += self.feedback(event_id, float(numbers[-1]), int(at), part=part, final=kind == "final")
            else:
                happened += self.feedback(event_id, int(kind == "right"), int(at), action)
        return happened


class Row(NamedTuple):
    """A sequence of inputs, the expected effects, and the expected ledger at the end."""

    claim: str
    script: str
    happens: list[str]
    ledger: Ledger
    rule: FeedbackRule = "first"


ROWS = [
    Row("unseen, context: decision is pending", "context a@0", [], Ledger(contexts=1, decided=1, pending=1)),
    Row("unseen, feedback: becomes an orphan", "right a@0", [], Ledger(feedback=1, orphans_waiting=1)),
    Row(
        "orphan, context: decided and matched immediately", "right a@0, context a@10", ["matched a 1"],
        Ledger(contexts=1, decided=1, feedback=1, matched=1),
    ),
    Row(
        "orphan, same feedback: duplicate", "right a@0, right a@5", ["feedback duplicate"],
        Ledger(feedback=2, feedback_duplicates=1, orphans_waiting=1),
    ),
    Row(
        "orphan, feedback with the other bit: conflict, and the first bit counts", "right a@0, wrong a@5, context a@10",
        ["feedback conflict", "matched a 1"],
        Ledger(contexts=1, decided=1, feedback=2, matched=1, feedback_duplicates=1, conflicts=1),
    ),
    Row("orphan, at its deadline: still waits", "right a@0, time@50", [], Ledger(feedback=1, orphans_waiting=1)),
    Row(
        "orphan, past its deadline: dropped", "right a@0, time@51", ["dropped a"],
        Ledger(feedback=1, orphans_dropped=1),
    ),
    Row(
        "orphan dropped, context: decision is pending", "right a@0, time@51, context a@51", ["dropped a"],
        Ledger(contexts=1, decided=1, pending=1, feedback=1, orphans_dropped=1),
    ),
    Row(
        "pending, context: duplicate, and the first decision counts", "context a@0, context a@90, time@101",
        ["context duplicate", "expired a None"],
        Ledger(contexts=2, decided=1, context_duplicates=1, expired=1),
    ),
    Row(
        "pending, feedback before the deadline: matched", "context a@0, wrong a@10", ["matched a 0"],
        Ledger(contexts=1, decided=1, feedback=1, matched=1),
    ),
    Row(
        "pending, feedback at the deadline: matched", "context a@7, right a@107", ["matched a 1"],
        Ledger(contexts=1, decided=1, feedback=1, matched=1),
    ),
    Row(
        "pending, feedback 1 ms past the deadline: decision expires, feedback is late", "context a@7, right a@108",
        ["expired a None", "late a"], Ledger(contexts=1, decided=1, feedback=1, expired=1, late=1),
    ),
    Row("pending, at its deadline: still waits", "context a@0, time@100", [], Ledger(contexts=1, decided=1, pending=1)),
    Row(
        "pending, past its deadline: expired", "context a@0, time@101", ["expired a None"],
        Ledger(contexts=1, decided=1, expired=1),
    ),
    Row(
        "pending, feedback for another id past the deadline: expired", "context a@0, right b@101", ["expired a None"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, orphans_waiting=1),
    ),
    Row(
        "matched, context: duplicate", "context a@0, right a@1, context a@2", ["matched a 1", "context duplicate"],
        Ledger(contexts=2, decided=1, context_duplicates=1, feedback=1, matched=1),
    ),
    Row(
        "matched, same feedback: duplicate", "context a@0, right a@1, right a@500",
        ["matched a 1", "feedback duplicate"],
        Ledger(contexts=1, decided=1, feedback=2, matched=1, feedback_duplicates=1),
    ),
    Row(
        "matched, feedback with the other bit: conflict", "context a@0, wrong a@1, right a@2",
        ["matched a 0", "feedback conflict"],
        Ledger(contexts=1, decided=1, feedback=2, matched=1, feedback_duplicates=1, conflicts=1),
    ),
    Row(
        "matched, in the last millisecond of retention: duplicate", "context a@0, right a@1, right a@1001",
        ["matched a 1", "feedback duplicate"],
        Ledger(contexts=1, decided=1, feedback=2, matched=1, feedback_duplicates=1),
    ),
    Row(
        "matched, after retention: forgotten", "context a@0, right a@1, right a@1002, context a@1003",
        ["matched a 1", "matched a 1"], Ledger(contexts=2, decided=2, feedback=2, matched=2),
    ),
    Row(
        "expired, context: duplicate", "context a@0, time@101, context a@102", ["expired a None", "context duplicate"],
        Ledger(contexts=2, decided=1, context_duplicates=1, expired=1),
    ),
    Row(
        "expired, feedback twice: late twice", "context a@0, time@101, right a@102, wrong a@103",
        ["expired a None", "late a", "late a"], Ledger(contexts=1, decided=1, feedback=2, expired=1, late=2),
    ),
    Row(
        "expired, in the last millisecond of retention: late", "context a@0, time@101, right a@1101",
        ["expired a None", "late a"], Ledger(contexts=1, decided=1, feedback=1, expired=1, late=1),
    ),
    Row(
        "expired, after retention: forgotten", "context a@0, time@101, right a@1102", ["expired a None"],
        Ledger(contexts=1, decided=1, feedback=1, expired=1, orphans_waiting=1),
    ),
    Row(
        "orphan for the decided action, context: matched", "right 0 a@0, context a@10", ["matched a 1"],
        Ledger(contexts=1, decided=1, feedback=1, matched=1),
    ),
    Row(
        "orphan for another action, context: orphan is rejected, decision stays pending",
        "right 2 a@0, context a@10, time@110, time@111", ["mismatched a 2 for 0", "expired a None"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, mismatched=1),
    ),
    Row(
        "orphan for another action rejected, feedback for the decided action: matched",
        "right 2 a@0, context a@10, right 0 a@20", ["mismatched a 2 for 0", "matched a 1"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, mismatched=1),
    ),
    Row(
        "orphan, feedback for another action: duplicate, and the first feedback counts",
        "right 0 a@0, right 2 a@5, context a@10", ["feedback duplicate", "matched a 1"],
        Ledger(contexts=1, decided=1, feedback=2, matched=1, feedback_duplicates=1),
    ),
    Row(
        "pending, feedback for the decided action: matched", "context a@0, wrong 0 a@10", ["matched a 0"],
        Ledger(contexts=1, decided=1, feedback=1, matched=1),
    ),
    Row(
        "pending, feedback for another action: feedback is rejected, decision stays pending",
        "context a@0, right 1 a@10, right 1 a@11, wrong a@100",
        ["mismatched a 1 for 0", "mismatched a 1 for 0", "matched a 0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, mismatched=2),
    ),
    Row(
        "matched, feedback for another action: rejected, not a duplicate", "context a@0, right a@1, wrong 1 a@2",
        ["matched a 1", "mismatched a 1 for 0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, mismatched=1),
    ),
    Row(
        "matched, feedback for the decided action: duplicate", "context a@0, right a@1, right 0 a@2",
        ["matched a 1", "feedback duplicate"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, feedback_duplicates=1),
    ),
    Row(
        "expired, feedback for another action: rejected, not late", "context a@0, time@101, right 1 a@102",
        ["expired a None", "mismatched a 1 for 0"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, mismatched=1),
    ),
    Row(
        "expired, feedback for the decided action: late", "context a@0, time@101, right 0 a@102",
        ["expired a None", "late a"], Ledger(contexts=1, decided=1, expired=1, feedback=1, late=1),
    ),
    Row(
        "unseen, unmatched context: settled immediately, never pending", "unmatched a@0, time@101",
        ["unmatched a None"], Ledger(contexts=1, decided=1, unmatched=1),
    ),
    Row(
        "orphan, unmatched context: feedback is ignored", "wrong a@0, unmatched a@10, right a@11",
        ["unmatched a None"], Ledger(contexts=1, decided=1, unmatched=1, feedback=2, feedback_unmatched=2),
    ),
    Row(
        "orphan for another action, unmatched context: orphan is ignored, not rejected",
        "right 2 a@0, unmatched a@10", ["unmatched a None"],
        Ledger(contexts=1, decided=1, unmatched=1, feedback=1, feedback_unmatched=1),
    ),
    Row(
        "unmatched, feedback for any action: ignored", "unmatched a@0, right a@1, wrong 2 a@2, right 0 a@3",
        ["unmatched a None"], Ledger(contexts=1, decided=1, unmatched=1, feedback=3, feedback_unmatched=3),
    ),
    Row(
        "unmatched, context: duplicate", "unmatched a@0, context a@1, unmatched a@2",
        ["unmatched a None", "context duplicate", "context duplicate"],
        Ledger(contexts=3, decided=1, context_duplicates=2, unmatched=1),
    ),
    Row(
        "unmatched, in the last millisecond of retention: ignored", "unmatched a@0, right a@1000", ["unmatched a None"],
        Ledger(contexts=1, decided=1, unmatched=1, feedback=1, feedback_unmatched=1),
    ),
    Row(
        "unmatched, after retention: forgotten", "unmatched a@0, right a@1001", ["unmatched a None"],
        Ledger(contexts=1, decided=1, unmatched=1, feedback=1, orphans_waiting=1),
    ),
    Row(
        "pending, unmatched context: duplicate, and the first decision counts", "context a@0, unmatched a@1, right a@2",
        ["context duplicate", "matched a 1"],
        Ledger(contexts=2, decided=1, context_duplicates=1, matched=1, feedback=1),
    ),
    Row(
        "deferred, never shown: settled when the activation window has passed, without an update",
        "deferred a@0, time@70, time@71", ["unshown a None"], Ledger(contexts=1, decided=1, unshown=1),
    ),
    Row(
        "deferred, shown at its deadline: pending, with a window that begins now",
        "deferred a@0, shown a@70, time@170, time@171", ["expired a None"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, shown=1),
    ),
    Row(
        "deferred, feedback: implies that it was shown", "deferred a@0, right a@5, shown a@6",
        ["matched a 1", "feedback duplicate"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, feedback_duplicates=1),
    ),
    Row(
        "deferred, feedback for another action: rejected, and the decision remains deferred",
        "deferred a@0, right 1 a@5, time@71", ["mismatched a 1 for 0", "unshown a None"],
        Ledger(contexts=1, decided=1, unshown=1, feedback=1, mismatched=1),
    ),
    Row(
        "deferred, context: duplicate, even if not deferred", "deferred a@0, context a@1, deferred a@2",
        ["context duplicate"] * 2, Ledger(contexts=3, decided=1, context_duplicates=2, deferred=1),
    ),
    Row(
        "shown, feedback at its deadline: matched", "deferred a@0, shown a@60, right a@160, shown a@161",
        ["matched a 1", "feedback duplicate"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, shown=1, feedback_duplicates=1),
    ),
    Row(
        "shown again: duplicate, and the window does not restart",
        "deferred a@0, shown a@10, shown a@20, time@111", ["feedback duplicate", "expired a None"],
        Ledger(contexts=1, decided=1, expired=1, feedback=2, shown=1, feedback_duplicates=1),
    ),
    Row(
        "shown while an earlier decision is pending: each window begins separately",
        "deferred a@0, context b@5, shown a@4, time@105, time@106", ["expired a None", "expired b None"],
        Ledger(contexts=2, decided=2, expired=2, feedback=1, shown=1),
    ),
    Row(
        "shown, feedback for another action: rejected", "deferred a@0, shown a@10, right 1 a@20, right 0 a@110",
        ["mismatched a 1 for 0", "matched a 1"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, shown=1, mismatched=1),
    ),
    Row(
        "pending, shown: duplicate, because the decision is not deferred", "context a@0, shown a@50, time@101",
        ["feedback duplicate", "expired a None"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, feedback_duplicates=1),
    ),
    Row(
        "expired, shown: duplicate", "context a@0, shown a@101", ["expired a None", "feedback duplicate"],
        Ledger(contexts=1, decided=1, expired=1, feedback=1, feedback_duplicates=1),
    ),
    Row(
        "unshown, shown or feedback: late, and not corrected", "deferred a@0, shown a@71, right a@72, right 1 a@73",
        ["unshown a None", "mismatched a 1 for 0"],
        Ledger(contexts=1, decided=1, unshown=1, feedback=3, late=2, mismatched=1),
    ),
    Row(
        "unshown, after retention: forgotten", "deferred a@0, time@71, shown a@1072", ["unshown a None"],
        Ledger(contexts=1, decided=1, unshown=1, feedback=1, orphans_waiting=1),
    ),
    Row(
        "unseen, shown: waits for its context, then is pending", "shown a@0, deferred a@10, time@110, time@111",
        ["expired a None"], Ledger(contexts=1, decided=1, expired=1, feedback=1, shown=1),
    ),
    Row(
        "shown orphan, context that is not deferred: the shown record is a duplicate", "shown a@0, context a@10",
        [], Ledger(contexts=1, decided=1, pending=1, feedback=1, feedback_duplicates=1),
    ),
    Row(
        "shown orphan, unmatched context: ignored", "shown a@0, unmatched a@10, shown a@11",
        ["unmatched a None"], Ledger(contexts=1, decided=1, unmatched=1, feedback=2, feedback_unmatched=2),
    ),
    Row(
        "shown orphan, shown: duplicate", "shown a@0, shown a@5, time@51", ["feedback duplicate", "dropped a"],
        Ledger(feedback=2, feedback_duplicates=1, orphans_dropped=1),
    ),
    Row(
        "shown orphan, feedback: becomes an orphan; the wait restarts", "shown a@0, wrong a@40, time@90, deferred a@91",
        ["matched a 0"], Ledger(contexts=1, decided=1, matched=1, feedback=2, shown=1),
    ),
    Row(
        "orphan, shown: duplicate, and the orphan still waits", "right a@0, shown a@5, deferred a@10",
        ["feedback duplicate", "matched a 1"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, feedback_duplicates=1),
    ),
    Row(
        "orphan for another action, deferred context: rejected, and the decision is deferred",
        "right 1 a@0, deferred a@10, shown a@20", ["mismatched a 1 for 0"],
        Ledger(contexts=1, decided=1, pending=1, feedback=2, mismatched=1, shown=1),
    ),
    Row(
        "stream time does not go back: feedback with an earlier append time is late",
        "context a@0, time@101, right a@50",
        ["expired a None", "late a"], Ledger(contexts=1, decided=1, feedback=1, expired=1, late=1),
    ),
    Row(
        "stream time does not go back: an orphan's deadline is computed from stream time",
        "time@100, right a@20, time@150, time@90, time@151", ["dropped a"], Ledger(feedback=1, orphans_dropped=1),
    ),
    Row(
        "several deadlines pass: the oldest decision expires first", "context a@0, context b@1, context c@2, time@102",
        ["expired a None", "expired b None"], Ledger(contexts=3, decided=3, expired=2, pending=1),
    ),
    Row(
        "max, pending, feedback: settled at the deadline with the highest reward",
        "context a@0, reward 1 a@10, reward 2 a@20, reward 1 a@30, reward 2 a@40, time@100, time@101",
        ["feedback duplicate", "feedback duplicate", "matched a 2.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=4, combined=1, feedback_duplicates=2), "max",
    ),
    Row(
        "max, pending, feedback: answered until the deadline", "context a@0, reward 1 a@10, context a@11, shown a@12",
        ["context duplicate", "feedback duplicate"],
        Ledger(
            contexts=2, decided=1, context_duplicates=1, pending=1, answered=1, feedback=2, feedback_duplicates=1
        ), "max",
    ),
    Row(
        "max, the highest reward of the range: settled at once",
        "context a@0, reward 1 a@10, reward 3 a@20, reward 3 a@30", ["matched a 3.0", "feedback duplicate"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, combined=1, feedback_duplicates=1), "max",
    ),
    Row(
        "max, final feedback: settled at once, and a higher reward afterwards is late",
        "context a@0, reward 2 a@10, final p 1 a@20, reward 2.5 a@30, reward 2 a@40",
        ["matched a 2.0", "late a", "feedback duplicate"],
        Ledger(contexts=1, decided=1, matched=1, feedback=4, combined=1, late=1, feedback_duplicates=1), "max",
    ),
    Row(
        "max, first feedback is final: settled at once", "context a@0, final p 1 a@20", ["matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=1), "max",
    ),
    Row(
        "max, answered, feedback for another action: rejected", "context a@0, reward 1 a@10, right 1 a@20, time@101",
        ["mismatched a 1 for 0", "matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, mismatched=1), "max",
    ),
    Row(
        "max, feedback before its context: all of it counts",
        "reward 1 a@0, reward 2 a@5, reward 2 a@6, context a@10, time@111", ["matched a 2.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, combined=1, feedback_duplicates=1), "max",
    ),
    Row(
        "max, the highest reward before its context: matched immediately", "reward 1 a@0, reward 3 a@5, context a@10",
        ["matched a 3.0"], Ledger(contexts=1, decided=1, matched=1, feedback=2, combined=1), "max",
    ),
    Row(
        "max, feedback for another action before its context: only that feedback is rejected",
        "right 2 a@0, reward 1 a@5, right 1 a@6, context a@10, time@111",
        ["mismatched a 2 for 0", "mismatched a 1 for 0", "matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=3, mismatched=2), "max",
    ),
    Row(
        "max, orphans past the deadline of the first: all are dropped", "reward 1 a@0, reward 2 a@40, time@51",
        ["dropped a", "dropped a"], Ledger(feedback=2, orphans_dropped=2), "max",
    ),
    Row(
        "max, orphans, unmatched context: all are ignored", "reward 1 a@0, reward 2 a@5, unmatched a@10, reward 3 a@11",
        ["unmatched a None"], Ledger(contexts=1, decided=1, unmatched=1, feedback=3, feedback_unmatched=3), "max",
    ),
    Row(
        "max, orphan, deferred context: answered, with a window from the decision",
        "reward 1 a@0, deferred a@10, time@110, time@111", ["matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=1), "max",
    ),
    Row(
        "max, deferred, feedback: implies that it was shown, and begins the window",
        "deferred a@0, reward 1 a@60, shown a@61, time@160, time@161", ["feedback duplicate", "matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, feedback_duplicates=1), "max",
    ),
    Row(
        "max, shown orphan, feedback: becomes an orphan", "shown a@0, reward 1 a@5, deferred a@10, time@111",
        ["matched a 1.0"], Ledger(contexts=1, decided=1, matched=1, feedback=2, shown=1), "max",
    ),
    Row(
        "max, expired or unshown, feedback: late",
        "context a@0, deferred b@0, reward 1 a@101, reward 2 a@102, reward 1 b@103",
        ["expired a None", "unshown b None", "late a", "late a"],
        Ledger(contexts=2, decided=2, expired=1, unshown=1, feedback=3, late=3), "max",
    ),
    Row(
        "sum, each part counts once",
        "context a@0, part p 1 a@10, part q 0.5 a@20, part p 1 a@30, part p 2 a@31, time@101",
        ["feedback duplicate", "feedback conflict", "matched a 1.5"],
        Ledger(contexts=1, decided=1, matched=1, feedback=4, combined=1, feedback_duplicates=2, conflicts=1), "sum",
    ),
    Row(
        "sum, the total is limited to the range, not the parts",
        "context a@0, part p 4 a@1, part q -2 a@2, final r -3 a@3",
        ["matched a 0.0"], Ledger(contexts=1, decided=1, matched=1, feedback=3, combined=2), "sum",
    ),
    Row(
        "sum, the highest reward of the range: not settled yet", "context a@0, part p 5 a@1, time@101",
        ["matched a 3.0"], Ledger(contexts=1, decided=1, matched=1, feedback=1), "sum",
    ),
    Row(
        "sum, final feedback with a known part: settled, and the part counts once",
        "context a@0, part p 1 a@1, final p 2 a@2", ["feedback conflict", "matched a 1.0"],
        Ledger(contexts=1, decided=1, matched=1, feedback=2, combined=1, conflicts=1), "sum",
    ),
    Row(
        "sum, a part beyond the limit: rejected",
        "context a@0, part p 1 a@1, part q 1 a@2, part r 0.5 a@3, part s 1 a@4, part p 1 a@5, time@101",
        ["excess a s", "feedback duplicate", "matched a 2.5"],
        Ledger(
            contexts=1, decided=1, matched=1, feedback=5, combined=2, feedback_excess=1, feedback_duplicates=1
        ), "sum",
    ),
    Row(
        "sum, parts after settlement: late", "context a@0, final p 1 a@1, part p 1 a@2, part q 1 a@3",
        ["matched a 1.0", "late a", "late a"], Ledger(contexts=1, decided=1, matched=1, feedback=3, late=2), "sum",
    ),
    Row(
        "sum, parts before the context: each part counts once",
        "part p 1 a@0, part q 1 a@1, part p 1 a@2, context a@3, final r 0.5 a@4", ["matched a 2.5"],
        Ledger(contexts=1, decided=1, matched=1, feedback=4, combined=2, feedback_duplicates=1), "sum",
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_join_follows_its_table(row: Row) -> None:
    driver = Driver(LIMITS, rule=row.rule)
    assert (driver.run(row.script), driver.join.ledger()) == (row.happens, row.ledger)
    assert driver.join.ledger().balances


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_oracle_agrees_with_the_table(row: Row) -> None:
    if "does not go back" in row.claim:
        return  # the oracle does not support decreasing append times
    oracle = JoinOracle(LIMITS, rule=row.rule, highest=3, parts_max=3)
    driver = Driver(LIMITS)
    driver.context, driver.feedback, driver.time = oracle.context, oracle.feedback, oracle.time  # type: ignore[method-assign]
    driver.show = oracle.show  # type: ignore[method-assign]
    assert (driver.run(row.script), oracle.ledger()) == (row.happens, row.ledger)


REACH = {
    State.UNSEEN: "time@1",
    State.ORPHAN: "right 0 a@1",
    State.PENDING: "context a@1",
    State.MATCHED: "context a@1, final p 1 a@1",
    State.EXPIRED: "context a@1, time@102",
    State.UNMATCHED: "unmatched a@1",
    State.SHOWN_ORPHAN: "shown a@1",
    State.DEFERRED: "deferred a@1",
    State.UNSHOWN: "deferred a@1, time@72",
    State.ANSWERED: "context a@1, part p 2 a@1, part q 0 a@1, part r 0 a@1",
}


GIVE = {
    Input.CONTEXT: "context a@20", Input.FEEDBACK: "wrong a@20", Input.MISMATCH: "wrong 1 a@20",
    Input.DEADLINE: "time@5000", Input.UNMATCHED: "unmatched a@20", Input.CONTEXT_MISMATCH: "context 1 a@20",
    Input.DEFERRED: "deferred a@20", Input.DEFERRED_MISMATCH: "deferred 1 a@20", Input.SHOWN: "shown a@20",
    Input.CONTEXT_PARTIAL: "context a@20", Input.PARTIAL: "reward 2.5 a@20", Input.REPEATED: "reward 1 a@20",
    Input.EXCESS: "part s 1 a@20",
}  # fmt: skip


def rule_of(state: State, happened: Input) -> FeedbackRule:
    """A rule under which the input can occur in the state."""
    if happened is Input.EXCESS:
        return "sum"
    combined = (Input.CONTEXT_PARTIAL, Input.PARTIAL, Input.REPEATED)
    return "max" if happened in combined or state is State.ANSWERED else "first"


@pytest.mark.parametrize(("state", "happened"), TRANSITIONS)
def test_each_transition_leads_to_the_state_in_the_table(state: State, happened: Input) -> None:
    driver = Driver(LIMITS, rule=rule_of(state, happened))
    driver.run(REACH[state])
    assert driver.join.state_of("a") is state
    driver.run("reward 3 a@20" if state is State.ANSWERED and happened is Input.FEEDBACK else GIVE[happened])
    assert driver.join.state_of("a") is TRANSITIONS[state, happened].after
    assert driver.join.ledger().balances


def test_overflow_of_pending_decisions_expires_the_oldest_and_counts_it() -> None:
    driver = Driver(JoinSettings(window_ms=100, pending_max=2))
    assert driver.run("context a@0, context b@1, context c@2, right a@3") == ["expired a None", "late a"]
    assert driver.join.ledger() == Ledger(
        contexts=3, decided=3, pending=2, expired=1, feedback=1, late=1, pending_evicted=1
    )


def test_overflow_settles_the_oldest_deferred_decision_as_unshown() -> None:
    driver = Driver(JoinSettings(pending_max=2))
    assert driver.run("deferred a@0, deferred b@1, context c@2") == ["unshown a None"]
    assert driver.join.ledger() == Ledger(contexts=3, decided=3, pending=1, deferred=1, unshown=1, deferred_evicted=1)


@pytest.mark.parametrize(
    ("script", "expired"), [("shown a@1, context b@2, context c@3", "a"), ("context b@1, shown a@2, context c@3", "b")]
)
def test_overflow_expires_the_decision_with_the_earliest_deadline(script: str, expired: str) -> None:
    driver = Driver(JoinSettings(pending_max=2))
    assert driver.run(f"deferred a@0, {script}") == [f"expired {expired} None"]
    assert driver.join.ledger().pending_evicted == 1


def test_unshown_decision_is_never_corrected() -> None:
    driver = Driver(LIMITS, negative=True, corrects=True)
    driver.run("deferred a@0, time@71")
    assert driver.join.receive_feedback(Feedback("a", 1), RECORD) == ()
    assert driver.join.retained["a"] == Retained(Outcome.UNSHOWN, None, 0)


def test_decision_that_matches_an_orphan_does_not_count_toward_the_pending_limit() -> None:
    driver = Driver(JoinSettings(window_ms=100, pending_max=1))
    assert driver.run("context a@0, right b@1, context b@1") == ["matched b 1"]
    assert driver.join.ledger() == Ledger(contexts=2, decided=2, pending=1, matched=1, feedback=1)


def test_overflow_of_orphans_drops_the_oldest_orphan_and_counts_it() -> None:
    driver = Driver(JoinSettings(orphan_window_ms=100, orphans_max=2))
    assert driver.run("right a@0, right b@0, right c@0, context a@1") == ["dropped a"]
    assert driver.join.ledger() == Ledger(
        contexts=1, decided=1, pending=1, feedback=3, orphans_waiting=2, orphans_dropped=1, orphans_evicted=1
    )


def test_overflow_of_settled_ids_forgets_the_oldest_id_and_counts_it() -> None:
    driver = Driver(JoinSettings(retained_max=1))
    driver.run("context a@0, right a@0, context b@0, right b@0, right a@0, right b@0")
    assert driver.join.ledger() == Ledger(
        contexts=2, decided=2, matched=2, feedback=4, feedback_duplicates=1, orphans_waiting=1, retained_evicted=1
    )


def test_every_decision_expires_immediately_if_all_limits_are_0() -> None:
    driver = Driver(JoinSettings(pending_max=0, orphans_max=0, retained_max=0))
    assert driver.run("context a@0, right b@0, context a@0") == ["expired a None", "dropped b", "expired a None"]
    assert driver.join.ledger() == Ledger(
        contexts=2, decided=2, expired=2, feedback=1, orphans_dropped=1,
        pending_evicted=2, orphans_evicted=1, retained_evicted=2,
    )  # fmt: skip


def test_negative_policy_assumes_reward_0_at_expiry() -> None:
    driver = Driver(LIMITS, negative=True)
    assert driver.run("context a@0, time@101") == ["expired a 0"]
    assert driver.join.retained["a"].reward == 0


@pytest.mark.parametrize("corrects", [True, False])
def test_expired_decision_is_kept_for_one_correction_if_corrections_are_enabled(corrects: bool) -> None:
    driver = Driver(LIMITS, negative=True, corrects=corrects)
    driver.run("context a@0, time@101")
    join = driver.join
    (first,) = join.receive_feedback(Feedback("a", 1), RECORD)
    (second,) = join.receive_feedback(Feedback("a", 1), RECORD)
    assert isinstance(first, Late)
    assert isinstance(second, Late)
    retained = first.retained
    assert (retained.outcome, retained.reward, retained.pending) == (
        Outcome.EXPIRED,
        0,
        Pending(X, DECISION, DecisionTime(0, 0)) if corrects else None,
    )
    assert second.retained.pending is None
    assert join.ledger().late == 2


def test_matched_decision_is_not_kept_for_a_correction() -> None:
    driver = Driver(LIMITS, negative=True, corrects=True)
    driver.run("context a@0, right a@1")
    assert driver.join.retained["a"].pending is None


@pytest.mark.parametrize(
    ("script", "due_ms"),
    [
        ("time@5", None),
        ("context a@7", 107),
        ("right a@7", 57),
        ("context a@7, right b@8", 58),
        ("right b@60, context a@7", 107),
        ("context a@7, right a@8", None),
        ("context a@7, context b@9, right a@9", 109),
        ("deferred a@7, context b@8", 77),
        ("deferred a@7, shown a@10", 110),
    ],
)
def test_next_deadline_is_the_earliest_of_all_deadlines(script: str, due_ms: int | None) -> None:
    driver = Driver(LIMITS)
    driver.run(script)
    assert driver.join.next_deadline_ms() == due_ms


def test_malformed_records_are_counted_separately_for_contexts_and_feedback() -> None:
    join = Join(LIMITS)
    join.count("contexts", "context_malformed")
    join.count("feedback", "feedback_malformed")
    join.count("feedback", "feedback_malformed")
    assert join.ledger() == Ledger(contexts=1, context_malformed=1, feedback=2, feedback_malformed=2)


def test_stored_counts_are_restored() -> None:
    driver = Driver(JoinSettings(orphans_max=0))
    driver.run("context a@0, right a@1, right b@1")
    other = Join(JoinSettings(orphans_max=0))
    other.restore_counts(driver.join.ledger())
    assert other.ledger() == driver.join.ledger()


IDS = st.sampled_from("abcdefg")
ACTIONS = st.integers(0, 1)
TIGHT = st.builds(
    JoinSettings,
    window_ms=st.integers(0, 30),
    activation_window_ms=st.none() | st.integers(0, 30),
    orphan_window_ms=st.integers(0, 30),
    retain_ms=st.integers(0, 60),
    pending_max=st.sampled_from([0, 1, 2, 3, 1_000]),
    orphans_max=st.sampled_from([0, 1, 2, 3, 1_000]),
    retained_max=st.sampled_from([0, 1, 2, 3, 1_000]),
)


class JoinMachine(RuleBasedStateMachine):
    """Compares the join with the oracle on random inputs. Between inputs, time can advance."""

    @initialize(limits=TIGHT, negative=st.booleans(), combined=st.sampled_from(["first", "max", "sum"]))
    def start(self, limits: JoinSettings, negative: bool, combined: FeedbackRule) -> None:
        self.driver = Driver(limits, negative=negative, rule=combined)
        self.oracle = JoinOracle(limits, 0 if negative else None, combined, highest=3, parts_max=3)
        self.now_ms = 0

    @rule(event_id=IDS, action=ACTIONS, unmatched=st.booleans(), deferred=st.booleans())
    def context(self, event_id: str, action: int, unmatched: bool, deferred: bool) -> None:
        reported = self.driver.context(event_id, self.now_ms, action, unmatched=unmatched, deferred=deferred)
        assert reported == self.oracle.context(event_id, self.now_ms, action, unmatched=unmatched, deferred=deferred)

    @rule(
        event_id=IDS,
        reward=st.sampled_from([0, 0.1, 0.2, 1, 3]),
        action=st.none() | ACTIONS,
        part=st.sampled_from("pqrs"),
        final=st.integers(0, 9).map(lambda drawn: drawn == 0),
    )
    def feedback(self, event_id: str, reward: float, action: int | None, part: str, final: bool) -> None:
        reported = self.driver.feedback(event_id, reward, self.now_ms, action, part, final=final)
        assert reported == self.oracle.feedback(event_id, reward, self.now_ms, action, part, final=final)

    @rule(event_id=IDS)
    def show(self, event_id: str) -> None:
        assert self.driver.show(event_id, self.now_ms) == self.oracle.show(event_id, self.now_ms)

    @rule(passed_ms=st.integers(1, 25))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(behind_ms=st.integers(0, 10))
    def feedback_is_read_to_the_end(self, behind_ms: int) -> None:
        at_ms = self.now_ms - behind_ms
        assert self.driver.time(at_ms) == self.oracle.time(at_ms)

    @invariant()
    def ledgers_are_equal(self) -> None:
        if not hasattr(self, "driver"):
            return
        join = self.driver.join
        assert join.ledger() == self.oracle.ledger()
        assert join.ledger().balances
        assert join.stream_ms == self.oracle.time_ms
        unsettled = [d for d in self.oracle.decisions if not d.outcome]
        assert list(join.pending) == [d.id for d in unsettled if not d.is_deferred and d.shown_at_ms is None]
        assert list(join.deferred) == [d.id for d in unsettled if d.is_deferred and d.shown_at_ms is None]
        assert sorted(join.shown) == sorted(d.id for d in unsettled if d.shown_at_ms is not None)
        assert list(join.orphans) == list(dict.fromkeys(orphan.id for orphan in self.oracle.orphans))
        assert join.answers.keys() == {d.id for d in unsettled if d.counted}
        remembered = sorted(
            (d for d in self.oracle.decisions if d.outcome and not d.forgotten), key=lambda d: d.settled_as
        )
        assert list(join.retained) == [d.id for d in remembered]


TestJoinMachine: Any = JoinMachine.TestCase
TestJoinMachine.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
