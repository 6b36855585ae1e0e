"""Tables read from CSV, JSON lines and Parquet, and their conversion to log rows with a mapping."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.log import MISSING
from producers.datasets.logs.columns import (
    Column,
    Int64Array,
    delays_ms,
    lists,
    numbers,
    plain_of,
    texts,
    times_ms,
    values_of,
)
from producers.datasets.logs.mapping import LogMapping
from producers.datasets.logs.objects import FORMS_OF_X, ObjectEntries, features_of
from producers.datasets.logs.offered import lists_of_actions, offered_of
from producers.datasets.logs.parsed import FeatureEntries, Lists, Offered, ParsedBatch, Problem, Texts, problem
from stream.wire.named_features import Kind
from stream.wire.records import ID_BYTES_MAX, FloatArray


class Table(NamedTuple):
    """A batch of rows from a table."""

    n: int
    first_row: int  # number of the first row in the file, from 0
    columns: Mapping[str, Column]  # the requested columns
    problems: tuple[Problem, ...]  # unreadable rows; their columns are empty
    where: Callable[[int], str]


def parse_table(table: Table, mapping: LogMapping) -> ParsedBatch:
    """Parse a table's rows using a mapping."""
    return _TableParser(table, mapping).parse()


class _TableParser:
    """Parses one table and collects problems."""

    def __init__(self, table: Table, mapping: LogMapping) -> None:
        self._table = table
        self._mapping = mapping
        self._problems = list(table.problems)

    def parse(self) -> ParsedBatch:
        ids = self._ids()
        decided_at_ms = self._times("timestamp", needed=True)
        offered = self._offered()
        return ParsedBatch(
            n=self._table.n,
            first_row=self._table.first_row,
            ids=ids,
            decided_at_ms=decided_at_ms,
            labels=self.texts("label"),
            actions=None if offered is not None else self.texts("action", needed=True),
            propensities=self._propensities(),
            rewards=self._numbers("reward", "0 or 1, or an empty value if the outcome is unknown"),
            delays_ms=self._delays(decided_at_ms),
            eligible=None if offered is not None else self.eligible(),
            baselines=None if offered is not None else self.texts("baseline"),
            features=self._features(),
            problems=tuple(self._problems),
            where=self._table.where,
            offered=offered,
        )

    def _features(self) -> tuple[FeatureEntries, ...]:
        kinds, column = self._mapping.features.kinds(), self._column("x")
        if column is None:
            return tuple(self.feature(name, kind) for name, kind in kinds.items())
        found = ObjectEntries(self._problems, kinds)
        for row, value in enumerate(values_of(column[1])):
            x = features_of(plain_of(value))
            if x is None:
                self._problems.append(problem(row, column[0], FORMS_OF_X, value))
            else:
                found.add_object(row, "", x)
        return found.columns()

    def _offered(self) -> Offered | None:
        """Return the actions of all rows, or None if the rows have classes."""
        column = self._column("actions")
        if column is None:
            return None
        played, baselines, listed = self.texts("action", needed=True), self.texts("baseline"), self.eligible()
        return offered_of(
            lists_of_actions(column[1], column[0], self._problems),
            [None] * self._table.n if played is None else played.to_list(),
            [None] * self._table.n if baselines is None else baselines.to_list(),
            [()] * self._table.n if listed is None else listed.to_list(),
            self._mapping.kinds_of_actions(),
            self._problems,
        )

    def texts(self, role: str, *, needed: bool = False) -> Texts | None:
        column = self._column(role)
        if column is None:
            return None
        found = texts(column[1], column[0], self._problems)
        if needed:
            self._need(found.missing(), column[0], f"the {role}")
        return found

    def eligible(self) -> Lists | None:
        column = self._column("eligible")
        return None if column is None else lists(column[1], column[0], self._mapping.eligible_separator, self._problems)

    def feature(self, name: str, kind: Kind) -> FeatureEntries:
        column = self._table.columns[name]
        if kind is Kind.NUMERIC:
            found = numbers(column, name, "a finite number", self._problems)
            rows = np.flatnonzero(np.isfinite(found))
            return FeatureEntries(name, kind, rows, found[rows], None, np.isnan(found))
        words = texts(column, name, self._problems)
        empty = words.missing()
        return FeatureEntries(name, kind, np.flatnonzero(~empty), None, words.present(), empty)

    def _ids(self) -> Texts | None:
        ids = self.texts("id", needed=True)
        if ids is not None:
            too_long = [code for code, one in enumerate(ids.distinct) if len(one.encode()) > ID_BYTES_MAX]
            for row in np.flatnonzero(np.isin(ids.codes, too_long)).tolist():
                expected = f"an id of at most {ID_BYTES_MAX} bytes"
                self._problems.append(problem(row, str(self._mapping.id), expected, ids[row]))
        return ids

    def _propensities(self) -> FloatArray | None:
        expected = "a probability in (0, 1]"
        found = self._numbers("propensity", expected)
        column = self._column("propensity")
        if found is None or column is None:
            return None
        self._need(np.isnan(found), column[0], expected)
        for row in np.flatnonzero((found <= 0.0) | (found > 1.0)).tolist():
            self._problems.append(problem(row, column[0], expected, float(found[row])))
        return found

    def _delays(self, decided_at_ms: Int64Array | None) -> Int64Array | None:
        column = self._column("delay")
        if column is not None:
            return delays_ms(column[1], column[0], self._mapping.unit_of_delay(), self._problems)
        came_at_ms = self._times("feedback_time")
        if came_at_ms is None or decided_at_ms is None:
            return None
        there = (came_at_ms != MISSING) & (decided_at_ms != MISSING)
        delays = np.where(there, came_at_ms - decided_at_ms, MISSING)
        for row in np.flatnonzero(there & (delays < 0)).tolist():
            self._problems.append(
                problem(
                    row, str(self._mapping.feedback_time), "a time at or after the decision",
                    f"{-int(delays[row])} ms before the decision",
                )
            )  # fmt: skip
        return delays

    def _times(self, role: str, *, needed: bool = False) -> Int64Array | None:
        column = self._column(role)
        if column is None:
            return None
        found = times_ms(column[1], column[0], self._mapping.time_unit, self._problems)
        if needed:
            self._need(found == MISSING, column[0], "a time")
        return found

    def _numbers(self, role: str, expected: str) -> FloatArray | None:
        column = self._column(role)
        return None if column is None else numbers(column[1], column[0], expected, self._problems)

    def _column(self, role: str) -> tuple[str, Column] | None:
        name: str | None = getattr(self._mapping, role)
        return None if name is None else (name, self._table.columns[name])

    def _need(self, nulls: NDArray[np.bool_], field: str, expected: str) -> None:
        self._problems.extend(problem(row, field, expected, None) for row in np.flatnonzero(nulls).tolist())
