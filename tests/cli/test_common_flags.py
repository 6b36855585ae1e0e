"""Every command accepts the log flags, --debug and --config. Commands with a result also accept --json."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from onebit.cli.app import LoadedCommands
from tests.cli.conftest import Onebit

WITHOUT_RESULT = {
    "learn", "feedback", "replay", "serve", "monitor", "kafka logs", "kafka down", "experiment run", "experiment report"
}  # fmt: skip
"""Commands without a result: they write files, print a log, or run until the user stops them."""


def commands() -> Iterator[tuple[str, Any]]:
    for name, command in LoadedCommands().items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {own}", one) for own, one in command.commands.items())
        else:
            yield name, command


def flags_of(command: Any) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


def test_every_command_has_log_debug_and_config_flags() -> None:
    common = {"--log-format", "--log-level", "--debug", "--config"}
    assert {name: common - flags_of(command) for name, command in commands()} == {name: set() for name, _ in commands()}


def test_every_command_with_a_result_has_a_json_flag() -> None:
    assert {name for name, command in commands() if "--json" not in flags_of(command)} == WITHOUT_RESULT


@pytest.mark.parametrize("command", ["data list", "settings", "experiment list", "config show", "kafka status"])
def test_json_output_is_a_single_value(command: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "nowhere")
    assert orjson.loads(onebit(*command.split(), "--json").out)


@pytest.mark.parametrize("command", ["data list", "learners", "experiment list"])
def test_every_command_rejects_an_invalid_variable_of_its_own(
    command: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEBIT_WINDOW", "soon")
    assert onebit(*command.split()).code == 0
    monkeypatch.setenv("ONEBIT_LOG_LEVEL", "loud")
    assert onebit(*command.split()).code == 2
