"""`onebit run --jobs`: several learners at once, each in its own process."""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable

import orjson
import pytest

from onebit.runs.embedded import RunInterruptedError
from onebit.runs.run import run_pipelines
from onebit.runs.workers import WorkerLostError, _portable
from stream.errors import ExitCode
from stream.programs.process import Progress
from stream.settings.definitions import SettingsError
from stream.settings.sources import load_settings
from stream.task.settings import PolicyError, Unsuitable
from tests.cli.conftest import Onebit

pytestmark = pytest.mark.usefixtures("default_ctrl_c")

TIMES = ("wall_s", "events_per_s")
SHORT = ("run", "--learner", "banditron,perceptron,late-ucb", "--events", "300", "--json", "--no-report")


@pytest.mark.slow
def test_reports_of_parallel_runs_equal_those_of_sequential_runs(onebit: Onebit) -> None:
    one_by_one, at_once = (
        orjson.loads(onebit(*SHORT, "--seed", "3", "--jobs", jobs).out)["runs"] for jobs in ("1", "2")
    )
    assert [report["learner"] for report in at_once] == ["banditron", "perceptron", "late-ucb"]
    for report in (*one_by_one, *at_once):
        assert all(report.pop(name) > 0.0 for name in TIMES)
    assert at_once == one_by_one
    assert multiprocessing.active_children() == []


def run_until(happens: Callable[[], None]) -> None:
    """Start two endless runs, and call a function when the second one reports its progress."""
    seen = set[str]()

    def show(progress: Progress) -> None:
        if progress.decided > 0 and progress.name not in seen:
            seen.add(progress.name)
            if len(seen) == 2:
                happens()

    endless = load_settings({"learner": ["banditron", "perceptron"], "events": 1_000_000})
    run_pipelines(endless, jobs=2, show=show)


@pytest.mark.slow
def test_ctrl_c_reports_the_progress_of_each_learner() -> None:
    def ctrl_c() -> None:
        for process in multiprocessing.active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterruptedError) as raised:
        run_until(ctrl_c)
    assert (raised.value.exit_code, raised.value.hint) == (ExitCode.INTERRUPTED, "no page was written")
    reached = r"interrupted after [\d,]+ of 1,000,000 events, error [\d.]+%, [\d,]+ pending"
    assert re.fullmatch(f"banditron: {reached}; perceptron: {reached}", str(raised.value))
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_death_of_a_worker_ends_the_others_and_is_reported() -> None:
    with pytest.raises(WorkerLostError) as raised:
        run_until(lambda: multiprocessing.active_children()[0].kill())
    assert raised.value.exit_code is ExitCode.CRASHED
    assert "exited with code -9" in str(raised.value)
    assert "--jobs 1" in raised.value.hint
    assert multiprocessing.active_children() == []


def test_jobs_on_kafka_are_rejected(onebit: Onebit) -> None:
    ended = onebit(*SHORT, "--kafka", "--jobs", "2")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "--jobs 2 " in ended.err
    assert "--kafka" in ended.err


def test_worker_reports_invalid_settings_like_a_sequential_run(onebit: Onebit) -> None:
    one_by_one, at_once = (onebit(*SHORT, "--delay", "logged", "--jobs", jobs) for jobs in ("1", "2"))
    assert (one_by_one.code, at_once.code) == (ExitCode.USAGE, ExitCode.USAGE)
    reported = [ended.err.splitlines()[-1] for ended in (one_by_one, at_once)]  # earlier lines may report compilation
    assert "has no feedback times" in reported[0]
    assert reported[0] == reported[1]


def test_picklable_error_is_sent_with_its_traceback() -> None:
    error = SettingsError("--delay: no")
    assert _portable(error) is error
    assert str(error) in error.__notes__[0]


def test_unpicklable_error_is_sent_as_text() -> None:
    sent = _portable(PolicyError(Unsuitable.NO_LABEL, "perceptron"))
    assert type(sent) is RuntimeError
    assert str(sent).startswith("PolicyError: perceptron learns from labels")
    assert "PolicyError" in sent.__notes__[0]
