"""Counts of rewards and feedback delays of the decisions matched since a program started."""

from collections import deque
from collections.abc import Iterable, Iterator

from stream.telemetry import metrics
from stream.telemetry.metrics import Sample
from stream.telemetry.sketch import Sketch
from stream.wire.events import Example, Outcome

RECENT = 1_000


class RewardCounts:
    """Rewards and delays of matched decisions."""

    def __init__(self) -> None:
        self._judged = 0
        self._rewards = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._delays = Sketch()

    def add(self, examples: Iterable[Example]) -> None:
        """Add settled decisions."""
        matched = [example for example in examples if example.outcome is Outcome.MATCHED]
        bits = [example.reward or 0 for example in matched]
        self._judged += len(bits)
        self._rewards += sum(bits)
        self._recent.extend(bits)
        for example in matched:
            if example.delay_ms is not None:
                self._delays.add(example.delay_ms)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples."""
        yield metrics.JUDGED.at(self._judged)
        yield metrics.REWARDS.at(self._rewards)
        if self._recent:
            yield metrics.REWARD_RATIO.at(sum(self._recent) / len(self._recent))
        yield self._delays.sample_of(metrics.FEEDBACK_DELAY)
