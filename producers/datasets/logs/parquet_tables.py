"""Reads Parquet files and tables in memory. Nested fields have dotted names.

Only this module imports the optional pyarrow.
"""

from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from producers.datasets.base import DatasetError
from producers.datasets.logs.columns import Column
from producers.datasets.logs.parsed import Texts
from producers.datasets.logs.streams import Source
from producers.datasets.logs.tables import Table
from stream.programs.process import quantity

_EXACT_DIGITS = 15
"""Every decimal number with this number of digits has its own float, whose shortest text is the number."""

BATCH_ROWS = 16_384
"""Number of rows per batch. Even with wide rows, a batch takes only a few megabytes."""


def source_of(table: object) -> Source:
    """Return a source that reads a table in memory.

    Raises:
        DatasetError: pyarrow cannot convert a column.
    """
    kind = type(table).__name__
    try:
        found = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = ": ".join(map(str, reversed(error.args)))
        raise DatasetError(f"data: cannot convert the {kind}: {reason}. Convert or drop the column") from error
    return Source(f"{kind} ({quantity(found.num_rows, 'row')})", found)


def column_names(source: Source, wanted: Collection[str] = ()) -> list[str]:
    """Return the column names, including those within structs, and those of wanted structs."""
    schema = _open(source).schema_arrow
    structs = [field.name for field in schema if field.name in wanted and pa.types.is_struct(field.type)]
    return [*structs, *(name for field in schema for name in _names(field))]


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """Yield the rows, restricted to these columns; None means all columns.

    Raises:
        DatasetError: the file is damaged.
    """
    names = column_names(source) if columns is None else columns
    file = _open(source)
    present = set(file.schema_arrow.names)
    first_row = 0
    try:
        wanted = list(dict.fromkeys(name if name in present else name.split(".")[0] for name in names))
        for batch in file.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
            found = {name: _column(_array(batch, name)) for name in names}
            yield Table(batch.num_rows, first_row, found, (), partial(_where, first_row))
            first_row += batch.num_rows
        source.check_unchanged()
    except (pa.ArrowException, OSError) as error:
        source.check_unchanged()
        what = "damaged Parquet data" if source.table is None else "a column that cannot be read"
        raise DatasetError(f"{source.name} contains {what} after row {first_row}: {error}") from error


class _InMemory:
    """A table in memory, with those parts of the interface of `parquet.ParquetFile` that this module uses."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema_arrow = table.schema

    def iter_batches(self, rows: int, columns: Sequence[str], **_options: object) -> Iterator[pa.RecordBatch]:
        """Yield the columns in batches, with as many rows as from a file."""
        table = self._table.select(columns)
        for first in range(0, table.num_rows, rows):
            yield from table.slice(first, rows).combine_chunks().to_batches()


def _open(source: Source) -> "parquet.ParquetFile | _InMemory":
    """Open the file. Raise DatasetError if it cannot be read or has changed."""
    if source.table is not None:
        return _InMemory(source.table)
    source.check_unchanged()
    try:
        return parquet.ParquetFile(source.file(), pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{source.name} cannot be read as Parquet: {error}. The file may be truncated") from error


def _where(first_row: int, row: int) -> str:
    return f"row {first_row + row + 1}"


def _names(field: pa.Field) -> list[str]:
    if not pa.types.is_struct(field.type):
        return [field.name]
    return [f"{field.name}.{name}" for inner in field.type for name in _names(inner)]


def _array(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    first, *rest = name.split(".")
    return pc.struct_field(batch.column(first), rest)


def _column(array: pa.Array) -> Column:
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = array.dictionary
        if pa.types.is_string_view(kind.value_type):  # for which pyarrow lacks a kernel
            values = values.cast(pa.large_string())
        array = values.take(array.indices)
        kind = array.type
    if pa.types.is_decimal(kind) and kind.precision <= _EXACT_DIGITS:
        array = array.cast(pa.float64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms"))
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        encoded = array.cast(pa.large_string()).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Texts.by_code(encoded.dictionary.to_pylist(), codes)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or (is_number and array.null_count == 0):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        shortest = array.cast(pa.string()).to_pylist()  # such as 0.1, as in an array without missing values
        return [None if text is None else float(text) for text in shortest]
    return list(map(_plain, array.to_pylist()))


def _plain(value: object) -> object:
    """Return a value as a number or text, without rounding. Bytes that are not UTF-8 remain bytes."""
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):  # some programs write strings without marking them as text
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, Decimal):
        if value == value.to_integral_value():
            return int(value)
        number = float(value)
        return number if Decimal(repr(number)) == value else f"{value:f}".rstrip("0")
    return value
