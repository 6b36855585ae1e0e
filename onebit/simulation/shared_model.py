"""Checks on a shared model's log, replicas and decisions.

The entries in the log are applied to one learner, one by one. At each version, the learner's state must equal the
replicas' state, and the learner's decisions must equal the tasks' decisions at that version. The learner changes at the
entries of kind *changed*, with the settings that the control topic has at the entry's offset.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from onebit.simulation.outside import LOG, TOPICS
from onebit.simulation.partitions import Partition, differences
from onebit.simulation.processes import SeenModel
from onebit.simulation.reference import apply_entry
from onebit.simulation.schedule import class_name
from onebit.simulation.tracing import BEFORE_CHANGE, NAMED_TWICE
from onebit.simulation.world import World
from stream.kafka.reading import read_partition
from stream.randomness.draws import Purpose, uniform
from stream.recovery.chunks import read_snapshots
from stream.recovery.control import read_requests
from stream.recovery.state import decode_model, restored_replica, state_digest
from stream.recovery.steps import JournalStep
from stream.task.carry import Carry, Conversion, Stage, carries
from stream.verifying.oracle import Decided
from stream.verifying.shared_log import audit_log
from stream.wire.updates import CHANGED, CORRECTED, DECIDED, NAMED, Entry, decode_update, entry_at


class _Logged(NamedTuple):
    """An entry in the log, with its task and step."""

    partition: int
    step: int
    offset: int  # offset of the record that contains the entry
    control: int  # offset in the control topic of the settings under which the task wrote the entry
    entry: Entry


class _Model:
    """The model at a version of the log."""

    def __init__(self, world: World) -> None:
        """Start with an untrained model or, in a moved pipeline, with the model that was moved."""
        moved = read_snapshots(world.broker, TOPICS, None).imported
        opening = None if moved is None else decode_model(moved)
        task, control = world.schedule.task, 0 if opening is None else opening.control
        self.settings = [(control, task.resolved())]  # of each change, with the offset in the control topic
        self.learner = task.make_learner()
        if opening is not None:
            self.learner.load(opening.learner)
        self._requests = read_requests(world.broker, TOPICS)

    @property
    def control(self) -> int:
        """The offset in the control topic up to which requests are in force."""
        return self.settings[-1][0]

    def change(self, control: int) -> None:
        """Put the requests before an offset in force."""
        before = self.settings[-1][1]
        after = self._requests.after(before, self.control, control).settings.resolved()
        if carries(before, after):
            self.learner = Carry(before, after, self.learner).learner
        if after.champion != before.champion:
            self.learner.promote(after.decides)
        self.settings.append((control, after))

    def apply(self, logged: _Logged) -> None:
        """Apply the next entry."""
        if logged.entry.kind == CHANGED:
            self.change(int(logged.entry.name))
        elif logged.entry.kind != NAMED and (entry := self.converted(logged)) is not None:
            apply_entry(self.learner, entry)

    def converted(self, logged: _Logged) -> Entry | None:
        """Return an entry as the learner accepts it, or None if no learner learns from it."""
        kind, x, decision, *_ = logged.entry
        stage = Stage.SETTLED if kind == CORRECTED else Stage.SETTLING
        later = [settings for control, settings in self.settings if control >= logged.control]
        for before, after in pairwise(later):
            decision = Conversion(before, after).decision(x, decision, stage)
        return logged.entry._replace(decision=decision) if decision.can_teach else None


def check_shared_model(world: World, partitions: Sequence[Partition]) -> list[str]:
    """Check a shared model's log, versions, decisions and replicas."""
    log = _read_log(world, _Model(world))
    named = {(logged.partition, logged.entry.name) for logged in log if logged.entry.kind == NAMED}
    world.trace.fired[NAMED_TWICE] += len(named) - len({name for _, name in named})
    forced = [int(logged.entry.name) if logged.entry.kind == CHANGED else 0 for logged in log]
    controls = zip(accumulate(forced, max), log, strict=True)
    world.trace.fired[BEFORE_CHANGE] += sum(
        logged.entry.kind != CHANGED and logged.control < control for control, logged in controls
    )
    wrong: list[str] = []
    for one in partitions:
        findings = _log_differs(one, log) + _versions(one, log) + _names(one, log)
        wrong += [f"partition {one.number}: {what}" for what in findings]
    seen = world.processes.models | _model_of_the_snapshot(world)
    wrong += _applied_again(_Model(world), partitions, log, seen) + _read_to_the_end(world, len(log))
    return wrong + _audited(world, len(partitions), len(log))


def _audited(world: World, partitions: int, entries: int) -> list[str]:
    """Check that `onebit verify`'s audit finds no faults."""
    finding = audit_log(world.broker, TOPICS, partitions)
    wrong = [f"audit of the log: {fault}" for fault in finding.faults]
    if finding.version != entries:
        wrong.append(f"audit of the log: expected version {entries}; got {finding.version}")
    return wrong


def _read_log(world: World, model: _Model) -> list[_Logged]:
    log: list[_Logged] = []
    for record in read_partition(world.broker, LOG):
        if (LOG, record.offset) in world.outside.foreign_outputs:
            continue
        update = decode_update(record)
        assert update is not None, "expected a version in every record of the log"
        names, n_classes = iter(update.names), dict(model.settings)[update.control].n_classes
        for place, end in enumerate(accumulate(update.entries.sizes.tolist())):
            entry = entry_at(update.entries, place, end, n_classes)
            if entry.kind >= CHANGED:
                entry = entry._replace(name=next(names))
            log.append(_Logged(update.partition, update.step, record.offset, update.control, entry))
        if update.change:
            model.change(update.change)
    return log


def _log_differs(partition: Partition, log: Sequence[_Logged]) -> list[str]:
    """Check that the log has a task's entries in order. The audit compares their number per step with the journal."""
    own = [_plain(logged.entry) for logged in log if logged.partition == partition.number]
    return differences("entry in the log", [*map(_plain, partition.reference.entries)], own)


def _plain(entry: Entry) -> tuple[Any, ...]:
    kind, x, decision, *bits = entry
    figures = (*decision[:3], decision.scores.tolist(), decision.logged.tolist())
    return (kind, x.indices.tolist(), x.values.tolist(), *figures, *bits)


def _versions(partition: Partition, log: Sequence[_Logged]) -> list[str]:
    """Check that a task's versions never decrease, match its log offsets, and equal the versions in its predictions."""
    wrong: list[str] = []
    latest = 0
    for step, decided in zip(partition.steps, partition.decided, strict=True):
        if step.updates < latest:
            wrong.append(f"step {step.number} decides at version {step.updates}; the previous step had {latest}")
        latest = step.updates
        version = -1 if step.log is None else sum(logged.offset < step.log.offset for logged in log)
        if version != step.updates:
            wrong.append(
                f"step {step.number}: the journal has version {step.updates}; its log offset corresponds to {version}"
            )
        wrong += [
            f"{prediction.id} has version {prediction.model_version}; its step {step.number} has {step.updates}"
            for _, _, prediction, _ in decided
            if prediction.model_version != step.updates
        ]
    return wrong


def _names(partition: Partition, log: Sequence[_Logged]) -> list[str]:
    """Check that each step knows the open classes at its version and adds only new classes, from the next context."""
    wrong: list[str] = []
    opened = [] if partition.opening is None else partition.opening.classes
    known = [*opened]
    n_classes = partition.task.n_classes
    for step in partition.steps:
        assert step.log is not None
        n_classes = n_classes if step.settings is None else step.settings.n_classes
        known += step.log.names
        added = (logged.entry.name for logged in log[: step.updates] if logged.entry.kind == NAMED)
        named = dict.fromkeys((*opened, *added))
        if known != list(named)[:n_classes]:
            wrong.append(f"step {step.number} has classes {known}; at the step's version, the log has {list(named)}")
        if adds := step.log.adds:
            offset = next(record.offset for record in partition.contexts if record.offset >= step.contexts[1])
            eligible = partition.world.outside.sent[TOPICS.contexts, partition.number, offset].eligible or ()
            if len({*adds}) < len(adds) or not {*adds} <= {*map(class_name, eligible)} - {*known}:
                wrong.append(f"step {step.number} adds the classes {adds}; the context at {offset} has {eligible}")
    return wrong


def _applied_again(
    model: _Model, partitions: Sequence[Partition], log: Sequence[_Logged], seen: set[SeenModel]
) -> list[str]:
    """Check every replica against the model at its version, and check every decision by repeating it."""
    wrong: list[str] = []
    for version in range(len(log) + 1):
        at_version = [one for one in seen if one.version == version]
        digest = state_digest([model.learner.state()]) if at_version else ""
        wrong += [
            f"{one.process}: expected the model {digest[:16]} at version {version}, from the log; got {one.sha256[:16]}"
            for one in sorted(at_version)
            if one.sha256 != digest
        ]
        for partition in partitions:
            for step, decided in zip(partition.steps, partition.decided, strict=True):
                if step.updates == version and decided:
                    own = [
                        logged for logged in log[version:]
                        if logged.partition == partition.number and logged.step < step.number
                        if logged.entry.kind == DECIDED
                    ]  # fmt: skip
                    differing = _decides_otherwise(model, own, step, decided)
                    wrong += [f"partition {partition.number}, step {step.number}: {what}" for what in differing]
        if version < len(log):
            model.apply(log[version])
    return wrong


def _decides_otherwise(
    model: _Model, own: Sequence[_Logged], step: JournalStep, decided: Sequence[Decided]
) -> list[str]:
    """Compare a step's predictions with those of a model that has observed the task's own decisions."""
    if step.control != model.control:
        return [f"expected the requests up to offset {model.control}, as in the log; got {step.control}"]
    task = model.settings[-1][1]
    learner = task.make_learner()
    learner.load(model.learner.state())
    for logged in own:
        if (entry := model.converted(logged)) is not None:
            learner.observe_early(entry.x, entry.decision)
    wrong: list[str] = []
    for (event_id, x, _, _, eligible, _, baseline, _), _, prediction, _ in decided:
        if baseline is not None:
            learner.set_baseline(baseline)
        again = learner.predict(x, uniform(task.seed, Purpose.ACTION, event_id), eligible)
        learner.observe_early(x, again)
        one, other = (_plain(Entry(DECIDED, x, decision)) for decision in (again, prediction.decision))
        if one != other:
            wrong.append(f"{event_id}, version {prediction.model_version}: expected the decision {one}; got {other}")
    return wrong


def _model_of_the_snapshot(world: World) -> set[SeenModel]:
    newest = read_snapshots(world.broker, TOPICS, None).newest
    if newest is None:
        return set()
    replica = restored_replica(world.schedule.task, decode_model(newest))
    return {SeenModel("the newest snapshot", replica.version, state_digest([replica.learner.state()]))}


def _read_to_the_end(world: World, version: int) -> list[str]:
    """Check that each process has read the whole log by the end of the run."""
    versions = {
        process.name: process.program.replica.version
        for process in world.processes.live()
        if process.program is not None and process.program.replica is not None
    }
    return [
        f"{name} has read {got} of {version} entries of the log" for name, got in versions.items() if got != version
    ]
