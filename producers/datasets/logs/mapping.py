"""The mapping of table columns to roles, and the mapping file."""

import os.path
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from producers.datasets.base import DatasetError
from stream.parsing import close_matches
from stream.programs.process import announce
from stream.text import read_bytes, read_text
from stream.wire.actions import ACTIONS_MAX
from stream.wire.named_features import ACTIONS, Kind, NamedFeaturesError, from_plain, text_of, to_plain

Unit = Literal["us", "ms", "s", "m", "h", "d"]

UNITS_US: dict[Unit, int] = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}

_LAST_WORDS: dict[str, Unit] = {"us": "us", "s": "s", "min": "m", "h": "h"}
"""Words that denote a unit only at the end of a name. In `min_delay` and `us_users_wait`, these words are not units."""

_UNIT_WORDS: dict[str, Unit] = {
    **dict.fromkeys(("microsecond", "microseconds", "usec"), "us"),
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds", "msec"), "ms"),
    **dict.fromkeys(("sec", "secs", "seconds"), "s"),
    **dict.fromkeys(("mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}


class FeatureColumns(BaseModel):
    """The feature columns by kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text: tuple[str, ...] = ()

    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each column, in index order."""
        return {
            **dict.fromkeys(self.numeric, Kind.NUMERIC),
            **dict.fromkeys(self.categorical, Kind.CATEGORICAL),
            **dict.fromkeys(self.text, Kind.TEXT),
        }

    @model_validator(mode="after")
    def _each_once(self) -> "FeatureColumns":
        listed = [*self.numeric, *self.categorical, *self.text]
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice:
            raise ValueError(f"duplicate columns: {', '.join(twice)}")
        return self


class LogMapping(BaseModel):
    """A column mapping. Fields of nested objects have dotted names: `user.country`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = None
    timestamp: str | None = None
    action: str | None = None
    reward: str | None = None
    propensity: str | None = None
    label: str | None = None
    feedback_time: str | None = None
    delay: str | None = None
    eligible: str | None = None
    baseline: str | None = None
    x: str | None = None  # objects with a context's features, instead of columns for each one
    actions: str | None = None  # lists of actions with features, as in contexts; the other roles then name their ids
    eligible_separator: str = "|"
    delay_unit: Unit | None = None
    time_unit: Literal["s", "ms", "us"] | None = None
    classes: tuple[str, ...] | None = None
    actions_max: int | None = Field(default=None, ge=2, le=ACTIONS_MAX)  # by default, the largest number in the log
    # The features' indices, as written by `to_plain`, with those of actions as a member; a mapping names the file.
    encoding: dict[str, Any] | None = None
    features: FeatureColumns = Field(default_factory=FeatureColumns)
    action_features: FeatureColumns = Field(default_factory=FeatureColumns)  # of actions; if empty, by their values

    @field_validator("classes", mode="before")
    @classmethod
    def _texts(cls, given: object) -> object:
        """Accept numbers and booleans as class names."""
        if isinstance(given, list | tuple):
            return tuple(one if (text := text_of(one)) is None else text for one in given)
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> "LogMapping":
        if self.action is None and self.label is None:
            raise ValueError("map action or label: a log must contain the played action or the correct label")
        for needs, needed in (
            ("reward", "action"), ("propensity", "action"), ("feedback_time", "timestamp"), ("delay_unit", "delay"),
            ("eligible", "action"), ("actions", "action"),
        ):  # fmt: skip
            if getattr(self, needs) is not None and getattr(self, needed) is None:
                raise ValueError(f"{needs} requires {needed}: map {needed} as well")
        if self.feedback_time is not None and self.delay is not None:
            raise ValueError("map either feedback_time or delay, not both")
        if self.classes is not None and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError(f"expected two or more distinct classes; got {list(self.classes)}")
        if not self.eligible_separator:
            raise ValueError("eligible_separator: expected a separator between the names; got an empty string")
        if self.actions is None and (self.action_features.kinds() or self.actions_max is not None):
            raise ValueError("action_features and actions_max require actions: map the column with lists of actions")
        if self.actions is not None and (self.label is not None or self.classes is not None):
            raise ValueError("actions have ids and rewards; map neither label nor classes with them")
        if self.encoding is not None and (self.actions is None) != (ACTIONS not in self.encoding):
            raise ValueError(f"the file of encoding has a member {ACTIONS} if and only if actions are mapped")
        if self.x is not None and self.encoding is None and self.features.kinds():
            raise ValueError("map either x, an object with all features, or list the columns of features")
        if not self.features.kinds() and self.actions is None and self.x is None:
            raise ValueError("no features: list columns under [features] as numeric, categorical or text")
        return self

    def columns(self) -> tuple[str, ...]:
        """Return all mapped columns, without duplicates."""
        roles = (getattr(self, role) for role in ROLES)
        features = self.features.kinds() if self.x is None else ()
        return tuple(dict.fromkeys([*(name for name in roles if name is not None), *features]))

    def kinds_of_actions(self) -> dict[str, Kind]:
        """Return the kinds of the features of actions, except those that follow from their values."""
        if self.encoding is not None and ACTIONS in self.encoding:
            return {name: one.kind for name, one in from_plain(self.encoding[ACTIONS]).names.items()}
        return self.action_features.kinds()

    def unit_of_delay(self) -> Unit:
        """Return the unit of numeric delays, from the mapping or the column's name; the default is seconds.

        >>> LogMapping(action="a", delay="wait_ms", features=FeatureColumns(numeric=("x",))).unit_of_delay()
        'ms'
        """
        if self.delay_unit is not None:
            return self.delay_unit
        return unit_of_name(self.delay or "") or "s"


def words_of_name(column: str) -> list[str]:
    """Return the words in a column's name, in lower case.

    >>> words_of_name("hoursToBuy"), words_of_name("wait (ms)")
    (['hours', 'to', 'buy'], ['wait', 'ms'])
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    return [word for word in re.split(r"[^a-z]+", parted) if word]


def unit_of_name(column: str) -> Unit | None:
    """Return the unit in a column's name, or None. A unit at the end of the name takes precedence.

    >>> [unit_of_name(name) for name in ("minutes_to_buy", "delay_min", "waitMs", "min_delay", "delay")]
    ['m', 'm', 'ms', None, None]
    """
    words = words_of_name(column)
    last = words[-1] if words else ""
    found = (_LAST_WORDS.get(last), _UNIT_WORDS.get(last), *map(_UNIT_WORDS.get, words))
    return next((unit for unit in found if unit is not None), None)


ROLES = (
    "id", "timestamp", "action", "reward", "propensity", "label", "feedback_time", "delay", "eligible", "baseline",
    "actions", "x",
)  # fmt: skip
"""Roles of columns other than features."""


def read_mapping(file_or_pairs: Path | str) -> LogMapping:
    """Read a mapping from a file or from pairs such as `action=item,reward=click,categorical=device+region`.

    Raises:
        DatasetError: the mapping is unreadable or invalid.
    """
    path = Path(file_or_pairs)
    text = str(file_or_pairs)
    if "=" in text and not os.path.exists(path):  # Path.exists would fail if the pairs are too long for a file name
        return mapping_of(_fields_of_pairs(text), repr(text))
    try:
        fields = tomllib.loads(read_text(path))
    except OSError as error:
        raise DatasetError(f"cannot read the mapping {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"the mapping {path} is not valid TOML: {error}") from error
    return mapping_of(_with_encoding(fields, path), str(path))


def mapping_for(data: Path | str, given: Path | str | None) -> LogMapping | None:
    """Return the given mapping, or else the mapping in the file `mapping_path`, or None if there is no such file.

    Raises:
        DatasetError: the mapping is unreadable or invalid.
    """
    if given is not None:
        return read_mapping(given)
    path = mapping_path(data)
    if path is None or not path.is_file():
        return None
    announce(f"{data}: columns as mapped in {path}")
    return read_mapping(path)


def mapping_path(data: Path | str) -> Path | None:
    """Return the file with the mapping of a table: the table's path with the extension .toml.

    The result is None if the file's name is not that of a table.

    >>> mapping_path("logs/week.jsonl.gz"), mapping_path("joined.dsjson")
    (PosixPath('logs/week.toml'), None)
    """
    path = Path(data)
    stem = TABLE_SUFFIX.sub("", path.name)
    return path.with_name(f"{stem}.toml") if stem and stem != path.name else None


TABLE_SUFFIX = re.compile(r"\.(csv|tsv|jsonl|ndjson|json|parquet)(\.(gz|zst|zstd))?$", re.IGNORECASE)
"""The extensions of tables, which require a mapping."""


def _with_encoding(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Replace the name of the file with the features' indices by its content, and list the features.

    Raises:
        DatasetError: the file is unreadable or invalid, or the mapping also lists features.
    """
    name = fields.get("encoding")
    if name is None:
        return dict(fields)
    if not isinstance(name, str) or fields.keys() & {"features", "action_features"}:
        raise DatasetError(f"the mapping {path}: expected the name of a file as encoding, and no features")
    file = path.parent / name
    try:
        plain = orjson.loads(read_bytes(file))
        encoder = from_plain(plain)
        encoding = to_plain(encoder)
        if ACTIONS in plain:
            encoding[ACTIONS] = to_plain(from_plain(plain[ACTIONS]))
    except (OSError, orjson.JSONDecodeError, NamedFeaturesError) as error:
        raise DatasetError(
            f"the mapping {path}: expected a file of features from `onebit data show` as encoding; {error}"
        ) from error
    columns = {str(kind): [one for one, known in encoder.names.items() if known.kind is kind] for kind in Kind}
    return {**fields, "encoding": encoding, "features": columns}


_LISTS = ("classes", *FeatureColumns.model_fields)
"""Keys whose values are lists. In the short form, + separates the items."""


def _fields_of_pairs(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"features": {}}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            raise DatasetError(
                f"mapping {text!r}: expected KEY=COLUMN pairs; got {pair!r}. "
                "If a column name contains a separator, use a mapping file"
            )
        within = fields["features"] if key in FeatureColumns.model_fields else fields
        if key in within:
            raise DatasetError(f"mapping {text!r}: duplicate key {key}; separate list items with +")
        within[key] = value.split("+") if key in _LISTS else value
    return fields


def mapping_of(fields: Mapping[str, Any], where: str) -> LogMapping:
    """Create a mapping from plain values.

    Raises:
        DatasetError: a key is unknown or a value is invalid.
    """
    try:
        return LogMapping.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known: Iterable[str] = FeatureColumns.model_fields if len(first["loc"]) > 1 else LogMapping.model_fields
            names = list(known)
            hint = close_matches(str(first["loc"][-1]), names) or f"; the keys are {', '.join(names)}"
            raise DatasetError(f"mapping {where}: unknown key {key}{hint}") from error
        message = first["msg"].removeprefix("Value error, ")
        got = "" if first["type"] == "value_error" else f"; got {str(first['input'])[:100]!r}"
        raise DatasetError(f"mapping {where}{f', {key}' if key else ''}: {message}{got}") from error


def check_columns(mapping: LogMapping, present: Iterable[str], where: str) -> None:
    """Check that a table has all mapped columns.

    Raises:
        DatasetError: a column is missing or ambiguous.
    """
    names = list(present)
    for column in mapping.columns():
        if column not in names:
            some = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
            hint = close_matches(column, names) or f"; it has {some}"
            raise DatasetError(f"{where} has no column {column!r}, which the mapping requires{hint}")
        if names.count(column) > 1:
            raise DatasetError(f"{where} has several columns named {column!r}; rename them")
