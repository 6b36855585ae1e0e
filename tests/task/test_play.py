"""Replays of logged decisions: the action, counts and updates for each `play` setting, and the supported learners."""

import math
from typing import Any

import numpy as np
import orjson
import pytest

from stream.learners import FromLogs, ParameterError, check_parameters, create, registered
from stream.recovery.state import state_digest
from stream.task.settings import PolicyError, TaskSettings, Unsuitable
from stream.task.stored_settings import restored_settings, stored_settings
from stream.task.task import Effects, Task
from stream.wire.codec import decode_context, encode_context
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, Features, Logged, Outcome, Record, Target
from tests.pipeline import TOPICS, Inputs, small_task

X = Features(np.array([0, 2], dtype=np.int32), np.ones(2))


def logged_context(inputs: Inputs, event_id: str, at_ms: int, logged: Logged | None) -> Record:
    return inputs.add(TOPICS.contexts, at_ms, encode_context(event_id, X, logged))


def play(task: Task, *records: Record) -> Effects:
    return task.step(records, 1)


def predict(settings: TaskSettings, event_id: str) -> Decision:
    """Return the decision that a new learner makes without a log."""
    task = Task(settings, TOPICS.contexts)
    return task.learner.predict(X, task._draw_action(event_id))


def other_than(action: int) -> int:
    return (action + 1) % 3


def test_play_own_ignores_the_logged_field() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    effects = play(task, logged_context(inputs, "a", 1, Logged(2, 0.5)))
    bad = inputs.add(TOPICS.contexts, 2, b'{"id":"b","x":{"i":[0]},"logged":"none of yours"}')
    effects = play(task, bad)
    assert ([p.target for p, _ in effects.predictions], effects.dead_letters) == ([None], [])


FROM_LOGS = (
    "banditron", "soba-diag", "soba", "newtron", "late-ucb", "igw-logistic", "stack-igw", "confidit", "perceptron",
)  # fmt: skip


@pytest.mark.parametrize("learner", FROM_LOGS)
def test_play_logged_plays_the_logged_action_and_records_the_learners_own_action(learner: str) -> None:
    settings = small_task(learner, play="logged")
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    by_hand = settings.make_learner()
    for number in range(6):
        event_id, logged = f"e{number}", Logged(number % 3, 0.25)
        effects = play(task, logged_context(inputs, event_id, 10 * number, logged))
        ((prediction, _),) = effects.predictions
        own = by_hand.predict(X, task._draw_action(event_id))
        assert prediction.target == Target(own.action, own.propensity)
        assert prediction.decision[:3] == (logged.action, own.greedy, 0.25)
        played = by_hand.as_played(X, own, logged.action, 0.25)
        by_hand.observe(X, played)
        play(task, inputs.feedback(event_id, number % 2, 10 * number + 1, label=1))
        v = task._draw_update(event_id) if by_hand.randomised_update else 0.0
        by_hand.update(X, played, number % 2, v, 1)
    assert state_digest([task.learner.state()]) == state_digest([by_hand.state()])
    assert task.join.ledger() == Ledger(contexts=6, decided=6, matched=6, feedback=6)


def test_small_propensity_is_published_unchanged_but_raised_for_learning() -> None:
    task, inputs = Task(small_task(play="logged", propensity_min=0.2), TOPICS.contexts), Inputs()
    effects = play(task, logged_context(inputs, "a", 1, Logged(1, 0.001)), inputs.feedback("a", 1, 2))
    assert [p.decision.propensity for p, _ in effects.predictions] == [0.001]
    assert [example.propensity for example, _ in effects.examples] == [0.001]
    assert task.learner.weights()[1].tolist() == [5.0, 0.0, 5.0, 0.0], "expected x / propensity_min"
    assert task.join.ledger() == Ledger(contexts=1, decided=1, matched=1, feedback=1, propensities_floored=1)


def test_regression_learner_ignores_propensities_and_their_minimum() -> None:
    task, inputs = Task(small_task("late-ucb", play="logged", propensity_min=0.2), TOPICS.contexts), Inputs()
    records = [logged_context(inputs, "a", 1, Logged(2)), logged_context(inputs, "b", 2, Logged(1, 0.001))]
    effects = play(task, *records, inputs.feedback("a", 1, 3))
    assert [math.isnan(p.decision.propensity) for p, _ in effects.predictions] == [True, False]
    assert effects.examples[0][0].propensity is None
    assert (task.version, task.join.ledger().propensities_floored) == (1, 0)
    assert np.asarray(task.learner.state()["W"])[2].any()


@pytest.mark.parametrize(
    ("settings", "logged", "message"),
    [
        (small_task(play="logged"), None, "logged: "),
        (small_task(play="logged"), Logged(1), "logged.propensity: "),
        (small_task("late-ucb", play="logged"), Logged(3, 0.5), "logged.action: "),
        (small_task("late-ucb", play="match"), Logged(1), "logged.propensity: "),
        (small_task("late-ucb", play="match"), Logged(1, 0.5), "logged.propensity: "),
    ],
)
def test_context_without_required_logged_fields_is_malformed(
    settings: TaskSettings, logged: Logged | None, message: str
) -> None:
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    effects = play(task, logged_context(inputs, "a", 1, logged))
    assert effects.dead_letters[0].reason.startswith(message)
    assert task.join.ledger() == Ledger(contexts=1, context_malformed=1)


def test_play_match_settles_a_decision_without_a_logged_bit_immediately() -> None:
    settings = small_task("stack-igw", play="match")
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    untouched = state_digest([task.learner.state()])
    own = predict(settings, "a")
    effects = play(task, logged_context(inputs, "a", 1, Logged(other_than(own.action), 1 / 3)))
    ((prediction, _),) = effects.predictions
    assert (prediction.decision.action, prediction.target) == (own.action, Target(own.action, own.propensity))
    ((example, _),) = effects.examples
    assert (example.outcome, example.reward, example.delay_ms) == (Outcome.UNMATCHED, None, None)
    assert example.feedback_offset is None
    effects = play(task, inputs.feedback("a", 1, 2), inputs.feedback("a", 0, 3, action=2))
    assert effects == Effects([], [], [], [])
    assert state_digest([task.learner.state()]) == untouched
    assert task.join.ledger() == Ledger(contexts=1, decided=1, unmatched=1, feedback=2, feedback_unmatched=2)

    agreeing = predict(settings, "b").action
    play(task, logged_context(inputs, "b", 5_001, Logged(agreeing, 1 / 3)), inputs.feedback("b", 1, 5_002))
    assert (task.join.ledger().matched, task.version) == (1, 1)


def test_unmatched_decision_causes_no_update_under_the_negative_policy() -> None:
    settings = small_task(play="match", on_expiry="negative", late="correct")
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    action = predict(settings, "a").action
    play(task, logged_context(inputs, "a", 1, Logged(other_than(action), 1 / 3)))
    play(task, inputs.feedback("a", 1, 50_000))
    assert (task.version, task.learner.weights().sum()) == (0, 0.0)


def matched_rewards(settings: TaskSettings, events: int) -> tuple[float, int]:
    """Return the mean bit for the decisions that match a non-uniform log, and the number of such decisions."""
    rng = np.random.default_rng(1)
    logging, right = (0.7, 0.2, 0.1), (0.9, 0.5, 0.1)
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    bits = []
    for number in range(events):
        action = int(rng.choice(3, p=logging))
        play(task, logged_context(inputs, f"e{number}", number, Logged(action, logging[action])))
        if f"e{number}" in task.join.pending:
            bits.append(int(rng.random() < right[action]))
    return float(np.mean(bits)), len(bits)


@pytest.mark.slow
def test_rejection_sampling_of_a_nonuniform_log_is_unbiased() -> None:
    uniform = small_task(parameters={"gamma": 1.0}, play="match", propensity_min=0.1)
    mean, count = matched_rewards(uniform, 6_000)
    assert count == pytest.approx(600, abs=4 * math.sqrt(600)), "expected a tenth of the events"
    assert mean == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(count)), "the logged mean is 0.74"


def test_play_match_counts_propensities_below_the_minimum() -> None:
    task, inputs = Task(small_task(play="match", propensity_min=0.2), TOPICS.contexts), Inputs()
    play(task, logged_context(inputs, "a", 1, Logged(1, 0.1)), logged_context(inputs, "b", 2, Logged(1, 0.2)))
    assert task.join.ledger().propensities_floored == 1


def test_each_learner_declares_whether_it_requires_a_label_or_a_propensity() -> None:
    assert {name: cls.from_logs is FromLogs.LABEL for name, cls in registered().items()} == {
        name: cls.needs_label for name, cls in registered().items()
    }
    assert {name for name, cls in registered().items() if cls.from_logs is FromLogs.PROPENSITY} == {
        "banditron", "rdue", "soba", "soba-diag", "soba-adaptive", "newtron", "pnewtron",
    }  # fmt: skip
    assert {name for name, cls in registered().items() if cls.from_logs is FromLogs.NOTHING} == {
        "late-ucb", "igw-logistic", "stack-igw", "confidit", "confidit-kernel", "joint-ucb", "igw-log",
    }  # fmt: skip


def test_error_for_a_learner_without_log_support_names_alternatives() -> None:
    with pytest.raises(PolicyError, match=r"^halving .*late-ucb") as raised:
        small_task("halving", play="logged").make_learner()
    assert raised.value.reason is Unsuitable.NOT_FROM_LOGS
    small_task("halving", play="match").make_learner()


@pytest.mark.parametrize("learner", ["banditron", "perceptron", "newtron", "soba"])
def test_learner_that_requires_a_single_right_class_is_rejected_with_reward_any(learner: str) -> None:
    with pytest.raises(PolicyError, match=rf"^{learner}.*igw-logistic, late-ucb, stack-igw") as raised:
        small_task(learner, reward="any").make_learner()
    assert raised.value.reason is Unsuitable.ONE_RIGHT_CLASS


def test_confidit_with_projection_is_rejected_with_reward_any() -> None:
    small_task("confidit", reward="any").make_learner()
    with pytest.raises(PolicyError, match=r"^confidit"):
        small_task("confidit", reward="any", parameters={"projection": 1}).make_learner()


@pytest.mark.parametrize("learner", ["igw-logistic", "stack-igw"])
def test_update_changes_only_the_played_class_with_reward_any(learner: str) -> None:
    changed: dict[Any, set[int]] = {}
    for reward in ("exclusive", "any"):
        model = small_task(learner, reward=reward).make_learner()
        before = np.array(model.state()["W"])
        for bit in (1, 1, 0):
            decision = model.as_played(X, model.predict(X, 0.5), 1, 0.5)
            model.observe(X, decision)
            model.update(X, decision, bit)
        differs = np.array(model.state()["W"]) != before
        changed[reward] = set(np.flatnonzero(differs.any(axis=1) if differs.shape[0] == 3 else differs.any(axis=0)))
    assert changed == {"exclusive": {0, 1, 2}, "any": {1}}
    assert small_task(learner, reward="any").resolved().parameters["others"] == 0.0
    with pytest.raises(ParameterError, match=rf"^{learner}: parameter others "):
        check_parameters(learner, {"others": 0.3}, any_right=True)


def test_unknown_logged_action_is_rejected() -> None:
    learner = create("banditron", n_classes=3, n_features=4)
    decision = learner.predict(X, 0.5)
    with pytest.raises(ValueError, match=r"0\.\.2; got 3"):
        learner.as_played(X, decision, 3, 0.5)


def test_decoder_ignores_the_logged_field_by_default() -> None:
    record = Record("contexts", 0, 0, 0, None, encode_context("a", X, Logged(1, 0.5)), ())
    assert orjson.loads(record.value or b"")["logged"] == {"action": 1, "propensity": 0.5}
    assert decode_context(record, 4).logged is None


def test_prediction_contains_the_class_name_if_classes_have_names() -> None:
    settings = small_task(play="logged", class_names=("red", "green", "blue"))
    ((prediction, _),) = play(
        Task(settings, TOPICS.contexts), logged_context(Inputs(), "a", 1, Logged(2, 1 / 3))
    ).predictions
    assert prediction.class_name == "blue"
    assert restored_settings(stored_settings(settings)) == settings.resolved()
    with pytest.raises(ParameterError, match="class_names: expected 3 names; got 2"):
        Task(small_task(class_names=("red", "green")), TOPICS.contexts)
