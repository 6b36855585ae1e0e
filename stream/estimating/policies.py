"""Policies that can be evaluated. A policy returns its probability of playing each class.

A policy processes the decisions in a log once, in order. Before each decision, a learning policy is trained on the
logged actions whose feedback has arrived. The estimate is then the mean value, over the log, of a policy that changes
while it learns.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.estimating.rows import Chunk, usable
from stream.learners import FromLogs, Learner, check_parameters, create, registered
from stream.randomness.delays import DelayModel
from stream.randomness.draws import Draws, Purpose
from stream.settings.task_fields import Reward, Rewards, allows_any_right
from stream.wire.actions import CONTEXT, ActionBlocks, key_of
from stream.wire.records import Decision, Features, FloatArray

BASELINE = "baseline"
"""The name of the policy that the service's own rule is."""

FIRST = "first"
"""The name of the policy that plays each context's first action."""

UNUSED_PROPENSITY = 1.0
"""The propensity passed to learners that do not use propensities."""

_UNSOUND = {
    FromLogs.UNSOUND: "its updates assume that the learner itself chose the actions",
    FromLogs.LABEL: "it requires the true class, but the log contains one reward per decision",
}


class EstimateError(OnebitError, ValueError):
    """Raised if a log or policy cannot be evaluated. The message contains the reason and the remedy."""


class Policy(ABC):
    """A policy to be evaluated."""

    name: str
    changes: bool = False  # True if the policy learns from the log
    looks_at_x: bool = False  # True if the policy's actions depend on the features
    is_logged: bool = False  # True for the policy that produced the log
    supports_eligible: bool = True  # True if the policy can decide among a subset of the classes

    @abstractmethod
    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return the probability of each class for the next rows in the log, float64[n, K]; 0 for excluded rows."""

    def weight_max(self, propensity_min: float, classes_min: int) -> float:
        """Return the upper limit on importance weights.

        Args:
            propensity_min: Lower bound on the logged propensities.
            classes_min: Lower bound on the number of eligible classes for a decision.
        """
        return 1.0 / propensity_min

    def weight_bounds(self, p: FloatArray, propensity_min: float) -> FloatArray:
        """Return the upper limit on the importance weight of each class in each row, float64[n, K]."""
        return p / propensity_min

    def weights(self, p: FloatArray, actions: NDArray[np.int64], propensities: FloatArray) -> FloatArray:
        """Return the importance weights π(a|x)/μ(a|x) for n rows. π is p [n, K]; a and μ are the logged values."""
        weights: FloatArray = p[np.arange(actions.size), actions] / propensities
        return weights


class Uniform(Policy):
    """Plays every eligible class with the same probability."""

    def __init__(self, n_classes: int) -> None:
        self.name = "uniform"
        self._n_classes = n_classes

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1/m for each of a row's m eligible classes."""
        mask = chunk.mask(self._n_classes)
        shares: FloatArray = mask / mask.sum(axis=1, keepdims=True)
        return shares

    def weight_max(self, propensity_min: float, classes_min: int) -> float:
        """See `Policy.weight_max`."""
        return 1.0 / (classes_min * propensity_min)


class Constant(Policy):
    """Always plays one class or, if that class is not eligible, a random eligible class, as the holdout does."""

    def __init__(self, n_classes: int, action: int, name: str) -> None:
        self.name = f"constant:{name}"
        self._n_classes = n_classes
        self._action = action

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1 for the constant class and 0 for others, or uniform probabilities if that class is not eligible."""
        p = Uniform(self._n_classes).probabilities(chunk)
        p[p[:, self._action] > 0.0] = np.arange(self._n_classes) == self._action
        return p


class ConstantAction(Policy):
    """Always plays the action with one id or, if a context does not offer it, a random eligible action."""

    looks_at_x = True

    def __init__(self, blocks: ActionBlocks, action: str) -> None:
        self.name = f"constant:{action}"
        self._blocks = blocks
        self._key = key_of(action)

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1 for the constant action and 0 for others, or uniform probabilities if it is not eligible."""
        blocks = self._blocks
        p = Uniform(blocks.places).probabilities(chunk)
        place, index = np.divmod(chunk.indices.astype(np.int64) - blocks.context, blocks.width)
        found = np.flatnonzero((place >= 0) & (index == 0) & (chunk.values == self._key))
        rows = np.searchsorted(chunk.offsets, found, side="right") - 1
        among = p[rows, place[found]] > 0.0
        p[rows[among]] = np.arange(blocks.places) == place[found[among], None]
        return p


class First(Policy):
    """Plays the first eligible action of each context."""

    def __init__(self, n_classes: int) -> None:
        self.name = FIRST
        self._n_classes = n_classes

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1 for the first eligible action and 0 for others."""
        p = np.zeros((len(chunk.ids), self._n_classes))
        p[np.arange(len(chunk.ids)), chunk.mask(self._n_classes).argmax(axis=1)] = 1.0
        return p


class Baseline(Policy):
    """Plays the class of the service's own rule, which the log names."""

    name = BASELINE

    def __init__(self, n_classes: int) -> None:
        self._n_classes = n_classes

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1 for the rule's class and 0 for others.

        Raises:
            EstimateError: an evaluated row does not name the class.
        """
        p = np.zeros((len(chunk.ids), self._n_classes))
        baselines = np.full(len(chunk.ids), -1) if chunk.baselines is None else chunk.baselines
        known = np.flatnonzero(baselines >= 0)
        p[known, baselines[known]] = 1.0
        if (unknown := np.flatnonzero(chunk.judged & (baselines < 0))).size:
            raise EstimateError(
                f"policy {BASELINE}: event {chunk.ids[unknown[0]]} does not contain the choice of the service's own "
                "rule. Map its column as `baseline`, and fill it in all rows"
            )
        return p


class Logged(Policy):
    """The policy that produced the log. All weights are 1. The played class replaces the unknown probabilities."""

    is_logged = True

    def __init__(self, n_classes: int) -> None:
        self.name = "logged"
        self._n_classes = n_classes

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return 1 for the played class and 0 for all others. The expected values are the unknown probabilities."""
        p = np.zeros((len(chunk.ids), self._n_classes))
        known = np.flatnonzero(chunk.actions >= 0)
        p[known, chunk.actions[known]] = 1.0
        return p

    def weight_max(self, propensity_min: float, classes_min: int) -> float:
        """Return 1, the weight of every row."""
        return 1.0

    def weight_bounds(self, p: FloatArray, propensity_min: float) -> FloatArray:
        """Return 1 for every class."""
        return np.ones_like(p)

    def weights(self, p: FloatArray, actions: NDArray[np.int64], propensities: FloatArray) -> FloatArray:
        """Return a weight of 1 for every row."""
        return np.ones(actions.size)


class Model(Policy):
    """A trained learner that does not learn from the log."""

    looks_at_x = True

    def __init__(self, name: str, learner: Learner, n_classes: int | None = None) -> None:
        """Create the policy.

        Args:
            name: The policy's name.
            learner: The learner.
            n_classes: The number of classes of the log, by default that of the learner. A learner for actions may have
                more places than the log.
        """
        n_classes = learner.n_classes if n_classes is None else n_classes
        self.name = name
        self.supports_eligible = learner.supports_eligible
        self._learner = learner
        self._n_classes = n_classes
        self._every = None if learner.n_classes == n_classes else np.arange(n_classes, dtype=np.int32)

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return the probabilities of the learner's decisions."""
        p = np.zeros((len(chunk.ids), self._n_classes))
        for j in np.flatnonzero(chunk.judged):
            among = chunk.among(int(j))
            whole = self._learner.distribution(chunk.features(int(j)), self._every if among is None else among)
            p[j] = whole[: self._n_classes]
        return p


class Training(NamedTuple):
    """Settings for training learners on a log: seed, feedback delay, and kind of rewards."""

    seed: int = 0
    delay: DelayModel | None = None  # delay for rows without a logged delay; None means no delay
    reward: Reward = "exclusive"
    rewards: Rewards = "bit"


class _Waiting(NamedTuple):
    """A decision with pending feedback. Decisions are sorted by feedback time, then by position in the log."""

    due_ms: int
    number: int
    id: str
    x: Features
    decision: Decision
    reward: float


class Trained(Policy):
    """A learner that starts untrained and learns from the log.

    A learner that uses propensities does not learn from rows without a usable propensity.
    """

    changes = True
    looks_at_x = True

    def __init__(self, name: str, learner: Learner, training: Training) -> None:
        able = evaluable_learners(for_actions=learner.for_actions)
        if reason := _UNSOUND.get(learner.from_logs):
            raise EstimateError(f"{name} cannot be evaluated on a log: {reason}; use one of {', '.join(able)}")
        if training.rewards == "graded" and not learner.learns_values:
            fitting = [one for one in able if registered()[one].learns_values]
            raise EstimateError(
                f"{name} cannot be evaluated with graded rewards, because it learns whether a class is right, not from "
                f"numbers; use one of {', '.join(fitting)}"
            )
        if training.reward == "any" and learner.one_right_class:
            fitting = [one for one in able if not registered()[one].one_right_class]
            raise EstimateError(
                f"{name} cannot be evaluated if several classes may be right, because it assumes that a right answer "
                f"makes all others wrong; use one of {', '.join(fitting)}"
            )
        self.name = name
        self.supports_eligible = learner.supports_eligible
        self._is_weighing = learner.from_logs is FromLogs.PROPENSITY
        self._learner = learner
        self._training = training
        self._delay_draws = Draws(training.seed, Purpose.DELAY)
        self._update_draws = Draws(training.seed, Purpose.UPDATE)
        self._waiting: list[_Waiting] = []
        self._number = 0

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return the probabilities of the learner's decisions.

        Before each decision, the learner learns from earlier feedback.
        """
        p = np.zeros((len(chunk.ids), self._learner.n_classes))
        judged, learned, known = chunk.judged, chunk.actions >= 0, usable(chunk.propensities)
        if self._is_weighing:
            learned &= known
        for j in range(len(chunk.ids)):
            self._learn_before(int(chunk.decided_at_ms[j]))
            x, among = chunk.features(j), chunk.among(j)
            if judged[j]:
                p[j] = self._learner.distribution(x, among)
            if learned[j]:
                propensity = float(chunk.propensities[j]) if known[j] else UNUSED_PROPENSITY
                own = self._learner.predict(x, 0.0, among)
                decision = self._learner.as_played(x, own, int(chunk.actions[j]), propensity)
                self._learner.observe(x, decision)
                if not isnan(chunk.rewards[j]):
                    self._hold(chunk, j, x, decision)
        return p

    def _learn_before(self, now_ms: int) -> None:
        while self._waiting and self._waiting[0].due_ms < now_ms:
            self._learn(heapq.heappop(self._waiting))

    def _hold(self, chunk: Chunk, j: int, x: Features, decision: Decision) -> None:
        """Store a decision until its reward arrives, or learn from the reward immediately."""
        delay_ms = self._delay_ms(chunk, j)
        decided_at_ms = int(chunk.decided_at_ms[j])
        if delay_ms and decided_at_ms < 0:
            raise EstimateError(
                f"{self.name}: event {chunk.ids[j]} has a delay of {delay_ms} ms but no decision time; map the "
                "timestamp column, or run without a delay"
            )
        share = float(chunk.rewards[j])
        reward = share if self._training.rewards == "graded" else int(share)
        row = _Waiting(decided_at_ms + delay_ms, self._number, chunk.ids[j], x, decision, reward)
        self._number += 1
        if delay_ms:
            heapq.heappush(self._waiting, row)
        else:
            self._learn(row)

    def _delay_ms(self, chunk: Chunk, j: int) -> int:
        if chunk.delays_ms[j] >= 0:
            return int(chunk.delays_ms[j])
        if self._training.delay is None:
            return 0
        return self._training.delay.draw_ms(int(chunk.labels[j]), self._delay_draws(chunk.ids[j]))

    def _learn(self, row: _Waiting) -> None:
        v = self._update_draws(row.id) if self._learner.randomised_update else 0.0
        self._learner.update(row.x, row.decision, row.reward, v)


def evaluable_learners(*, for_actions: bool = False) -> list[str]:
    """Return the names of learners that can be evaluated on a log of decisions among classes, or among actions."""
    return [
        name for name, cls in registered().items() if cls.from_logs not in _UNSOUND and cls.for_actions == for_actions
    ]


def parse_policy(
    spec: str, class_names: Sequence[str], n_features: int, training: Training, blocks: ActionBlocks | None = None
) -> Policy:
    """Parse a policy: logged, uniform, baseline, first, constant:ACTION, or a learner as NAME:PARAMETER=VALUE,...

    The caller reads model files; see `Model`.

    Args:
        spec: The policy.
        class_names: The classes, or the places if the decisions are among actions.
        n_features: The number of features d.
        training: How learners are trained.
        blocks: The layout of x; None if the decisions are among classes.

    Raises:
        EstimateError: the policy is unknown, or does not apply to the decisions.
        ParameterError: the learner does not accept the parameters.
    """
    n_classes = len(class_names)
    name, _, rest = spec.partition(":")
    if spec == "logged":
        return Logged(n_classes)
    if spec == "uniform":
        return Uniform(n_classes)
    if spec == BASELINE:
        return Baseline(n_classes)
    if spec == FIRST:
        if blocks is None:
            raise EstimateError(
                f"policy {FIRST}: expected contexts that list actions with features; the decisions are among classes"
            )
        return First(n_classes)
    if name == "constant" and blocks is not None:
        if not rest:
            raise EstimateError(f"policy {spec}: expected constant:ID with the id of an action")
        return ConstantAction(blocks, rest)
    if name == "constant":
        if rest not in class_names:
            shown = ", ".join(class_names[:20]) + (", ..." if n_classes > 20 else "")
            raise EstimateError(
                f"policy {spec}: expected constant:CLASS with a class from the log ({shown}); got {rest!r}"
            )
        return Constant(n_classes, class_names.index(rest), rest)
    if name not in registered():
        raise EstimateError(
            f"policy {spec}: expected logged, uniform, baseline, {'' if blocks is None else FIRST + ', '}"
            "constant:ACTION, model:FILE, or one of the learners "
            f"{', '.join(evaluable_learners(for_actions=blocks is not None))}"
        )
    if registered()[name].for_actions != (blocks is not None):
        kind = "classes" if blocks is None else "actions with features"
        raise EstimateError(
            f"policy {spec}: the decisions are among {kind}, which {name} does not support; use one of "
            f"{', '.join(evaluable_learners(for_actions=blocks is not None))}"
        )
    given = _parameters(spec, rest) if blocks is None else {CONTEXT: blocks.context, **_parameters(spec, rest)}
    parameters = check_parameters(name, given, any_right=allows_any_right(training.reward, training.rewards))
    return Trained(spec, create(name, n_classes, n_features, **parameters), training)


def _parameters(spec: str, text: str) -> dict[str, Any]:
    parameters = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise EstimateError(f"policy {spec}: expected parameters NAME=VALUE separated by commas; got {part!r}")
        parameters[name] = value
    return parameters
