"""Whole pipelines in which several feedback records determine the reward of a decision."""

from typing import Any

import orjson
import pytest

import onebit
from tests.cli.conftest import Onebit

RATED: dict[str, Any] = {"rewards": "graded", "reward_range": "0,50"}
SETTINGS: dict[str, Any] = {"n_classes": 3, "n_features": 2, "learner": "late-ucb", "window": "1m"}


@pytest.mark.parametrize("rule", ["max", "sum"])
def test_run_matches_all_feedback_at_once_and_balances(rule: str, onebit: Onebit) -> None:
    flags = ("--data", "ratings", "--rewards", "graded", "--reward-range", "1,5", "--learner", "late-ucb")
    counted = []
    for feedback in ("first", rule):
        ran = onebit("run", *flags, "--events", "200", "--feedback", feedback, "--no-report", "--json")
        report = orjson.loads(ran.out)
        assert report["ledger_ok"]
        counted.append((report["matched"], report["mean_reward"], report["state_sha256"]))
    assert counted[0] == counted[1]  # the data has one reward per decision


def test_recovered_learner_continues_with_the_rewards_so_far() -> None:
    with onebit.embedded(**SETTINGS, **RATED, feedback="sum") as pipeline:
        pipeline.feedback("early", 2.5, part="click")
        pipeline.feedback("early", 1.5, part="view")
        pipeline.decide("visit", [1.0, 0.5])
        pipeline.feedback("visit", 60, part="order-1")
        pipeline.feedback("visit", -20.5, part="refund-1")
        pipeline.restart()
        assert (pipeline.ledger.answered, pipeline.ledger.orphans_waiting) == (1, 2)
        pipeline.feedback("visit", 60, part="order-1")
        pipeline.decide("early", [0.5, 1.0])
        pipeline.feedback("early", 0.25, part="order-2", final=True)
        pipeline.restart()
        pipeline.advance("2m")
        assert (pipeline.example("visit")["reward"], pipeline.example("early")["reward"]) == (39.5, 4.25)
        assert (pipeline.ledger.combined, pipeline.ledger.feedback_duplicates) == (3, 1)


def test_first_click_settles_the_maximum_of_bits_at_once() -> None:
    with onebit.embedded(**SETTINGS, feedback="max") as pipeline:
        for name in ("clicked", "seen"):
            pipeline.decide(name, [1.0, 0.5])
            pipeline.feedback(name, 0)
        pipeline.feedback("clicked", 1, after="5s")
        pipeline.advance("10s")
        assert pipeline.example("clicked")["reward"] == 1
        assert pipeline.ledger.answered == 1
        pipeline.advance("2m")
        assert pipeline.example("seen")["reward"] == 0


def test_feedback_without_a_part_is_refused_at_the_call() -> None:
    with onebit.embedded(**SETTINGS, **RATED, feedback="sum") as pipeline:
        pipeline.decide("visit", [1.0, 0.5])
        with pytest.raises(onebit.OnebitError):
            pipeline.feedback("visit", 3)
