"""Parquet files, as tables. A column within a struct has a dotted name."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from producers.datasets.base import DatasetError
from producers.datasets.logs.columns import Column
from producers.datasets.logs.streams import Source
from producers.datasets.logs.tables import Table

BATCH_ROWS = 16_384
"""Of wide rows, too, a batch takes some megabytes."""


def column_names(source: Source) -> list[str]:
    """The columns, those within structs too."""
    return [name for field in _open(source).schema_arrow for name in _names(field)]


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """The rows, with the columns asked for; None: all.

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
            found = {name: _column(batch, name) for name in names}
            yield Table(batch.num_rows, first_row, found, (), partial(_where, first_row))
            first_row += batch.num_rows
        source.check_unchanged()
    except (pa.ArrowException, OSError) as error:
        source.check_unchanged()
        raise DatasetError(f"{source.name}, after row {first_row}, is damaged Parquet: {error}") from error


def n_rows(source: Source) -> int:
    """How many rows the file says that it has."""
    rows: int = _open(source).metadata.num_rows
    return rows


def _open(source: Source) -> parquet.ParquetFile:
    """Raises: DatasetError: the file cannot be read, or has changed."""
    source.check_unchanged()
    try:
        return parquet.ParquetFile(source.file, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{source.name} cannot be read as Parquet: {error}; was it cut off?") from error


def _where(first_row: int, row: int) -> str:
    return f"row {first_row + row + 1}"


def _names(field: pa.Field) -> list[str]:
    if not pa.types.is_struct(field.type):
        return [field.name]
    return [f"{field.name}.{name}" for inner in field.type for name in _names(inner)]


def _column(batch: pa.RecordBatch, name: str) -> Column:
    if name in batch.schema.names:
        return batch.column(name)
    first, *rest = name.split(".")
    return pc.struct_field(batch.column(first), rest)
