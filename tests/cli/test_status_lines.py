"""A running program's status lines, warnings and progress, and a finished run's summary."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from consumers.tally import Tally, ledger_line
from onebit.cli.progress import AnnouncedLines, figures
from onebit.runs import embedded
from onebit.runs.plan import plan_runs, resolve_run
from onebit.runs.report import Answers, feedback_warnings
from producers.datasets.synthetic import synsep
from stream.errors import ExitCode
from stream.learners import check_parameters
from stream.programs import costs
from stream.programs.costs import exploration_notice, records_max, slow_warning
from stream.programs.process import Meter, Progress, TimeToGo
from stream.settings.sources import load_settings
from stream.task.settings import TaskSettings
from stream.wire.ledger import Ledger
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def tallied(pipeline: Pipeline, tally: Tally) -> Callable[[], None]:
    """Return a function that runs a learner in this pipeline until the learner is idle."""
    options = LearnerOptions()
    program = LearnerProgram(pipeline.broker, TOPICS, pipeline.settings, options, pipeline.now_ms, committed=tally.add)

    return lambda: run_until_idle(program)


def test_mean_reward_is_computed_from_matched_decisions() -> None:
    pipeline, tally = Pipeline(small_task()), Tally()
    run = tallied(pipeline, tally)
    assert Tally().mean_reward is None
    for number, reward in enumerate((1, 0, 0, 1, 0)):
        pipeline.context(f"event-{number}")
        pipeline.answer(f"event-{number}", reward)
    pipeline.context("nobody answers")
    run()
    assert tally.mean_reward == 0.4
    assert tally.warning() == ""


@pytest.mark.parametrize(("changes", "alarms"), [(True, 1), (False, 0)])
def test_run_with_renamed_classes_reports_a_drift_alarm(
    tmp_path: Path, onebit: Onebit, changes: bool, alarms: int
) -> None:
    data = tmp_path / "changing.svm"
    moved = [1 if changes and row >= 150 else 0 for row in range(300)]
    data.write_text("".join(f"{(row + move) % 3} {1 + row % 3}:1\n" for row, move in enumerate(moved)))
    ran = onebit("run", "--data", str(data), "--learner", "late-ucb", "--delay", "none", "--no-report", "--json")
    assert orjson.loads(ran.out)["drift_alarms"] == alarms


def test_misplaced_records_are_reported_only_when_their_number_grows() -> None:
    tally = Tally()
    assert tally.misplaced_warning({0: Ledger(), 1: Ledger()}) == ""
    reported = tally.misplaced_warning({0: Ledger(contexts_misplaced=2), 1: Ledger(feedback_misplaced=1)})
    assert reported.startswith("3 records whose key belongs to a different partition")
    assert "partitioner=murmur2_random" in reported
    assert tally.misplaced_warning({0: Ledger(contexts_misplaced=2), 1: Ledger(feedback_misplaced=1)}) == ""
    assert tally.misplaced_warning({1: Ledger(feedback_misplaced=2)}).startswith("2 ")


def test_warning_reports_dead_letters_with_the_last_reason() -> None:
    pipeline, tally = Pipeline(small_task()), Tally()
    run = tallied(pipeline, tally)
    for number in range(20):
        pipeline.context(f"event-{number}", 7)  # invalid: features are numbered 0 to 3
    run()
    message = tally.warning()
    assert message.startswith("dead letters: 20, records received: 20; last dead letter, test.contexts/0, ")
    assert "offset 19: " in message
    assert message.endswith("got 7")
    assert tally.warning() == ""  # each warning is reported once
    for number in range(300):
        pipeline.context(f"good-{number}", 1)
    pipeline.context("one bad", 7)
    run()
    assert tally.warning() == ""  # 1 of 301 records is too few for a warning


def test_dropped_orphan_is_reported_without_further_records() -> None:
    pipeline, tally = Pipeline(small_task()), Tally()
    run = tallied(pipeline, tally)
    pipeline.answer("nobody", 1)
    run()
    assert tally.warning() == ""
    pipeline.clock.advance_to(pipeline.now_ms() + pipeline.settings.join.orphan_window_ms + 1_000)
    run()
    assert tally.warning().startswith("dead letters: 1, records received: 0; last dead letter, test.feedback/")


@pytest.mark.parametrize("name", Ledger._fields)
def test_status_contains_every_ledger_count(name: str) -> None:
    line = ledger_line(Ledger(**{name: 1_234}))
    if name not in ("contexts", "feedback"):  # the status omits these two, which are sums of other counts
        assert f"{name.replace('_', ' ')} 1,234" in line
    assert ledger_line(Ledger()) == "decided 0, matched 0, pending 0"


def test_run_is_unfinished_while_feedback_is_unapplied() -> None:
    time_to_go = TimeToGo(events=100, now_s=0.0)
    assert math.isnan(time_to_go.estimate_s(decided=10, pending=0, now_s=0.5))
    assert math.isnan(time_to_go.estimate_s(decided=0, pending=0, now_s=1.0))
    assert time_to_go.estimate_s(decided=100, pending=100, now_s=2.0) == 2.0
    # All events are decided. Each update takes 20 s. The estimate is based on the last 30 s.
    estimates_s = [
        time_to_go.estimate_s(decided=100, pending=pending, now_s=2.0 + 20.0 * (100 - pending))
        for pending in range(99, -1, -1)
    ]
    assert estimates_s[5] == pytest.approx(94 * 20.0)
    assert estimates_s[-1] == 0.0


def shown(times_s: tuple[float, ...], *calls: dict[str, Any]) -> list[str]:
    """Return the progress lines of a ten-event run in which the clock returns these times."""
    seen: list[Progress] = []
    clock = iter(times_s)
    meter = Meter("newtron", 10, seen.append, lambda: next(clock))
    for call in calls:
        meter.show(**call)
    return [figures(progress) for progress in seen]


def test_speed_of_a_resumed_run_excludes_the_events_of_earlier_processes() -> None:
    clock = iter((0.0, 10.0))
    found = Meter("replay", 10_000, now_s=lambda: next(clock), decided=7_000).progress(8_000)
    assert (found.per_s, found.left_s) == (100.0, 20.0)


def test_progress_shows_pending_decisions_and_eta() -> None:
    waits = [{"decided": 10, "figure": "error 90.0%", "pending": pending} for pending in (10, 8)]
    first, second = shown((0.0, 10.0, 70.0), *waits)
    assert first == "10 of 10 events  1 events/s  error 90.0%  pending 10  ETA 10 s"
    assert second.endswith("pending 8  ETA 4 min 0 s")


def test_progress_shows_expected_feedback_after_all_decisions_are_settled() -> None:
    calls = [{"decided": 10, "pending": pending, "to_come": come} for pending, come in ((1, 13), (0, 12), (0, 0))]
    ends = [line.rpartition("  ")[2] for line in shown((0.0, 19.0, 20.0, 21.0), *calls)]
    assert [ends[0], ends[2]] == ["ETA 1 s", "ETA 0 s"]
    assert " settled" in ends[1]
    assert " 12 " in ends[1]


def test_progress_without_a_terminal_is_printed_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    lines = AnnouncedLines()
    lines.show("newtron", 0.5, "half", at_once=False)
    assert capsys.readouterr().err == ""
    lines.show("newtron", 1.0, "all", at_once=True)
    assert capsys.readouterr().err.count("newtron: all") == 1
    often = AnnouncedLines(0)
    for name in ("newtron", "banditron"):
        often.show(name, 0.5, "half", at_once=False)
    assert capsys.readouterr().err.count(": half") == 2


def test_slow_learner_warning_names_faster_learners() -> None:
    newtron = TaskSettings("newtron", 9, 400, check_parameters("newtron", {}))
    reported = slow_warning(newtron, 25, 1_000)
    assert reported.startswith("newtron with 9 classes and 400 features: an update takes about 23.4 s")
    assert "1,000 events about 6 h" in reported
    assert "pnewtron" in reported
    assert records_max(newtron, 25, 2_000) == 1
    for fast in ("pnewtron", "banditron", "soba-diag", "confidit"):
        task = TaskSettings(fast, 9, 400, check_parameters(fast, {}))
        assert (slow_warning(task, 25, 1_000_000), records_max(task, 25, 100)) == ("", 100)


def test_slow_learner_shows_progress_after_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "FLOPS_PER_S", 1.0)
    settings = load_settings({"data": "synsep", "events": 30, "rate": 1e9, "delay": "fixed:1s"})
    pipeline = embedded.prepare_embedded(resolve_run(settings, "banditron", synsep(1)))
    pending: list[int] = []
    pipeline.run_to_end(lambda: pending.append(pipeline.pending))
    assert pending[-1] == 0
    assert {*range(31)} <= set(pending)


@pytest.mark.parametrize(
    ("after_end", "reported"),
    [(math.nan, False), (0.0, False), (0.33, False), (0.34, True), (1.0, True)],
)
def test_feedback_after_the_end_of_the_run_causes_a_warning(after_end: float, reported: bool) -> None:
    assert bool(feedback_warnings(Answers([10_000], 5_600, after_end), 5_620, 1_000.0)) == reported


def test_run_that_ends_before_its_feedback_suggests_a_rate(onebit: Onebit) -> None:
    flags = ("--data", "synsep", "--events", "300", "--learner", "banditron", "--delay", "fixed:10s", "--json")
    ended = onebit("run", *flags, "--rate", "1000")
    found = orjson.loads(ended.out)
    assert ended.code == ExitCode.OK
    assert found["feedback_after_end"] == 1.0
    (message,) = found["warnings"]
    assert "100.0% of the feedback" in message
    assert "--rate 3 (duration 1 min 40 s)" in message
    assert f"warning: {message}" in ended.err
    better = orjson.loads(onebit("run", *flags, "--rate", "3").out)
    assert (better["feedback_after_end"], better["warnings"]) == (pytest.approx(0.1, abs=0.01), [])


def test_default_run_learns_from_late_feedback(onebit: Onebit) -> None:
    ended = onebit("run", "--json", "--report", "page.html")
    found = orjson.loads(ended.out)
    assert (found["data"], found["events"], found["warnings"]) == ("optdigits", 5_620, [])
    assert found["delays"]["median_ms"] > 500
    assert found["error_rate_last_fifth"] < 0.5 * found["constant_error_rate"]
    assert Path("page.html").exists()


def test_learner_without_exploration_suggests_a_floor_at_its_start() -> None:
    reported = [
        exploration_notice(small_task(learner, **changes))
        for learner, changes in (
            ("perceptron", {}),
            ("perceptron", {"floor": 0.1}),
            ("perceptron", {"play": "logged"}),
            ("banditron", {}),
        )
    ]
    assert reported[0].startswith("perceptron does not explore")
    assert "--floor" in reported[0]
    assert reported[1:] == ["", "", ""]


@pytest.mark.parametrize(("floor", "notices"), [(0.0, 1), (0.05, 0)])
def test_run_with_challengers_suggests_a_floor_only_if_none_is_set(
    floor: float, notices: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings({"learner": "confidit", "challenger": ["banditron"], "floor": floor})
    with caplog.at_level(logging.INFO, "onebit"):
        plan_runs(settings)
    assert sum("--floor" in message for message in caplog.messages) == notices
