"""A reader of the log of a shared model, written from docs/formats.md alone as `format_reader` is."""

from collections.abc import Mapping
from typing import Any

from tests.golden.format_reader import Column, Entry, entries_in, known, numbers, rows, sections, split

UPDATE_COLUMNS: Mapping[str, Column] = {
    "kind": Column(numbers),
    "action": Column(numbers),
    "greedy": Column(numbers),
    "propensity": Column(numbers),
    "scores": Column(rows),
    "reward": Column(numbers),
    "nnz": Column(numbers),
    "assumed": Column(numbers, -1),
    "v": Column(numbers, 0.0),
    "label": Column(numbers, -1),
}
"""The columns of a record of updates that have a number or a row for each entry."""


def update(value: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """A record of updates: what its head says, and its entries with their `x`."""
    (section,) = sections(value)
    assert section.name == "updates"
    known(section.arrays, {*UPDATE_COLUMNS, "x.indices", "x.values"})
    sizes = section.arrays["nnz"].entries()
    indices = section.arrays["x.indices"].entries()
    values = section.arrays["x.values"].entries() if "x.values" in section.arrays else [1.0] * len(indices)
    xs = [dict(zip(*each, strict=True)) for each in zip(split(indices, sizes), split(values, sizes), strict=True)]
    found = entries_in(section.arrays, UPDATE_COLUMNS)
    return section.values, [{**entry, "x": x} for entry, x in zip(found, xs, strict=True)]
