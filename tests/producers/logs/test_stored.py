"""A stored log returns the rows that were stored."""

import json
from pathlib import Path

import numpy as np
import pytest

from producers.datasets.base import DatasetError
from producers.datasets.log import LoggedOutcome
from producers.datasets.logs import streams
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.stored import open_stored, store_log
from tests.producers.logs.rows import mapping, plain
from tests.producers.logs.test_reading import ROWS, SETS, as_jsonl, write

MANY = [{**ROWS[n % 3], "id": f"é-{n}", "t": 1_000 + n, "wait": n % 5} for n in range(200)]


def test_stored_log_returns_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 1_000)
    path = write(tmp_path, as_jsonl([*MANY, MANY[3]]))
    log = open_log(path, mapping(id="id", timestamp="t", delay="wait"), on_bad_row="skip")
    stored = store_log(log, tmp_path / "stored")
    assert plain(stored.batches()) == plain(stored.batches(size=7)) == plain(log.batches())
    assert (stored.name, stored.rows, stored.n_features, stored.class_names) == ("log", 200, 3, ("left", "right"))
    assert (sum(stored.skipped.values()), stored.first_skipped) == (1, log.first_skipped)
    (skipped,) = stored.first_skipped.values()
    assert skipped.startswith("line 201; got 'a time 196000 ms ")
    assert [stored.row_of(stored.event_id(row)) for row in range(200)] == list(range(200))
    assert stored.row_of("é-200") is None
    assert stored.outcome(3) == LoggedOutcome(1_003_000, None, 0, 0.5, 1, 3_000)
    assert stored.outcome(4) == LoggedOutcome(1_004_000, None, 1, 0.25, None, 4_000)
    row = stored.row(3)
    assert (row.x.indices.tolist(), row.x.values.tolist(), row.label) == ([0, 1], [2.5, 1.0], -1)
    block = stored.block(3, 6)
    assert (block.offsets.tolist(), block.indices.tolist(), block.labels.tolist()) == (
        [0, 2, 3, 4],
        [0, 1, 2, 0],
        [-1] * 3,
    )
    assert type(row.x.indices) is type(block.offsets)
    assert row.x.indices.flags.writeable  # numba would compile again for read-only arrays


def test_stored_log_returns_the_eligible_classes_of_every_row(tmp_path: Path) -> None:
    rows = [row | {"among": one} for row, one in zip(ROWS, SETS, strict=True)]
    log = open_log(write(tmp_path, as_jsonl(rows)), mapping(eligible="among"))
    stored = store_log(log, tmp_path / "stored")
    classes = [stored.outcome(row).eligible for row in range(3)]
    assert [None if one is None else one.tolist() for one in classes] == [[0, 1], None, [0, 2]]
    masks = [batch.eligible.mask(3) for batch in stored.batches(size=2) if batch.eligible is not None]
    assert np.concatenate(masks).tolist() == [[True, True, False], [True, True, True], [True, False, True]]


def test_stored_log_can_be_reopened_and_is_read_only(tmp_path: Path) -> None:
    log = open_log(write(tmp_path, as_jsonl(ROWS)), mapping())
    stored = store_log(log, tmp_path / "stored")
    stored.row(0).x.values[0] = 9.0
    again = open_stored(tmp_path / "stored")
    assert plain(again.batches()) == plain(log.batches())


def test_log_without_features_is_stored_but_log_without_rows_is_rejected(tmp_path: Path) -> None:
    given = mapping(classes=["left", "right"], features={"numeric": ["price"]})
    nothing = write(tmp_path, as_jsonl([{**ROWS[0], "price": None}] * 3))
    assert plain(store_log(open_log(nothing, given), tmp_path / "a").batches())[2]["x"] == {}
    bad = open_log(write(tmp_path, as_jsonl([{**ROWS[0], "p": 2}])), given, on_bad_row="skip")
    with pytest.raises(DatasetError, match=r" 1 .*p: "):
        store_log(bad, tmp_path / "b")


def test_non_empty_and_invalid_directories_are_rejected(tmp_path: Path) -> None:
    log = open_log(write(tmp_path, as_jsonl(ROWS)), mapping())
    with pytest.raises(DatasetError):
        store_log(log, tmp_path)
    with pytest.raises(DatasetError):
        open_stored(tmp_path)
    store_log(log, tmp_path / "stored")
    content = json.loads((tmp_path / "stored" / "log.json").read_text())
    (tmp_path / "stored" / "log.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(DatasetError, match="got 99"):
        open_stored(tmp_path / "stored")
