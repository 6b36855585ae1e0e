"""Commands that are interrupted by Ctrl-C report their progress."""

import multiprocessing
import os
import re
import signal
import sys
import threading

import orjson
import pytest

from onebit import main
from onebit.runs.report import Judge
from onebit.simulation import campaign
from onebit.simulation.campaign import Result, run_seed, run_seeds
from producers.datasets.base import Known
from stream.errors import ExitCode
from stream.programs import process
from stream.task.settings import Sharing
from stream.wire.typed_fields import PredictionFields
from tests.cli.conftest import Onebit

pytestmark = pytest.mark.usefixtures("default_ctrl_c")

INTERRUPTED_AFTER = 50


def test_interrupted_embedded_run_reports_its_progress(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = Judge.observe

    def interrupted(judge: Judge, prediction: PredictionFields, known: Known, decided_ms: int) -> None:
        observe(judge, prediction, known, decided_ms)
        if len(judge.curve) == INTERRUPTED_AFTER:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Judge, "observe", interrupted)
    ended = onebit("run", "--events", "200", "--learner", "banditron,perceptron")
    assert (ended.code, ended.out) == (ExitCode.INTERRUPTED, "")
    assert re.fullmatch(
        r"error: banditron: interrupted after 50 of 200 events, error \d+\.\d%, \d+ pending; no page was "
        r"written",
        ended.err.splitlines()[-1],
    )


@pytest.mark.parametrize("fails", [False, True])
def test_interrupted_simulation_reports_the_seeds_that_ran(
    onebit: Onebit, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    def run(seed: int, events: int, model: Sharing) -> Result:
        if seed == 3:
            signal.raise_signal(signal.SIGINT)
        found = run_seed(seed, 5, model)
        return found._replace(wrong=("a fault",)) if fails and seed == 1 else found

    monkeypatch.setattr(campaign, "run_seed", run)
    ended = onebit("simulate", "--seeds", "9", "--jobs", "1")
    assert ended.code == ExitCode.INTERRUPTED
    assert "3 seeds from 0" in ended.out
    assert "interrupted, 6 of 9 seeds not run" in ended.out
    assert ("✗ 1 of 3 seeds failed" if fails else "✓ all of these passed") in ended.out
    assert ("to replay: onebit simulate --seed 1 --trace\n" in ended.out) == fails
    ended = onebit("simulate", "--seeds", "9", "--jobs", "1", "--json")
    found = orjson.loads(ended.out)
    assert (ended.code, found["interrupted"], found["ok"], found["seeds"]) == (ExitCode.INTERRUPTED, True, False, 3)


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


def test_only_slow_work_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    announced = threading.Event()
    monkeypatch.setattr(process, "SLOW_S", 60.0)
    with process.announced_when_slow("compiling"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(process, "SLOW_S", 0.0)
    monkeypatch.setattr(process, "announce", lambda message: announced.set())
    with process.announced_when_slow("compiling"):
        assert announced.wait(10.0)
