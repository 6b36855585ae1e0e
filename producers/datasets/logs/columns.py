"""Columns as numbers, texts and times. What is easy goes at once; a column with anything odd goes value by value.

A column is an Arrow array, or a list of JSON values of which not all are of one type.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from producers.datasets.log import MISSING
from producers.datasets.logs.mapping import UNITS_US, Unit
from producers.datasets.logs.parsed import Problem, problem
from producers.datasets.logs.streams import LINE_BYTES_MAX
from stream.durations import DurationError, parse_duration
from stream.parsing import parse_number
from stream.wire.events import FloatArray
from stream.wire.named_features import text_of

Column: TypeAlias = pa.Array | list[Any]
Int64Array = NDArray[np.int64]

TIME_MS_MAX = 253_402_300_800_000
"""The end of the year 9999, in milliseconds since 1970."""

SECONDS_MAX = 100_000_000_000
"""Numbers below it are seconds since 1970 (until the year 5138), and from it on milliseconds (since 1973)."""

MILLISECONDS_MAX = 100_000_000_000_000
"""Numbers from it on are microseconds."""


def column_of(values: Sequence[Any]) -> Column:
    """A column of JSON values: an Arrow array when they are of one type."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if not kinds or kinds == {str}:
            return pa.array(values, pa.string())
        if kinds == {int}:
            return pa.array(values, pa.int64())
        if kinds <= {int, float}:
            return pa.array(values, pa.float64())
        if kinds == {bool}:
            return pa.array(values, pa.bool_())
    except (pa.ArrowInvalid, OverflowError):
        pass
    return list(values)


def is_null(column: Column) -> NDArray[np.bool_]:
    """Which values are not there."""
    if isinstance(column, list):
        return np.fromiter((one is None or one == "" for one in column), np.bool_, len(column))
    nulls: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return nulls


def numbers(column: Column, field: str, expected: str, problems: list[Problem]) -> FloatArray:
    """The values as numbers; NaN for those that are not there, and a problem for each that is no finite number."""
    array = None if isinstance(column, list) else _cast_to_numbers(column)
    if array is None:
        return _one_by_one(column, field, expected, problems, _number, np.nan, np.float64)
    found: FloatArray = array.to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(~np.isfinite(found))
    if odd.size:
        nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
        problems.extend(problem(row, field, expected, float(found[row])) for row in odd[~nulls[odd]].tolist())
    return found


def texts(column: Column, field: str, problems: list[Problem]) -> pa.StringArray:
    """The values as texts, null for those that are not there."""
    if not isinstance(column, list):
        array = _cast_to_texts(column)
        if array is not None:
            return _not_too_long(pc.if_else(pc.equal(array, ""), None, array), field, problems)
        column = column.to_pylist()
    found: list[str | None] = []
    for row, value in enumerate(column):
        text = text_of(value)
        if text is None and value is not None:
            problems.append(_no_single(row, field, "a text or a number", value))
        found.append(text or None)
    return pa.array(found, pa.string())


def _not_too_long(array: pa.StringArray, field: str, problems: list[Problem]) -> pa.StringArray:
    """Texts, null for those that no line may be as long as: in Parquet there are no lines that say so."""
    sizes = pc.binary_length(array)
    if (pc.max(sizes).as_py() or 0) <= LINE_BYTES_MAX:
        return array
    is_long = pc.fill_null(pc.greater(sizes, LINE_BYTES_MAX), False)
    rows = np.flatnonzero(is_long.to_numpy(zero_copy_only=False)).tolist()
    problems.extend(problem(row, field, f"at most {LINE_BYTES_MAX} bytes", f"{sizes[row]} bytes") for row in rows)
    return pc.if_else(is_long, None, array)


def times_ms(column: Column, field: str, unit: Unit | None, problems: list[Problem]) -> Int64Array:
    """The values as milliseconds since 1970; MISSING for those that are not there.

    Args:
        column: ISO 8601, or numbers.
        field: which it is, for messages.
        unit: of numbers; None: by their size.
        problems: what is wrong is added.
    """
    expected = "a time, as ISO 8601 or as a number since 1970"
    if not isinstance(column, list):
        cast = _cast_to_times(column, unit)
        if cast is not None:
            found = cast
            bad = np.flatnonzero((found != MISSING) & ((found < 0) | (found > TIME_MS_MAX)))
            problems.extend(problem(row, field, expected, _value(column, row)) for row in bad.tolist())
            return found
    return _one_by_one(column, field, expected, problems, lambda value: _time_ms(value, unit), MISSING, np.int64)


def delays_ms(column: Column, field: str, unit: Unit, problems: list[Problem]) -> Int64Array:
    """Numbers of a unit, or durations such as 5s, as milliseconds; MISSING for those that are not there."""
    expected = "a duration that is not negative"

    if isinstance(column, list) or (_is_text(column.type) and _cast_to_numbers(column) is None):
        values = column if isinstance(column, list) else column.to_pylist()
        column = [_in_units(value, unit) for value in values]
    found = numbers(column, field, expected, problems) * (UNITS_US[unit] / 1_000)
    bad = np.flatnonzero((found < 0) | (found > TIME_MS_MAX))
    problems.extend(problem(row, field, expected, _value(column, row)) for row in bad.tolist())
    usable = np.where(np.isfinite(found) & (found >= 0) & (found <= TIME_MS_MAX), found, MISSING)
    return np.rint(usable).astype(np.int64)


def unit_by_size(number: float) -> Unit:
    """The unit in which a number is most likely a time since 1970."""
    size = abs(number)
    return "s" if size < SECONDS_MAX else "ms" if size < MILLISECONDS_MAX else "us"


def _one_by_one(
    column: Column,
    field: str,
    expected: str,
    problems: list[Problem],
    read: Callable[[Any], float | None],
    missing: float,
    dtype: type[np.float64] | type[np.int64],
) -> NDArray[Any]:
    found = np.full(len(column), missing, dtype)
    for row, value in enumerate(column if isinstance(column, list) else column.to_pylist()):
        if value is None or value == "":
            continue
        number = read(value)
        if number is None:
            problems.append(_no_single(row, field, expected, value))
        else:
            found[row] = number
    return found


def _no_single(row: int, field: str, expected: str, value: Any) -> Problem:
    """A value that is none of the expected; of lists and objects it is said where their parts belong."""
    hint = " (the parts of a list or an object have columns of their own)" if isinstance(value, list | dict) else ""
    return problem(row, field, expected + hint, value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        text = value.strip()
        return {"true": 1.0, "false": 0.0}.get(text.lower(), parse_number(text))
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
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            # Not `timestamp()`, a float that may fall a millisecond short.
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            number_ms = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
        except (ValueError, AttributeError, OverflowError, TypeError):
            return None
    else:
        number_ms = int(number * UNITS_US[unit or unit_by_size(number)] // 1_000)
    return number_ms if 0 <= number_ms <= TIME_MS_MAX else None


def _in_units(value: Any, unit: Unit) -> Any:
    """A duration as people write it, as a number of units; anything else as it is."""
    try:
        return parse_duration(value) * 1_000 / UNITS_US[unit] if isinstance(value, str) else value
    except DurationError:
        return value


def _cast_to_numbers(array: pa.Array) -> pa.Array | None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _cast_to_numbers(array.cast(kind.value_type))
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    try:
        return array.cast(pa.float64(), safe=_is_text(kind))
    except pa.ArrowInvalid:
        return None


def _cast_to_texts(array: pa.Array) -> pa.StringArray | None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _cast_to_texts(array.cast(kind.value_type))
    if _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    return None  # numbers with a point are written as `text_of` does


def _cast_to_times(array: pa.Array, unit: Unit | None) -> Int64Array | None:
    kind = array.type
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms"))
        kind = array.type
    if _is_text(kind):
        for target in (pa.timestamp("ns", "UTC"), pa.timestamp("ns")):
            try:
                array = array.cast(target)
                break
            except pa.ArrowInvalid:
                continue
        else:
            as_numbers = _cast_to_numbers(array)
            return None if as_numbers is None else _times_of_numbers(as_numbers, unit)
        kind = target
    if not pa.types.is_timestamp(kind):
        as_numbers = None if pa.types.is_boolean(kind) else _cast_to_numbers(array)
        return None if as_numbers is None else _times_of_numbers(as_numbers, unit)
    per_ms = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}[kind.unit]
    ticks: Int64Array = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: Int64Array = ticks * per_ms[0] // per_ms[1]
    return np.where(is_null(array), MISSING, np.where(found == MISSING, TIME_MS_MAX + 1, found))


def _times_of_numbers(array: pa.Array, unit: Unit | None) -> Int64Array | None:
    found = array.to_numpy(zero_copy_only=False)
    there = ~is_null(array)
    if not np.isfinite(found[there]).all():
        return None
    size = np.abs(found)
    if unit is None:
        per_second = np.where(size < SECONDS_MAX, 1_000.0, np.where(size < MILLISECONDS_MAX, 1.0, 0.001))
    else:
        per_second = np.full(found.size, UNITS_US[unit] / 1_000)
    in_ms = np.floor(np.where(there, found, 0.0) * per_second)
    usable = np.clip(in_ms, -2.0, TIME_MS_MAX + 1.0)
    return np.where(there, np.where(usable < 0, -2, usable), MISSING).astype(np.int64)


def _is_text(kind: pa.DataType) -> bool:
    is_text: bool = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_text


def _value(column: Column, row: int) -> object:
    return column[row] if isinstance(column, list) else column[row].as_py()
