"""Joins a pipeline's contexts, predictions and examples into rows of a decision log.

The topics are read twice. The first pass reads each partition's predictions and examples in the order of their steps,
and writes each decision's outcome to a temporary file. Its memory is that of the join: the ids of the pending
decisions. The second pass reads the predictions again, with their contexts and outcomes, and yields the decisions of
all partitions in the order of their times.

A log must not contain only the early outcomes of its last decisions: of the decisions without an outcome so far, those
with a right action may be settled sooner than those with a wrong one. The log therefore ends before the oldest pending
decision.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from enum import StrEnum
from heapq import merge
from math import inf, isnan, nan
from operator import attrgetter
from struct import Struct
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import orjson

from stream.errors import OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import offset_at, read_partition
from stream.verifying.starts import CLOCKS_MS
from stream.wire.codec import MalformedError, decode_example, decode_prediction_fields, json_of, step_of
from stream.wire.records import NOT_ELIGIBLE, Arm, Envelope, Example, Outcome, Record, TopicPartition
from stream.wire.topics import Topics
from stream.wire.typed_fields import PredictionFields


class ExportError(OnebitError):
    """The decisions cannot be exported."""


class LeftOut(StrEnum):
    """Reasons why a decision is not in the log. The values are names in messages."""

    PENDING = "pending"
    AFTER_PENDING = "made-after-oldest-pending"  # settled, but the log ends before the oldest pending decision
    UNSHOWN = "unshown"  # deferred, and not shown in time
    UNMATCHED = "unmatched"  # the replayed log has no bit for this action
    NO_CONTEXT = "context-deleted"
    NO_EXAMPLE = "example-deleted"
    NO_NAMES = "features-without-names"  # the pipeline has named features, and the context has indices
    NO_PROPENSITY = "propensity-missing"  # a replayed log has propensities for other decisions only


class LoggedDecision(NamedTuple):
    """A settled decision, as a row of a log."""

    id: str
    decided_at_ms: int  # append time of the prediction; never decreases from row to row
    x: Any  # features, as in the context; None if the context has none
    actions: list[dict[str, Any]] | None  # actions with features, as in the context; None if it has none
    eligible: tuple[int, ...] | None  # indices of the eligible classes; None if all classes are eligible
    eligible_names: tuple[str, ...] | None  # as listed in the context, if the pipeline has open classes
    action: int
    class_name: str | None  # the action's name; None if the classes have no names
    greedy: int
    propensity: float | None
    model_version: int
    arm: Arm | None
    outcome: Outcome
    reward: float | None
    delay_ms: int | None
    baseline: int | None  # the class that the service's own rule plays; None if the context does not name it


class Range(NamedTuple):
    """The time range of the decisions, in milliseconds since 1970. None means unlimited."""

    since_ms: int | None = None
    until_ms: int | None = None  # exclusive


_OUTCOME = Struct("<bdq")  # the outcome's number, the reward, and the delay in ms; -1 or NaN if unknown
_OUTCOMES = tuple(Outcome)
_UNKNOWN = -1


class DecisionLog:
    """The decisions of all partitions. Call `settle` once, then `rows`; the other attributes are complete afterwards.

    Use as a context manager, which deletes the temporary files.
    """

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        partitions: int,
        extent: Range,
        *,
        is_open: bool = False,
        envelope: Envelope = "none",
        progress: Callable[[int, int], None] = lambda read, total: None,
    ) -> None:
        """Prepare to read a pipeline's topics.

        Args:
            broker: the broker.
            topics: the topics.
            partitions: the number of partitions.
            extent: the time range.
            is_open: whether contexts name the classes, as open classes.
            envelope: the envelope of contexts from other programs.
            progress: called for each decision with the number read in this pass, and their total in the second pass,
                otherwise 0.
        """
        self.left_out: Counter[LeftOut] = Counter()
        self.ends_at_ms: int | None = None  # time of the oldest pending decision; None if no decision is pending
        self.decisions = 0  # number of decisions in the range
        self.has_propensities = self.has_baselines = False
        self._progress = progress
        self.is_open = is_open
        self.envelope = envelope
        self._stack = ExitStack()
        self._partitions = [_Partition(broker, topics, number, extent, self) for number in range(partitions)]

    def __enter__(self) -> "DecisionLog":
        self._stack.__enter__()
        for partition in self._partitions:
            partition.outcomes = self._stack.enter_context(TemporaryFile(prefix="onebit-"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def settle(self) -> None:
        """Make the first pass: find each decision's outcome, and the time at which the log ends."""
        pending_ms = [partition.settle() for partition in self._partitions]
        self.ends_at_ms = min((each for each in pending_ms if each is not None), default=None)

    def rows(self) -> Generator[LoggedDecision, None, None]:
        """Make the second pass: yield the decisions in the order of their times."""
        self._read = 0
        found = [self._stack.enter_context(closing(partition.rows())) for partition in self._partitions]
        yield from merge(*found, key=attrgetter("decided_at_ms"))

    def count_settled(self) -> None:
        """Count a decision in the first pass."""
        self.decisions += 1
        self._progress(self.decisions, 0)

    def count_row(self) -> None:
        """Count a decision in the second pass."""
        self._read += 1
        self._progress(self._read, self.decisions)


class _Partition:
    """The decisions of one partition."""

    def __init__(self, broker: Broker, topics: Topics, number: int, extent: Range, log: DecisionLog) -> None:
        self.outcomes: IO[bytes]
        self._broker, self._extent, self._log = broker, extent, log
        self._predictions = TopicPartition(topics.predictions, number)
        self._examples = TopicPartition(topics.examples, number)
        self._contexts = TopicPartition(topics.contexts, number)
        self._waiting: dict[str, list[tuple[int, int]]] = {}  # numbers and times of the pending decisions, by id
        self._lost_before = 0  # pending decisions with lower numbers may have had an example that was deleted
        self._count = 0
        self._first_offset = 0  # offset of the first prediction in the range

    def settle(self) -> int | None:
        """Store each decision's outcome. Return the time of the oldest pending decision, or None."""
        beginning = self._broker.beginnings([self._examples])[self._examples]
        start = self._start(self._examples, CLOCKS_MS)
        is_cut = beginning > 0 and start <= beginning
        with closing(self._made()) as made, closing(self._published(self._examples, start)) as examples:
            following = next(made, None)
            for step, record in examples:
                while following is not None and following[0] <= step:
                    self._hold(following[1], following[2], is_lost=is_cut and following[0] < step)
                    following = next(made, None)
                is_cut = False
                with suppress(MalformedError):  # `onebit verify` reports unreadable examples
                    self._settle(decode_example(record))
                if following is None and not self._waiting:
                    break
            while following is not None:
                self._hold(following[1], following[2], is_lost=is_cut)
                following = next(made, None)
        pending = [each for ids in self._waiting.values() for each in ids if each[0] >= self._lost_before]
        self._waiting.clear()
        return min((decided_ms for _, decided_ms in pending), default=None)

    def rows(self) -> Generator[LoggedDecision, None, None]:
        """Yield the settled decisions before the end of the log."""
        log, decided_ms = self._log, 0
        ends_at_ms = inf if log.ends_at_ms is None else log.ends_at_ms
        self.outcomes.seek(0)
        contexts: Generator[Record, None, None] | None = None
        context: Record | None = None
        try:
            for number, (_, record, fields) in enumerate(self._made()):
                if number >= self._count:
                    return
                if number == 0 and record.offset != self._first_offset:
                    raise ExportError(
                        f"{self._predictions}: expected the first prediction at offset {self._first_offset}; got "
                        f"offset {record.offset}: retention deleted records during the export. Run it again"
                    )
                log.count_row()
                outcome, reward, delay_ms = _OUTCOME.unpack(self.outcomes.read(_OUTCOME.size))
                decided_ms = max(decided_ms, record.append_ms)
                if reason := self._left_out(record, fields, outcome, ends_at_ms):
                    log.left_out[reason] += 1
                    continue
                if contexts is None:
                    contexts = read_partition(
                        self._broker, self._contexts, start=self._first(self._contexts, fields.context_offset)
                    )
                while context is None or context.offset < fields.context_offset:
                    if (context := next(contexts, None)) is None:
                        break
                given = _context_of(context, fields, log.envelope)
                if given is None:
                    log.left_out[LeftOut.NO_CONTEXT] += 1
                    continue
                eligible, names = self._eligible(fields, given)
                yield LoggedDecision(
                    fields.id, decided_ms, given.get("x"), given.get("actions"), eligible, names, fields.action,
                    fields.class_name, fields.greedy, fields.propensity, fields.model_version, fields.arm,
                    _OUTCOMES[outcome], None if isnan(reward) else reward, None if delay_ms == _UNKNOWN else delay_ms,
                    fields.baseline,
                )  # fmt: skip
        finally:
            if contexts is not None:
                contexts.close()

    def _left_out(self, record: Record, fields: PredictionFields, outcome: int, ends_at_ms: float) -> LeftOut | None:
        if record.append_ms >= ends_at_ms:
            return LeftOut.PENDING if outcome == _UNKNOWN else LeftOut.AFTER_PENDING
        if outcome == _UNKNOWN:
            return LeftOut.NO_EXAMPLE
        if _OUTCOMES[outcome] is Outcome.UNSHOWN:
            return LeftOut.UNSHOWN
        if _OUTCOMES[outcome] is Outcome.UNMATCHED:
            return LeftOut.UNMATCHED
        if fields.propensity is None and self._log.has_propensities:
            return LeftOut.NO_PROPENSITY
        return None

    def _eligible(
        self, fields: PredictionFields, context: dict[str, Any]
    ) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None]:
        if self._log.is_open:
            listed = context.get("eligible")
            return None, None if listed is None else tuple(listed)
        return tuple(k for k, score in enumerate(fields.scores) if score != NOT_ELIGIBLE), None

    def _hold(self, record: Record, fields: PredictionFields, *, is_lost: bool) -> None:
        """Store a decision that waits for its example."""
        if self._count == 0:
            self._first_offset = record.offset
        self._waiting.setdefault(fields.id, []).append((self._count, record.append_ms))
        self._log.has_propensities = self._log.has_propensities or fields.propensity is not None
        self._log.has_baselines = self._log.has_baselines or fields.baseline is not None
        self._count += 1
        if is_lost:
            self._lost_before = self._count
        self.outcomes.seek(0, 2)
        self.outcomes.write(_OUTCOME.pack(_UNKNOWN, nan, _UNKNOWN))
        self._log.count_settled()

    def _settle(self, example: Example) -> None:
        """Store a decision's outcome. The example of a decision before the range is ignored."""
        held = self._waiting.get(example.id)
        if held is None:
            return
        number, _ = held.pop(0)
        if not held:
            del self._waiting[example.id]
        reward = nan if example.reward is None else example.reward
        delay_ms = _UNKNOWN if example.delay_ms is None else example.delay_ms
        self.outcomes.seek(number * _OUTCOME.size)
        self.outcomes.write(_OUTCOME.pack(_OUTCOMES.index(example.outcome), reward, delay_ms))

    def _made(self) -> Generator[tuple[int, Record, PredictionFields], None, None]:
        """Yield the predictions in the range, with their steps."""
        with closing(self._published(self._predictions, self._start(self._predictions, 0))) as published:
            for step, record in published:
                if self._extent.until_ms is not None and record.append_ms >= self._extent.until_ms:
                    return
                try:
                    yield step, record, decode_prediction_fields(record)
                except MalformedError:
                    continue

    def _published(self, tp: TopicPartition, start: int) -> Generator[tuple[int, Record], None, None]:
        """Yield the records that the learner's steps have published."""
        with closing(read_partition(self._broker, tp, start=start)) as records:
            for record in records:
                if step := step_of(record):
                    yield step, record

    def _start(self, tp: TopicPartition, margin_ms: int) -> int:
        """Return the first offset to read in an output topic."""
        since_ms = self._extent.since_ms
        return self._first(tp, 0) if since_ms is None else offset_at(self._broker, tp, since_ms - margin_ms)

    def _first(self, tp: TopicPartition, offset: int) -> int:
        """Return an offset, or the first retained one if its record was deleted."""
        return max(offset, self._broker.beginnings([tp])[tp])


def _context_of(record: Record | None, fields: PredictionFields, envelope: Envelope) -> dict[str, Any] | None:
    """Return a decision's context, or None if the record has a different offset or id."""
    if record is None or record.offset != fields.context_offset:
        return None
    try:
        context = orjson.loads(json_of(record, envelope))
    except (MalformedError, orjson.JSONDecodeError):  # another record, after the topic was recreated
        return None
    is_same = (
        type(context) is dict and context.get("id") == fields.id and not context.keys().isdisjoint(("x", "actions"))
    )
    return context if is_same else None
