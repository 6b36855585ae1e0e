"""The rows of an experiment as a Parquet file: written whole and renamed, so that one that is there can be read."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from stream.experiments.definition import ExperimentError
from stream.experiments.measure import Row

_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), list[int]: pa.list_(pa.int64())}

SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in get_type_hints(Row).items()])


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put the rows in the place of those that are there."""
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in Row._fields}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    pq.write_table(pa.table(columns, schema=SCHEMA), beside, compression="zstd")
    os.replace(beside, path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none when it is not there.

    Raises:
        ExperimentError: it is no file of rows, or one of another version.
    """
    if not path.exists():
        return []
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise ExperimentError(f"{path}: expected the rows of an experiment as Parquet; {error}") from error
    if table.schema.names != SCHEMA.names:
        raise ExperimentError(
            f"{path}: expected the columns {', '.join(SCHEMA.names)}; got {', '.join(table.schema.names)}; "
            "give another folder for the results, or delete this file"
        )
    return [Row(**fields) for fields in table.to_pylist()]


def with_keys(rows: Iterable[Row], keys: Iterable[str]) -> list[Row]:
    """Those rows whose key is among these."""
    wanted = set(keys)
    return [row for row in rows if row.key in wanted]
