"""The settings of a pipeline that decides among actions with features."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from consumers.learner.loop import check_given
from producers.data import data_sizes
from stream.programs.pipeline_settings import settings_for
from stream.settings.definitions import SettingsError
from stream.settings.sources import given_settings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import Kind, build, to_plain

SIZES: dict[str, Any] = {"actions_max": 5, "n_features": 3, "action_features": 2}


def requested(stored: TaskSettings | None = None, **given: Any) -> TaskSettings:
    settings = given_settings(given)
    check_given(settings)
    known = {} if stored is None else stored_settings(stored)
    return settings_for(settings, known, "own.journal", sizes_of=data_sizes).task


def features_file(folder: Path, kind: Kind) -> Path:
    """A file with two named features of the context, and a number and another feature of actions."""
    of_context = build({"age": (Kind.NUMERIC, None), "member": (Kind.NUMERIC, None)}, None)
    vocabulary = None if kind is Kind.NUMERIC else ["green", "black"]
    of_actions = build({"price": (Kind.NUMERIC, None), "title": (kind, vocabulary)}, None)
    path = folder / "features.json"
    path.write_bytes(orjson.dumps({**to_plain(of_context), "actions": to_plain(of_actions)}))
    return path


def test_numbers_of_features_determine_the_layout() -> None:
    task = requested(**SIZES)
    assert (task.blocks, task.n_classes, task.learner) == (ActionBlocks(5, 3, 2), 5, "joint-ucb")
    assert task.resolved().parameters["context"] == 3


@pytest.mark.parametrize(("kind", "learner", "size"), [(Kind.NUMERIC, "joint-ucb", 2), (Kind.TEXT, "igw-log", 3)])
def test_file_describes_the_features_of_context_and_actions(
    tmp_path: Path, kind: Kind, learner: str, size: int
) -> None:
    task = requested(actions_max=5, features=str(features_file(tmp_path, kind)))
    assert (task.blocks, task.learner) == (ActionBlocks(5, 2, size), learner)
    reading, encoder = task.action_reading(), task.feature_encoder()
    assert reading is not None
    assert reading.encoder is not None
    assert encoder is not None
    assert (list(encoder.names), list(reading.encoder.names)) == (["age", "member"], ["price", "title"])


def test_learner_starts_again_without_the_flags_of_its_pipeline(tmp_path: Path) -> None:
    task = requested(actions_max=5, features=str(features_file(tmp_path, Kind.TEXT))).resolved()
    assert requested(task) == task
    by_number = requested(**SIZES).resolved()
    assert requested(by_number, **SIZES) == by_number


@pytest.mark.parametrize("given", [{"actions_max": 6}, {"action_features": 3}, {"n_features": 4}])
def test_other_layout_than_that_of_the_pipeline_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as raised:
        requested(requested(**SIZES), **{**SIZES, **given})
    assert "n_classes" not in str(raised.value), "expected the user's names of the sizes"


@pytest.mark.parametrize(
    "given",
    [
        {"actions_max": 5, "n_features": 3},
        {"actions_max": 5, "action_features": 2},
        {"n_classes": 5, "n_features": 3, "action_features": 2},
        {**SIZES, "n_classes": 5},
        {**SIZES, "classes_max": 5},
        {"actions_max": 50, "n_features": 3, "action_features": 2**30},
    ],
)
def test_incomplete_or_contradictory_sizes_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        requested(**given)


def test_number_of_action_features_must_match_the_file(tmp_path: Path) -> None:
    file = str(features_file(tmp_path, Kind.NUMERIC))
    assert requested(actions_max=5, features=file, action_features=2).blocks == ActionBlocks(5, 2, 2)
    with pytest.raises(SettingsError):
        requested(actions_max=5, features=file, action_features=3)
    with pytest.raises(SettingsError):
        requested(n_classes=5, features=file)
