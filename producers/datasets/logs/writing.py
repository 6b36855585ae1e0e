"""Writes a log as Parquet or JSON lines, with its mapping in a file beside it.

A log of week.parquet has the mapping week.toml, and the indices of named features in week.features.json. All files are
written with temporary names and renamed at the end, the log last. After an error or an interrupt, no file remains.
"""

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import orjson

from producers.datasets.base import DatasetError
from producers.datasets.logs.mapping import mapping_path

ROWS_MAX = 16_384
"""Maximum number of rows per batch."""

CELLS_MAX = 1 << 20
"""Maximum number of cells per batch, which limits the memory for wide rows."""


ColumnType = Literal["text", "texts", "whole", "number", "plain"]

Columns = Mapping[str, ColumnType]
"""The columns' types by name. A column of texts contains lists; whole numbers have 64 bits. A plain value consists of
objects and lists, as JSON; Parquet files contain its JSON text."""

Row = Mapping[str, Any]
"""Values by column name. A missing value is None or absent."""


class LogWriter(Protocol):
    """Writes a log's rows to a file."""

    def write(self, rows: Sequence[Row], /) -> None:
        """Write the next rows."""

    def close(self) -> None:
        """Finish the file."""


class WrittenFiles(NamedTuple):
    """The files of a log."""

    log: Path
    mapping: Path
    encoding: Path | None  # the indices of named features


class _JsonLines:
    """Writes a JSON object per row. Only the first object has the missing values, so that it names all columns."""

    def __init__(self, path: Path, columns: Columns, *, is_compressed: bool) -> None:
        self._first: Row | None = dict.fromkeys(columns)
        self._file: BinaryIO = path.open("wb")
        self._lines = gzip.GzipFile(fileobj=self._file, mode="wb", mtime=0) if is_compressed else self._file

    def write(self, rows: Sequence[Row], /) -> None:
        for row in rows:
            given = {name: value for name, value in row.items() if value is not None}
            if self._first is not None:
                given, self._first = {**self._first, **row}, None
            self._lines.write(orjson.dumps(given, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        self._lines.close()
        self._file.close()


def check_log_path(path: Path) -> None:
    """Check a log's name.

    Raises:
        DatasetError: the extension is not one of those of `new_log`, or the folder does not exist.
    """
    if not path.name.endswith((".parquet", ".jsonl", ".jsonl.gz")) or mapping_path(path) is None:
        raise DatasetError(f"{path}: expected a file name with the extension .parquet, .jsonl or .jsonl.gz")
    if not path.parent.is_dir():
        raise DatasetError(f"{path}: the folder {path.parent} does not exist")


class NewLog:
    """A log that is being written. Use as a context manager; call `finish` after the last row."""

    def __init__(
        self, path: Path, columns: Columns, mapping: Mapping[str, Any], encoding: Mapping[str, Any] | None
    ) -> None:
        """Prepare the files.

        Args:
            path: the log's file: .parquet, .jsonl or .jsonl.gz.
            columns: the columns.
            mapping: the mapping, as in a mapping file. It must not list features if there is an encoding.
            encoding: the indices of named features, as written by `to_plain`.
        """
        check_log_path(path)
        found = mapping_path(path)
        assert found is not None
        of_features = None if encoding is None else found.with_suffix(".features.json")
        self.files = WrittenFiles(path, found, of_features)
        self._columns, self._mapping, self._encoding = columns, mapping, encoding
        self._rows_max = max(1, min(ROWS_MAX, CELLS_MAX // len(columns)))
        self._rows: list[Row] = []

    def __enter__(self) -> "NewLog":
        try:
            self._writer = _writer(_fresh(self.files.log), self.files.log.name, self._columns)
        except OSError as error:
            raise self._failed(error) from error
        return self

    def add(self, row: Row) -> None:
        """Write a row.

        Raises:
            DatasetError: the file cannot be written.
        """
        self._rows.append(row)
        if len(self._rows) == self._rows_max:
            self._flush()

    def finish(self) -> WrittenFiles:
        """Write the rest, and rename the files.

        Raises:
            DatasetError: a file cannot be written.
        """
        self._flush()
        log, mapping, encoding = self.files
        fields = dict(self._mapping)
        try:
            self._writer.close()
            if encoding is not None:
                fields["encoding"] = encoding.name
                _fresh(encoding).write_bytes(orjson.dumps(self._encoding))
            _fresh(mapping).write_text(_toml(fields), encoding="utf-8")
            for path in filter(None, (encoding, mapping, log)):
                _fresh(path).replace(path)
        except OSError as error:
            raise self._failed(error) from error
        return self.files

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
        except OSError as closing:
            if error is None:
                raise self._failed(closing) from closing
        finally:
            for path in filter(None, self.files):
                _fresh(path).unlink(missing_ok=True)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        try:
            self._writer.write(rows)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> DatasetError:
        return DatasetError(f"cannot write {self.files.log}: {error.strerror or error}")


def _writer(path: Path, name: str, columns: Columns) -> LogWriter:
    if not name.endswith(".parquet"):
        return _JsonLines(path, columns, is_compressed=name.endswith(".gz"))
    try:
        from producers.datasets.logs.parquet_files import ParquetLog
    except ImportError as error:
        raise DatasetError(
            f"Parquet requires {error.name}, which is not installed. Run: pip install 'onebit[parquet]', or use the "
            "extension .jsonl"
        ) from error
    return ParquetLog(path, columns)


def _fresh(path: Path) -> Path:
    """Return the temporary name of a file."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def _toml(fields: Mapping[str, Any]) -> str:
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if key != "features"]
    if "features" in fields:
        lines += ["", "[features]", *(f"{kind} = {json.dumps(names)}" for kind, names in fields["features"].items())]
    return "\n".join(lines) + "\n"
