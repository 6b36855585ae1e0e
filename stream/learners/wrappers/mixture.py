"""A mixture of a learner with fixed policies: an exploration floor, and a holdout for comparison."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import (
    U_REST,
    U_STEP,
    Cost,
    FromLogs,
    KernelLearner,
    ParameterError,
    sparse,
)
from stream.learners.entries import compile_with
from stream.learners.kernels import Decided, Event, compiled, subroutine
from stream.learners.wrappers.wrapper import Wrapper
from stream.wire.records import Decision, Features, FloatArray, IndexArray

BASELINE: Final = "baseline"
"""The holdout policy that plays the class of the service's own rule, which each context names."""

U_MAX = 1.0 - 2.0**-53
"""The largest u below 1."""


class Frozen(NamedTuple):
    """A frozen learner as a policy."""

    scores: FloatArray  # [K + L], scratch space
    model: Any


class Model(NamedTuple):
    """The shares, the policy and the inner learner's model."""

    floor: float
    holdout: float
    policy: Any  # `Frozen`, or an array [1] with a class, or with -1 for a uniformly random class
    own: int  # 1 if the last logged value is the learner's own propensity, which is 0 if a fixed policy decided
    inner: Any


class Mixture(Wrapper):
    """A mixture of a learner, an exploration floor with probability f, and a holdout policy q with probability h.

        u < h         play q's class, with the draw u/h
        u ≥ h         t = (u − h)/(1 − h);  t < f: play a uniformly random class, with the draw t/f;
                      t ≥ f: play the learner's class, with the draw (t − f)/(1 − f)
        propensity    h q(a) + (1 − h) (f/m + (1 − f) p), where p is the learner's probability of choosing class a

    The floor plays a uniformly random class among the m eligible classes. The holdout plays a uniformly random class, a
    constant class, the greedy class of a frozen model, or the class of the service's own rule (`set_baseline`). If this
    class is not eligible, the holdout plays a uniformly random eligible class. The propensity is exact: if the learner
    did not choose the class, p is computed as in `Learner.distribution`.

    A learner that can learn from logged decisions learns from all decisions, with the propensity above. Other learners
    assume that they chose the action (`FromLogs.UNSOUND`). Such a learner observes only its own decisions, and learns
    only from them. It uses its own propensity p, which is recorded with the decision. Since u is independent of the
    context, these decisions are a random sample of the stream.

    >>> from stream.learners import create
    >>> learner = Mixture(create("perceptron", n_classes=4, n_features=2), 0.2)
    >>> [learner.predict(np.ones(2), u)[::2][:2] for u in (0.19, 0.5)]  # the action, and its propensity
    [(3, 0.05), (0, 0.8500000000000001)]
    """

    def __init__(
        self,
        inner: KernelLearner,
        floor: float = 0.0,
        holdout: float = 0.0,
        policy: int | KernelLearner | Literal["baseline"] | None = None,
    ) -> None:
        """Add the fixed policies to a learner.

        Args:
            inner: The learner.
            floor: The probability f.
            holdout: The probability h.
            policy: The holdout's policy. An int is a constant class. A learner plays its greedy class, never changes,
                and is not part of the state. `BASELINE` plays the class from `set_baseline`. None plays a uniformly
                random class.

        Raises:
            ParameterError: f or h is not a probability, the class does not exist, or the learners' sizes differ.
        """
        for name, share in (("floor", floor), ("holdout", holdout)):
            if not 0.0 <= share <= 1.0:
                raise ParameterError(f"{name}: expected a probability in [0, 1]; got {share!r}")
        fixed = policy if isinstance(policy, int) else -1
        self._is_baseline = policy == BASELINE
        self._policy: Any = np.full(1, fixed, np.int64)  # in the form that the kernels accept
        self._class_of: Callable[..., int] = _constant_class
        if isinstance(policy, KernelLearner):
            sizes, expected = (policy.n_classes, policy.n_features), (inner.n_classes, inner.n_features)
            if sizes != expected:
                raise ParameterError(
                    f"policy: expected {expected[0]} classes and {expected[1]} features; got {sizes[0]} and {sizes[1]}"
                )
            self._policy = Frozen(np.empty(policy.n_classes + policy.logged_size), policy.model)
            self._class_of = compile_with(policy.kernels, _greedy_class)
        elif isinstance(policy, int) and not 0 <= policy < inner.n_classes:
            raise ParameterError(f"policy: expected a class from 0 to {inner.n_classes - 1}; got {policy!r}")
        self._shares = float(floor), float(holdout)
        self._own = 1 if inner.from_logs is FromLogs.UNSOUND else 0
        super().__init__(
            inner,
            {},
            Model(*self._shares, self._policy, self._own, inner.model),
            {},
            (_predict, _update, _observe, _log),
            logged_size=self._own,
            options=(floor, holdout, policy),
            others={"class_of": self._class_of},
        )

    def set_baseline(self, action: int) -> None:
        """See `Learner.set_baseline`."""
        super().set_baseline(action)
        if self._is_baseline:
            self._policy[0] = action

    def distribution(self, x: Features | FloatArray, eligible: IndexArray | None = None) -> FloatArray:
        """See `Learner.distribution`. Adds up the probabilities from the learner, the floor and the holdout."""
        floor, holdout = self._shares
        p = (1.0 - holdout) * (1.0 - floor) * self.inner.distribution(x, eligible)
        among = self.among(eligible)
        fixed = self._class_of(sparse(x, self.n_features), among, self._policy)
        for k in among.tolist():
            p[k] += chance(k, among, floor, holdout, fixed)
        return p

    def inside(self, x: Features | FloatArray, decision: Decision) -> tuple[Features, Decision]:
        """See `Wrapper.inside`. The returned decision has the propensity that the inner learner uses."""
        features, own = super().inside(x, decision)
        return features, own._replace(propensity=float(decision.logged[-1])) if self._own else own

    def observe_early(self, x: Features | FloatArray, decision: Decision) -> None:
        """See `Learner.observe_early`."""
        if self._is_seen(decision):
            super().observe_early(x, decision)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See `KernelLearner.observed_parts`."""
        return super().observed_parts(x, decision) if self._is_seen(decision) else iter(())

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        """See `Learner.retract`."""
        return self._is_seen(decision) and super().retract(x, decision, assumed_reward, reward, v)

    def _is_seen(self, decision: Decision) -> bool:
        """Return whether the inner learner observes a decision and learns from its bit."""
        return not self._own or bool(decision.logged[-1] > 0.0)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the additional cost. If a fixed policy decides, computing p requires up to K more predictions."""
        return Cost(flops_per_event=5, bytes_per_event=8, state_bytes=0)


# The inner learner's kernels are the globals `predict`, `update`, `observe` and `log`; see `compile_with`.
# The global `class_of` returns the class that the holdout's `policy` plays, or -1 for a uniformly random class.


@compiled
def _constant_class(x: Features, eligible: IndexArray, policy: NDArray[np.int64]) -> int:
    """Return the policy's class for the next context, or -1 for a uniformly random class."""
    return int(policy[0])


def _greedy_class(x: Features, eligible: IndexArray, policy: Frozen) -> int:
    """Return a frozen learner's greedy class, which may be ineligible if the learner ignores `eligible`."""
    return int(predict(Event(x, 0.0, policy.scores, eligible), policy.model)[1])  # type: ignore[name-defined] # noqa: F821


@compiled
def chance(action: int, eligible: IndexArray, floor: float, holdout: float, fixed: int) -> float:
    """Return h q(a) + (1 − h) f/m, the probability that a fixed policy plays an eligible class."""
    of_holdout = holdout / eligible.size
    for k in eligible:
        if k == fixed:
            of_holdout = holdout if action == fixed else 0.0
    return of_holdout + (1.0 - holdout) * (floor / eligible.size)


@subroutine
def _uniform(u: float, eligible: IndexArray) -> int:
    """Return an eligible class for a uniform draw."""
    return int(np.int64(eligible[min(int(u * eligible.size), eligible.size - 1)]))


def _predict(event: Event, model: Model) -> tuple[int, int, float]:
    u, eligible, scores = event.u, event.eligible, event.scores
    floor, holdout, own = model.floor, model.holdout, model.own
    inner = scores[: scores.size - own]
    fixed = class_of(event.x, eligible, model.policy)  # type: ignore[name-defined] # noqa: F821
    rest = (1.0 - holdout) * (1.0 - floor)
    t = (u - holdout) / (1.0 - holdout) if u >= holdout else 0.0
    if u >= holdout and t >= floor:
        draw = min((t - floor) / (1.0 - floor), U_MAX)
        action, greedy, p = predict(Event(event.x, draw, inner, eligible), model.inner)  # type: ignore[name-defined] # noqa: F821
        if own == 1:
            scores[scores.size - 1] = p
        return action, greedy, chance(action, eligible, floor, holdout, fixed) + rest * p
    if u >= holdout:
        action = _uniform(t / floor, eligible)
    else:
        action = _uniform(u / holdout, eligible)
        for k in eligible:
            if k == fixed:
                action = fixed
    p, greedy, place, step = 0.0, 0, 0.0, U_STEP
    is_known = np.zeros(inner.size, np.bool_)
    while place < 1.0 - U_REST:  # as in `Learner.distribution`
        played, greedy, q = predict(Event(event.x, place, inner, eligible), model.inner)  # type: ignore[name-defined] # noqa: F821
        if played == action and q > 0.0:
            p = q
            break
        if not is_known[played] and q > 0.0:
            is_known[played] = True
            place, step = place + q, U_STEP
        else:
            place, step = place + step, 2.0 * step
    log(Decided(event.x, action, greedy, p, inner, -1, 0.0, -1), model.inner)  # type: ignore[name-defined] # noqa: F821
    if own == 1:
        scores[scores.size - 1] = 0.0
    return action, greedy, chance(action, eligible, floor, holdout, fixed) + rest * p


@subroutine
def _inside(event: Decided, own: int) -> Decided:
    """Return the event as the inner learner receives it. The propensity is 0 if it does not learn from the event."""
    last = event.scores.size - own
    p = event.scores[last] if own == 1 else event.propensity
    return Decided(event.x, event.action, event.greedy, p, event.scores[:last], event.reward, event.v, event.label)


def _observe(event: Decided, model: Model) -> None:
    inside = _inside(event, model.own)
    if model.own == 0 or inside.propensity > 0.0:
        observe(inside, model.inner)  # type: ignore[name-defined] # noqa: F821


def _update(event: Decided, model: Model) -> bool:
    inside = _inside(event, model.own)
    if model.own == 1 and not inside.propensity > 0.0:
        return False
    return update(inside, model.inner)  # type: ignore[name-defined,no-any-return] # noqa: F821


def _log(event: Decided, model: Model) -> None:
    log(_inside(event, model.own), model.inner)  # type: ignore[name-defined] # noqa: F821
