"""Retired classes and features: no decision uses them, and everything else stays the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream.learners import ParameterError, registered
from stream.task.carry import check_change
from stream.task.settings import PolicyError, TaskSettings, Unsuitable
from stream.task.task import Effects, Task
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import NOT_ELIGIBLE, Outcome
from tests.pipeline import TOPICS, Inputs, small_task

SUPPORTING = [name for name, cls in registered().items() if cls.supports_eligible and not cls.for_actions]
NAMED = to_plain(build({"price": (Kind.NUMERIC, None), "country": (Kind.CATEGORICAL, ["de", "at"])}, 2, unknown=True))


def task_of(learner: str = "banditron", **settings: Any) -> Task:
    return Task(small_task(learner, dated_by="context", **settings), TOPICS.contexts)


def decide(task: Task, inputs: Inputs, step: int, size: int = 20, **fields: Any) -> Effects:
    contexts = [inputs.context(f"{step}-{n}", 100 * step + n, n % 3, 3, **fields) for n in range(size)]
    return task.step(contexts, step)


def played(effects: Effects) -> set[int]:
    return {prediction.decision.action for prediction, _ in effects.predictions}


@pytest.mark.parametrize("name", SUPPORTING)
def test_retired_class_is_not_played_until_it_is_restored_and_its_decisions_are_settled(name: str) -> None:
    task, inputs = task_of(name), Inputs()
    before = decide(task, inputs, 1)
    retired = max(played(before))
    task.change_settings(replace(task.settings, retired_classes=(retired,)))
    during = decide(task, inputs, 2)
    assert retired not in played(during)
    assert {prediction.decision.scores[retired] for prediction, _ in during.predictions} == {NOT_ELIGIBLE}
    feedback = [inputs.feedback(one.id, 1, 300, label=one.decision.action) for one, _ in before.predictions]
    examples = [example for example, _ in task.step(feedback, 3).examples]
    assert [one.action for one in examples] == [one.decision.action for one, _ in before.predictions]
    assert {one.outcome for one in examples} == {Outcome.MATCHED}
    task.change_settings(replace(task.settings, retired_classes=()))
    after = decide(task, inputs, 4)
    assert NOT_ELIGIBLE not in {prediction.decision.scores[retired] for prediction, _ in after.predictions}


@pytest.mark.parametrize("policy", ["uniform", "constant:0"])
def test_floor_and_holdout_never_play_a_retired_class(policy: str) -> None:
    task = task_of(floor=0.5, holdout=0.5, holdout_policy=policy, retired_classes=(0,))
    assert played(decide(task, Inputs(), 1, 50)) == {1, 2}


CLASSES: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "numbered": ({}, (0, 1, 2)),
    "named": ({"class_names": ("a", "b", "c")}, ("a", "b", "c")),
    "open": ({"open_classes": True}, ("a", "b", "c")),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_context_that_lists_only_retired_classes_is_a_dead_letter(kind: str) -> None:
    settings, names = CLASSES[kind]
    task, inputs = task_of(**settings), Inputs()
    decide(task, inputs, 1, eligible=list(names))
    task.change_settings(replace(task.settings, retired_classes=names[:2]))
    assert played(decide(task, inputs, 2, eligible=list(names[1:]))) == {2}
    assert played(decide(task, inputs, 3)) == {2}
    refused = decide(task, inputs, 4, 1, eligible=list(names[:2]))
    assert [letter.kind for letter in refused.dead_letters] == [DEAD_LETTER_MALFORMED]


def test_name_of_an_open_class_that_was_retired_before_its_first_context_gets_no_index() -> None:
    task = task_of(open_classes=True, retired_classes=("b",))
    decide(task, Inputs(), 1, eligible=["a", "b", "c"])
    assert task.classes.names == ["a", "c"]


@pytest.mark.parametrize(
    ("settings", "retired", "x", "without"),
    [
        ({}, 1, {"i": [0, 1, 2], "v": [1, 5, 2]}, {"i": [0, 2], "v": [1, 2]}),
        ({}, 1, [1, 5, 2, 0], {"i": [0, 2], "v": [1, 2]}),
        ({"n_features": 7, "features": NAMED}, "price", {"price": "no number", "country": "de"}, {"country": "de"}),
        ({"n_features": 7, "features": NAMED}, "country", {"price": 2, "country": "fr"}, {"price": 2}),  # hashed
        ({"n_features": 7, "features": NAMED}, "country", {"i": [0, 1, 2, 3]}, {"i": [0, 3]}),
    ],
    ids=str,
)
def test_retired_feature_is_ignored_as_if_contexts_did_not_contain_it(
    settings: dict[str, Any], retired: str | int, x: Any, without: Any
) -> None:
    changed, other = (Task(replace(small_task(), **settings), TOPICS.contexts) for _ in range(2))
    changed.change_settings(replace(changed.settings, retired_features=(retired,)))
    ((one, _),) = decide(changed, Inputs(), 1, 1, x=x).predictions
    ((expected, _),) = decide(other, Inputs(), 1, 1, x=without).predictions
    np.testing.assert_array_equal(one.decision.scores, expected.decision.scores)
    (first,), (second,) = changed.join.pending.values(), other.join.pending.values()
    assert first.x.indices.tolist() == second.x.indices.tolist()
    assert first.x.values.tolist() == second.x.values.tolist()


@pytest.mark.parametrize("name", [name for name, cls in registered().items() if not cls.supports_eligible])
def test_class_cannot_be_retired_with_a_learner_that_ignores_eligible_classes(name: str) -> None:
    before = TaskSettings(name, 3, 4)
    with pytest.raises(PolicyError) as raised:
        check_change(before, replace(before, retired_classes=(1,)))
    assert raised.value.reason is Unsuitable.NO_ELIGIBLE


@pytest.mark.parametrize(
    "change",
    [
        {"retired_classes": (0, 1, 2)},  # no class would be left
        {"retired_classes": (3,)},
        {"retired_classes": ("a",)},
        {"retired_classes": (1, 1)},
        {"retired_features": (4,)},
        {"retired_features": ("price",)},
    ],
    ids=str,
)
def test_unknown_classes_and_features_cannot_be_retired(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        check_change(small_task(), replace(small_task(), **change))
