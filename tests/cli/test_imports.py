"""A command imports only the modules it needs. The tests check modules rather than import times, which vary."""

import subprocess
import sys

import pytest

from onebit.cli.app import COMMANDS, LoadedCommands

pytestmark = pytest.mark.slow

CLIENTS = {"kafka", "confluent_kafka"}
HEAVY = {"numba", "scipy", "pyarrow", "matplotlib"} | CLIENTS
"""Modules that take tens of megabytes of memory or a tenth of a second to import."""

UNUSED_BY_HELP = HEAVY | {"numpy", "pydantic", "stream.settings.definitions", "onebit.cli.console"}

LOADED = """
import sys
from onebit.cli.app import main
names, *commands = sys.argv[1:]
for command in commands:
    try:
        main(command.split())
    except SystemExit as end:
        assert end.code in (0, 1, 4), (command, end.code)
    loaded = sorted(set(names.split(",")) & sys.modules.keys())
    assert not loaded, (command, loaded)
"""


def assert_unloaded(names: set[str], *commands: str) -> None:
    """Run commands in one process. After each command, check that none of these modules has been imported."""
    command = [sys.executable, "-c", LOADED, ",".join(names), *commands]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_and_version_import_no_command() -> None:
    assert_unloaded(UNUSED_BY_HELP, "--help", "-h", "--version")


def test_light_commands_import_no_heavy_modules() -> None:
    assert_unloaded(HEAVY, "config show", "settings", "data list", "kafka status", "replay --help")


def test_light_kafka_commands_import_only_the_client() -> None:
    """The commands fail to connect, because there is no broker."""
    nowhere = "--bootstrap 127.0.0.1:1 --connect-timeout 0ms"
    commands = ("topics describe", "topics create", "tail", "replay --data optdigits")
    assert_unloaded(HEAVY - CLIENTS, *(f"{command} {nowhere}" for command in commands))


def test_learner_and_gateway_without_traces_do_not_import_opentelemetry() -> None:
    """The commands fail to connect, because there is no broker."""
    nowhere = "--bootstrap 127.0.0.1:1 --connect-timeout 0ms"
    assert_unloaded({"opentelemetry"}, f"learn --n-classes 3 --n-features 2 {nowhere}", f"serve {nowhere}")


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_in_main_help_equals_first_line_of_command_help(name: str) -> None:
    assert LoadedCommands()[name].help.splitlines()[0] == COMMANDS[name].summary
