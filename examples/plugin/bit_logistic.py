"""A single-file package that adds a learner and a data set to Onebit."""

from collections.abc import Mapping
from math import exp
from typing import Any, ClassVar

import numpy as np

import onebit
from stream.learners.kernels import (
    add_scaled,
    argmax,
    check_event,
    compiled,
    limit,
    linear_scores,
    sample_epsilon_greedy,
    usable,
)


@compiled
def predict(
    indices: Any, values: Any, u: float, scores: Any, eligible: Any, W: Any, epsilon: float, step: float
) -> tuple[int, int, float]:
    """Play the class with the highest score or, with probability epsilon, a class drawn uniformly at random."""
    check_event(indices, values, W.shape[1])
    linear_scores(indices, values, W, scores)
    limit(scores, eligible)
    greedy = argmax(scores)
    action, propensity = sample_epsilon_greedy(greedy, scores, epsilon, u)
    return action, greedy, propensity


@compiled
def update(
    indices: Any, values: Any, action: int, greedy: int, propensity: float, scores: Any, reward: int, v: float,
    label: int, W: Any, epsilon: float, step: float,
) -> bool:  # fmt: skip
    """Take one gradient step on the log loss of the bit."""
    if not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    score = 0.0
    for j in range(indices.size):
        score += W[action, indices[j]] * values[j]
    add_scaled(W, action, step * (reward - 1.0 / (1.0 + exp(-min(max(score, -30.0), 30.0)))), indices, values)
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
    predict_kernel = staticmethod(predict)
    update_kernel = staticmethod(update)

    def __init__(self, n_classes: int, n_features: int, epsilon: float, step: float) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, (W, epsilon, step))  # state, and the kernels' last arguments

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
