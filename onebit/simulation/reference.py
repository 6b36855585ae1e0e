"""Reference learners, which process the expected decisions and outcomes from the audit's oracle, in order.

A reference collects its changes to the model as entries of a log. If a task has its own model, its reference applies
the entries at once and must make the same decisions as the task. If the model is shared, the task must write the same
entries to the log, and `shared_model` checks the decisions.
"""

from math import nan

from onebit.simulation.outside import label_of
from stream.learners import KernelLearner, Learner
from stream.randomness.draws import Purpose, uniform
from stream.recovery.moving import UNSETTLED
from stream.recovery.state import Snapshot
from stream.recovery.steps import JournalStep
from stream.task.carry import Carry, Stage, carries
from stream.task.play import floored
from stream.task.settings import TaskSettings
from stream.verifying.oracle import AuditedEvent, Corrected, Decided, SettingsChanged
from stream.wire.records import Decision, Example, Features, Logged, Outcome, Target
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    NO_BIT,
    NO_LABEL,
    SETTLED,
    Entry,
    entry_without_decision,
)

WEIGHING = ("banditron", "soba-diag")
"""The learners in the simulation that use the propensity to weight a bit."""


def can_play(task: TaskSettings, logged: Logged | None) -> bool:
    """Return whether a context has the logged fields that the task needs."""
    if task.play == "own" or logged is None:
        return task.play == "own"
    if task.play == "match" and task.propensity_min == 0.0 and logged.propensity is not None:
        return logged.propensity == 1 / task.n_classes  # the log must be uniform
    return logged.propensity is not None or (task.play == "logged" and task.learner not in WEIGHING)


class Reference:
    """A learner that must make the same decisions or write the same entries as the task."""

    def __init__(self, task: TaskSettings, opening: Snapshot | None = None) -> None:
        """Begin with an untrained learner or, if the task was moved, with its opening."""
        self.task = task
        self.learner = task.make_shareable_learner()
        self.updates = 0
        self.entries: list[Entry] = []
        self._open: dict[str, tuple[Features, Decision]] = {}  # also settled decisions
        self._settled: set[str] = set()
        if opening is not None:
            self._begin(opening)

    def _begin(self, opening: Snapshot) -> None:
        if self.task.model == "own":
            self.learner.load(opening.learner)
            self.updates = opening.step.updates
        for kind in UNSETTLED:
            for event_id, pending in zip(*getattr(opening, kind), strict=True):
                self._open[event_id] = pending.x, self._floored(pending.decision)
        for event_id, retained, _ in zip(*opening.retained, strict=True):
            if retained.pending is not None:
                self._open[event_id] = retained.pending.x, self._floored(retained.pending.decision)
                self._settled.add(event_id)

    def _floored(self, decision: Decision) -> Decision:
        return floored(decision, self.task.learned_propensity_min) if self.task.log_reading else decision

    def apply(self, event: AuditedEvent) -> bool:
        """Apply an event. Return False if it is a decision that differs from this learner's decision."""
        if isinstance(event, Decided):
            x, (decision, is_same) = event.context.x, self._decide(event)
            if self.task.actions is not None:
                x = self._kept(x, decision)
            self._open[event.context.id] = x, decision
            self._settled.discard(event.context.id)
            if self.learner.observed and not event.is_unmatched:
                self._add(Entry(DECIDED, x, decision))
            return is_same
        if isinstance(event, SettingsChanged):
            self._change(event.settings)
        if isinstance(event, Example | Corrected):
            x, decision = self._open[event.id]
            self._settled.add(event.id)
            if not decision.can_teach:
                return True
            v = uniform(self.task.seed, Purpose.UPDATE, event.id) if self.learner.randomised_update else 0.0
            if isinstance(event, Example) and event.reward is not None:
                label = label_of(event.id) if event.outcome is Outcome.MATCHED else NO_LABEL
                self._add(Entry(SETTLED, x, decision, self._learned(event.reward), NO_BIT, v, label))
            elif isinstance(event, Corrected):
                learned = self._learned(event.learned)
                self._add(Entry(CORRECTED, x, decision, self._learned(event.reward), learned, v))
        return True

    def _learned(self, reward: float) -> float:
        """Return a reward as the learner receives it: a bit, or a share of the range."""
        if self.task.graded is None:
            return reward
        low, high = self.task.graded
        return (reward - low) / (high - low)

    def _change(self, settings: TaskSettings) -> None:
        """Change the settings. If the model is shared, the learner stays untrained, and only its form is used."""
        before, self.task = self.task, settings
        if carries(before, settings):
            carry = Carry(before, settings, self.learner)
            assert isinstance(carry.learner, KernelLearner)
            self.learner = carry.learner
            self._open = {
                event_id: (x, carry.decision(x, decision, self._stage_of(event_id)))
                for event_id, (x, decision) in self._open.items()
            }
        if settings.model == "own" and settings.champion != before.champion:
            self.learner.promote(settings.decides)
            self.updates += 1

    def _kept(self, x: Features, decision: Decision) -> Features:
        """Return the context and the played action, or all of x while a learner needs the other actions."""
        if self.learner.needs_offer(decision):
            return x
        context, K = self.task.context_features, self.task.n_classes
        width = (self.task.n_features - context) // K
        places = (x.indices - context) // width
        kept = (x.indices < context) | (places == decision.action)
        return Features(x.indices[kept], x.values[kept])

    def _stage_of(self, event_id: str) -> Stage:
        return Stage.SETTLED if event_id in self._settled else Stage.PENDING

    def add_alone(self, kind: int, name: str) -> None:
        """Add an entry without a decision."""
        learner = self.learner
        self._add(entry_without_decision(kind, learner.n_classes, learner.logged_size, name))

    def differs(self, step: JournalStep) -> bool:
        """Return whether the number of updates or drift alarms differs from the number in a step's journal record."""
        return (self.updates, int(self.learner.alarms.sum())) != (step.updates, step.alarms)

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.task.model == "own":
            self.updates += apply_entry(self.learner, entry)

    def _decide(self, decided: Decided) -> tuple[Decision, bool]:
        """Return the decision to learn from, and whether the published decision is as expected."""
        task, context, prediction = self.task, decided.context, decided.prediction
        if task.model == "shared":
            return prediction.decision, True
        event_id, x, logged, _, eligible, _, baseline, _ = context
        if baseline is not None:
            self.learner.set_baseline(baseline)
        own = mine = learned = self.learner.predict(x, uniform(task.seed, Purpose.ACTION, event_id), eligible)
        target = None if task.play == "own" else Target(own.action, own.propensity)
        if task.play == "logged" and logged is not None:
            known = logged.propensity
            mine = self.learner.as_played(x, own, logged.action, nan if known is None else known)
            least = task.propensity_min if task.learner in WEIGHING else 0.0
            learned = mine._replace(propensity=1.0 if known is None else max(known, least))
        is_same = _plain(mine) == _plain(prediction.decision) and prediction.target == target
        return learned, is_same and prediction.model_version == self.updates


def apply_entry(learner: Learner, entry: Entry) -> int:
    """Apply an entry to a model and return the number of updates to the model, which is 0 or 1."""
    kind, x, decision, reward, assumed, v, label, _ = entry
    if kind == DECIDED:
        learner.observe(x, decision)
    elif kind == SETTLED:
        return learner.update(x, decision, reward, v, None if label == NO_LABEL else label)
    elif kind == CORRECTED:
        return learner.retract(x, decision, assumed, reward, v)
    return 0


def _plain(decision: Decision) -> tuple[object, ...]:
    """Return a decision as values that can be compared, without the values that the learner logged with it."""
    return decision.action, decision.greedy, repr(decision.propensity), decision.scores.tolist()
