"""Challengers that start with the model in a file."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream.learners import KernelLearner, Learner, ParameterError, registered
from stream.learners.wrappers.challenge import SETTLED_BEFORE, SOUND, parts_of
from stream.task.carry import Carry, ChangeError, Conversion, Reason, Stage, StartModel, check_change, members_of
from stream.task.settings import TaskSettings, learner_of
from stream.wire.named_features import Kind, build, to_plain
from tests.task.test_carry import BANDITRON, LEARNERS, VARIANTS, D, K, assert_same_state, make_decisions, trained

DIGEST = "5" * 64
UCB = {"m": 2, "drift": "off"}
NAME = "late-ucb:m=2"
MODEL = TaskSettings("late-ucb", K, D, parameters=UCB).resolved()
CLASSES = ("a", "b", "c")
FEATURES = to_plain(build({"country": (Kind.CATEGORICAL, list("wxyz"))}, None))


def challengers() -> list[str]:
    """All learners that can be challengers."""
    made = {name: TaskSettings(name.split()[0], K, D, parameters=VARIANTS.get(name, {})) for name in LEARNERS}
    learners = {name: task.make_learner() for name, task in made.items()}
    return [name for name, one in learners.items() if isinstance(one, KernelLearner) and one.from_logs in SOUND]


def started(before: TaskSettings, name: str, parameters: dict[str, Any]) -> TaskSettings:
    """Return settings with a new challenger that starts with a model."""
    return replace(before, challengers={name: parameters}, started_from={name: DIGEST}).resolved()


def model_of(learner: str, parameters: dict[str, Any], **others: Any) -> tuple[Learner, StartModel]:
    """Return a trained learner and its model."""
    task = TaskSettings(learner, K, D, parameters=parameters, **others).resolved()
    learned = task.make_learner()
    trained(learned)
    return learned, StartModel(task, learned.state())


MIXED: dict[str, Any] = {"scale": "standard", "floor": 0.1}
FIXED: dict[str, Any] = {"holdout": 0.2, "on_expiry": "negative"}


@pytest.mark.parametrize(
    ("name", "others"), [*((name, {}) for name in challengers()), ("late-ucb", MIXED), ("igw-logistic", FIXED)]
)
def test_challenger_starts_with_the_model(name: str, others: dict[str, Any]) -> None:
    learner, parameters = name.split()[0], VARIANTS.get(name, {})
    before = replace(BANDITRON, **others)
    old = before.make_learner()
    trained(old)
    x, decision, _ = make_decisions(old, 1)[0]
    scale = {key: value for key, value in others.items() if key == "scale"}
    learned, model = model_of(learner, parameters, **scale)
    carry = Carry(before, started(before, f"{learner}:x", parameters), old, {DIGEST: model}.__getitem__)
    champion, challenger = members_of(carry.learner)
    assert_same_state(challenger, learned)
    assert_same_state(champion, old)
    _, (_, part) = parts_of(carry.decision(x, decision), [K + size(one) for one in (champion, challenger)])
    played = learned.as_played(x, learned.predict(x, 0.5), decision.action, decision.propensity)
    np.testing.assert_array_equal(part.row[:K], played.scores)
    assert part.greedy == played.greedy


def size(learner: Learner) -> int:
    assert isinstance(learner, KernelLearner)
    return learner.logged_size


def test_decision_that_does_not_teach_the_new_learner_needs_no_model() -> None:
    x, decision, _ = make_decisions(BANDITRON.make_learner(), 1)[0]
    conversion = Conversion(BANDITRON, started(BANDITRON, NAME, UCB))
    assert conversion.decision(x, decision, Stage.SETTLED).logged[-1] == SETTLED_BEFORE


@pytest.mark.parametrize(
    ("model", "pipeline", "setting"),
    [
        ({"learner": "igw-logistic", "parameters": {}}, {}, "learner"),
        ({"parameters": {"m": 3, "drift": "off"}}, {}, "m"),
        ({"n_classes": 4}, {}, "n_classes"),
        ({"n_features": 5}, {}, "n_features"),
        ({"scale": "standard"}, {}, "scale"),
        ({"open_classes": True}, {}, "open_classes"),
        ({"class_names": CLASSES}, {}, "class_names"),
        ({"class_names": CLASSES}, {"class_names": ("b", "a", "c")}, "class_names"),
        ({"features": FEATURES}, {}, "features"),
    ],
)
def test_model_with_other_settings_than_the_pipeline_is_refused(
    model: dict[str, Any], pipeline: dict[str, Any], setting: str
) -> None:
    before = replace(BANDITRON, **pipeline)
    found = replace(MODEL, **model).resolved()
    with pytest.raises(ChangeError) as raised:
        check_change(before, started(before, NAME, UCB), lambda digest: StartModel(found, {}))
    assert (raised.value.setting, raised.value.reason) == (f"started_from, {NAME}, {setting}", Reason.OTHER_MODEL)


@pytest.mark.parametrize("named", [{}, {"class_names": CLASSES}, {"class_names": CLASSES, "features": FEATURES}])
def test_model_can_have_the_names_of_the_pipeline(named: dict[str, Any]) -> None:
    before = replace(BANDITRON, class_names=CLASSES, features=FEATURES)
    _, model = model_of("late-ucb", UCB, **named)
    check_change(before, started(before, NAME, UCB), lambda digest: model)


def test_parameters_on_which_no_model_depends_can_differ() -> None:
    free = next(one.name for one in registered()["igw-logistic"].parameters if one.can_change)
    learned, model = model_of("igw-logistic", {})
    value = 2 * learned_value(model, free)
    after = started(BANDITRON, "igw-logistic", {free: value})
    carry = Carry(BANDITRON, after, BANDITRON.make_learner(), lambda digest: model)
    assert_same_state(members_of(carry.learner)[1], learned)


def learned_value(model: StartModel, name: str) -> float:
    value: float = model.settings.parameters[name]
    return value


def test_refusal_names_the_challenger_that_fits_the_model() -> None:
    _, model = model_of("late-ucb", UCB)
    with pytest.raises(ChangeError, match=r"late-ucb:m=2,drift=off"):
        check_change(BANDITRON, started(BANDITRON, "late-ucb", {}), lambda digest: model)


def test_pipeline_with_open_classes_refuses_a_model() -> None:
    before = replace(BANDITRON, open_classes=True)
    _, model = model_of("late-ucb", UCB, open_classes=True)
    with pytest.raises(ChangeError) as raised:
        check_change(before, started(before, NAME, UCB), lambda digest: model)
    assert raised.value.reason is Reason.OPEN_CLASSES


def test_unknown_model_is_refused() -> None:
    with pytest.raises(ParameterError):
        check_change(BANDITRON, started(BANDITRON, NAME, UCB))


@pytest.mark.parametrize("state", [{}, {"weights": np.zeros(1)}])
def test_state_that_does_not_fit_the_learner_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        check_change(BANDITRON, started(BANDITRON, NAME, UCB), lambda digest: StartModel(MODEL, state))


def test_learner_of_the_pipeline_cannot_start_again() -> None:
    before = replace(BANDITRON, challengers={NAME: UCB}).resolved()
    with pytest.raises(ChangeError) as raised:
        check_change(before, replace(before, started_from={NAME: DIGEST}))
    assert raised.value.reason is Reason.HAS_LEARNED


def test_only_challengers_start_with_a_model() -> None:
    with pytest.raises(ParameterError):
        check_change(BANDITRON, replace(BANDITRON, started_from={"banditron": DIGEST}))


def test_started_challenger_is_kept_and_promoted_without_its_model() -> None:
    _, model = model_of("late-ucb", UCB)
    one = started(BANDITRON, NAME, UCB)
    carry = Carry(BANDITRON, one, BANDITRON.make_learner(), lambda digest: model)
    kept = Carry(one, replace(one, floor=0.1), carry.learner)
    alone = TaskSettings(learner_of(NAME), K, D, parameters=UCB)
    promoted = replace(one, champion=NAME)
    last = Carry(promoted, alone, carry.learner)
    assert_same_state(members_of(kept.learner)[1], members_of(carry.learner)[1])
    assert_same_state(last.learner, members_of(carry.learner)[1])
