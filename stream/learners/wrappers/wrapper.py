"""Base class for learners that wrap another learner, for example to scale features."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, Self

from numpy.typing import NDArray

from stream.learners.base import Extent, KernelLearner, State, sparse
from stream.learners.entries import compile_with
from stream.learners.kernels import Kernels, kernel
from stream.wire.records import NO_FEATURES, NOTHING_LOGGED, Decision, Features, FloatArray

Template = Callable[..., Any]

DECLARATIONS = (
    "name", "summary", "best_for", "paper", "parameters", "needs_label", "randomised_update", "retractable",
    "reversible_rewards", "learns_values", "from_logs", "supports_eligible", "one_right_class", "grows", "instead",
)  # fmt: skip
"""The attributes that a wrapper copies from its inner learner."""


class Wrapper(KernelLearner):
    """A learner that converts contexts and decisions, and passes the results to another learner, `inner`.

    The state consists of `inner`'s state and the wrapper's own arrays. A decision's logged values are those of `inner`,
    followed by the wrapper's own. `inside` converts a context and its decision for `inner`. The kernels must convert
    contexts and decisions in the same way. `cost` is the cost of the wrapper alone.
    """

    def __init__(
        self,
        inner: KernelLearner,
        arrays: Mapping[str, NDArray[Any]],
        model: Any,
        observed: Mapping[str, Extent],
        templates: tuple[Template, Template, Template, Template],
        logged_size: int,
        options: tuple[Any, ...] = (),
        others: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Wrap a learner.

        Args:
            inner: The learner, in any state.
            arrays: The wrapper's own state by name.
            model: The kernels' model, which contains `inner`'s model.
            observed: The wrapper's own arrays that `observe` may change.
            templates: The functions predict, update, observe and log, which call `inner`'s kernels as globals named
                after the fields of `Kernels`.
            logged_size: The number of the wrapper's own values per decision.
            options: The constructor's arguments after `inner`.
            others: Other globals used by the templates; see `compile_with`.
        """
        self._options = options
        self.inner = inner
        for name in DECLARATIONS:
            setattr(self, name, getattr(inner, name))
        self.observed = {**inner.observed, **observed}
        if inner.greedy_parts is not None:
            self.greedy_parts = (*inner.greedy_parts, *arrays)
        self.logged_size = inner.logged_size + logged_size
        self.own = dict(arrays)
        super().__init__(
            inner.n_classes,
            inner.n_features,
            {**inner.arrays, **arrays},
            model,
            Kernels(*(compile_with(inner.kernels, template, kernel, **others) for template in templates)),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling of the inner learner and the wrapper's own state."""
        return rewrapped, (type(self), copy(self.inner), self._options, self._own_state())

    def inside(self, x: Features | FloatArray, decision: Decision) -> tuple[Features, Decision]:
        """Return a context and its decision as the inner learner receives them."""
        self._kernel_arguments(decision)  # checks the number of logged values
        numbers = decision.logged[: self.inner.logged_size].copy() if self.inner.logged_size else NOTHING_LOGGED
        return sparse(x, self.n_features), decision._replace(logged=numbers)

    def set_baseline(self, action: int) -> None:
        """See `Learner.set_baseline`."""
        self.inner.set_baseline(action)

    def needs_offer(self, decision: Decision) -> bool:
        """See `Learner.needs_offer`."""
        return self.inner.needs_offer(self.inside(NO_FEATURES, decision)[1])

    def observe_early(self, x: Features | FloatArray, decision: Decision) -> None:
        """See `Learner.observe_early`. Only the inner learner's state changes, not the wrapper's own arrays."""
        self.inner.observe_early(*self.inside(x, decision))

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See `KernelLearner.observed_parts`."""
        return self.inner.observed_parts(*self.inside(x, decision))

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        """See `Learner.retract`."""
        return self.inner.retract(*self.inside(x, decision), assumed_reward, reward, v)

    @property
    def alarms(self) -> FloatArray:
        """See `Learner.alarms`."""
        return self.inner.alarms

    def weights(self) -> FloatArray:
        """Return a copy of the inner learner's weights. They apply to contexts as converted by `inside`."""
        return self.inner.weights()

    def in_use(self, state: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """See `KernelLearner.in_use`. Returns only the wrapper's own arrays."""
        return self.own

    def state(self) -> State:
        """See `Learner.state`."""
        return {**self.inner.state(), **self._own_state()}

    def _own_state(self) -> State:
        return super().state()

    def state_into(self, copy: State) -> State:
        """See `Learner.state_into`."""
        return super().state_into(self.inner.state_into(copy))

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        self.inner.load(state)
        self.load_own(state)

    def load_smaller(self, smaller: Self) -> None:
        """See `KernelLearner.load_smaller`. The wrapper's own arrays have no entries for classes."""
        self.inner.load_smaller(smaller.inner)
        state = smaller._own_state()
        own = {name: self._grown(array, state[name], smaller, False) for name, array in self.in_use(state).items()}
        self.load_own(own)

    def load_own(self, state: Mapping[str, Any]) -> None:
        """Restore the wrapper's own arrays from a state."""
        super().load(state)


def rewrapped(cls: Any, inner: KernelLearner, options: tuple[Any, ...], own: State) -> Wrapper:
    """Recreate a wrapper that was copied or pickled."""
    wrapper: Wrapper = cls(inner, *options)
    wrapper.load_own(own)
    return wrapper
