"""Sources of settings, in order of priority: flags, `ONEBIT_*` variables, the TOML file."""

import os
import shlex
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, BeforeValidator, PlainSerializer, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from stream.kafka.client_config import (
    BOOTSTRAP,
    PROPERTIES,
    ClientConfig,
    ClientConfigError,
    client_config,
    read_properties,
)
from stream.kafka.port import AccessError
from stream.parsing import close_matches, format_duration
from stream.settings.definitions import AccessSettings, Settings, SettingsError
from stream.settings.model import Change, Group, Panel, Program, Setting, Stored
from stream.settings.values import (
    CONFIG_VARIABLE,
    IGNORED,
    PREFIX,
    UNLIMITED,
    config_path,
    flag_of,
    format_retention,
    is_of_service,
    of_percent,
    setting_name,
    variable_of,
    variables_of_settings,
)


class Described(NamedTuple):
    """A setting with its field's properties."""

    name: str  # name in the file; the flag has - instead of _
    field: str  # field of Settings, with the unit
    annotation: Any
    is_duration: bool  # written as 250ms, 10s, 5m or 2h
    is_probability: bool  # written as 0.05 or 5%
    default: Any
    panel: Panel
    setting: Setting
    low: float | None
    high: float | None
    above: float | None

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return flag_of(self.name)

    @property
    def written(self) -> str:
        """The name for messages: the flag or, for a secret, the environment variable."""
        return variable_of(self.name) if self.setting.is_secret else self.flag

    @property
    def shown_default(self) -> str:
        """The default in text form."""
        if self.default is None:
            return self.setting.unset or "none"
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, list):
            return ",".join(self.default) or "none"
        shown = Settings.model_construct().model_dump(by_alias=True, include={self.field})[self.name]
        return f"{shown:g}" if isinstance(shown, float) else str(shown)

    @property
    def accepted(self) -> str:
        """A description of the accepted values."""
        choices = get_args(self.annotation) if get_origin(self.annotation) is Literal else ()
        if choices:
            return " or ".join(f"`{choice}`" for choice in choices)
        if self.is_duration:
            return "a duration" + (f", or `{UNLIMITED}`" if self.field == "keep_ms" else "")
        if self.is_probability:
            return "a number from 0 to 1, or a percentage"
        kind = _KINDS.get(next((kind for kind in (self.annotation, *get_args(self.annotation)) if kind in _KINDS), str))
        if self.low is not None and self.high is not None:
            return f"{kind}, {self.low:g} to {self.high:g}"
        if self.above is not None:
            return f"{kind} above {self.above:g}"
        return f"{kind}, at least {self.low:g}" if self.low is not None else str(kind)


_KINDS: dict[Any, str] = {bool: "yes or no", int: "a whole number", float: "a number", list[str]: "a list", str: "text"}


@cache
def described() -> tuple[Described, ...]:
    """Return all settings, in the order in which the help lists them."""
    groups = [group for group in reversed(Settings.__mro__) if issubclass(group, Group) and hasattr(group, "panel")]
    groups.sort(key=lambda group: list(Panel).index(group.panel))
    return tuple(_described(field, group.panel) for group in groups for field in _own_fields(group))


def _own_fields(group: type[Group]) -> list[str]:
    """Return the fields that a group defines or shares with a task's settings, without those of other groups."""
    kinds = (group, *(base for base in group.__bases__ if not issubclass(base, BaseModel)))
    return [field for kind in kinds for field in kind.__annotations__]


def _described(field: str, panel: Panel) -> Described:
    info = Settings.model_fields[field]
    metadata = info.metadata
    setting = next(item for item in metadata if isinstance(item, Setting))
    if any(isinstance(item, Stored) and item.change is not Change.REFUSED for item in metadata):
        setting = setting._replace(programs=setting.programs | {Program.CHANGE})
    return Described(
        name=setting_name(field),
        field=field,
        annotation=info.annotation,
        is_duration=any(isinstance(item, PlainSerializer) and item.func in _WRITES_DURATIONS for item in metadata),
        is_probability=any(isinstance(item, BeforeValidator) and item.func is of_percent for item in metadata),
        default=info.get_default(call_default_factory=False),
        panel=panel,
        setting=setting,
        low=next((_number(item.ge) for item in metadata if isinstance(item, Ge)), None),
        high=next((_number(item.le) for item in metadata if isinstance(item, Le)), None),
        above=next((_number(item.gt) for item in metadata if isinstance(item, Gt)), None),
    )


_WRITES_DURATIONS = (format_duration, format_retention)


def _number(bound: object) -> float | None:
    return bound if isinstance(bound, int | float) else None


FIELDS = tuple(name.replace(".", "_") for name in PROPERTIES if name.replace(".", "_") in Settings.model_fields)
"""The settings that correspond to Kafka client properties. A properties file may also contain other properties."""


def client_config_of(settings: AccessSettings) -> ClientConfig:
    """Return the client configuration: the properties file, overridden by settings that the user set.

    Raises:
        SettingsError: the file cannot be read, or a property is not supported.
    """
    own = {field.replace("_", "."): getattr(settings, field) for field in FIELDS if field in settings.given}
    given = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in own.items()
        if value is not None
    }
    try:
        properties = read_properties(settings.client_config) if settings.client_config else {}
        return client_config(properties | given)
    except ClientConfigError as error:
        raise SettingsError(_where(error, settings)) from error


def with_address_of_file(settings: Settings) -> Settings:
    """Return the settings, with the broker address from the properties file if the user did not set one.

    Raises:
        SettingsError: the file cannot be read.
    """
    if settings.client_config is None or "bootstrap" in settings.given:
        return settings
    try:
        address = read_properties(settings.client_config).get(BOOTSTRAP)
    except ClientConfigError as error:
        raise SettingsError(_where(error, settings)) from error
    return settings if address is None else settings.model_copy(update={"bootstrap": address})


def access_hint(error: AccessError) -> str:
    """Return the command that grants the missing permissions; empty if none are missing."""
    if not error.missing:
        return ""
    user = shlex.quote(f"User:{error.user or 'NAME'}")
    first, *others = error.missing
    acts = f"--operation {first.operation} --{first.kind} {shlex.quote(first.name)}"
    more = f", and {len(others)} similar ones" if others else ""
    return (
        f"ask an administrator of the cluster to run: kafka-acls --add --allow-principal {user} {acts}{more}; "
        "docs/security.md lists the permissions that each program needs"
    )


def _where(error: ClientConfigError, settings: AccessSettings) -> str:
    path = settings.client_config
    return str(error) if path is None or str(error).startswith(str(path)) else f"{error} (see {path}, and the settings)"


OTHER_VARIABLES = frozenset(
    (CONFIG_VARIABLE, "ONEBIT_DATA_DIR", "ONEBIT_HTTP_PORT", "ONEBIT_IMAGE", "ONEBIT_KAFKA_IMAGE", "ONEBIT_KAFKA_PORT",
     "ONEBIT_KAFKA_HEAP", "ONEBIT_MONITOR_PORT", "ONEBIT_PROMETHEUS_IMAGE", "ONEBIT_PROMETHEUS_PORT")
)  # fmt: skip
"""Variables that are not settings: the paths of the settings file and the experiment data, and Compose variables."""

OTHER_PREFIXES = ("ONEBIT_TEST_",)
"""Prefixes of variables that only tests use."""


class InvalidSettingError(SettingsError):
    """A setting's value is invalid."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def load_settings(flags: Mapping[str, Any], own: Collection[str] | None = None) -> Settings:
    """Load the settings.

    Args:
        flags: Flag values by setting name; None if not given.
        own: The program's own settings. Invalid variables of other settings are ignored. None means that all are.

    Raises:
        SettingsError: a value is invalid, a name in the file is unknown, or the file cannot be read.
    """
    path = config_path()
    if path is not None and not path.is_file():
        raise SettingsError(f"--config, or {CONFIG_VARIABLE}: file not found: {path}")
    ignored: frozenset[str] = frozenset()
    while True:
        token = IGNORED.set(ignored)
        try:
            return _valid(Settings, flags, lambda name: _origin(name, flags, path), str(path or "variables"))
        except InvalidSettingError as error:
            if own is None or error.name in own or error.name in ignored or not is_set(error.name):
                raise
            ignored |= {error.name}
        finally:
            IGNORED.reset(token)


class _GivenSettings(Settings):  # type: ignore[misc]  # as for `Settings`
    """Settings that come from arguments only, not from variables or the file."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the arguments only."""
        return (init_settings,)


def given_settings(given: Mapping[str, Any]) -> Settings:
    """Create settings from names and values, without variables or the file, for tests and the Python API.

    Raises:
        SettingsError: a name is unknown, or a value is invalid.
    """
    return _valid(_GivenSettings, given, str, "arguments")


def _valid(kind: type[Settings], given: Mapping[str, Any], origin: Callable[[str], str], source: str) -> Settings:
    """Create settings from names and values. `origin` describes where a setting's value comes from."""
    try:
        settings = kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            known = [one.name for one in described()]
            raise SettingsError(f"{origin(name)}: unknown setting{close_matches(name, known)}") from error
        is_secret = any(one.name == name and one.setting.is_secret for one in described())
        got = "" if is_secret or "; got " in message else f"; got {first['input']!r}"
        raise InvalidSettingError(name, f"{origin(name)}: {message}{got}") from error
    except ValueError as error:  # invalid TOML, or an invalid list in a variable
        raise SettingsError(f"cannot read the settings from {source}: {error}") from error
    return with_address_of_file(settings)


def _origin(name: str, flags: Mapping[str, Any], path: Path | None) -> str:
    """Describe the source of a setting's value."""
    if flags.get(name) is not None:
        return flag_of(name)
    return variable_of(name) if is_set(name) or path is None else f"{name} in {path}"


def is_set(name: str) -> bool:
    """Return whether a setting's environment variable is set."""
    return variable_of(name) in map(str.upper, variables_of_settings(dict(os.environ)))


def unknown_variables() -> list[str]:
    """Return warnings about variables that start with the settings prefix, but are not settings."""
    settings = {variable_of(one.name) for one in described()}
    known, given = settings | OTHER_VARIABLES, sorted(os.environ.items())
    return [
        f"{name}: ignored, because {value!r} describes a Kubernetes service. Set the setting with a flag or in the "
        "file, or set enableServiceLinks: false in the pod"
        for name, value in given
        if name in settings and is_of_service(name, value)
    ] + [
        f"{name}: unknown setting, ignored{close_matches(name, sorted(known))}"
        for name, value in given
        if name.startswith(PREFIX)
        if name not in known and not name.startswith(OTHER_PREFIXES) and not is_of_service(name, value)
    ]


def command_line(arguments: list[str]) -> str:
    """Return a command line that repeats a run, including settings from variables but no secrets."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if _is_setting(name)]
    return " ".join([*variables, "onebit", *map(shlex.quote, arguments)])


def _is_setting(name: str) -> bool:
    return name == CONFIG_VARIABLE or name in {
        variable_of(one.name) for one in described() if not one.setting.is_secret
    }
