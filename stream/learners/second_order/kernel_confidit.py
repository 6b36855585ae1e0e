"""Confidit in dual variables, with ridge scores and bounds in a kernel's feature space."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    SIMILARITIES,
    Decided,
    Event,
    Kernels,
    Similarity,
    argmax,
    bounded,
    check_event,
    kernel,
    similarity,
    squared_length,
    subroutine,
    sum_of_rows,
    unit,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray, IndexArray

SUPPORT_LIMIT = 30_000
"""Limit on `support_max`. The factors for 30,000 examples of one class need 3.6 GB."""

SLACK = 1e-9
"""A class is skipped if its bound is below the highest bound by at least this margin, relative to the score. The margin
is a million times the rounding error, so the action is the same as in the full computation."""


class Model(NamedTuple):
    """The stored examples of all classes; see `ConfiditKernel`."""

    S: FloatArray  # [d, support_max], an example per column
    L: FloatArray  # the rows of L_i⁻¹, one after another
    support: FloatArray  # [2, support_max], ‖x_s‖² (0 or 1), and a_i
    starts: IndexArray  # [support_max + 1], the offsets of the rows in L
    members: IndexArray  # [K, support_max], the numbers of a class's examples
    sizes: IndexArray  # [K]
    similarity: Similarity
    alpha: float
    eta: float


@subroutine
def variance(k: int, own: FloatArray, alone: float, enough: float, model: Model) -> float:
    """Return k(x, x) - k_kᵀG_k⁻¹k_k = k(x, x) - ‖L_k⁻¹k_k‖². `own` is k_k, the similarities to the examples of class k.

    Each row of L_k⁻¹ decreases the value. If the value falls below `enough`, the loop stops and the result is an upper
    bound.
    """
    L, starts, members = model.L, model.starts, model.members
    rest = alone
    for i in range(own.size):
        if rest < enough:
            break
        start = starts[members[k, i]]
        row = L[start : start + i + 1]
        s0 = s1 = s2 = s3 = 0.0  # independent sums, for instruction-level parallelism
        j = 0
        while j + 3 <= i:
            s0 += row[j] * own[j]
            s1 += row[j + 1] * own[j + 1]
            s2 += row[j + 2] * own[j + 2]
            s3 += row[j + 3] * own[j + 3]
            j += 4
        while j <= i:
            s0 += row[j] * own[j]
            j += 1
        z = (s0 + s1) + (s2 + s3)
        rest -= z * z
    return max(rest, 0.0)  # a negative value is a rounding error


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Given s_i = k_iᵀa_i, return the class with the highest s_i + √(η c_i).

    The greedy class is evaluated first. For every other class, the computation of c_i stops when the class's bound can
    no longer be the highest.
    """
    indices, values = event.x
    support, members, sizes = model.support, model.members, model.sizes
    scores = event.scores
    check_event(event.x, model.S.shape[0])
    lam = (1.0 + model.alpha) ** 2
    n = sizes.sum()
    x = unit(values)
    norm_sq = squared_length(x)
    similar = np.empty(n)  # ⟨x, x_p⟩
    sum_of_rows(model.S, indices, x, similar)
    alone = similarity(model.similarity, norm_sq, norm_sq, norm_sq)
    grouped = np.empty(n)  # the similarities, grouped by class
    first = np.zeros(scores.size + 1, np.int64)
    for k in range(scores.size):
        start = first[k]
        score = 0.0
        for i in range(sizes[k]):
            p = members[k, i]
            value = similarity(model.similarity, similar[p], norm_sq, support[0, p])
            grouped[start + i] = value
            score += value * support[1, p]
        scores[k] = bounded(score)
        first[k + 1] = start + sizes[k]
    greedy = argmax(scores)
    action = greedy
    own = grouped[first[greedy] : first[greedy + 1]]
    highest = scores[greedy] + sqrt(model.eta * variance(greedy, own, alone, -1.0, model) / lam)  # (11)
    for k in range(scores.size):
        if k == greedy:
            continue
        gap = highest - SLACK * (1.0 + abs(highest)) - scores[k]
        enough = lam * gap * gap / model.eta if gap > 0.0 and model.eta > 0.0 else -1.0
        own = grouped[first[k] : first[k + 1]]
        rest = variance(k, own, alone, enough, model)
        bound = scores[k] + sqrt(model.eta * rest / lam)  # (11)
        if bound > highest or (bound == highest and k < action):
            highest = bound
            action = k
    return action, greedy, 1.0


@kernel
def update(event: Decided, model: Model) -> bool:
    """Append x to the action's examples: add a row to L⁻¹ and recompute a = L⁻ᵀL⁻¹t. If S is full, do nothing."""
    indices, values = event.x
    S, L, support, starts, members = model.S, model.L, model.support, model.starts, model.members
    if not usable(event, model.sizes.size, S.shape[0]):
        return False
    n = model.sizes.sum()
    size = model.sizes[event.action]
    if n == S.shape[1]:
        return False
    x = unit(values)
    norm_sq = squared_length(x)
    own = np.empty(size)
    for i in range(size):
        p = members[event.action, i]
        dot = 0.0
        for j in range(indices.size):
            dot += x[j] * S[indices[j], p]
        own[i] = similarity(model.similarity, dot, norm_sq, support[0, p])
    row = L[starts[n] : starts[n] + size + 1]
    row[:] = 0.0
    rest = similarity(model.similarity, norm_sq, norm_sq, norm_sq)
    residual = -1.0 if event.v < 0.5 * (1.0 - event.reward) * (1.0 + model.alpha) else 1.0  # steps 6a, 6b, 7
    for i in range(size):
        p = members[event.action, i]
        residual -= own[i] * support[1, p]
        earlier = L[starts[p] : starts[p] + i + 1]
        z = 0.0
        for j in range(i + 1):
            z += earlier[j] * own[j]
        rest -= z * z
        for j in range(i + 1):
            row[j] -= z * earlier[j]
    pivot = sqrt((1.0 + model.alpha) ** 2 + max(rest, 0.0))
    row /= pivot
    row[size] = 1.0 / pivot
    residual /= pivot
    for i in range(size):
        support[1, members[event.action, i]] += row[i] * residual
    for j in range(indices.size):
        S[indices[j], n] = x[j]
    support[0, n] = norm_sq
    support[1, n] = residual / pivot
    starts[n + 1] = starts[n] + size + 1
    members[event.action, size] = n
    model.sizes[event.action] = size + 1
    return True


@register
class ConfiditKernel(KernelLearner):
    """Confidit without projection and with the bounds (11), in a kernel's feature space.

    Crammer, Gentile, "Multiclass classification with bandit feedback using adaptive regularization", Machine Learning
    90 (2013), sect. 3: Fig. 1 "run in dual variables".

        for the examples x_s played as class i, X_s = ±x_s with signs t_i:  G_i = (1+α)² I + [k(x_s, x_r)]
        s_i = k_iᵀG_i⁻¹t_i;  c_i = (k(x, x) - k_iᵀG_i⁻¹k_i) / (1+α)²,  with k_i = [k(x_s, x)]
        ŷ = argmax_i (s_i + √(η c_i))                                                                              (11)
        then (x, +1) joins the examples of ŷ if it was right; if wrong, (x, -1) when v < (1+α)/2, else (x, +1)

        linear      k(x, x') = ⟨x, x'⟩, the same learner as variant 2 of `confidit`
        rational    k(x, x') = 1 / (1 - ½⟨x, x'⟩)
        polynomial  k(x, x') = (1 + ⟨x, x'⟩)^degree
        rbf         k(x, x') = exp(-‖x - x'‖² / (2 width²))

    Symbols: x scaled to unit norm; x_s columns of S [d, support_max]; G_i = L_i L_iᵀ, the rows of L_i⁻¹ in L, at the
    offsets in `starts`; a_i = G_i⁻¹t_i, in row 1 of `support`; α `alpha`, in (-1, 1]; η `eta`. Each update appends one
    row; no matrix is inverted.

    Memory: all classes together store at most `support_max` examples. Further updates change nothing and return False.
    The first examples are kept, because removing one would widen the bounds near it and cause endless exploration.

    Delay: an update uses the current examples and the decision's action, but no other field of the decision. A ridge
    regression does not depend on the order of its examples, but the order determines which examples are stored.

    Departures from the paper: the support is limited.

    >>> from stream.learners import create
    >>> learner = create("confidit-kernel", n_classes=3, n_features=2, kernel="rbf", width=0.5)
    >>> x = np.array([3.0, 4.0])
    >>> learner.update(x, learner.predict(x, u=0.5), reward=0)
    True
    >>> learner.predict(x, u=0.5).scores.round(6).tolist()
    [-0.2, 0.0, 0.0]
    """

    name: ClassVar[str] = "confidit-kernel"
    summary: ClassVar[str] = "Confidit in a kernel's feature space"
    paper: ClassVar[str] = "Crammer, Gentile 2013, sect. 3"
    is_linear = False
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("kernel", "rbf", "k(x, x')", choices=SIMILARITIES),
        Parameter("degree", 2, "degree of the polynomial kernel", low=1, high=32),
        Parameter("width", 0.5, "width of the rbf kernel, for x scaled to unit norm", low=1e-9, high=1e9),
        Parameter("eta", 1.0, "squared width of the bounds", low=0.0, can_change=True),
        Parameter("alpha", 1.0, "spread of the scores in the label model", low=-1.0, high=1.0, low_open=True),
        Parameter(
            "support_max",
            1_000,
            "maximum number of stored examples, across all classes; further examples are ignored",
            low=1,
            high=SUPPORT_LIMIT,
        ),
    )
    from_logs: FromLogs = FromLogs.NOTHING
    grows: bool = True
    one_right_class: bool = False
    learns_values: bool = True
    randomised_update: ClassVar[bool] = True
    kernels = Kernels(predict, update)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        kernel: str,
        degree: int,
        width: float,
        eta: float,
        alpha: float,
        support_max: int,
    ) -> None:
        arrays: dict[str, NDArray[Any]] = {
            "S": np.zeros((n_features, support_max)),
            "L": np.zeros(support_max * (support_max + 1) // 2),
            "support": np.zeros((2, support_max)),  # row 0: ‖x_s‖² (0 or 1); row 1: a_i
            "starts": np.zeros(support_max + 1, dtype=np.int32),
            "members": np.zeros((n_classes, support_max), dtype=np.int32),
            "sizes": np.zeros(n_classes, dtype=np.int32),
        }
        k = Similarity(SIMILARITIES.index(kernel), degree, width)
        super().__init__(n_classes, n_features, arrays, Model(**arrays, similarity=k, alpha=alpha, eta=eta))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of the products and triangular factors, for a full support and equally frequent classes."""
        n = int(parameters["support_max"])
        triangles = n * n // (2 * n_classes)
        return Cost(
            flops_per_event=4 * n * (nnz + 4) + 2 * triangles + 4 * triangles // n_classes,
            bytes_per_event=16 * n * (nnz + 2) + 8 * triangles + 16 * triangles // n_classes,
            state_bytes=8 * (n * n_features + n * (n + 1) // 2 + 2 * n) + 4 * (n * n_classes + n + 1 + n_classes),
        )
