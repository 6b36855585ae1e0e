"""Commands that are interrupted by Ctrl-C report their progress."""

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import Counter

import orjson
import pytest

from onebit import main
from onebit.cli.simulated import Runs, show_campaign
from onebit.runs.embedded import RunInterruptedError
from onebit.runs.run import run_pipelines
from onebit.simulation.campaign import Campaign, Result, run_seeds
from stream.errors import ExitCode
from stream.programs import process
from stream.programs.process import Progress
from stream.settings.sources import load_settings

pytestmark = pytest.mark.usefixtures("default_ctrl_c")


def test_interrupted_embedded_run_reports_its_progress() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.decided:
            signal.raise_signal(signal.SIGINT)

    endless = load_settings({"events": 1_000_000, "learner": ["banditron", "perceptron"]})
    with pytest.raises(RunInterruptedError) as raised:
        run_pipelines(endless, jobs=1, show=interrupt)
    assert raised.value.exit_code is ExitCode.INTERRUPTED
    assert re.fullmatch(
        r"banditron: interrupted after [\d,]+ of 1,000,000 events, error \d+\.\d%, [\d,]+ pending", str(raised.value)
    )


def test_interrupted_campaign_keeps_the_seeds_that_ran() -> None:
    campaign = Campaign()

    def show() -> None:
        if campaign.seeds == 3:
            signal.raise_signal(signal.SIGINT)

    campaign.run(range(9), events=5, jobs=1, show=show)
    assert (campaign.seeds, campaign.is_interrupted) == (3, True)


@pytest.mark.parametrize("fails", [False, True])
def test_interrupted_simulation_reports_the_seeds_that_ran(capsys: pytest.CaptureFixture[str], *, fails: bool) -> None:
    failures = [Result(1, ("a fault",), Counter(), timeless=False)] if fails else []
    campaign = Campaign(seeds=3, failures=failures, is_interrupted=True)
    runs, seeds = Runs(5, "own"), range(9)
    assert show_campaign(campaign, runs, seeds, 1.0, shrinks=True, json=False) is ExitCode.INTERRUPTED
    shown = capsys.readouterr().out
    assert "3 seeds from 0" in shown
    assert "interrupted, 6 of 9 seeds not run" in shown
    assert ("✗ 1 of 3 seeds failed" if fails else "✓ all of these passed") in shown
    assert ("to replay: onebit simulate --seed 1 --trace --events 5\n" in shown) == fails
    show_campaign(campaign, runs, seeds, 1.0, shrinks=True, json=True)
    found = orjson.loads(capsys.readouterr().out)
    assert (found["interrupted"], found["ok"], found["seeds"]) == (True, False, 3)


@pytest.mark.slow
def test_simulation_workers_ignore_ctrl_c() -> None:
    results = run_seeds(range(12), events=1, jobs=2)
    seeds = {next(results).seed}
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
    seeds |= {result.seed for result in results}
    assert seeds == set(range(12))


def test_ctrl_c_during_import_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "onebit.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "onebit.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, *capsys.readouterr()) == (ExitCode.INTERRUPTED, "", "")


def test_only_slow_work_is_announced() -> None:
    announced = threading.Event()

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            announced.set()

    notices = Notices()
    process.logger.addHandler(notices)
    try:
        with process.announced_when_slow("compiling", slow_s=60.0):
            pass
        assert not announced.is_set()
        with process.announced_when_slow("compiling", slow_s=0.0):
            assert announced.wait(10.0)
    finally:
        process.logger.removeHandler(notices)
