"""Programs' metrics and readiness with `--metrics-port`."""

import socket
from collections.abc import Sequence
from itertools import chain
from urllib.request import urlopen

import numpy as np
import orjson
import pytest

from consumers.learner.metrics import LearnerCounts, learner_unready, result_samples
from consumers.learner.status import status_lines
from consumers.live_estimates import LiveEstimating
from consumers.tally import Tally
from producers.feedback.loop import feedback_samples
from producers.replay.loop import replay_samples
from stream.errors import ExitCode
from stream.estimating.arms import Arms
from stream.estimating.live_results import LiveResults
from stream.programs.process import monotonic_ms
from stream.programs.watching import watched
from stream.recovery.commit import Commit
from stream.settings.sources import load_settings
from stream.telemetry import metrics
from stream.telemetry.metrics import METRICS, HistogramCounts, Sample
from stream.wire.named_features import Kind, build, to_plain
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, plan, run_until_idle, small_synsep, small_task
from tests.reporting.test_page import CHALLENGED

NAMED = to_plain(build({"country": (Kind.CATEGORICAL, ["de", "fr", "it", "es"])}, None))


def by_metric(samples: list[Sample]) -> dict[str, dict[tuple[str, ...], float | HistogramCounts]]:
    found: dict[str, dict[tuple[str, ...], float | HistogramCounts]] = {}
    for sample in samples:
        found.setdefault(sample.metric.name, {})[sample.labels] = sample.value
    return found


def test_learner_exports_decided_and_pending_counts() -> None:
    pipeline, counts = Pipeline(small_task()), LearnerCounts()
    learner = pipeline.learner()
    learner._committed = lambda commits: counts.add(commits, learner.broker_ms)
    assert learner_unready(learner) == "no partition assigned"
    pipeline.context("waits")
    pipeline.clock.advance_to(pipeline.now_ms() + 4_000)
    for number, reward in enumerate((1, 0, 0, 1)):
        pipeline.context(f"event-{number}")
        pipeline.answer(f"event-{number}", reward)
    run_until_idle(learner)
    pipeline.context("not read yet")
    assert learner_unready(learner) == ""
    reported = by_metric(list(counts.samples(learner)))
    assert reported[metrics.DECISIONS.name] == {("0",): 5}
    assert reported[metrics.SETTLED.name]["0", "matched"] == 4
    assert reported[metrics.PENDING.name] == {("0",): 1}
    assert reported[metrics.REWARD_RATIO.name] == {(): 0.5}
    assert reported[metrics.LEDGER_BALANCED.name] == {("0",): 1.0}
    assert reported[metrics.INPUT_LAG.name] == {(TOPICS.contexts, "0"): 1, (TOPICS.feedback, "0"): 0}
    latencies = reported[metrics.DECISION_LATENCY.name][()]
    assert isinstance(latencies, HistogramCounts)
    assert sum(latencies.buckets) == 5
    assert latencies.total == pytest.approx(4.0, abs=0.1)  # the latency of the context that was sent 4 s earlier
    learner.close()


def test_learner_exports_its_comparison_with_the_holdout() -> None:
    task = small_task(holdout=0.5)
    pipeline, estimating = Pipeline(task), LiveEstimating(task, is_estimated=False)
    learner = pipeline.learner()
    learner._committed = estimating.add
    assert metrics.HOLDOUT_DIFFERENCE not in [one.metric for one in result_samples(estimating.now())]
    for number in range(20):
        pipeline.context(f"event-{number}")
        pipeline.answer(f"event-{number}", number % 2)
    run_until_idle(learner)
    found = estimating.now().holdout
    assert found is not None
    reported = by_metric(list(result_samples(estimating.now())))
    assert reported[metrics.ARM_DECISIONS.name] == {("learner",): found.learner.n, ("holdout",): found.holdout.n}
    assert found.learner.n + found.holdout.n == 20
    assert sum(map(float, reported[metrics.ARM_REWARDS.name].values())) == 10  # type: ignore[arg-type]
    ends = (metrics.HOLDOUT_DIFFERENCE_LOWER, metrics.HOLDOUT_DIFFERENCE, metrics.HOLDOUT_DIFFERENCE_UPPER)
    low, difference, high = (reported[metric.name][()] for metric in ends)
    assert (low, high) == (found.difference.low, found.difference.high)
    assert low < difference == found.mean_difference < high  # type: ignore[operator]
    assert reported[metrics.HOLDOUT_MISMATCH.name] == {(): 0.0}
    learner.close()


def test_learner_exports_the_number_of_open_classes() -> None:
    pipeline, counts = Pipeline(small_task(open_classes=True)), LearnerCounts()
    learner = pipeline.learner()
    for number, eligible in enumerate((["hats"], ["hats", "shoes"], ["a", "b", "c", "d", "e", "f"], ["shoes"])):
        value = {"id": f"event-{number}", "x": {"i": [0]}, "eligible": eligible}
        pipeline.send(TOPICS.contexts, orjson.dumps(value))
    run_until_idle(learner)
    reported = by_metric(list(counts.samples(learner)))
    assert reported[metrics.OPEN_CLASSES.name] == {("0",): 2}
    assert reported[metrics.OPEN_CLASSES_RATIO.name] == {("0",): 2 / 3}
    learner.close()


def test_unknown_values_of_named_features_are_counted_by_feature() -> None:
    pipeline, counts, tally = Pipeline(small_task(features=NAMED)), LearnerCounts(), Tally()
    learner = pipeline.learner()

    def committed(commits: Sequence[Commit]) -> None:
        counts.add(commits, learner.broker_ms)
        tally.add(commits)

    learner._committed = committed
    for number, country in enumerate(("de", "atlantis", "fr", "utopia", "utopia")):
        pipeline.send(TOPICS.contexts, orjson.dumps({"id": f"event-{number // 2}", "x": {"country": country}}))
    run_until_idle(learner)

    assert by_metric(list(counts.samples(learner)))[metrics.UNKNOWN_VALUES.name] == {("country",): 1}
    assert status_lines(learner, tally)[1].endswith("since this program started: country 1")
    ledger = learner.tasks[0].join.ledger()
    assert (ledger.decided, ledger.context_duplicates, ledger.context_malformed) == (3, 2, 0)
    learner.close()


def test_each_program_exports_all_of_its_metrics_and_no_others() -> None:
    pipeline, counts = Pipeline(small_task(features=NAMED, open_classes=True)), LearnerCounts()
    learner = pipeline.learner()
    learner._committed = lambda commits: counts.add(commits, learner.broker_ms)
    pipeline.send(TOPICS.contexts, b'{"id": "event", "x": {}, "eligible": ["hats"]}')
    pipeline.send(TOPICS.contexts, b'{"id": "strange", "x": {"country": "atlantis"}}')
    pipeline.answer("event", 1)
    run_until_idle(learner)
    arms = Arms(0.5)
    arms.count(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    data = small_synsep()
    reported = {
        metrics.LEARNER: chain(counts.samples(learner), result_samples(LiveResults(None, arms.now(), CHALLENGED))),
        metrics.FEEDBACK: feedback_samples(pipeline.feedback(data, plan()), sent=0),
        metrics.REPLAY: replay_samples(pipeline.replay(data, 10), events=10),
    }
    everywhere = {metrics.BUILD_INFO, metrics.READY, metrics.LOOP_AGE}
    for program, samples in reported.items():
        expected = {metric.name for metric in METRICS if program in metric.programs and metric not in everywhere}
        assert {sample.metric.name for sample in samples} == expected, program


def test_metrics_port_serves_samples_and_readiness_while_running() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with watched(load_settings({"metrics_port": port}), "learner") as program:
        program.show("", lambda: [metrics.FEEDBACK_SENT.at(12)])
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"\nonebit_feedback_sent_total 12.0\n" in answer.read()
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_without_a_metrics_port_no_samples_are_collected() -> None:
    def samples() -> list[Sample]:
        raise AssertionError

    with watched(load_settings({}), "learner") as program:
        program.show("", samples)


def test_metrics_port_in_use_ends_the_program_with_one_line(onebit: Onebit) -> None:
    began_ms = monotonic_ms()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = onebit("replay", "--metrics-port", str(port))
    assert ended.code == ExitCode.USAGE
    reported = " ".join(ended.err.split())
    assert f"error: --metrics-port {port}: cannot listen on 127.0.0.1: Address already in use" in reported
    assert monotonic_ms() - began_ms < 20_000  # the command fails without waiting for Kafka
