"""A single-file package that adds a learner and a data set to Onebit."""

from collections.abc import Mapping
from math import exp
from typing import Any, ClassVar, NamedTuple

import numpy as np

import onebit
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    add_scaled,
    kernel,
    linear_greedy,
    sample_epsilon_greedy,
    usable,
)


class Model(NamedTuple):
    """The kernels' last argument: the weights and the parameters."""

    W: Any  # float64[K, d]
    epsilon: float
    step: float


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Play the class with the highest score or, with probability epsilon, a class drawn uniformly at random."""
    greedy = linear_greedy(event, model.W)
    action, propensity = sample_epsilon_greedy(greedy, event.scores, model.epsilon, event.u)
    return action, greedy, propensity


@kernel
def update(event: Decided, model: Model) -> bool:
    """Take one gradient step on the log loss of the bit."""
    if not usable(event, *model.W.shape):
        return False
    indices, values = event.x
    score = 0.0
    for j in range(indices.size):
        score += model.W[event.action, indices[j]] * values[j]
    error = event.reward - 1.0 / (1.0 + exp(-min(max(score, -30.0), 30.0)))
    add_scaled(model.W, event.action, model.step * error, event.x)
    return True


class BitLogistic(onebit.KernelLearner):
    """Logistic regressions that predict the bit, one per class, with epsilon-greedy exploration."""

    name: ClassVar[str] = "bit-logistic"
    summary: ClassVar[str] = "logistic regression of the bit, epsilon-greedy"
    paper: ClassVar[str] = "-"
    parameters: ClassVar[tuple[onebit.Parameter, ...]] = (
        onebit.Parameter("epsilon", 0.1, "probability of uniform exploration", low=0.0, high=1.0),
        onebit.Parameter("step", 0.5, "step size for the gradient descent", low=0.0, high=1e6),
    )
    supports_eligible: ClassVar[bool] = True
    kernels = Kernels(predict, update)

    def __init__(self, n_classes: int, n_features: int, epsilon: float, step: float) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, Model(W, epsilon, step))  # the state and the model

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> onebit.Cost:
        """Return the operation count and memory per event, which `onebit learners` prints."""
        return onebit.Cost(2 * nnz * (n_classes + 1), 8 * nnz * (n_classes + 1), 8 * n_classes * n_features)


def load(seed: int) -> onebit.Dataset:
    """Generate 400 points around the corners of a square."""
    rng = np.random.Generator(np.random.PCG64(seed))
    labels = rng.integers(0, 4, 400)
    corners = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    return onebit.dense_dataset("four-corners", corners[labels] + rng.normal(0.0, 0.3, (400, 2)), labels.tolist())


four_corners = onebit.DatasetEntry(
    "four-corners", rows=400, n_features=2, n_classes=4, summary="points around the corners of a square",
    terms="none", load=load, is_generated=True,
)  # fmt: skip
