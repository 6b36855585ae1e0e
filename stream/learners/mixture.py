"""A fixed policy beside a learner: a floor of exploration, or a holdout for comparison."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stream.learners.base import U_REST, U_STEP, Cost, FromLogs, KernelLearner, Kernels, ParameterError
from stream.learners.kernels import compiled
from stream.learners.wrapper import Wrapper
from stream.wire.records import Decision, Features, FloatArray, IndexArray

U_MAX = 1.0 - 2.0**-53
"""The largest u below 1."""


class Mixture(Wrapper):
    """A learner that a fixed policy q replaces with probability `share`.

        u < h        play q's class for u/h
        u ≥ h        play the learner's choice for (u − h)/(1 − h)
        propensity   h q(a) + (1 − h) p,  p the probability with which the learner chooses that class

    The policy plays a uniformly random one of the m eligible classes, or always the same class. If this class is not
    eligible, it plays a random one. The propensity is exact: for q's class, p comes from the learner's `distribution`.

    A learner that can learn from logged decisions learns from all of these, with the propensity above, as if it had
    played a log. Other learners assume that they chose the action (`FromLogs.UNSOUND`). They get only their own
    choices, with their own propensity p, which the decision logs. A class of q is then neither observed nor learned.
    Since u is independent of the context, the learner sees a random sample of the stream.

    >>> from stream.learners import create
    >>> learner = Mixture(create("perceptron", n_classes=4, n_features=2), 0.2)
    >>> [learner.predict(np.ones(2), u)[::2][:2] for u in (0.19, 0.5)]  # the action, and its propensity
    [(3, 0.05), (0, 0.8500000000000001)]
    """

    def __init__(self, inner: KernelLearner, share: float, action: int | None = None) -> None:
        """Add a fixed policy to a learner.

        Args:
            inner: The learner.
            share: The probability h with which the policy decides.
            action: The class that the policy plays; None for a uniformly random one.

        Raises:
            ParameterError: the share is not a probability, or the class does not exist.
        """
        if not 0.0 <= share <= 1.0:
            raise ParameterError(f"share: expected a probability in [0, 1]; got {share!r}")
        if action is not None and not 0 <= action < inner.n_classes:
            raise ParameterError(f"action: expected a class from 0 to {inner.n_classes - 1}; got {action!r}")
        self._share, self._action = float(share), -1 if action is None else action
        self._own = 1 if inner.from_logs is FromLogs.UNSOUND else 0
        super().__init__(
            inner,
            {},
            (self._share, self._action, self._own),
            {},
            Kernels(_predict, _update, _observe, _log),
            logged_size=self._own,
            options=(share, action),
        )

    def distribution(self, x: Features | FloatArray, eligible: IndexArray | None = None) -> FloatArray:
        """See Learner. A class has two intervals of u: as the policy's class, and as the learner's choice."""
        among = self.among(eligible)
        p = (1.0 - self._share) * self.inner.distribution(x, eligible)
        if self._action in among:
            p[self._action] += self._share
        else:
            p[among] += self._share / among.size
        return p

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
        """See Wrapper. The cost of a class of the policy, up to K predictions of the learner, is not included."""
        return Cost(flops_per_event=5, bytes_per_event=8, state_bytes=0)


# The kernels of the inner learner are the globals `predict`, `update`, `observe` and `log`; see `compile_with`.
# If `own` is 1, the last logged value is the learner's own propensity, or 0 for a class of the policy.
# `fixed` is the class of the policy, or -1 if its class is random.


@compiled
def _chance(action: int, eligible: IndexArray, share: float, fixed: int) -> float:
    """Return h q(a), the probability that the policy decides and plays an eligible class."""
    for k in eligible:
        if k == fixed:
            return share if action == fixed else 0.0
    return share / eligible.size


def _predict(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    eligible: IndexArray,
    share: float,
    fixed: int,
    own: int,
    *model: Any,
) -> tuple[int, int, float]:
    inner = scores[: scores.size - own]
    if u >= share:
        action, greedy, p = predict(  # type: ignore[name-defined] # noqa: F821
            indices, values, min((u - share) / (1.0 - share), U_MAX), inner, eligible, *model
        )
        if own == 1:
            scores[scores.size - 1] = p
        return action, greedy, _chance(action, eligible, share, fixed) + (1.0 - share) * p
    m = eligible.size
    action = eligible[min(int(u / share * m), m - 1)]
    for k in eligible:
        if k == fixed:
            action = k
    p, greedy, place, step = 0.0, 0, 0.0, U_STEP
    is_known = np.zeros(inner.size, np.bool_)
    while place < 1.0 - U_REST:  # as in `Learner.distribution`
        played, greedy, q = predict(indices, values, place, inner, eligible, *model)  # type: ignore[name-defined] # noqa: F821
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
    return action, greedy, _chance(action, eligible, share, fixed) + (1.0 - share) * p


def _observe(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    share: float,
    fixed: int,
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
    share: float,
    fixed: int,
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
    share: float,
    fixed: int,
    own: int,
    *model: Any,
) -> None:
    log(indices, values, action, scores[: scores.size - own], *model)  # type: ignore[name-defined] # noqa: F821
