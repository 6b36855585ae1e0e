"""Fixtures that run commands in an isolated environment and working directory."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stream.cli import console
from stream.cli.app import main


class CommandResult(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str


Onebit = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def own_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("ONEBIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONEBIT_CONFIG", "")  # --config changes the variable; monkeypatch restores it after the test
    monkeypatch.chdir(tmp_path)
    console.write_log("text", "info")
    yield
    console.write_log("text", "info")


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, as in a new process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def onebit(capsys: pytest.CaptureFixture[str]) -> Onebit:
    """Run a command in this process."""

    def run(*arguments: str) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return CommandResult(int(ended.value.code or 0), *capsys.readouterr())

    return run
