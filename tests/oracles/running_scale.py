"""A direct implementation of a learner with a running scale. The oracle computes each scale from the stored contexts.

    scale(0)   the sign of each value
    scale(v)   means and standard deviations of the columns over the first 2^(v + 3) contexts, v = 1, 2, ...

A decision and its update use the newest scale at the time of the decision. Contexts are dense.
"""

from typing import NamedTuple

import numpy as np

from stream.learners import Learner
from stream.wire.records import Decision, Features, FloatArray


class Scaled(NamedTuple):
    """A decision and its scaled context."""

    z: Features
    decision: Decision


class RunningScaleOracle:
    """A learner, and all previous contexts, which determine the scale."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.contexts: list[FloatArray] = []

    @property
    def version(self) -> int:
        n, version = len(self.contexts), 0
        while 2 ** (version + 4) <= n:
            version += 1
        return version

    def decide(self, x: FloatArray, u: float) -> Scaled:
        z = standard(np.array(self.contexts[: 2 ** (self.version + 3)]), x) if self.version else np.sign(x)
        indices = np.flatnonzero(z).astype(np.int32)
        features = Features(indices, z[indices])
        decision = self.learner.predict(features, u)
        self.learner.observe(features, decision)
        self.contexts.append(x)
        return Scaled(features, decision)

    def learn(self, scaled: Scaled, reward: int, label: int) -> None:
        self.learner.update(scaled.z, scaled.decision, reward, 0.5, label)

    def correct(self, scaled: Scaled, assumed: int, reward: int) -> None:
        self.learner.retract(scaled.z, scaled.decision, assumed, reward, 0.5)


def standard(X: FloatArray, x: FloatArray) -> FloatArray:
    """Return x scaled by the statistics of each column in X."""
    z = np.zeros(x.size)
    for i in range(x.size):
        column = X[:, i]
        others = column[column != 0.0]
        if np.all(column == column[0]):
            z[i] = np.sign(x[i])
        elif 2 * others.size < column.size:
            z[i] = x[i] / np.sqrt(np.mean(others**2))
        else:
            z[i] = (x[i] - column.mean()) / column.std()
    clipped: FloatArray = np.clip(z, -10.0, 10.0)
    return clipped
