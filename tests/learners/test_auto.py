"""The documented rules for choosing the default learner based on the size of the data."""

from typing import Any

import pytest

from stream.learners import ParameterError, create, sparse_defaults
from stream.learners.auto import choose, choose_for_actions
from stream.wire.actions import ActionBlocks


@pytest.mark.parametrize(
    ("n_classes", "n_features", "mean_nnz", "learner", "parameters", "why"),
    [
        (10, 64, 33.0, "late-ucb", {}, "few and dense"),
        (10, 64, 8.1, "late-ucb", {}, "few and dense"),
        (10, 64, 8.0, "stack-igw", {}, "sparse"),
        (10, 64, 8.01, "late-ucb", {}, "few and dense"),
        (9, 400, 25.0, "stack-igw", {}, "sparse"),
        (9, 400, None, "late-ucb", {}, "few"),
        (10, 447, None, "late-ucb", {}, "few"),
        (10, 447, 300.0, "late-ucb", {}, "few and dense"),
        (10, 448, 300.0, "late-ucb", {"project": 256}, "many and dense"),
        (10, 448, None, "late-ucb", {"expand": "none"}, "few"),
        (10, 511, None, "late-ucb", {"expand": "none"}, "few"),
        (40, 400, 300.0, "late-ucb", {"expand": "none"}, "few and dense"),
        (10, 512, None, "stack-igw", {}, "many"),
        (10, 512, 300.0, "late-ucb", {"project": 256}, "many and dense"),
        (10, 784, 150.0, "late-ucb", {"project": 256}, "many and dense"),
        (20, 165_470, 153.0, "stack-igw", {}, "sparse"),
        (100, 400, 400.0, "stack-igw", {}, "exceed 64 MB"),
        (100, 400, None, "stack-igw", {}, "exceed 64 MB"),
        (200, 1_000, 900.0, "stack-igw", {}, "exceed 64 MB"),
    ],
)
def test_auto_choice_depends_on_size(
    n_classes: int, n_features: int, mean_nnz: float | None, learner: str, parameters: dict[str, Any], why: str
) -> None:
    choice = choose(n_classes, n_features, mean_nnz)
    assert (choice.learner, choice.parameters) == (learner, parameters)
    assert why in choice.why
    if n_features < 2_000 and n_classes <= 10:
        create(choice.learner, n_classes, n_features, **choice.parameters)


@pytest.mark.parametrize(("n_features", "mean_nnz"), [(64, 33.0), (64, 2.0), (400, None), (784, 700.0)])
def test_late_ucb_is_chosen_if_updates_must_be_retractable(n_features: int, mean_nnz: float | None) -> None:
    choice = choose(10, n_features, mean_nnz, correctable=True)
    assert choice.learner == "late-ucb"
    assert (choice.parameters == {"expand": "none"}) == (mean_nnz == 2.0)


def test_explicitly_chosen_late_ucb_has_no_random_features_on_sparse_data() -> None:
    assert sparse_defaults("late-ucb", 400, 25.0) == {"expand": "none"}
    assert sparse_defaults("late-ucb", 64, 33.0) == sparse_defaults("late-ucb", 400, None) == {}
    assert sparse_defaults("stack-igw", 400, 25.0) == {}


@pytest.mark.parametrize(
    ("n_classes", "n_features", "mean_nnz"), [(10, 5_000, 20.0), (10, 5_000, None), (99, 400, 9.0)]
)
def test_auto_choice_fails_if_no_retractable_learner_fits(
    n_classes: int, n_features: int, mean_nnz: float | None
) -> None:
    with pytest.raises(ParameterError, match="project=256"):
        choose(n_classes, n_features, mean_nnz, correctable=True)


@pytest.mark.parametrize(
    ("blocks", "mean_nnz", "given", "learner"),
    [
        (ActionBlocks(10, 20, 8), None, {}, "joint-ucb"),
        (ActionBlocks(10, 20, 8), 90.0, {}, "joint-ucb"),
        (ActionBlocks(10, 20, 80), 60.0, {}, "igw-log"),  # sparse
        (ActionBlocks(10, 20, 300), None, {}, "igw-log"),
        (ActionBlocks(10, 20, 8), None, {"is_hashed": True}, "igw-log"),
        (ActionBlocks(10, 20, 1_024), None, {"is_hashed": True, "correctable": True}, "joint-ucb"),
    ],
)
def test_learner_for_actions_depends_on_size_density_and_corrections(
    blocks: ActionBlocks, mean_nnz: float | None, given: dict[str, bool], learner: str
) -> None:
    assert choose_for_actions(blocks, mean_nnz, **given).learner == learner


def test_auto_choice_for_actions_fails_if_no_retractable_learner_fits() -> None:
    with pytest.raises(ParameterError):
        choose_for_actions(ActionBlocks(50, 1 << 20, 1 << 20), None, is_hashed=True, correctable=True)
