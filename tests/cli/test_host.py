"""The exit codes of commands on a host with unusual limits: a failed check is never reported."""

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from stream.errors import ExitCode

COMMAND = "import sys; from onebit import main; sys.argv = ['onebit', *sys.argv[1:]]; main()"


def code_of(*arguments: str, options: tuple[str, ...] = (), limit: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a command in its own process, and return its exit code and its last line on stderr."""
    command = [sys.executable, *options, "-c", COMMAND, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("option", ["-O", "-OO"])
@pytest.mark.parametrize("command", [("topics", "create", "--bootstrap", "127.0.0.1:1"), ("run", "--events", "1")])
def test_interpreter_that_skips_assertions_is_refused_by_name(option: str, command: tuple[str, ...]) -> None:
    code, error = code_of(*command, options=(option,))
    assert (code, "PYTHONOPTIMIZE" in error, "security.protocol" in error) == (ExitCode.USAGE, True, False)


@pytest.mark.parametrize("files", [5, 8, 24])
def test_low_limit_on_open_files_is_not_reported_as_a_failed_check(files: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    code, _ = code_of("serve", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0ms", limit=limit)
    assert code != ExitCode.DIFFERS


def test_too_many_open_files_is_an_invalid_limit_and_no_internal_error() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))

    code, error = code_of("monitor", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0ms", limit=limit)
    assert (code, "ulimit -n" in error) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("megabytes", [100, 200, 300, 360])
def test_lack_of_memory_is_not_reported_as_a_failed_check(megabytes: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    code, _ = code_of("run", "--events", "20", "--learner", "banditron", "--json", limit=limit)
    assert code != ExitCode.DIFFERS
