"""Whole pipelines with graded rewards: runs, reports, recovery, audits, logs and the Python API."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import onebit
from onebit.runs.embedded import run_embedded
from onebit.runs.plan import plan_runs
from producers.datasets.ratings import STARS, ratings
from stream.recovery.model_files import read_model
from stream.recovery.state import state_digest
from stream.reporting.page import page
from stream.reporting.runs import LearnerRun, read_runs
from stream.settings.definitions import Settings, SettingsError

EVENTS = 400
RATED = Settings(
    data="ratings", rewards="graded", reward_range="1,5", learner=["late-ucb"], events=EVENTS, delay="fixed:1s",
    param=["m=4"], holdout=0.3,
)  # fmt: skip


@pytest.fixture(scope="module")
def report() -> LearnerRun:
    (run,) = plan_runs(RATED)
    return run_embedded(run)


def test_run_reports_the_mean_reward_in_its_own_units(report: LearnerRun) -> None:
    fields = report.to_dict()
    assert report.ok
    assert (fields["error_rate"], fields["reward_range"]) == (None, [1.0, 5.0])
    assert fields["mean_reward"] == report.mean_reward
    assert STARS.low < report.mean_reward < STARS.high
    data = ratings(0, EVENTS)
    best = np.stack([data.rated.stars(row) for row in range(EVENTS)]).mean(axis=0).max()
    assert fields["constant_mean_reward"] == pytest.approx(best)
    assert math.isnan(report.error)
    assert report.holdout is not None
    assert report.holdout.learner.mean is not None
    assert STARS.low < report.holdout.learner.mean < STARS.high


def test_page_says_mean_reward_and_contains_the_run(report: LearnerRun, tmp_path: Path) -> None:
    text = page([report])
    assert "Mean reward" in text
    assert "Progressive error" not in text
    path = tmp_path / "run.html"
    path.write_text(text, encoding="utf-8")
    (read,) = read_runs(path)
    assert read.to_dict() == report.to_dict()
    assert read.errors.curve == report.errors.curve


def test_service_sends_numbers_and_a_recovered_learner_continues() -> None:
    with onebit.embedded(
        n_classes=3, n_features=2, learner="late-ucb", window="1m", rewards="graded", reward_range="0,50",
        on_expiry="negative",
    ) as pipeline:  # fmt: skip
        for number, reward in enumerate((12.5, 50, 0.0)):
            pipeline.decide(f"visit-{number}", [1.0, 0.5])
            pipeline.feedback(f"visit-{number}", reward, after="10s")
        pipeline.decide("never", [1.0, 0.5])
        pipeline.advance("20s")
        pipeline.restart()
        pipeline.advance("2m")
        assert [pipeline.example(f"visit-{number}")["reward"] for number in range(3)] == [12.5, 50.0, 0.0]
        assert pipeline.example("never")["reward"] == 0.0
        with pytest.raises(onebit.OnebitError):
            pipeline.feedback("visit-0", 50.5)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A uniform log of three classes, with rewards from 0 to 4."""
    rng = np.random.default_rng(1)
    lines = []
    for number in range(300):
        x, action = rng.random(), int(rng.integers(0, 3))
        reward = round(4 * min(1.0, x if action == 1 else 0.3), 2)
        row = {"id": f"e{number}", "x": x, "item": "abc"[action], "p": 1 / 3, "revenue": reward}
        lines.append(json.dumps(row))
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    return path


MAP = "id=id,action=item,reward=revenue,propensity=p,numeric=x"


def test_estimate_reads_numbers_from_a_log(log: Path) -> None:
    found = onebit.estimate(log, policies=["logged", "constant:b"], map=MAP, rewards="graded", reward_range="0,4")
    rewards = [json.loads(line)["revenue"] for line in log.read_text().splitlines()]
    ips = next(one for one in found["logged"].estimates if one.estimator == "ips")
    assert ips.value == pytest.approx(np.mean(rewards))
    with pytest.raises(onebit.OnebitError):
        onebit.estimate(log, policies=["logged"], map=MAP, rewards="graded", reward_range="0,3")


def test_learner_replays_numbers_of_a_log(log: Path) -> None:
    settings = Settings(
        data=str(log), map=MAP, play="logged", rewards="graded", reward_range="0,4", learner=["late-ucb"],
        param=["m=4"], delay="fixed:1s", estimate=True,
    )  # fmt: skip
    (run,) = plan_runs(settings)
    report = run_embedded(run)
    rewards = [json.loads(line)["revenue"] for line in log.read_text().splitlines()]
    assert report.ok
    assert report.mean_reward == pytest.approx(np.mean(rewards))
    assert report.estimate is not None
    assert report.estimate.logged == pytest.approx(np.mean(rewards))


def test_model_file_contains_the_kind_and_the_range_of_the_rewards(log: Path, tmp_path: Path) -> None:
    trained = onebit.train(log, "igw-logistic", map=MAP, rewards="graded", reward_range="0,4")
    model = read_model(trained.save(tmp_path / "model.npz"))
    assert (model.meta["rewards"], model.meta["reward_range"]) == ("graded", "0,4")
    assert state_digest([model.learner().state()]) == state_digest([trained.learner.state()])


def test_training_reads_numbers_from_a_log(log: Path) -> None:
    parameters = {"expand": "none", "drift": "off"}
    found, other = (
        onebit.train(log, "late-ucb", map=MAP, parameters=parameters, rewards="graded", reward_range=f"0,{high}")
        for high in (4, 8)
    )
    assert found.learned == 300
    weights, halved = (np.asarray(one.model.state["W"], np.float64) for one in (found, other))
    np.testing.assert_allclose(halved, weights / 2)


def test_data_with_another_range_are_refused() -> None:
    with pytest.raises(SettingsError):
        plan_runs(RATED.model_copy(update={"reward_range": "0,5"}))
