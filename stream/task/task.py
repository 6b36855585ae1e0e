"""A task's step, which is a pure function that applies records in order and returns the step's output.

A task applies the records from one partition of the contexts and feedback topics. It has its own join and either its
own model or a view of a shared model. It does not read a clock. Stream time is the largest append time of the applied
feedback records. The same records in the same order therefore produce the same state, bit for bit.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from stream.learners import Learner
from stream.parsing import shown
from stream.randomness.draws import Draws, Purpose
from stream.task.answers import PARTS_MAX, Combination
from stream.task.carry import Models, carries, no_models
from stream.task.join import DroppedOrphan, Event, Excess, Join, Late, Mismatched, Pending, Settled
from stream.task.models import Model, OwnModel, Recall, features_max
from stream.task.placement import count_misplaced
from stream.task.play import floored, is_matched, play_logged
from stream.task.settings import TaskSettings
from stream.task.stored_settings import READING
from stream.wire.classes import NewClassesError
from stream.wire.codec import (
    MalformedError,
    decode_context,
    decode_feedback,
    is_tick,
    tick_step,
    trace_of,
)
from stream.wire.dead_letters import (
    DEAD_LETTER_EXCESS,
    DEAD_LETTER_MALFORMED,
    DEAD_LETTER_MISMATCHED,
    DEAD_LETTER_ORPHAN,
)
from stream.wire.records import (
    Challenged,
    Context,
    Decision,
    DecisionTime,
    Example,
    Headers,
    Logged,
    Outcome,
    Prediction,
    Record,
    Shown,
    Target,
    make,
)
from stream.wire.updates import Entry


class DeadLetter(NamedTuple):
    """A record that cannot be used, with the reason for its rejection."""

    record: Record
    kind: str
    reason: str


class Effects(NamedTuple):
    """A step's output."""

    predictions: list[tuple[Prediction, int]]  # predictions with their contexts' offsets
    examples: list[tuple[Example, Headers]]  # examples with their contexts' trace headers
    dead_letters: list[DeadLetter]
    unknown: list[str]  # feature names, one for each category or word without an entry
    updates: Sequence[Entry] = ()  # entries for the shared model's log


def merge(
    contexts: deque[Record], feedback: deque[Record], *, contexts_lag: int, feedback_lag: int, records_max: int
) -> list[Record]:
    """Remove and return the next records, ordered by append time, topic (contexts first) and offset.

    If one buffer is empty, records in the other buffer wait only if the last fetch reported that the broker has more
    records for the empty buffer, as in Kafka Streams with `max.task.idle.ms=0`.

        contexts   10 ──── 30              returned: 10, 20, 25
        feedback      20 25 (lag 3)        30 waits: the broker has feedback that may be earlier
    """
    merged: list[Record] = []
    while contexts and feedback and len(merged) < records_max:
        source = contexts if contexts[0].append_ms <= feedback[0].append_ms else feedback
        merged.append(source.popleft())
    rest, other_lag = (contexts, feedback_lag) if contexts else (feedback, contexts_lag)
    if other_lag == 0:
        merged += [rest.popleft() for _ in range(min(len(rest), records_max - len(merged)))]
    return merged


_MALFORMED_CONTEXT = ("contexts", "context_malformed")
_MALFORMED_FEEDBACK = ("feedback", "feedback_malformed")


class StepFailedError(Exception):
    """Raised if an earlier step of this task failed. The task's state is undefined, and the task must be recovered."""


class Task:
    """One partition's state, with methods that apply records to it."""

    def __init__(self, settings: TaskSettings, contexts_topic: str) -> None:
        self.settings = settings = settings.resolved()
        is_shared = settings.model == "shared"
        self.model: Model = (
            Recall(settings.make_shareable_learner()) if is_shared else OwnModel(settings.make_learner())
        )
        self.join = Join(
            settings.join,
            assumed_reward=settings.assumed_reward,
            corrects=settings.late == "correct",
            combination=Combination(settings.feedback, settings.range_of_rewards),
        )
        self._contexts_topic = contexts_topic
        self._time = DecisionTime(0)  # time object shared by the current step's decisions
        self.undated: dict[int, DecisionTime] = {}  # times by step number, for steps whose ticks are not applied yet
        self._is_broken = False
        self._decoded: dict[int, Context] = {}  # contexts in the next step that `new_classes` has decoded, by offset
        self._draw_action = Draws(settings.seed, Purpose.ACTION)
        self._draw_update = Draws(settings.seed, Purpose.UPDATE)
        self._draw_log = Draws(settings.seed, Purpose.LOG)
        self._graded = settings.graded
        self._propensity_min = settings.learned_propensity_min
        self._prepare_reading(())

    def _prepare_reading(self, classes: Iterable[str]) -> None:
        """Prepare to read contexts with the settings, and with the names of open classes so far."""
        settings = self.settings
        self._log = settings.log_reading
        self._reading = settings.action_reading()
        self.classes = settings.make_classes()
        if settings.open_classes:
            self.classes.add(classes)
        self._members = settings.members
        self._is_randomised = settings.is_randomised
        self._decoded.clear()  # with the earlier settings
        self._decode_context = partial(
            decode_context,
            n_features=settings.context_features,
            log=self._log,
            encoder=settings.feature_encoder(),
            classes=self.classes,
            nnz_max=features_max(self.learner) if settings.model == "shared" else None,
            envelope=settings.envelope,
            retired=settings.retired_indices,
            actions=self._reading,
            needs_baseline=settings.needs_baseline,
        )

    @property
    def learner(self) -> Learner:
        """The model's learner."""
        return self.model.learner

    @property
    def version(self) -> int:
        """The model's version; see `Model`."""
        return self.model.version

    @property
    def alarms(self) -> int:
        """The number of drift alarms; 0 for a shared model."""
        return 0 if self.settings.model == "shared" else int(self.learner.alarms.sum())

    def change_settings(self, settings: TaskSettings, models: Models = no_models) -> None:
        """Change the settings. The next step first settles entries that are overdue or exceed the limits.

        Args:
            settings: the new settings, which `stream.task.carry.check_change` has checked. Pending decisions and the
                model carry over; see `stream.task.carry`.
            models: the models with which new challengers start.
        """
        before, settings = self.settings, settings.resolved()
        self.settings = settings
        if carries(before, settings):
            self.join.convert(self.model.change(before, settings, models).decision)
        if carries(before, settings) or any(getattr(before, name) != getattr(settings, name) for name in READING):
            self._prepare_reading(self.classes.names or ())
        if settings.champion != before.champion:
            self.model.promote(settings.decides)
        self.join.change_settings(
            settings.join, assumed_reward=settings.assumed_reward, corrects=settings.late == "correct"
        )

    def use_model(self, view: Model) -> None:
        """Use a shared model for new steps. Until this call, the task can only reapply earlier steps."""
        view.version = self.model.version
        self.model = view

    def new_classes(self, record: Record) -> Sequence[str]:
        """Return a context's new classes. A shared model's log must contain them before a step applies the context."""
        try:
            self._decoded[record.offset] = self._decode_context(record)
        except NewClassesError as error:
            return error.names
        except MalformedError:
            pass
        return ()

    def step(
        self,
        records: Sequence[Record],
        number: int,
        partitions: int = 1,
        adds: Iterable[str] = (),
        clock_shift_ms: int = 0,
        change: int = 0,
    ) -> Effects:
        """Apply records in the given order.

        Decision times are unknown until the step's tick is applied. However, if `dated_by` is "context", they are known
        at once.

        Args:
            records: contexts and feedback, as returned by `merge`.
            number: the step's number.
            partitions: the number of partitions in each input topic, used to detect misplaced records.
            adds: names of open classes to add to the shared model's log.
            clock_shift_ms: time to subtract from the append times of feedback, because the broker's clock was set.
            change: the offset in the control topic before which all requests are in force after an entry that is
                added to the shared model's log; 0 adds no entry.

        Raises:
            StepFailedError: an earlier step raised an error.
        """
        if self._is_broken:
            raise StepFailedError("an earlier step in this task raised an error. Recover the task from its topics")
        self._is_broken = True
        if clock_shift_ms:
            records = [self._shifted(record, clock_shift_ms) for record in records]
        with self.model.step() as entries:
            effects = self._step(records, number, partitions)
            for name in adds:
                self.model.add_class(name)
            if change:
                self.model.add_change(change)
        self._is_broken = False
        return effects._replace(updates=entries) if entries else effects

    def _shifted(self, record: Record, shift_ms: int) -> Record:
        is_context = record.topic == self._contexts_topic
        return record if is_context else record._replace(append_ms=record.append_ms - shift_ms)

    def _step(self, records: Sequence[Record], number: int, partitions: int) -> Effects:
        effects = Effects([], [], [], [])
        self._time = DecisionTime(number)
        self._act_on(self.join.settle_changed(), effects)
        keys: tuple[list[bytes], list[bytes]] = [], []  # the contexts' keys, and the feedback's keys
        for record in records:
            is_context = record.topic == self._contexts_topic
            if not is_context:
                if record.append_ms > self.join.stream_ms:
                    self._act_on(self.join.pass_time(record.append_ms), effects)
                if record.value is None and is_tick(record):
                    self._apply_tick(record)
                    continue
            key = record.key
            try:
                event_id = (self._apply_context if is_context else self._apply_feedback)(record, effects)
                key = event_id.encode() if key is None else key
            except MalformedError as error:
                self.join.count(*(_MALFORMED_CONTEXT if is_context else _MALFORMED_FEEDBACK))
                effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MALFORMED, str(error)))
            if partitions > 1 and key is not None:
                keys[not is_context].append(key)
        if effects.predictions and self.settings.dated_by == "tick":
            self.undated[number] = self._time
        if partitions > 1 and records:
            for name, its_keys in zip(("contexts_misplaced", "feedback_misplaced"), keys, strict=True):
                self.join.count(name, by=count_misplaced(its_keys, records[0].partition, partitions))
        return effects

    def _apply_tick(self, record: Record) -> None:
        """Set the decision time of the step that wrote a tick."""
        time = self.undated.pop(tick_step(record) or 0, None)
        if time is not None:
            self.join.date(time, record.append_ms)

    def _apply_context(self, record: Record, effects: Effects) -> str:
        """Apply a context and return its id."""
        context = self._decoded.pop(record.offset, None) or self._decode_context(record)
        event_id, join = context.id, self.join
        if join.has_decision(event_id):
            join.receive_duplicate(event_id)
        else:
            pending, has_reward = self._decide(context, record, effects)
            self._act_on(join.receive_context(event_id, pending, not has_reward, context.is_deferred), effects)
        return event_id

    def _decide(self, context: Context, record: Record, effects: Effects) -> tuple[Pending, bool]:
        """Make a decision for a context and publish the prediction.

        Returns the pending decision, and whether it can receive feedback. In a replay, a decision for a different
        action than the log's cannot receive feedback.
        """
        event_id, x, logged, unknown, eligible, _, baseline, actions = context
        effects.unknown.extend(unknown)
        u = self._draw_action(event_id)
        if baseline is not None:
            self.model.learner.set_baseline(baseline)
        decision, target, has_reward = self.model.decide(event_id, x, u, eligible), None, True
        if logged is not None:
            target = Target(decision.action, decision.propensity)
            decision, has_reward = self._play(context, logged, decision)
        if actions is not None and self._reading is not None and not self.learner.needs_offer(decision):
            x = self._reading.blocks.only(x, decision.action)
        if has_reward:
            self.model.observe(x, decision if logged is None else self._floored(decision))
        if self.settings.dated_by == "context":
            self._time = DecisionTime(self._time.step, record.append_ms)
        name = self.classes.name_of(decision.action) if actions is None else actions[decision.action]
        carried = decision.logged if self.settings.model == "shared" and decision.logged.size else None
        arm, trace = self.settings.arm_of(u), trace_of(record)
        challenged = self._challenged(decision) if self._members else None
        published = (
            event_id, decision, self.model.version, target, name, carried, arm, trace, challenged, baseline, actions,
        )  # fmt: skip
        prediction = make(Prediction, published)
        effects.predictions.append((prediction, record.offset))
        pending = make(Pending, (x, decision, self._time, trace, arm, None if actions is None else name))
        return pending, has_reward

    def _challenged(self, decision: Decision) -> Challenged:
        """Return the name of the learner that decided and the classes that the other learners chose."""
        champion, choices = self.learner.choices(decision)
        others = {name: choices[n] for n, name in enumerate(self._members) if n != champion}
        return Challenged(self._members[champion], others)

    def _play(self, context: Context, logged: Logged, own: Decision) -> tuple[Decision, bool]:
        """Return the decision to play according to the `play` setting, and whether the log has a reward for it."""
        is_match = self.settings.play == "match"
        propensity_min = self.settings.propensity_min if is_match else self._propensity_min
        if logged.propensity is not None and logged.propensity < propensity_min:
            self.join.count("propensities_floored")
        if is_match:
            return own, is_matched(own, logged, propensity_min, self._draw_log(context.id))
        return play_logged(self.learner, context.x, own, logged), True

    def _floored(self, decision: Decision) -> Decision:
        """See `floored`."""
        return floored(decision, self._propensity_min)

    def _apply_feedback(self, record: Record, effects: Effects) -> str:
        """Apply a feedback record or a shown record and return its id."""
        settings, needs_label = self.settings, self.learner.needs_label
        feedback = decode_feedback(
            record, settings.n_classes, needs_label=needs_label, graded=self._graded, rule=settings.feedback,
            envelope=settings.envelope, has_actions=self._reading is not None,
        )  # fmt: skip
        if isinstance(feedback, Shown):
            self._act_on(self.join.receive_shown(feedback.id, record), effects)
        else:
            self._act_on(self.join.receive_feedback(feedback, record), effects)
        return feedback.id

    def _act_on(self, events: Iterable[Event], effects: Effects) -> None:
        for event in events:
            if isinstance(event, Settled):
                self._learn(event, effects)
            elif isinstance(event, Late):
                self._correct(event)
            elif isinstance(event, Mismatched):
                self._refuse(event, effects)
            elif isinstance(event, Excess):
                self._refuse_part(event, effects)
            else:
                self._drop(event, effects)

    def _learn(self, settled: Settled, effects: Effects) -> None:
        """Update the model from a settled decision and publish the example."""
        event_id, pending, outcome, feedback, record = settled
        decision = pending.decision
        delay_ms, label, drift = None, None, None
        reward = self.join.assumed_reward if outcome is Outcome.EXPIRED else None
        if feedback is not None and record is not None:
            reward, label = feedback.reward, feedback.label
            decided_ms = pending.time.ms  # None if the feedback was appended before the step's tick
            delay_ms = 0 if decided_ms is None else max(0, record.append_ms - decided_ms)
        if reward is not None and decision.can_teach:
            learned = decision if self._log is None else self._floored(decision)
            share = reward if self._graded is None else self._graded.share(reward)
            drift = self.model.settle(pending.x, learned, share, self._update_draw(event_id), label)
        example = Example(
            event_id, outcome, decision.action, decision.known_propensity, reward, delay_ms, self.join.stream_ms,
            None if record is None or record.offset < 0 else record.offset, drift, pending.arm, pending.class_name,
        )  # fmt: skip
        effects.examples.append((example, pending.trace))

    def _correct(self, late: Late) -> None:
        """Replace a learned or assumed reward with a later reward, if the learner can reverse the first update."""
        feedback, (_, learned, _, pending) = late
        if pending is None or learned is None or not pending.decision.can_teach:
            return
        reward = feedback.reward
        if self._graded is not None:
            learned, reward = self._graded.share(learned), self._graded.share(reward)
        elif learned not in self.learner.reversible_rewards:
            return
        v = self._update_draw(feedback.id)  # the same draw as in the first update
        self.model.correct(pending.x, self._floored(pending.decision), learned, reward, v)

    def _refuse(self, mismatched: Mismatched, effects: Effects) -> None:
        feedback, record, action = mismatched
        reason = (
            f"feedback for {feedback.id!r}: expected the decided action {shown(action)}; got {shown(feedback.action)}"
        )
        effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_MISMATCHED, reason))

    def _refuse_part(self, excess: Excess, effects: Effects) -> None:
        feedback, record = excess
        reason = (
            f"feedback for {feedback.id!r}: expected at most {PARTS_MAX} parts; got part {feedback.part!r} as well. "
            "Combine rewards before sending them"
        )
        effects.dead_letters.append(DeadLetter(record, DEAD_LETTER_EXCESS, reason))

    def _update_draw(self, event_id: str) -> float:
        return self._draw_update(event_id) if self._is_randomised else 0.0

    def _drop(self, dropped: DroppedOrphan, effects: Effects) -> None:
        waited_ms, limits = self.join.stream_ms - dropped.orphan.since_ms, self.settings.join
        reason = f"feedback for {dropped.id!r}: expected its context within {limits.orphan_window_ms} ms; got none"
        if waited_ms <= limits.orphan_window_ms:
            reason = f"feedback for {dropped.id!r}: the limit of {limits.orphans_max} orphans was exceeded"
        effects.dead_letters.append(DeadLetter(dropped.orphan.record, DEAD_LETTER_ORPHAN, reason))
