"""Programs' log lines, status lines and exit codes."""

import json
import logging
import os
import pstats
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onebit.cli.console import INTERVAL_MS, LINES_MAX, LogLines, end_log
from stream.errors import ExitCode
from stream.programs.process import Status, announce, warn
from tests.cli.conftest import Onebit


def test_status_is_printed_only_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status()
    for lines in ([], ["a: 1", "b: 1"], ["a: 1", "b: 1"], ["a: 1", "b: 2"], ["a: 1", "b: 2"], ["a: 1"]):
        status.show(lines)
    messages = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert messages == ["a: 1", "b: 1", "a: 1", "b: 2", "a: 1"]


ENDING = """
import os, sys
from onebit.cli.console import StopRequest
from stream.errors import ExitCode

class Late:
    def __init__(self, number):
        self.number = number

    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, self.number)

StopRequest()
late = Late(int(sys.argv[1]))  # deleted after the interpreter has removed its signal handlers
raise SystemExit(ExitCode.FENCED)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_interpreter_exit_keeps_the_exit_code(number: signal.Signals) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, str(int(number))], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (ExitCode.FENCED, b"")


@pytest.mark.slow
def test_closed_stdout_has_its_own_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "onebit", "learners"], stdout=closed, stderr=subprocess.PIPE, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (ExitCode.OUTPUT_CLOSED, b"")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "expected"), [("", "stopping"), ("all is sent", "stopping: all is sent")])
def test_stop_request_announces_remaining_work(first: str, expected: str) -> None:
    code = f"import os; from onebit.cli.console import *; s = StopRequest({first!r}); os.kill(os.getpid(), 15); s()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert ended.stderr.decode().strip().split(" ", 1)[1] == expected


def test_repeated_log_lines_are_suppressed_and_counted() -> None:
    lines = LogLines()
    messages = [lines.admitted(logging.INFO, f"{n} of 1,000 wait", n) for n in range(LINES_MAX + 3)]
    assert messages == [f"{n} of 1,000 wait" for n in range(LINES_MAX)] + [None] * 3
    assert lines.admitted(logging.WARNING, "7 of 1,000 wait", 99) == "7 of 1,000 wait"
    assert lines.admitted(logging.INFO, "another", 99) == "another"
    line = lines.admitted(logging.INFO, "5 of 1,000 wait", INTERVAL_MS)
    assert line is not None
    assert line.startswith("5 of 1,000 wait (and 3 ")
    assert lines.admitted(logging.INFO, "6 of 1,000 wait", INTERVAL_MS) == "6 of 1,000 wait"
    assert lines.left_out() == []


def test_suppressed_log_lines_are_counted_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(LINES_MAX + 2):
        warn(f"{number} are late")
    end_log()
    (line,) = capsys.readouterr().err.splitlines()[LINES_MAX:]
    assert line.startswith("2 more lines ")
    assert line.endswith(": # are late")


def test_status_has_a_line_for_each_of_many_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    Status().show([f"partition {number}: 0" for number in range(3 * LINES_MAX)])
    assert capsys.readouterr().err.count("partition") == 3 * LINES_MAX


def test_json_log_has_one_object_per_line(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEBIT_WINDOWS", "5s")
    ended = onebit("verify", "--log-format", "json", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0ms")
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "error"]
    assert lines[0]["message"].startswith("ONEBIT_WINDOWS:")
    assert lines[1]["exit_code"] == ended.code == ExitCode.UNAVAILABLE
    assert all(line["time"].endswith("Z") for line in lines)


@pytest.mark.parametrize(
    ("level", "messages"), [("info", ["announced", "warned"]), ("warning", ["warned"]), ("error", [])]
)
def test_log_lines_below_the_level_are_suppressed(
    onebit: Onebit, capsys: pytest.CaptureFixture[str], level: str, messages: list[str]
) -> None:
    onebit("config", "show", "--given")
    onebit("topics", "describe", "--schema", "--log-level", level)
    announce("announced")
    warn("warned")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == messages


def test_profile_flag_writes_a_readable_profile(onebit: Onebit, tmp_path: Path) -> None:
    path = tmp_path / "run.prof"
    ended = onebit(
        "run", "--events", "20", "--learner", "banditron", "--no-report", "--json", "--profile", str(path)
    )  # fmt: skip
    assert ended.code == ExitCode.OK
    assert f"python -m pstats {path}" in ended.err
    assert any(name == "step" for _, _, name in pstats.Stats(str(path)).stats)  # type: ignore[attr-defined]
    raised = onebit("run", "--profile", str(tmp_path / "nowhere" / "run.prof"))
    assert raised.code == ExitCode.USAGE
    assert "cannot write: No such file or directory" in raised.err
