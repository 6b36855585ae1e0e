"""Reads JSON lines (one object per line) as tables. Nested fields have dotted column names."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import orjson

from producers.datasets.logs.parsed import Problem, problem
from producers.datasets.logs.streams import LineBlock, Source, line_blocks
from producers.datasets.logs.tables import Table

_DEPTH_MAX = 8


def column_names(source: Source, wanted: Collection[str] = ()) -> list[str]:
    """Return the names of all columns, in order of first appearance. Stop once all wanted columns are found.

    An object is a column only if it is wanted. Otherwise, its members are columns.
    """
    found: dict[str, None] = {}
    for objects in objects_of(source):
        for fields in objects.rows:
            found.update(dict.fromkeys(_flat_names(fields, "", 0)))
            found.update((name, None) for name in wanted if type(fields.get(name)) is dict)
        if wanted and found.keys() >= set(wanted):
            break
    return list(found)


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """Yield the rows, restricted to these columns; None means all columns."""
    names = column_names(source) if columns is None else columns
    first_row = 0
    for objects in objects_of(source):
        found = {name: _column(objects.rows, name) for name in names}
        yield Table(len(objects.rows), first_row, found, objects.problems, objects.where)
        first_row += len(objects.rows)


class Objects(NamedTuple):
    """The objects in a block of lines. A line with a problem is replaced by an empty object."""

    rows: list[dict[str, Any]]
    problems: tuple[Problem, ...]
    where: partial[str]


def objects_of(source: Source) -> Iterator[Objects]:
    """Yield the objects, block by block."""
    for block in line_blocks(source.chunks()):
        objects = _objects(block)
        if objects.rows:
            yield objects


def _objects(block: LineBlock) -> Objects:
    where = partial(_where, block)
    if block.fault is not None:
        return Objects([{}], (Problem(0, *block.fault),), where)
    lines = block.data.split(b"\n")
    with suppress(orjson.JSONDecodeError):
        rows = list(map(orjson.loads, filter(None, lines)))
        if set(map(type, rows)) <= {dict}:
            return Objects(rows, (), where)
    rows = []
    problems: list[Problem] = []
    for line in lines:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if not line.strip():
                continue
            fields = {}
            text = line[:40].decode("utf-8", "backslashreplace")
            problems.append(Problem(len(rows), "line: expected one JSON object", f"{text!r} ({error})"))
        if type(fields) is not dict:
            problems.append(problem(len(rows), "line", "one JSON object", fields))
            fields = {}
        rows.append(fields)
    return Objects(rows, tuple(problems), where)


def _where(block: LineBlock, row: int) -> str:
    numbers = [number for number, line in enumerate(block.data.split(b"\n"), block.first_line) if line.strip()]
    return f"line {numbers[row] if numbers else block.first_line}"


def _column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """Return the value with this name, or at this dotted path, in each row."""
    found = [row.get(name) for row in rows]
    if "." not in name:
        return found
    first, *rest = name.split(".")
    nested = [row.get(first) for row in rows]
    for part in rest:
        nested = [value.get(part) if type(value) is dict else None for value in nested]
    return [inner if value is None else value for value, inner in zip(found, nested, strict=True)]


def _flat_names(fields: dict[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for name, value in fields.items():
        if type(value) is dict and depth < _DEPTH_MAX:
            yield from _flat_names(value, f"{prefix}{name}.", depth + 1)
        else:
            yield prefix + name
