"""What the fields of `Settings` say, for flags, help and docs."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import PlainSerializer

from stream.app.setting_names import flag_of, setting_name, variable_of
from stream.app.setting_values import FOR_EVER, format_retention
from stream.app.settings import Setting, Settings
from stream.durations import format_duration


class Described(NamedTuple):
    """A setting, with all that its field says."""

    name: str  # as in the file; the flag has - for _
    field: str  # of Settings, with the unit
    annotation: Any
    is_duration: bool  # written as 250ms, 10s, 5m or 2h
    default: Any
    setting: Setting
    low: float | None
    high: float | None
    above: float | None

    @property
    def flag(self) -> str:
        """Its flag."""
        return flag_of(self.name)

    @property
    def written(self) -> str:
        """How people give it: by its flag, or, of a secret, by its variable alone."""
        return variable_of(self.name) if self.setting.is_secret else self.flag

    @property
    def shown_default(self) -> str:
        """Its default as people write it."""
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
        """Which values it takes, for people."""
        choices = get_args(self.annotation) if get_origin(self.annotation) is Literal else ()
        if choices:
            return " or ".join(f"`{choice}`" for choice in choices)
        if self.is_duration:
            return "a duration" + (f", or `{FOR_EVER}`" if self.field == "retention_ms" else "")
        kind = _KINDS.get(next((kind for kind in (self.annotation, *get_args(self.annotation)) if kind in _KINDS), str))
        if self.low is not None and self.high is not None:
            return f"{kind}, {self.low:g} to {self.high:g}"
        if self.above is not None:
            return f"{kind} above {self.above:g}"
        return f"{kind}, at least {self.low:g}" if self.low is not None else str(kind)


_KINDS: dict[Any, str] = {bool: "yes or no", int: "a whole number", float: "a number", list[str]: "a list", str: "text"}


def described() -> Iterator[Described]:
    """All settings, in the order of the help."""
    for field, info in Settings.model_fields.items():
        told = info.metadata
        yield Described(
            name=setting_name(field),
            field=field,
            annotation=info.annotation,
            is_duration=any(isinstance(item, PlainSerializer) and item.func in _WRITES_DURATIONS for item in told),
            default=info.get_default(call_default_factory=False),
            setting=next(item for item in told if isinstance(item, Setting)),
            low=next((_number(item.ge) for item in told if isinstance(item, Ge)), None),
            high=next((_number(item.le) for item in told if isinstance(item, Le)), None),
            above=next((_number(item.gt) for item in told if isinstance(item, Gt)), None),
        )


_WRITES_DURATIONS = (format_duration, format_retention)


def _number(bound: object) -> float | None:
    return bound if isinstance(bound, int | float) else None
