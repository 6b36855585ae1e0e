"""What the naive transcriptions log at prediction time, and what the tests ask of them."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from stream.wire.records import FloatArray


class Logged(NamedTuple):
    """A naive learner's own record of a decision."""

    action: int
    greedy: int
    propensity: float
    scores: FloatArray


class Oracle(Protocol):
    """A paper's pseudocode in plain numpy, on dense vectors."""

    def predict(self, x: FloatArray, u: float) -> Logged:
        """Decide for x."""

    def update(self, x: FloatArray, logged: Logged, reward: int, v: float) -> None:
        """Learn from the bit."""

    def weights(self) -> FloatArray:
        """The linear weights; raises NotImplementedError where there are none."""


@runtime_checkable
class ObservingOracle(Protocol):
    """One whose state moves with a decision."""

    def observe(self, x: FloatArray, logged: Logged) -> None:
        """Take note of a decision."""


@runtime_checkable
class LabelledOracle(Protocol):
    """The same for a full-information algorithm."""

    def predict(self, x: FloatArray, u: float) -> Logged:
        """Decide for x."""

    def learn(self, x: FloatArray, logged: Logged, label: int) -> None:
        """Learn from the true class."""

    def weights(self) -> FloatArray:
        """The linear weights."""


def sample(p: FloatArray, u: float) -> int:
    """The first class i with u < p_0 + ... + p_i; the last one if rounding leaves none."""
    below = np.flatnonzero(u < np.cumsum(p))
    return int(below[0]) if below.size else p.size - 1
