"""The settings of a task, and which learners can follow them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Literal

import numpy as np

from stream.learners import FromLogs, Learner, ParameterError, check_parameters, create, registered
from stream.learners.base import KernelLearner
from stream.task.join import JoinSettings
from stream.task.placement import count_misplaced
from stream.task.play import Play, Reward
from stream.wire.codec import LogReading
from stream.wire.events import Features
from stream.wire.named_features import FeatureEncoder, NamedFeaturesError, from_plain

OnExpiry = Literal["drop", "negative"]
LatePolicy = Literal["ignore", "correct"]
Sharing = Literal["own", "shared"]
DatedBy = Literal["tick", "context"]


class Unsuitable(Enum):
    """Why a learner cannot follow a policy."""

    NO_LABEL = auto()  # it learns from labels, and an expired decision has none
    NOTHING_ASSUMED = auto()  # late feedback is to correct what was assumed, and nothing is
    NOT_RETRACTABLE = auto()  # its updates cannot be taken back exactly
    NOT_FROM_LOGS = auto()  # its updates take for granted that it chose the actions itself
    ONE_RIGHT_CLASS = auto()  # it takes a right action to say that all others are wrong


class PolicyError(ParameterError):
    """A policy, for expired decisions, for late feedback or for a log's decisions, that a learner cannot follow."""

    def __init__(self, reason: Unsuitable, learner: str, suitable: Iterable[str] = ()) -> None:
        super().__init__(_POLICY_REASONS[reason].format(learner=learner, suitable=", ".join(suitable)))
        self.reason = reason
        self.learner = learner


_POLICY_REASONS = {
    Unsuitable.NO_LABEL: "{learner} learns from labels, and an expired decision has none",
    Unsuitable.NOTHING_ASSUMED: "late feedback can correct only an assumed reward, and none is assumed at expiry",
    Unsuitable.NOT_RETRACTABLE: "late feedback can correct only an update that can be taken back; {learner} has none",
    Unsuitable.NOT_FROM_LOGS: (
        "{learner} learns only from actions that it chose itself, and not from those of a log; those that can are "
        "{suitable}"
    ),
    Unsuitable.ONE_RIGHT_CLASS: (
        "{learner}, as it is set, takes one class to be right and all others to be wrong, and several may be right; "
        "those that do not are {suitable}"
    ),
}


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """All that a task's state depends on beside its inputs."""

    learner: str
    n_classes: int
    n_features: int
    parameters: dict[str, Any] = field(default_factory=dict)  # those that are given, or all
    seed: int = 0
    join: JoinSettings = field(default_factory=JoinSettings)
    on_expiry: OnExpiry = "drop"  # what an expired decision teaches: nothing, or that it was wrong
    late: LatePolicy = "ignore"  # what late feedback does to what was assumed
    play: Play = "own"  # what is done with the decision of a log
    reward: Reward = "exclusive"  # how many classes may be right
    propensity_min: float = 0.0  # the least propensity of a log that is learned from; 0: there is none
    features: Mapping[str, Any] | None = None  # which index each named feature has, as `to_plain` writes it
    class_names: tuple[str, ...] | None = None  # class k is called class_names[k]; None: by its number alone
    model: Sharing = "own"  # whose model it is that the task decides on: its own, or that of all tasks
    dated_by: DatedBy = "tick"  # in virtual time by the context: a learner that polls seldom is taken to poll always

    def resolved(self) -> "TaskSettings":
        """The same with all the learner's parameters: those that are not given at their defaults of today.

        Raises:
            ParameterError: an unknown learner or parameter, or a value out of range.
        """
        parameters = check_parameters(
            self.learner, self.parameters, correctable=self.late == "correct", any_right=self.reward == "any"
        )
        return replace(self, parameters=parameters)

    def make_shareable_learner(self) -> KernelLearner:
        """A fresh learner for a model that tasks share.

        Raises:
            ParameterError: a learner that has no kernels, or what `make_learner` refuses.
        """
        learner = self.make_learner()
        if not isinstance(learner, KernelLearner):
            raise ParameterError(f"model shared: expected a learner with kernels; got {self.learner}")
        return learner

    def make_learner(self) -> Learner:
        """A fresh learner; settings that it cannot work with are refused.

        Raises:
            PolicyError: a policy that this learner cannot follow.
            ParameterError: an unknown learner or parameter.
        """
        parameters = self.resolved().parameters
        learner = create(self.learner, self.n_classes, self.n_features, **parameters)
        self.check_policies(learner)
        self.feature_encoder()
        if self.model == "shared" and self.play != "own":
            raise ParameterError(
                f"model shared: expected play own; got {self.play}: a log's decisions are learned from by models of "
                "their own"
            )
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise ParameterError(f"class_names: expected {self.n_classes} names; got {len(self.class_names)}")
        return learner

    def feature_encoder(self) -> FeatureEncoder | None:
        """Which index each named feature of a context has; None: there are no named ones.

        Raises:
            ParameterError: it cannot be read, or has not as many features as the learner.
        """
        if self.features is None:
            return None
        try:
            encoder = from_plain(self.features)
        except NamedFeaturesError as error:
            raise ParameterError(f"features: {error}") from error
        if encoder.n_features != self.n_features:
            raise ParameterError(
                f"features: the named ones have {encoder.n_features} indices, and the learner has {self.n_features} "
                f"features; n_features={encoder.n_features} is expected"
            )
        return encoder

    def check_policies(self, learner: Learner) -> None:
        """See that the learner can follow `on_expiry`, `late`, `play` and `reward`.

        Raises:
            PolicyError: it cannot.
        """
        if learner.needs_label and self.on_expiry == "negative":
            raise PolicyError(Unsuitable.NO_LABEL, self.learner)
        if self.late == "correct" and self.on_expiry != "negative":
            raise PolicyError(Unsuitable.NOTHING_ASSUMED, self.learner)
        if self.late == "correct" and not learner.retractable:
            raise PolicyError(Unsuitable.NOT_RETRACTABLE, self.learner)
        if self.play == "logged" and learner.from_logs is FromLogs.UNSOUND:
            sound = [name for name, cls in registered().items() if cls.from_logs is not FromLogs.UNSOUND]
            raise PolicyError(Unsuitable.NOT_FROM_LOGS, self.learner, sound)
        if self.reward == "any" and learner.one_right_class:
            others = [name for name, cls in registered().items() if not cls.one_right_class]
            raise PolicyError(Unsuitable.ONE_RIGHT_CLASS, self.learner, others)

    @property
    def log_reading(self) -> LogReading | None:
        """How the decision of a log is read that a context carries; None: it is not looked at."""
        if self.play == "own":
            return None
        if self.play == "match":
            return LogReading(self.n_classes, needs_propensity=True, is_uniform=self.propensity_min == 0.0)
        return LogReading(self.n_classes, needs_propensity=self._weighs)

    @property
    def learned_propensity_min(self) -> float:
        """The propensity that a learner gets for a smaller one; 0: it gets what there is."""
        return self.propensity_min if self.play == "logged" and self._weighs else 0.0

    @property
    def _weighs(self) -> bool:
        return registered()[self.learner].from_logs is FromLogs.PROPENSITY

    def warm_up(self) -> None:
        """Compile all kernels that a step needs, or load them, so that the first event does not wait for that."""
        learner = self.make_learner()
        x = Features(np.zeros(1, dtype=np.int32), np.ones(1))
        decision = learner.predict(x, 0.5)
        if self.play == "logged":
            decision = learner.as_played(x, decision, 0, 1.0)
        learner.observe(x, decision)
        learner.update(x, decision, 1, 0.5, 0)
        count_misplaced([b"warm"], 0, 2)
