"""The settings of a pipeline: from flags, `ONEBIT_*` variables and a TOML file, in this order of precedence."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from stream.durations import DurationError, format_duration, parse_duration
from stream.randomness.delays import DelayError, parse_delay
from stream.wire.topics import DEFAULT_PREFIX

CONFIG_VARIABLE = "ONEBIT_CONFIG"
DEFAULT_CONFIG = Path("onebit.toml")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value, and what is accepted."""


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except DurationError as error:
        raise ValueError(str(error)) from error


def _delay(value: str) -> str:
    try:
        parse_delay(value)
    except DelayError as error:
        raise ValueError(str(error)) from error
    return value


Duration = Annotated[int, BeforeValidator(_duration), Field(ge=0)]
"""Milliseconds; written as 250ms, 10s, 5m or 2h."""


FOR_EVER = "forever"


def _retention(value: object) -> object:
    if value == FOR_EVER:
        return -1
    if _duration(value) == 0:
        raise ValueError(f"expected a duration of more than 0ms, or {FOR_EVER}; got {value!r}")
    return _duration(value)


Retention = Annotated[int, BeforeValidator(_retention)]
"""Milliseconds, -1: for ever; written as 24h, or forever."""


def _names(value: object) -> object:
    """A list as a variable holds it: a,b or ["a","b"]."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [name for part in value.split(",") if (name := part.strip())]


Names = Annotated[list[str], NoDecode, BeforeValidator(_names)]
"""Several texts; in a variable they are written a,b."""

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseSettings):
    """All that a run depends on. Each field is a flag of the same name, and a variable `ONEBIT_NAME`."""

    model_config = SettingsConfigDict(env_prefix="ONEBIT_", extra="forbid", frozen=True)

    data: str = "optdigits"
    n_features: int | None = Field(default=None, ge=1)
    n_classes: int | None = Field(default=None, ge=2)
    events: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    shuffle: bool = False
    learner: Names = Field(default=["soba-diag"], min_length=1)
    param: Names = []
    seed: int = Field(default=0, ge=0, lt=2**63)
    rate: float = Field(default=1_000.0, gt=0.0)
    delay: Annotated[str, AfterValidator(_delay)] = "lognormal:10s,1.0"
    loss: Probability = 0.0
    duplicates: Probability = 0.0
    window: Duration = 300_000
    on_expiry: Literal["drop", "negative"] = "drop"
    late: Literal["ignore", "correct"] = "ignore"
    with_label: bool = False
    instance: str = Field(default="1", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    orphan_window: Duration = 300_000
    retain: Duration = 3_600_000
    pending_max: int = Field(default=1_000_000, ge=1)
    orphans_max: int = Field(default=100_000, ge=1)
    retained_max: int = Field(default=5_000_000, ge=1)
    snapshot_interval: Duration = 60_000
    partitions: int = Field(default=1, ge=1, le=1_000)
    replication: int = Field(default=1, ge=1)
    retention: Retention = -1
    bootstrap: str = "localhost:9092"
    topic_prefix: str = Field(default=DEFAULT_PREFIX, pattern=r"^[A-Za-z0-9._-]{1,200}$")
    ready_file: str | None = Field(default=None, min_length=1)
    connect_timeout: Duration = 30_000
    session_timeout: Duration = 10_000
    transaction_timeout: Duration = 20_000

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over variables, variables over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_path())

    def shown(self) -> dict[str, object]:
        """The effective settings as people write them."""
        values: dict[str, object] = self.model_dump()
        for name, field in type(self).model_fields.items():
            if any(isinstance(item, BeforeValidator) and item.func is _duration for item in field.metadata):
                values[name] = format_duration(getattr(self, name))
        values["retention"] = FOR_EVER if self.retention < 0 else format_duration(self.retention)
        return values

    def environment(self) -> dict[str, str]:
        """The settings as variables, for a process started with the same ones."""
        return {
            f"ONEBIT_{name.upper()}": _as_variable(value) for name, value in self.shown().items() if value is not None
        }


def _as_variable(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",".join('"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"' for item in value) + "]"
    return str(value)


def _config_path() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None


def load_settings(given: dict[str, Any]) -> Settings:
    """The settings, with the given flags on top; flags that are None were not given.

    Raises:
        SettingsError: a value that is not accepted, an unknown name in the file, or a file that cannot be read.
    """
    path = _config_path()
    if path is not None and not path.is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}: expected a TOML file; there is none at {path}")
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        message = first["msg"].removeprefix("Value error, ")
        says_it = first["type"] == "extra_forbidden" or "; got " in message
        got = "" if says_it else f"; got {first['input']!r}"
        raise SettingsError(f"--{name.replace('_', '-')}: {message}{got}") from error
    except ValueError as error:  # the TOML file, or a list in a variable, cannot be parsed
        raise SettingsError(f"settings from {path or 'variables'} cannot be read: {error}") from error


def command_line(arguments: list[str]) -> str:
    """How a run can be repeated: the command, and the settings that came from elsewhere."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if _is_setting(name)]
    return " ".join([*variables, "onebit", *map(shlex.quote, arguments)])


def _is_setting(name: str) -> bool:
    return name.startswith("ONEBIT_") and (
        name == CONFIG_VARIABLE or name.removeprefix("ONEBIT_").lower() in Settings.model_fields
    )
