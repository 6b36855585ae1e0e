"""The settled decisions, in order of publication, that precede the first pending decision.

If feedback for right answers arrives sooner than feedback for wrong answers, an estimate that counts each bit on
arrival is biased upwards. A decision is therefore counted only when it and all earlier decisions are settled:

    decided   1  2  3  4  5  6
    settled   ✓  ✓  …  ✓  ✓  …      counted: 1, 2. When 3 is settled, 3 to 5 are counted.

*Memory.* Decisions after the first pending decision are stored. A decision is pending for at most one window, so at
most one window of decisions is stored. The memory per decision is less than in the join.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stream.wire.records import Example, Prediction
from stream.wire.rewards import BITS, RewardRange

V = TypeVar("V")


@dataclass(slots=True)
class _Decided(Generic[V]):
    """A decision that has not been counted yet."""

    partition: int
    value: V
    is_settled: bool = False
    reward: float | None = None  # a share; None if the decision has no outcome yet, or never receives one


class PrefixEstimator(ABC, Generic[V]):
    """Base class for estimators that count a decision only when it and all earlier decisions are settled.

    Estimators process the output of steps. A subclass defines a decision's value, and how settled decisions are
    counted.
    """

    def __init__(self, rewards: RewardRange = BITS) -> None:
        """Initialise without decisions. `rewards` is the range of the pipeline's rewards."""
        self._rewards = rewards
        self._decided: deque[_Decided[V]] = deque()
        self._pending: dict[tuple[int, str], _Decided[V]] = {}
        self._steps: dict[int, int] = {}  # number of the last step, by partition
        self._left = 0  # number of decisions that were discarded

    @abstractmethod
    def value_of(self, prediction: Prediction) -> V | None:
        """Return the value to store for a decision, or None if the decision is to be ignored."""

    def reward_of(self, example: Example) -> float | None:
        """Return the reward of a settled decision as a share, or None if it has no reward."""
        return None if example.reward is None else self._rewards.share(example.reward)

    @abstractmethod
    def count_settled(self, settled: Sequence[tuple[V, float | None]]) -> None:
        """Count settled decisions, each with its value and its reward as a share."""

    @property
    def waiting(self) -> int:
        """The number of decisions that are pending or follow a pending decision."""
        return len(self._decided)

    def take(self, partition: int, step: int, predictions: Iterable[Prediction], examples: Iterable[Example]) -> None:
        """Add the output of a partition's step.

        Examples for unknown decisions are ignored, because these decisions were made before this estimator started.

        Args:
            partition: The partition.
            step: The step number. A gap means that another process performed the steps in between and may have settled
                decisions. The partition's decisions are then discarded.
            predictions: The decisions, in order.
            examples: The settled decisions, from this and earlier steps.
        """
        if self._steps.get(partition, step - 1) != step - 1:
            self._leave({partition})
        self._steps[partition] = step
        for prediction in predictions:
            value = self.value_of(prediction)
            if value is not None:
                decided = _Decided(partition, value)
                self._decided.append(decided)
                self._pending[partition, prediction.id] = decided
        for example in examples:
            settled = self._pending.pop((partition, example.id), None)
            if settled is not None:
                settled.is_settled, settled.reward = True, self.reward_of(example)
        self._advance()

    def keep(self, partitions: Container[int]) -> None:
        """Discard the decisions from all but these partitions, because other processes will settle them."""
        self._leave({partition for partition in self._steps if partition not in partitions})
        self._advance()

    def _leave(self, partitions: set[int]) -> None:
        """Discard the partitions' uncounted decisions, even settled ones, to avoid a bias towards early bits."""
        if not partitions:
            return
        kept = [decided for decided in self._decided if decided.partition not in partitions]
        self._left += len(self._decided) - len(kept)
        self._decided = deque(kept)
        self._pending = {key: decided for key, decided in self._pending.items() if key[0] not in partitions}
        for partition in partitions:
            self._steps.pop(partition, None)

    def _advance(self) -> None:
        """Count the decisions before the first pending decision."""
        rows: list[tuple[V, float | None]] = []
        while self._decided and self._decided[0].is_settled:
            decided = self._decided.popleft()
            rows.append((decided.value, decided.reward))
        self.count_settled(rows)
