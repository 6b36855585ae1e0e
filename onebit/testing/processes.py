"""Runs Onebit's programs as processes in tests.

Tests control the processes through settings and signals, and observe their output, exit codes and topics.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

WAIT_S = 300.0


def wait_for(
    claim: Callable[[], bool], what: str, timeout_s: float = WAIT_S, otherwise: Callable[[], str] = str
) -> None:
    """Wait for a condition. After a timeout, raise an error that includes the text returned by `otherwise`."""
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"condition not met within {timeout_s:g} s: {what}\n{otherwise()}")
        time.sleep(0.02)


class Program:
    """A program that runs as a process."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "onebit", *arguments],  # -P: no imports from the working directory
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """Return the program's output so far."""
        return self.log.read_text(errors="replace")

    def wait_until_it_says(self, pattern: str, timeout_s: float = WAIT_S) -> None:
        """Wait for output that matches a pattern, and fail if the process ends first."""
        self.wait_until(lambda: bool(re.search(pattern, self.said())), pattern, timeout_s)

    def wait_until(self, claim: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for a condition, and fail if the process ends first."""
        wait_for(lambda: claim() or self._ended(claim), what, timeout_s, self.said)

    def _ended(self, claim: Callable[[], bool]) -> bool:
        code = self.process.poll()
        assert code is None or claim(), f"ended with exit code {code}:\n{self.said()}"
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, which must be running."""
        assert self.process.poll() is None, f"ended with exit code {self.process.returncode}:\n{self.said()}"
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, as a machine failure would."""
        self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """Stop the process and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the process to end and return its exit code."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        raise AssertionError(f"did not end within {timeout_s:g} s:\n{self.said()}")


class Programs:
    """Starts programs with common settings. This process's own ONEBIT_ variables are not passed on."""

    def __init__(self, directory: Path, variables: Mapping[str, str], cwd: Path | None = None) -> None:
        """Set the environment for all programs.

        Args:
            directory: Folder for the programs' output.
            variables: Environment variables.
            cwd: Working directory. The default is `directory`, which has no onebit.toml.
        """
        self.directory = directory
        self._cwd = directory if cwd is None else cwd
        self.started: list[Program] = []
        self._numbers = count()
        own = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")}
        self.environment = own | dict(variables)

    def start(self, *arguments: str) -> Program:
        """Start a program."""
        log = self.directory / f"{next(self._numbers)}-{arguments[0]}.log"
        self.started.append(Program(list(arguments), self.environment, log, self._cwd))
        return self.started[-1]

    def said(self) -> str:
        """Return each program's exit code and the last part of its output."""
        return "\n".join(
            f"--- {program.log.name}, exit code {program.process.poll()}:\n{program.said()[-2_000:]}"
            for program in self.started
        )

    def close(self) -> None:
        """Kill the remaining processes."""
        for program in self.started:
            if program.process.poll() is None:
                with suppress(ProcessLookupError):
                    program.process.send_signal(signal.SIGCONT)
                program.process.kill()
                program.process.wait(WAIT_S)
