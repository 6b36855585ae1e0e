"""Checks performed after each simulation run.

Each check returns its findings as messages. A check compares the topics with the records that were sent and the
transactions that were committed in the `World`. The only learner data that it uses is the learners' final state.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

from onebit.simulation.outside import INPUTS, LOG, TOPICS, reward_of
from onebit.simulation.partitions import Partition, differences
from onebit.simulation.reference import can_play
from onebit.simulation.schedule import SHOWN, Item, ItemKind, class_name, offer_of
from onebit.simulation.shared_model import check_shared_model
from onebit.simulation.tracing import APPLIED, REFUSED
from onebit.simulation.world import World
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.control import read_requests
from stream.recovery.recover import rebuild
from stream.recovery.state import state_digest, task_digest
from stream.recovery.steps import JournalStep, read_journal
from stream.task.changes import Changed
from stream.task.settings import TaskSettings
from stream.task.stored_settings import differences as differences_of
from stream.task.task import Task
from stream.verifying.audit import audit_partition
from stream.verifying.oracle import Decided, Letter
from stream.verifying.shared_log import audit_log
from stream.verifying.starts import starts_of
from stream.wire import codec
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from stream.wire.ledger import Ledger
from stream.wire.records import Example, Outcome, Record, TopicPartition

OUTPUTS = (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter, TOPICS.journal, TOPICS.snapshots)


def check(world: World) -> list[str]:
    """Check a run, and update the coverage counts with its evictions and the join-table rows that were applied."""
    wrong: list[str] = []
    tasks = world.processes.tasks()
    partitions = [Partition(world, number) for number in range(world.schedule.partitions)]
    if sorted(tasks) != list(range(len(partitions))):
        wrong.append(f"expected {len(partitions)} running partitions at the end; got {sorted(tasks)}")
    for one in partitions:
        findings = one.wrong + _as_sent(one) + _in_order(one) + _ticks(one) + _offsets(one)
        if one.oracle is not None:
            world.trace.fired.update({name: one.oracle.counts[name] for name in EVICTIONS})
            world.trace.fired.update({row_name(*row): count for row, count in one.oracle.rows.items()})
        if one.number in tasks:
            findings += _recovered_is_the_same(one, tasks[one.number]) + _requests(one, tasks[one.number])
        wrong += [f"partition {one.number}: {what}" for what in findings]
    if world.schedule.task.model == "shared":
        wrong += check_shared_model(world, partitions)
    return wrong + _nothing_aborted_is_visible(world)


def check_retained(world: World) -> list[str]:
    """Check that what retention has left suffices to audit and recover each task, and a shared model's log."""
    if not world.retention.has_deleted:
        return []
    broker, wrong = world.broker, list[str]()
    for number, task in sorted(world.processes.tasks().items()):
        finding = audit_partition(broker, TOPICS, number)
        if not finding.ok:
            wrong.append(f"partition {number}: audit of the retained records: {finding}")
        if task_digest(rebuild(broker, TOPICS, number).task) != task_digest(task):
            wrong.append(f"partition {number}: the task recovered from the retained records is not bit-identical")
    if world.schedule.task.model == "shared":
        faults = audit_log(broker, TOPICS, world.schedule.partitions).faults
        wrong += [f"audit of the retained log: {fault}" for fault in faults]
    return wrong


def check_stopped(world: World) -> list[str]:
    """Check a run whose learners were stopped, so that decisions can be pending."""
    partitions = [Partition(world, number) for number in range(world.schedule.partitions)]
    wrong = [
        f"partition {one.number}: {what}"
        for one in partitions
        for what in one.wrong + _as_sent(one) + _in_order(one) + _offsets(one)
    ]
    if world.schedule.task.model == "shared":
        wrong += check_shared_model(world, partitions)
    return wrong


def check_ranges(world: World) -> list[str]:
    """Check that each task's audit and recovery give the same result after retention has deleted its first records.

    This check deletes records, so it must be the last one.
    """
    return [
        f"partition {number}: {what}"
        for number, task in sorted(world.processes.tasks().items())
        for what in _ranges_are_the_same(world, number, task)
    ]


RETENTION_CUT = "retention deletes the records before a snapshot"
EVICTIONS = ("pending_evicted", "orphans_evicted", "retained_evicted", "deferred_evicted")


def row_name(state: str, happened: str) -> str:
    """Return the name that reports use for a row in the join table."""
    return f"join: {state} + {happened}"


def change_name(setting: str) -> str:
    """Return the name that reports use for a change of a setting."""
    return f"change: {setting}"


def _as_sent(partition: Partition) -> list[str]:
    """Compare the oracle's events with the events that were sent, so that no check relies on the codec alone."""
    sent = partition.world.outside.sent
    malformed: set[tuple[str, int]] = set()
    wrong: list[str] = []
    eligible = _eligible(partition)
    for event in partition.events:
        if isinstance(event, Letter) and event.kind == DEAD_LETTER_MALFORMED:
            malformed.add((event.topic, event.offset))
        elif isinstance(event, Decided):
            was = sent[TOPICS.contexts, partition.number, event.offset]
            logged = None if partition.task.play == "own" else was.logged
            context = event.context
            if (was.id, logged, was.deferred) != (context.id, context.logged, context.is_deferred):
                wrong.append(f"context at offset {event.offset}: expected {was}; got {event.context}")
            rule = context.baseline
            if (rule is None) is not (was.baseline is None) or event.prediction.baseline != rule:
                wrong.append(f"context at offset {event.offset}: expected the baseline {rule}; got {event.prediction}")
            among, decision = eligible[event.offset] or {}, event.prediction.decision
            if not {decision.action, decision.greedy} <= among.keys():
                wrong.append(f"context at offset {event.offset}: expected classes among {among}; got {decision}")
            elif event.prediction.class_name != among[decision.action]:
                wrong.append(f"context at offset {event.offset}: expected the class {among}; got {event.prediction}")
        elif isinstance(event, Example) and event.outcome is Outcome.MATCHED and event.feedback_offset is not None:
            was = sent[TOPICS.feedback, partition.number, event.feedback_offset]
            is_other = was.kind in SHOWN or was.action not in (None, event.action)
            if partition.task.actions is not None and was.action is not None:
                is_other = was.kind in SHOWN or class_name(was.action) != event.class_name
            is_sum = partition.task.feedback == "sum"
            is_reward = is_sum or reward_of(was, partition.task) == event.reward
            if is_other or was.id != event.id or not is_reward:
                wrong.append(f"feedback at offset {event.feedback_offset}: expected {was}; got {event}")
    for record in (*partition.contexts, *partition.feedback):
        if record.topic == TOPICS.contexts or not partition.is_tick(record):
            was = sent[record.topic, partition.number, record.offset]
            if record.topic == TOPICS.contexts:
                is_bad = eligible[record.offset] is None
            else:
                task = partition.settings_at(record)
                is_bad = not was.id or (task.actions is None and (was.action or 0) >= task.n_classes)
            if is_bad is not ((record.topic, record.offset) in malformed):
                wrong.append(f"{record.topic} offset {record.offset}: expected malformed={is_bad}")
    return wrong


def _eligible(partition: Partition) -> dict[int, dict[int, str | None] | None]:
    """Return each context's eligible classes with their names, keyed by offset; None for a malformed context.

    The settings of the step that applied a context determine the classes and features. In a pipeline with open classes,
    a class's index depends on the order in which the contexts name the classes. If the model is shared, the index
    depends on the order in the log, and a step knows the names in the journal up to and including the step's own
    record.
    """
    found = dict[int, dict[int, str | None] | None]()
    opened = [] if partition.opening is None else partition.opening.classes
    indices = _with_names({}, opened)
    steps = iter(zip(partition.steps, partition.settings, strict=True))
    end, task = 0, partition.task
    for record in partition.contexts:
        while record.offset >= end:
            step, task = next(steps)
            end = step.contexts[1]
            if not task.open_classes:
                indices = {class_name(k): k for k in range(task.n_classes)}
            elif step.log is not None:
                indices = _with_names(indices, step.log.names)
        was = partition.world.outside.sent[record.topic, partition.number, record.offset]
        if task.actions is not None:
            found[record.offset] = _offered(task, was)
            continue
        listed = list(indices) if was.eligible is None else list(map(class_name, was.eligible))
        retired = {class_name(one) if isinstance(one, int) else one for one in task.retired_classes}
        withdrawn = {name for name in listed if name in retired and name in indices}
        listed = [name for name in listed if name not in retired]
        known = _with_names(indices, listed)
        has_names = task.open_classes or task.class_names is not None
        chosen = {known[name]: name if has_names else None for name in listed}
        allowed = {*listed, *withdrawn}
        is_other = task.needs_baseline if was.baseline is None else class_name(was.baseline) not in allowed
        is_bad = is_other or not chosen or len(chosen) < len(listed) or max(chosen) >= task.n_classes
        is_played = task.play == "own" or was.logged is None or was.logged.action in chosen
        has_features = was.feature is None or was.feature < task.n_features
        if not was.id or not can_play(task, was.logged) or is_bad or not is_played or not has_features:
            found[record.offset] = None
            continue
        if partition.is_shared and len(known) > len(indices):
            partition.wrong.append(f"context at offset {record.offset}: the log does not contain its classes")
        indices = known
        found[record.offset] = chosen
    return found


def _offered(task: TaskSettings, was: Item) -> dict[int, str | None] | None:
    """Return a context's eligible actions by place, or None if the context is malformed."""
    if not was.id or (was.feature is not None and was.feature >= task.context_features):
        return None
    offer = offer_of(was.id)
    listed = offer if was.eligible is None else was.eligible
    is_valid = 0 < len(listed) == len({*listed}) and {*listed} <= {*offer}
    has_rule = was.baseline in listed if was.baseline is not None else not task.needs_baseline
    if not (is_valid and has_rule):
        return None
    return {place: class_name(k) for place, k in enumerate(offer) if k in listed}


def _with_names(indices: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    """Assign the next free indices to new names, in order."""
    known = dict(indices)
    for name in names:
        known.setdefault(name, len(known))
    return known


def _in_order(partition: Partition) -> list[str]:
    """Check that records are applied in append-time order. Skip the check if faults delay the visibility of records."""
    if any(name.startswith(_LATE_TO_SHOW) for name in partition.world.trace.fired) or partition.world.schedule.old_lags:
        return []
    latest_ms = 0
    for step in partition.steps:
        times_ms = [
            record.append_ms
            for records, (first, end) in ((partition.contexts, step.contexts), (partition.feedback, step.feedback))
            for record in records
            if first <= record.offset < end
        ]
        if min(times_ms, default=latest_ms) < latest_ms:
            return [f"step {step.number} applies a record after a record with a later append time"]
        latest_ms = max(times_ms, default=latest_ms)
    return []


_LATE_TO_SHOW = (ItemKind.FOREIGN_BEGIN, ItemKind.HOLD, ItemKind.EXPELLED_IN_COMMIT)
"""Faults that delay the visibility of records, so that learners do not read them in append-time order.

When a learner loses its session, the records after its open transaction are invisible until the broker aborts the
transaction.
"""


def _ticks(partition: Partition) -> list[str]:
    """Check the number of ticks, and check that no events are pending at the end.

    A step with decisions must have exactly one tick. Any other step may have one tick or none.
    """
    wrong: list[str] = []
    world, (predictions, feedback) = partition.world, map(partition.tp, (TOPICS.predictions, TOPICS.feedback))
    transactions = world.processes.committed()
    for record in read_partition(world.broker, predictions):
        place = (predictions, record.offset)
        tick = partition.ticks.get(codec.step_of(record) or 0)
        if place not in world.outside.foreign_outputs and (
            tick is None or transactions.get((feedback, tick.offset)) is not transactions.get(place)
        ):
            wrong.append(f"prediction at offset {record.offset}: its transaction contains no tick for the step")
    count = sum(map(partition.is_tick, partition.feedback))
    if count != len(partition.ticks) or not set(partition.ticks) <= {step.number for step in partition.steps}:
        wrong.append(
            f"expected at most one tick per step; got {count} ticks for {len(partition.ticks)} steps, the last of "
            f"which is step {max(partition.ticks)}"
        )
    last = partition.steps[-1].ledger if partition.steps else Ledger()
    if last.pending or last.deferred or last.orphans_waiting:
        wrong.append(
            f"{last.pending} decisions, {last.deferred} deferred decisions and {last.orphans_waiting} orphans are "
            "pending at the end"
        )
    return wrong


def _offsets(partition: Partition) -> list[str]:
    """Check that the group's committed offsets are the end offsets of the journal's last step."""
    if not partition.steps:
        return []
    tps, last = [partition.tp(topic) for topic in INPUTS], partition.steps[-1]
    committed = partition.world.broker.committed(partition.world.schedule.options.group, tps)
    expected = dict(zip(tps, last.read_to, strict=True))
    if committed == expected:
        return []
    return [f"expected committed offsets {expected}, as in the journal's last step; got {committed}"]


def _requests(partition: Partition, task: Task) -> list[str]:
    """Check that a task has applied or refused all requests, each of them once, in the order of the control topic."""
    requests = read_requests(partition.world.broker, TOPICS)
    if not partition.steps:
        return []
    expected, last = requests.after(partition.task, 0), partition.steps[-1]
    refused = [one for step in partition.steps for one in step.refused]
    partition.world.trace.fired[REFUSED] += len(refused)
    partition.world.trace.fired[APPLIED] += sum(step.settings is not None for step in partition.steps[1:])
    for before, after in pairwise(partition.settings):
        names = {name.partition(".")[0] for name in differences_of(before, after)}
        partition.world.trace.fired.update(map(change_name, names))
    found = Changed(task.settings, last.control, tuple(refused))
    if found == expected._replace(settings=expected.settings.resolved()):
        return []
    return [f"expected {expected}, from the control topic; got {found}"]


def _recovered_is_the_same(partition: Partition, task: Task) -> list[str]:
    """Check that a task's final state, apart from a shared model, equals the state restored from its topics."""
    wrong: list[str] = []
    if not partition.is_shared and partition.oracle is not None:
        one, other = (state_digest([learner.state()]) for learner in (task.learner, partition.reference.learner))
        if one != other:
            wrong.append("the learner's model is not bit-identical to that of the reference learner")
    digest = task_digest(task)
    for how, snapshots in (("the journal", False), ("the newest snapshot and the journal", True)):
        again = rebuild(
            partition.world.broker, TOPICS, partition.number, lambda *_: partition.task, snapshots=snapshots
        ).task
        if task_digest(again) != digest:
            wrong.append(f"the learner's task is not bit-identical to the task recovered from {how}")
    return wrong


def _ranges_are_the_same(world: World, number: int, task: Task) -> list[str]:
    """Audit and rebuild a task from each of its snapshots, before and after retention deletes all earlier records."""
    broker, digest = world.broker, task_digest(task)
    starts, wrong = starts_of(broker, TOPICS, number), list[str]()

    def audit(what: str, first: int, from_step: int | None) -> None:
        finding = audit_partition(broker, TOPICS, number, from_step=from_step)
        if not finding.ok or finding.exact_from != first:
            wrong.append(f"audit {what}: expected no faults from step {first} on; got {finding}")

    for start in starts:
        first = start.step.number + 1
        audit(f"from step {first} on", first, first)
        if task_digest(rebuild(broker, TOPICS, number, snapshot_max=start.step.number).task) != digest:
            wrong.append(f"the task rebuilt from the snapshot of step {start.step.number} is not bit-identical")
    for start in starts[:1]:
        world.trace.fired[RETENTION_CUT] += 1
        offsets = _offsets_after(broker, number, start.step)
        for tp, offset in offsets.items():
            broker.delete_records(tp, offset)
        is_given = any(offsets.values()) or start.step.opens
        audit("after a retention cut", start.step.number + 1 if is_given else 1, None)
        if task_digest(rebuild(broker, TOPICS, number).task) != digest:
            wrong.append("the task recovered after a retention cut is not bit-identical")
    return wrong


def _offsets_after(broker: Broker, partition: int, step: JournalStep) -> dict[TopicPartition, int]:
    """Return the offsets of a step's journal record, and of the first later records in the other topics."""
    inputs, outputs = ([TopicPartition(topic, partition) for topic in topics] for topics in (INPUTS, OUTPUTS[:3]))
    offsets = dict(zip(inputs, step.read_to, strict=True))
    for tp in outputs:
        later = (record.offset for record in read_partition(broker, tp) if (codec.step_of(record) or 0) > step.number)
        offsets[tp] = next(later, broker.ends([tp])[tp].stable)
    journal = TopicPartition(TOPICS.journal, partition)
    offsets[journal] = next(record.offset for record, each in read_journal(broker, journal) if each == step)
    return offsets


def _nothing_aborted_is_visible(world: World) -> list[str]:
    """Check that the visible outputs are exactly those from committed transactions."""
    wrong: list[str] = []
    committed = (*world.processes.committed(), *world.outside.foreign_outputs)
    topics = (*OUTPUTS, TOPICS.feedback)
    tps = [TopicPartition(topic, partition) for topic in topics for partition in range(world.schedule.partitions)]
    for tp in [*tps, LOG] if world.schedule.task.model == "shared" else tps:
        records = read_partition(world.broker, tp)
        visible = [record.offset for record in records if (*tp, record.offset) not in world.outside.sent]
        superseded = world.retention.superseded
        expected = sorted(offset for at, offset in committed if at == tp and (at, offset) not in superseded)
        if visible != expected:
            odd = sorted(set(visible) ^ set(expected))
            wrong.append(f"{tp}: offsets {odd} are visible or committed, but not both")
    return wrong


def equal_faultless(world: World, faultless: World) -> list[str]:
    """Return the differences from a run with the same events and no faults.

    If the faults in a run take no virtual time, the run publishes the same predictions, examples and dead letters as a
    run without faults in a single process. The records are identical byte for byte and in the same order. Every
    partition's final model and ledger are also equal. This requires four conditions:

    1. A learner polls whenever a record is appended or an action is due. Otherwise, the times of ticks would differ.
    2. `idle_ms` is 1, and deadlines pass in milliseconds during which nothing else happens (see `schedule`). Otherwise,
       a learner that has just started would detect deadlines later than one that is already running.
    3. `retain_ms` is longer than the run, because stream time, which advances with every tick, determines when the join
       forgets an id.
    4. No other producer holds a transaction open on contexts or feedback.

    Runs with a shared model are not compared, because a decision depends on how far its task has read the log.

    Settlement times and feedback offsets are not compared. Both depend on the number of ticks, and thus on how the
    records are divided into steps, which faults change.
    """
    wrong: list[str] = []
    for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):
        for partition in range(world.schedule.partitions):
            tp = TopicPartition(topic, partition)
            one = _lasting_values(read_partition(world.broker, tp))
            other = _lasting_values(read_partition(faultless.broker, tp))
            name = f"differs from the run without faults: {topic}/{partition}"
            wrong += [f"{name} {difference}" for difference in differences("record", other, one)]
    tasks, expected = (
        {number: (task.join.ledger(), state_digest([task.learner.state()])) for number, task in of}
        for of in (world.processes.tasks().items(), faultless.processes.tasks().items())
    )
    wrong += [
        f"differs from the run without faults: partition {number}: expected {expected[number]}; got {got}"
        for number, got in tasks.items()
        if got != expected[number]
    ]
    return wrong


def _lasting_values(records: Iterable[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, _LEFT_OUT.sub(b"", record.value or b"")) for record in records]


_LEFT_OUT = re.compile(rb'"(settled_at_ms|feedback_offset)":[0-9]+,?')
