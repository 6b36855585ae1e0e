"""Reference learners, which process the decisions and outcomes that the audit's oracle expects, in order.

If a task has its own model, its reference must make the same decisions. If the model is shared, the reference collects
the entries that the task must write to the log.
"""

from math import nan
from typing import Any

from stream.journal.steps import JournalStep
from stream.randomness.draws import Purpose, uniform
from stream.simulation.outside import label_of
from stream.task.settings import TaskSettings
from stream.verifying.oracle import Corrected, Decided, Event, Promoted
from stream.wire.records import Decision, Example, Features, Logged, Outcome, Target
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    NO_BIT,
    NO_LABEL,
    PROMOTED,
    SETTLED,
    Entry,
    entry_without_decision,
)

WEIGHING = ("banditron", "soba-diag")
"""The learners in the simulation that weight a bit by the propensity."""


def can_play(task: TaskSettings, logged: Logged | None) -> bool:
    """Return whether a context has the logged fields that the task needs."""
    if task.play == "own" or logged is None:
        return task.play == "own"
    return logged.propensity is not None or (task.play == "logged" and task.learner not in WEIGHING)


class OwnReference:
    """A learner that must make the same decisions as the task."""

    def __init__(self, task: TaskSettings) -> None:
        self.learner = task.make_learner()
        self.updates = 0
        self.task = task
        self.entries: list[Entry] = []  # entries that the task must write to a shared model's log
        self._open: dict[str, tuple[Features, Decision]] = {}

    def apply(self, event: Event) -> bool:
        """Apply an event. Return False if it is a decision that differs from this learner's decision."""
        if isinstance(event, Decided):
            decision, is_same = self.decide(event)
            self._open[event.context.id] = event.context.x, decision
            return is_same
        if isinstance(event, Promoted):
            self.promote(event.number)
        if isinstance(event, Example | Corrected):
            x, decision = self._open[event.id]
            v = uniform(self.task.seed, Purpose.UPDATE, event.id) if self.learner.randomised_update else 0.0
            if isinstance(event, Example) and event.reward is not None:
                self.settle(x, decision, event.reward, v, label_of(event.id) if event.outcome is MATCHED else None)
            elif isinstance(event, Corrected) and self.task.late == "correct":
                self.correct(x, decision, event.reward, v)
        return True

    def decide(self, decided: Decided) -> tuple[Decision, bool]:
        """Return the decision to learn from, and whether the published decision is as expected."""
        task, (event_id, x, logged, _, eligible, _), prediction = self.task, decided.context, decided.prediction
        own = mine = taught = self.learner.predict(x, uniform(task.seed, Purpose.ACTION, event_id), eligible)
        target = None if task.play == "own" else Target(own.action, own.propensity)
        if task.play == "logged" and logged is not None:
            known = logged.propensity
            mine = self.learner.as_played(x, own, logged.action, nan if known is None else known)
            least = task.propensity_min if task.learner in WEIGHING else 0.0
            taught = mine._replace(propensity=1.0 if known is None else max(known, least))
        if not decided.is_aside:
            self.learner.observe(x, taught)
        version = self.updates
        is_same = plain(mine) == plain(prediction.decision) and prediction.target == target
        return taught, is_same and prediction.model_version == version

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> None:
        """Learn from a bit."""
        self.updates += self.learner.update(x, decision, reward, v, label)

    def correct(self, x: Features, decision: Decision, reward: int, v: float) -> None:
        """Replace an assumed bit of 0 with the real bit."""
        self.updates += self.learner.retract(x, decision, 0, reward, v)

    def promote(self, number: int) -> None:
        """Make a different learner the champion."""
        self.learner.promote(number)
        self.updates += 1

    def differs(self, step: JournalStep) -> bool:
        """Return whether the number of updates or drift alarms differs from the number in a step's journal record."""
        return (self.updates, int(self.learner.alarms.sum())) != (step.updates, step.alarms)


MATCHED = Outcome.MATCHED


class SharedReference(OwnReference):
    """Collects the entries that one task must write to the log. `shared_model` checks the decisions."""

    def __init__(self, task: TaskSettings) -> None:
        super().__init__(task)
        learner = task.make_shareable_learner()
        self._observes, self._logged_size = bool(learner.observed), learner.logged_size

    def decide(self, decided: Decided) -> tuple[Decision, bool]:
        """Return the published decision."""
        decision = decided.prediction.decision
        if self._observes:
            self.entries.append(Entry(DECIDED, decided.context.x, decision))
        return decision, True

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> None:
        """Collect a bit."""
        self.entries.append(Entry(SETTLED, x, decision, reward, NO_BIT, v, NO_LABEL if label is None else label))

    def correct(self, x: Features, decision: Decision, reward: int, v: float) -> None:
        """Collect a correction."""
        self.entries.append(Entry(CORRECTED, x, decision, reward, 0, v))

    def promote(self, number: int) -> None:
        """Collect a promotion."""
        self.collect(PROMOTED, label=number)

    def collect(self, kind: int, **fields: Any) -> None:
        """Collect an entry without a decision."""
        self.entries.append(entry_without_decision(kind, self.learner.n_classes, self._logged_size, **fields))


def plain(decision: Decision) -> tuple[object, ...]:
    """Return a decision as comparable values, without the values that the learner logged with it."""
    return decision.action, decision.greedy, repr(decision.propensity), decision.scores.tolist()
