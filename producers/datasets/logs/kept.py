"""Logs that were read once, kept in columns: the replay, the feedback program and the next run find them again."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from producers.datasets.base import DatasetError
from producers.datasets.log import OnBadRow
from producers.datasets.logs.mapping import LogMapping
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.stored import VERSION, StoredLog, open_stored, store_log
from producers.datasets.logs.streams import STDIN

READ_BY = 2
"""Raised when the same file and mapping are read otherwise than before: what was kept is then read anew."""

UNUSED_S_MAX = 30 * 24 * 3_600
"""What has not been opened for so long is deleted when another log is kept."""


def keep_log(
    path: str,
    mapping: LogMapping | None,
    keeper: Path,
    *,
    on_bad_row: OnBadRow = "stop",
    reward_above: float | None = None,
    announce: Callable[[str], None] = lambda message: None,
) -> StoredLog:
    """The log in a file, in columns: those that are kept, or the file is read, and they are kept from now on.

    Args:
        path: the file, or "-" for standard input, which is kept under no name.
        mapping: which column says what.
        keeper: the folder of all that are kept. A file that was altered since, or is read by another mapping, is read
            anew.
        on_bad_row: see `open_log`.
        reward_above: see `open_log`.
        announce: told what is being done, and how the file is read.

    Raises:
        DatasetError: the file cannot be read, or the folder not be written to.
    """
    if path != STDIN:
        name = _name_of(Path(path), mapping, on_bad_row, reward_above)
        folder = keeper / name
        if (found := _kept_in(folder)) is not None:
            return found
    log = open_log(path, mapping, on_bad_row=on_bad_row, reward_above=reward_above)
    for note in log.notes:
        announce(f"{log.name}: {note}")
    try:
        keeper.mkdir(parents=True, exist_ok=True)
        _delete_unused(keeper)
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=keeper))
    except OSError as error:
        raise DatasetError(f"cannot keep {log.name} in {keeper}: {error.strerror or error}") from error
    announce(f"{log.name}: reading it, once; its columns are kept in {fresh.parent}")
    try:
        stored = store_log(log, fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if path == STDIN:
        shutil.rmtree(fresh)  # what is open stays readable, and nobody can ask for it by a name
    else:
        _move(fresh, folder)
    return stored


def _kept_in(folder: Path) -> StoredLog | None:
    """The columns that a folder keeps; None where there are none, or they are damaged: they are read anew."""
    try:
        found = open_stored(folder)
    except DatasetError:
        return None
    with suppress(OSError):  # who may only read here needs no date
        os.utime(folder)
    return found


def _name_of(path: Path, mapping: LogMapping | None, on_bad_row: OnBadRow, reward_above: float | None) -> str:
    """A name for all that the columns depend on."""
    try:
        found = path.stat()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error
    read_by = "" if mapping is None else mapping.model_dump_json()
    key = repr(
        (VERSION, READ_BY, str(path.resolve()), found.st_size, found.st_mtime_ns, read_by, on_bad_row, reward_above)
    )
    return blake2b(key.encode(), digest_size=16).hexdigest()


def _move(fresh: Path, folder: Path) -> None:
    """Give the columns their name; where another process was faster, its are as good."""
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
