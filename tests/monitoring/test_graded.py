"""The monitor's page with graded rewards shows mean rewards in their own units."""

import json

import numpy as np
import pytest

from consumers.monitor.dashboard import Dashboard
from consumers.monitor.policies import Policies
from stream.wire.codec import encode_example
from stream.wire.records import HOLDOUT, Example, Outcome
from stream.wire.rewards import RewardRange
from tests.monitoring.test_state import example, prediction
from tests.pipeline import TOPICS

STARS = RewardRange(1.0, 5.0)
DECISIONS = 300


def test_page_shows_mean_rewards_in_their_own_units() -> None:
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    dashboard.judge(Policies(holdout=0.3, graded=STARS), lambda wanted: {})
    rng = np.random.default_rng(1)
    rewards, of_holdout = rng.uniform(1.0, 5.0, DECISIONS).round(2), rng.random(DECISIONS) < 0.3
    for number in range(DECISIONS):
        arm = HOLDOUT if of_holdout[number] else None
        decided = prediction(number, action=number % 3, append_ms=1_000_000 + number, arm=arm)
        settled = example(number, reward=1)
        graded = Example(json.loads(settled.value or b"")["id"], Outcome.MATCHED, number % 3, 0.5,
                         float(rewards[number]), 5, 1_000_000 + number, number)  # fmt: skip
        dashboard.take([decided, settled._replace(value=encode_example(graded), append_ms=1_000_000 + number)])
    shown = json.loads(dashboard.as_json())
    value, low, high, n = shown["error"]
    assert (shown["reward_range"], n) == ([1.0, 5.0], DECISIONS)
    assert low < value < high
    assert value == pytest.approx(rewards.mean(), abs=1e-3)
    assert high - low < 1.0
    uniform = next(one for one in shown["estimates"] if one["policy"] == "uniform")
    assert uniform["played"] == pytest.approx(rewards.mean())
    (row,) = shown["holdout"]["rows"]
    assert float(row[2].rpartition("= ")[2]) == pytest.approx(rewards[~of_holdout].mean(), abs=1e-3)
