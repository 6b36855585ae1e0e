"""The log of a shared model, as docs/formats.md describes it in the section "Updates"."""

import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from stream.wire.records import Record
from tests.golden.log_reader import update
from tests.independent_audit.events import header

DECIDED, SETTLED, CORRECTED, CHANGED, NAMED = range(5)


class Log:
    """The entries of the log, and the differences (offset, what, expected, got) within it."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.differences: list[tuple[int, str, object, object]] = []
        self.of_step: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)  # by partition and step
        self.follows: dict[tuple[int, int], int] = {}
        self._offsets: list[int] = []  # of each entry
        self._names: list[tuple[int, str]] = []  # offset and name of each named entry
        last: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))  # step and part, by task
        for record in records:
            try:
                values, entries = update(record.value or b"")
                assert header(record, "onebit-version") == b"1"
            except (AssertionError, ValueError, KeyError, struct.error):
                self.differences.append((record.offset, "record", "updates of a step", record.headers))
                continue
            task, place = values["partition"], (values["step"], values["part"])
            if place <= last[task]:
                continue  # a duplicate
            step, part = last[task]
            if place != (step, part + 1) and (values["part"], values["follows"]) != (0, step):
                self.differences.append((record.offset, "step and part", f"the part after {(step, part)}", place))
            last[task] = place
            self.follows[task, values["step"]] = values["follows"]
            self.of_step[task, values["step"]] += entries
            self._offsets += [record.offset] * len(entries)
            kinds = [entry["kind"] for entry in entries if entry["kind"] >= CHANGED]
            texts = zip(kinds, values["names"], strict=True)
            self._names += [(record.offset, name) for kind, name in texts if kind == NAMED]

    def version_at(self, offset: int) -> int:
        """The number of entries before an offset."""
        return bisect_left(self._offsets, offset)

    def names_at(self, offset: int, names_max: int) -> list[str]:
        """The open classes that the log has named before an offset, in the order of their indices."""
        return list(dict.fromkeys(name for at, name in self._names if at < offset))[:names_max]
