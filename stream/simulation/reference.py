"""Each partition's audit, with a reference learner.

Reference learners process the decisions and outcomes that the audit's oracle expects, in order.

If a task has its own model, its reference must make the same decisions. If the model is shared, the reference collects
the entries that the task must write to the log.
"""

from itertools import zip_longest
from math import nan
from typing import Any

from stream.journal.steps import JournalStep
from stream.kafka.reading import read_partition
from stream.randomness.draws import Purpose, uniform
from stream.simulation.outside import INPUTS, LOG, TOPICS, label_of
from stream.simulation.world import World
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.oracle import Corrected, Decided, Event, Oracle, Promoted, Settled
from stream.wire import codec
from stream.wire.records import Decision, Features, Logged, Outcome, Record, Target, TopicPartition
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    NAMED,
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
        if isinstance(event, Settled | Corrected):
            x, decision = self._open[event.id]
            v = uniform(self.task.seed, Purpose.UPDATE, event.id) if self.learner.randomised_update else 0.0
            if isinstance(event, Settled) and event.reward is not None:
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


class Partition:
    """One partition's audit, with a reference learner."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.task = world.schedule.task
        self.is_shared = self.task.model == "shared"
        self.reference = (SharedReference if self.is_shared else OwnReference)(self.task)
        self.steps: list[JournalStep] = []
        self.decided: list[list[Decided]] = []  # each step's decisions
        self.events: list[Event] = []
        self.oracle: Oracle | None = None
        self.wrong: list[str] = []
        self.contexts, feedback = (list(read_partition(world.broker, self.tp(topic))) for topic in INPUTS)
        self.feedback = [record for record in feedback if codec.promotion_of(record) is None]
        self.ticks = {
            int(dict(record.headers)["onebit-tick"]): record for record in filter(self.is_tick, self.feedback)
        }
        self._audit()

    def tp(self, topic: str) -> TopicPartition:
        """Return this partition of a topic."""
        return TopicPartition(topic, self.number)

    def is_tick(self, record: Record) -> bool:
        """Return whether a feedback record is a tick. All other feedback was sent by outside clients."""
        return (record.topic, self.number, record.offset) not in self.world.outside.sent

    def _audit(self) -> None:
        """Run `onebit verify`'s audit. It must find no faults, and must count all records from other programs."""
        finding = audit_partition(self.world.broker, TOPICS, self.number, observe=self._observe)
        foreign = sum(tp.partition == self.number and tp != LOG for tp, _ in self.world.outside.foreign_outputs)
        self.wrong += [f"audit: {fault}" for fault in finding.faults]
        if not finding.ok and not finding.faults:
            self.wrong.append(f"audit: the learner counted {finding.learner}; the topics give {finding.audited}")
        if (finding.foreign_count, finding.contexts_behind, finding.feedback_behind) != (foreign, 0, 0):
            self.wrong.append(
                f"audit: expected {foreign} records from other programs and no unapplied inputs; got {finding}"
            )

    def _observe(self, step: JournalStep, oracle: Oracle) -> None:
        self.oracle = oracle
        self.steps.append(step)
        self.events += oracle.events
        self.decided.append([event for event in oracle.events if isinstance(event, Decided)])
        for event in oracle.events:
            if not self.reference.apply(event):
                self.wrong.append(f"step {step.number}: the reference learner decides differently from {event}")
        if isinstance(self.reference, SharedReference):
            for name in () if step.log is None else step.log.adds:
                self.reference.collect(NAMED, name=name)
        elif self.reference.differs(step):
            self.wrong.append(f"step {step.number}: the reference learner's updates or drift alarms differ")


def differences(what: str, expected: list[Any], got: list[Any]) -> list[str]:
    """Return the first difference between two lists, as a message. None is past the end of the shorter list."""
    for number, (one, other) in enumerate(zip_longest(expected, got)):
        if one != other:
            return [f"{what} {number}: expected {one}; got {other}"]
    return []
