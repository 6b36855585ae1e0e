"""The programs of a run on Kafka, each in its own process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from stream.errors import ExitCode, OnebitError
from stream.learners import registered
from stream.programs.process import WARNING, announce
from stream.settings.definitions import Settings
from stream.settings.values import variable_of

PROGRAMS = LEARNER, FEEDBACK, REPLAY = "learn", "feedback", "replay"
STOP_TIMEOUT_S = 30.0

RESTARTS_MAX = 5
"""Maximum number of times to restart a learner that was removed from its group. A process supervisor would also restart
the learner."""


class ProgramEndedError(OnebitError):
    """A program in the run ended early. The error contains the program's exit code."""


def onebit_command(program: str) -> list[str]:
    """Return the command line that starts a program."""
    return [sys.executable, "-m", "onebit", program]


def warnings_in(log: Path) -> list[str]:
    """Return a program's warnings from its log file."""
    lines = log.read_text(errors="replace").splitlines()
    return [line.removeprefix(WARNING).strip() for line in lines if line.startswith(WARNING)]


class RunPrograms:
    """A run's processes and their log files. They are stopped at the end of the context."""

    def __init__(
        self, settings: Settings, learner: str, command: Callable[[str], Sequence[str]] = onebit_command
    ) -> None:
        """Prepare the environment; see `start`.

        Args:
            settings: The run's settings.
            learner: The run's learner.
            command: Returns the command line for a program.
        """
        self._directory = tempfile.TemporaryDirectory(prefix="onebit-run-")
        directory = Path(self._directory.name)
        own = settings.model_copy(
            update={"learner": [learner], "with_label": registered()[learner].needs_label or settings.with_label}
        )
        self._ready_file = directory / "ready"
        # The programs cannot share a metrics port, and their logs are parsed for warnings.
        overrides = {
            "metrics_port": "0", "log_format": "text", "log_level": "info", "ready_file": str(self._ready_file)
        }  # fmt: skip
        self._environment = os.environ | _scoped_parameters(own).environment()
        self._environment |= {variable_of(name): value for name, value in overrides.items()}
        self._environment.pop(variable_of("profile"), None)  # the profile covers only this process
        self._command = command
        self._restarts = 0
        self.logs = {name: directory / f"{name}.log" for name in PROGRAMS}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start programs.

        Raises:
            ProgramEndedError: a program cannot be started.
        """
        for name in names:
            try:
                self.processes[name] = self._start(name)
            except OSError as error:
                raise ProgramEndedError(f"cannot start `onebit {name}`: {error}") from error

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        with self.logs[name].open("ab") as log:
            return subprocess.Popen(
                self._command(name),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the main process receives Ctrl-C, and it stops the programs in order
            )

    def check(self) -> None:
        """Start the replay once the learner is ready and end the run if a program has ended early.

        Only the replay may end before the run ends. Events replayed before the learner is ready would all be decided at
        once, before any feedback arrives.

        Raises:
            ProgramEndedError: a program has ended early, or the replay cannot be started.
        """
        if REPLAY not in self.processes and self._ready_file.exists():
            self.start(REPLAY)
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code == ExitCode.FENCED and self._restarts < RESTARTS_MAX:
                self._restarts += 1
                announce(f"`onebit {name}` ended; restarting: {self._last_lines(name, 1)}")
                self.processes[name] = self._start(name)
            elif code is not None and (code != 0 or name != REPLAY):
                error = ProgramEndedError(
                    f"`onebit {name}` ended with exit code {code}; last lines of its log:\n{self._last_lines(name)}"
                )
                error.exit_code = next((known for known in ExitCode if known == code != 0), ExitCode.CRASHED)
                raise error

    def _last_lines(self, name: str, count: int = 15) -> str:
        return "\n".join(self.logs[name].read_text(errors="replace").splitlines()[-count:])

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all programs. Each program completes its transaction."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._directory.cleanup()


def _scoped_parameters(settings: Settings) -> Settings:
    """Return the settings for one learner, without parameters that it would reject."""
    learner = settings.learner[0]
    names = {parameter.name for parameter in registered()[learner].parameters}
    kept = [
        text
        for text in settings.param
        if text.partition("=")[0].removeprefix(f"{learner}.") in names
    ]  # fmt: skip
    return settings.model_copy(update={"param": kept})
