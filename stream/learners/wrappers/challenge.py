"""A challenger is a second learner that learns from the champion's decisions. Once promoted, it makes decisions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import (
    NO_DETECTORS,
    Cost,
    FromLogs,
    KernelLearner,
    Learner,
    ParameterError,
    State,
    load_arrays,
    sparse,
)
from stream.learners.kernels import Decided, Event, subroutine
from stream.learners.wrappers.wrapper import Wrapper, rewrapped
from stream.wire.records import NOTHING_LOGGED, Decision, Features, FloatArray

OTHER, OTHER_GREEDY, ORIGIN = -3, -2, -1
"""Indices of the last three logged values: the class and the greedy class of the learner that did not decide, and the
decision's origin."""

BY_CHAMPION, BY_CHALLENGER, BEFORE, SETTLED_BEFORE = 0.0, 1.0, 2.0, 3.0
"""Origins of a decision: the champion or the challenger decided; or the champion decided before the challenger was
added, and the decision was then pending or already settled."""

SOUND = frozenset((FromLogs.NOTHING, FromLogs.PROPENSITY))
"""The `from_logs` values of learners that can learn from another learner's decisions without labels."""

_COMBINED: dict[str, Callable[[Any], Any]] = {
    "randomised_update": any,
    "retractable": all,
    "reversible_rewards": min,  # (0,) if one of the learners cannot reverse a 1
    "learns_values": all,
    "supports_eligible": all,
    "one_right_class": any,
    "grows": all,
    "from_logs": lambda both: FromLogs.PROPENSITY if FromLogs.PROPENSITY in both else FromLogs.NOTHING,
}
"""Functions that combine the two learners' values of an attribute, by attribute name. All other attributes are copied
from the champion."""

T = TypeVar("T")


class Part(NamedTuple):
    """One learner's part of a decision."""

    action: int  # the class that the learner chose
    greedy: int
    row: FloatArray  # [K + L], the learner's scores and logged values
    origin: float = BY_CHAMPION  # `BEFORE` or `SETTLED_BEFORE` if the learner was added after the decision


def parts_of(decision: Decision, widths: Sequence[int]) -> tuple[int, list[Part]]:
    """Return the index of the learner that decided, and each learner's part of the decision.

    Args:
        decision: A decision of a single learner or a `Challenge`.
        widths: K + L for each learner.
    """
    action, greedy, row = decision.action, decision.greedy, np.concatenate((decision.scores, decision.logged))
    decided, parts = 0, []
    for number in range(len(widths) - 1, 0, -1):
        other, other_greedy, origin = int(row[OTHER]), int(row[OTHER_GREEDY]), float(row[ORIGIN])
        if origin == BY_CHALLENGER:
            decided = decided or number
            parts.append(Part(action, greedy, row[: widths[number]]))
            action, greedy, row = other, other_greedy, row[widths[number] : OTHER]
        else:
            first = row.size - 3 - widths[number]
            parts.append(Part(other, other_greedy, row[first:OTHER], origin))
            row = row[:first]
    return decided, [Part(action, greedy, row), *reversed(parts)]


def decision_of(action: int, propensity: float, n_classes: int, decided: int, parts: Sequence[Part]) -> Decision:
    """Return a decision from its learners' parts; the inverse of `parts_of`."""
    own, greedy, row, _ = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        if number == decided:
            row = np.concatenate((part.row, row, (own, greedy, BY_CHALLENGER)))
            own, greedy = part.action, part.greedy
        else:
            row = np.concatenate((row, part.row, (part.action, part.greedy, part.origin)))
    row = row.copy()  # a decision's scores and logged values share an array of their own
    return Decision(
        action, greedy, propensity, row[:n_classes], row[n_classes:] if row.size > n_classes else NOTHING_LOGGED
    )


class Model(NamedTuple):
    """The flag, the total numbers of scores and logged values of each learner, and the learners' models."""

    flag: NDArray[np.int64]  # [1]: 1 if the challenger decides
    width: int
    other_width: int
    inner: Any
    other: Any


class Challenge(Wrapper):
    """A learner that consists of a champion and a challenger. One of them decides, and both learn from the bit.

        predict   with the draw u, the deciding learner plays class a; with hash(u), the other would play class a′
        observe   both learners observe a and its propensity
        update    both learners learn from a, its propensity and the reward

    Each learner treats the other learner's decisions as logged decisions, so `from_logs` must be `NOTHING` or
    `PROPENSITY` for both learners. The draws of a′ and a are independent. Given a, the mean of 1[a′ = a]/p is therefore
    p′/p, where p is the propensity of a, and p′ is the other learner's probability of a. This weight is used to
    estimate the other learner's reward; see `stream.estimating.challengers`.

    After a promotion, the other learner decides. Each decision records which learner made it. Each learner can
    therefore use its own logged values even if the bit arrives after a promotion. `scores` are those of the learner
    that decided.

    A decision's logged values are, in order: the deciding learner's values; the other learner's scores and values; a′;
    the other learner's greedy class; and the decision's origin, which is 1 if the challenger decided. Several
    challengers are nested: `Challenge(Challenge(champion, first), second)`.

    A decision that was pending when the challenger was added (`BEFORE`) contains the values that an untrained
    challenger logs. The challenger observes the decision immediately before it learns from the bit. From a decision
    that was already settled (`SETTLED_BEFORE`), the challenger learns nothing, and it reverses nothing.

    >>> from stream.learners import create
    >>> pair = Challenge(create("igw-logistic", 4, 2), create("late-ucb", 4, 2))
    >>> decision = pair.predict(np.ones(2), 0.5)
    >>> decision.action, pair.choices(decision)
    (2, (0, (2, 0)))
    >>> pair.promote(1)
    >>> decision = pair.predict(np.ones(2), 0.5)
    >>> decision.action, pair.choices(decision)
    (0, (1, (0, 0)))
    """

    def __init__(self, inner: KernelLearner, challenger: KernelLearner) -> None:
        """Add a challenger to a learner.

        Args:
            inner: The champion, possibly with other challengers.
            challenger: The challenger.

        Raises:
            ParameterError: one of the learners cannot learn from the other learner's decisions.
        """
        for learner in (inner, challenger):
            if learner.from_logs not in SOUND:
                raise ParameterError(
                    f"challenger: expected a learner that learns from another learner's decisions; got {learner.name}"
                )
        K, before = inner.n_classes, inner.members
        self.members = before + 1
        self.challenger = challenger
        self._prefix = f"challenger{before}."
        self._widths = K + inner.logged_size, K + challenger.logged_size
        self._flag: NDArray[np.int64] = np.zeros(1, np.int64)
        super().__init__(
            inner,
            self._prefixed({**challenger.arrays, "decides": self._flag}),
            Model(self._flag, *self._widths, inner.model, challenger.model),
            self._prefixed(challenger.observed),
            (_predict, _update, _observe, _log),
            logged_size=self._widths[1] + 3,
            options=(challenger,),
            others={f"other_{name}": kernel for name, kernel in challenger.kernels._asdict().items()},
        )
        for name, combine in _COMBINED.items():
            setattr(self, name, combine((getattr(inner, name), getattr(challenger, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling of both learners and of the flag that selects the deciding learner."""
        return rewrapped, (type(self), copy(self.inner), (copy(self.challenger),), self._own_state())

    @property
    def decides(self) -> int:
        """See `Learner.decides`. Index 0 is the initial champion; the challengers follow in order."""
        return self.members - 1 if self._flag[0] else self.inner.decides

    @property
    def deciding(self) -> Learner:
        """See `Learner.deciding`."""
        return self.challenger if self._flag[0] else self.inner.deciding

    def promote(self, number: int) -> None:
        """See `Learner.promote`."""
        self._flag[0] = number == self.members - 1
        self.inner.promote(number)

    def set_baseline(self, action: int) -> None:
        """See `Learner.set_baseline`."""
        self.inner.set_baseline(action)
        self.challenger.set_baseline(action)

    def choices(self, decision: Decision) -> tuple[int, tuple[int, ...]]:
        """See `Learner.choices`. Each learner that did not decide chose its class with a separate draw."""
        first, second = self._rows(decision)
        number, before = self.inner.choices(first)
        is_challenger = decision.logged[ORIGIN] == BY_CHALLENGER
        return self.members - 1 if is_challenger else number, (*before, second.action)

    def _prefixed(self, named: Mapping[str, T]) -> dict[str, T]:
        return {f"{self._prefix}{name}": value for name, value in named.items()}

    def _rows(self, decision: Decision) -> tuple[Decision, Decision]:
        """Return the champion's and the challenger's decisions, each with that learner's action."""
        _, greedy, propensity, row = self._kernel_arguments(decision)
        is_challenger = bool(row[ORIGIN] == BY_CHALLENGER)
        width = self._widths[is_challenger]
        decided = self._decision(decision.action, greedy, propensity, row[:width])
        other = self._decision(int(row[OTHER]), int(row[OTHER_GREEDY]), propensity, row[width:OTHER])
        return (other, decided) if is_challenger else (decided, other)

    def _decision(self, action: int, greedy: int, propensity: float, row: FloatArray) -> Decision:
        """Return a decision with a copy of its scores and logged values."""
        own, K = row.copy(), self.n_classes
        return Decision(action, greedy, propensity, own[:K], own[K:] if own.size > K else NOTHING_LOGGED)

    def _learned(self, decision: Decision) -> tuple[Decision, Decision]:
        """Return two versions of the decision: one for the champion's update, and one for the challenger's."""
        first, second = self._rows(decision)
        return first._replace(action=decision.action), second._replace(action=decision.action)

    def inside(self, x: Features | FloatArray, decision: Decision) -> tuple[Features, Decision]:
        """See `Wrapper.inside`."""
        return sparse(x, self.n_features), self._learned(decision)[0]

    def needs_offer(self, decision: Decision) -> bool:
        """See `Learner.needs_offer`."""
        first, second = self._learned(decision)
        return self.inner.needs_offer(first) or self.challenger.needs_offer(second)

    def observe_early(self, x: Features | FloatArray, decision: Decision) -> None:
        """See `Learner.observe_early`."""
        first, second = self._learned(decision)
        self.inner.observe_early(x, first)
        if decision.logged[ORIGIN] <= BY_CHALLENGER:
            self.challenger.observe_early(x, second)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See `KernelLearner.observed_parts`."""
        first, second = self._learned(decision)
        yield from self.inner.observed_parts(x, first)
        if decision.logged[ORIGIN] > BY_CHALLENGER:
            return
        for name, part in self.challenger.observed_parts(x, second):
            yield f"{self._prefix}{name}", part

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        """See `Learner.retract`."""
        first, second = self._learned(decision)
        changed = self.inner.retract(x, first, assumed_reward, reward, v)
        if decision.logged[ORIGIN] == SETTLED_BEFORE:
            return changed
        return self.challenger.retract(x, second, assumed_reward, reward, v) or changed

    @property
    def alarms(self) -> FloatArray:
        """Always empty, because one bit can raise alarms in both learners. Alarms still cause resets."""
        return NO_DETECTORS

    def weights(self) -> FloatArray:
        """Return a copy of the deciding learner's weights."""
        return self.deciding.weights()

    def _own_state(self) -> State:
        """See `Wrapper._own_state`."""
        return self._prefixed({**self.challenger.state(), "decides": self._flag.copy()})

    def state_into(self, earlier: State) -> State:
        """See `Learner.state_into`."""
        return self.inner.state_into(earlier) | self._own_state()

    def load_smaller(self, smaller: Self) -> None:
        """See `KernelLearner.load_smaller`."""
        self.inner.load_smaller(smaller.inner)
        self.challenger.load_smaller(smaller.challenger)
        self._flag[0] = smaller._flag[0]

    def load_own(self, state: Mapping[str, Any]) -> None:
        """See `Wrapper.load_own`.

        If the state has no challengers, for example in an imported model, the challenger does not change.
        """
        prefix = self._prefix
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if own:
            load_arrays(self.name, {"decides": self._flag}, own)
            self.challenger.load(own)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return only the additional cost, without the costs of the two learners."""
        return Cost(flops_per_event=10, bytes_per_event=8 * (n_classes + 3), state_bytes=8)


# The globals `predict`, `update`, `observe` and `log` are the champion's kernels, and `other_predict`, `other_update`,
# `other_observe` and `other_log` are the challenger's; see `compile_with`.


@subroutine
def _other_draw(u: float) -> float:
    """Return a hash of u for use as a second draw in [0, 1). The hash is SplitMix64's finaliser."""
    z = np.uint64(u * 2.0**53) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _predict(event: Event, model: Model) -> tuple[int, int, float]:
    x, scores, eligible, w = event.x, event.scores, event.eligible, _other_draw(event.u)
    if model.flag[0] == 0:
        own, beside = scores[: model.width], scores[model.width : OTHER]
        action, greedy, p = predict(Event(x, event.u, own, eligible), model.inner)  # type: ignore[name-defined] # noqa: F821
        other, other_greedy, _ = other_predict(Event(x, w, beside, eligible), model.other)  # type: ignore[name-defined] # noqa: F821
        if other != action:  # replace the values logged for its own class with values for the played class
            other_log(Decided(x, action, other_greedy, p, beside, -1, 0.0, -1), model.other)  # type: ignore[name-defined] # noqa: F821
    else:
        own, beside = scores[: model.other_width], scores[model.other_width : OTHER]
        action, greedy, p = other_predict(Event(x, event.u, own, eligible), model.other)  # type: ignore[name-defined] # noqa: F821
        other, other_greedy, _ = predict(Event(x, w, beside, eligible), model.inner)  # type: ignore[name-defined] # noqa: F821
        if other != action:
            log(Decided(x, action, other_greedy, p, beside, -1, 0.0, -1), model.inner)  # type: ignore[name-defined] # noqa: F821
    scores[OTHER] = other
    scores[OTHER_GREEDY] = other_greedy
    scores[ORIGIN] = model.flag[0]
    return action, greedy, p


@subroutine
def _learned_by(is_challenger: bool, event: Decided, model: Model) -> Decided:
    """Return the event as the champion or the challenger receives it."""
    scores, greedy = event.scores, event.greedy
    by_challenger = scores[ORIGIN] == BY_CHALLENGER
    decided = by_challenger == is_challenger
    first = model.other_width if by_challenger else model.width
    own = scores[:first] if decided else scores[first:OTHER]
    if not decided:
        greedy = int(scores[OTHER_GREEDY])
    return Decided(event.x, event.action, greedy, event.propensity, own, event.reward, event.v, event.label)


def _observe(event: Decided, model: Model) -> None:
    observe(_learned_by(False, event, model), model.inner)  # type: ignore[name-defined] # noqa: F821
    if event.scores[ORIGIN] <= BY_CHALLENGER:
        other_observe(_learned_by(True, event, model), model.other)  # type: ignore[name-defined] # noqa: F821


def _update(event: Decided, model: Model) -> bool:
    changed = update(_learned_by(False, event, model), model.inner)  # type: ignore[name-defined] # noqa: F821
    origin = event.scores[ORIGIN]
    if origin == SETTLED_BEFORE:
        return bool(changed)
    if origin == BEFORE:
        other_observe(_learned_by(True, event, model), model.other)  # type: ignore[name-defined] # noqa: F821
    other_changed = other_update(_learned_by(True, event, model), model.other)  # type: ignore[name-defined] # noqa: F821
    return bool(changed or other_changed)


def _log(event: Decided, model: Model) -> None:
    log(_learned_by(False, event, model), model.inner)  # type: ignore[name-defined] # noqa: F821
    other_log(_learned_by(True, event, model), model.other)  # type: ignore[name-defined] # noqa: F821
