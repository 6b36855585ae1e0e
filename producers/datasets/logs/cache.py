"""A cache of logs converted to columns, shared by the replay, the feedback program and later runs."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from producers.datasets.base import DatasetError
from producers.datasets.logs.mapping import LogMapping
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.stored import VERSION, StoredLog, open_stored, store_log
from producers.datasets.logs.streams import Source
from stream.settings.values import OnBadRow
from stream.wire.named_features import Scaling
from stream.wire.rewards import RewardRange

READ_BY = 6
"""The cache's format version. Increase this number when the conversion of files changes."""

UNUSED_S_MAX = 30 * 24 * 3_600
"""Retention time for unused entries, in seconds. Expired entries are deleted when another log is cached."""


def cached_log(
    data: str | Source,
    mapping: LogMapping | None,
    keeper: Path,
    *,
    on_bad_row: OnBadRow = "stop",
    reward_above: float | None = None,
    graded: RewardRange | None = None,
    scale: Scaling = "none",
    announce: Callable[[str], None] = lambda message: None,
) -> StoredLog:
    """Return a log as columns. If the cache does not contain the log of a file, read the file and cache the log.

    Args:
        data: The file, "-" for standard input, or a table in memory. Only files are cached.
        mapping: The column mapping.
        keeper: The cache directory. If the file or the mapping has changed, the file is read again.
        on_bad_row: See `open_log`.
        reward_above: See `open_log`.
        graded: See `open_log`.
        scale: See `open_log`.
        announce: Called with progress messages and notes for the user.

    Raises:
        DatasetError: the file cannot be read, or the directory cannot be written to.
    """
    source = data if isinstance(data, Source) else Source(data)
    if source.is_file:
        name = _name_of(Path(source.path), mapping, on_bad_row, reward_above, graded, scale)
        folder = keeper / name
        if (found := _kept_in(folder)) is not None:
            return found
    log = open_log(source, mapping, on_bad_row=on_bad_row, reward_above=reward_above, graded=graded, scale=scale)
    for note in log.notes:
        announce(f"{log.name}: {note}")
    try:
        keeper.mkdir(parents=True, exist_ok=True)
        _delete_unused(keeper)
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=keeper))
    except OSError as error:
        raise DatasetError(f"cannot cache {log.name} in {keeper}: {error.strerror or error}") from error
    announce(f"{log.name}: converting to columns" + (f", which are cached in {fresh.parent}" if source.is_file else ""))
    try:
        stored = store_log(log, fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if source.is_file:
        _move(fresh, folder)
    else:
        shutil.rmtree(fresh)  # the files remain readable, because they are open
    return stored


def _kept_in(folder: Path) -> StoredLog | None:
    """Return the cached log in a directory, or None if the log is missing or damaged."""
    try:
        found = open_stored(folder)
    except DatasetError:
        return None
    with suppress(OSError):  # without write permission, the time cannot be updated
        os.utime(folder)
    return found


def _name_of(
    path: Path,
    mapping: LogMapping | None,
    on_bad_row: OnBadRow,
    reward_above: float | None,
    graded: RewardRange | None,
    scale: Scaling,
) -> str:
    """Return a cache key that depends on the file and on all options that affect the columns."""
    try:
        found = path.stat()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error
    read_by = "" if mapping is None else mapping.model_dump_json()
    options = (read_by, on_bad_row, reward_above, graded, scale)
    key = repr((VERSION, READ_BY, str(path.resolve()), found.st_size, found.st_mtime_ns, *options))
    return blake2b(key.encode(), digest_size=16).hexdigest()


def _move(fresh: Path, folder: Path) -> None:
    """Rename the new directory. If another process has cached the same log in the meantime, use that entry."""
    if folder.exists() and _kept_in(folder) is None:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh)
        if not folder.exists():
            raise


def _delete_unused(keeper: Path) -> None:
    oldest_s = time.time() - UNUSED_S_MAX
    for folder in keeper.iterdir():
        if folder.is_dir() and folder.stat().st_mtime < oldest_s:
            shutil.rmtree(folder, ignore_errors=True)
