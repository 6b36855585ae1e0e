"""The audit behind `onebit verify`, which recomputes the ledger from the topics alone.

The audit uses neither the learner's counters nor its join code. It reads the journal step by step, applies each step's
contexts and feedback to an `Oracle`, and compares:

    predictions    each context that must have a decision has exactly one prediction; no other context has one
    examples and dead letters    each step has the same records as the oracle, in the same order
    ledger         after each step, the journal's ledger equals the oracle's
    ticks, drift alarms    each step with decisions has a tick; its examples report the alarms that the journal counts

Each topic is read once, and all topics are read in parallel. Memory use therefore does not grow with their size.

If retention has deleted the first records, or a range was requested, the audit starts at a snapshot: see
`stream.verifying.starts`. The oracle then begins with the snapshot's decisions, orphans and settled ids, and with the
counts in the journal. Everything after the snapshot is checked as in an audit of all steps.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from stream.kafka.port import Broker, BrokerError
from stream.kafka.reading import OPEN_MS, Portions, offset_of_number, read_partition
from stream.learners import registered
from stream.measures.latencies import quantiles
from stream.randomness.draws import Purpose, uniform
from stream.recovery.chunks import read_snapshots
from stream.recovery.commit import predictions_digest
from stream.recovery.control import Requests, read_requests
from stream.recovery.state import decode
from stream.recovery.steps import JournalError, JournalStep, decode_step, last_step, read_from_step, read_journal
from stream.recovery.torn import IN_PART, outputs_of
from stream.task.carry import names_of
from stream.task.models import features_max
from stream.task.settings import TaskSettings
from stream.task.stored_settings import differences, restored_settings
from stream.telemetry.sketch import Sketch, total_sketch
from stream.verifying.oracle import AuditedEvent, Decided, Letter, Oracle, differing
from stream.verifying.starts import BEFORE_ALL, Start, deleted, first_offset, start_of_check
from stream.wire import codec
from stream.wire.classes import NewClassesError
from stream.wire.codec import MalformedError, is_tick, tick_step
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger
from stream.wire.records import (
    HOLDOUT,
    NOT_ELIGIBLE,
    Arm,
    Context,
    Example,
    Logged,
    Prediction,
    Record,
    Shown,
    TopicPartition,
    place_of,
)
from stream.wire.topics import Topics, partition_for


class Finding(NamedTuple):
    """The result of auditing one partition."""

    partition: int
    learner: Ledger  # the learner's counts in its journal's last record
    audited: Ledger  # the counts recomputed from the topics
    faults: tuple[str, ...]  # each message names a record or a step
    contexts_behind: int  # number of context offsets that the learner has not applied yet
    feedback_behind: int
    deleted: tuple[str, ...] = ()  # deleted parts of the topics; if not empty, nothing was recomputed
    foreign: tuple[str, ...] = ()  # the first records from other programs in the learner's topics
    foreign_count: int = 0
    latencies: Sketch = Sketch()  # decision latencies
    clock_steps: tuple[tuple[int, int], ...] = ()  # steps that begin with another clock shift, and this shift in ms
    exact_from: int = 1  # the first checked step; earlier steps are given

    @property
    def ok(self) -> bool:
        """Whether the two ledgers are equal and balanced, and there are no faults."""
        return self.learner == self.audited and self.audited.balances and not self.faults and not self.deleted

    def as_json(self) -> dict[str, object]:
        """Return the finding as plain values."""
        latency = quantiles(self.latencies)
        fields = {name: value for name, value in self._asdict().items() if name != "latencies"}
        ledgers = {"learner": self.learner._asdict(), "audited": self.audited._asdict()}
        return {**fields, **ledgers, "ok": self.ok, "latency": None if latency is None else asdict(latency)}


def latencies_of(findings: Iterable[Finding]) -> Sketch:
    """Return the decision latencies for all partitions."""
    return total_sketch(finding.latencies for finding in findings)


FAULTS_SHOWN_MAX = 20
"""Limit on the number of reported faults, because one cause often affects thousands of records."""

STEPS_AHEAD_MAX = 100
"""Limit on the number of later steps whose records are buffered while the audit searches for a step's records."""

PROGRESS_RECORDS = 100_000
"""Number of records between progress reports."""

Observe = Callable[[JournalStep, Oracle], None]


def audit_partition(
    broker: Broker,
    topics: Topics,
    partition: int,
    progress: Callable[[str], None] = lambda message: None,
    observe: Observe = lambda step, oracle: None,
    *,
    from_step: int | None = None,
    since_ms: int | None = None,
) -> Finding:
    """Recompute one partition's ledger from its topics.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        partition: the partition.
        progress: called with each progress message.
        observe: called after each step with the step and the oracle, whose `events` then contain only the step's
            events.
        from_step: the first step to check; None means all steps. The check can start earlier; see `start_of_check`.
        since_ms: the first time to check.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    start = start_of_check(broker, topics, partition, from_step, since_ms)
    audit = _Audit(broker, topics, partition, progress, observe, start)
    if not (missing := audit.deleted_before()):
        try:
            finding = audit.run()
        except (BrokerError, JournalError):
            if not (missing := audit.deleted_during()):
                raise
        else:
            missing = audit.deleted_during()
    return Finding(partition, Ledger(), Ledger(), (), 0, 0, missing) if missing else finding


class _Output:
    """Reads the records in an output topic step by step."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._ahead: dict[int, list[Record]] = {}  # records from later steps

    def take(self, step: int, count: int) -> list[Record]:
        """Return a step's next `count` records, together with any records from earlier steps that lie between them."""
        taken = self._ahead.pop(step, [])
        count -= len(taken)
        while count > 0 and len(self._ahead) < STEPS_AHEAD_MAX and (record := next(self._records, None)) is not None:
            number = codec.step_of(record) or 0
            (taken if number <= step else self._ahead.setdefault(number, [])).append(record)
            count -= number == step
        return taken

    def rest(self) -> Iterator[Record]:
        """Yield the records that were not returned for any step."""
        yield from chain(*self._ahead.values())
        yield from self._records


class _Audit:
    """Reads one partition of each topic in parallel and compares the records with the oracle."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        partition: int,
        progress: Callable[[str], None],
        observe: Observe,
        start: Start | None,
    ) -> None:
        self._broker, self._topics, self._partition = broker, topics, partition
        self._progress, self._observe = progress, observe
        self._journal = TopicPartition(topics.journal, partition)
        self._start = start
        self._last = BEFORE_ALL if start is None else start.step
        self._end = 0  # the last audited step; the learner can commit further steps during the audit
        self._requests = Requests(broker, topics)
        self._published_by = 0  # the last step with published records
        self._settings_from = 1
        self._has_new_learners = False  # True in a step that adds, removes or replaces learners
        self._oracle: Oracle | None = None  # None if the task has not started
        self._read: Counter[str] = Counter()  # the number of records of the current step, by topic
        self._is_torn = False  # True if an earlier step was committed in part
        self._differs = False  # True if the ledgers differed at an earlier step
        self._faults: list[str] = []
        self._clock_steps: list[tuple[int, int]] = []
        self._clock_shift_ms = 0
        self._foreign: list[str] = []
        self._foreign_count = 0
        self._latencies = Sketch()
        self._needed = self._first_offsets()
        self._contexts = Portions(self._records(topics.contexts))
        self._feedback = Portions(self._records(topics.feedback))
        self._outputs = {
            topic: _Output(self._published(topic))
            for topic in (topics.predictions, topics.examples, topics.dead_letter)
        }

    def _first_offsets(self) -> dict[TopicPartition, int]:
        """Return the offset of the first record to read from each topic."""
        broker, topics, start = self._broker, self._topics, self._start
        tps = [TopicPartition(topic, self._partition) for topic in topics if topic != topics.snapshots]
        if start is None:
            return dict.fromkeys(tps, 0)
        contexts, feedback = start.step.read_to
        known = {
            topics.contexts: contexts,
            topics.feedback: feedback,
            topics.journal: offset_of_number(
                broker, self._journal, start.step.number + 1, lambda record: decode_step(record).number
            ),
        }
        return {tp: known[tp.topic] if tp.topic in known else first_offset(broker, tp, start) for tp in tps}

    def deleted_before(self) -> tuple[str, ...]:
        """Return a message for each topic whose required records were deleted, also if they were never applied."""
        if self._start is not None:
            return ()
        return tuple(
            f"{tp} begins at offset {beginning}; its earlier records have been deleted, and no snapshot is followed by "
            "retained records only"
            for tp, beginning in deleted(self._broker, self._topics, self._partition).items()
        )

    def deleted_during(self) -> tuple[str, ...]:
        """Return a message for each topic whose required records were deleted while the audit read them."""
        return tuple(
            f"{tp} begins at offset {beginning}; retention deleted its records from offset {self._needed[tp]} on "
            "during the audit. Run it again; to have more time, increase the retention of the topics"
            for tp, beginning in self._broker.beginnings(list(self._needed)).items()
            if beginning > self._needed[tp]
        )

    def run(self) -> Finding:
        """Audit all steps that are in the journal when the audit starts."""
        if (end := last_step(self._broker, self._journal)) is not None:
            self._end = end.number
        self._requests = read_requests(self._broker, self._topics)
        if self._start is not None:
            self._oracle = self._begin_at(self._start)
        for record, step in self._steps(end):
            place = place_of(record)
            if self._oracle is None:
                if step.settings is None or step.number != 1:
                    raise JournalError(
                        f"expected step 1 with the task's settings; got step {step.number}: the first record of the "
                        "journal was deleted, so nothing can be audited",
                        place,
                    )
                self._oracle = self._begin(step.settings)
            elif step.number <= self._end:
                self._change_settings(self._oracle, step, place)
            if step.number <= self._end:
                self._apply(self._oracle, step, place)
        for topic, output in self._outputs.items():
            self._check_rest(topic, output.rest())
        feedback = self._feedback.up_to(inf)
        self._check_journal_is_whole()
        self._check_ticks({tick_step(record) or 0 for record in feedback})
        return Finding(
            self._partition,
            self._last.ledger,
            Ledger() if self._oracle is None else self._oracle.ledger(),
            tuple(self._faults),
            len(self._contexts.up_to(inf)),
            sum(not is_tick(record) for record in feedback),
            foreign=tuple(self._foreign),
            foreign_count=self._foreign_count,
            latencies=self._latencies,
            clock_steps=tuple(self._clock_steps),
            exact_from=1 if self._start is None else self._start.step.number + 1,
        )

    def _steps(self, end: JournalStep | None) -> Iterator[tuple[Record, JournalStep]]:
        """Yield the steps to check, with their records."""
        if self._start is None or end is None:
            return read_journal(self._broker, self._journal)
        return read_from_step(self._broker, self._journal, self._start.step.number + 1, end)

    def _begin_at(self, start: Start) -> Oracle:
        """Return an oracle with the state in a snapshot, after checking the snapshot against the journal."""
        number, place = start.step.number, f"step {start.step.number} of {self._journal}"
        stored = read_snapshots(self._broker, self._topics, self._partition, number).newest
        if stored is None or stored.number != number:
            raise JournalError("the snapshot was overwritten during the audit; run it again", place)
        snapshot = decode(stored)
        settings = restored_settings(snapshot.settings)
        oracle = self._begin(settings, snapshot.classes)
        oracle.start_from(snapshot)
        self._settings_from, self._clock_shift_ms = start.step.settings_from, start.step.clock_shift_ms
        if snapshot.step != start.step:
            self._fault(f"{place}: expected the step in the snapshot at {stored.place}: {snapshot.step}")
        elif (expected := oracle.ledger()) != start.step.ledger:
            self._fault(
                f"{place}: the entries in the snapshot at {stored.place}: {differing(expected, start.step.ledger)}"
            )
        return oracle

    def _begin(self, settings: TaskSettings, classes: Sequence[str] | None = None) -> Oracle:
        imported = None
        if classes is None and settings.open_classes and settings.model == "own":
            imported = read_snapshots(self._broker, self._topics, self._partition, 0).imported
        self._use(settings, (classes or ()) if imported is None else decode(imported).classes)
        return Oracle(settings)

    def _use(self, settings: TaskSettings, classes: Iterable[str]) -> None:
        """Prepare to read contexts with these settings, and with the names of open classes so far."""
        self._log, self._encoder = settings.log_reading, settings.feature_encoder()
        self._classes, self._retired = settings.make_classes(), settings.retired_indices
        self._reading = settings.action_reading()
        if settings.open_classes:
            self._classes.add(classes)
        self._nnz_max = features_max(settings.make_learner()) if settings.model == "shared" else None
        self._needs_label = registered()[settings.learner].needs_label

    def _change_settings(self, oracle: Oracle, step: JournalStep, place: str) -> None:
        """Compare a step's settings with the requests in the control topic, and apply them."""
        expected = self._requests.after(oracle.settings, self._last.control, step.control)
        if step.control < self._last.control or expected.control != step.control:
            self._fault(f"{place}: expected requests up to offset {expected.control}; got {step.control}")
        if dict(step.refused).keys() != dict(expected.refused).keys():  # the reasons depend on Onebit's version
            self._fault(f"{place}: expected refused requests {expected.refused}; got {step.refused}")
        settings = oracle.settings if step.settings is None else step.settings
        if differs := differences(expected.settings, settings):
            self._fault(f"{place}: expected the settings that the control topic requests; got {differs}")
        self._has_new_learners = names_of(oracle.settings) != names_of(settings)
        if step.settings is not None:
            self._settings_from = step.number
            oracle.change_settings(settings)
            self._use(settings, self._classes.names or ())

    def _apply(self, oracle: Oracle, step: JournalStep, place: str) -> None:
        """Apply a step's records and compare its outputs with the expected ones."""
        last, self._last = self._last, step
        follows = last.number == 0 or (step.contexts[0], step.feedback[0]) == (last.contexts[1], last.feedback[1])
        if step.number != last.number + 1 or not follows:
            self._fault(f"{place}: step {step.number} does not follow step {last.number}")
        if step.settings_from != self._settings_from:
            self._fault(
                f"{place}: expected the settings of step {self._settings_from}; got those of step {step.settings_from}"
            )
        if step.log is not None and step.log.names:
            self._classes.add(step.log.names)
        self._read.clear()
        if step.clock_shift_ms != self._clock_shift_ms:
            self._clock_shift_ms = step.clock_shift_ms
            self._clock_steps.append((step.number, step.clock_shift_ms))
        predictions = self._predictions(step, last)
        date: list[int] = []
        for record in self._records_of(step):
            if record.topic == self._topics.contexts:
                self._apply_context(oracle, record, predictions, date)
            else:
                self._apply_feedback(oracle, record._replace(append_ms=record.append_ms - step.clock_shift_ms))
        if oracle.settings.dated_by == "tick" and any(isinstance(event, Decided) for event in oracle.events):
            oracle.undated[step.number] = date
        for offset, (record, _) in predictions.items():
            self._fault(f"{place_of(record)}: step {step.number} has no context at offset {offset}")
        self._compare_outputs(oracle, step, last)
        self._check_whole(step, last, place)
        if not self._differs and (expected := oracle.ledger()) != step.ledger:
            self._differs = True
            self._fault(f"{place}: step {step.number}: expected {differing(expected, step.ledger)}")
        self._observe(step, oracle)
        oracle.events.clear()

    def _records_of(self, step: JournalStep) -> list[Record]:
        """Return a step's input records, ordered by append time, topic (contexts before feedback), and offset.

        If an earlier record in the same topic has a later append time, that time is used instead of the record's own.
        """
        placed = []
        for source, (first, end) in ((self._contexts, step.contexts), (self._feedback, step.feedback)):
            order_ms = 0
            for record in source.up_to(end):
                if record.offset >= first:
                    order_ms = max(order_ms, record.append_ms)
                    placed.append((order_ms, record))
        return [record for _, record in sorted(placed, key=itemgetter(0))]

    def _apply_context(
        self, oracle: Oracle, record: Record, predictions: dict[int, tuple[Record, Prediction]], date: list[int]
    ) -> None:
        settings = oracle.settings
        context: Context | None
        try:
            context = codec.decode_context(
                record,
                settings.context_features,
                self._log,
                self._encoder,
                self._classes,
                self._nnz_max,
                settings.envelope,
                self._retired,
                self._reading,
                needs_baseline=settings.needs_baseline,
            )
        except (MalformedError, NewClassesError):
            context = None
        self._count_misplaced(oracle, record, context and context.id)
        if context is None:
            oracle.malformed(record, "context")
            return
        published, prediction = predictions.pop(record.offset, (None, None))
        is_unmatched = prediction is not None and _is_unmatched(settings, context, prediction.decision.action)
        if wrong := oracle.context(context, record, prediction, date, is_unmatched=is_unmatched):
            self._fault(f"{place_of(record)}: {wrong}")
        elif published is not None and prediction is not None:
            self._latencies.add(published.append_ms - record.append_ms)
            self._check_played(oracle, context.logged, prediction, place_of(published))
            self._check_class(context, prediction, place_of(published))
            self._check_arm(settings, context.id, prediction.arm, place_of(published))
            self._check_baseline(settings, context, prediction, place_of(published))
            self._check_challenged(oracle, prediction, place_of(published))

    def _check_played(self, oracle: Oracle, logged: Logged | None, prediction: Prediction, place: str) -> None:
        """Compare a decision with the logged decision. Count the logged propensity if it is below the minimum."""
        settings, target = oracle.settings, prediction.target
        if (logged is None) is not (target is None):
            self._fault(f"{place}: expected both a logged decision and a target, or neither; got {logged}, {target}")
        if logged is None:
            return
        least = settings.propensity_min if settings.play == "match" else settings.learned_propensity_min
        oracle.counts["propensities_floored"] += logged.propensity is not None and logged.propensity < least
        own, played = prediction.decision, logged if settings.play == "logged" else target
        propensity = own.known_propensity
        if played is not None and (own.action, propensity) != (played.action, played.propensity):
            self._fault(f"{place}: expected {played}; got action {own.action} with propensity {propensity}")

    def _check_class(self, context: Context, prediction: Prediction, place: str) -> None:
        """Check that the classes in a decision are eligible, and that the action's name is correct."""
        decision, eligible = prediction.decision, context.eligible
        among = set(range(decision.scores.size) if eligible is None else eligible.tolist())
        scored = set(np.flatnonzero(decision.scores != NOT_ELIGIBLE).tolist())
        if scored != among or not {decision.action, decision.greedy} <= among:
            self._fault(
                f"{place}: expected actions among {sorted(among)}; got action {decision.action} and greedy action "
                f"{decision.greedy} among {sorted(scored)}"
            )
        actions = context.actions
        expected = self._classes.name_of(decision.action) if actions is None else actions[decision.action]
        if prediction.class_name != expected:
            self._fault(f"{place}, class: expected {expected!r}; got {prediction.class_name!r}")
        if prediction.actions != actions:
            self._fault(f"{place}: expected actions {actions}; got {prediction.actions}")

    def _check_arm(self, settings: TaskSettings, event_id: str, arm: Arm | None, place: str) -> None:
        """Check that a decision's arm is the one determined by the random draw for its event id."""
        if arm != (expected := settings.arm_of(uniform(settings.seed, Purpose.ACTION, event_id))):
            self._fault(f"{place}: expected the arm {expected}; got {arm}")

    def _check_baseline(self, settings: TaskSettings, context: Context, prediction: Prediction, place: str) -> None:
        """Check that a decision names the context's baseline, and plays it in the holdout if this is the policy."""
        baseline, action = context.baseline, prediction.decision.action
        if prediction.baseline != baseline:
            self._fault(f"{place}: expected the baseline {baseline}; got {prediction.baseline}")
        is_eligible = baseline is not None and prediction.decision.scores[baseline] != NOT_ELIGIBLE
        if settings.needs_baseline and prediction.arm == HOLDOUT and is_eligible and action != baseline:
            self._fault(f"{place}: expected the baseline {baseline} in the holdout; got {action}")

    def _check_challenged(self, oracle: Oracle, prediction: Prediction, place: str) -> None:
        """Check that a decision names all learners and the current champion."""
        members, found = oracle.settings.members, prediction.challenged
        names = () if found is None else (found.champion, *found.choices)
        if sorted(names) != sorted(members):
            self._fault(
                f"{place}: expected learners: {', '.join(members) or 'none'}; got: {', '.join(names) or 'none'}"
            )
        elif found is not None and found.champion != (champion := members[oracle.settings.decides]):
            self._fault(f"{place}: expected the champion {champion}; got {found.champion}")

    def _apply_feedback(self, oracle: Oracle, record: Record) -> None:
        oracle.pass_time(record.append_ms)
        if is_tick(record):
            oracle.tick(tick_step(record) or 0, record.append_ms)
            return
        try:
            settings = oracle.settings
            feedback = codec.decode_feedback(
                record,
                settings.n_classes,
                needs_label=self._needs_label,
                graded=settings.graded,
                rule=settings.feedback,
                envelope=settings.envelope,
                has_actions=self._reading is not None,
            )
        except MalformedError:
            self._count_misplaced(oracle, record, None)
            oracle.malformed(record, "feedback")
        else:
            self._count_misplaced(oracle, record, feedback.id)
            if isinstance(feedback, Shown):
                oracle.shown(feedback.id, record)
            else:
                oracle.feedback(feedback, record)

    def _count_misplaced(self, oracle: Oracle, record: Record, event_id: str | None) -> None:
        """Count a record whose key belongs to a different partition. If the record has no key, its event id is used."""
        partitions = self._last.partitions
        key = record.key if record.key is not None or event_id is None else event_id.encode()
        if partitions > 1 and key is not None and partition_for(key, partitions) != self._partition:
            name = "contexts" if record.topic == self._topics.contexts else "feedback"
            oracle.counts[f"{name}_misplaced"] += 1

    def _predictions(self, step: JournalStep, last: JournalStep) -> dict[int, tuple[Record, Prediction]]:
        """Return a step's predictions, keyed by their contexts' offsets.

        If the model is shared, the journal contains the number and digest of the predictions. Any additional
        predictions are from other programs.
        """
        topic, log = self._topics.predictions, step.log
        records = self._take(topic, step, last)
        if log is not None:
            of_others = [record for record in records if codec.step_of(record) != step.number]
            records = [record for record in records if codec.step_of(record) == step.number]
            for record in (*of_others, *records[log.predictions :]):
                self._count_foreign(record, "according to the journal, no step wrote it")
            del records[log.predictions :]
            if predictions_digest(record.value or b"" for record in records) != log.sha256:
                self._fault(f"step {step.number}: {topic}/{self._partition} does not match the journal's digest")
        predictions: dict[int, tuple[Record, Prediction]] = {}
        for record, (prediction, offset) in self._decoded(records, codec.decode_prediction):
            if offset in predictions:
                self._fault(f"{place_of(record)}: a second prediction for the context at offset {offset}")
            predictions[offset] = record, prediction
        return predictions

    def _take(self, topic: str, step: JournalStep, last: JournalStep) -> list[Record]:
        """Return a step's records in an output topic, and any records from earlier steps that lie between them."""
        records = self._outputs[topic].take(step.number, outputs_of(step, last.ledger, self._topics)[topic])
        self._read[topic] = sum(codec.step_of(record) == step.number for record in records)
        return records

    def _check_whole(self, step: JournalStep, last: JournalStep, place: str) -> None:
        """Report the first step without any of its records in an output topic."""
        lacks = [
            topic for topic, n in outputs_of(step, last.ledger, self._topics).items() if n and not self._read[topic]
        ]
        if lacks and not self._is_torn:
            self._is_torn = True
            self._fault(f"{place}: none of the records of step {step.number} are in {', '.join(lacks)}. {IN_PART}")

    def _compare_outputs(self, oracle: Oracle, step: JournalStep, last: JournalStep) -> None:
        """Compare a step's examples and dead letters with the oracle's, and its drift alarms with the journal's."""
        topics = self._topics
        examples, letters = (self._take(topic, step, last) for topic in (topics.examples, topics.dead_letter))
        settled: list[tuple[Record, Example]] = []
        shown = 0  # number of drift alarms
        for record, example in self._decoded(examples, codec.decode_example):
            settled.append((record, replace(example, drift=None)))
            shown += example.drift is not None
        of_inputs = [
            (record, Letter(*found[:4]))
            for record, found in self._decoded(letters, decode_dead_letter)
            if found[0] in (topics.contexts, topics.feedback)
        ]
        self._compare(topics.examples, step, Example, oracle.events, settled)
        self._compare(topics.dead_letter, step, Letter, oracle.events, of_inputs)
        if self._has_new_learners:
            return  # the journal counts the alarms of the learner that decides, and none if there are challengers
        raised = step.alarms - last.alarms
        if raised < 0 or shown > raised or (shown < raised and last.number):  # an imported model can have alarms
            self._fault(f"step {step.number}: drift alarms: {raised} in its journal record, {shown} in its examples")

    def _compare(
        self,
        topic: str,
        step: JournalStep,
        kind: type,
        events: Sequence[AuditedEvent],
        published: Sequence[tuple[Record, Any]],
    ) -> None:
        """Report the first difference between a step's expected records and its published records."""
        expected = [event for event in events if isinstance(event, kind)]
        for event, got in zip_longest(expected, published):
            record, found = got or (None, None)
            if event != found:
                place = f"{topic}/{self._partition}" if record is None else place_of(record)
                one, other = str(event or "nothing"), str(found or "nothing")
                difference = f"{one}; got {other}" if one != other else differing(event, found)
                self._fault(f"{place}, step {step.number}: expected {difference}")
                return

    def _check_rest(self, topic: str, records: Iterable[Record]) -> None:
        """Report records in an output topic that do not belong to any step."""
        topics = self._topics
        if topic == topics.predictions and self._last.log is not None:
            for record in records:
                self._count_foreign(record, "according to the journal, no step wrote it")
            return
        decoders = {topics.predictions: codec.decode_prediction, topics.examples: codec.decode_example}
        for record, found in self._decoded(records, decoders.get(topic, decode_dead_letter)):
            if topic != topics.dead_letter or found[0] in (topics.contexts, topics.feedback):
                self._fault(f"{place_of(record)}: no step published this record")

    def _decoded(self, records: Iterable[Record], decode: Callable[[Record], Any]) -> Iterator[tuple[Record, Any]]:
        """Yield records with their decoded contents and report records that cannot be decoded."""
        for record in records:
            try:
                yield record, decode(record)
            except MalformedError as error:
                if codec.step_of(record) == 0:  # the record is not from a learner's step
                    self._count_foreign(record, str(error))
                else:
                    self._fault(f"{place_of(record)} cannot be read: {error}")

    def _records(self, topic: str, open_ms: int = 0) -> Generator[Record, None, None]:
        tp = TopicPartition(topic, self._partition)
        self._progress(f"reading {tp}")
        for number, record in enumerate(read_partition(self._broker, tp, self._needed[tp], open_ms), start=1):
            yield record
            if number % PROGRESS_RECORDS == 0:
                self._progress(f"reading {tp}: {number:,} records")

    def _published(self, topic: str) -> Iterator[Record]:
        """Yield the audited steps' records in an output topic, and earlier steps' records that follow them."""
        start = self._start
        has_begun = start is None or start.step.opens  # no step precedes a moved task's opening
        for record in self._records(topic, OPEN_MS):
            step = codec.step_of(record)
            has_begun = has_begun or (start is not None and (step or 0) > start.step.number)
            if not has_begun:
                continue
            if step is None:
                self._count_foreign(record, "the record has no step number")
                continue
            self._published_by = max(self._published_by, step)
            if step <= self._end:
                yield record

    def _check_journal_is_whole(self) -> None:
        """Read the journal again and check that it contains the last step with published records."""
        if self._published_by > self._end:
            entries = read_journal(self._broker, self._journal, open_ms=OPEN_MS)
            last = max((step.number for _, step in entries), default=0)
            if last < self._published_by:
                self._fault(
                    f"step {self._published_by} has published records, but the journal ends with step {last}. {IN_PART}"
                )

    def _check_ticks(self, behind: set[int]) -> None:
        """Check that each step with decisions, up to the step that wrote the last tick, has a tick.

        Without a tick, a step's decisions would never expire.
        """
        if self._oracle is not None:
            newest = max(self._oracle.dated_step, *behind, 0)
            for step in self._oracle.undated:
                if step < newest and step not in behind:
                    self._fault(f"step {step} has decisions, but {self._topics.feedback} has no tick for it")

    def _fault(self, message: str) -> None:
        if len(self._faults) < FAULTS_SHOWN_MAX:
            self._faults.append(message)

    def _count_foreign(self, record: Record, reason: str) -> None:
        """Count a record from another program."""
        self._foreign_count += 1
        if len(self._foreign) < FAULTS_SHOWN_MAX:
            self._foreign.append(f"{place_of(record)} is not from a learner: {reason}")


def _is_unmatched(settings: TaskSettings, context: Context, action: int) -> bool:
    """Return whether a decision in a replay is unmatched because the log has no bit for its action."""
    logged, least = context.logged, settings.propensity_min
    if settings.play != "match" or logged is None:
        return False
    is_taken = least == 0.0 or uniform(settings.seed, Purpose.LOG, context.id) * (logged.propensity or 0.0) < least
    return action != logged.action or not is_taken
