"""The audit behind `onebit verify`: the ledger again, from the topics alone.

It shares neither counters nor the join with the learner. It reads what came in and what went out, and accounts for
every offset of the inputs that the journal says were applied:

    contexts   an offset has a prediction, or a dead letter, or its id was decided at an earlier offset
    feedback   an offset settled an example, or has a dead letter, or its id had been settled, or it waits
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from stream import codec
from stream.broker import Broker
from stream.checkpoint import OPEN_MS, JournalError, JournalStep, decode_step, read_partition, with_defaults
from stream.codec import DEAD_LETTER_MALFORMED, DEAD_LETTER_ORPHAN, MalformedError
from stream.events import Example, Feedback, Outcome
from stream.learners import registered
from stream.ledger import Ledger
from stream.records import Record, TopicPartition
from stream.topics import Topics


class Finding(NamedTuple):
    """The audit of one partition."""

    partition: int
    learner: Ledger  # as the learner counted, in the last record of its journal
    audited: Ledger  # as the topics say
    faults: tuple[str, ...]  # what is wrong beside the counts: each names a record
    contexts_behind: int  # context offsets that have not been applied yet
    feedback_behind: int
    gone: tuple[str, ...] = ()  # what has been deleted of the topics: then nothing was recomputed

    @property
    def ok(self) -> bool:
        """Whether the two ledgers agree, add up, and nothing else is wrong."""
        return self.learner == self.audited and self.audited.balances and not self.faults and not self.gone

    def as_json(self) -> dict[str, object]:
        """The finding as plain values."""
        return {
            "partition": self.partition,
            "ok": self.ok,
            "learner": self.learner._asdict(),
            "audited": self.audited._asdict(),
            "faults": self.faults,
            "gone": self.gone,
            "contexts_behind": self.contexts_behind,
            "feedback_behind": self.feedback_behind,
        }


FAULTS_SHOWN_MAX = 20
"""A partition that is wrong in one way is often wrong in thousands of records; the first ones tell enough."""


class _Settled(NamedTuple):
    example: Example
    decided_at_ms: int
    feedback_offset: int | None
    place: str


class _Place(NamedTuple):
    """When a record was applied, to be compared with other places."""

    step: int
    append_ms: int
    input: int  # 0: of the contexts, which come first; 1: of the feedback
    offset: int


@dataclass(slots=True)
class _Audit:
    """What the topics of one partition say."""

    topics: Topics
    partition: int
    faults: list[str] = field(default_factory=list)
    # The decisions of each id: action, propensity and time; one, unless it was forgotten and came again.
    decisions: dict[str, list[tuple[int, float, int]]] = field(default_factory=lambda: defaultdict(list))
    prediction_of: dict[int, str] = field(default_factory=dict)  # context offset -> id
    decided_in: list[int] = field(default_factory=list)  # the step of each prediction
    settled_count: int = 0  # examples so far: they stand in the order in which decisions were settled
    settled: dict[str, list[_Settled]] = field(default_factory=lambda: defaultdict(list))
    settled_by: dict[int, _Settled] = field(default_factory=dict)  # by feedback offset
    dead: dict[tuple[str, int], str] = field(default_factory=dict)  # (topic, offset) -> kind
    steps: list[tuple[int, int]] = field(default_factory=list)  # where each step ended: context and feedback offset
    begun_at: tuple[int, int] | None = None  # where the first one began; None: there is none
    decided_as: dict[str, list[_Place]] = field(default_factory=lambda: defaultdict(list))  # of each id, in order
    latest_step: int = 0  # of those that have published
    feedback_end_ms: int = -1  # the latest time at which all feedback had been applied

    def fault(self, message: str) -> None:
        if len(self.faults) < FAULTS_SHOWN_MAX:
            self.faults.append(message)

    def place(self, record: Record, of_input: int) -> _Place:
        """When a record was applied: in which step, and where in it."""
        step = bisect_right(self.steps, record.offset, key=itemgetter(of_input))
        return _Place(step, record.append_ms, of_input, record.offset)


def audit_partition(
    broker: Broker,
    topics: Topics,
    partition: int,
    progress: Callable[[str], None] = lambda topic: None,
) -> Finding:
    """Recompute one partition's ledger from its topics.

    Raises:
        JournalError: the journal cannot be read.
    """
    audit = _Audit(topics, partition)
    journal = TopicPartition(topics.journal, partition)
    is_whole = broker.beginnings([journal])[journal] == 0
    opening, last = _journal(broker, journal, audit) if is_whole else (None, _NO_STEP)
    if gone := _gone(broker, audit):
        return Finding(partition, Ledger(), Ledger(), (), 0, 0, gone)

    def records(topic: str, open_ms: int = 0) -> list[Record]:
        progress(topic)
        return list(read_partition(broker, TopicPartition(topic, partition), open_ms=open_ms))

    def published(topic: str) -> list[Record]:
        """What the steps up to the last one read have published: the learner may go on meanwhile."""
        found = [(codec.step_of(record), record) for record in records(topic, OPEN_MS)]
        audit.latest_step = max(audit.latest_step, *(step for step, _ in found), 0)
        return [record for step, record in found if opening is None or step <= last.number]

    for record in published(topics.predictions):
        _read_prediction(audit, record)
    contexts = records(topics.contexts)
    feedback = records(topics.feedback)
    if opening is None:
        if audit.prediction_of:
            audit.fault(f"{len(audit.prediction_of)} predictions, and no journal")
        return Finding(partition, Ledger(), Ledger(), tuple(audit.faults), len(contexts), len(feedback))
    for record in published(topics.examples):
        _read_example(audit, record, opening)
    for record in published(topics.dead_letter):
        _read_dead_letter(audit, record)
    if audit.latest_step > last.number:
        # With an audit of its own: the steps of this one are those up to the last one read.
        _, now_last = _journal(broker, journal, _Audit(topics, partition))
        if now_last.number < audit.latest_step:
            audit.fault(f"step {audit.latest_step} has published, and the journal ends with step {now_last.number}")
    counts = _count_contexts(audit, contexts, last.contexts[1], opening["n_features"])
    counts |= _count_feedback(audit, feedback, last.feedback[1], opening)
    applied_ms = (record.append_ms for record in feedback if record.offset < last.feedback[1])
    _check_overdue(audit, max(audit.feedback_end_ms, *applied_ms, -1), opening["join"]["window_ms"])
    settled = [entry for entries in audit.settled.values() for entry in entries]
    counts["matched"] = sum(entry.example.outcome is Outcome.MATCHED for entry in settled)
    counts["expired"] = len(settled) - counts["matched"]
    counts["pending"] = counts["decided"] - len(settled)
    return Finding(
        partition,
        last.ledger,
        Ledger(**counts),
        tuple(audit.faults),
        sum(record.offset >= last.contexts[1] for record in contexts),
        sum(record.offset >= last.feedback[1] for record in feedback),
        _gone(broker, audit),  # it may have been deleted while it was read
    )


_NO_STEP = JournalStep(0, (0, 0), (0, 0), 0, -1, 0, Ledger())


def _gone(broker: Broker, audit: _Audit) -> tuple[str, ...]:
    """Which topics begin behind what the ledger takes: the inputs from the first step on, and all that was written."""
    topics = audit.topics
    needed = dict.fromkeys((topics.journal, topics.predictions, topics.examples, topics.dead_letter), 0)
    needed |= dict(zip((topics.contexts, topics.feedback), audit.begun_at or (), strict=False))
    beginnings = broker.beginnings([TopicPartition(topic, audit.partition) for topic in needed])
    return tuple(
        f"{tp.topic}/{tp.partition} begins at offset {beginning}, and the ledger is counted from offset "
        f"{needed[tp.topic]} on: what was before is deleted; set its retention.ms to -1 for pipelines that are to be "
        "verified"
        for tp, beginning in beginnings.items()
        if beginning > needed[tp.topic]
    )


def _journal(broker: Broker, tp: TopicPartition, audit: _Audit) -> tuple[dict[str, Any] | None, JournalStep]:
    """The settings that open a journal, and its last step; None and nothing done for an empty one."""
    opening: dict[str, Any] | None = None
    last = _NO_STEP
    for record in read_partition(broker, tp, open_ms=OPEN_MS):
        entry = decode_step(record)
        if isinstance(entry, JournalStep):
            follows = last.number == 0 or (entry.contexts[0], entry.feedback[0]) == (last.contexts[1], last.feedback[1])
            if entry.number != last.number + 1 or not follows:
                audit.fault(f"journal at offset {record.offset}: step {entry.number} does not follow on {last.number}")
            audit.begun_at = audit.begun_at or (entry.contexts[0], entry.feedback[0])
            last = entry
            audit.steps.append((entry.contexts[1], entry.feedback[1]))
            audit.feedback_end_ms = max(audit.feedback_end_ms, entry.feedback_end_ms)
        else:
            opening = with_defaults(entry)
    if opening is None and last.number:
        raise JournalError(
            f"{tp.topic}/{tp.partition}: the record that opens the journal is gone; nothing can be audited"
        )
    return opening, last


def _read_prediction(audit: _Audit, record: Record) -> None:
    try:
        prediction, context_offset = codec.decode_prediction(record)
    except MalformedError as error:
        audit.fault(f"prediction at offset {record.offset} cannot be read: {error}")
        return
    if context_offset in audit.prediction_of:
        audit.fault(f"context offset {context_offset} has two predictions; the second is at offset {record.offset}")
    audit.prediction_of[context_offset] = prediction.id
    audit.decided_in.append(codec.step_of(record))
    action, _, propensity, _, _ = prediction.decision
    audit.decisions[prediction.id].append((action, propensity, prediction.decided_at_ms))


def _read_example(audit: _Audit, record: Record, opening: dict[str, Any]) -> None:
    audit.settled_count += 1
    try:
        example, feedback_offset = codec.decode_example(record)
    except MalformedError as error:
        audit.fault(f"example at offset {record.offset} cannot be read: {error}")
        return
    place = f"example at offset {record.offset}"
    decisions, before = audit.decisions.get(example.id, []), len(audit.settled[example.id])
    if before >= len(decisions):
        audit.fault(f"{place} settles {example.id!r} once more than it has predictions, {len(decisions)}")
        action, propensity, decided_at_ms = example.action, example.propensity, 0
    else:
        action, propensity, decided_at_ms = decisions[before]
    if (example.action, example.propensity) != (action, propensity):
        audit.fault(
            f"{place}: action {example.action} with propensity {example.propensity} is not that of the prediction, "
            f"{action} with {propensity}"
        )
    settled = _Settled(example, decided_at_ms, feedback_offset, place)
    audit.settled[example.id].append(settled)
    deadline_ms = decided_at_ms + opening["join"]["window_ms"]
    if example.outcome is Outcome.EXPIRED:
        assumed_reward = 0 if opening["on_expiry"] == "negative" else None
        # Only to make room does a decision expire before its time: when those made up to this step, and not settled
        # before this one, are more than may be pending. Which of the step's were made before it, the topics do not say.
        pending = bisect_right(audit.decided_in, codec.step_of(record)) - audit.settled_count + 1
        if example.settled_at_ms <= deadline_ms and pending <= opening["join"]["pending_max"]:
            audit.fault(f"{place}: expired at {example.settled_at_ms} ms, and its deadline is {deadline_ms} ms")
        if (example.reward, example.delay_ms, feedback_offset) != (assumed_reward, None, None):
            audit.fault(f"{place}: expired with reward {example.reward}; expected {assumed_reward} and no feedback")
        return
    if feedback_offset is None or feedback_offset in audit.settled_by:
        audit.fault(f"{place}: feedback offset {feedback_offset} missing or used twice")
        return
    audit.settled_by[feedback_offset] = settled
    if example.delay_ms is None or decided_at_ms + example.delay_ms > deadline_ms:
        audit.fault(f"{place}: matched after {example.delay_ms} of {opening['join']['window_ms']} ms")


def _read_dead_letter(audit: _Audit, record: Record) -> None:
    try:
        topic, partition, offset, kind = codec.decode_dead_letter(record)
    except MalformedError as error:
        audit.fault(f"dead letter at offset {record.offset} cannot be read: {error}")
        return
    if topic not in (audit.topics.contexts, audit.topics.feedback):
        return  # of another program
    if partition != audit.partition or (topic, offset) in audit.dead:
        audit.fault(f"dead letter at offset {record.offset}: {topic}/{partition} offset {offset} is foreign or twice")
    audit.dead[topic, offset] = kind


def _count_contexts(audit: _Audit, contexts: list[Record], end: int, n_features: int) -> dict[str, int]:
    counts = {"contexts": 0, "decided": 0, "context_duplicates": 0, "context_malformed": 0}
    decided: set[str] = set()
    for record in contexts:
        if record.offset >= end:
            break
        counts["contexts"] += 1
        place = f"context at offset {record.offset}"
        dead = (audit.topics.contexts, record.offset) in audit.dead
        try:
            event_id = codec.decode_context(record, n_features).id
        except MalformedError:
            counts["context_malformed"] += 1
            if not dead:
                audit.fault(f"{place} is malformed and has no dead letter")
            continue
        if dead:
            audit.fault(f"{place} has a dead letter, and can be read")
        if record.offset in audit.prediction_of:
            counts["decided"] += 1
            if audit.prediction_of[record.offset] != event_id:
                audit.fault(f"{place} is {event_id!r}; its prediction is of {audit.prediction_of[record.offset]!r}")
            decided.add(event_id)
            audit.decided_as[event_id].append(audit.place(record, 0))
        elif event_id in decided:
            counts["context_duplicates"] += 1
        else:
            audit.fault(f"{place}, {event_id!r}, has no prediction")
    if counts["decided"] != len(audit.prediction_of):
        audit.fault(f"{len(audit.prediction_of)} predictions answer {counts['decided']} applied contexts")
    return counts


def _count_feedback(audit: _Audit, feedback: list[Record], end: int, opening: dict[str, Any]) -> dict[str, int]:
    names = ("feedback", "matched", "late", "feedback_duplicates", "conflicts")
    counts = dict.fromkeys((*names, "orphans_waiting", "orphans_dropped", "feedback_malformed"), 0)
    needs_label = registered()[opening["learner"]].needs_label
    orphans: dict[str, _Orphan] = {}  # of each id the latest feedback that waited for its context
    for record in feedback:
        if record.offset >= end:
            break
        counts["feedback"] += 1
        kind = audit.dead.get((audit.topics.feedback, record.offset))
        try:
            event = codec.decode_feedback(record, opening["n_classes"], needs_label=needs_label)
        except MalformedError:
            counts["feedback_malformed"] += 1
            if kind != DEAD_LETTER_MALFORMED:
                audit.fault(f"feedback at offset {record.offset} is malformed and has no dead letter")
            continue
        place = audit.place(record, 1)
        decisions = bisect_right(audit.decided_as.get(event.id, ()), place)  # of this id, before this feedback
        if kind == DEAD_LETTER_ORPHAN:
            counts["orphans_dropped"] += 1
            if decisions and not _is_forgotten(audit, event.id, decisions, record.append_ms, opening["join"]):
                audit.fault(f"feedback at offset {record.offset} was dropped as an orphan; {event.id!r} was decided")
            orphans[event.id] = _Orphan(decisions, record.append_ms, event.reward)
        elif record.offset in audit.settled_by:
            counts["matched"] += 1
            settled = audit.settled_by[record.offset]
            _check_matched(audit, settled, record, event)
            if decisions < len(audit.settled[event.id]) and audit.settled[event.id][decisions] is settled:
                orphans[event.id] = _Orphan(decisions, record.append_ms, event.reward)
        else:
            _count_other(audit, record, event, decisions, orphans, opening["join"], counts)
    if counts["matched"] != len(audit.settled_by):
        audit.fault(f"{len(audit.settled_by)} matched examples name {counts['matched']} applied feedback records")
    return counts


def _is_forgotten(audit: _Audit, event_id: str, decisions: int, append_ms: int, join: dict[str, int]) -> bool:
    """Whether an id was decided, settled, and no longer remembered at some time."""
    settled = audit.settled[event_id]
    if len(settled) < decisions:
        return False
    made_room = sum(map(len, audit.settled.values())) > join["retained_max"]
    return made_room or append_ms > settled[decisions - 1].example.settled_at_ms + join["retain_ms"]


def _check_overdue(audit: _Audit, watermark_ms: int, window_ms: int) -> None:
    """Whether a decision still waits although its deadline has passed."""
    for event_id, decisions in audit.decisions.items():
        for _, _, decided_at_ms in decisions[len(audit.settled[event_id]) :]:
            if decided_at_ms + window_ms < watermark_ms:
                audit.fault(
                    f"{event_id!r} is pending at {watermark_ms} ms; its deadline was {decided_at_ms + window_ms} ms"
                )


def _check_matched(audit: _Audit, settled: _Settled, record: Record, event: Feedback) -> None:
    """Whether an example says what its feedback said."""
    example = settled.example
    expected = (event.id, event.reward, record.append_ms - settled.decided_at_ms)
    if (example.id, example.reward, example.delay_ms) != expected:
        audit.fault(
            f"{settled.place}: {example.id!r} with reward {example.reward} after {example.delay_ms} ms; its feedback "
            f"at offset {record.offset} is of {expected[0]!r} with {expected[1]} after {expected[2]} ms"
        )


class _Orphan(NamedTuple):
    """Feedback that waited for its context."""

    decisions: int  # of its id, before it came
    append_ms: int
    reward: int


def _count_other(
    audit: _Audit,
    record: Record,
    event: Feedback,
    decisions: int,
    orphans: dict[str, _Orphan],
    join: dict[str, int],
    counts: dict[str, int],
) -> None:
    """Count feedback that settled nothing and was not dropped: a duplicate, late, or an orphan that still waits."""
    orphan = orphans.get(event.id)
    first_bit: int | None = None
    if orphan and orphan.decisions == decisions and record.append_ms <= orphan.append_ms + join["orphan_ms"]:
        first_bit = orphan.reward
    elif decisions > len(audit.settled[event.id]):
        audit.fault(f"feedback at offset {record.offset} did not settle {event.id!r}, which is pending")
    elif decisions:
        example, decided_at_ms, feedback_offset, _ = audit.settled[event.id][decisions - 1]
        if feedback_offset is not None and feedback_offset > record.offset:
            audit.fault(f"feedback at offset {record.offset} did not settle {event.id!r}; offset {feedback_offset} did")
        if record.append_ms <= example.settled_at_ms + join["retain_ms"]:
            if example.outcome is Outcome.EXPIRED:
                counts["late"] += 1
                _check_late(audit, record, event.id, example, decided_at_ms + join["window_ms"])
                return
            first_bit = example.reward
    if first_bit is not None:
        counts["feedback_duplicates"] += 1
        counts["conflicts"] += first_bit != event.reward
        return
    counts["orphans_waiting"] += 1
    orphans[event.id] = _Orphan(decisions, record.append_ms, event.reward)


def _check_late(audit: _Audit, record: Record, event_id: str, example: Example, deadline_ms: int) -> None:
    """Whether feedback that changed nothing had indeed come too late."""
    if record.append_ms <= deadline_ms < example.settled_at_ms:
        audit.fault(
            f"feedback at offset {record.offset} came in time for {event_id!r}, at {record.append_ms} ms with "
            f"the deadline at {deadline_ms} ms; the decision expired all the same"
        )
