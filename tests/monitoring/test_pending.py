"""The monitor joins decisions with their outcomes. The order in which the two topics are read does not matter."""

from functools import partial
from math import nan
from typing import NamedTuple

import numpy as np
import pytest

from consumers.monitor.pending import EARLY_MS, PENDING_MAX, PendingDecisions, Settled
from consumers.monitor.policies import ALWAYS
from stream.wire.records import Decision, Example, Outcome, Prediction


class Decided(NamedTuple):
    """A decision among four classes. Class 1 has the highest score."""

    number: int
    action: int
    propensity: float = 0.5

    def prediction(self) -> Prediction:
        return Prediction(str(self.number), Decision(self.action, 1, self.propensity, np.zeros(4)), 0)

    def weights(self) -> tuple[float, ...]:
        """The weights under the greedy, uniform, learner's and baseline's policies. The last two are unknown here."""
        return ((self.action == 1) / self.propensity, 0.25 / self.propensity, nan, nan)

    def add_to(self, pending: PendingDecisions, append_ms: int | None = None) -> Settled | None:
        return pending.decide(
            self.number, self.prediction(), self.weights, 10 * self.number if append_ms is None else append_ms
        )


def example(number: int, reward: int | None) -> Example:
    outcome = Outcome.EXPIRED if reward is None else Outcome.MATCHED
    return Example(str(number), outcome, 1, 0.5, reward, None, 0, None)


DECISIONS = [Decided(1, 1), Decided(2, 0, 0.25), Decided(3, 1), Decided(4, 1)]
EXAMPLES = [example(2, 1), example(1, 1), example(4, 0), example(3, None)]


@pytest.mark.parametrize("order", ["ddddeeee", "eeeedddd", "dedede", "eddeed", "eedd"])
def test_estimates_do_not_depend_on_read_order_or_restarts(order: str) -> None:
    pending, found = PendingDecisions(), list[Settled]()
    decisions, examples = iter(DECISIONS), iter(EXAMPLES)
    for topic in (*order, *"ddddeeee"):
        one = next(decisions, None) if topic == "d" else next(examples, None)
        if isinstance(one, Decided):
            settled = one.add_to(pending)
        elif one is not None:
            settled = pending.settle(int(one.id), one, 200)
        else:
            continue
        found += [] if settled is None else [settled]
        kept, pending = pending.state(), PendingDecisions()
        pending.load(kept)
    assert sorted(found) == [Settled(200, 0.0, 1), Settled(200, 2.0, 0), Settled(200, 2.0, 1)]
    greedy, uniform, learner, baseline = pending.estimates()
    assert (greedy.weights.n, greedy.weights.sum, greedy.weighted_rewards.sum) == (3, 4.0, 2.0)
    assert (uniform.weights.sum, uniform.weighted_rewards.sum) == (2.0, 1.5)
    assert learner.weights.n == baseline.weights.n == 0
    assert [one.value for one in greedy.estimates()] == [2 / 3, 0.5]
    assert pending.oldest_ms is None


def test_decision_counts_after_all_earlier_decisions_are_settled() -> None:
    pending = PendingDecisions()
    for one in DECISIONS:
        one.add_to(pending)
    pending.settle(2, example(2, 1), 200)
    assert (pending.oldest_ms, pending.estimates()[0].weights.n) == (10, 0)
    pending.settle(1, example(1, 1), 200)
    assert (pending.oldest_ms, pending.estimates()[0].weights.n) == (30, 2)


def test_pending_decisions_are_sampled_above_the_limit() -> None:
    pending = PendingDecisions()
    for number in range(8 * PENDING_MAX):
        Decided(number, 1).add_to(pending)
    assert pending.level == 3
    assert len(pending.state()["decided"]) <= PENDING_MAX
    for number in range(8 * PENDING_MAX):
        pending.settle(number, example(number, 1), 200)
    assert pending.oldest_ms is None
    assert pending.level == 0
    assert pending.estimates()[0].weights.n == PENDING_MAX  # one eighth of the decisions


def test_outcome_without_a_decision_is_forgotten_after_a_time_limit() -> None:
    pending = PendingDecisions()
    pending.settle(7, example(7, 1), 100)
    Decided(8, 1).add_to(pending, 100 + EARLY_MS)
    assert pending.state()["bits"] == []


def weighed(one: Decided, *named: float) -> tuple[float, ...]:
    """The decision's weights under the standard policies, followed by the weights in `named`."""
    return (*one.weights(), *named)


def settle_all(pending: PendingDecisions) -> None:
    for one in EXAMPLES:
        pending.settle(int(one.id), one, 200)


def test_restart_adds_new_policies_and_discards_removed_policies() -> None:
    before = PendingDecisions((*ALWAYS, "constant:1", "constant:2"))
    for one in DECISIONS[:2]:
        before.decide(one.number, one.prediction(), partial(weighed, one, 2.0, 3.0), 100)
    kept, after = before.state(), PendingDecisions((*ALWAYS, "constant:2", "constant:0"))
    after.load(kept)
    for one in DECISIONS[2:]:
        after.decide(one.number, one.prediction(), partial(weighed, one, 4.0, 5.0), 100)
    settle_all(after)
    greedy, _, _, _, named_always, named_later = after.estimates()
    assert greedy.weights.n == 3
    assert (named_always.weights.n, named_always.weights.sum) == (3, 3.0 + 3.0 + 4.0)
    assert (named_later.weights.n, named_later.weights.sum) == (1, 5.0)
