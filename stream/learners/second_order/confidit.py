"""Confidit: second-order scores with upper confidence bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, Extent, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import Kernels
from stream.learners.registry import register
from stream.learners.second_order.confidit_kernels import (
    CONFIDENCES,
    PENDING_MAX,
    DiagonalModel,
    FullModel,
    Settings,
    observe_diagonal,
    observe_full,
    predict_diagonal,
    predict_full,
    retract_diagonal,
    retract_full,
    update_diagonal,
    update_full,
)

VARIANTS = {  # Table 2 of the paper: projection, confidence, covariance
    1: (1, "theory", "full"),
    2: (0, "constant", "full"),
    3: (0, "theory", "full"),
    4: (1, "constant", "full"),
    5: (0, "constant", "diag"),
}


@dataclass(frozen=True, slots=True)
class Switch(Parameter):
    """An on/off parameter that accepts 1 or 0, True or False, and yes or no."""

    def accepted(self) -> str:
        """Describe the accepted values."""
        return "on (1, True, yes) or off (0, False, no)"

    def _converted(self, value: object) -> float | int | str | None:
        return {"1": 1, "true": 1, "yes": 1, "on": 1, "0": 0, "false": 0, "no": 0, "off": 0}.get(str(value).lower())


@register
class Confidit(KernelLearner):
    """One ridge regression per class; plays the class with the highest upper confidence bound.

    Crammer, Gentile, "Multiclass classification with bandit feedback using adaptive regularization", Machine Learning
    90 (2013), Fig. 1 and Table 2. Equation (9) is equation (5) in the ICML 2011 version.

        x̂ = x/‖x‖;  c_i = x̂ᵀA_i⁻¹x̂
        W' = the point nearest to W, in the norm of A, with -α ≤ w_iᵀx̂ and Σ_i w_iᵀx̂ = 1 + α - Kα   (`projection`)
        ŷ = argmax_i (w'_iᵀx̂ + ε_i)
        ε_i² = η c_i                                                                                  (11) `constant`
        ε_i² = 2c_i (1+α)² [½‖U‖² + ½ Σ_{s<t} x̂_sᵀA_{ŷ_s,s}⁻¹x̂_s + 9 ln((t+4)/δ)]                    (9) `theory`
        ε_i² = (9) with Σ_{s<t} q_s added in the bracket, q_t = q t^power                             (10) `modified`
        X = x̂ if right; if wrong, -x̂ with probability (1+α)/2 (when v < (1+α)/2), else x̂
        A_ŷ += x̂x̂ᵀ (`diag`: its diagonal);  w_ŷ = A_new⁻¹(A_old w'_ŷ + X)

    Symbols: w_i weights [K, d]; A_i correlations [K, d, d] or their diagonals [K, d], initially (1+α)² I (full matrices
    are stored as inverses); α `alpha`, in (-1, 1], which limits the spread of scores; η `eta`; ‖U‖² `u_norm_sq`; δ
    `delta`; q `approx_error`, power `approx_error_power`; t the round number, starting at 1. `variant` 1 to 5 selects a
    row of the paper's Table 2, which sets `projection`, `confidence` and `covariance`. With 0, these parameters are set
    individually. At α = 1, every wrong answer counts against the class, and v has no effect.

    The action is deterministic, so every propensity is 1 and u has no effect. At t = 1, all classes tie, and the
    learner plays class 0. Variant 5 can permanently stop playing a class: the diagonal treats features as independent,
    so the bound for a class that was wrong on common features may remain too low.

    Delay: an update uses the current w and A, and the decision's action, but no other field of the decision. w = A⁻¹ΣX
    is a ridge regression, so the order of updates does not matter. t and Σ q_s count decisions; Σ x̂ᵀA⁻¹x̂ has one term
    per update, computed with A after that update. The current W is projected at every decision, as in the paper:
    `predict` uses W', and `observe` replaces W with W'.

    Retraction: A is the same for either reward, and without projection w = A⁻¹ΣX. Up to rounding and in any order, the
    result is the same as if the original update had used the real bit, given the same actions. A projection cannot be
    reversed, so a learner with projection is not retractable.

    Departures from the paper: none for x ≠ 0. If x = 0, x is not scaled, the weights are not projected (the constraint
    has no solution), and there is no update. Rank-one changes to an inverse are applied 32 at a time; the resulting
    matrix is the same.

    >>> from stream.learners import create
    >>> learner = create("confidit", n_classes=3, n_features=2, variant=2)
    >>> decision = learner.predict(np.array([3.0, 4.0]), u=0.5)
    >>> decision.action, decision.propensity
    (0, 1.0)
    >>> learner.update(np.array([3.0, 4.0]), decision, reward=0)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.12, -0.16], [0.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "confidit"
    summary: ClassVar[str] = "second-order method with upper confidence bounds; full or diagonal matrices"
    paper: ClassVar[str] = "Crammer, Gentile 2013, Fig. 1"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("variant", 0, "row of the paper's Table 2; if 0, the next three parameters apply", 0, 5),
        Switch("projection", 0, "project the weights before every prediction"),
        Parameter("confidence", "constant", "formula for the bounds: (11), (9) or (10)", choices=CONFIDENCES),
        Parameter("covariance", "full", "covariance of each class: full matrix or diagonal", choices=("full", "diag")),
        Parameter("alpha", 1.0, "spread of the scores in the label model", low=-1.0, high=1.0, low_open=True),
        Parameter("eta", 1.0, "squared width of the constant bounds", low=0.0, can_change=True),
        Parameter("u_norm_sq", 1.0, "bound on the comparator's squared norm", low=0.0, can_change=True),
        Parameter(
            "delta",
            0.05,
            "failure probability of the theoretical bounds",
            low=0.0,
            high=1.0,
            low_open=True,
            can_change=True,
        ),
        Parameter("approx_error", 1.0, "factor q in q_t = q t^power, for the modified bounds", low=0.0),
        Parameter("approx_error_power", -0.5, "exponent in q_t = q t^power"),
    )
    from_logs: FromLogs = FromLogs.NOTHING
    grows: bool = True
    one_right_class: bool = False
    learns_values: bool = True
    randomised_update: ClassVar[bool] = True
    retractable: bool = True
    kernels = Kernels(predict_full, update_full, observe_full, retract=retract_full)
    instead: ClassVar[str] = "covariance=diag, whose state is diagonal"
    observed: Mapping[str, Extent] = {"memory": Extent.WHOLE}

    def __init__(self, n_classes: int, n_features: int, **parameters: Any) -> None:
        projection, confidence, covariance = _options(parameters)
        if projection:  # each decision projects the scores of all classes, which cannot be reversed
            self.from_logs, self.one_right_class, self.retractable = FromLogs.UNSOUND, True, False
            self.learns_values = False
            self.observed = {"memory": Extent.WHOLE, "W": Extent.WHOLE}
        names = ("alpha", "eta", "u_norm_sq", "delta", "approx_error", "approx_error_power")
        numbers = {name: float(parameters[name]) for name in names}
        options = Settings(**numbers, projection=bool(projection), confidence=CONFIDENCES.index(confidence))
        W, memory = np.zeros((n_classes, n_features)), np.zeros(3)
        start = (1.0 + options.alpha) ** 2
        if covariance == "diag":
            diagonal = DiagonalModel(W, np.full((n_classes, n_features), start), memory, options)
            kernels = Kernels(predict_diagonal, update_diagonal, observe_diagonal, retract=retract_diagonal)
            named = {"W": W, "A": diagonal.A, "memory": memory}
            super().__init__(n_classes, n_features, named, diagonal, kernels)
            return
        # np.full writes all pages at once. With np.zeros, pages are mapped at the first access, and reads take 20%
        # longer.
        inverses = np.full((n_classes, n_features, n_features), 0.0)
        inverses[:, np.arange(n_features), np.arange(n_features)] = 1.0 / start
        arrays: dict[str, NDArray[Any]] = {
            "W": W,
            "inverses": inverses,
            "rows": np.zeros((n_classes, PENDING_MAX, n_features)),
            "columns": np.zeros((n_classes, n_features, PENDING_MAX)),
            "counts": np.zeros(n_classes, dtype=np.int32),
            "memory": memory,
        }
        super().__init__(n_classes, n_features, arrays, FullModel(**arrays, settings=options))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of reading K·nnz²/2 entries and nnz rows, and of 1/32 of a pass (diagonal: K·nnz entries)."""
        projection, _, covariance = _options(parameters)
        K, d = n_classes, n_features
        if covariance == "diag":
            return Cost(
                flops_per_event=nnz * (5 * K + 8 + projection * 4 * K),
                bytes_per_event=8 * nnz * (2 * K + 4 + projection * 2 * K),
                state_bytes=8 * (2 * K * d + 3),
            )
        applied = K + 1 if projection else 1  # products of an inverse and x
        return Cost(
            flops_per_event=K * nnz * (nnz + 2 + PENDING_MAX) + applied * 2 * d * (nnz + PENDING_MAX // 2) + d * d,
            bytes_per_event=8
            * (K * nnz * (nnz // 2 + 1 + PENDING_MAX) + applied * d * (nnz + PENDING_MAX // 2) + d * d // 4),
            state_bytes=8 * (K * d * (d + 1 + 2 * PENDING_MAX) + 3) + 4 * K,
        )


def _options(parameters: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return the projection, confidence and covariance options. A variant above 0 determines all three."""
    variant = int(parameters["variant"])
    if variant:
        return VARIANTS[variant]
    return int(parameters["projection"]), str(parameters["confidence"]), str(parameters["covariance"])
