"""What must hold of a model that all tasks share: its log, its replicas, and the decisions that were made on it.

The log is read into a plain list, and one learner is told it entry by entry, from the first to the last. At each
version it must be what the processes had that had read so far, and decide what the tasks decided on that version.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from stream.journal.digests import state_digest
from stream.journal.format import JournalStep
from stream.kafka.reading import read_partition
from stream.learners import Learner
from stream.learners.base import KernelLearner
from stream.randomness.draws import Purpose, uniform
from stream.shared.replica import Replica
from stream.simulation.outside import TOPICS
from stream.simulation.processes import SeenModel
from stream.simulation.world import World
from stream.snapshots.chunks import read_model_snapshots
from stream.snapshots.state import decode_model, restore_model
from stream.task.settings import TaskSettings
from stream.verifying.oracle import Decided
from stream.verifying.shared_log import audit_log
from stream.wire.events import Decision, Features
from stream.wire.records import TopicPartition
from stream.wire.updates import DECIDED, NO_LABEL, SETTLED, Entry, decode_update

LOG = TopicPartition(TOPICS.updates, 0)


class Written(NamedTuple):
    """The steps of one task, and the entries that it must have written to the log."""

    steps: list[JournalStep]
    decided: list[list[Decided]]  # of each step
    entries: list[Entry]


class _Told(NamedTuple):
    """An entry of the log, and who wrote it."""

    partition: int
    step: int
    offset: int  # of its record
    entry: Entry


def check_shared_model(world: World, tasks: Sequence[Written]) -> list[str]:
    """What is wrong with the log, the versions, the decisions or the replicas."""
    task = world.schedule.task
    log = _read_log(world, task.n_classes)
    wrong: list[str] = []
    for partition, written in enumerate(tasks):
        found = _log_differs(partition, written, log) + _versions(partition, written, log)
        wrong += [f"partition {partition}: {what}" for what in found]
    seen = world.processes.models | _model_of_the_snapshot(world)
    wrong += _told_again(task, tasks, log, seen) + _read_to_the_end(world, len(log))
    return wrong + _audited(world, len(tasks), len(log))


def _audited(world: World, partitions: int, entries: int) -> list[str]:
    """What `onebit verify` says of the log must be that all is well."""
    found = audit_log(world.broker, TOPICS, partitions)
    wrong = [f"audit of the log: {fault}" for fault in found.faults]
    if found.version != entries:
        wrong.append(f"audit of the log: expected version {entries}; got {found.version}")
    return wrong


def _read_log(world: World, n_classes: int) -> list[_Told]:
    log: list[_Told] = []
    for record in read_partition(world.broker, LOG):
        if (LOG, record.offset) in world.outside.foreign_outputs:
            continue
        update = decode_update(record)
        assert update is not None, "the learners write none without a version"
        columns, start = update.entries, 0
        for place, size in enumerate(columns.sizes.tolist()):
            x = Features(columns.indices[start : start + size], columns.values[start : start + size])
            row = columns.scores[place].copy()  # a learner knows by its base what belongs together
            decision = Decision(
                int(columns.actions[place]), int(columns.greedy[place]), float(columns.propensities[place]),
                row[:n_classes], row[n_classes:],
            )  # fmt: skip
            entry = Entry(
                int(columns.kinds[place]), x, decision, int(columns.rewards[place]), int(columns.assumed[place]),
                float(columns.v[place]), int(columns.labels[place]),
            )  # fmt: skip
            log.append(_Told(update.partition, update.step, record.offset, entry))
            start += size
    return log


def _log_differs(partition: int, written: Written, log: Sequence[_Told]) -> list[str]:
    """The log has of each task what became of its events, in their order, and the journal says how much of it."""
    got = [_plain(told.entry) for told in log if told.partition == partition]
    expected = [_plain(entry) for entry in written.entries]
    if got != expected:
        both = zip(expected, got, strict=False)
        differing = next((n for n, (one, other) in enumerate(both) if one != other), min(len(got), len(expected)))
        return [
            f"log: expected {len(expected)} entries; got {len(got)}; the first that differs is number {differing}: "
            f"expected {expected[differing : differing + 1]}; got {got[differing : differing + 1]}"
        ]
    counts = Counter(told.step for told in log if told.partition == partition)
    return [
        f"step {step.number}: the log has {counts[step.number]} entries of it; the journal says {step.log}"
        for step in written.steps
        if step.log is None or step.log.entries != counts[step.number]
    ]


def _plain(entry: Entry) -> tuple[Any, ...]:
    kind, x, decision, *bits = entry
    figures = (*decision[:3], decision.scores.tolist(), decision.logged.tolist())
    return (kind, x.indices.tolist(), x.values.tolist(), *figures, *bits)


def _versions(partition: int, written: Written, log: Sequence[_Told]) -> list[str]:
    """A task's version never falls, is that of the offset to which the log was read, and stands in its predictions."""
    wrong: list[str] = []
    latest = 0
    for step, decided in zip(written.steps, written.decided, strict=True):
        if step.updates < latest:
            wrong.append(f"step {step.number} decides on version {step.updates}; the one before had {latest}")
        latest = step.updates
        version = -1 if step.log is None else sum(told.offset < step.log.offset for told in log)
        if version != step.updates:
            wrong.append(f"step {step.number}: the journal says version {step.updates}; what it read is {version}")
        wrong += [
            f"{prediction.id} names version {prediction.model_version}; its step {step.number} has {step.updates}"
            for _, _, prediction, _ in decided
            if prediction.model_version != step.updates
        ]
    return wrong


def _told_again(task: TaskSettings, tasks: Sequence[Written], log: Sequence[_Told], seen: set[SeenModel]) -> list[str]:
    """Every replica is the model at its version, and every decision is made again on the model at its version."""
    wrong: list[str] = []
    model = task.make_learner()
    for version in range(len(log) + 1):
        at_version = [one for one in seen if one.version == version]
        digest = state_digest([model.state()]) if at_version else ""
        wrong += [
            f"{one.process} has the model at version {version} as {one.sha256[:16]}; the log makes it {digest[:16]}"
            for one in sorted(at_version)
            if one.sha256 != digest
        ]
        for partition, written in enumerate(tasks):
            for step, decided in zip(written.steps, written.decided, strict=True):
                if step.updates == version and decided:
                    own = [
                        told.entry for told in log[version:]
                        if told.partition == partition and told.step < step.number and told.entry.kind == DECIDED
                    ]  # fmt: skip
                    differing = _decides_otherwise(task, model, own, decided)
                    wrong += [f"partition {partition}, step {step.number}: {what}" for what in differing]
        if version < len(log):
            _tell(model, log[version].entry)
    return wrong


def _decides_otherwise(
    task: TaskSettings, model: Learner, own: Sequence[Entry], decided: Sequence[Decided]
) -> list[str]:
    """The predictions of a step that differ from a model's, after it has observed the task's own decisions."""
    learner = task.make_learner()
    learner.load(model.state())
    for entry in own:
        learner.observe(entry.x, entry.decision)
    wrong: list[str] = []
    for (event_id, x, _), _, prediction, _ in decided:
        again = learner.predict(x, uniform(task.seed, Purpose.ACTION, event_id))
        learner.observe(x, again)
        one, other = (_plain(Entry(DECIDED, x, decision)) for decision in (again, prediction.decision))
        if one != other:
            wrong.append(f"{event_id}, version {prediction.model_version}: expected the decision {one}; got {other}")
    return wrong


def _tell(model: Learner, entry: Entry) -> None:
    kind, x, decision, reward, assumed, v, label = entry
    if kind == DECIDED:
        model.observe(x, decision)
    elif kind == SETTLED:
        model.update(x, decision, reward, v, None if label == NO_LABEL else label)
    else:
        model.retract(x, decision, assumed, reward, v)


def _model_of_the_snapshot(world: World) -> set[SeenModel]:
    newest = read_model_snapshots(world.broker, TOPICS).newest
    if newest is None:
        return set()
    learner = world.schedule.task.make_learner()
    assert isinstance(learner, KernelLearner)
    replica = Replica(learner)
    restore_model(decode_model(newest), replica, world.schedule.task)
    return {SeenModel("the newest snapshot", replica.version, state_digest([learner.state()]))}


def _read_to_the_end(world: World, version: int) -> list[str]:
    """At the end each process has read the whole log."""
    found = {
        process.name: process.program.replica.version
        for process in world.processes.live()
        if process.program is not None and process.program.replica is not None
    }
    return [
        f"{name} has read {got} entries of the log; it has {version}" for name, got in found.items() if got != version
    ]
