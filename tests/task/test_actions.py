"""Pipelines that decide among actions with features: settings, decisions and pending decisions."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from stream.learners import ParameterError
from stream.recovery.state import encode_block
from stream.task.carry import ChangeError, check_change
from stream.task.settings import PolicyError, TaskSettings, Unsuitable
from stream.task.stored_settings import SettingsDifferError, resolve, restored_settings, stored_settings
from stream.task.task import Effects, Task
from stream.wire.dead_letters import DEAD_LETTER_MISMATCHED
from stream.wire.records import Outcome
from tests.offers import CONTEXT, FEATURES, PLACES, actions_task, offers
from tests.pipeline import TOPICS, Inputs, small_task

SAMPLED = 64  # joint-ucb samples the actions of this many contexts


def step(task: Task, number: int, inputs: Inputs) -> Effects:
    return task.step(inputs.records, number)


def decided(task: Task, events: int) -> Inputs:
    """Decide on contexts, one per step; return the inputs, without feedback."""
    inputs = Inputs()
    for number, offer in enumerate(offers(events), start=1):
        inputs.records.clear()
        inputs.add(TOPICS.contexts, 1_000, offer.encoded())
        step(task, number, inputs)
        inputs.records.clear()
    return inputs


def test_prediction_and_example_contain_the_id_of_the_action() -> None:
    task, inputs = Task(actions_task(dated_by="context"), TOPICS.contexts), Inputs()
    offer = next(offers(1))
    inputs.add(TOPICS.contexts, 1_000, offer.encoded())
    inputs.feedback("visit-0", 1, 1_001)
    effects = step(task, 1, inputs)
    ((prediction, _),), ((example, _),) = effects.predictions, effects.examples
    assert prediction.actions == [action["id"] for action in offer.fields["actions"]]
    assert prediction.class_name == prediction.actions[prediction.decision.action]
    assert (example.class_name, example.outcome) == (prediction.class_name, Outcome.MATCHED)


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
def test_feedback_for_another_action_is_rejected_by_id(is_right: bool, is_early: bool) -> None:
    task, offer = Task(actions_task("igw-log", seed=1), TOPICS.contexts), next(offers(1))
    one = Inputs()
    one.add(TOPICS.contexts, 1_000, offer.encoded())
    ((prediction, _),) = step(Task(task.settings, TOPICS.contexts), 1, one).predictions
    given = prediction.class_name if is_right else "another\n\x1b[31m"
    inputs, feedback = Inputs(), {"id": "visit-0", "reward": 1, "action": given}
    if is_early:
        inputs.feedback_of(feedback, 999)
    inputs.add(TOPICS.contexts, 1_000, offer.encoded())
    if not is_early:
        inputs.feedback_of(feedback, 1_001)
    effects = step(task, 1, inputs)
    assert [letter.kind for letter in effects.dead_letters] == ([] if is_right else [DEAD_LETTER_MISMATCHED])
    assert all(letter.reason.isprintable() for letter in effects.dead_letters)
    assert len(effects.examples) == is_right


@pytest.mark.parametrize("learner", ["joint-ucb", "igw-log"])
def test_pending_decision_keeps_only_the_context_and_the_played_action(learner: str) -> None:
    task = Task(actions_task(learner, dated_by="context"), TOPICS.contexts)
    decided(task, SAMPLED + 3)
    blocks = task.settings.blocks
    assert blocks is not None
    for number, one in enumerate(task.join.pending.values()):
        context, _ = blocks.split(one.x)
        played = [place for place in range(PLACES) if blocks.key_at(one.x, place)]
        assert context.indices.size == CONTEXT
        if learner == "igw-log" or number >= SAMPLED:
            assert (played, one.x.indices.size) == ([one.decision.action], CONTEXT + 1 + FEATURES)
        else:  # the sample contains every action that a context offers
            assert one.decision.action in played


def test_block_of_a_pipeline_with_classes_has_no_field_for_ids() -> None:
    tasks = Task(small_task(), TOPICS.contexts), Task(actions_task(), TOPICS.contexts)
    inputs = Inputs()
    inputs.context("a", 1_000, 1)
    step(tasks[0], 1, inputs)
    decided(tasks[1], 1)
    of_classes, of_actions = ([(name, one) for name, one in task.join.pending.items()] for task in tasks)
    assert encode_block("pending", of_classes).endswith(b"\xc0")  # `arm` is the last field
    assert encode_block("pending", of_actions).endswith(of_actions[0][1].class_name.encode())  # type: ignore[union-attr]


def test_retained_entries_do_not_accumulate_values_of_forgotten_ids() -> None:
    task = Task(actions_task(join=replace(actions_task().join, retain_ms=0)), TOPICS.contexts)
    for number in range(1, 200):
        inputs = Inputs()
        name = f"visit-{number}"
        inputs.add(TOPICS.contexts, 10 * number, orjson.dumps({"id": name, "actions": [{"id": f"item-{number}"}]}))
        inputs.feedback(name, 1, 10 * number + 1)
        step(task, number, inputs)
    assert len(task.join.settled._equal) < 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"learner": "late-ucb"}, Unsuitable.NOT_FOR_ACTIONS), ({"actions": None}, Unsuitable.FOR_ACTIONS)],
)
def test_learner_must_decide_among_what_contexts_contain(changes: dict[str, Any], reason: Unsuitable) -> None:
    with pytest.raises(PolicyError) as raised:
        replace(actions_task(), **changes).make_learner()
    assert raised.value.reason is reason


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": "standard"},
        {"class_names": ("a", "b", "c", "d")},
        {"open_classes": True},
        {"retired_classes": (1,)},
        {"n_features": 16},
        {"parameters": {"context": 2}},
        {"holdout": 0.1, "holdout_policy": "constant:1"},
        {"retired_features": (CONTEXT,)},
    ],
)
def test_setting_for_classes_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        actions_task(**changes).make_learner()


@pytest.mark.parametrize(
    "changes",
    [
        {"holdout": 0.2, "holdout_policy": "baseline"},
        {"holdout": 0.2, "floor": 0.1},
        {"challengers": {"igw-log": {}}, "floor": 0.1},
        {"on_expiry": "negative", "late": "correct"},
        {"retired_features": (1,)},
        {"rewards": "graded", "reward_range": "0,5"},
    ],
)
def test_setting_is_possible_with_actions(changes: dict[str, Any]) -> None:
    actions_task(**changes).make_learner()


@pytest.mark.parametrize(
    ("learner", "challengers", "is_limited"),
    [("joint-ucb", {}, False), ("igw-log", {}, True), ("joint-ucb", {"igw-log:step=1": {"step": 1}}, True)],
)
def test_pairs_of_features_are_limited_if_a_learner_computes_with_each_pair(
    learner: str, challengers: dict[str, dict[str, Any]], is_limited: bool
) -> None:
    reading = actions_task(learner, challengers=challengers).action_reading()
    assert reading is not None
    assert (reading.pairs_max is not None) == is_limited


@pytest.mark.parametrize("changes", [{"n_classes": 5, "n_features": 18}, {"n_features": 19}, {"actions": None}])
def test_layout_cannot_change(changes: dict[str, Any]) -> None:
    before = actions_task()
    with pytest.raises(ChangeError):
        check_change(before, replace(before, **changes))


def test_stored_settings_contain_the_layout_only_with_actions() -> None:
    settings = actions_task().resolved()
    assert restored_settings(stored_settings(settings)) == settings
    assert "actions" not in stored_settings(small_task())


@pytest.mark.parametrize(("stored", "requested"), [(small_task(), actions_task()), (actions_task(), small_task())])
def test_pipeline_cannot_start_again_with_or_without_actions(stored: TaskSettings, requested: TaskSettings) -> None:
    with pytest.raises(SettingsDifferError):
        resolve(stored_settings(stored), requested, given={"actions"}, place="journal")
