"""Which settings hold: the pipeline's, the user's, and today's defaults only where there is nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from stream.journal.resolve import CHANGEABLE, Difference, Given, SettingsDifferError, resolve
from stream.journal.stored_settings import check_settings, model_settings, stored_settings, task_settings
from stream.learners import registered
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
from stream.wire.named_features import Kind, build, to_plain

PLACE = "test.journal/0"
BEGUN = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    7,
    JoinSettings(window_ms=1_000, orphan_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70),
    "negative",
)
TODAY = TaskSettings("soba-diag", 10, 64)


def resolved(wanted: TaskSettings, given: Given, *, change: bool = False) -> TaskSettings:
    return resolve(stored_settings(BEGUN), wanted, given, change=change, place=PLACE)


def test_new_pipeline_has_what_the_user_gave_and_defaults() -> None:
    assert resolve({}, BEGUN, ("seed",), place=PLACE) == BEGUN
    assert resolve({}, TaskSettings("banditron", 3, 4), None, place=PLACE).parameters.keys() == {"gamma", "margin"}


@pytest.mark.parametrize("change", [False, True])
def test_what_the_user_leaves_unset_is_the_pipelines(change: bool) -> None:
    assert resolved(TODAY, (), change=change) == BEGUN


def test_what_the_user_gave_may_be_what_the_pipeline_has() -> None:
    assert resolved(BEGUN, None) == BEGUN
    assert resolved(replace(TODAY, learner="banditron", seed=7), ("learner", "seed")) == BEGUN
    parameter = replace(TODAY, learner="banditron", parameters={"gamma": 0.25, "margin": "feedback"})
    assert resolved(parameter, ("learner", "parameters.gamma")) == BEGUN


OTHERS: dict[str, Any] = {
    "learner": "soba-diag", "n_classes": 4, "n_features": 5, "seed": 8, "window_ms": 2_000, "orphan_ms": 501,
    "retain_ms": 9_999, "pending_max": 91, "orphans_max": 81, "retained_max": 71, "on_expiry": "drop",
    "late": "correct", "play": "match", "reward": "any", "propensity_min": 0.125, "parameters.margin": "decision",
    "features": to_plain(build({"price": (Kind.NUMERIC, None)}, None)), "class_names": ["a", "b", "c"],
    "model": "shared", "dated_by": "context",
}  # fmt: skip


def test_every_setting_is_tried_here() -> None:
    assert {*OTHERS, "parameters.gamma"} == stored_settings(BEGUN).keys()


def with_other(name: str) -> TaskSettings:
    if name == "learner":
        return replace(BEGUN, learner="soba-diag", parameters={})
    return task_settings({**stored_settings(BEGUN), name: OTHERS.get(name, 0.5)})


@pytest.mark.parametrize("name", [*OTHERS, "parameters.gamma"])
@pytest.mark.parametrize("all_given", [True, False])
def test_given_setting_that_differs_is_refused_and_named(name: str, all_given: bool) -> None:
    begun = stored_settings(BEGUN)
    wanted = with_other(name)
    with pytest.raises(
        SettingsDifferError, match=rf"^{PLACE} has {name} = .*; got .*: use the earlier settings"
    ) as raised:
        resolved(wanted, None if all_given else (name,))
    assert raised.value.differences == (Difference(name, begun[name], OTHERS.get(name, 0.5)),)
    assert raised.value.can_change == (name in CHANGEABLE and name != "late")
    others = [other for other in OTHERS if other != name]
    assert resolved(wanted, others if name != "learner" else ("seed",)) == BEGUN


@pytest.mark.parametrize("name", sorted(CHANGEABLE - {"late"}))
def test_given_setting_that_may_change_does_when_it_was_asked_for(name: str) -> None:
    wanted = with_other(name)
    assert resolved(wanted, (name,), change=True) == resolved(wanted, None, change=True) == wanted != BEGUN


@pytest.mark.parametrize("name", [name for name in [*OTHERS, "parameters.gamma"] if name not in CHANGEABLE] + ["late"])
def test_given_setting_that_cannot_change_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(SettingsDifferError, match=rf"{name} = .*: this cannot change .* `onebit model export`"):
        resolved(with_other(name), (name,), change=True)
    both = replace(with_other(name), join=replace(BEGUN.join, window_ms=5))
    with pytest.raises(SettingsDifferError) as raised:
        resolved(both, (name, "window_ms"), change=True)
    assert [difference.name for difference in raised.value.differences] == [name]


def test_corrections_can_end_and_cannot_begin() -> None:
    correcting = replace(BEGUN, learner="soba-diag", parameters={}, late="correct")
    ending = replace(correcting, late="ignore")
    assert resolve(stored_settings(correcting), ending, place=PLACE, change=True).late == "ignore"
    with pytest.raises(SettingsDifferError, match="late = 'ignore'; got 'correct': this cannot change"):
        resolve(stored_settings(ending), correcting, place=PLACE, change=True)


def test_several_differences_are_named_together_but_of_another_learner_only_that() -> None:
    wanted = replace(BEGUN, seed=8, join=replace(BEGUN.join, window_ms=5))
    with pytest.raises(SettingsDifferError, match="has seed = 7; got 8, window_ms = 1000; got 5: ") as raised:
        resolved(wanted, None)
    assert not raised.value.can_change
    with pytest.raises(SettingsDifferError) as raised:
        resolved(TODAY, None)
    assert [difference.name for difference in raised.value.differences] == ["learner"]


def test_parameter_that_the_pipelines_learner_does_not_have_is_refused() -> None:
    foreign = next(
        name for name in stored_settings(TODAY) if name.startswith("parameters.") and name not in stored_settings(BEGUN)
    )
    with pytest.raises(SettingsDifferError, match=rf"{foreign} = None; got"):
        resolved(TODAY, (foreign,))


def test_model_that_was_imported_gives_its_own_settings_and_no_others() -> None:
    model = check_settings(model_settings(BEGUN))
    assert model.keys() == {"learner", "n_classes", "n_features", "parameters.gamma", "parameters.margin"}
    taken = resolve(model, replace(TODAY, seed=5), ("seed",), place=PLACE)
    assert taken == TaskSettings("banditron", 3, 4, {"gamma": 0.25, "margin": "feedback"}, seed=5)
    with pytest.raises(SettingsDifferError, match="n_features = 4; got 64"):
        resolve(model, TODAY, ("n_features",), place=PLACE)


def test_settings_are_stored_and_read_back() -> None:
    assert task_settings(stored_settings(BEGUN)) == BEGUN
    full = task_settings(stored_settings(TODAY))
    assert full.parameters.keys() == {parameter.name for parameter in registered()["soba-diag"].parameters}


def test_missing_and_unknown_settings_are_named() -> None:
    stored = stored_settings(BEGUN)
    for wrong, name in (
        ({**stored, "newer": 1}, "newer"),
        ({key: value for key, value in stored.items() if key != "late"}, "late"),
        ({**stored, "parameters.newer": 1}, "newer"),
        ({key: value for key, value in stored.items() if key != "parameters.margin"}, "margin"),
        ({**stored, "learner": "newest"}, "newest"),
    ):
        with pytest.raises(ValueError, match=name):
            check_settings(wrong)
