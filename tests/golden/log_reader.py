"""A reader of a shared model's log. Like `format_reader`, it was written from docs/formats.md alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.golden.format_reader import Array, Entry, known, sections, split

NEEDED = object()
"""Marks a required column."""


class UpdateColumn(NamedTuple):
    """A column of update records: its read function, and the value that every entry has if the column is absent."""

    read: Callable[[Array], list[Any]]
    absent: Any = NEEDED


UPDATE_COLUMNS: Mapping[str, UpdateColumn] = {
    "kind": UpdateColumn(Array.entries),
    "action": UpdateColumn(Array.entries),
    "greedy": UpdateColumn(Array.entries),
    "propensity": UpdateColumn(Array.entries),
    "scores": UpdateColumn(Array.rows),
    "reward": UpdateColumn(Array.entries),
    "nnz": UpdateColumn(Array.entries),
    "assumed": UpdateColumn(Array.entries, -1),
    "v": UpdateColumn(Array.entries, 0.0),
    "label": UpdateColumn(Array.entries, -1),
}
"""The columns of an update record that contain one number or one row per entry."""


def update(value: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """Read an update record. Returns the head's fields and the entries. Each entry has a field `x`."""
    (section,) = sections(value)
    assert section.name == "updates"
    known(section.arrays, {*UPDATE_COLUMNS, "x.indices", "x.values"})
    sizes = section.arrays["nnz"].entries()
    indices = section.arrays["x.indices"].entries()
    values = section.arrays["x.values"].entries() if "x.values" in section.arrays else [1.0] * len(indices)
    xs = [dict(zip(*each, strict=True)) for each in zip(split(indices, sizes), split(values, sizes), strict=True)]
    columns = [
        column.read(section.arrays[name])
        if name in section.arrays or column.absent is NEEDED
        else [column.absent] * len(sizes)
        for name, column in UPDATE_COLUMNS.items()
    ]
    entries = (dict(zip(UPDATE_COLUMNS, entry, strict=True)) for entry in zip(*columns, strict=True))
    return section.values, [{**entry, "x": x} for entry, x in zip(entries, xs, strict=True)]
