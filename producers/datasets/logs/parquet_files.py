"""Writes logs as Parquet files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

_TYPES = {
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "whole": pa.int64(),
    "number": pa.float64(),
    "plain": pa.string(),
}


class ParquetLog:
    """Writes rows as row groups, one per call."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        """Open a new file."""
        self._plain = {name for name, kind in columns.items() if kind == "plain"}
        self._schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
        self._file = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: Sequence[Mapping[str, Any]], /) -> None:
        """Write the next rows."""
        columns = [pa.array([self._value(row, field.name) for row in rows], field.type) for field in self._schema]
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def _value(self, row: Mapping[str, Any], name: str) -> Any:
        value = row.get(name)
        return orjson.dumps(value).decode() if name in self._plain and value is not None else value

    def close(self) -> None:
        """Finish the file."""
        self._file.close()
