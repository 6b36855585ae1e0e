"""Where the settings come from: flags, then `ONEBIT_*` variables, then the TOML file."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from stream.app.access import with_address_of_file
from stream.app.described import described
from stream.app.setting_names import CONFIG_VARIABLE, PREFIX, config_path, flag_of, variable_of
from stream.app.settings import Settings, SettingsError
from stream.near_names import close_matches

OTHER_VARIABLES = frozenset(
    (CONFIG_VARIABLE, "ONEBIT_IMAGE", "ONEBIT_KAFKA_IMAGE", "ONEBIT_KAFKA_PORT", "ONEBIT_KAFKA_HEAP",
     "ONEBIT_MONITOR_PORT", "ONEBIT_PROMETHEUS_IMAGE", "ONEBIT_PROMETHEUS_PORT")
)  # fmt: skip
"""Variables that are no settings: the file's path, and those of the compose files."""

OTHER_PREFIXES = ("ONEBIT_TEST_",)
"""What variables of the tests begin with."""


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """The settings, with flags by the settings' names on top; flags that are None were not given.

    Raises:
        SettingsError: a value that is not accepted, an unknown name in the file, or a file that cannot be read.
    """
    path = config_path()
    if path is not None and not path.is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}: expected a TOML file; there is none at {path}")
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            known = [one.name for one in described()]
            raise SettingsError(f"{name} in {path}: no setting has this name{close_matches(name, known)}") from error
        is_secret = any(one.name == name and one.setting.is_secret for one in described())
        got = "" if is_secret or "; got " in message else f"; got {first['input']!r}"
        raise SettingsError(f"{_origin(name, flags, path)}: {message}{got}") from error
    except ValueError as error:  # the TOML file, or a list in a variable, cannot be parsed
        raise SettingsError(f"settings from {path or 'variables'} cannot be read: {error}") from error
    return with_address_of_file(settings)


class _GivenSettings(Settings):
    """Settings without variables and the file."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the arguments alone."""
        return (init_settings,)


def given_settings(given: Mapping[str, Any]) -> Settings:
    """Settings by name, with nothing from variables or a file: for tests and for the Python API.

    Raises:
        SettingsError: an unknown name, or a value that is not accepted.
    """
    try:
        settings = _GivenSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        if first["type"] == "extra_forbidden":
            known = [one.name for one in described()]
            raise SettingsError(f"{name}: no setting has this name{close_matches(name, known)}") from error
        raise SettingsError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from error
    return with_address_of_file(settings)


def _origin(name: str, flags: Mapping[str, Any], path: Path | None) -> str:
    """What a setting's value came from, for messages."""
    source = source_of(name, flags, path)
    return flag_of(name) if source == "flag" else variable_of(name) if source == "variable" else f"{name} in {path}"


def source_of(name: str, flags: Mapping[str, Any], path: Path | None) -> Literal["flag", "variable", "file"]:
    """Which source a setting that was given comes from."""
    if flags.get(name) is not None:
        return "flag"
    return "variable" if is_set(name) or path is None else "file"


def is_set(name: str) -> bool:
    """Whether a setting has a variable."""
    return variable_of(name) in map(str.upper, os.environ)


def unknown_variables() -> list[str]:
    """What to tell about variables that look like settings and are none."""
    known = {variable_of(one.name) for one in described()} | OTHER_VARIABLES
    return [
        f"{name}: no setting has this name, and it has no effect{close_matches(name, sorted(known))}"
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in known and not name.startswith(OTHER_PREFIXES)
    ]


def command_line(arguments: list[str]) -> str:
    """How a run can be repeated: the command, and the settings that came from variables, without secrets."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if _is_setting(name)]
    return " ".join([*variables, "onebit", *map(shlex.quote, arguments)])


def _is_setting(name: str) -> bool:
    return name == CONFIG_VARIABLE or name in {
        variable_of(one.name) for one in described() if not one.setting.is_secret
    }
