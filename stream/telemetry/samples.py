"""Metric samples for a task's ledger (for the learner and the monitor), and for rewards and delays."""

from collections import deque
from collections.abc import Iterable, Iterator

from stream.telemetry import metrics
from stream.telemetry.metrics import Sample
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger
from stream.wire.records import Example, Outcome
from stream.wire.rewards import BITS, RewardRange

_CONTEXT_RESULTS = {"decided": "decided", "context_duplicates": "duplicate", "context_malformed": "malformed"}
_OUTCOMES = ("matched", "expired", "unmatched", "unshown")
_FEEDBACK_RESULTS = {
    "matched": "matched",
    "late": "late",
    "feedback_duplicates": "duplicate",
    "mismatched": "mismatched",
    "orphans_dropped": "orphan",
    "feedback_malformed": "malformed",
    "feedback_unmatched": "unmatched",
    "shown": "shown",
    "combined": "combined",
    "feedback_excess": "excess",
}


def ledger_samples(partition: int, ledger: Ledger, version: int, alarms: int) -> Iterator[Sample]:
    """Yield a task's counts.

    Args:
        partition: The task's partition.
        ledger: Its counts.
        version: The version of the task's model.
        alarms: The number of drift alarms for the task's model.
    """
    at = str(partition)
    counts = ledger._asdict()
    for name, result in _CONTEXT_RESULTS.items():
        yield metrics.CONTEXTS.at(counts[name], at, result)
    yield metrics.DECISIONS.at(ledger.decided, at)
    for outcome in _OUTCOMES:
        yield metrics.SETTLED.at(counts[outcome], at, outcome)
    yield metrics.PENDING.at(ledger.pending, at)
    yield metrics.ANSWERED.at(ledger.answered, at)
    yield metrics.DEFERRED.at(ledger.deferred, at)
    for name, result in _FEEDBACK_RESULTS.items():
        yield metrics.FEEDBACK_RECORDS.at(counts[name], at, result)
    yield metrics.WAITING_ORPHANS.at(ledger.orphans_waiting, at)
    yield metrics.CONFLICTS.at(ledger.conflicts, at)
    yield metrics.MISPLACED.at(ledger.contexts_misplaced, at, "contexts")
    yield metrics.MISPLACED.at(ledger.feedback_misplaced, at, "feedback")
    yield metrics.DEAD_LETTERS.at(ledger.context_malformed + ledger.feedback_malformed, at, "malformed")
    yield metrics.DEAD_LETTERS.at(ledger.mismatched, at, "mismatched")
    yield metrics.DEAD_LETTERS.at(ledger.orphans_dropped, at, "orphan")
    yield metrics.DEAD_LETTERS.at(ledger.feedback_excess, at, "excess")
    yield metrics.LEDGER_BALANCED.at(float(ledger.balances), at)
    yield metrics.MODEL_VERSION.at(version, at)
    yield metrics.DRIFT_ALARMS.at(alarms, at)


RECENT = 1_000


class RewardCounts:
    """Rewards and delays of matched decisions."""

    def __init__(self) -> None:
        self._judged = 0
        self._rewards: float = 0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._delays = Sketch()

    def add(self, examples: Iterable[Example]) -> None:
        """Add settled decisions."""
        matched = [example for example in examples if example.outcome is Outcome.MATCHED]
        rewards = [example.reward or 0 for example in matched]
        self._judged += len(rewards)
        self._rewards += sum(rewards)
        self._recent.extend(rewards)
        for example in matched:
            if example.delay_ms is not None:
                self._delays.add(example.delay_ms)

    def samples(self, rewards: RewardRange = BITS) -> Iterator[Sample]:
        """Yield the samples. A counter never decreases, so the sum counts each reward from the lowest one on."""
        yield metrics.JUDGED.at(self._judged)
        yield metrics.REWARDS.at(self._rewards - self._judged * rewards.low)
        if self._recent:
            yield metrics.REWARD_RATIO.at(sum(self._recent) / len(self._recent))
        yield self._delays.sample_of(metrics.FEEDBACK_DELAY)
