"""Graded rewards in a task: examples in the units of the rewards, learning from shares, and refused learners."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream.learners import ParameterError, registered
from stream.recovery.state import state_digest
from stream.task.carry import ChangeError, check_change
from stream.task.settings import PolicyError, TaskSettings, Unsuitable
from stream.task.task import Effects, Task
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from tests.pipeline import TOPICS, Inputs, offered, small_task

PLAIN: dict[str, Any] = {"expand": "none", "drift": "off"}
STARS = small_task("late-ucb", parameters=PLAIN, rewards="graded", reward_range="1,5")
EVENTS = 24


def run(settings: TaskSettings, inputs: Inputs) -> tuple[Task, list[Effects]]:
    """Apply the records, one per step."""
    task = Task(settings, TOPICS.contexts)
    return task, [task.step([record], number) for number, record in enumerate(inputs.records, 1)]


def answered(rewards: list[float], settings: TaskSettings = STARS, late_ms: int = 0) -> tuple[Task, list[Effects]]:
    """A decision `a`, and then these rewards for it."""
    inputs = Inputs()
    inputs.context("a", 1_000, 0)
    inputs.tick(1, 1_000)
    if late_ms:
        inputs.tick(0, 1_000 + late_ms)
    for number, reward in enumerate(rewards):
        inputs.feedback("a", reward, 1_010 + late_ms + number)
    return run(settings, inputs)


def examples_of(effects: list[Effects]) -> list[tuple[str, float | None]]:
    return [(example.outcome, example.reward) for one in effects for example, _ in one.examples]


def test_example_has_the_reward_in_its_own_units() -> None:
    assert examples_of(answered([3.5])[1]) == [("matched", 3.5)]


@pytest.mark.parametrize("reward", [0.9, 5.1, -1.0, 1e300])
def test_reward_outside_the_range_is_a_dead_letter(reward: float) -> None:
    task, effects = answered([reward])
    assert [letter.kind for one in effects for letter in one.dead_letters] == [DEAD_LETTER_MALFORMED]
    assert (task.join.ledger().feedback_malformed, task.join.ledger().pending) == (1, 1)


def test_only_a_differing_value_is_a_conflict() -> None:
    assert answered([3.5, 3.5])[0].join.ledger().conflicts == 0
    assert answered([3.5, 3.0])[0].join.ledger().conflicts == 1


def test_expired_decision_is_learned_with_the_lowest_reward() -> None:
    assert examples_of(answered([], replace(STARS, on_expiry="negative"), late_ms=1_001)[1]) == [("expired", 1.0)]
    assert examples_of(answered([], STARS, late_ms=1_001)[1]) == [("expired", None)]


def test_late_value_corrects_the_assumed_reward() -> None:
    correcting = replace(STARS, on_expiry="negative", late="correct")
    corrected, _ = answered([4.0], correcting, late_ms=1_001)
    direct, _ = answered([4.0])
    for name, array in direct.learner.state().items():
        np.testing.assert_allclose(np.asarray(corrected.learner.state()[name]), np.asarray(array), atol=1e-12)
    assert corrected.version == 2


def stream(rewards: list[float], **fields: Any) -> Inputs:
    """Decisions with one reward each, in a different order."""
    inputs = Inputs()
    for number in range(EVENTS):
        inputs.context(f"e{number}", 1_000 + 10 * number, number % 4, **fields)
        inputs.tick(2 * number + 1, 1_000 + 10 * number)
    for number in sorted(range(EVENTS), key=lambda number: number * 7 % EVENTS):
        inputs.feedback(f"e{number}", rewards[number], 1_500)
    return inputs


@pytest.mark.parametrize("name", [name for name, cls in registered().items() if cls.learns_values])
def test_extreme_values_teach_the_same_as_bits(name: str) -> None:
    bits = [float(number % 3 == 0) for number in range(EVENTS)]
    plain = small_task(name, reward="any")
    graded = replace(plain, reward="exclusive", rewards="graded", reward_range="-2,6")
    of_bits, _ = run(plain, stream(bits, **offered(plain)))
    of_values, _ = run(graded, stream([-2.0 + 8.0 * bit for bit in bits], **offered(plain)))
    assert state_digest([of_values.learner.state()]) == state_digest([of_bits.learner.state()])


@pytest.mark.parametrize("name", [name for name, cls in registered().items() if not cls.learns_values])
def test_learner_that_learns_only_bits_is_refused(name: str) -> None:
    with pytest.raises(PolicyError) as raised:
        small_task(name, rewards="graded").make_learner()
    assert raised.value.reason in (Unsuitable.NO_VALUES, Unsuitable.NO_LABEL)


def test_confidit_with_a_projection_is_refused() -> None:
    with pytest.raises(PolicyError) as raised:
        small_task("confidit", parameters={"projection": 1}, rewards="graded").make_learner()
    assert raised.value.reason is Unsuitable.NO_VALUES


def test_evidence_about_other_classes_is_off_for_values() -> None:
    assert small_task("igw-logistic", rewards="graded").resolved().parameters["others"] == 0.0
    with pytest.raises(ParameterError):
        small_task("stack-igw", parameters={"others": 0.3}, rewards="graded").resolved()


def test_range_requires_graded_rewards() -> None:
    with pytest.raises(ParameterError):
        small_task("late-ucb", reward_range="0,5").make_learner()


@pytest.mark.parametrize("changes", [{"rewards": "bit", "reward_range": "0,1"}, {"reward_range": "1,10"}])
def test_kind_and_range_of_rewards_cannot_change(changes: dict[str, Any]) -> None:
    with pytest.raises(ChangeError) as raised:
        check_change(STARS, replace(STARS, **changes))
    assert raised.value.setting in changes
