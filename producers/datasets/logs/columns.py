"""Conversion of table columns to numbers, strings and times. Each distinct string is converted once."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from producers.datasets.log import MISSING
from producers.datasets.logs.mapping import UNITS_US, Unit
from producers.datasets.logs.parsed import Lists, Problem, Texts, distinct_of, problem
from producers.datasets.logs.streams import LINE_BYTES_MAX
from stream.parsing import DurationError, parse_duration, parse_number
from stream.wire.named_features import text_of
from stream.wire.records import FloatArray

Column: TypeAlias = Texts | NDArray[Any] | list[Any]
"""Strings; an array of numbers or times, without missing values; or a list of values, with None for missing ones."""

Int64Array = NDArray[np.int64]

TIME_MS_MAX = 253_402_300_800_000
"""The end of the year 9999, in milliseconds since 1970."""

SECONDS_MAX = 100_000_000_000
"""Numbers below this value are seconds since 1970 (up to the year 5138). Others are milliseconds (from 1973 on)."""

MILLISECONDS_MAX = 100_000_000_000_000
"""Numbers of at least this value are microseconds."""

_TEXT = {str, type(None)}
_WHOLE = {int, type(None)}
_NUMBER = {int, float, type(None)}
_DECIMAL = re.compile("[-+.0-9eE]*")
"""The characters that a decimal number may contain. `float` also accepts other characters."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_empty(column: Column) -> bool:
    """Return whether all values are missing."""
    return not any(value is not None and value != "" for value in values_of(column))


def numbers(column: Column, field: str, expected: str, problems: list[Problem]) -> FloatArray:
    """Return the values as numbers, with NaN for missing values. Report each value that is not a finite number."""
    found = _finite(column)
    return _converted(column, field, expected, problems, _number, np.nan) if found is None else found


TEXT_OR_NUMBER = "a string or a number (whole numbers: at most 64 bits, or a string of digits)"


def texts(column: Column, field: str, problems: list[Problem]) -> Texts:
    """Return the values as the strings that identify them; see `text_of`."""
    values: Sequence[Any]
    if isinstance(column, Texts):
        known = _not_too_long(column, field, problems)
        values, codes = known.distinct, known.codes
    else:
        values = values_of(column)
        kinds = set(map(type, values))
        if kinds <= _TEXT or kinds <= _WHOLE:
            values, codes = distinct_of(values)
        else:  # 1, 1.0 and True are equal, but not the same
            codes = np.arange(len(values))
    found = list(map(text_of, values))
    if found == values:
        return Texts(found, codes)  # type: ignore[arg-type]
    refused = [code for code, text in enumerate(found) if text is None and values[code] is not None]
    if refused:
        rows = np.flatnonzero(np.isin(codes, refused)).tolist()
        problems.extend(_no_single(row, field, TEXT_OR_NUMBER, values[codes[row]]) for row in rows)
    return Texts.by_code(found, codes)


def lists(column: Column, field: str, separator: str, problems: list[Problem]) -> Lists:
    """Return the values as lists of strings. A string is split at the separator; a number becomes a single string."""
    found: list[tuple[str | None, ...] | None] = []
    for row, value in enumerate(values_of(column)):
        names: tuple[str | None, ...] | None = None
        if isinstance(value, str):
            names = tuple(map(text_of, value.split(separator))) if value else None
        elif value is not None:
            names = tuple(map(text_of, value if isinstance(value, list) else [value]))
        if names is not None and not all(names):
            problems.append(problem(row, field, "a list of numbers or non-empty strings", value))
            names = None
        found.append(names)
    return Lists(*distinct_of(found))


def times_ms(column: Column, field: str, unit: Unit | None, problems: list[Problem]) -> Int64Array:
    """Return the values as milliseconds since 1970, or MISSING.

    Args:
        column: ISO 8601, numbers, or numpy times.
        field: The column name, for messages.
        unit: The unit of the numbers. None means that the unit is inferred from their magnitude.
        problems: Receives a problem for each value that is not a time.
    """
    expected = "an ISO 8601 time, or a number of s, ms or µs since 1970"
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        found = np.where(np.isnat(column), np.nan, column.astype("M8[ms]").astype(np.int64))
    elif (sizes := _finite(column)) is not None:
        found = np.floor(sizes * _per_ms(sizes, unit))
    else:
        return _converted(column, field, expected, problems, lambda value: _time_ms(value, unit), MISSING)
    bad = (found < 0) | (found > TIME_MS_MAX)
    problems.extend(problem(row, field, expected, values_of(column)[row]) for row in np.flatnonzero(bad).tolist())
    return np.where(bad | np.isnan(found), MISSING, found).astype(np.int64)


def delays_ms(column: Column, field: str, unit: Unit, problems: list[Problem]) -> Int64Array:
    """Convert numbers in this unit, or durations such as 5s, to milliseconds. Missing values become MISSING."""
    expected = "a non-negative duration"
    if isinstance(column, np.ndarray) and column.dtype.kind == "m":
        units = column / np.timedelta64(UNITS_US[unit], "us")
        found: FloatArray | None = np.where(np.isnat(column), np.nan, units)
    else:
        found = _finite(column)
    if found is None:
        found = _converted(column, field, expected, problems, lambda value: _in_units(value, unit), np.nan)
    found = found * (UNITS_US[unit] / 1_000)
    bad = (found < 0) | (found > TIME_MS_MAX)
    problems.extend(problem(row, field, expected, values_of(column)[row]) for row in np.flatnonzero(bad).tolist())
    return np.rint(np.where(bad | np.isnan(found), MISSING, found)).astype(np.int64)


def unit_by_size(number: float) -> Unit:
    """Return the most likely unit for a time since 1970."""
    size = abs(number)
    return "s" if size < SECONDS_MAX else "ms" if size < MILLISECONDS_MAX else "us"


def _finite(column: Column) -> FloatArray | None:
    """Return a column of finite numbers, with NaN for missing values, or None if the column contains other values."""
    if isinstance(column, np.ndarray):
        found = column.astype(np.float64) if column.dtype.kind in "iuf" else None
        return found if found is not None and np.isfinite(found).all() else None
    if isinstance(column, Texts):
        return None
    kinds = set(map(type, column))
    missing = 0
    values: Sequence[Any] = column
    try:
        if kinds == {str}:
            if not _DECIMAL.fullmatch("".join(column)):
                return None
            missing = column.count("")
            values = list(map(float, [text or "nan" for text in column] if missing else column))
        elif kinds <= _NUMBER:
            missing = column.count(None) if type(None) in kinds else 0
        else:
            return None
        found = np.array(values, np.float64)
    except (OverflowError, ValueError):
        return None
    return found if np.count_nonzero(~np.isfinite(found)) == missing else None


def _converted(
    column: Column,
    field: str,
    expected: str,
    problems: list[Problem],
    read: Callable[[Any], float | None],
    missing: float,
) -> NDArray[Any]:
    """Convert the values with `read`, and report those for which it returns None."""
    if isinstance(column, Texts):
        values: Sequence[Any] = column.distinct
        codes = column.codes
    else:
        values = values_of(column)
        codes = np.arange(len(values))
    converted = [missing if value is None or value == "" else read(value) for value in values]
    bad = np.array([one is None for one in converted] + [False])[codes]
    problems.extend(_no_single(row, field, expected, values[codes[row]]) for row in np.flatnonzero(bad).tolist())
    return np.array([missing if one is None else one for one in converted] + [missing])[codes]


def values_of(column: Column) -> list[Any]:
    """Return the values as plain Python values, with None for missing ones."""
    if isinstance(column, list):
        return column
    if isinstance(column, Texts):
        return column.to_list()
    if column.dtype in (np.float16, np.float32):
        return list(map(float, column.astype(str)))  # the shortest text, such as 0.1
    is_time = column.dtype.kind in "Mm"
    return cast(list[Any], (column.astype(f"{column.dtype.kind}8[us]") if is_time else column).tolist())


def plain_of(value: object) -> object:
    """Return the value of JSON text, or None if it is invalid. Other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None


def _not_too_long(column: Texts, field: str, problems: list[Problem]) -> Texts:
    """Report and remove strings longer than the maximum line length, which Parquet does not enforce."""
    sizes = {text: size for text in column.distinct if (size := _size(text)) > LINE_BYTES_MAX}
    if not sizes:
        return column
    listed = column.to_list()
    problems.extend(
        problem(row, field, f"at most {LINE_BYTES_MAX} bytes", f"{sizes[text]} bytes")
        for row, text in enumerate(listed)
        if text in sizes
    )
    return Texts.of([None if text in sizes else text for text in listed])


def _size(text: str) -> int:
    return len(text) if 4 * len(text) <= LINE_BYTES_MAX else len(text.encode())


def _no_single(row: int, field: str, expected: str, value: Any) -> Problem:
    """Return a problem for a value of an unsupported type, with a hint for lists and objects."""
    hint = " (map the elements of lists and objects as separate columns)" if isinstance(value, list | dict) else ""
    return problem(row, field, expected + hint, value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        number = parse_number(value)
        if number is None:
            text = value.strip()
            return {"true": 1.0, "false": 0.0}.get(text.lower(), parse_number(text))
        return number
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if np.isfinite(number) else None
    return None


def _time_ms(value: Any, unit: Unit | None) -> int | None:
    number = None if isinstance(value, bool) else _number(value)
    if number is None:
        try:
            # BigQuery writes "2024-05-01 10:00:00.218 UTC". A time without a zone is UTC.
            moment = datetime.fromisoformat(value.removesuffix(" UTC")) if isinstance(value, str) else value
            # `timestamp()` returns a float, which may be a millisecond too small
            since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
            number_ms = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
        except (ValueError, AttributeError, OverflowError, TypeError):
            return None
    else:
        number_ms = int(number * UNITS_US[unit or unit_by_size(number)] // 1_000)
    return number_ms if 0 <= number_ms <= TIME_MS_MAX else None


def _in_units(value: Any, unit: Unit) -> float | None:
    """Return a number unchanged, or a duration such as 5s converted to this unit."""
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            return parse_duration(value) * 1_000 / UNITS_US[unit]
        except DurationError:
            return None
    return number


def _per_ms(sizes: FloatArray, unit: Unit | None) -> FloatArray | float:
    if unit is not None:
        return UNITS_US[unit] / 1_000
    return np.select([np.abs(sizes) < SECONDS_MAX, np.abs(sizes) < MILLISECONDS_MAX], [1_000.0, 1.0], 0.001)
