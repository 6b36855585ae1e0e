"""What programs say while they run, and how they end."""

import signal
import subprocess
import sys

import pytest

from stream.cli.console import Status
from stream.cli.exits import ExitCode


def test_status_is_said_again_only_when_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status()
    for lines in ([], ["a: 1", "b: 1"], ["a: 1", "b: 1"], ["a: 1", "b: 2"], ["a: 1", "b: 2"], ["a: 1"]):
        status.show(lines)
    said = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["a: 1", "b: 1", "a: 1", "b: 2", "a: 1"]


ENDING = """
import os, sys
from stream.cli.console import StopRequest
from stream.cli.exits import ExitCode

class Late:
    def __init__(self, number):
        self.number = number

    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, self.number)

StopRequest()
late = Late(int(sys.argv[1]))  # deleted when the interpreter has already taken its handlers away
raise SystemExit(ExitCode.FENCED)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_interpreter_ends_leaves_the_exit_code(number: signal.Signals) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, str(int(number))], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (ExitCode.FENCED, b"")
