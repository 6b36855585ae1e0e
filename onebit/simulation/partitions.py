"""Audits each partition and compares its decisions with those of a reference learner."""

from bisect import bisect_right
from itertools import zip_longest
from typing import Any

from onebit.simulation.outside import INPUTS, LOG, TOPICS
from onebit.simulation.reference import Reference
from onebit.simulation.world import World
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.chunks import read_snapshots
from stream.recovery.state import Snapshot, decode
from stream.recovery.steps import JournalStep
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.oracle import AuditedEvent, Decided, Oracle
from stream.wire.records import Record, TopicPartition
from stream.wire.updates import CHANGED, NAMED


class Partition:
    """One partition's audit, which includes a reference learner."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.task = world.schedule.task
        self.is_shared = self.task.model == "shared"
        self.opening = opening_of(world.broker, number)
        self.reference = Reference(self.task, self.opening)
        self.steps: list[JournalStep] = []
        self.settings: list[TaskSettings] = []  # each step's settings
        self.decided: list[list[Decided]] = []  # each step's decisions
        self.events: list[AuditedEvent] = []
        self.oracle: Oracle | None = None
        self.wrong: list[str] = []
        self.contexts, self.feedback = (list(read_partition(world.broker, self.tp(topic))) for topic in INPUTS)
        self.ticks = {
            int(dict(record.headers)["onebit-tick"]): record for record in filter(self.is_tick, self.feedback)
        }
        self._audit()

    def tp(self, topic: str) -> TopicPartition:
        """Return this partition of a topic."""
        return TopicPartition(topic, self.number)

    def settings_at(self, record: Record) -> TaskSettings:
        """Return the settings of the step that applied an input record."""
        is_context = record.topic == TOPICS.contexts
        ends = [(step.contexts if is_context else step.feedback)[1] for step in self.steps]
        return self.settings[bisect_right(ends, record.offset)]

    def is_tick(self, record: Record) -> bool:
        """Return whether a feedback record is a tick. All other feedback was sent by outside clients."""
        return (record.topic, self.number, record.offset) not in self.world.outside.sent

    def _audit(self) -> None:
        """Run `onebit verify`'s audit. It must find no faults and must count all records from other programs."""
        finding = audit_partition(self.world.broker, TOPICS, self.number, observe=self._observe)
        foreign = sum(tp.partition == self.number and tp != LOG for tp, _ in self.world.outside.foreign_outputs)
        self.wrong += [f"audit: {fault}" for fault in finding.faults]
        if not finding.ok and not finding.faults:
            self.wrong.append(f"audit: the learner counted {finding.learner}; the audit counted {finding.audited}")
        if (finding.foreign_count, finding.contexts_behind, finding.feedback_behind) != (foreign, 0, 0):
            self.wrong.append(
                f"audit: expected {foreign} records from other programs and no unapplied inputs; got {finding}"
            )

    def _observe(self, step: JournalStep, oracle: Oracle) -> None:
        if step.number == 1:
            self.reference = Reference(oracle.settings)
        self.oracle = oracle
        self.steps.append(step)
        self.settings.append(oracle.settings)
        self.events += oracle.events
        self.decided.append([event for event in oracle.events if isinstance(event, Decided)])
        for event in oracle.events:
            if not self.reference.apply(event):
                self.wrong.append(f"step {step.number}: the reference learner's decision differs from {event}")
        for name in () if step.log is None else step.log.adds:
            self.reference.add_alone(NAMED, name)
        if step.log is not None and step.log.change:
            self.reference.add_alone(CHANGED, str(step.log.change))
        if not self.is_shared and self.reference.differs(step):
            self.wrong.append(f"step {step.number}: the reference learner's updates or drift alarms differ")


def opening_of(broker: Broker, partition: int) -> Snapshot | None:
    """Return the state with which a moved task begins; None if the pipeline was not moved."""
    stored = read_snapshots(broker, TOPICS, partition, 0).newest
    return None if stored is None else decode(stored)


def differences(what: str, expected: list[Any], got: list[Any]) -> list[str]:
    """Return the first difference between two lists, as a message. The shorter list is padded with None."""
    for number, (one, other) in enumerate(zip_longest(expected, got)):
        if one != other:
            return [f"{what} {number}: expected {one}; got {other}"]
    return []
