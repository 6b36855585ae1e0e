"""A reader of the log of a shared model, written from docs/formats.md alone as `format_reader` is."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.golden.format_reader import Column, Entry, entries_in, known, known_format, numbers, rows, sections, split

UPDATES_FORMATS = (1,)

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


class Update(NamedTuple):
    """A record of the log that is taken in."""

    offset: int
    partition: int
    step: int
    part: int
    entries: list[Entry]
    version: int  # of the model that has taken it in


class PartsMissingError(ValueError):
    """Records of the log are missing."""


def model_log(records: Iterable[tuple[int, bytes | None, bytes]]) -> list[Update]:
    """The records of the log that a model takes in, from offsets, headers `onebit-version` and values of all."""
    found: list[Update] = []
    places: dict[int, tuple[int, int]] = {}  # the last step of each task, and its last part
    version = 0
    for offset, number, value in records:
        if number is None:
            continue  # of another program
        known_format(int(number), UPDATES_FORMATS)
        head, entries = update(value)
        place, before = (head["step"], head["part"]), places.get(head["partition"], (0, 0))
        if place <= before:
            continue  # came twice
        if place not in {(before[0], before[1] + 1), (head["step"], 0)} or (
            place[1] == 0 and head["follows"] != before[0]
        ):
            raise PartsMissingError(f"step {place[0]}, part {place[1]}, after step {before[0]}, part {before[1]}")
        places[head["partition"]] = place
        version += len(entries)
        found.append(Update(offset, head["partition"], place[0], place[1], entries, version))
    return found
