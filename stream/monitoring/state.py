"""What the monitor knows of one partition, and the offsets at which it reads on, as one value.

Counts and offsets are stored together: a record that is read again, since a monitor was killed, is below its offset and
counts for nothing. What is counted here, record by record, is what the ledgers in the journals do not have: windows,
delays, latencies, classes, what other policies would have earned, dead letters by reason.

As bytes, the value is JSON, see `encode`. A later format is another group, which reads the topics anew.
"""

from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import orjson
import xxhash

from stream.monitoring.latencies import Latencies
from stream.monitoring.pending import PendingDecisions, Settled, in_sample
from stream.monitoring.policies import Contexts, Policies
from stream.monitoring.windows import Counts, Windows, as_lists, from_lists
from stream.telemetry.sketch import Sketch
from stream.wire.codec import MalformedError, decode_example, decode_prediction
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from stream.wire.events import Outcome
from stream.wire.records import Record
from stream.wire.topics import Topics

FORMAT = 1

REASONS_MAX = 10
"""Reasons of dead letters in each partition; beyond it the one that has been absent longest is evicted."""

CLASSES_MAX = 500
"""Classes that are counted on their own; more would make the value too large to be written again and again."""

REASON_MAX = 300
"""Characters of a reason that are kept."""


class Letters(NamedTuple):
    """Dead letters with the same reason: their number, and the last one."""

    n: int
    append_ms: int
    offset: int  # of the letter
    source: str  # topic/partition offset n of the record
    kind: str
    reason: str


class PartitionState:
    """One partition, as far as it was read."""

    def __init__(self, policies: Policies | None = None) -> None:
        self._policies = policies or Policies()
        self.next_offset: dict[str, int] = {}  # by topic
        self.windows = Windows()
        self.classes: dict[int, Counts] = {}
        self.delays = Sketch()
        self.latencies = Latencies()
        self.pending = PendingDecisions(self._policies.keys)
        self.letters: dict[str, Letters] = {}  # by reason, the one that was seen last at the end
        self.unreadable = 0  # records that no learner wrote, among its outputs
        self.passed_over = 0  # decisions and what became of them, that were not in the sample

    def take(self, topics: Topics, record: Record, level: int = 0, contexts: Contexts = MappingProxyType({})) -> bool:
        """Take in a committed record; whether it was new.

        Args:
            topics: the pipeline's.
            record: the record.
            level: decisions are taken in, and what became of them, of one id in 2**level.
            contexts: those of decisions, where a policy looks at them.
        """
        if record.offset < self.next_offset.get(record.topic, 0):
            return False
        self.next_offset[record.topic] = record.offset + 1
        try:
            if record.topic == topics.contexts:
                self.latencies.ask(record.offset, record.append_ms)
            elif record.topic == topics.dead_letter:
                self._take_letter(record)
            elif not in_sample(number := hash_of(record), level):
                self.passed_over += 1
            elif record.topic == topics.predictions:
                self._take_prediction(record, number, contexts)
            elif record.topic == topics.examples:
                self._take_example(record, number)
        except MalformedError:
            self.unreadable += 1
        return True

    def _take_prediction(self, record: Record, number: int, contexts: Contexts) -> None:
        prediction, context_offset = decode_prediction(record)
        decision = prediction.decision
        self._count(record, decision.action, Counts(decided=1, explored=int(decision.action != decision.greedy)))
        self.latencies.answer(context_offset, record.append_ms)
        context = contexts.get((record.partition, context_offset))
        weights = partial(self._policies.weights, record, prediction, context)
        self._weigh(self.pending.decide(number, weights, record.append_ms))

    def _take_example(self, record: Record, number: int) -> None:
        example = decode_example(record)[0]
        self._weigh(self.pending.settle(number, example, record.append_ms))
        if example.outcome is Outcome.MATCHED:
            self._count(record, example.action, Counts(matched=1, rewards=int(example.reward or 0)))
            if example.delay_ms is not None:
                self.delays.add(example.delay_ms)
        elif example.outcome is Outcome.EXPIRED:
            self._count(record, example.action, Counts(expired=1))

    def _weigh(self, settled: Settled | None) -> None:
        if settled is not None:
            append_ms, weight, reward = settled
            self.windows.add(append_ms, Counts(0, 0, 0, 0, 0, 1, weight, weight * weight, weight * reward))

    def _count(self, record: Record, action: int, counts: Counts) -> None:
        self.windows.add(record.append_ms, counts)
        if action in self.classes or len(self.classes) < CLASSES_MAX:
            self.classes[action] = self.classes.get(action, Counts()) + counts

    def _take_letter(self, record: Record) -> None:
        headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
        place = f"{headers.get('onebit-topic', '?')}/{headers.get('onebit-partition', '?')}"
        source = f"{place} offset {headers.get('onebit-offset', '?')}"
        kind, reason = headers.get("onebit-kind", "?"), headers.get("onebit-reason", "?")[:REASON_MAX]
        group = _group(kind, reason)
        n = self.letters.pop(group).n if group in self.letters else 0
        self.letters[group] = Letters(n + 1, record.append_ms, record.offset, source, kind, reason)
        if len(self.letters) > REASONS_MAX:
            del self.letters[next(iter(self.letters))]


def _group(kind: str, reason: str) -> str:
    """The part of a reason that records have in common: a malformed one ends with the value that was found.

    >>> _group("malformed", "x: expected 64 numbers; got 63"), _group("orphan", "feedback for 'a': none")
    ('malformed x: expected 64 numbers', 'orphan')
    """
    return f"{kind} {reason.partition('; ')[0]}" if kind == DEAD_LETTER_MALFORMED else kind


def hash_of(record: Record) -> int:
    """32 bits of an id, which is the key of what a learner writes."""
    return xxhash.xxh32_intdigest(record.key or b"")


def encode(state: PartitionState) -> bytes:
    """The value of a partition in the monitor's table."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "next": state.next_offset,
            "windows": as_lists(state.windows.counts),
            "classes": as_lists(state.classes),
            "delays": state.delays.as_lists(),
            "latencies": state.latencies.state(),
            "pending": state.pending.state(),
            "letters": state.letters,
            "unreadable": state.unreadable,
            "passed_over": state.passed_over,
        },
        default=list,  # of named tuples
    )


def decode(value: bytes, policies: Policies | None = None) -> PartitionState:
    """Read a value that this version wrote, to go on judging these policies."""
    fields = orjson.loads(value)
    state = PartitionState(policies)
    state.next_offset = fields["next"]
    state.windows = Windows(from_lists(fields["windows"]))
    state.classes = from_lists(fields["classes"])
    state.delays = Sketch(dict(fields["delays"]))
    state.letters = {group: Letters(*letters) for group, letters in fields["letters"].items()}
    state.latencies.load(fields["latencies"])
    state.pending.load(fields["pending"])
    state.unreadable = fields["unreadable"]
    state.passed_over = fields["passed_over"]
    return state
