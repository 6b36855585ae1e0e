"""Replays of decision logs in an embedded pipeline, and settings that a log does not support."""

import io
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onebit.cli.app import main
from onebit.runs.embedded import prepare_embedded, run_embedded
from onebit.runs.plan import check_run, resolve_run
from onebit.runs.programs import FEEDBACK, LEARNER, ProgramEndedError, RunPrograms, warnings_in
from onebit.runs.report import NoDecisionsError
from producers import data
from producers.data import check_play, dataset_of
from producers.datasets.base import Dataset, DatasetError
from producers.datasets.log import LoggedOutcome
from producers.feedback.plan import feedback_plan, feedback_speed
from producers.replay.options import events_of, replay_options
from stream.errors import ExitCode
from stream.measures.errors import ErrorCurve
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import comparison
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import given_settings, load_settings
from stream.task.settings import PolicyError, Unsuitable
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.wire.ledger import Ledger
from tests.cli.conftest import Onebit
from tests.producers.memory_log import clicks, log_of

ROWS = 400


def settings_with(**given: Any) -> Settings:
    return load_settings({"learner": ["late-ucb"], "window": "10m", **given})


def run(dataset: Dataset, **given: Any) -> LearnerRun:
    settings = settings_with(**given)
    return run_embedded(resolve_run(settings, settings.learner[0], dataset, "onebit run"))


def test_logged_actions_are_replayed_in_log_time() -> None:
    report = run(clicks(ROWS), play="logged", reward="any", speed="60x", delay="logged")
    assert report.ok
    assert report.ledger == Ledger(contexts=400, decided=400, matched=360, expired=40, feedback=360)
    assert report.delays is not None
    assert (report.delays.median_ms, report.delays.max_ms) == (8, 8), "500 ms, replayed at 60 times the speed"
    assert report.errors.events == 360, "the error rate excludes events without an outcome"
    assert report.errors.error_rate == pytest.approx(2 / 3, abs=0.08), "the log's policy is uniform"
    assert report.virtual_s == pytest.approx(399 / 60 + 600, abs=1.0)


def with_propensities(rows: int, propensities: Sequence[float]) -> Dataset:
    """Return a log with one action and these propensities in turn."""
    turns = [propensities[row % len(propensities)] for row in range(rows)]
    return log_of([LoggedOutcome(None, None, 0, propensity, 1, None) for propensity in turns])


def test_run_whose_contexts_are_all_malformed_is_an_error_with_the_reason() -> None:
    log = with_propensities(40, [0.6, 0.3, 0.1])
    with pytest.raises(NoDecisionsError, match=r"all 40 contexts are malformed: .*0\.3333.*--propensity-min") as caught:
        run(log, play="match", delay="none")
    assert caught.value.exit_code is ExitCode.USAGE
    report = run(log, play="match", delay="none", propensity_min=0.1)
    assert (report.ledger.decided, report.malformed, report.warnings) == (40, 0, ())


def test_some_malformed_contexts_are_a_warning_and_a_count() -> None:
    report = run(with_propensities(40, [1 / 3, 0.5]), play="match", delay="none")
    assert (report.ledger.decided, report.malformed, report.ok) == (20, 20, True)
    assert "20 of 40 contexts are malformed" in report.warnings[0]
    assert any("20 malformed" in note for note in comparison([report]).notes)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["late-ucb", "stack-igw", "banditron"])
def test_play_match_evaluates_only_matching_decisions(learner: str) -> None:
    report = run(clicks(ROWS), learner=[learner], play="match", delay="fixed:50ms")
    ledger = report.ledger
    assert report.ok
    assert ledger.decided == ledger.matched + ledger.expired + ledger.unmatched == ROWS
    assert ledger.unmatched == pytest.approx(2 / 3 * ROWS, abs=40)
    assert (ledger.feedback, ledger.feedback_unmatched) == (ledger.matched, 0), "only logged actions have outcomes"
    assert report.errors.events == ledger.matched


@pytest.mark.slow
def test_late_ucb_learns_the_right_classes_from_a_uniform_log() -> None:
    settings = settings_with(play="logged", delay="none", param=["expand=none"])
    pipeline = prepare_embedded(resolve_run(settings, "late-ucb", clicks(ROWS)))
    pipeline.run_to_end()
    (task,) = pipeline.learner.tasks.values()
    weights = task.learner.weights()
    assert weights.argmax(axis=0).tolist() == [0, 1, 2, 0]
    for check in (audit_partition, replay_journal):
        assert check(pipeline.broker, pipeline.run.topics, 0).ok


def among_two() -> Dataset:
    """Return a log of a uniform policy's decisions. Two of the three classes are eligible for each decision."""
    data, rng, outcomes = clicks(ROWS), np.random.default_rng(3), []
    for row in range(ROWS):
        among = np.sort(np.array([row % 3, (row + 1) % 3], np.int32))
        outcome = data.log.outcome(row)._replace(action=int(rng.choice(among)), propensity=0.5, eligible=among)
        outcomes.append(outcome)
    return log_of(outcomes)


def test_replay_limits_the_decisions_to_the_eligible_classes_of_the_log() -> None:
    data = among_two()
    settings = settings_with(play="match", propensity_min=0.5, delay="none")
    pipeline = prepare_embedded(resolve_run(settings, "late-ucb", data))
    pipeline.run_to_end()
    (task,) = pipeline.learner.tasks.values()
    ledger = task.join.ledger()
    assert ledger.decided == ledger.matched + ledger.expired + ledger.unmatched == ROWS
    assert ledger.unmatched == pytest.approx(ROWS / 2, abs=40)
    for check in (audit_partition, replay_journal):
        assert check(pipeline.broker, pipeline.run.topics, 0).ok


def test_learner_without_support_for_eligible_classes_is_rejected_before_the_run() -> None:
    run = resolve_run(settings_with(learner=["newtron"], play="logged"), "newtron", among_two())
    with pytest.raises(PolicyError) as raised:
        check_run(run)
    assert (raised.value.reason, raised.value.learner) == (Unsuitable.NO_ELIGIBLE, "newtron")


def test_log_with_labels_gives_feedback_on_any_action() -> None:
    data = clicks(ROWS)
    labelled = log_of([data.log.outcome(row)._replace(label=(row % 4) % 3) for row in range(ROWS)])
    report = run(labelled, delay="none")
    assert report.ledger == Ledger(contexts=400, decided=400, matched=400, feedback=400)
    assert report.errors.error_rate < 0.1


def test_contexts_without_a_required_propensity_become_dead_letters() -> None:
    data = clicks(30)
    without = log_of([data.log.outcome(row)._replace(propensity=None) for row in range(30)])
    some = [data.log.outcome(row) for row in range(10)]
    partly = log_of([*some, *(without.log.outcome(row) for row in range(10, 30))])
    report = run(partly, learner=["banditron"], play="logged", delay="none")
    assert (report.ledger.contexts, report.ledger.decided, report.ledger.context_malformed) == (30, 10, 20)
    assert report.ok
    with pytest.raises(NoDecisionsError, match=r"logged\.propensity"):
        run(without, learner=["banditron"], play="logged", delay="none")
    assert run(without, play="logged", delay="none", window="1s").ledger.decided == 30


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delay": "logged"}, "--delay logged: visits has no feedback times"),
        ({"speed": "2x", "shuffle": True}, "--speed 2x cannot be combined with --shuffle"),
        ({"loop": True, "events": 5}, "--loop cannot be combined with --events or --epochs"),
    ],
)
def test_settings_unsupported_by_a_log_are_rejected_with_a_remedy(given: dict[str, Any], message: str) -> None:
    settings, data = settings_with(**given), clicks(5, delay_ms=None)
    check = partial(feedback_plan, settings) if "delay" in given else partial(replay_options, settings, partitions=1)
    with pytest.raises(SettingsError) as raised:
        check(data)
    assert str(raised.value).startswith(message)


def test_play_own_requires_a_log_with_labels() -> None:
    with pytest.raises(SettingsError, match=r"^--play own: visits has no true classes.*Use --play logged"):
        check_play("own", clicks(5))
    check_play("logged", clicks(5))
    check_play("own", log_of([clicks(1).log.outcome(0)._replace(label=2)]))
    check_play("own", dataset_of(settings_with()))
    with pytest.raises(SettingsError, match=r"^--play match: "):
        check_play("match", dataset_of(settings_with()))


def test_run_rejects_play_own_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "load", lambda *_: clicks(5))
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert ended.value.code == ExitCode.USAGE
    assert "--play own: visits has no true classes" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "standard input is CSV, which requires a mapping"),
        (["--kafka"], "--data -: "),
    ],
)
def test_run_on_standard_input_names_missing_flags(
    flags: list[str], message: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        buffer = io.BytesIO(b"x,y\n1,2\n")

    monkeypatch.setattr(sys, "stdin", Stdin)
    ended = onebit("run", *flags, "--data", "-")
    assert ended.code == ExitCode.USAGE
    assert message in " ".join(ended.err.split())


def test_logged_delays_require_feedback_times() -> None:
    with pytest.raises(SettingsError, match="cannot be combined with --speed max"):
        feedback_plan(settings_with(delay="logged", speed="max"), clicks(5))
    assert feedback_speed(settings_with(speed="60x")) == 60.0


def test_speed_requires_a_log_with_times() -> None:
    settings = settings_with(speed="2x", limit=None)
    with pytest.raises(SettingsError, match="--speed 2x: optdigits has no decision times"):
        replay_options(settings, dataset_of(settings), 1)


def test_part_of_a_log_is_selected_by_time_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", lambda *_: clicks(100, gap_ms=60_000))
    given = {"from": "2023-11-14T22:30Z", "to": "2023-11-14T23:00:00+00:00", "limit": 25}
    part = dataset_of(settings_with(**given))
    assert (part.rows, part.event_id(0)) == (25, "visit-17"), "the log begins at 22:13:20 and has one event per minute"
    assert events_of(settings_with(loop=True), part) > 10**9


def test_flags_that_select_a_part_require_a_log() -> None:
    with pytest.raises(DatasetError, match="optdigits is not a log of decisions"):
        dataset_of(settings_with(limit=3))


@pytest.mark.parametrize(("name", "value"), [("speed", "60"), ("speed", "0x"), ("from", "tomorrow"), ("limit", 0)])
def test_error_for_an_invalid_speed_time_or_count_names_the_flag(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"^--{name}: .*got {value!r}"):
        load_settings({name: value})


def test_greedy_error_ignores_unknown_outcomes() -> None:
    curve = ErrorCurve()
    for mistake, greedy in ((True, None), (False, True), (False, False), (False, None)):
        curve.add(mistake, greedy)
    assert (curve.error_rate, curve.summary().greedy_error_rate) == (0.25, 0.5)


@pytest.mark.slow
def test_warnings_are_collected_from_program_logs(tmp_path: Path) -> None:
    code = """
from stream.programs.process import announce, warn
from onebit.cli import console

announce("warning: of an event")
warn("it slipped [by 2 s]")
"""
    log = tmp_path / "replay.log"
    with log.open("wb") as output:
        subprocess.run([sys.executable, "-c", code], stderr=output, check=True)
    assert warnings_in(log) == ["it slipped [by 2 s]"]


def test_running_programs_are_stopped_if_another_cannot_start() -> None:
    commands = {LEARNER: ("sleep", "60"), FEEDBACK: ("/nonexistent",)}
    with (
        pytest.raises(ProgramEndedError),
        RunPrograms(given_settings({}), "banditron", commands.__getitem__) as programs,
    ):
        programs.start(*commands)
    assert programs.processes[LEARNER].poll() is not None
