"""Several rewards for a decision: the combined reward, which is independent of order and duplicates, and its update."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.recovery.state import state_digest
from stream.task.answers import PARTS_MAX, Answer, Combination
from stream.task.join_table import Input
from stream.task.settings import PolicyError, Unsuitable
from stream.task.task import Effects, Task
from stream.wire.dead_letters import DEAD_LETTER_EXCESS, DEAD_LETTER_MALFORMED
from stream.wire.records import Feedback, Outcome, Record
from stream.wire.rewards import FeedbackRule, RewardRange
from tests.pipeline import TOPICS, Inputs, small_task

RECORD = Record("feedback", 0, 7, 1_000, b"a", b"{}", (("trace", b"1"),))
RANGE = RewardRange(-1.0, 3.0)


def combined(rule: FeedbackRule, rewards: list[tuple[str, float]]) -> float:
    """Return the combined reward of feedback with these parts and rewards."""
    answer: Answer | None = None
    for part, reward in rewards:
        after, happened = Combination(rule, RANGE).add(answer, Feedback("a", reward, part=part), RECORD)
        answer = answer if happened is Input.REPEATED else after
    assert answer is not None
    return answer.feedback.reward


@given(st.dictionaries(st.text(), st.floats(-1e300, 1e300), min_size=1, max_size=PARTS_MAX), st.data())
def test_sum_does_not_depend_on_order_and_duplicates(parts: dict[str, float], data: st.DataObject) -> None:
    rewards = list(parts.items())
    repeated = [*rewards, *data.draw(st.lists(st.sampled_from(rewards), max_size=5))]
    assert combined("sum", data.draw(st.permutations(repeated))) == combined("sum", rewards)


@given(st.lists(st.floats(-1, 3), min_size=1, max_size=8), st.data())
def test_maximum_does_not_depend_on_order_and_duplicates(rewards: list[float], data: st.DataObject) -> None:
    repeated = [*rewards, *data.draw(st.lists(st.sampled_from(rewards), max_size=5))]
    assert combined("max", [("", one) for one in data.draw(st.permutations(repeated))]) == max(rewards)


@pytest.mark.parametrize(
    ("parts", "total"),
    [([0.1, 0.2, 0.3], 0.6), ([1e300, 1, -1e300], 1.0), ([5.0, -4.0], 1.0), ([9.0], 3.0), ([-2.0], -1.0)],
)
def test_sum_is_exact_and_only_the_total_is_limited(parts: list[float], total: float) -> None:
    assert combined("sum", [(str(number), reward) for number, reward in enumerate(parts)]) == total


def test_answer_does_not_contain_the_content_of_its_record() -> None:
    answer, _ = Combination("max").add(None, Feedback("a", 0), RECORD)
    assert answer.record == RECORD._replace(key=None, value=None, headers=())


GRADED: dict[str, Any] = {"rewards": "graded", "reward_range": "0,4", "dated_by": "context"}
WITHOUT_DRIFT = {"drift": "off"}


def after(task: Task, inputs: Inputs) -> Effects:
    return task.step(inputs.records, 1)


def example_of(effects: Effects) -> tuple[Outcome, float | None, int | None, int | None]:
    ((example, _),) = effects.examples
    return example.outcome, example.reward, example.delay_ms, example.feedback_offset


@pytest.mark.parametrize(("rule", "reward"), [("max", 2.0), ("sum", 3.5)])
def test_decision_is_learned_once_with_its_combined_reward(rule: FeedbackRule, reward: float) -> None:
    several, once = Inputs(), Inputs()
    several.context("a", 10)
    several.feedback("a", 1, 20, part="p")
    several.feedback("a", 2, 30, part="q")
    several.feedback("a", 0.5, 40, part="r")
    several.tick(0, 1_011)
    once.context("a", 10)
    once.feedback("a", reward, 20)
    one, other = (
        Task(small_task("late-ucb", feedback=rule, **GRADED), TOPICS.contexts),
        Task(small_task("late-ucb", **GRADED), TOPICS.contexts),
    )
    effects = after(one, several)
    after(other, once)
    last = 2 if rule == "max" else 3
    assert example_of(effects) == (Outcome.MATCHED, reward, 10 * last, last - 1)
    assert one.version == other.version == 1
    assert state_digest([one.learner.state()]) == state_digest([other.learner.state()])


def test_higher_late_rewards_correct_the_model_one_after_the_other() -> None:
    policies = {"on_expiry": "negative", "late": "correct", "parameters": WITHOUT_DRIFT, **GRADED}
    learned = []
    for in_time, rewards in (((), (1.0, 3.0, 2.0)), ((), (3.0,)), ((1.0, 0.5), (2.0, 3.0, 2.0))):
        task, inputs = Task(small_task("late-ucb", feedback="max", **policies), TOPICS.contexts), Inputs()
        inputs.context("a", 10)
        for number, reward in enumerate(in_time):
            inputs.feedback("a", reward, 20 + number)
        inputs.tick(0, 1_011)
        for number, reward in enumerate(rewards):
            inputs.feedback("a", reward, 1_020 + number)
        after(task, inputs)
        learned.append({name: np.asarray(value, np.float64) for name, value in task.learner.state().items()})
    for name, values in learned[0].items():
        for other in learned[1:]:
            np.testing.assert_allclose(values, other[name], atol=1e-12)


def test_part_beyond_the_limit_becomes_a_dead_letter() -> None:
    task, inputs = Task(small_task("late-ucb", feedback="sum", **GRADED), TOPICS.contexts), Inputs()
    inputs.context("a", 10)
    for part in range(PARTS_MAX + 1):
        inputs.feedback("a", 1, 20, part=f"p{part}")
    effects = after(task, inputs)
    (letter,) = effects.dead_letters
    assert (letter.kind, letter.record) == (DEAD_LETTER_EXCESS, inputs.records[-1])
    ledger = task.join.ledger()
    assert (ledger.answered, ledger.combined, ledger.feedback_excess) == (1, PARTS_MAX - 1, 1)


def test_feedback_without_a_part_is_malformed_if_rewards_are_summed() -> None:
    task, inputs = Task(small_task("late-ucb", feedback="sum", **GRADED), TOPICS.contexts), Inputs()
    inputs.feedback("a", 1, 20)
    (letter,) = after(task, inputs).dead_letters
    assert letter.kind == DEAD_LETTER_MALFORMED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feedback": "sum"}, Unsuitable.NO_SUM_OF_BITS),
        (
            {"feedback": "sum", "on_expiry": "negative", "late": "correct", "parameters": WITHOUT_DRIFT, **GRADED},
            Unsuitable.NO_SUM_CORRECTED,
        ),
    ],
)
def test_rule_that_contradicts_another_policy_is_rejected(changes: dict[str, Any], reason: Unsuitable) -> None:
    with pytest.raises(PolicyError) as raised:
        small_task("late-ucb", **changes).make_learner()
    assert raised.value.reason is reason
