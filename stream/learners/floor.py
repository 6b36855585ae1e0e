"""A floor of exploration, so that any other policy can be evaluated from the decisions later."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stream.learners.base import U_REST, U_STEP, Cost, FromLogs, KernelLearner, Kernels, ParameterError
from stream.learners.wrapper import Wrapper
from stream.wire.records import Decision, Features, FloatArray, IndexArray

U_MAX = 1.0 - 2.0**-53
"""The largest u below 1."""


class Floor(Wrapper):
    """A learner that plays a uniformly random class with probability `floor`, and its own choice otherwise.

        u < f        play class ⌊K u/f⌋
        u ≥ f        play the learner's choice for (u − f)/(1 − f)
        propensity   f/K + (1 − f) p,  p the probability with which the learner chooses that class

    The propensity is exact: if the class is random, p comes from the learner's `distribution`.

    A learner that can learn from logged decisions learns from all of these, with the propensity above, as if it had
    played a log. Other learners assume that they chose the action (`FromLogs.UNSOUND`). They get only their own
    choices, with their own propensity p, which the decision logs. A random class is then neither observed nor learned.
    Since u is independent of the context, the learner sees a random sample of the stream.

    >>> from stream.learners import create
    >>> learner = Floor(create("perceptron", n_classes=4, n_features=2), 0.2)
    >>> [learner.predict(np.ones(2), u)[::2][:2] for u in (0.19, 0.5)]  # the action, and its propensity
    [(3, 0.05), (0, 0.8500000000000001)]
    """

    def __init__(self, inner: KernelLearner, floor: float) -> None:
        """Add a floor to a learner.

        Raises:
            ParameterError: the floor is not a probability.
        """
        if not 0.0 <= floor <= 1.0:
            raise ParameterError(f"floor: expected a probability in [0, 1]; got {floor!r}")
        self._floor = float(floor)
        self._own = 1 if inner.from_logs is FromLogs.UNSOUND else 0
        super().__init__(
            inner,
            {},
            (self._floor, inner.n_classes, self._own),
            {},
            Kernels(_predict, _update, _observe, _log),
            logged_size=self._own,
            options=(floor,),
        )

    def distribution(self, x: Features | FloatArray) -> FloatArray:
        """See Learner. A class has two intervals of u: as a random class, and as the learner's choice."""
        own = self.inner.distribution(x)
        return self._floor / self.n_classes + (1.0 - self._floor) * own

    def inside(self, x: Features | FloatArray, decision: Decision) -> tuple[Features, Decision]:
        """See Wrapper: the decision with the propensity that the learner learns from."""
        features, own = super().inside(x, decision)
        return features, own._replace(propensity=float(decision.logged[-1])) if self._own else own

    def observe_early(self, x: Features | FloatArray, decision: Decision) -> None:
        """See Learner."""
        if self._is_seen(decision):
            super().observe_early(x, decision)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See KernelLearner."""
        return super().observed_parts(x, decision) if self._is_seen(decision) else iter(())

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """See Learner."""
        return self._is_seen(decision) and super().retract(x, decision, assumed_reward, reward, v)

    def _is_seen(self, decision: Decision) -> bool:
        """Whether the inner learner observes and learns a decision."""
        return not self._own or bool(decision.logged[-1] > 0.0)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """See Wrapper. The cost of a random class, up to K predictions of the learner, is not included."""
        return Cost(flops_per_event=5, bytes_per_event=8, state_bytes=0)


# The kernels of the inner learner are the globals `predict`, `update`, `observe` and `log`; see `compile_with`.
# If `own` is 1, the last logged value is the learner's own propensity, or 0 for a random class.


def _predict(
    indices: IndexArray, values: FloatArray, u: float, scores: FloatArray, floor: float, K: int, own: int, *model: Any
) -> tuple[int, int, float]:
    inner = scores[: scores.size - own]
    if u >= floor:
        action, greedy, p = predict(  # type: ignore[name-defined] # noqa: F821
            indices, values, min((u - floor) / (1.0 - floor), U_MAX), inner, *model
        )
        if own == 1:
            scores[scores.size - 1] = p
        return action, greedy, floor / K + (1.0 - floor) * p
    action = min(int(u / floor * K), K - 1)
    p, greedy, place, step = 0.0, 0, 0.0, U_STEP
    is_known = np.zeros(K, np.bool_)
    while place < 1.0 - U_REST:  # as in `Learner.distribution`
        played, greedy, q = predict(indices, values, place, inner, *model)  # type: ignore[name-defined] # noqa: F821
        if played == action and q > 0.0:
            p = q
            break
        if not is_known[played] and q > 0.0:
            is_known[played] = True
            place, step = place + q, U_STEP
        else:
            place, step = place + step, 2.0 * step
    log(indices, values, action, inner, *model)  # type: ignore[name-defined] # noqa: F821
    if own == 1:
        scores[scores.size - 1] = 0.0
    return action, greedy, floor / K + (1.0 - floor) * p


def _observe(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    floor: float,
    K: int,
    own: int,
    *model: Any,
) -> None:
    if own == 1:
        propensity = scores[scores.size - 1]
        if not propensity > 0.0:
            return
    inner = scores[: scores.size - own]
    observe(indices, values, action, greedy, propensity, inner, *model)  # type: ignore[name-defined] # noqa: F821


def _update(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    v: float,
    label: int,
    floor: float,
    K: int,
    own: int,
    *model: Any,
) -> bool:
    if own == 1:
        propensity = scores[scores.size - 1]
        if not propensity > 0.0:
            return False
    inner = scores[: scores.size - own]
    return update(  # type: ignore[name-defined,no-any-return] # noqa: F821
        indices, values, action, greedy, propensity, inner, reward, v, label, *model
    )


def _log(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    scores: FloatArray,
    floor: float,
    K: int,
    own: int,
    *model: Any,
) -> None:
    log(indices, values, action, scores[: scores.size - own], *model)  # type: ignore[name-defined] # noqa: F821
