"""A frozen model as the holdout policy in a task's settings."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onebit
from producers.data import data_sizes
from stream.learners import KernelLearner, Learner, ParameterError
from stream.programs.pipeline_settings import settings_for
from stream.recovery.model_files import FILE_FORMAT, Model, identity, write_model
from stream.recovery.state import state_digest
from stream.settings.definitions import SettingsError
from stream.settings.sources import load_settings
from stream.task import frozen
from stream.task.frozen import Frozen
from stream.task.settings import TaskSettings
from stream.task.stored_settings import SettingsDifferError, stored_settings
from stream.verifying.reapply import replay_journal
from tests.pipeline import N_CLASSES, N_FEATURES, small_task


def learner_of(task: TaskSettings, seed: int = 1) -> Learner:
    """A learner with random weights."""
    learner = task.make_learner()
    state = learner.state()
    learner.load(state | {"W": np.random.default_rng(seed).normal(size=np.shape(state["W"]))})
    return learner


def model_of(task: TaskSettings, seed: int = 1) -> Frozen:
    return Frozen.of_learner(identity(asdict(task)), learner_of(task, seed))


def write_frozen(path: Path, task: TaskSettings, seed: int = 1) -> str:
    """Write a model file as `onebit model export` does. Return the setting's value, which names the file."""
    state = learner_of(task, seed).state()
    meta = {"format": FILE_FORMAT, **identity(asdict(task)), "position": {}, "digest": state_digest([state])}
    write_model(path, Model(meta, state))
    return f"model:{path}"


@pytest.mark.parametrize("name", ["banditron", "late-ucb", "stack-igw"])
def test_frozen_model_can_be_stored_as_text_and_restored(name: str) -> None:
    text = model_of(small_task(name)).to_text()
    found = Frozen.of_text(text)
    assert found.to_text() == text
    assert found.settings == identity(asdict(small_task(name)))
    made = small_task(holdout=0.5, holdout_policy=text).make_holdout_policy()
    assert isinstance(made, KernelLearner)
    for part, value in found.state.items():
        assert type(value) is type(made.state()[part])
        np.testing.assert_array_equal(value, made.state()[part])


@pytest.mark.parametrize("edit", [lambda text: text[:-4], lambda text: text + "~", lambda text: "model:a.npz"])
def test_damaged_text_of_a_frozen_model_is_rejected(edit: Callable[[str], str]) -> None:
    with pytest.raises(ParameterError):
        Frozen.of_text(edit(model_of(small_task()).to_text()))


def test_oversized_frozen_model_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "TEXT_MAX", 100)
    with pytest.raises(ParameterError):
        model_of(small_task()).to_text()


@pytest.mark.parametrize(
    ("task", "of_model"),
    [
        ({"n_classes": 7}, {}),
        ({"n_features": 7}, {}),
        ({"open_classes": True}, {}),
        ({"class_names": ("a", "b", "c")}, {"class_names": ["a", "c", "b"]}),
        ({}, {"features": {"hashed": 4}}),
        ({}, {"state": {"W": np.zeros((2, 2))}}),
    ],
    ids=["classes", "features", "open classes", "class names", "feature names", "state"],
)
def test_model_of_other_classes_or_features_is_rejected(task: dict[str, Any], of_model: dict[str, Any]) -> None:
    text = model_of(small_task())._replace(**of_model).to_text()
    with pytest.raises(ParameterError):
        replace(small_task(holdout=0.5, holdout_policy=text), **task).make_learner()


@pytest.mark.parametrize("policy", ["nothing", "constant:", f"constant:{N_CLASSES}", "model:~"])
@pytest.mark.parametrize("holdout", [0.0, 0.5])
def test_invalid_holdout_policy_is_rejected_even_without_a_holdout(policy: str, holdout: float) -> None:
    with pytest.raises(ParameterError):
        small_task(holdout=holdout, holdout_policy=policy).make_learner()


def test_restart_with_another_holdout_model_is_rejected(tmp_path: Path) -> None:
    sizes = {"n_classes": N_CLASSES, "n_features": N_FEATURES, "learner": ["banditron"], "holdout": 0.5}
    one, other = (write_frozen(tmp_path / f"{seed}.npz", small_task(), seed) for seed in (1, 2))
    first = settings_for(load_settings({**sizes, "holdout_policy": one}), {}, "journal", sizes_of=data_sizes).task
    stored = stored_settings(first)
    again = settings_for(load_settings({**sizes, "holdout_policy": one}), stored, "journal", sizes_of=data_sizes).task
    assert stored_settings(again) == stored
    assert stored_settings(settings_for(load_settings({}), stored, "journal", sizes_of=data_sizes).task) == stored
    with pytest.raises(SettingsDifferError) as caught:
        settings_for(load_settings({**sizes, "holdout_policy": other}), stored, "journal", sizes_of=data_sizes)
    assert list(caught.value.differences) == ["holdout_policy"]
    with pytest.raises(SettingsError):
        settings_for(
            load_settings({**sizes, "holdout_policy": f"model:{__file__}"}), {}, "journal", sizes_of=data_sizes
        )


@pytest.mark.parametrize("settings", [{}, {"model": "shared", "partitions": 2}], ids=["own", "shared"])
def test_holdout_keeps_its_model_across_restarts_without_the_file(settings: dict[str, Any], tmp_path: Path) -> None:
    policy = write_frozen(tmp_path / "model.npz", small_task("late-ucb"))
    learner = learner_of(small_task("late-ucb"))
    rng, played = np.random.default_rng(3), set()
    given: dict[str, Any] = {"learner": "banditron", "holdout": 0.3, "holdout_policy": policy, **settings}
    with onebit.embedded(n_classes=N_CLASSES, n_features=N_FEATURES, **given) as pipeline:
        (tmp_path / "model.npz").unlink()
        for t in range(80):
            x = rng.normal(size=N_FEATURES)
            decision = pipeline.decide(f"event-{t}", x.tolist())
            pipeline.feedback(f"event-{t}", int(decision.action == t % 2))
            greedy = learner.predict(x, 0.5).greedy
            assert decision.propensity >= (0.3 if decision.action == greedy else 0.0)
            if pipeline.example(f"event-{t}").get("arm"):
                assert decision.action == greedy
                played.add(greedy)
            if t in (30, 60):
                pipeline.restart()
        pipeline.advance("1s")
        for partition in range(settings.get("partitions", 1)):
            assert replay_journal(pipeline.test.broker, pipeline.test.topics, partition).ok
    assert len(played) > 1
