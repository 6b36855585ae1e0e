"""Helpers for testing log readers: a mapping, and conversion of logs to plain rows."""

from collections.abc import Iterable
from typing import Any

from producers.datasets.log import MISSING
from producers.datasets.logs.mapping import LogMapping, mapping_of
from stream.estimating.rows import LogBatch

COLUMNS = ("decided_at_ms", "labels", "actions", "propensities", "rewards", "delays_ms")


def mapping(**fields: Any) -> LogMapping:
    """A mapping for the columns that most tests use."""
    given = {
        "action": "a", "propensity": "p", "reward": "r",
        "features": {"numeric": ["price"], "categorical": ["country"]}, **fields,
    }  # fmt: skip
    return mapping_of({key: value for key, value in given.items() if value is not None}, "test mapping")


def plain(batches: Iterable[LogBatch]) -> list[dict[str, Any]]:
    """Return the rows as dicts without missing fields. Features are a dict from index to value."""
    rows = []
    for batch in batches:
        for row, one in enumerate(batch.ids):
            start, stop = batch.offsets[row], batch.offsets[row + 1]
            entries = zip(batch.indices[start:stop].tolist(), batch.values[start:stop].tolist(), strict=True)
            fields: dict[str, Any] = {"id": one, "x": dict(entries)}
            for name in COLUMNS:
                value = getattr(batch, name)[row].item()
                if value != MISSING and value == value:
                    fields[name] = value
            rows.append(fields)
    return rows
