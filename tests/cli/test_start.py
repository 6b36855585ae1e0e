"""A command imports only the modules it needs. The tests check the imported modules, because times vary by machine."""

import subprocess
import sys

import pytest

from stream.cli.app import COMMANDS, LoadedCommands

pytestmark = pytest.mark.slow

CLIENTS = {"kafka", "confluent_kafka"}
HEAVY = {"numba", "scipy", "pyarrow", "matplotlib"} | CLIENTS
"""Modules whose import takes tens of megabytes of memory or a tenth of a second."""

UNUSED_BY_HELP = HEAVY | {"numpy", "pydantic", "stream.app.settings", "stream.cli.console"}

LOADED = """
import sys
from stream.cli.app import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert end.code in (0, 1, 4), end.code
print("loaded:", *sorted(set(sys.argv[1].split(",")) & sys.modules.keys()))
"""


def loaded(arguments: str, names: set[str]) -> list[str]:
    """The modules among `names` that a command has imported when it ends."""
    command = [sys.executable, "-c", LOADED, ",".join(names), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].removeprefix("loaded:").split()


@pytest.mark.parametrize("arguments", ["--help", "-h", "--version"])
def test_help_and_version_load_no_command(arguments: str) -> None:
    assert loaded(arguments, UNUSED_BY_HELP) == []


@pytest.mark.parametrize("arguments", ["config show", "settings", "data list", "kafka status", "replay --help"])
def test_light_command_loads_nothing_heavy(arguments: str) -> None:
    assert loaded(arguments, HEAVY) == []


@pytest.mark.parametrize("command", ["topics describe", "topics create", "tail", "replay --data optdigits"])
def test_light_command_of_kafka_loads_its_client_alone(command: str) -> None:
    """The command fails to connect, because there is no broker."""
    assert loaded(f"{command} --bootstrap 127.0.0.1:1 --connect-timeout 0ms", HEAVY - CLIENTS) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_in_the_help_is_the_first_line_of_the_commands_own(name: str) -> None:
    assert LoadedCommands()[name].help.splitlines()[0] == COMMANDS[name].summary
