"""JSON lines: one object a line, as tables. A column within an object has a dotted name."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from producers.datasets.logs.parsed import Problem, problem
from producers.datasets.logs.streams import HEAD_BYTES, LineBlock, Source, line_blocks
from producers.datasets.logs.tables import Table

_DEPTH_MAX = 8


def column_names(source: Source) -> list[str]:
    """The columns that the first rows have."""
    names: dict[str, None] = {}
    head = source.head()
    whole = head if len(head) < HEAD_BYTES else head[: head.rfind(b"\n") + 1]
    for line in whole.splitlines():
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if type(fields) is dict:
            names.update(dict.fromkeys(_flat_names(fields, "", 0)))
    return list(names)


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """The rows, with the columns asked for; None: all that the first rows have."""
    names = column_names(source) if columns is None else columns
    first_row = 0
    for objects in objects_of(source):
        found = {name: values_of(objects.rows, name) for name in names}
        yield Table(len(objects.rows), first_row, found, objects.problems, objects.where)
        first_row += len(objects.rows)


class Objects:
    """The objects of a block of lines; an empty one stands for a line that is none."""

    def __init__(self, block: LineBlock) -> None:
        self._block = block
        self.rows: list[dict[str, Any]] = []
        self.problems: tuple[Problem, ...] = ()
        if block.fault is not None:
            self.rows = [{}]
            self.problems = (Problem(0, *block.fault),)
            return
        lines = [line for line in block.data.split(b"\n") if line]
        try:
            rows = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            rows = []
        if rows and set(map(type, rows)) == {dict}:
            self.rows = rows
        else:
            self._one_by_one(lines)

    def where(self, row: int) -> str:
        """The line of a row."""
        lines = (number for number, line in enumerate(self._block.data.split(b"\n")) if line.strip())
        place = next((number for count, number in enumerate(lines) if count == row), 0)
        return f"line {self._block.first_line + place}"

    def _one_by_one(self, lines: list[bytes]) -> None:
        problems: list[Problem] = []
        for line in lines:
            if not line.strip():
                continue
            row = len(self.rows)
            try:
                fields = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                fields = {}
                text = line[:40].decode("utf-8", "backslashreplace")
                problems.append(Problem(row, "line: expected one JSON object", f"{text!r} ({error})"))
            if type(fields) is not dict:
                problems.append(problem(row, "line", "one JSON object", fields))
                fields = {}
            self.rows.append(fields)
        self.problems = tuple(problems)


def objects_of(source: Source) -> Iterator[Objects]:
    """The objects, some at a time."""
    for block in line_blocks(source.chunks()):
        objects = Objects(block)
        if objects.rows:
            yield objects


def values_of(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """A column of objects: what stands under a name, or at the end of the dotted path that it is."""
    found = [row.get(name) for row in rows]
    if "." not in name or any(value is not None for value in found):
        return found
    first, *rest = name.split(".")
    found = [row.get(first) for row in rows]
    for part in rest:
        found = [value.get(part) if type(value) is dict else None for value in found]
    return found


def _flat_names(fields: dict[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for name, value in fields.items():
        if type(value) is dict and depth < _DEPTH_MAX:
            yield from _flat_names(value, f"{prefix}{name}.", depth + 1)
        else:
            yield prefix + name
