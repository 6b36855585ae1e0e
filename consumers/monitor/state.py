"""The monitor's state for one partition, and the offsets of the next records to read, as one value.

Because counts and offsets are stored together, records that are read again after a crash are recognised by their
offsets and ignored. The state contains counts that the ledgers in the journals do not have: windows, delays, latencies,
classes, off-policy estimates, and dead letters by reason.

The value is JSON; see `encode`. A new format uses a new consumer group, which reads the topics from the start.
"""

from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import orjson
import xxhash

from consumers.monitor.latencies import Latencies
from consumers.monitor.pending import PendingDecisions, Settled, in_sample
from consumers.monitor.policies import Contexts, Policies
from consumers.monitor.windows import DecisionCounts, Windows, as_lists, from_lists
from stream.telemetry.sketch import Sketch
from stream.wire.codec import MalformedError, decode_example, decode_prediction
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from stream.wire.records import Outcome, Record
from stream.wire.topics import Topics

FORMAT = 1

REASONS_MAX = 10
"""Maximum number of dead-letter reasons per partition. If there are more, the least recently seen reason is evicted."""

CLASSES_MAX = 500
"""Limit on the number of classes, or of action ids, with separate counts. It is small because the stored state is
rewritten frequently. If there are more ids, the least recently seen one is removed."""

REASON_MAX = 300
"""Maximum number of characters stored for a reason."""


class Letters(NamedTuple):
    """The number of dead letters with the same reason, and the details of the last such dead letter."""

    n: int
    append_ms: int
    offset: int  # offset of the dead letter
    source: str  # position of the original record, as topic/partition offset n
    kind: str
    reason: str


class PartitionState:
    """A partition's state after the records read so far."""

    def __init__(self, policies: Policies | None = None) -> None:
        self._policies = policies or Policies()
        self.next_offset: dict[str, int] = {}  # offset of the next record to read, by topic
        self.windows = Windows()
        self.classes: dict[int | str, DecisionCounts] = {}  # by class, or by id with the most recent id last
        self.delays = Sketch()
        self.latencies = Latencies()
        self.pending = PendingDecisions(self._policies.keys, self._policies.comparisons())
        self.letters: dict[str, Letters] = {}  # dead letters by reason, with the most recent reason last
        self.unreadable = 0  # number of records from other programs in the output topics
        self.passed_over = 0  # number of decisions and outcomes outside the sample

    def take(self, topics: Topics, record: Record, level: int = 0, contexts: Contexts = MappingProxyType({})) -> bool:
        """Add a committed record; return whether it was new.

        Args:
            topics: The pipeline's topics.
            record: The record.
            level: One in every 2**level decisions is processed, selected by id.
            contexts: The decisions' contexts, for policies that require them.
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
        played = decision.action if prediction.actions is None else prediction.class_name
        self._count(record, played, DecisionCounts(decided=1, explored=int(decision.action != decision.greedy)))
        self.latencies.answer(context_offset, record.append_ms)
        context = contexts.get((record.partition, context_offset))
        weights = partial(self._policies.weights, record, prediction, context)
        self._weigh(self.pending.decide(number, prediction, weights, record.append_ms))

    def _take_example(self, record: Record, number: int) -> None:
        example = decode_example(record)
        rewards = self._policies.rewards
        self._weigh(self.pending.settle(number, example, record.append_ms, rewards))
        played = example.action if example.class_name is None else example.class_name
        if example.outcome is Outcome.MATCHED:
            share = rewards.share(example.reward or 0)
            self._count(record, played, DecisionCounts(matched=1, rewards=share))
            if example.delay_ms is not None:
                self.delays.add(example.delay_ms)
        elif example.outcome is Outcome.EXPIRED:
            self._count(record, played, DecisionCounts(expired=1))

    def _weigh(self, settled: Settled | None) -> None:
        if settled is not None:
            append_ms, weight, reward = settled
            self.windows.add(append_ms, DecisionCounts(0, 0, 0, 0, 0, 1, weight, weight * weight, weight * reward))

    def _count(self, record: Record, action: int | str | None, counts: DecisionCounts) -> None:
        """Count a decision or its outcome for a class or an action's id; only in the windows if it is None."""
        self.windows.add(record.append_ms, counts)
        if isinstance(action, str):
            self.classes[action] = self.classes.pop(action, DecisionCounts()) + counts
            if len(self.classes) > CLASSES_MAX:
                del self.classes[next(iter(self.classes))]
        elif action is None:
            return
        elif action in self.classes or len(self.classes) < CLASSES_MAX:
            self.classes[action] = self.classes.get(action, DecisionCounts()) + counts

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
    """Return the key under which a dead letter is counted: its kind and, if malformed, its reason without the value.

    >>> _group("malformed", "x: expected 64 numbers; got 63"), _group("orphan", "feedback for 'a': none")
    ('malformed x: expected 64 numbers', 'orphan')
    """
    return f"{kind} {reason.partition('; ')[0]}" if kind == DEAD_LETTER_MALFORMED else kind


def hash_of(record: Record) -> int:
    """Return a 32-bit hash of the event id, which is the record's key."""
    return xxhash.xxh32_intdigest(record.key or b"")


def encode(state: PartitionState) -> bytes:
    """Encode a partition's state for the monitor's table."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "next": state.next_offset,
            "windows": as_lists(state.windows.counts),
            "classes": [[action, *counts] for action, counts in state.classes.items()],
            "delays": state.delays.as_lists(),
            "latencies": state.latencies.state(),
            "pending": state.pending.state(),
            "letters": state.letters,
            "unreadable": state.unreadable,
            "passed_over": state.passed_over,
        },
        default=list,  # orjson does not accept named tuples
    )


def decode(value: bytes, policies: Policies | None = None) -> PartitionState:
    """Decode a state written by this version, for use with these policies."""
    fields = orjson.loads(value)
    state = PartitionState(policies)
    state.next_offset = fields["next"]
    state.windows = Windows(from_lists(fields["windows"]))
    state.classes = {action: DecisionCounts(*counts) for action, *counts in fields["classes"]}
    state.delays = Sketch(dict(fields["delays"]))
    state.letters = {group: Letters(*letters) for group, letters in fields["letters"].items()}
    state.latencies.load(fields["latencies"])
    state.pending.load(fields["pending"])
    state.unreadable = fields["unreadable"]
    state.passed_over = fields["passed_over"]
    return state
