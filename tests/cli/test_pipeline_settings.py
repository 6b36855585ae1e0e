"""Only settings that the user specifies are compared with a running pipeline's settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from producers.data import data_sizes
from stream.errors import ExitCode
from stream.learners import ParameterError, check_parameters
from stream.programs.costs import records_max, slow_warning
from stream.programs.pipeline_settings import determined_by, given_names, settings_for, with_hint
from stream.programs.task_settings import parameters_of
from stream.settings.sources import described, load_settings
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import OMITTED, SettingsDifferError, model_settings, stored_settings
from stream.verifying.reapply import replay_journal
from tests.cli.conftest import CommandResult
from tests.pipeline import N_CLASSES, N_FEATURES, TOPICS, Pipeline, run_until_idle, small_task

INITIAL = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    seed=7,
    join=JoinSettings(
        window_ms=1_000, orphan_window_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70
    ),
    on_expiry="negative",
)
NAMED = {
    "version": 1, "hash": "xxh3_64", "hash_bits": None,
    "names": [{"name": name, "kind": "numeric", "values": None} for name in "abcd"],
}  # fmt: skip
PLACE = "own.journal"


def requested(stored: TaskSettings | None, **given: Any) -> TaskSettings:
    return settings_for(
        load_settings(given), stored_settings(stored) if stored else {}, PLACE, sizes_of=data_sizes
    ).task


def test_learner_without_flags_uses_the_settings_of_the_pipeline() -> None:
    settings = load_settings({"topic_prefix": "own."})
    assert settings_for(settings, stored_settings(INITIAL), PLACE, sizes_of=data_sizes) == (INITIAL, 4, frozenset())


def test_new_pipeline_uses_default_data_set_and_auto_learner() -> None:
    made = requested(None)
    assert (made.learner, made.n_classes, made.n_features) == ("late-ucb", 10, 64)
    assert made.parameters == parameters_of(load_settings({"learner": ["late-ucb"]}), "late-ucb")
    assert requested(None, n_classes=5, n_features=6).n_features == 6
    assert (requested(None, data="synsep").n_features, requested(None, data="synsep").learner) == (400, "stack-igw")
    assert requested(None, n_classes=5, n_features=600).learner == "stack-igw"
    assert requested(None, n_classes=5, n_features=400).learner == "late-ucb"


def test_auto_keeps_the_learner_of_the_pipeline() -> None:
    assert requested(INITIAL, learner=["auto"]) == INITIAL
    with pytest.raises(SettingsDifferError, match="learner = 'banditron'; got 'late-ucb'"):
        requested(INITIAL, learner=["late-ucb"])


def test_auto_selects_a_retractable_learner_if_late_feedback_corrects() -> None:
    correcting: dict[str, Any] = {"on_expiry": "negative", "late": "correct"}
    made = requested(None, n_classes=5, n_features=400, **correcting)
    assert (made.learner, made.parameters["drift"]) == ("late-ucb", "off")
    assert (requested(None, data="synsep").learner, requested(None, data="synsep", **correcting).learner) == (
        "stack-igw",
        "late-ucb",
    )
    with pytest.raises(ParameterError, match="use banditron or soba-diag, late-ucb with project=256"):
        requested(None, n_classes=5, n_features=5_000, **correcting)


def test_learner_chosen_by_auto_is_stored_with_name_and_parameters() -> None:
    pipeline = Pipeline(requested(None, n_classes=N_CLASSES, n_features=N_FEATURES))
    pipeline.context("a")
    program = pipeline.learner()
    run_until_idle(program)
    stored = pipeline.values(TOPICS.journal)[0]["settings"]
    assert stored["learner"] == "late-ucb"
    expected = {f"parameters.{name}": value for name, value in check_parameters("late-ucb", {}).items()}
    assert {name: value for name, value in stored.items() if name.startswith("parameters.")} == expected
    assert program.tasks[0].settings.learner == "late-ucb"


def test_given_parameters_override_those_of_auto() -> None:
    assert requested(None, param=["lam=0.5"]).parameters["lam"] == 0.5
    assert requested(None, param=["auto.lam=0.5"]).parameters["lam"] == 0.5


def test_users_determine_every_stored_setting() -> None:
    names = {name for name in stored_settings(INITIAL) if not name.startswith("parameters.")} | {*OMITTED}
    determined = {name for one in described() for name in determined_by(one)}
    by_requests = {"champion", "started_from", "retired_classes", "retired_features"}
    assert determined == names - by_requests - {"dated_by"}  # set by virtual time


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_setting_from_any_source_counts_as_given(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if source == "variable":
        monkeypatch.setenv("ONEBIT_WINDOW", "5s")
    if source == "file":
        (tmp_path / "own.toml").write_text('window = "5s"\n')
        monkeypatch.setenv("ONEBIT_CONFIG", str(tmp_path / "own.toml"))
    settings = load_settings({"window": "5s"} if source == "flag" else {})
    assert given_names(settings, {}) == {"window_ms"}
    with pytest.raises(SettingsDifferError, match=r"^own.journal has window_ms = 1000; got 5000: "):
        settings_for(settings, stored_settings(INITIAL), PLACE, sizes_of=data_sizes)
    assert given_names(load_settings({}), {}) == (frozenset() if source == "flag" else {"window_ms"})


def test_data_set_determines_the_numbers_of_features_and_classes() -> None:
    assert given_names(load_settings({"data": "synsep"}), {}) == {"n_classes", "n_features", "class_names"}
    with pytest.raises(SettingsDifferError, match="n_classes = 3; got 9, n_features = 4; got 400"):
        requested(INITIAL, data="synsep")


@pytest.mark.parametrize(("name", "value"), [("n_classes", 12), ("n_features", 5), ("seed", 8), ("learner", ["soba"])])
def test_only_the_given_setting_is_compared(name: str, value: Any) -> None:
    with pytest.raises(SettingsDifferError) as raised:
        requested(INITIAL, **{name: value})
    assert list(raised.value.differences) == [name]
    assert ("onebit change" in str(with_hint(raised.value))) == (name == "n_features")


@pytest.mark.parametrize(
    ("stored", "name", "value", "differing"),
    [
        ({"open_classes": True}, "n_classes", N_CLASSES, "open_classes"),
        ({}, "classes_max", N_CLASSES, "open_classes"),
        ({"scale": "standard"}, "scale", "none", "scale"),
        ({"features": NAMED}, "scale", "standard", "scale"),
    ],
)
def test_fixed_setting_is_compared_even_if_no_size_is_given(
    stored: dict[str, Any], name: str, value: Any, differing: str
) -> None:
    with pytest.raises(SettingsDifferError) as raised:
        requested(replace(INITIAL, **stored), **{"n_features": N_FEATURES, name: value})
    assert list(raised.value.differences) == [differing]


def test_parameters_are_checked_against_the_learner_of_the_pipeline() -> None:
    assert requested(INITIAL, param=["gamma=0.25"]) == INITIAL
    assert requested(INITIAL, param=["banditron.gamma=0.25"]) == INITIAL
    with pytest.raises(SettingsDifferError, match=r"parameters.gamma = 0.25; got 0.5"):
        requested(INITIAL, param=["gamma=0.5"])
    with pytest.raises(ParameterError, match="banditron: unknown parameter 'eta'"):
        requested(INITIAL, param=["eta=0.5"])


def test_hint_contains_the_flags_to_change() -> None:
    with pytest.raises(SettingsDifferError) as raised:
        requested(INITIAL, window="5s", orphan_window="1s")
    assert str(with_hint(raised.value)).endswith("onebit change --window 5s --orphan-window 1s")


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
def test_new_pipeline_of_several_partitions_shares_a_model(given: Any, partitions: int, model: str) -> None:
    assert load_settings(given).model_of(partitions) == model


@pytest.mark.parametrize("stored", ["own", "shared"])
def test_pipeline_keeps_its_kind_of_model_and_rejects_another(stored: Any) -> None:
    has = replace(INITIAL, model=stored)
    for given in ({}, {"model": "auto"}, {"model": stored}):
        for model in ("own", "shared"):
            assert (
                settings_for(load_settings(given), stored_settings(has), PLACE, model, sizes_of=data_sizes).task.model
                == stored
            )
    with pytest.raises(SettingsDifferError, match=f"model = '{stored}'; got "):
        requested(has, model="own" if stored == "shared" else "shared")


def test_imported_model_determines_the_learner() -> None:
    model = {"model": "own", **model_settings(INITIAL)}
    made = settings_for(load_settings({"window": "5s"}), model, PLACE, "shared", sizes_of=data_sizes).task
    assert made.model == "own"
    assert (made.learner, made.n_classes, made.parameters, made.join.window_ms, made.seed) == (
        "banditron", 3, {"gamma": 0.25, "margin": "feedback"}, 5_000, 0,
    )  # fmt: skip


def test_learner_with_another_setting_than_its_pipeline_is_rejected(learn_on: Callable[..., CommandResult]) -> None:
    pipeline = Pipeline(small_task())
    initial = ("--learner", "banditron", "--param", "gamma=0.25", "--n-classes", "3", "--n-features", "4")
    pipeline.context("a")
    assert learn_on(pipeline.broker, *initial, "--window", "60s").code == ExitCode.OK
    pipeline.context("b")
    assert learn_on(pipeline.broker).code == ExitCode.OK  # the command specifies only the topics
    rejected = learn_on(pipeline.broker, "--window", "500ms")
    assert rejected.code == ExitCode.USAGE
    assert "has window_ms = 60000; got 500" in rejected.err
    assert "onebit change --window" in " ".join(rejected.err.split())
    pipeline.request(window_ms=500)
    assert learn_on(pipeline.broker, "--window", "500ms").code == ExitCode.OK
    assert learn_on(pipeline.broker, "--window", "60s").code == ExitCode.USAGE
    assert replay_journal(pipeline.broker, TOPICS, 0).ok


def test_learner_is_not_slow_because_most_hashed_features_are_zero() -> None:
    features = Path(__file__).parents[2] / "docker/personalizer.json"
    for stored in ({}, stored_settings(requested(None, actions_max=50, features=features, rewards="graded"))):
        settings = load_settings({"actions_max": 50, "features": features, "rewards": "graded"} if not stored else {})
        chosen = settings_for(settings, stored, PLACE, sizes_of=data_sizes)
        assert slow_warning(chosen.task, chosen.nnz) == ""
        assert records_max(chosen.task, chosen.nnz, 1_000) > 100
