"""Only settings that the user gives are compared with those of a running pipeline."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream.app.pipeline_settings import STORED_NAMES, given_names, wanted_settings, with_hint
from stream.app.resolve import parameters_of
from stream.app.settings import Settings
from stream.app.sources import load_settings
from stream.journal.format import model_settings, stored_settings
from stream.journal.reading import SettingsDifferError
from stream.learners import ParameterError, check_parameters
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
from tests.pipeline import N_CLASSES, N_FEATURES, TOPICS, Pipeline

BEGUN = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    7,
    JoinSettings(window_ms=1_000, orphan_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70),
    "negative",
)
PLACE = "own.journal"


def wanted(begun: TaskSettings | None, *, change: bool = False, **given: Any) -> TaskSettings:
    return wanted_settings(load_settings(given), stored_settings(begun) if begun else {}, PLACE, change=change).task


def test_learner_of_which_only_the_topics_are_given_goes_on_with_all_that_the_pipeline_has() -> None:
    settings = load_settings({"topic_prefix": "own."})
    assert wanted_settings(settings, stored_settings(BEGUN), PLACE) == (BEGUN, 4, frozenset())


def test_new_pipeline_has_the_data_set_of_today_and_the_learner_that_fits_it() -> None:
    made = wanted(None)
    assert (made.learner, made.n_classes, made.n_features) == ("late-ucb", 10, 64)
    assert made.parameters == parameters_of(load_settings({"learner": ["late-ucb"]}), "late-ucb")
    assert wanted(None, n_classes=5, n_features=6).n_features == 6
    assert (wanted(None, data="synsep").n_features, wanted(None, data="synsep").learner) == (400, "stack-igw")
    assert wanted(None, n_classes=5, n_features=600).learner == "stack-igw"
    assert wanted(None, n_classes=5, n_features=400).learner == "late-ucb"


def test_auto_never_asks_a_pipeline_for_another_learner_than_it_has() -> None:
    assert wanted(BEGUN, learner=["auto"]) == BEGUN
    with pytest.raises(SettingsDifferError, match="learner = 'banditron'; got 'late-ucb'"):
        wanted(BEGUN, learner=["late-ucb"])


def test_auto_takes_a_learner_whose_updates_can_be_taken_back_where_that_is_asked_for_or_refuses() -> None:
    correcting: dict[str, Any] = {"on_expiry": "negative", "late": "correct"}
    made = wanted(None, n_classes=5, n_features=400, **correcting)
    assert (made.learner, made.parameters["drift"]) == ("late-ucb", "off")
    assert (wanted(None, data="synsep").learner, wanted(None, data="synsep", **correcting).learner) == (
        "stack-igw",
        "late-ucb",
    )
    with pytest.raises(ParameterError, match="use banditron or soba-diag, late-ucb with project=256"):
        wanted(None, n_classes=5, n_features=5_000, **correcting)


def test_what_auto_takes_is_stored_by_its_own_name_with_all_its_parameters() -> None:
    pipeline = Pipeline(wanted(None, n_classes=N_CLASSES, n_features=N_FEATURES))
    pipeline.context("a")
    program = pipeline.learner()
    while program.step(0):
        pass
    stored = pipeline.values(TOPICS.journal)[0]["settings"]
    assert stored["learner"] == "late-ucb"
    expected = {f"parameters.{name}": value for name, value in check_parameters("late-ucb", {}).items()}
    assert {name: value for name, value in stored.items() if name.startswith("parameters.")} == expected
    assert program.tasks[0].settings.learner == "late-ucb"


def test_what_the_user_gives_for_the_learner_that_auto_takes_wins() -> None:
    assert wanted(None, param=["lam=0.5"]).parameters["lam"] == 0.5
    assert wanted(None, param=["auto.lam=0.5"]).parameters["lam"] == 0.5


def test_every_setting_of_a_task_has_a_name_of_the_journal() -> None:
    names = {name for name in stored_settings(BEGUN) if not name.startswith("parameters.")}
    assert set(STORED_NAMES.values()) == names - {"dated_by"}  # set by virtual time, not by the user
    assert STORED_NAMES.keys() <= Settings.model_fields.keys()


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_setting_is_given_by_flag_variable_or_file(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if source == "variable":
        monkeypatch.setenv("ONEBIT_WINDOW", "5s")
    if source == "file":
        (tmp_path / "own.toml").write_text('window = "5s"\n')
        monkeypatch.setenv("ONEBIT_CONFIG", str(tmp_path / "own.toml"))
    settings = load_settings({"window": "5s"} if source == "flag" else {})
    assert given_names(settings) == {"window_ms"}
    with pytest.raises(SettingsDifferError, match=r"^own.journal has window_ms = 1000; got 5000: "):
        wanted_settings(settings, stored_settings(BEGUN), PLACE)
    assert given_names(load_settings({})) == (frozenset() if source == "flag" else {"window_ms"})


def test_data_set_gives_the_sizes() -> None:
    assert given_names(load_settings({"data": "synsep"})) == {"n_classes", "n_features", "class_names"}
    with pytest.raises(SettingsDifferError, match="n_classes = 3; got 9, n_features = 4; got 400"):
        wanted(BEGUN, data="synsep")


@pytest.mark.parametrize(("name", "value"), [("n_classes", 12), ("n_features", 5), ("seed", 8), ("learner", ["soba"])])
def test_one_given_setting_is_asked_for_alone(name: str, value: Any) -> None:
    with pytest.raises(SettingsDifferError) as raised:
        wanted(BEGUN, **{name: value})
    assert [difference.name for difference in raised.value.differences] == [name]
    assert "--change-settings" not in str(with_hint(raised.value, change=False))


def test_parameter_is_one_of_the_pipelines_learner() -> None:
    assert wanted(BEGUN, param=["gamma=0.25"]) == BEGUN
    assert wanted(BEGUN, param=["banditron.gamma=0.25"]) == BEGUN
    with pytest.raises(SettingsDifferError, match=r"parameters.gamma = 0.25; got 0.5"):
        wanted(BEGUN, param=["gamma=0.5"])
    with pytest.raises(ParameterError, match="banditron: unknown parameter 'eta'"):
        wanted(BEGUN, param=["eta=0.5"])


def test_hint_names_the_flags_that_would_change() -> None:
    with pytest.raises(SettingsDifferError) as raised:
        wanted(BEGUN, window="5s", orphan_window="1s")
    assert str(with_hint(raised.value, change=False)).endswith(
        "; or use --change-settings to change --window, --orphan-window from the next step on"
    )
    changed = wanted(BEGUN, change=True, window="5s", orphan_window="1s")
    assert changed == replace(BEGUN, join=replace(BEGUN.join, window_ms=5_000, orphan_ms=1_000))
    with pytest.raises(SettingsDifferError) as raised:
        wanted(BEGUN, change=True, seed=5, window="5s")
    assert str(with_hint(raised.value, change=True)) == str(raised.value)


@pytest.mark.parametrize(
    ("given", "partitions", "model"),
    [
        ({}, 1, "own"),
        ({}, 2, "shared"),
        ({"model": "auto"}, 2, "shared"),
        ({"model": "own"}, 2, "own"),
        ({"model": "shared"}, 1, "shared"),
        ({"play": "logged"}, 2, "own"),
        ({"play": "match"}, 2, "own"),
    ],
)
def test_new_pipeline_of_several_partitions_has_one_model(given: Any, partitions: int, model: str) -> None:
    assert load_settings(given).model_of(partitions) == model


@pytest.mark.parametrize("begun", ["own", "shared"])
def test_pipeline_keeps_the_model_that_it_has_unless_another_one_is_given(begun: Any) -> None:
    has = replace(BEGUN, model=begun)
    for given in ({}, {"model": "auto"}, {"model": begun}):
        for model in ("own", "shared"):
            assert wanted_settings(load_settings(given), stored_settings(has), PLACE, model).task.model == begun
    with pytest.raises(SettingsDifferError, match=f"model = '{begun}'; got "):
        wanted(has, model="own" if begun == "shared" else "shared")


def test_model_that_was_imported_says_what_learner_begins_with_it() -> None:
    model = {"model": "own", **model_settings(BEGUN)}
    made = wanted_settings(load_settings({"window": "5s"}), model, PLACE, "shared").task
    assert made.model == "own"
    assert (made.learner, made.n_classes, made.parameters, made.join.window_ms, made.seed) == (
        "banditron", 3, {"gamma": 0.25, "margin": "feedback"}, 5_000, 0,
    )  # fmt: skip
