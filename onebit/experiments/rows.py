"""Result files: rows as gzipped JSON lines. The files are written atomically."""

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from onebit.experiments.definition import ExperimentError
from onebit.experiments.measure import Row


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a file with these rows, replacing any existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    lines = b"".join(orjson.dumps(row._asdict(), option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    beside.write_bytes(gzip.compress(lines, mtime=0))  # no timestamp, so that equal rows give equal bytes
    os.replace(beside, path)


def read_rows(path: Path) -> list[Row]:
    """Return the rows in a file, or an empty list if the file does not exist.

    Raises:
        ExperimentError: the file is not a result file, or was written by a different version of Onebit.
    """
    if not path.exists():
        return []
    try:
        return [_row(orjson.loads(line), path) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        message = f"{path}: expected an experiment's rows as gzipped JSON lines; got {error}"
        raise ExperimentError(message) from error


def _row(fields: Any, path: Path) -> Row:
    names = list(fields) if type(fields) is dict else []
    if names != list(Row._fields):
        raise ExperimentError(
            f"{path}: expected the columns {', '.join(Row._fields)}; got {', '.join(names) or 'none'}; "
            "use a different results directory, or delete this file"
        )
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in fields.items()}
    return Row(**values)  # JSON represents NaN as null
