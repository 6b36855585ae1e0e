"""Feature entries from JSON objects, such as the context of a dsjson line or the x of an action."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from producers.datasets.logs.columns import TEXT_OR_NUMBER, Int64Array
from producers.datasets.logs.parsed import FeatureEntries, Problem, Texts, problem
from stream.wire.named_features import Kind, text_of


class ObjectEntries:
    """The entries of all rows, by name and kind.

    Nested fields have dotted names such as `user.age`. Numbers and booleans are numeric, and strings are categories.
    Without given kinds, the names are those of a VW log: `_text` is split into words, and other names that start with _
    are ignored.
    """

    def __init__(self, problems: list[Problem], kinds: Mapping[str, Kind] | None = None) -> None:
        """Create an empty collection.

        Args:
            problems: Receives a problem for each value that cannot be a feature.
            kinds: The kinds of features by name, except those that follow from their values.
        """
        self._problems = problems
        self._kinds = kinds
        self._numbers: dict[str, tuple[list[int], list[bool | int | float]]] = {}
        self._texts: dict[tuple[str, Kind], tuple[list[int], list[str]]] = {}

    def add_object(self, row: int, prefix: str, fields: dict[str, Any]) -> None:
        """Add the fields of an object. The prefix precedes their names."""
        for name, value in fields.items():
            if self._kinds is not None:
                self._add_given(row, prefix + name, value, self._kinds)
            elif name == "_text":
                self._add(row, prefix + name, value, Kind.TEXT)
            elif not name.startswith("_"):
                self._add(row, prefix + name, value, Kind.CATEGORICAL)

    def _add_given(self, row: int, name: str, value: Any, kinds: Mapping[str, Kind]) -> None:
        kind = kinds.get(name)
        if kind in (None, Kind.NUMERIC) or type(value) in (dict, list):
            self._add(row, name, value, Kind.CATEGORICAL)
        elif value is not None:
            assert kind is not None
            text = text_of(value)
            if text is None:
                self._problems.append(problem(row, name, TEXT_OR_NUMBER, value))
            self._add(row, name, text, kind)

    def _add(self, row: int, name: str, value: Any, kind: Kind) -> None:
        if type(value) is str:
            rows, entries = self._texts.setdefault((name, kind), ([], []))
            text = text_of(value)
            if text:
                rows.append(row)
                entries.append(text)
            elif value:
                self._problems.append(problem(row, name, TEXT_OR_NUMBER, value))
        elif type(value) in (int, float, bool):
            places, values = self._numbers.setdefault(name, ([], []))
            places.append(row)
            values.append(value)
        elif type(value) is dict:
            self.add_object(row, name + ".", value)
        elif type(value) is list:
            for place, one in enumerate(value):
                inner = f"{name}[{place}]" if type(one) in (int, float, bool) else name
                self._add(row, inner, one, kind)

    def columns(self) -> tuple[FeatureEntries, ...]:
        """Return the entries, the numeric ones first."""
        numeric = [
            FeatureEntries(name, Kind.NUMERIC, _rows(rows), np.array(values, np.float64), None, given=values)
            for name, (rows, values) in self._numbers.items()
        ]
        others = [
            FeatureEntries(name, kind, _rows(rows), None, Texts.of(values))
            for (name, kind), (rows, values) in self._texts.items()
        ]
        return (*numeric, *others)


def features_of(x: object) -> dict[str, Any] | None:
    """Return features by name from one of the forms that x has in a record; None if it has another form.

    Features without names are called x0, x1, and so on.

    >>> features_of({"price": 3}), features_of([0.5, 2.0]), features_of({"i": [7]})
    ({'price': 3}, {'x0': 0.5, 'x1': 2.0}, {'x7': 1.0})
    """
    if x is None:
        return {}
    if isinstance(x, dict) and isinstance(x.get("i"), list):
        indices, values = x["i"], x.get("v") or [1.0] * len(x["i"])
        return {f"x{index}": value for index, value in zip(indices, values, strict=False)}
    if isinstance(x, list):
        return {f"x{index}": value for index, value in enumerate(x)}
    return x if isinstance(x, dict) else None


FORMS_OF_X = "features by name, a list of numbers, or indices and values"


def _rows(rows: list[int]) -> Int64Array:
    return np.array(rows, np.int64)
