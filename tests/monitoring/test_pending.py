"""What takes a decision together with its bit, in whatever order the two topics are read."""

import numpy as np
import pytest

from stream.monitoring.pending import EARLY_MS, PENDING_MAX, POLICIES, PendingDecisions, Settled, weights_of
from stream.wire.events import Decision, Example, Outcome, Prediction, Target


def prediction(number: int, action: int, propensity: float = 0.5, target: Target | None = None) -> Prediction:
    return Prediction(str(number), Decision(action, 1, propensity, np.zeros(4)), 10 * number, 0, target)


def example(number: int, reward: int | None) -> Example:
    outcome = Outcome.EXPIRED if reward is None else Outcome.MATCHED
    return Example(str(number), outcome, 1, 0.5, reward, None, 0)


DECISIONS = [prediction(1, 1), prediction(2, 0, 0.25), prediction(3, 1), prediction(4, 1)]
EXAMPLES = [example(2, 1), example(1, 1), example(4, 0), example(3, None)]


@pytest.mark.parametrize("order", ["ddddeeee", "eeeedddd", "dedede", "eddeed", "eedd"])
def test_estimates_are_the_same_whichever_topic_is_read_first_and_after_a_restart(order: str) -> None:
    pending, found = PendingDecisions(), list[Settled]()
    decisions, examples = iter(DECISIONS), iter(EXAMPLES)
    for topic in (*order, *"ddddeeee"):
        one = next(decisions if topic == "d" else examples, None)
        if isinstance(one, Prediction):
            settled = pending.decide(int(one.id), one, 100)
        elif one is not None:
            settled = pending.settle(int(one.id), one, 200)
        else:
            continue
        found += [] if settled is None else [settled]
        kept, pending = pending.state(), PendingDecisions()
        pending.load(kept)
    assert sorted(found) == [Settled(200, 0.0, 1), Settled(200, 2.0, 0), Settled(200, 2.0, 1)]
    greedy, uniform, learner = pending.estimates()
    assert (greedy.weights.n, greedy.weights.sum, greedy.weighted_rewards.sum) == (3, 4.0, 2.0)
    assert (uniform.weights.sum, uniform.weighted_rewards.sum) == (2.0, 1.5)
    assert learner.weights.n == 0
    assert [one.value for one in greedy.estimates()] == [2 / 3, 0.5]
    assert pending.oldest_ms is None


def test_a_decision_counts_when_all_before_it_are_settled_and_the_first_that_waits_is_the_oldest() -> None:
    pending = PendingDecisions()
    for one in DECISIONS:
        pending.decide(int(one.id), one, 100)
    pending.settle(2, example(2, 1), 200)
    assert (pending.oldest_ms, pending.estimates()[0].weights.n) == (10, 0)
    pending.settle(1, example(1, 1), 200)
    assert (pending.oldest_ms, pending.estimates()[0].weights.n) == (30, 2)


@pytest.mark.parametrize(
    ("decision", "weights"),
    [
        (prediction(1, 1, 0.5), (2.0, 0.5, None)),
        (prediction(1, 0, 0.5), (0.0, 0.5, None)),
        (prediction(1, 0, 0.25, Target(0, 0.9)), (0.0, 1.0, 4.0)),
        (prediction(1, 0, 0.25, Target(2, 0.9)), (0.0, 1.0, 0.0)),
        (prediction(1, 0, float("nan"), Target(0, 0.9)), (None, None, None)),
    ],
)
def test_weights_are_a_policys_probability_of_the_action_by_that_which_it_was_played_with(
    decision: Prediction, weights: tuple[float | None, ...]
) -> None:
    assert tuple(None if weight != weight else weight for weight in weights_of(decision)) == weights
    assert len(weights) == len(POLICIES)


def test_what_waits_is_bounded_by_a_sample_of_ids_and_all_are_looked_at_again_when_few_wait() -> None:
    pending = PendingDecisions()
    for number in range(8 * PENDING_MAX):
        pending.decide(number, prediction(number, 1), 100)
    assert pending.level == 3
    assert len(pending.state()["decided"]) <= PENDING_MAX
    for number in range(8 * PENDING_MAX):
        pending.settle(number, example(number, 1), 200)
    assert pending.oldest_ms is None
    assert pending.level == 0
    assert pending.estimates()[0].weights.n == PENDING_MAX  # one in eight, of eight times as many


def test_a_bit_whose_decision_never_comes_is_forgotten() -> None:
    pending = PendingDecisions()
    pending.settle(7, example(7, 1), 100)
    pending.decide(8, prediction(8, 1), 100 + EARLY_MS)
    assert pending.state()["bits"] == []
