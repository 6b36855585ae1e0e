"""Names, types and text forms of settings.

The field `window_ms` in `Settings` defines the setting `window`, which has the flag `--window`, the variable
`ONEBIT_WINDOW`, and the name `window` in the file. A field's type determines the setting's type in the program, its
parser, and its text form. For example, a `Duration` is a whole number of milliseconds with a text form such as 10s.
"""

import json
import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr
from pydantic_settings import NoDecode

from stream.parsing import DurationError, format_duration, parse_duration, parse_number, parse_speed, repr_of
from stream.randomness.delays import DelayError, parse_delay
from stream.wire.rewards import format_range, parse_range

PREFIX = "ONEBIT_"
CONFIG_VARIABLE = "ONEBIT_CONFIG"
DEFAULT_CONFIG = Path("onebit.toml")

_UNITS = ("_ms", "_per_s", "_time")


def setting_name(field: str) -> str:
    """Return a setting's name: the name of its field in `Settings`, without the unit.

    >>> setting_name("window_ms"), setting_name("rate_per_s"), setting_name("data")
    ('window', 'rate', 'data')
    """
    for unit in _UNITS:
        field = field.removesuffix(unit)
    return field


def shown_value(field: str, value: object) -> str:
    """Return a value of a field as users write it. Long values are shortened, and only the names of learners are shown.

    >>> shown_value("window_ms", 120_000), shown_value("late", "ignore"), shown_value("activation_window_ms", None)
    ('2m', 'ignore', 'none')
    >>> shown_value("challengers", {"late-ucb:m=2": {"m": 2, "eta": 0.1}})
    'late-ucb:m=2'
    """
    if value is None or value in ({}, []):
        return "none"
    if field.startswith("retired_") and isinstance(value, list):
        return ", ".join(map(str, value))
    if field == "challengers" and isinstance(value, Mapping):
        return ", ".join(value)
    if field == "started_from" and isinstance(value, Mapping):
        return ", ".join(f"{name} from {shown_digest(digest)}" for name, digest in value.items())
    if field.endswith("_ms") and type(value) is int and value >= 0:
        return format_duration(value)
    return value if isinstance(value, str) and len(value) <= SHOWN_MAX else repr_of(value, SHOWN_MAX)


def shown_digest(digest: object) -> str:
    """Return the first characters of a digest, which identify a file in a message."""
    return str(digest)[:12]


SHOWN_MAX = 80
"""Length to which a value in a message is shortened."""


def flag_of(name: str) -> str:
    """Return a setting's flag.

    >>> flag_of("on_expiry"), variable_of("on_expiry")
    ('--on-expiry', 'ONEBIT_ON_EXPIRY')
    """
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return a setting's environment variable."""
    return PREFIX + name.upper()


IGNORED: ContextVar[frozenset[str]] = ContextVar("IGNORED", default=frozenset())
"""Names of settings whose environment variables are ignored."""

_SERVICE = re.compile(r"(tcp|udp|sctp)://\S+:\d+")


def is_of_service(variable: str, value: str) -> bool:
    """Return whether an environment variable describes a Kubernetes service or a linked container, not a setting.

    For a service with the name `onebit-serve`, Kubernetes sets ONEBIT_SERVE_PORT and similar variables in every
    container of the namespace.

    >>> is_of_service("ONEBIT_SERVE_PORT", "tcp://10.0.0.7:8080"), is_of_service("ONEBIT_SERVE_PORT", "8080")
    (True, False)
    """
    name = variable.upper()
    return name.startswith(PREFIX) and (
        (name.endswith("_PORT") and _SERVICE.fullmatch(value) is not None)
        or re.search(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$", name) is not None
    )


def variables_of_settings(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the environment variables without those of services and those in `IGNORED`."""
    ignored = {variable_of(name) for name in IGNORED.get()}
    return {
        name: value
        for name, value in variables.items()
        if name.upper() not in ignored and not is_of_service(name, value or "")
    }


def config_path() -> Path | None:
    """Return the path of the settings file, if one is given or exists in the working directory."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None


def _duration(value: object) -> object:
    if value is None:
        return None
    try:
        return parse_duration(str(value))
    except DurationError as error:
        raise ValueError(str(error)) from error


Duration = Annotated[int, BeforeValidator(_duration), Field(ge=0), PlainSerializer(format_duration)]
"""A duration in milliseconds, written as 250ms, 10s, 5m or 2h."""

OptionalDuration = Annotated[
    Annotated[int, Field(ge=0)] | None,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, when_used="unless-none"),
]
"""A duration, or None if unset."""

OnBadRow = Literal["stop", "skip"]
"""How to handle an invalid row: stop with an error, or skip the row and count it."""

LOGGED = "logged"
"""Value of `delay` that selects the delays in a log."""


def _delay(value: str) -> str:
    try:
        if value != LOGGED:
            parse_delay(value)
    except DelayError as error:
        raise ValueError(str(error)) from error
    return value


Delay = Annotated[str, AfterValidator(_delay)]
"""A delay distribution as text, or `LOGGED`."""


def _speed(value: str | None) -> str | None:
    try:
        if value is not None:
            parse_speed(value)
    except DurationError as error:
        raise ValueError(str(error)) from error
    return value


Speed = Annotated[str | None, AfterValidator(_speed)]
"""A speed factor, written as 60x or max; None if unset."""


def parse_time(text: str) -> int:
    """Convert an ISO 8601 time, or a number, to milliseconds since 1970. A time without a zone is in UTC.

    >>> parse_time("1970-01-01T00:01"), parse_time("1970-01-01T01:00:00.5+01:00"), parse_time("250")
    (60000, 500, 250)
    """
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected a time such as 2019-11-24T08:30 or 1574584200000 (ms); got {text!r}") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)


def _time(value: str | None) -> str | None:
    if value is not None:
        parse_time(value)
    return value


Time = Annotated[str | None, AfterValidator(_time)]
"""A time in the form that `parse_time` accepts, or None if unset."""

UNLIMITED = "unlimited"


def _retention(value: object) -> object:
    if value == UNLIMITED:
        return -1
    if _duration(value) == 0:
        raise ValueError(f"expected a duration above 0ms, or {UNLIMITED}; got {value!r}")
    return _duration(value)


def format_retention(retention_ms: int) -> str:
    """Format a retention time as text."""
    return UNLIMITED if retention_ms < 0 else format_duration(retention_ms)


Retention = Annotated[int, BeforeValidator(_retention), PlainSerializer(format_retention)]
"""A duration in milliseconds, written as 30d; -1 is written as unlimited."""


def _list(value: object) -> object:
    """Parse a list in an environment variable: a,b or ["a","b"]."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return _list_of(value)


def _names(value: object) -> object:
    """Split comma-separated names and remove duplicates."""
    parts = _list(value)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return parts
    return list(dict.fromkeys(name for part in parts for name in _list_of(part)))


def _list_of(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


Names = Annotated[list[str], NoDecode, BeforeValidator(_names)]
"""A list of names, written as a,b or by repeating the flag."""

Texts = Annotated[list[str], NoDecode, BeforeValidator(_list)]
"""A list of strings, which may contain commas. In an environment variable, it is written as a,b or ["a","b"]."""

HIDDEN = "(hidden)"


def of_one_line(value: object) -> object:
    r"""Remove line breaks at the end, because a secret that was created from a file often ends with one.

    >>> of_one_line("abc\n")
    'abc'

    Raises:
        ValueError: the value contains another line break.
    """
    if not isinstance(value, str):
        return value
    line = value.rstrip("\r\n")
    if "\n" in line or "\r" in line:
        raise ValueError("expected one line; got several. Remove the line breaks")
    return line


Line = Annotated[str, BeforeValidator(of_one_line)]
"""A string without line breaks."""

Secret = Annotated[SecretStr, BeforeValidator(of_one_line), PlainSerializer(lambda _: HIDDEN)]
"""A string without line breaks that is never printed."""


def tokens_of(secret: SecretStr) -> tuple[str, ...]:
    """Return the tokens in a comma-separated list.

    Raises:
        ValueError: the list is empty, or a token contains characters that an Authorization header cannot contain.
    """
    tokens = tuple(_list_of(secret.get_secret_value()))
    if not tokens or not all("!" <= character <= "~" for token in tokens for character in token):
        raise ValueError("expected a token, or several separated by commas, of ASCII characters without spaces")
    return tokens


def _tokens(secret: SecretStr) -> SecretStr:
    tokens_of(secret)
    return secret


Tokens = Annotated[Secret, AfterValidator(_tokens)]
"""One or more tokens, separated by commas and never printed."""


def of_percent(value: object) -> object:
    """Convert a percentage such as 5% to a fraction.

    >>> of_percent("5%"), of_percent("0.05")
    (0.05, '0.05')
    """
    number = parse_number(value[:-1]) if isinstance(value, str) and value.endswith("%") else None
    return value if number is None else number / 100.0


RewardRangeText = Annotated[str, AfterValidator(lambda text: format_range(parse_range(text)))]
"""A range of rewards, written as LOW,HIGH."""

Probability = Annotated[float, Field(ge=0.0, le=1.0), BeforeValidator(of_percent)]
"""A number from 0 to 1, or a percentage."""
