"""What a setting is called, and which file may hold it.

The field `window_ms` of `Settings` is the setting `window`: the flag `--window`, the variable `ONEBIT_WINDOW`, and the
name `window` in the file.
"""

import os
from pathlib import Path

PREFIX = "ONEBIT_"
CONFIG_VARIABLE = "ONEBIT_CONFIG"
DEFAULT_CONFIG = Path("onebit.toml")

_UNITS = ("_ms", "_per_s", "_time")


def setting_name(field: str) -> str:
    """The name of the setting that a field of `Settings` holds: without its unit.

    >>> setting_name("window_ms"), setting_name("rate_per_s"), setting_name("data")
    ('window', 'rate', 'data')
    """
    for unit in _UNITS:
        field = field.removesuffix(unit)
    return field


def flag_of(name: str) -> str:
    """The flag of a setting.

    >>> flag_of("on_expiry"), variable_of("on_expiry")
    ('--on-expiry', 'ONEBIT_ON_EXPIRY')
    """
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The variable of a setting."""
    return PREFIX + name.upper()


def config_path() -> Path | None:
    """The file of settings, if one was named or there is one in the working directory."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
