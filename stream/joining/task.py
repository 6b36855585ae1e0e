"""The pure step of a task: records, in the order in which they are applied, to decisions, updates and effects.

A task is partition n of contexts and of feedback, with its own learner and its own join. It reads no clock: what time
it is comes with the records and with the step, so that the same steps give the same state, bit for bit.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from stream.joining.decoding import decode_contexts
from stream.joining.join import (
    Aside,
    DroppedOrphan,
    Event,
    Input,
    Join,
    Late,
    Mismatched,
    Pending,
    Settled,
)
from stream.joining.placement import count_misplaced
from stream.joining.play import Played, play_logged, play_match
from stream.joining.task_settings import TaskSettings
from stream.learners import Learner
from stream.learners.base import KernelLearner
from stream.randomness.draws import Draws, Purpose
from stream.sharing.view import Recall, View, room_error
from stream.wire.codec import FEEDBACK_RULES, FEEDBACK_RULES_1, MalformedError, decode_feedback
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED, DEAD_LETTER_MISMATCHED, DEAD_LETTER_ORPHAN
from stream.wire.events import (
    DRIFT_OF_ALL,
    Context,
    Decision,
    Drift,
    Example,
    Features,
    FloatArray,
    Outcome,
    Prediction,
)
from stream.wire.records import Record, make
from stream.wire.updates import Entry


class Reading(NamedTuple):
    """How the records of a step are read. The journal tells it of each step, so that it can be applied again."""

    rules: int = FEEDBACK_RULES  # see `decode_feedback`
    partitions: int = 1  # of the inputs: by this number a key belongs to a partition


READING = Reading()
"""That of the present version, with one partition."""

READING_1 = Reading(FEEDBACK_RULES_1)
"""That of Onebit 0.1, which did not look at actions or at where a record stands."""


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
    updates: Sequence[Entry] = ()  # for the log of a shared model


def merge(
    contexts: deque[Record],
    feedback: deque[Record],
    *,
    contexts_ended: Callable[[], bool],
    feedback_ended: Callable[[], bool],
    records_max: int,
) -> list[Record]:
    """Take the records that are next in the order of append time, contexts before feedback, offset.

    A record is next only when the other input has a later one waiting, or is known to be read to its end: otherwise
    an earlier one could still come. That is asked once, and only where it matters.

        contexts   10 ──── 30              taken: 10, 20, 25
        feedback      20 25                30 waits: feedback of time 28 may be on its way
    """
    merged: list[Record] = []
    while contexts and feedback and len(merged) < records_max:
        source = contexts if contexts[0].append_ms <= feedback[0].append_ms else feedback
        merged.append(source.popleft())
    rest, other_ended = (contexts, feedback_ended) if contexts else (feedback, contexts_ended)
    count = min(len(rest), records_max - len(merged))
    if count > 0 and other_ended():
        merged += [rest.popleft() for _ in range(count)]
    return merged


class Task:
    """The state of one partition, and what each record does to it."""

    def __init__(self, settings: TaskSettings, contexts_topic: str) -> None:
        self.settings = settings = settings.resolved()
        self.learner: Learner = settings.make_learner()
        self.view: View | Recall | None = None  # of a shared model; None: the model is the task's own
        if settings.model == "shared":
            assert isinstance(self.learner, KernelLearner)
            self.view = Recall(self.learner)
        self.join = Join(
            settings.join, assumes_negative=settings.on_expiry == "negative", corrects=settings.late == "correct"
        )
        self.updates = 0  # updates that changed the model; of a shared one its version at the last step
        self.decided_at_ms = 0  # of the latest decision; the next is not dated before it, as the join's order needs
        self._contexts_topic = contexts_topic
        self._draw_action = Draws(settings.seed, Purpose.ACTION)
        self._draw_update = Draws(settings.seed, Purpose.UPDATE)
        self._draw_log = Draws(settings.seed, Purpose.LOG)
        self._log = settings.log_reading
        self._encoder = settings.feature_encoder()
        self._propensity_min = settings.learned_propensity_min

    def change_settings(self, settings: TaskSettings) -> None:
        """Wait and forget by other settings from the next step on.

        That step begins with what these settle at once: what is overdue by them, and what is beyond their limits.

        Args:
            settings: the same learner, sizes, parameters, seed and play; another window, other limits or policies.
        """
        self.settings = settings = settings.resolved()
        self.join.change_settings(
            settings.join, assumes_negative=settings.on_expiry == "negative", corrects=settings.late == "correct"
        )

    def see(self, view: View) -> None:
        """Decide on a shared model from the next step on; until then steps can only be applied again."""
        self.view = view
        self.learner = view.learner

    @property
    def alarms(self) -> int:
        """How often drift has reset the model, or a class of it; of a shared one the log alone tells."""
        alarms = self.learner.alarms
        return int(alarms.sum()) if alarms.size and self.view is None else 0

    def step(self, records: Sequence[Record], now_ms: int, feedback_end_ms: int, reading: Reading = READING) -> Effects:
        """Apply records in their order.

        Args:
            records: contexts and feedback, as `merge` gave them.
            now_ms: the broker's time, as far as known, before the step; decisions are made at this time or later.
            feedback_end_ms: the broker's time when the feedback was found read to its end, after these records; -1
                when it was not.
            reading: how they are read.
        """
        if self.view is None:
            return self._step(records, now_ms, feedback_end_ms, reading)
        with self.view.step() as entries:
            self.updates = self.view.version
            effects = self._step(records, now_ms, feedback_end_ms, reading)
        return effects._replace(updates=entries)

    def _step(self, records: Sequence[Record], now_ms: int, feedback_end_ms: int, reading: Reading) -> Effects:
        effects = Effects([], [], [])
        self._act_on(self.join.settle_changed(), effects)
        counts_places = reading.partitions > 1
        places: tuple[list[bytes], list[bytes]] = [], []  # keys of contexts and of feedback
        self.join.keeps_actions = reading.rules != FEEDBACK_RULES_1
        partition = 0
        of_contexts = [record for record in records if record.topic == self._contexts_topic]
        contexts = decode_contexts(of_contexts, self.settings.n_features, self._log, self._encoder)
        for record in records:
            is_context = record.topic == self._contexts_topic
            if is_context:
                event_id = self._apply_context(record, next(contexts), now_ms, effects)
            else:
                self._pass_time(record.append_ms, effects)
                event_id = self._apply_feedback(record, reading.rules, effects)
            if counts_places:
                partition = record.partition
                key = record.key if event_id is None or record.key is not None else event_id.encode()
                if key is not None:
                    places[not is_context].append(key)
        if counts_places:
            misplaced = [count_misplaced(keys, partition, reading.partitions) for keys in places]
            self.join.count_misplaced(contexts=misplaced[0], feedback=misplaced[1])
        self._pass_time(feedback_end_ms, effects)
        return effects

    def _apply_context(
        self, record: Record, context: Context | MalformedError, now_ms: int, effects: Effects
    ) -> str | None:
        """Apply a context; its id, if it can be read."""
        if self.view is not None and isinstance(context, Context):
            context = room_error(self.view.learner, context.x) or context
        if isinstance(context, MalformedError):
            self.join.receive_malformed(Input.CONTEXT)
            effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MALFORMED, str(context)))
            return None

        event_id = context.id
        events = self.join.receive_context(event_id, partial(self._answer, context, record, now_ms, effects))
        if events:
            self._act_on(events, effects)
        return event_id

    def _answer(self, context: Context, record: Record, now_ms: int, effects: Effects) -> Pending | Aside:
        """Decide on a context, and publish the prediction."""
        event_id, x, logged = context
        decision, target, counts = self._decide(event_id, x), None, True
        if logged is not None:
            decision, target, counts, is_floored = self._play(context, decision)
            if is_floored:
                self.join.count_floored()
        if counts:
            observer = self.learner if self.view is None else self.view
            observer.observe(x, decision if logged is None else self._taught(decision))
        decided_at_ms = max(self.decided_at_ms, now_ms, record.append_ms, self.join.watermark_ms)
        self.decided_at_ms = decided_at_ms
        names = self.settings.class_names
        name = None if names is None else names[decision.action]
        carried = decision.logged if self.view is not None and decision.logged.size else None
        prediction = make(Prediction, (event_id, decision, decided_at_ms, self.updates, target, name, carried))
        effects.predictions.append((prediction, record.offset))
        pending = make(Pending, (x, decision, decided_at_ms))
        return pending if counts else Aside(pending)

    def _decide(self, event_id: str, x: Features) -> Decision:
        if isinstance(self.view, Recall):
            return self.view.decision(event_id)
        return self.learner.predict(x, self._draw_action(event_id))

    def _play(self, context: Context, own: Decision) -> Played:
        """What becomes of a decision where a log has one."""
        assert context.logged is not None
        if self.settings.play == "logged":
            return play_logged(self.learner, context.x, own, context.logged, self._propensity_min)
        return play_match(own, context.logged, self.settings.propensity_min, self._draw_log(context.id))

    def _taught(self, decision: Decision) -> Decision:
        """A decision as the learner gets it: one that weighs by propensities gets none below the least.

        The others ask for none; where a log does not say, they get 1.
        """
        propensity = decision.propensity
        if propensity >= self._propensity_min:
            return decision
        return decision._replace(propensity=self._propensity_min if propensity < self._propensity_min else 1.0)

    def _apply_feedback(self, record: Record, rules: int, effects: Effects) -> str | None:
        """Apply a feedback; its id, if it can be read."""
        try:
            feedback = decode_feedback(
                record, self.settings.n_classes, needs_label=self.learner.needs_label, rules=rules
            )
        except MalformedError as error:
            self.join.receive_malformed(Input.FEEDBACK)
            effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MALFORMED, str(error)))
            return None
        self._act_on(self.join.receive_feedback(feedback, record), effects)
        return feedback.id

    def _pass_time(self, watermark_ms: int, effects: Effects) -> None:
        if watermark_ms > self.join.watermark_ms:
            events = self.join.pass_time(watermark_ms)
            if events:
                self._act_on(events, effects)

    def _act_on(self, events: Iterable[Event], effects: Effects) -> None:
        for event in events:
            if isinstance(event, Settled):
                self._learn(event, effects)
            elif isinstance(event, Late):
                self._correct(event)
            elif isinstance(event, Mismatched):
                self._refuse(event, effects)
            else:
                self._drop(event, effects)

    def _learn(self, settled: Settled, effects: Effects) -> None:
        """Update from a settled decision, and publish the example."""
        event_id, pending, outcome, feedback, record = settled
        decision = pending.decision
        delay_ms, label, drift = None, None, None
        reward = None if outcome is Outcome.UNMATCHED else self.join.assumed_reward
        if feedback is not None and record is not None:
            reward, label = feedback.reward, feedback.label
            delay_ms = record.append_ms - pending.decided_at_ms
        if reward is not None:
            learner, v = self.learner, self._update_draw(event_id)
            taught = decision if self._log is None else self._taught(decision)
            if self.view is None:
                before = learner.alarms.tobytes()
                self.updates += learner.update(pending.x, taught, reward, v, label)
                if before and before != learner.alarms.tobytes():
                    drift = _gone_off(before, learner.alarms)
            else:
                self.view.settle(pending.x, taught, reward, v, label)
        settled_at_ms = self.join.watermark_ms
        example = make(
            Example, (event_id, outcome, decision.action, decision.propensity, reward, delay_ms, settled_at_ms, drift)
        )
        effects.examples.append((example, None if record is None else record.offset))

    def _correct(self, late: Late) -> None:
        """Replace the reward that was assumed at expiry by the real one."""
        feedback, (outcome, assumed, _, pending, _) = late
        if pending is None or self.settings.late == "ignore":  # it may have expired while corrections were asked for
            return
        if outcome is Outcome.EXPIRED and assumed is not None:
            v = self._update_draw(feedback.id)  # the one that the assumed update was made with
            decision = self._taught(pending.decision)
            if self.view is None:
                self.updates += self.learner.retract(pending.x, decision, assumed, feedback.reward, v)
            else:
                self.view.correct(pending.x, decision, assumed, feedback.reward, v)

    def _refuse(self, mismatched: Mismatched, effects: Effects) -> None:
        feedback, record, action = mismatched
        reason = f"feedback for {feedback.id!r}: expected action {action}, as it was decided; got {feedback.action}"
        effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MISMATCHED, reason))

    def _update_draw(self, event_id: str) -> float:
        return self._draw_update(event_id) if self.learner.randomised_update else 0.0

    def _drop(self, dropped: DroppedOrphan, effects: Effects) -> None:
        waited_ms = self.join.watermark_ms - dropped.orphan.kept_at_ms
        reason = f"feedback for {dropped.id!r}: expected its context within {self.settings.join.orphan_ms} ms; got none"
        if waited_ms <= self.settings.join.orphan_ms:
            reason = f"feedback for {dropped.id!r}: more than {self.settings.join.orphans_max} wait for their contexts"
        effects.dead_letters.append(DeadLetter(dropped.orphan.record, DEAD_LETTER_ORPHAN, reason))


def _gone_off(before: bytes, alarms: FloatArray) -> Drift:
    """The detector of drift that an update has set off, see `Learner.alarms`; it is one at most.

    Args:
        before: the bytes of the alarms before the update. To keep and compare them costs less than to read numbers.
        alarms: those that differ from them.
    """
    detector = int(np.flatnonzero(alarms > np.frombuffer(before))[0])
    return detector if detector < alarms.size - 1 else DRIFT_OF_ALL
