"""The arithmetic that several learners share, compiled.

Every kernel is a function over flat arrays: numba unboxes a bare array in 0.1 µs and a tuple of arrays in 2.5 µs. The
order of arguments is fixed, event first and model last, so that `stream.offline` can call any learner's kernels from
one compiled loop:

    predict(indices, values, u, scores, *model) -> (action, greedy, propensity)
    update(indices, values, action, greedy, propensity, scores, reward, v, label, *model) -> changed

Kernels are compiled without fast-math: the same input gives the same bits, in a replay as in the first run.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

from stream.events import FloatArray, IndexArray

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call and cache the machine code on disk (numba picks a writable place)."""
    return cast(Callable[P, R], njit(cache=True)(function))


@compiled
def linear_scores(indices: IndexArray, values: FloatArray, W: FloatArray, scores: FloatArray) -> None:
    """scores[k] = ⟨W_k, x⟩, summed in the order of the indices."""
    for k in range(W.shape[0]):
        score = 0.0
        for j in range(indices.size):
            score += W[k, indices[j]] * values[j]
        scores[k] = score


@compiled
def argmax(scores: FloatArray) -> int:
    """The class with the highest score; ties go to the lowest class."""
    best = 0
    for k in range(1, scores.size):
        if scores[k] > scores[best]:
            best = k
    return best


@compiled
def argmax_except(scores: FloatArray, excluded: int) -> int:
    """The class with the highest score among the classes other than `excluded`; ties go to the lowest class."""
    best = 1 if excluded == 0 else 0
    for k in range(best + 1, scores.size):
        if k != excluded and scores[k] > scores[best]:
            best = k
    return best


@compiled
def sample_epsilon_greedy(greedy: int, n_classes: int, gamma: float, u: float) -> tuple[int, float]:
    """Sample from p_i = (1-γ)[i = greedy] + γ/K: the first class i with u < p_0 + ... + p_i; and its propensity."""
    uniform = gamma / n_classes
    cumulative = 0.0
    for k in range(n_classes):
        p = uniform + (1.0 - gamma) if k == greedy else uniform
        cumulative += p
        if u < cumulative or k == n_classes - 1:
            return k, p
    return 0, 0.0  # not reached: K is at least 2


@compiled
def add_scaled(W: FloatArray, row: int, scale: float, indices: IndexArray, values: FloatArray) -> None:
    """W_row += scale · x."""
    for j in range(indices.size):
        W[row, indices[j]] += scale * values[j]
