"""With `--estimate`, `onebit run` and `onebit learn` print the estimated reward of the learner's own policy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from consumers.live_estimates import results_from_topics
from stream.errors import ExitCode
from stream.reporting.live_results import result_lines
from tests.cli.conftest import CommandResult, Onebit
from tests.pipeline import TOPICS, Pipeline, feedback_value, small_task

FILES = Path(__file__).parents[2] / "producers/datasets/files"
OFFERS = ("--data", "offers.csv.gz", "--map", "offers.toml", "--limit", "300", "--delay", "exponential:5s", "--reward")
RUN = ("run", *OFFERS, "any", "--learner", "late-ucb", "--no-report")


@pytest.fixture
def offers(tmp_path: Path) -> None:
    for name in ("offers.csv.gz", "offers.toml"):
        shutil.copy(FILES / name, tmp_path / name)


@pytest.mark.usefixtures("offers")
def test_run_reports_estimated_reward_of_the_learner(onebit: Onebit) -> None:
    ended = onebit(*RUN, "--play", "logged", "--estimate", "--json")
    assert ended.code == ExitCode.OK
    run = orjson.loads(ended.out)
    found = run["estimate"]
    assert (found["n"], found["without_outcome"], found["waiting"]) == (run["matched"], run["expired"], 0)
    assert found["weight_max"] == 10.0, "the log shows each of 10 offers with probability 0.1"
    assert found["logged"] == pytest.approx(1.0 - run["error_rate"])
    assert found["flags"] == ["outcome-missing", "ess-low"]
    ips, snips = found["estimates"]
    assert (ips["estimator"], snips["estimator"]) == ("ips", "snips")
    agreed = found["ess"]  # all weights are equal, so the ESS is the number of agreeing decisions
    assert ips["value"] == pytest.approx(snips["value"] * agreed * 10.0 / found["n"])
    assert 0.0 <= ips["anytime_low"] <= ips["value"] <= ips["anytime_high"] <= 1.0

    reported = onebit(*RUN, "--play", "logged", "--estimate").out
    line = next(line for line in reported.splitlines() if line.startswith("estimate: "))
    for shown in (
        f" {ips['value']:.3f} (anytime {ips['anytime_low']:.3f} to {ips['anytime_high']:.3f})",
        f" {found['n']} settled decisions",
        f"logged {found['logged']:.3f}",
    ):
        assert shown in line
    assert "estimate: outcome-missing: 19 of 300 settled decisions" in reported


@pytest.mark.usefixtures("offers")
def test_run_without_estimate_flag_reports_no_estimate(onebit: Onebit) -> None:
    assert orjson.loads(onebit(*RUN, "--play", "logged", "--json").out)["estimate"] is None


@pytest.mark.parametrize("play", ["own", "match"])
def test_estimate_requires_play_logged(onebit: Onebit, play: str) -> None:
    ended = onebit("run", "--data", "optdigits", "--play", play, "--estimate", "--no-report")
    assert ended.code == ExitCode.USAGE
    reported = " ".join(ended.err.split())
    assert f"--estimate requires --play logged; got --play {play}" in reported


def send_logged(pipeline: Pipeline, first: int, events: int, waits: int | None = None) -> None:
    """Send logged decisions with two classes. Half of the feedback is positive; event `waits` receives none."""
    for number in range(first, first + events):
        event_id = f"event-{number}"
        context = {"id": event_id, "x": {"i": [0]}, "logged": {"action": number % 2, "propensity": 0.5}}
        pipeline.send(TOPICS.contexts, orjson.dumps(context), key=event_id.encode())
        if number != waits:
            pipeline.answer(event_id, (number // 2) % 2)


@pytest.fixture
def learn_log(learn_on: Callable[..., CommandResult]) -> Callable[..., str]:
    """Return a function that runs a learner with `--reward any` in this process and returns its log output."""
    task = ("--learner", "late-ucb", "--n-classes", "3", "--n-features", "4", "--reward", "any")
    return lambda broker, *flags, **given: " ".join(learn_on(broker, *task, *flags, **given).err.split())


def test_running_learner_logs_estimates_since_its_start(learn_log: Callable[..., str]) -> None:
    pipeline = Pipeline(small_task())
    send_logged(pipeline, 0, 120)
    reported = learn_log(pipeline.broker, "--play", "logged", "--estimate")
    results = results_from_topics(pipeline.broker, TOPICS, 1, small_task(), is_estimated=True)
    assert (whole := results.estimate) is not None
    assert (whole.n, whole.waiting, whole.logged) == (120, 0, 0.5)
    (expected,) = (line for line in result_lines(results, since=" since this program started") if "anytime" in line)
    assert expected in reported

    reported = learn_log(pipeline.broker, "--estimate")
    assert "estimate: none yet" in reported
    send_logged(pipeline, 120, 60, waits=150)
    reported = learn_log(pipeline.broker, "--estimate")
    assert "over 30 settled decisions since this program started; logged 0.467" in reported


def test_estimate_and_reward_rate_continue_after_a_broker_outage(learn_log: Callable[..., str]) -> None:
    pipeline = Pipeline(small_task())
    send_logged(pipeline, 0, 60, waits=20)
    reported = learn_log(
        pipeline.broker, "--play", "logged", "--estimate", meanwhile=lambda: pipeline.answer("event-20", 0)
    )
    assert "over 20 settled decisions" in reported
    assert "over 60 settled decisions" in reported
    assert reported.rpartition("reward 1 for ")[2].startswith("50.0% of the decisions matched since this program ")
    assert "handed-over" not in reported


def test_learner_without_estimate_flag_logs_no_estimate(learn_log: Callable[..., str]) -> None:
    pipeline = Pipeline(small_task())
    send_logged(pipeline, 0, 10)
    reported = learn_log(pipeline.broker, "--play", "logged")
    assert "decided 10, matched 10" in reported
    assert "estimate" not in reported


def test_estimate_uses_the_play_setting_of_the_pipeline(learn_log: Callable[..., str]) -> None:
    pipeline = Pipeline(small_task())
    assert "got --play own" in learn_log(pipeline.broker, "--estimate")
    send_logged(pipeline, 0, 10)
    learn_log(pipeline.broker, "--play", "logged")
    assert "estimate: none yet" in learn_log(pipeline.broker, "--estimate"), "the pipeline uses --play logged"


def test_estimate_combines_several_partitions(learn_log: Callable[..., str]) -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    for partition, number in ((0, 1), (1, 1), (1, 2)):
        context = {"id": f"event-{number}", "x": {"i": [0]}, "logged": {"action": 0, "propensity": 0.5}}
        pipeline.send(TOPICS.contexts, orjson.dumps(context), partition)
        pipeline.send(TOPICS.feedback, feedback_value(f"event-{number}", partition), partition)
    reported = learn_log(pipeline.broker, "--play", "logged", "--estimate")
    found = results_from_topics(pipeline.broker, TOPICS, 2, small_task(), is_estimated=True).estimate
    assert found is not None
    assert (found.n, found.logged) == (3, 2 / 3)
    assert "over 3 settled decisions since this program started; logged 0.667" in reported
