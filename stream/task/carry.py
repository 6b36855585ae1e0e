"""What carries over when the settings of a running pipeline change: the model and the pending decisions.

| setting | the model | pending decisions | refused |
|---|---|---|---|
| windows, limits, `on_expiry`, `late` | kept | kept | |
| `retired_classes`, `retired_features` | kept | kept, also those for a retired class | without eligible classes |
| `floor`, `holdout`, `holdout_policy` | kept | keep their propensities | both to 0, if a learner is `UNSOUND` |
| `challengers`, added | untrained | teach the new learner | |
| `challengers`, added with `started_from` | of the file | teach the new learner | open classes; see below |
| `challengers`, removed; `learner`; `champion` | kept by name | kept | the deciding learner; an untrained `learner` |
| `parameters` | kept | kept | unless the parameter declares `can_change` |
| `n_classes`, `class_names` | new classes untrained | new classes were not eligible | fewer; renamed; see below |
| `n_features`, `features` | new features untrained | kept | fewer; a different index; with `actions` |
| all others | | | always, for the reason in `Stored` |

`Stored` in `stream.settings.model` assigns each setting to a row. A learner's `grows` states whether its classes and
features can be extended; for classes, it must also support eligible classes. The scores of the earlier classes then
stay the same, bit for bit, except those of stack-igw and of confidit with a projection, whose scores for a class depend
on the number of classes. Scores never depend on the number of features.

A learner is known by its name, or by its parameters if its name changes. If a challenger is the `champion`, `learner`
and `parameters` can become those of this challenger, and the first champion can be removed.

A new learner receives the values that it would have logged for a pending decision. It observes the decision when
the bit arrives, and then learns from the bit. It has no part in the decision's estimates, because the published
prediction does not name it. If the pipeline's only trained learner is removed while decisions from before the
remaining learner are pending, these decisions teach nothing (`Decision.can_teach`).

A challenger can start with the model in a file (`StartModel`). The settings on which a model depends must be those of
the pipeline, and so must the names of classes and features, if the model has names. Parameters can differ if they
declare `can_change`. Open classes have an order in each task, which no file knows, so they are refused.

All functions depend only on their arguments. Replicas of a shared model that apply a change at the same entry of the
log therefore have the same model, and a task that is recovered has the same pending decisions. `stream.shared.history`
converts the entries that tasks with the earlier settings write to the log after this entry.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stream.learners import FromLogs, Learner, ParameterError, State, registered
from stream.learners.base import KernelLearner
from stream.learners.wrappers.challenge import (
    BEFORE,
    BY_CHAMPION,
    SETTLED_BEFORE,
    Challenge,
    Part,
    decision_of,
    parts_of,
)
from stream.learners.wrappers.mixture import Mixture
from stream.parsing import shown
from stream.settings.model import Change
from stream.task.settings import TaskSettings, learner_of
from stream.task.stored_settings import (
    CHANGEABLE,
    MODEL_SETTINGS,
    MOVABLE,
    NAMES,
    PARAMETER,
    STORED,
    differences,
    stored_settings,
)
from stream.wire.control import STARTED_FROM, Replaced
from stream.wire.named_features import NamedFeaturesError, check_extends
from stream.wire.records import NO_CLASS, NOT_ELIGIBLE, NOTHING_LOGGED, Decision, Features, FloatArray, IndexArray

_NEW_PIPELINE = "Use the earlier value, or start a new pipeline with a different topic prefix"
_AS_CHALLENGER = "Add a challenger with these parameters, and promote it"

ANY_U = 0.5
"""The draw with which a new learner chooses a class for an earlier decision. The choice is not used."""


class Reason(Enum):
    """Why a change is refused, and what to do instead. The values are messages."""

    FIXED = "{why}", _NEW_PIPELINE
    MOVABLE = "{why}", "Use the earlier value, or move the pipeline to new topics (onebit move)"
    FEWER = "classes and features cannot be removed", "Use a larger value"
    RENAMED = "the existing classes keep their indices", "Append new names at the end"
    MOVED = "{why}", "Append new features, categories and words at the end"
    NO_ELIGIBLE = (
        "{learner} cannot decide among a subset of the classes, as the pending decisions did",
        "Use one of {able}",
    )
    CANNOT_GROW = (
        "a trained model of {learner} cannot be extended",
        "Promote a different learner and remove {learner}, or start a new pipeline with a different topic prefix",
    )
    SHAPES_MODEL = "the model of {learner} depends on it", _AS_CHALLENGER
    UNTRAINED = "{learner} with these parameters is not one of the pipeline's learners", _AS_CHALLENGER
    DECIDES = "{learner} makes the decisions", "Promote a different learner first, or in the same change"
    OWN_DECISIONS = (
        "{learner} learns only from its own decisions, and decisions of a fixed policy may be pending",
        "Use a small floor, such as 1e-9",
    )
    HAS_LEARNED = "{learner} has learned in this pipeline", "Add a challenger with a different name"
    OTHER_MODEL = "the model file must fit the pipeline", "{remedy}"
    OPEN_CLASSES = (
        "each task has its own order of open classes, and the model's order is different",
        "Add the challenger without a model file",
    )


class ChangeError(ParameterError):
    """Raised for a change that is not possible in a running pipeline."""

    def __init__(self, setting: str, expected: object, got: object, reason: Reason, **names: str) -> None:
        why, remedy = (text.format(**names) for text in reason.value)
        super().__init__(f"{setting}: expected {shown(expected)}, because {why}; got {shown(got)}. {remedy}")
        self.setting = setting
        self.expected = expected
        self.got = got
        self.reason = reason


class StartModel(NamedTuple):
    """A model with which a challenger starts."""

    settings: TaskSettings  # the settings on which the state depends, and the names of classes and features
    state: State


Models = Callable[[str], StartModel]
"""Returns the model in a file, given the file's digest."""


def no_models(digest: str) -> StartModel:
    """Raise an error, because no model files are known.

    Raises:
        ParameterError: always.
    """
    raise ParameterError(f"{STARTED_FROM}: expected the digest of a model file in the control topic; got {digest}")


def known_models(models: Mapping[str, StartModel]) -> Models:
    """Return a function that returns these models, by digest, and raises the error of `no_models` for others."""
    return lambda digest: models[digest] if digest in models else no_models(digest)


def check_change(before: TaskSettings, after: TaskSettings, models: Models = no_models) -> None:
    """Check that a pipeline's settings can change while it runs.

    Args:
        before: the pipeline's settings, as they are stored.
        after: the new settings. Parameters that are not given have their defaults.
        models: the models with which new challengers start.

    Raises:
        ChangeError: a setting cannot change in this way.
        ParameterError: the new settings are invalid.
    """
    learner = _checked(before, after)
    start_members(learner, after.resolved(), models, _new_of(sources_of(before, after)))


def start_members(learner: Learner, settings: TaskSettings, models: Models, names: Collection[str]) -> None:
    """Load the models of the challengers with these names, as far as they start with the model in a file.

    Args:
        learner: the pipeline's learner.
        settings: its settings.
        models: the models.
        names: the names of untrained challengers.

    Raises:
        ParameterError: a model is missing, or does not fit the challenger.
    """
    for name, member in zip(names_of(settings), members_of(learner), strict=True):
        if name in names and name in settings.started_from:
            _start(member, name, settings, models(settings.started_from[name]))


def _start(member: Learner, name: str, settings: TaskSettings, model: StartModel) -> None:
    """Load the model with which a challenger starts, if it fits the challenger."""
    setting = f"{STARTED_FROM}, {name}"
    if settings.open_classes:
        raise ChangeError(setting, None, settings.started_from[name], Reason.OPEN_CLASSES)
    own, given = settings.parameters_of(name), model.settings.parameters
    fixed = {one.name for one in registered()[learner_of(name)].parameters if not one.can_change}
    expected = {one: getattr(settings, one) for one in MODEL_SETTINGS} | {"learner": learner_of(name)}
    got = {one: getattr(model.settings, one) for one in MODEL_SETTINGS}
    if expected["learner"] == got["learner"]:
        expected |= {one: value for one, value in own.items() if one in fixed}
        got |= {one: given.get(one) for one in own if one in fixed}
    for one in NAMES:
        if getattr(model.settings, one) is not None:
            expected[one], got[one] = getattr(settings, one), getattr(model.settings, one)
    if unfit := [one for one in expected if expected[one] != got[one]]:
        one = next(iter(unfit))
        remedy = "Use a model that was trained with the pipeline's classes and features"
        if one == "learner" or one in fixed:
            remedy = f"Name the challenger as the file's learner: {_name_of(model.settings, fixed)}"
        raise ChangeError(f"{setting}, {one}", expected[one], got[one], Reason.OTHER_MODEL, remedy=remedy)
    try:
        _unmixed(member).load(model.state)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ParameterError(f"{setting}: the model's state does not fit the learner: {error}") from error


def _name_of(model: TaskSettings, fixed: Collection[str]) -> str:
    """Return a challenger's name with the parameters on which a model depends, without those with default values."""
    defaults = replace(model, parameters={}).resolved().parameters
    own = [f"{name}={value}" for name, value in model.parameters.items() if name in fixed and value != defaults[name]]
    return ":".join(filter(None, (model.learner, ",".join(own))))


def _new_of(sources: Mapping[str, str | None]) -> list[str]:
    """Return the names of new learners."""
    return [name for name, source in sources.items() if source is None]


def _checked(before: TaskSettings, after: TaskSettings) -> Learner:
    """Check a change, and return an untrained learner for the new settings; see `check_change`."""
    before, after = before.resolved(), after.resolved()
    stored, requested = stored_settings(before), stored_settings(after)
    changes = differences(before, after)
    for name, row in STORED.items():
        if name in changes:
            _ROWS[row.change](name, changes[name], before, after)
    _check_members(before, after)
    new = after.make_learner()
    for name, learner in zip(names_of(after), members_of(new), strict=True):
        for setting in ("n_classes", "n_features"):
            if stored[setting] < requested[setting] and not learner.grows:
                raise ChangeError(setting, stored[setting], requested[setting], Reason.CANNOT_GROW, learner=name)
        was_mixed, is_mixed = before.floor + before.holdout > 0.0, after.floor + after.holdout > 0.0
        if was_mixed and not is_mixed and learner.from_logs is FromLogs.UNSOUND:
            setting = "floor" if before.floor > 0.0 else "holdout"
            raise ChangeError(setting, stored[setting], 0.0, Reason.OWN_DECISIONS, learner=name)
    return new


def _check_grown(name: str, change: Replaced, before: TaskSettings, after: TaskSettings) -> None:
    stored, requested = change.old, change.new
    if before.actions is not None:
        why = "x contains the features of the context, followed by those of each action"
        raise ChangeError(name, stored, requested, Reason.FIXED, why=why)
    if name == "class_names":
        if stored is None or requested is None:
            raise ChangeError(name, stored, requested, Reason.FIXED, why="clients name the classes in the earlier form")
        if requested[: len(stored)] != stored:
            raise ChangeError(name, stored, requested, Reason.RENAMED)
    elif name == "features":
        old, new = before.feature_encoder(), after.feature_encoder()
        if old is None or new is None:
            raise ChangeError(
                name, stored, requested, Reason.FIXED, why="the model has learned from features in the earlier form"
            )
        try:
            check_extends(old, new)
        except NamedFeaturesError as error:
            raise ChangeError(name, stored, requested, Reason.MOVED, why=str(error)) from error
    elif requested < stored:
        raise ChangeError(name, stored, requested, Reason.FEWER)
    elif name == "n_classes" and after.unsupported is not None:
        able = ", ".join(name for name, cls in registered().items() if cls.supports_eligible and not cls.for_actions)
        raise ChangeError(name, stored, requested, Reason.NO_ELIGIBLE, learner=after.unsupported, able=able)


def _check_nothing(name: str, change: Replaced, before: TaskSettings, after: TaskSettings) -> None:
    """Accept a change. `check_change` checks the learners after all single settings."""


def _refuse(name: str, change: Replaced, before: TaskSettings, after: TaskSettings) -> None:
    reason = Reason.MOVABLE if name in MOVABLE else Reason.FIXED
    raise ChangeError(name, change.old, change.new, reason, why=STORED[name].reason)


_ROWS: Mapping[Change, Callable[[str, Replaced, TaskSettings, TaskSettings], None]] = {
    Change.REFUSED: _refuse,
    Change.FREE: _check_nothing,
    Change.MIXED: _check_nothing,
    Change.GROWN: _check_grown,
    Change.MEMBERS: _check_nothing,
}


def _check_members(before: TaskSettings, after: TaskSettings) -> None:
    """Check that each learner is kept with parameters that its model does not depend on, or is a new challenger."""
    sources = sources_of(before, after)
    for name, source in sources.items():
        if source is None:
            continue
        changeable = {one.name for one in registered()[learner_of(name)].parameters if one.can_change}
        given, earlier = after.parameters_of(name), before.parameters_of(source)
        for parameter, value in given.items():
            if value != earlier[parameter] and parameter not in changeable:
                setting = PARAMETER + parameter if name == after.learner else f"challenger {name}, {parameter}"
                raise ChangeError(setting, earlier[parameter], value, Reason.SHAPES_MODEL, learner=learner_of(name))
        if after.started_from.get(name) not in (None, before.started_from.get(source)):
            stored, requested = before.started_from.get(source), after.started_from[name]
            raise ChangeError(f"{STARTED_FROM}, {name}", stored, requested, Reason.HAS_LEARNED, learner=name)
    if sources[after.learner] is None:
        raise ChangeError("learner", before.learner, after.learner, Reason.UNTRAINED, learner=after.learner)
    after.check_champion()
    decides = names_of(before)[before.decides]
    if after.champion in (None, before.champion) and sources[names_of(after)[after.decides]] != decides:
        raise ChangeError("challengers", names_of(before), names_of(after), Reason.DECIDES, learner=decides)


def names_of(settings: TaskSettings) -> tuple[str, ...]:
    """Return the names of the first champion and the challengers, also if there are no challengers."""
    return (settings.learner, *sorted(settings.challengers))


def members_of(learner: Learner) -> list[Learner]:
    """Return the champion and the challengers of a learner, in the order of their names."""
    members: list[Learner] = []
    while isinstance(learner, Challenge):
        members.append(learner.challenger)
        learner = learner.inner
    return [learner, *reversed(members)]


def sources_of(before: TaskSettings, after: TaskSettings) -> dict[str, str | None]:
    """Return the earlier name of each of the learners, by its new name; None for a new learner.

    Learners have the same name and parameters, or different names and the same parameters, or the same name and
    different parameters. The learners with these properties are matched in this order.
    """
    before, after = before.resolved(), after.resolved()
    earlier, sources = list(names_of(before)), dict[str, str | None](dict.fromkeys(names_of(after)))

    def is_equal(name: str, old: str) -> bool:
        return learner_of(name) == learner_of(old) and after.parameters_of(name) == before.parameters_of(old)

    matches: tuple[Callable[[str, str], bool], ...] = (
        lambda name, old: name == old and is_equal(name, old),
        is_equal,
        lambda name, old: name == old,
    )
    for matches_one in matches:
        for name in sources:
            if sources[name] is None and (found := next((old for old in earlier if matches_one(name, old)), None)):
                sources[name] = found
                earlier.remove(found)
    return sources


def carries(before: TaskSettings, after: TaskSettings) -> bool:
    """Return whether a change concerns more than the settings on which neither model nor pending decisions depend."""
    return not differences(before, after).keys() <= CHANGEABLE | {"champion"}


class Stage(Enum):
    """Which learners a decision from before a change teaches after the change."""

    PENDING = auto()  # its bit arrives after the change: all learners
    SETTLING = auto()  # its bit arrived before the change, but is learned after the change: all except new learners
    SETTLED = auto()  # its bit was learned before the change, and may be corrected: all except new learners


class Conversion:
    """Converts decisions that were made before a change of the settings."""

    def __init__(
        self,
        before: TaskSettings,
        after: TaskSettings,
        old: Learner | None = None,
        new: Learner | None = None,
        models: Models = no_models,
    ) -> None:
        """Create a conversion.

        Args:
            before: the pipeline's settings, as they are stored.
            after: the new settings. Parameters that are not given have their defaults.
            old: a learner with the earlier settings. Only its sizes are used. None means an untrained learner.
            new: a learner with the new settings; see `old`.
            models: the models with which new challengers start. Only pending decisions need them.
        """
        old = before.make_learner() if old is None else old
        new = after.make_learner() if new is None else new
        self._before, self._after, self._models = before, after, models
        self._sources = sources_of(before, after)
        earlier = dict(zip(names_of(before), members_of(old), strict=True))
        self._widths = [old.n_classes + _logged_size(one) for one in earlier.values()]
        self._adds_own = {
            name
            for name, member in zip(names_of(after), members_of(new), strict=True)
            if (source := self._sources[name]) is not None and _adds_own(earlier[source], member)
        }
        is_same = list(self._sources.values()) == list(names_of(before)) and before.n_classes == after.n_classes
        self._keeps_decisions = is_same and not self._adds_own

    def decision(self, x: Features, decision: Decision, stage: Stage = Stage.PENDING) -> Decision:
        """Return a decision that was made before the change, as the new learner's methods accept it.

        The action and the propensity stay the same. If a removed learner made the decision, its greedy class and scores
        become those of `learner`.

        Args:
            x: the decision's features.
            decision: the decision.
            stage: which learners the decision teaches.
        """
        if self._keeps_decisions:
            return decision
        if not decision.can_teach:
            return self._with_class_count(decision)
        names = names_of(self._before)
        decided, parts = parts_of(decision, self._widths)
        earlier = dict(zip(names, parts, strict=True))
        eligible = np.flatnonzero(decision.scores != NOT_ELIGIBLE).astype(np.int32)
        new: dict[str, Part] = {}
        for name, source in self._sources.items():
            if source is None:
                new[name] = self._new_part(name, x, decision, eligible, stage)
                continue
            part = earlier[source]
            row = self._with_new_classes(part.row)
            if name in self._adds_own:
                row = np.append(row, decision.propensity)
            origin = BY_CHAMPION if stage is Stage.SETTLED and part.origin == BEFORE else part.origin
            new[name] = part._replace(row=row, origin=origin)
        place = list(self._sources.values()).index(names[decided]) if names[decided] in self._sources.values() else 0
        carried = decision_of(decision.action, decision.propensity, self._after.n_classes, place, tuple(new.values()))
        return carried._replace(greedy=NO_CLASS) if new[self._after.learner].origin != BY_CHAMPION else carried

    def _with_class_count(self, decision: Decision) -> Decision:
        """Return a decision that teaches nothing, with a score for each class and without logged values."""
        scores = self._with_new_classes(decision.scores)
        return decision._replace(scores=scores, logged=NOTHING_LOGGED)

    def _with_new_classes(self, row: FloatArray) -> FloatArray:
        """Return scores and logged values with scores for the new classes, which were not eligible."""
        K, added = self._before.n_classes, self._after.n_classes - self._before.n_classes
        return np.concatenate((row[:K], np.full(added, NOT_ELIGIBLE), row[K:])) if added else row

    def _new_part(self, name: str, x: Features, decision: Decision, eligible: IndexArray, stage: Stage) -> Part:
        """Return a new learner's part of a decision. The part of a decision that does not teach it has no use."""
        learner = (self._started if stage is Stage.PENDING else self._untrained)[name]
        own = learner.predict(x, ANY_U, eligible if eligible.size < learner.n_classes else None)
        played = learner.as_played(x, own, decision.action, decision.propensity)
        row = np.concatenate((played.scores, played.logged))
        return Part(own.action, own.greedy, row, BEFORE if stage is Stage.PENDING else SETTLED_BEFORE)

    @cached_property
    def _untrained(self) -> dict[str, Learner]:
        """The new learners, by name. They never learn, so that `decision` depends only on its arguments."""
        return {name: self._after.make_member(name) for name in _new_of(self._sources)}

    @cached_property
    def _started(self) -> dict[str, Learner]:
        """The new learners with the models with which they start, by name. They never learn."""
        return {name: self._start_member(name) for name in _new_of(self._sources)}

    def _start_member(self, name: str) -> Learner:
        member, digest = self._after.make_member(name), self._after.started_from.get(name)
        if digest is not None:
            _start(member, name, self._after.resolved(), self._models(digest))
        return member


class Carry(Conversion):
    """A change of a running pipeline's settings.

    `learner` is the learner for the new settings, with the state that carries over.
    """

    def __init__(self, before: TaskSettings, after: TaskSettings, learner: Learner, models: Models = no_models) -> None:
        """Create the new learner.

        Args:
            before: the pipeline's settings, as they are stored.
            after: the new settings. Parameters that are not given have their defaults.
            learner: the pipeline's learner, which does not change.
            models: the models with which new challengers start.

        Raises:
            ChangeError: a setting cannot change in this way.
            ParameterError: the new settings are invalid.
        """
        self.learner = _checked(before, after)
        super().__init__(before, after, learner, self.learner, models)
        start_members(self.learner, after.resolved(), models, _new_of(self._sources))
        old = dict(zip(names_of(before), members_of(learner), strict=True))
        for name, new in zip(names_of(after), members_of(self.learner), strict=True):
            if (source := self._sources[name]) is not None:
                _load(_unmixed(new), _unmixed(old[source]))


def _unmixed(learner: Learner) -> Learner:
    """Return a learner without its floor and holdout, which have no state."""
    return learner.inner if isinstance(learner, Mixture) else learner


def _load(new: Learner, old: Learner) -> None:
    """Restore a learner's state in a learner that may have more classes and features."""
    if (old.n_classes, old.n_features) == (new.n_classes, new.n_features):
        new.load(old.state())
    else:
        assert isinstance(new, KernelLearner), "a learner without kernels does not grow"
        assert isinstance(old, KernelLearner), "the learners are of the same kind"
        new.load_smaller(old)


def _logged_size(learner: Learner) -> int:
    return learner.logged_size if isinstance(learner, KernelLearner) else 0


def _adds_own(old: Learner, new: Learner) -> bool:
    """Return whether new decisions also contain the learner's own propensity; see `Mixture`.

    Earlier decisions were made by the learner itself. Their propensity is therefore its own.
    """
    return _logged_size(new) > _logged_size(old)
