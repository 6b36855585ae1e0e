"""The checks after every run of the simulation.

Each check returns what is wrong, in words. The checks read the topics, and the world gives them what was sent and which
transactions were committed; of the learners they use only the final state.
"""

from math import nan
from typing import Any, NamedTuple

from stream.journal.digests import state_digest, task_digest
from stream.journal.format import JournalStep, decode_step
from stream.journal.recover import rebuild, recover
from stream.kafka.reading import read_partition
from stream.randomness.draws import Purpose, uniform
from stream.simulation.faulty_broker import Fate
from stream.simulation.oracle import Correction, ExpectedDeadLetter, ExpectedExample, Oracle
from stream.simulation.outside import TOPICS, label_of
from stream.simulation.processes import GROUP
from stream.simulation.schedule import NEVER_MS, Kind
from stream.simulation.shared_model import LOG, Scribe, Written, check_shared_model
from stream.simulation.world import World
from stream.task.settings import TaskSettings
from stream.task.task import Task
from stream.verifying.audit import audit_partition
from stream.wire import codec
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.events import Decision, Features, Logged, Outcome, Prediction
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition

OUTPUTS = (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter, TOPICS.journal, TOPICS.snapshots)


class Checked(NamedTuple):
    """The result of all checks of a run."""

    wrong: list[str]
    oracles: list[Oracle]  # of each partition


class _Partition:
    """The topics of one partition, read once."""

    def __init__(self, world: World, partition: int) -> None:
        self.number = partition
        self.world = world

        def records(topic: str) -> list[Record]:
            tp = TopicPartition(topic, partition)
            written = read_partition(world.broker, tp)
            return [record for record in written if (tp, record.offset) not in world.outside.foreign_outputs]

        self.contexts = records(TOPICS.contexts)
        self.feedback = records(TOPICS.feedback)
        self.predictions = [codec.decode_prediction(record) for record in records(TOPICS.predictions)]
        self.examples = [codec.decode_example(record) for record in records(TOPICS.examples)]
        self.dead_letters = [decode_dead_letter(record) for record in records(TOPICS.dead_letter)]
        self.steps = list(map(decode_step, records(TOPICS.journal)))
        self.decided: dict[int, Prediction] = {offset: prediction for prediction, offset in self.predictions}
        self.ticks = {_tick_step(record): record for record in self.feedback if not self.is_sent(record)}
        self._inputs = {
            TOPICS.contexts: {record.offset: record for record in self.contexts},
            TOPICS.feedback: {record.offset: record for record in self.feedback},
        }

    def is_sent(self, record: Record) -> bool:
        """Whether a record of the feedback topic is of the world outside; else it is a tick."""
        return (record.topic, self.number, record.offset) in self.world.outside.sent

    def applied_by(self, step: JournalStep) -> list[Record]:
        """The records of a step in their order."""
        records: list[Record] = []
        for topic, offsets in ((TOPICS.contexts, step.contexts), (TOPICS.feedback, step.feedback)):
            of_topic = self._inputs[topic]
            records += [of_topic[offset] for offset in range(*offsets) if offset in of_topic]
        return sorted(records, key=lambda record: (record.append_ms, record.topic != TOPICS.contexts, record.offset))


def _tick_step(record: Record) -> int:
    """The step that a tick names."""
    return int(dict(record.headers)["onebit-tick"])


def check(world: World) -> Checked:
    """Check a run by itself."""
    wrong: list[str] = []
    oracles: list[Oracle] = []
    tasks = world.tasks()
    written: list[Written] = []
    if sorted(tasks) != list(range(world.schedule.partitions)):
        wrong.append(f"at the end the partitions {sorted(tasks)} run; there are {world.schedule.partitions}")
    for number in range(world.schedule.partitions):
        partition = _Partition(world, number)
        found = _audit(partition)
        pupil = Scribe(world.schedule.task) if _shares(world) else _Pupil(world.schedule.task)
        oracle, disagreements = _ask_oracle(partition, pupil)
        oracles.append(oracle)
        found += disagreements
        found += _ticks(partition)
        found += _offsets(partition)
        if world.schedule.task.join.retain_ms == NEVER_MS and not oracle.counts["overflow of retained"]:
            found += _each_decided_once(partition)
            if not oracle.counts["overflow of pending"]:
                found += _settled_by_times_alone(partition)
        if number in tasks:
            found += _recovered_is_the_same(partition, tasks[number])
        wrong += [f"partition {number}: {what}" for what in found]
        if isinstance(pupil, Scribe):
            contexts = {record.offset: record for record in partition.contexts}
            written.append(Written(partition.steps, partition.predictions, contexts, pupil.entries))
    if written:
        wrong += check_shared_model(world, written)
    wrong += _nothing_aborted_is_visible(world)
    return Checked(wrong, oracles)


def _shares(world: World) -> bool:
    return world.schedule.task.model == "shared"


def _audit(partition: _Partition) -> list[str]:
    """What `onebit verify` finds: nothing wrong, and as many foreign records as others have written."""
    world = partition.world
    finding = audit_partition(world.broker, TOPICS, partition.number)
    foreign = sum(tp.partition == partition.number and tp != LOG for tp, _ in world.outside.foreign_outputs)
    found = [] if finding.foreign_count == foreign else [f"audit: {finding.foreign_count} foreign records of {foreign}"]
    found += [f"audit: {fault}" for fault in finding.faults]
    if not finding.ok and not finding.faults:
        found.append(f"audit: the learner counted {finding.learner}; the topics say {finding.audited}")
    if finding.contexts_behind or finding.feedback_behind:
        found.append(f"{finding.contexts_behind} contexts and {finding.feedback_behind} feedback never applied")
    return found


def _ask_oracle(partition: _Partition, pupil: "_Pupil | Scribe") -> tuple[Oracle, list[str]]:
    """Predictions, examples, dead letters, ledger and model, all in their order, against the oracle's."""
    task = partition.world.schedule.task
    oracle = Oracle(task.join, 0 if task.on_expiry == "negative" else None)
    wrong: list[str] = []
    latest_ms = 0
    in_order = not (_LATE_TO_SHOW & partition.world.trace.fired.keys() or partition.world.schedule.old_lags)
    for step in partition.steps:
        for record in partition.applied_by(step):
            if in_order and record.append_ms < latest_ms:
                wrong.append(f"step {step.number} applies {record.topic} offset {record.offset} after a later record")
            latest_ms = record.append_ms
            wrong += _ask_about(partition, oracle, pupil, step, record)
        pupil.learn(oracle)
        updates, alarms = pupil.counts(step)
        if (oracle.ledger(), updates, alarms) != (step.ledger, step.updates, step.alarms):
            differing = _differing(oracle.ledger(), step.ledger)
            if alarms != step.alarms:
                differing.append(f"drift alarms {alarms}; got {step.alarms}")
            if updates != step.updates:
                differing.append(f"updates {updates}; got {step.updates}")
            wrong.append(f"step {step.number}: expected {', '.join(differing)}")
            break
    examples = [
        ExpectedExample(e.id, e.outcome.value, e.reward, e.delay_ms, e.settled_at_ms, offset)
        for e, offset in partition.examples
    ]
    wrong += differences("example", oracle.examples, examples)
    letters = [
        ExpectedDeadLetter(topic == TOPICS.contexts, offset, kind)
        for topic, _, offset, kind, *_ in partition.dead_letters
    ]
    wrong += differences("dead letter", oracle.dead_letters, letters)
    running = partition.world.tasks().get(partition.number)
    if not wrong and running is not None and isinstance(pupil, _Pupil):
        one, other = state_digest([pupil.learner.state()]), state_digest([running.learner.state()])
        if one != other:
            wrong.append(f"the learner that was told the same ends as {one[:16]}; the one that ran as {other[:16]}")
    return oracle, wrong


def _ask_about(
    partition: _Partition, oracle: Oracle, pupil: "_Pupil | Scribe", step: JournalStep, record: Record
) -> list[str]:
    is_context = record.topic == TOPICS.contexts
    if not is_context and not partition.is_sent(record):
        oracle.tick(_tick_step(record), record.append_ms)
        pupil.learn(oracle)
        return []
    event_id, bit, action, logged = partition.world.outside.sent[record.topic, partition.number, record.offset]
    task = partition.world.schedule.task
    if not is_context:
        oracle.time(record.append_ms)
        pupil.learn(oracle)
    if event_id is None or (is_context and not _can_play(task, logged)):
        oracle.poison(contexts=is_context, offset=record.offset)
    elif is_context:
        prediction = partition.decided.get(record.offset)
        decides = None if prediction is None else (step.number, prediction.decision.action)
        aside = decides is not None and _is_aside(task, event_id, decides[1], logged)
        fault = oracle.context(event_id, decides, aside=aside)
        if fault is not None:
            return [f"context at offset {record.offset}: {fault}"]
        if decides is not None:
            oracle.counts["propensities_floored"] += _is_floored(task, logged)
        if prediction is not None and not pupil.decides(event_id, record, prediction, logged, aside=aside):
            return [f"prediction of {event_id}: a learner that was told the same decides otherwise"]
        pupil.learn(oracle)
    else:
        oracle.feedback(event_id, bit, record.append_ms, record.offset, action)
        pupil.learn(oracle)
    return []


_LATE_TO_SHOW = frozenset((Kind.FOREIGN_BEGIN, Kind.HOLD))
"""Keep records from being read in the order of their append times."""

WEIGHING = ("banditron", "soba-diag")
"""Of the learners here, those that weigh a bit by the propensity."""


def _can_play(task: TaskSettings, logged: Logged | None) -> bool:
    """Whether a context says of its log what must be known."""
    if task.play == "own":
        return True
    if logged is None:
        return False
    return logged.propensity is not None or (task.play == "logged" and task.learner not in WEIGHING)


def _is_aside(task: TaskSettings, event_id: str, action: int, logged: Logged | None) -> bool:
    """Whether the log cannot tell the bit of an action."""
    if task.play != "match" or logged is None or logged.propensity is None:
        return False
    is_taken = not task.propensity_min or (
        uniform(task.seed, Purpose.LOG, event_id) * logged.propensity < task.propensity_min
    )
    return action != logged.action or not is_taken


def _is_floored(task: TaskSettings, logged: Logged | None) -> bool:
    if task.play == "own" or logged is None or logged.propensity is None:
        return False
    return (task.play == "match" or task.learner in WEIGHING) and logged.propensity < task.propensity_min


class _Pupil:
    """A learner that is told by the oracle what to decide and to learn, in its order."""

    def __init__(self, task: TaskSettings) -> None:
        self.learner = task.make_learner()
        self.updates = 0
        self._task = task
        self._open: dict[str, tuple[Features, Decision]] = {}

    def decides(
        self, event_id: str, record: Record, prediction: Prediction, logged: Logged | None, *, aside: bool
    ) -> bool:
        """Decide, or play what the log says, and whether the prediction says the same."""
        task = self._task
        x = codec.decode_context(record, task.n_features).x
        own = mine = self.learner.predict(x, uniform(task.seed, Purpose.ACTION, event_id))
        target = None if task.play == "own" else (own.action, own.propensity)
        taught = own
        if task.play == "logged" and logged is not None:
            known = logged.propensity
            mine = self.learner.as_played(x, own, logged.action, nan if known is None else known)
            least = task.propensity_min if task.learner in WEIGHING else 0.0
            taught = mine._replace(propensity=1.0 if known is None else max(known, least))
        if not aside:
            self.learner.observe(x, taught)
        self._open[event_id] = x, taught
        published = prediction.decision
        same = (mine.action, mine.greedy, repr(mine.propensity), target) == (
            published.action, published.greedy, repr(published.propensity), prediction.target,
        )  # fmt: skip
        return same and mine.scores.tolist() == published.scores.tolist() and prediction.model_version == self.updates

    def learn(self, oracle: Oracle) -> None:
        """Learn from what has just been settled, or corrected."""
        for settled in oracle.to_learn:
            if settled.id not in self._open:
                continue  # it was never decided, which is told elsewhere
            x, decision = self._open[settled.id]
            v = uniform(self._task.seed, Purpose.UPDATE, settled.id) if self.learner.randomised_update else 0.0
            if isinstance(settled, Correction):
                if self._task.late == "correct":
                    self.updates += self.learner.retract(x, decision, 0, settled.bit, v)
            elif settled.reward is not None:
                label = label_of(settled.id) if settled.outcome == "matched" else None
                self.updates += self.learner.update(x, decision, settled.reward, v, label)
        oracle.to_learn.clear()

    def counts(self, step: JournalStep) -> tuple[int, int]:
        """Updates and drift alarms after a step, which the journal must say."""
        return self.updates, int(self.learner.alarms.sum())


def _differing(expected: Ledger, got: Ledger) -> list[str]:
    pairs = zip(Ledger._fields, expected, got, strict=True)
    return [f"{name} {one}; got {other}" for name, one, other in pairs if one != other]


def differences(what: str, expected: list[Any], got: list[Any]) -> list[str]:
    """The first difference between two lists, in words."""
    if expected == got:
        return []
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return [f"{what} {number}: expected {one}; got {other}"]
    return [f"expected {len(expected)} {what}s; got {len(got)}"]


def _ticks(partition: _Partition) -> list[str]:
    """A step has one tick if it decides, at most one if not, in its own transaction; and at the end nothing waits."""
    wrong: list[str] = []
    world, number = partition.world, partition.number
    transactions = {
        place: transaction
        for transaction in world.processes.transactions.all
        if transaction.fate is Fate.COMMITTED
        for place in transaction.records
    }
    predicted = {
        codec.step_of(record): (TopicPartition(TOPICS.predictions, number), record.offset)
        for record in read_partition(world.broker, TopicPartition(TOPICS.predictions, number))
        if (TopicPartition(TOPICS.predictions, number), record.offset) not in world.outside.foreign_outputs
    }
    for step, place in predicted.items():
        tick = partition.ticks.get(step or 0)
        if tick is None:
            wrong.append(f"step {step} decides, and has no tick")
        elif transactions.get((TopicPartition(TOPICS.feedback, number), tick.offset)) is not transactions.get(place):
            wrong.append(f"the tick of step {step} is not in the transaction of its predictions")
    count = sum(not partition.is_sent(record) for record in partition.feedback)
    if count != len(partition.ticks) or not set(partition.ticks) <= {step.number for step in partition.steps}:
        wrong.append(f"{count} ticks of {len(partition.ticks)} steps, up to step {max(partition.ticks)}")
    last = partition.steps[-1].ledger if partition.steps else Ledger()
    if last.pending or last.orphans_waiting:
        wrong.append(f"at the end {last.pending} decisions and {last.orphans_waiting} feedback wait")
    return wrong


def _offsets(partition: _Partition) -> list[str]:
    """The group's committed offsets are where the journal ends."""
    if not partition.steps:
        return []
    last = partition.steps[-1]
    tps = [TopicPartition(topic, partition.number) for topic in (TOPICS.contexts, TOPICS.feedback)]
    committed = partition.world.broker.committed(GROUP, tps)
    expected = dict(zip(tps, (last.contexts[1], last.feedback[1]), strict=True))
    return [] if committed == expected else [f"committed offsets are {committed}; the journal ends at {expected}"]


def _each_decided_once(partition: _Partition) -> list[str]:
    ids = [prediction.id for prediction, _ in partition.predictions]
    twice = sorted({event_id for event_id in ids if ids.count(event_id) > 1})
    return [f"decided more than once, and never forgotten: {', '.join(twice)}"] if twice else []


def _settled_by_times_alone(partition: _Partition) -> list[str]:
    """The first feedback after a context settles the decision if it was appended within the window of the tick.

    Feedback that names another action than the decided one does not count. Three append times and the log's order
    decide, whatever was read when.
    """
    world = partition.world
    window_ms = world.schedule.task.join.window_ms
    came_ms = {record.offset: record.append_ms for record in partition.contexts}
    contexts_are_late = world.schedule.old_lags or bool(
        {Kind.FOREIGN_CONTEXT, Kind.HOLD} & world.trace.fired.keys()
    )  # then feedback may be read before a context that was appended before it
    action_of = {prediction.id: prediction.decision.action for prediction in partition.decided.values()}
    of_id: dict[str, list[Record]] = {}
    for record in filter(partition.is_sent, partition.feedback):
        event_id, _, action, _ = world.outside.sent[record.topic, partition.number, record.offset]
        if event_id is not None and action in (None, action_of.get(event_id)):
            of_id.setdefault(event_id, []).append(record)
    settled = {example.id: (example.outcome, offset) for example, offset in partition.examples}
    step_of = {offset: step.number for step in partition.steps for offset in range(*step.contexts)}
    wrong: list[str] = []
    for offset, prediction in partition.decided.items():
        tick = partition.ticks.get(step_of.get(offset, 0))
        if tick is None or offset not in came_ms:
            wrong.append(f"prediction of {prediction.id} for context offset {offset}: no step with a tick applied it")
            continue
        answers = of_id.get(prediction.id, [])
        logged = world.outside.sent[TOPICS.contexts, partition.number, offset].logged
        if _is_aside(world.schedule.task, prediction.id, prediction.decision.action, logged):
            if settled.get(prediction.id, (None, None))[0] is not Outcome.UNMATCHED:
                wrong.append(f"{prediction.id}: expected unmatched, by its log; got {settled.get(prediction.id)}")
            continue
        shown_ms = tick.append_ms if contexts_are_late else came_ms[offset]
        if any(record.append_ms <= shown_ms for record in answers):
            continue  # it may have been read before its context; the orphans' limits decide how long it waits
        in_time = bool(answers) and answers[0].append_ms <= tick.append_ms + window_ms
        expected = (Outcome.MATCHED, answers[0].offset) if in_time else (Outcome.EXPIRED, None)
        if settled.get(prediction.id) != expected:
            wrong.append(f"{prediction.id}: expected {expected} by its times; got {settled.get(prediction.id)}")
    return wrong


def _recovered_is_the_same(partition: _Partition, task: Task) -> list[str]:
    """The state of the learner that ran is the one that the journal gives, from its first step on."""
    world = partition.world
    if _shares(world):
        return _recovered_without_its_model(partition, task)
    wrong: list[str] = []
    one = state_of(task)
    for how, snapshots in (("the journal", False), ("the newest snapshot and the journal", True)):
        again = rebuild(world.broker, TOPICS, partition.number, world.schedule.task, snapshots=snapshots)
        other = state_of(again.task)
        wrong += [
            f"{name}: the learner has {one[name]}; {how} gives {other[name]}"
            for name in one
            if one[name] != other[name]
        ]
    return wrong


def _recovered_without_its_model(partition: _Partition, task: Task) -> list[str]:
    """The same of a task on a shared model, whose decisions are read back from its predictions."""
    again = recover(partition.world.broker, TOPICS, partition.number, partition.world.schedule.task).task
    one, other = state_of(task), state_of(again)
    wrong = [
        f"{name}: the learner has {one[name]}; its topics give {other[name]}"
        for name in one
        if name != "model" and one[name] != other[name]
    ]
    if not wrong and task_digest(task) != task_digest(again):
        wrong.append("the learner's task is not, to the bit, the one that its topics give")
    return wrong


def state_of(task: Task) -> dict[str, object]:
    """All of a task's state, as values that can be compared."""
    join = task.join
    return {
        "model": state_digest([task.learner.state()]),
        "updates": task.updates,
        "newest date": join.dated_ms,
        "undated": sorted(task.undated),
        "ledger": join.ledger(),
        "overflows": join.overflows(),
        "stream time": join.stream_ms,
        "pending": [(event_id, repr(pending.time)) for event_id, pending in join.pending.items()],
        "orphans": [(event_id, orphan.feedback, orphan.kept_at_ms) for event_id, orphan in join.orphans.items()],
        "retained": [
            (event_id, retained.outcome, retained.reward, settled_ms, retained.pending is None)
            for (event_id, retained), settled_ms in zip(join.retained.items(), join.settled_ms(), strict=True)
        ],
    }


def _nothing_aborted_is_visible(world: World) -> list[str]:
    """What can be read of the outputs is exactly what the committed transactions wrote."""
    wrong: list[str] = []
    written: dict[TopicPartition, list[int]] = {}
    for transaction in world.processes.transactions.all:
        if transaction.fate is Fate.COMMITTED:
            for tp, offset in transaction.records:
                written.setdefault(tp, []).append(offset)
    topics = (*OUTPUTS, TOPICS.feedback)
    tps = [TopicPartition(topic, partition) for topic in topics for partition in range(world.schedule.partitions)]
    for tp in [*tps, LOG] if _shares(world) else tps:
        offsets = [record.offset for record in read_partition(world.broker, tp)]
        visible = [offset for offset in offsets if (*tp, offset) not in world.outside.sent]
        expected = sorted(written.get(tp, []) + [offset for at, offset in world.outside.foreign_outputs if at == tp])
        if visible != expected:
            odd = sorted(set(visible) ^ set(expected))
            wrong.append(f"{tp.topic}/{tp.partition}: offsets {odd} are visible and were not committed, or the reverse")
    return wrong
