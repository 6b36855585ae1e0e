"""An in-memory log of decisions with a known rule for the right class."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from producers.datasets.base import Block, Row
from producers.datasets.log import MISSING, Column, LogDataset, LoggedOutcome, LogRows, log_dataset
from stream.wire.records import Features


@dataclass
class MemoryLog(LogRows):
    """Rows that have one feature each, and the given outcomes."""

    outcomes: Sequence[LoggedOutcome]
    n_features: int = 4
    ids: Sequence[str] = ()
    rows: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {self.event_id(row): row for row in range(len(self.outcomes))}

    def row(self, row: int) -> Row:
        return Row(Features(np.array([row % self.n_features], dtype=np.int32), np.ones(1)), self.label(row))

    def label(self, row: int) -> int:
        label = self.outcomes[row].label
        return MISSING if label is None else label

    def block(self, start: int, stop: int) -> Block:
        rows = range(start, stop)
        return Block(
            np.arange(len(rows) + 1, dtype=np.int64),
            np.array([row % self.n_features for row in rows], dtype=np.int32),
            np.ones(len(rows)),
            np.array([self.label(row) for row in rows], dtype=np.int64),
        )

    def outcome(self, row: int) -> LoggedOutcome:
        return self.outcomes[row]

    def offered(self, row: int) -> list[str]:
        return []

    def event_id(self, row: int) -> str:
        return self.ids[row] if self.ids else f"visit-{row}"

    def row_of(self, event_id: str) -> int | None:
        return self.rows.get(event_id)

    def tildes(self) -> int:
        return max(len(one.rstrip("0123456789")) - len(one.rstrip("0123456789").rstrip("~")) for one in self.rows)

    def has(self, column: Column, rows: slice) -> bool:
        field = {"labels": "label", "actions": "action", "eligible": "eligible", "delays_ms": "delay_ms"}[column]
        return any(getattr(one, field) is not None for one in self.outcomes[rows])


def log_of(outcomes: Sequence[LoggedOutcome], ids: Sequence[str] = ()) -> LogDataset:
    """Return a data set with three classes and these outcomes."""
    return log_dataset(MemoryLog(outcomes, ids=ids), len(outcomes), 4, ("a", "b", "c"), "visits")


def clicks(rows: int, gap_ms: int = 1_000, delay_ms: int | None = 500) -> LogDataset:
    """Return the log of a uniform policy. The feature determines the right class. Every tenth row has no outcome."""
    rng = np.random.default_rng(7)
    outcomes = []
    for row in range(rows):
        action = int(rng.integers(3))
        reward = None if row % 10 == 9 else int(action == (row % 4) % 3)
        at_ms = 1_700_000_000_000 + gap_ms * row
        outcomes.append(LoggedOutcome(at_ms, None, action, 1 / 3, reward, None if reward is None else delay_ms))
    return log_of(outcomes)
