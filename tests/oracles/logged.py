"""The interface for the test oracles, which are naive transcriptions of the papers' pseudocode."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from stream.wire.records import FloatArray

Eligible = Sequence[int] | None
"""The eligible classes; None if all classes are eligible."""


def among(scores: FloatArray, eligible: Eligible) -> FloatArray:
    """Return the scores of the eligible classes, and -inf for the others."""
    kept = np.full(scores.size, -np.inf)
    chosen = range(scores.size) if eligible is None else eligible
    for k in chosen:
        kept[k] = scores[k]
    return kept


class Logged(NamedTuple):
    """A decision made by an oracle."""

    action: int
    greedy: int
    propensity: float
    scores: FloatArray  # -inf for classes that are not eligible


class Oracle(Protocol):
    """A paper's pseudocode in plain numpy, on dense vectors."""

    def predict(self, x: FloatArray, u: float) -> Logged:
        """Return a decision for x."""

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        """Learn from the reward of a decision."""

    def weights(self) -> FloatArray:
        """Return the linear weights. Raises NotImplementedError if there are none."""


class LimitedOracle(Protocol):
    """An oracle that supports eligible classes."""

    def predict(self, x: FloatArray, u: float, eligible: Eligible) -> Logged:
        """Return a decision for x."""


@runtime_checkable
class ObservingOracle(Protocol):
    """An oracle whose decisions change its state."""

    def observe(self, x: FloatArray, logged: Logged) -> None:
        """Update the state with a decision."""


@runtime_checkable
class LabelledOracle(Protocol):
    """The pseudocode of a full-information algorithm in plain numpy, on dense vectors."""

    def predict(self, x: FloatArray, u: float) -> Logged:
        """Return a decision for x."""

    def learn(self, x: FloatArray, logged: Logged, label: int) -> None:
        """Learn from the true class of a decision's context."""

    def weights(self) -> FloatArray:
        """Return the linear weights."""


def sample(p: FloatArray, u: float) -> int:
    """Return the first class i with u < p_0 + ... + p_i. If rounding leaves no such class, returns the last class."""
    below = np.flatnonzero(u < np.cumsum(p))
    return int(below[0]) if below.size else p.size - 1
