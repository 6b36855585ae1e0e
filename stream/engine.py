"""The pure step of a task: records, in the order in which they are applied, to decisions, updates and effects.

A task is partition n of contexts and of feedback, with its own learner and its own join. It reads no clock: what time
it is comes with the records and with the step, so that the same steps give the same state, bit for bit.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from stream.codec import (
    DEAD_LETTER_MALFORMED,
    DEAD_LETTER_ORPHAN,
    MalformedError,
    decode_context,
    decode_feedback,
)
from stream.draws import Draws, Purpose
from stream.events import Example, Features, Feedback, Outcome, Prediction
from stream.join import Action, DroppedOrphan, Input, Join, JoinSettings, Pending, Retained, Settled
from stream.learners import Learner, ParameterError, check_parameters, create
from stream.records import Record

OnExpiry = Literal["drop", "negative"]
LatePolicy = Literal["ignore", "correct"]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """All that a task's state depends on beside its inputs."""

    learner: str
    n_classes: int
    n_features: int
    parameters: dict[str, Any] = field(default_factory=dict)  # those that are given, or all
    seed: int = 0
    join: JoinSettings = field(default_factory=JoinSettings)
    on_expiry: OnExpiry = "drop"  # what an expired decision teaches: nothing, or that it was wrong
    late: LatePolicy = "ignore"  # what late feedback does to what was assumed

    def resolved(self) -> "TaskSettings":
        """The same with all the learner's parameters: those that are not given at their defaults of today.

        Raises:
            ParameterError: an unknown learner or parameter, or a value out of range.
        """
        return replace(
            self, parameters=check_parameters(self.learner, self.parameters, correctable=self.late == "correct")
        )

    def make_learner(self) -> Learner:
        """A fresh learner; settings that it cannot work with are refused.

        Raises:
            ParameterError: an unknown learner or parameter, or a policy that this learner cannot follow.
        """
        parameters = self.resolved().parameters
        learner = create(self.learner, self.n_classes, self.n_features, **parameters)
        if learner.needs_label and self.on_expiry == "negative":
            raise ParameterError(
                f"{self.learner} learns from labels, and an expired decision has none; use --on-expiry drop"
            )
        if self.late == "correct" and self.on_expiry != "negative":
            raise ParameterError("late policy correct takes back an assumed 0; it needs --on-expiry negative")
        if self.late == "correct" and not learner.retractable:
            raise ParameterError(
                f"late policy correct needs a learner whose update can be taken back exactly; {self.learner} has none"
            )
        return learner

    def warm_up(self) -> None:
        """Compile the learner's kernels, or load them, so that its first event does not wait for that."""
        learner = self.make_learner()
        x = Features(np.zeros(1, dtype=np.int32), np.ones(1))
        decision = learner.predict(x, 0.5)
        learner.observe(x, decision)
        learner.update(x, decision, 1, 0.5, 0)


class DeadLetter(NamedTuple):
    """A record that leads no further, and why."""

    record: Record
    kind: str
    reason: str


class Effects(NamedTuple):
    """What a step is to publish."""

    predictions: list[tuple[Prediction, int]]  # with the offset of the context
    examples: list[tuple[Example, int | None]]  # with the offset of the feedback
    dead_letters: list[DeadLetter]


def merge(
    contexts: deque[Record],
    feedback: deque[Record],
    *,
    contexts_ended: bool,
    feedback_ended: bool,
    records_max: int,
) -> list[Record]:
    """Take the records that are next in the order of append time, contexts before feedback, offset.

    A record is next only when the other input has a later one waiting, or is known to be read to its end: otherwise
    an earlier one could still come.

        contexts   10 ──── 30              taken: 10, 20, 25
        feedback      20 25                30 waits: feedback of time 28 may be on its way
    """
    merged: list[Record] = []
    while len(merged) < records_max:
        if contexts and feedback:
            source = contexts if contexts[0].append_ms <= feedback[0].append_ms else feedback
        elif contexts and feedback_ended:
            source = contexts
        elif feedback and contexts_ended:
            source = feedback
        else:
            break
        merged.append(source.popleft())
    return merged


class Task:
    """The state of one partition, and what each record does to it."""

    def __init__(self, settings: TaskSettings, contexts_topic: str) -> None:
        self.settings = settings = settings.resolved()
        self.learner = settings.make_learner()
        self.join = Join(
            settings.join, assumes_negative=settings.on_expiry == "negative", corrects=settings.late == "correct"
        )
        self.updates = 0  # updates that changed the model: its version
        self.decided_at_ms = 0  # of the latest decision; the next is not dated before it, as the join's order needs
        self._contexts_topic = contexts_topic
        self._draw_action = Draws(settings.seed, Purpose.ACTION)
        self._draw_update = Draws(settings.seed, Purpose.UPDATE)

    def step(self, records: Iterable[Record], now_ms: int, feedback_end_ms: int) -> Effects:
        """Apply records in their order.

        Args:
            records: contexts and feedback, as `merge` gave them.
            now_ms: the broker's time, as far as known, before the step; decisions are made at this time or later.
            feedback_end_ms: the broker's time when the feedback was found read to its end, after these records; -1
                when it was not.
        """
        effects = Effects([], [], [])
        for record in records:
            if record.topic == self._contexts_topic:
                self._apply_context(record, now_ms, effects)
            else:
                self._pass_time(record.append_ms, effects)
                self._apply_feedback(record, effects)
        self._pass_time(feedback_end_ms, effects)
        return effects

    def _apply_context(self, record: Record, now_ms: int, effects: Effects) -> None:
        try:
            context = decode_context(record, self.settings.n_features)
        except MalformedError as error:
            self.join.receive_malformed(Input.CONTEXT)
            effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MALFORMED, str(error)))
            return
        event_id, x = context
        if self.join.receive_context(event_id) is Action.IGNORE_CONTEXT:
            return
        decision = self.learner.predict(x, self._draw_action(event_id))
        self.learner.observe(x, decision)
        self.decided_at_ms = decided_at_ms = max(self.decided_at_ms, now_ms, record.append_ms, self.join.watermark_ms)
        effects.predictions.append((Prediction(event_id, decision, decided_at_ms, self.updates), record.offset))
        settled = self.join.hold(event_id, Pending(x, decision, decided_at_ms))
        if settled is not None:
            self._learn(settled, effects)

    def _apply_feedback(self, record: Record, effects: Effects) -> None:
        try:
            feedback = decode_feedback(record, self.settings.n_classes, needs_label=self.learner.needs_label)
        except MalformedError as error:
            self.join.receive_malformed(Input.FEEDBACK)
            effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MALFORMED, str(error)))
            return
        result = self.join.receive_feedback(feedback, record)
        if result is None:
            return
        if isinstance(result, Settled):
            self._learn(result, effects)
        elif isinstance(result, DroppedOrphan):
            self._drop(result, effects)
        else:
            self._correct(feedback, result)

    def _pass_time(self, watermark_ms: int, effects: Effects) -> None:
        if watermark_ms > self.join.watermark_ms:
            for gone in self.join.pass_time(watermark_ms):
                if isinstance(gone, Settled):
                    self._learn(gone, effects)
                else:
                    self._drop(gone, effects)

    def _learn(self, settled: Settled, effects: Effects) -> None:
        """Update from a settled decision, and publish the example."""
        event_id, pending, outcome, feedback, record = settled
        decision = pending.decision
        delay_ms, offset, label = None, None, None
        reward = self.join.assumed_reward
        if feedback is not None and record is not None:
            reward, label = feedback.reward, feedback.label
            delay_ms, offset = record.append_ms - pending.decided_at_ms, record.offset
        if reward is not None:
            self.updates += self.learner.update(pending.x, decision, reward, self._update_draw(event_id), label)
        example = Example(
            event_id, outcome, decision.action, decision.propensity, reward, delay_ms, self.join.watermark_ms
        )
        effects.examples.append((example, offset))

    def _correct(self, feedback: Feedback, retained: Retained) -> None:
        """Replace the reward that was assumed at expiry by the real one."""
        pending = retained.pending
        if pending is not None and retained.outcome is Outcome.EXPIRED and retained.reward is not None:
            v = self._update_draw(feedback.id)  # the one that the assumed update was made with
            self.updates += self.learner.retract(pending.x, pending.decision, retained.reward, feedback.reward, v)

    def _update_draw(self, event_id: str) -> float:
        return self._draw_update(event_id) if self.learner.randomised_update else 0.0

    def _drop(self, dropped: DroppedOrphan, effects: Effects) -> None:
        waited_ms = self.join.watermark_ms - dropped.orphan.kept_at_ms
        reason = f"feedback for {dropped.id!r}: expected its context within {self.settings.join.orphan_ms} ms; got none"
        if waited_ms <= self.settings.join.orphan_ms:
            reason = f"feedback for {dropped.id!r}: more than {self.settings.join.orphans_max} wait for their contexts"
        effects.dead_letters.append(DeadLetter(dropped.orphan.record, DEAD_LETTER_ORPHAN, reason))
