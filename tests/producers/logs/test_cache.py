"""The cache reads a log once, and stores its columns under a key derived from everything that affects them."""

import io
import os
import sys
import time
from pathlib import Path

import pytest

from producers.datasets.base import DatasetError
from producers.datasets.logs import cache
from producers.datasets.logs.cache import cached_log
from producers.datasets.logs.mapping import LogMapping
from producers.datasets.logs.reading import LogFile
from producers.datasets.logs.stored import StoredLog, store_log
from stream.settings.values import OnBadRow
from tests.producers.logs.rows import mapping, plain
from tests.producers.logs.test_reading import ROWS, as_jsonl, write


class CountingCache:
    """Caches logs in a folder, and counts how often a file is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []

    def keep(
        self, path: Path | str, by: LogMapping, on_bad_row: OnBadRow = "stop", reward_above: float | None = None
    ) -> StoredLog:
        return cached_log(
            str(path), by, self.folder, on_bad_row=on_bad_row, reward_above=reward_above, announce=self.messages.append
        )

    @property
    def readings(self) -> int:
        return sum("converting to columns" in message for message in self.messages)


@pytest.fixture
def cache_of_logs(tmp_path: Path) -> CountingCache:
    return CountingCache(tmp_path / "cache" / "logs")


def test_file_is_reread_only_after_a_relevant_change(
    tmp_path: Path, cache_of_logs: CountingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, by = write(tmp_path, as_jsonl(ROWS)), mapping(propensity=None)
    first = cache_of_logs.keep(path, by)
    assert plain(cache_of_logs.keep(path, by).batches()) == plain(first.batches())
    assert (cache_of_logs.readings, first.rows) == (1, len(ROWS))
    cache_of_logs.keep(path, mapping())
    cache_of_logs.keep(path, by, on_bad_row="skip")
    cache_of_logs.keep(path, by, reward_above=0.5)
    assert cache_of_logs.readings == 4
    monkeypatch.setattr(cache, "READ_BY", cache.READ_BY + 1)
    cache_of_logs.keep(path, by)
    assert cache_of_logs.readings == 5
    write(tmp_path, as_jsonl(ROWS[:2]))
    assert cache_of_logs.keep(path, by).rows == 2
    assert len(list(cache_of_logs.folder.iterdir())) == 6, "each log has its own name, and none is incomplete"


def test_failed_read_leaves_the_cache_empty(tmp_path: Path, cache_of_logs: CountingCache) -> None:
    path = write(tmp_path, as_jsonl([*ROWS, {**ROWS[0], "r": 7}]))
    with pytest.raises(DatasetError, match="reward"):
        cache_of_logs.keep(path, mapping())
    assert list(cache_of_logs.folder.glob("*")) == []
    with pytest.raises(DatasetError):
        cache_of_logs.keep(tmp_path / "missing", mapping())


def test_standard_input_is_not_cached(cache_of_logs: CountingCache, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(as_jsonl(ROWS))

    monkeypatch.setattr(sys, "stdin", Stdin)
    stored = cache_of_logs.keep("-", mapping(classes=("left", "right")))
    assert list(cache_of_logs.folder.iterdir()) == []
    assert stored.rows == len(ROWS)
    assert stored.row_of(stored.event_id(1)) == 1


def test_entry_cached_by_another_process_is_used(
    tmp_path: Path, cache_of_logs: CountingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, by = write(tmp_path, as_jsonl(ROWS)), mapping()

    def slower(log: LogFile, folder: Path) -> StoredLog:
        monkeypatch.setattr(cache, "store_log", store_log)
        cache_of_logs.keep(path, by)
        return store_log(log, folder)

    monkeypatch.setattr(cache, "store_log", slower)
    assert cache_of_logs.keep(path, by).rows == len(ROWS)
    assert (cache_of_logs.readings, len(list(cache_of_logs.folder.iterdir()))) == (2, 1)


@pytest.mark.parametrize("damage", ["empty", "content", "missing", "short", "long"])
def test_damaged_entry_is_rebuilt(tmp_path: Path, cache_of_logs: CountingCache, damage: str) -> None:
    path = write(tmp_path, as_jsonl(ROWS))
    whole = plain(cache_of_logs.keep(path, mapping()).batches())
    (folder,) = cache_of_logs.folder.iterdir()
    column = folder / "values"
    if damage == "empty":
        (folder / "log.json").write_bytes(b"")
    elif damage == "content":
        (folder / "log.json").write_bytes(b"[]")
    elif damage == "missing":
        column.unlink()
    elif damage == "short":
        column.write_bytes(column.read_bytes()[:-8])
    else:
        column.write_bytes(column.read_bytes() + b"12345")
    assert plain(cache_of_logs.keep(path, mapping()).batches()) == whole
    assert plain(cache_of_logs.keep(path, mapping()).batches()) == whole
    assert (cache_of_logs.readings, list(cache_of_logs.folder.iterdir())) == (2, [folder])


def test_entry_whose_time_cannot_be_set_is_used(
    tmp_path: Path, cache_of_logs: CountingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(path)

    path = write(tmp_path, as_jsonl(ROWS))
    cache_of_logs.keep(path, mapping())
    monkeypatch.setattr(os, "utime", forbidden)
    assert cache_of_logs.keep(path, mapping()).rows == len(ROWS)
    assert cache_of_logs.readings == 1


def test_entries_unused_for_a_month_are_deleted(tmp_path: Path, cache_of_logs: CountingCache) -> None:
    path = write(tmp_path, as_jsonl(ROWS))
    cache_of_logs.keep(path, mapping())
    cache_of_logs.keep(path, mapping(propensity=None))
    long_ago_s = time.time() - cache.UNUSED_S_MAX - 60
    for folder in cache_of_logs.folder.iterdir():
        os.utime(folder, (long_ago_s, long_ago_s))
    cache_of_logs.keep(path, mapping())  # this use keeps the entry from being deleted
    cache_of_logs.keep(path, mapping(), reward_above=0.5)
    cache_of_logs.keep(path, mapping())
    assert cache_of_logs.readings == 3
    assert len(list(cache_of_logs.folder.iterdir())) == 2
