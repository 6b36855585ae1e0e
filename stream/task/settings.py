"""A task's settings, and checks that its learner supports them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np

from stream.learners import FromLogs, Learner, ParameterError, check_parameters, create, registered
from stream.learners.base import KernelLearner
from stream.learners.wrappers.challenge import SOUND, Challenge
from stream.learners.wrappers.mixture import BASELINE, Mixture
from stream.learners.wrappers.running_scale import RunningScale
from stream.parsing import shown
from stream.settings.model import Change, Stored
from stream.settings.task_fields import DataFields, ExpiryFields, JoinSettings, LearnerFields, allows_any_right
from stream.task.frozen import MODEL, Frozen
from stream.task.placement import count_misplaced
from stream.wire.actions import CONTEXT, ActionBlocks
from stream.wire.classes import LOGGED_NAMES_MAX, Classes
from stream.wire.codec import NUMBERS_MAX, ActionReading, LogReading
from stream.wire.named_features import FeatureEncoder, NamedFeaturesError, from_plain
from stream.wire.records import HOLDOUT, Arm, Features, IndexArray
from stream.wire.rewards import BITS, format_range, parse_range

Sharing = Literal["own", "shared"]
DatedBy = Literal["tick", "context"]

UNIFORM = "uniform"

CHALLENGERS_MAX = 4
"""Limit on the number of challengers. Each challenger uses about as much CPU time and memory as a separate learner."""


class Unsuitable(Enum):
    """Reasons why a learner does not support a policy. The values are messages."""

    NO_LABEL = "{learner} learns from labels, but an expired decision has none"
    NOTHING_ASSUMED = "late feedback can correct only an assumed reward, but expired decisions have none"
    NOT_RETRACTABLE = (
        "late feedback can correct only updates that can be reversed; {learner} with these parameters cannot reverse "
        "updates; use one of {suitable}"
    )
    NOT_FROM_LOGS = (
        "{learner} with these parameters learns only from its own actions, not from a log; use one of {suitable}"
    )
    NO_OWN_DECISIONS = (
        "{learner} with these parameters learns only from its own decisions, but the holdout makes all of them; use "
        "one of {suitable}"
    )
    NO_CHALLENGE = (
        "{learner} with these parameters cannot learn from another learner's decisions, which challengers require; use "
        "one of {suitable}"
    )
    NO_ELIGIBLE = (
        "{learner} cannot decide among a subset of the classes, which is necessary for classes_max, for retired "
        "classes and for eligible classes in a log; use one of {suitable}"
    )
    ONE_RIGHT_CLASS = (
        "{learner} with these parameters requires exactly one right class, but reward=any is set; use one of {suitable}"
    )
    NOT_FOR_ACTIONS = "{learner} decides among classes, but contexts list actions with features; use one of {suitable}"
    FOR_ACTIONS = "{learner} decides among actions with features, which requires actions_max; use one of {suitable}"
    NO_SUM_OF_BITS = "feedback=sum requires rewards=graded: the sum of bits, limited to 1, is their maximum"
    NO_SUM_CORRECTED = "late feedback replaces an assumed reward, but with feedback=sum it is only a part of the reward"
    NO_VALUES = (
        "{learner} with these parameters learns whether a class is right, not from numbers, but rewards=graded is set; "
        "use one of {suitable}"
    )


class PolicyError(ParameterError):
    """Raised if a learner does not support a policy for expired decisions, late feedback, rewards, logs or classes."""

    def __init__(self, reason: Unsuitable, learner: str, suitable: Iterable[str] = ()) -> None:
        super().__init__(reason.value.format(learner=learner, suitable=", ".join(suitable)))
        self.reason = reason
        self.learner = learner


@dataclass(frozen=True)
class TaskSettings(DataFields, LearnerFields, ExpiryFields):
    """A task's settings. Together with the inputs, they determine the task's state.

    The inherited fields are the settings that a user gives in the same form: see `stream.settings.task_fields`.
    """

    learner: Annotated[str, Stored(shapes_model=True, change=Change.MEMBERS)]
    n_classes: Annotated[int, Stored(shapes_model=True, change=Change.GROWN)]
    n_features: Annotated[int, Stored(shapes_model=True, change=Change.GROWN)]
    parameters: dict[str, Any] = field(default_factory=dict)  # the parameters that the user set, or all parameters
    join: JoinSettings = field(default_factory=JoinSettings)
    features: Annotated[  # the encoder for named features, as written by `to_plain`
        Mapping[str, Any] | None, Stored(change=Change.GROWN)
    ] = None
    class_names: Annotated[  # class names; None if the classes have no names
        tuple[str, ...] | None, Stored(change=Change.GROWN)
    ] = None
    model: Annotated[  # a model per task, or one shared by all tasks
        Sharing, Stored(reason="the tasks' models are different, and a shared model is stored in a different topic")
    ] = "own"
    dated_by: Annotated[  # source of decision times; "context" is for virtual time
        DatedBy, Stored(reason="pending decisions have times from the earlier source")
    ] = "tick"
    holdout_policy: Annotated[  # the holdout's fixed policy; see `make_holdout_policy`
        str, Stored(change=Change.MIXED)
    ] = UNIFORM
    challengers: Annotated[  # parameters by name; see `learner_of`
        Mapping[str, Mapping[str, Any]], Stored(change=Change.MEMBERS)
    ] = field(default_factory=dict)
    open_classes: Annotated[  # contexts name their classes, up to n_classes
        bool, Stored(shapes_model=True, reason="the existing classes have indices in the earlier order")
    ] = False
    champion: Annotated[  # the learner that decides; None means `learner`
        str | None, Stored(change=Change.MEMBERS)
    ] = None
    started_from: Annotated[  # digests of the model files with which challengers started, by name
        Mapping[str, str], Stored(change=Change.MEMBERS)
    ] = field(default_factory=dict)
    retired_classes: Annotated[  # classes that are never eligible: names, or indices if the classes have no names
        tuple[str | int, ...], Stored(change=Change.FREE)
    ] = ()
    retired_features: Annotated[  # features that are ignored: names, or indices if the features have no names
        tuple[str | int, ...], Stored(change=Change.FREE)
    ] = ()
    actions: Annotated[  # `context`: the features of a context; `features`: the actions' encoder; None with classes
        Mapping[str, Any] | None,
        Stored(shapes_model=True, reason="the model and the pending decisions have actions with the earlier features"),
    ] = None

    def resolved(self) -> "TaskSettings":
        """Return these settings with all of the learners' parameters and, with challengers, with a champion.

        Unset parameters get their default values.

        Raises:
            ParameterError: the learner or a parameter is unknown, or a value is out of range.
        """

        def whole(learner: str, given: Mapping[str, Any]) -> dict[str, Any]:
            if self.actions is not None and learner in registered() and registered()[learner].for_actions:
                given = {CONTEXT: self.context_features, **given}
            any_right = allows_any_right(self.reward, self.rewards)
            return check_parameters(learner, given, correctable=self.late == "correct", any_right=any_right)

        return replace(
            self,
            parameters=whole(self.learner, self.parameters),
            challengers={name: whole(learner_of(name), given) for name, given in self.challengers.items()},
            champion=self.champion or (self.learner if self.challengers else None),
        )

    @property
    def members(self) -> tuple[str, ...]:
        """The name of the champion, then the sorted names of the challengers; empty if there are none."""
        return (self.learner, *sorted(self.challengers)) if self.challengers else ()

    @property
    def decides(self) -> int:
        """The number of the member that decides; see `Learner.promote`."""
        return 0 if self.champion is None else (self.learner, *sorted(self.challengers)).index(self.champion)

    def make_shareable_learner(self) -> KernelLearner:
        """Create a learner for a model shared by tasks.

        Raises:
            ParameterError: the learner has no kernels, or `make_learner` raised this error.
        """
        return with_kernels(self.make_learner(), "model shared")

    def make_learner(self) -> Learner:
        """Create a learner after rejecting incompatible settings.

        Raises:
            PolicyError: the learner does not support a policy.
            ParameterError: the learner or a parameter is unknown.
        """
        self._check_challengers()
        self._check_actions()
        if self.graded is None and parse_range(self.reward_range) != BITS:
            raise ParameterError(
                f"reward_range: expected {format_range(BITS)} for bits; got {self.reward_range}. Set rewards=graded"
            )
        policy = self.make_holdout_policy()  # also checks a policy that a later holdout will play
        fixed = policy if self.holdout else None
        learner = self._make_wrapped(self.learner, fixed)
        for name in self.members[1:]:
            challenger = self._make_wrapped(name, fixed)
            learner = Challenge(with_kernels(learner, "challenger"), with_kernels(challenger, "challenger"))
        if self.champion is not None:
            learner.promote(self.decides)
        self.feature_encoder()
        if self.model == "shared" and self.play != "own":
            raise ParameterError(f"model shared: expected play own; got {self.play}")
        if self.holdout != 0.0 and self.play != "own":
            raise ParameterError(f"holdout: expected play own; got {self.play}")
        if self.open_classes or self.retired_classes:
            self.check_eligible()
        self._check_retired()
        if self.open_classes and self.model == "shared" and self.n_classes > LOGGED_NAMES_MAX:
            raise ParameterError(
                f"classes_max: expected at most {LOGGED_NAMES_MAX:,} with a shared model; got {self.n_classes:,}"
            )
        numbers = self.n_classes
        if self.model == "shared":
            numbers += with_kernels(learner, "model shared").logged_size
        if numbers > NUMBERS_MAX:
            raise ParameterError(
                f"{'classes_max' if self.open_classes else 'n_classes'}: a prediction would contain {numbers:,} scores "
                f"and logged values; expected at most {NUMBERS_MAX:,}"
            )
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise ParameterError(f"class_names: expected {self.n_classes} names; got {len(self.class_names)}")
        return learner

    def _check_retired(self) -> None:
        """Check that the retired classes and features exist, and that a class is left.

        The names of open classes can be retired before a context contains them.
        """
        classes: Collection[str | int] = range(self.n_classes) if self.class_names is None else self.class_names
        if self.actions is not None and self.retired_classes:
            raise ParameterError("retired_classes: contexts list the actions that can be played. Omit the action there")
        if self.open_classes:
            classes = [name for name in self.retired_classes if isinstance(name, str)]
        elif len(self.retired_classes) >= self.n_classes:
            raise ParameterError("retired_classes: expected at least one class that is not retired; got none")
        encoder = self.feature_encoder()
        features: Collection[str | int] = range(self.context_features)
        if encoder is not None:
            features = encoder.names or [name for name in self.retired_features if isinstance(name, str)]
        for setting, known, retired in (
            ("retired_classes", classes, self.retired_classes),
            ("retired_features", features, self.retired_features),
        ):
            if unknown := [one for one in retired if one not in known]:
                named = ", ".join(map(str, list(known)[:20]))
                raise ParameterError(f"{setting}: expected some of {named}; got {shown(unknown[0])}")
            if len(set(retired)) < len(retired):
                raise ParameterError(f"{setting}: expected each one once; got {shown(list(retired))}")

    def make_member(self, name: str) -> Learner:
        """Create the champion or a challenger alone, by name. For the champion, the name is `learner`."""
        return self._make_wrapped(name, self.make_holdout_policy() if self.holdout else None)

    def parameters_of(self, name: str) -> Mapping[str, Any]:
        """Return the parameters of the champion or a challenger, by name."""
        return self.parameters if name == self.learner else self.challengers[name]

    def _make_wrapped(self, name: str, fixed: int | KernelLearner | Literal["baseline"] | None) -> Learner:
        """Create a learner with the scale, floor and holdout settings, and check that it supports the policies."""
        parameters = self.resolved().parameters_of(name)
        self._check_kind(learner_of(name))
        learner = create(learner_of(name), self.n_classes, self.n_features, **parameters)
        self.check_policies(learner)
        if self.holdout == 1.0 and learner.from_logs is FromLogs.UNSOUND:
            sound = self._learners(lambda cls: cls.from_logs is not FromLogs.UNSOUND)
            raise PolicyError(Unsuitable.NO_OWN_DECISIONS, learner.name, sound)
        if self.scale == "standard":
            learner = RunningScale(with_kernels(learner, "scale standard"))
        if self.floor != 0.0 or self.holdout != 0.0:
            mixed = with_kernels(learner, "floor and holdout")
            learner = Mixture(mixed, self.floor, self.holdout, fixed)
        return learner

    @property
    def blocks(self) -> ActionBlocks | None:
        """The layout of x, or None if the pipeline decides among classes.

        Raises:
            ParameterError: the number of features does not match the layout.
        """
        if self.actions is None:
            return None
        try:
            blocks = ActionBlocks.of_dimension(self.n_features, self.n_classes, self.context_features)
            blocks.check()
        except ValueError as error:
            raise ParameterError(f"actions: {error}") from error
        return blocks

    @property
    def context_features(self) -> int:
        """The number of features of a context without its actions."""
        return self.n_features if self.actions is None else int(self.actions["context"])

    def action_reading(self) -> ActionReading | None:
        """Return how a context's actions are read, or None if the pipeline decides among classes.

        Raises:
            ParameterError: the encoder is invalid, or its number of features differs from the layout's.
        """
        blocks = self.blocks
        if blocks is None or self.actions is None:
            return None
        learners = {self.learner, *map(learner_of, self.challengers)}
        limits = [registered()[name].pairs_max for name in learners if name in registered()]
        pairs_max = min((limit for limit in limits if limit is not None), default=None)
        features = self.actions["features"]
        if features is None:
            return ActionReading(blocks, None, pairs_max)
        try:
            encoder = from_plain(features)
        except NamedFeaturesError as error:
            raise ParameterError(f"actions, features: {error}") from error
        if encoder.n_features != blocks.features:
            raise ParameterError(
                f"actions, features: expected {blocks.features:,} features; got {encoder.n_features:,}"
            )
        return ActionReading(blocks, encoder, pairs_max)

    def _check_actions(self) -> None:
        """Check the settings that depend on whether contexts have actions.

        Raises:
            ParameterError: the layout is invalid, or a setting applies only to classes.
        """
        if self.action_reading() is None:
            return
        for name, given in (("class_names", self.class_names is not None), ("classes_max", self.open_classes)):
            if given:
                raise ParameterError(f"{name}: contexts list actions with ids, which need no names of classes. Omit it")
        if self.scale != "none":
            raise ParameterError(
                f"scale {self.scale}: expected none, because the learners for actions scale contexts and actions "
                f"themselves; got {self.scale}"
            )
        own = self.resolved()
        for name in (self.learner, *self.challengers):
            given = own.parameters_of(name).get(CONTEXT, self.context_features)
            if given != self.context_features:
                raise ParameterError(
                    f"{name}, parameter {CONTEXT}: expected {self.context_features}, the number of features of a "
                    f"context; got {given}. Omit the parameter"
                )

    def _check_kind(self, learner: str) -> None:
        """Check that a learner decides among what the pipeline's contexts contain: classes, or actions with features.

        Raises:
            PolicyError: it does not.
        """
        has_actions = self.actions is not None
        if learner in registered() and registered()[learner].for_actions != has_actions:
            reason = Unsuitable.NOT_FOR_ACTIONS if has_actions else Unsuitable.FOR_ACTIONS
            raise PolicyError(reason, learner, self._learners(lambda cls: True))

    def _learners(self, supports: Callable[[type[Learner]], bool]) -> list[str]:
        """Return the learners that support something, as far as they decide among what contexts contain."""
        has_actions = self.actions is not None
        return [name for name, cls in registered().items() if cls.for_actions == has_actions and supports(cls)]

    def check_champion(self) -> None:
        """Check that the pipeline has the learner that decides.

        Raises:
            ParameterError: it does not.
        """
        if self.champion not in (None, self.learner, *self.challengers):
            raise ParameterError(
                f"champion: expected one of {', '.join((self.learner, *sorted(self.challengers)))}; got {self.champion}"
            )

    def _check_challengers(self) -> None:
        self.check_champion()
        if len(self.challengers) > CHALLENGERS_MAX:
            raise ParameterError(f"challenger: expected at most {CHALLENGERS_MAX}; got {len(self.challengers)}")
        if unknown := self.started_from.keys() - self.challengers.keys():
            raise ParameterError(f"started_from: expected names of challengers; got {min(unknown)}")
        if self.learner in self.challengers:
            raise ParameterError(
                f"challenger: expected a name other than the champion's, such as {self.learner}:PARAM=VALUE; got "
                f"{self.learner}"
            )
        if self.challengers and self.play != "own":
            raise ParameterError(f"challenger: expected play own; got {self.play}")

    @property
    def needs_baseline(self) -> bool:
        """Whether each context must name the class that the service's own rule plays."""
        return self.holdout > 0.0 and self.holdout_policy == BASELINE

    def make_holdout_policy(self) -> int | KernelLearner | Literal["baseline"] | None:
        """Create the policy for the holdout; see `Mixture`.

        Raises:
            ParameterError: the policy is unknown, its class does not exist, or its model does not match these settings.
        """
        if self.holdout_policy == UNIFORM:
            return None
        if self.holdout_policy == BASELINE:
            return BASELINE
        if self.holdout_policy.startswith(MODEL):
            return self._make_frozen()
        kind, _, name = self.holdout_policy.partition(":")
        if self.actions is not None and kind == "constant":
            raise ParameterError(
                f"holdout_policy: expected {UNIFORM}, {BASELINE} or {MODEL}FILE, because contexts offer different "
                f"actions; got {self.holdout_policy!r}. Use {BASELINE}, and name the action in each context"
            )
        names = [str(k) for k in range(self.n_classes)] if self.class_names is None else self.class_names
        if kind != "constant" or name not in names:
            raise ParameterError(
                f"holdout_policy: expected {UNIFORM}, {BASELINE}, {MODEL}FILE, or constant:CLASS with one of "
                f"{', '.join(names[:20])}; got {self.holdout_policy!r}"
            )
        return names.index(name)

    def _make_frozen(self) -> KernelLearner:
        """Create the learner whose greedy class is played in the holdout."""
        frozen = Frozen.of_text(self.holdout_policy)
        if self.open_classes or frozen.settings["open_classes"]:
            raise ParameterError("holdout_policy model: expected a fixed set of classes, not classes_max")
        names = None if self.class_names is None else list(self.class_names)
        for name, own, of_model in (
            ("n_classes", self.n_classes, frozen.settings["n_classes"]),
            ("n_features", self.n_features, frozen.settings["n_features"]),
            ("class_names", names, frozen.class_names),
            ("features", self.features, frozen.features),
            ("actions", self.actions, frozen.settings.get("actions")),
        ):
            if of_model not in (None, own):
                raise ParameterError(
                    f"holdout_policy model: expected {name} {shown(own)}; got {shown(of_model)}. Use a model with the "
                    "pipeline's classes and features, or import the model with `onebit model import`, which also "
                    "imports its names"
                )
        learner = with_kernels(TaskSettings(**frozen.settings).make_learner(), "holdout_policy model")
        try:
            learner.load({**learner.state(), **frozen.state})
        except ValueError as error:
            raise ParameterError(f"holdout_policy model: {error}") from error
        return learner

    def arm_of(self, u: float) -> Arm | None:
        """Return the arm for a decision made with the uniform draw u, or None if the learner decides."""
        return HOLDOUT if u < self.holdout else None

    def make_classes(self) -> Classes:
        """Create the pipeline's classes. Open classes have no names before the first context."""
        return Classes(
            self.n_classes, self.class_names, is_open=self.open_classes, from_log=self.model == "shared",
            unsupported=self.unsupported, retired=self.retired_classes,
        )  # fmt: skip

    def feature_encoder(self) -> FeatureEncoder | None:
        """Return the encoder for named features, or None if the features have no names. It ignores retired features.

        Raises:
            ParameterError: the encoder is invalid, or its number of features differs from the learner's.
        """
        if self.features is None:
            return None
        try:
            encoder = from_plain(self.features)
        except NamedFeaturesError as error:
            raise ParameterError(f"features: {error}") from error
        if encoder.n_features != self.context_features:
            raise ParameterError(
                f"n_features: expected {encoder.n_features}, to match `features`; got {self.context_features}"
            )
        return replace(encoder, retired=frozenset(map(str, self.retired_features)))

    @property
    def retired_indices(self) -> IndexArray | None:
        """The indices of the retired features, without those of hashed features; None if no feature is retired."""
        if not self.retired_features:
            return None
        encoder = self.feature_encoder()
        if encoder is None:
            return np.array(self.retired_features, np.int32)
        found = [encoder.names[str(name)].indices or {} for name in self.retired_features if name in encoder.names]
        return np.array([index for indices in found for index in indices.values()], np.int32)

    @property
    def unsupported(self) -> str | None:
        """The first learner that cannot decide among a subset of the classes, or None if all learners can."""
        learners = (self.learner, *map(learner_of, self.members[1:]))
        return next((name for name in learners if not registered()[name].supports_eligible), None)

    @property
    def is_randomised(self) -> bool:
        """Whether a learner's updates use a random draw."""
        learners = (self.learner, *map(learner_of, self.challengers))
        return any(registered()[name].randomised_update for name in learners)

    def check_eligible(self) -> None:
        """Check that all learners can decide among a subset of the classes.

        Raises:
            PolicyError: a learner does not support eligible classes.
        """
        if self.unsupported is not None:
            able = self._learners(lambda cls: cls.supports_eligible)
            raise PolicyError(Unsuitable.NO_ELIGIBLE, self.unsupported, able)

    def check_policies(self, learner: Learner) -> None:
        """Check that the learner supports `on_expiry`, `late`, `play`, `reward`, `rewards`, `feedback` and challengers.

        Raises:
            PolicyError: the learner does not support one of these settings.
        """
        if learner.needs_label and self.on_expiry == "negative":
            raise PolicyError(Unsuitable.NO_LABEL, learner.name)
        if self.late == "correct" and self.on_expiry != "negative":
            raise PolicyError(Unsuitable.NOTHING_ASSUMED, learner.name)
        if self.feedback == "sum" and self.graded is None:
            raise PolicyError(Unsuitable.NO_SUM_OF_BITS, learner.name)
        if self.feedback == "sum" and self.late == "correct":
            raise PolicyError(Unsuitable.NO_SUM_CORRECTED, learner.name)
        if self.late == "correct" and not learner.retractable:
            able = self._learners(lambda cls: cls.retractable)
            raise PolicyError(Unsuitable.NOT_RETRACTABLE, learner.name, able)
        if self.play == "logged" and learner.from_logs is FromLogs.UNSOUND:
            sound = self._learners(lambda cls: cls.from_logs is not FromLogs.UNSOUND)
            raise PolicyError(Unsuitable.NOT_FROM_LOGS, learner.name, sound)
        if self.challengers and learner.from_logs not in SOUND:
            sound = self._learners(lambda cls: cls.from_logs in SOUND)
            raise PolicyError(Unsuitable.NO_CHALLENGE, learner.name, sound)
        if self.graded is not None and not learner.learns_values:
            suitable = self._learners(lambda cls: cls.learns_values)
            raise PolicyError(Unsuitable.NO_VALUES, learner.name, suitable)
        if self.reward == "any" and learner.one_right_class:
            others = self._learners(lambda cls: not cls.one_right_class)
            raise PolicyError(Unsuitable.ONE_RIGHT_CLASS, learner.name, others)

    @property
    def assumed_reward(self) -> float | None:
        """The reward that is learned from an expired decision, or None."""
        if self.on_expiry != "negative":
            return None
        return 0 if self.graded is None else self.graded.low

    @property
    def log_reading(self) -> LogReading | None:
        """The requirements for logged decisions in contexts, or None if logged decisions are ignored."""
        if self.play == "own":
            return None
        if self.play == "match":
            return LogReading(self.n_classes, needs_propensity=True, is_uniform=self.propensity_min == 0.0)
        return LogReading(self.n_classes, needs_propensity=self._weighs)

    @property
    def learned_propensity_min(self) -> float:
        """The minimum to which logged propensities are raised for the learner; 0 means no minimum."""
        return self.propensity_min if self.play == "logged" and self._weighs else 0.0

    @property
    def _weighs(self) -> bool:
        return registered()[self.learner].from_logs is FromLogs.PROPENSITY

    def warm_up_member(self, name: str) -> None:
        """Compile or load the kernels with which a new learner reads earlier decisions; see `stream.task.carry`."""
        x = Features(np.zeros(1, dtype=np.int32), np.ones(1))
        with registered().blamed(learner_of(name)):
            learner = self.make_member(name)
            learner.as_played(x, learner.predict(x, 0.5), 0, 1.0)

    def warm_up(self) -> None:
        """Compile or load all kernels that a step uses, so that the first event is not delayed.

        Raises:
            PluginError: a plug-in's learner raises an exception.
        """
        x = Features(np.zeros(1, dtype=np.int32), np.ones(1))
        with registered().blamed(self.learner, *map(learner_of, self.challengers)):
            learner = self.make_learner()
            decision = learner.predict(x, 0.5)
            if self.play == "logged":
                decision = learner.as_played(x, decision, 0, 1.0)
            learner.observe(x, decision)
            learner.update(x, decision, 1 if self.graded is None else 1.0, 0.5, 0)
        count_misplaced([b"warm"], 0, 2)


def learner_of(challenger: str) -> str:
    """Return a challenger's learner. The challenger's name is `LEARNER` or `LEARNER:param=value,...`.

    >>> learner_of("late-ucb:m=32"), learner_of("stack-igw")
    ('late-ucb', 'stack-igw')
    """
    return challenger.partition(":")[0]


def with_kernels(learner: Learner, setting: str) -> KernelLearner:
    """Check that a learner has the kernels that a setting requires, and return the learner.

    Raises:
        ParameterError: the learner has no kernels.
    """
    if not isinstance(learner, KernelLearner):
        raise ParameterError(f"{setting}: expected a learner with kernels; got {learner.name}")
    return learner
