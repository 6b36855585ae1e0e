"""A log stored as columns on disk, for random access in constant memory.

The directory contains `log.json`, which is written last, and one file of little-endian numbers per column.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from producers.datasets.base import DatasetError, OffsetArray, SparseRows
from producers.datasets.log import MISSING, Column, LoggedOutcome
from producers.datasets.logs.parsed import no_usable_rows
from producers.datasets.logs.reading import LogFile
from producers.datasets.logs.seen_ids import hashes_of
from stream.estimating.rows import Eligible, LogBatch, OfferedIds
from stream.wire.actions import ActionBlocks
from stream.wire.records import FloatArray, IndexArray

VERSION = 4

_CONTENT = "log.json"
_TILDES = re.compile("(~+)[0-9]*$")
_COLUMNS: dict[str, str] = {
    "indices": "<i4", "values": "<f8", "offsets": "<i8", "decided_at_ms": "<i8", "labels": "<i8", "actions": "<i8",
    "propensities": "<f8", "rewards": "<f8", "delays_ms": "<i8", "id_hashes": "<u8", "id_rows": "<i8",
    "id_offsets": "<i8", "id_bytes": "u1", "eligible": "<i4", "eligible_offsets": "<i8",
    "baselines": "<i8", "offered_offsets": "<i8", "offered_id_offsets": "<i8", "offered_id_bytes": "u1",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog(SparseRows):
    """The rows in a stored log, also used as the source of a `Dataset`. A missing label is stored as MISSING."""

    name: str
    rows: int
    n_features: int
    class_names: tuple[str, ...]
    skipped: dict[str, int]  # number of rows skipped when the log was stored, by reason
    first_skipped: dict[str, str]  # position and value of the first skipped row, by reason
    remarks: tuple[str, ...]  # remarks on the columns; see `LogFile`
    uneven: str  # warning about a column that varies much more than the others
    decided_at_ms: NDArray[np.int64]  # [n]; this and the following columns are those of a LogBatch
    actions: NDArray[np.int64]
    propensities: FloatArray
    rewards: FloatArray
    delays_ms: NDArray[np.int64]
    id_hashes: NDArray[np.uint64]  # [n], sorted
    id_rows: NDArray[np.int64]  # [n], the row of each hash
    id_offsets: OffsetArray  # int64[n + 1]
    id_bytes: NDArray[np.uint8]
    eligible: IndexArray  # the columns of `Eligible`
    eligible_offsets: OffsetArray
    baselines: NDArray[np.int64]  # [n], as in a LogBatch, or MISSING
    blocks: ActionBlocks | None  # the layout of x; None if the decisions are among classes
    offered_offsets: OffsetArray  # int64[n + 1]: row j offers the actions offsets[j] to offsets[j + 1] - 1
    offered_id_offsets: OffsetArray  # int64[m + 1], for m actions of all rows
    offered_id_bytes: NDArray[np.uint8]

    @property
    def eligible_of_rows(self) -> Eligible:
        """The eligible classes for all rows."""
        return Eligible(self.eligible_offsets, self.eligible)

    def outcome(self, row: int) -> LoggedOutcome:
        """Return a row's logged values."""
        propensity, reward = float(self.propensities[row]), float(self.rewards[row])
        return LoggedOutcome(
            decided_at_ms=_given(self.decided_at_ms[row]),
            label=_given(self.labels[row]),
            action=_given(self.actions[row]),
            propensity=None if np.isnan(propensity) else propensity,
            reward=None if np.isnan(reward) else int(reward) if reward.is_integer() else reward,
            delay_ms=_given(self.delays_ms[row]),
            eligible=self.eligible_of_rows.of(row),
            baseline=_given(self.baselines[row]),
        )

    def event_id(self, row: int) -> str:
        """Return a row's id."""
        return self.id_bytes[self.id_offsets[row] : self.id_offsets[row + 1]].tobytes().decode()

    def offered(self, row: int) -> list[str]:
        """Return the ids of a row's actions, by place."""
        first, last = int(self.offered_offsets[row]), int(self.offered_offsets[row + 1])
        bounds = self.offered_id_offsets[first : last + 1].tolist()
        data = self.offered_id_bytes[bounds[0] : bounds[-1]].tobytes()
        return [data[start - bounds[0] : stop - bounds[0]].decode() for start, stop in pairwise(bounds)]

    def row_of(self, event_id: str) -> int | None:
        """Return the row with this id, or None."""
        sought = hashes_of([event_id])[0]
        place = int(np.searchsorted(self.id_hashes, sought))
        while place < self.rows and self.id_hashes[place] == sought:
            row = int(self.id_rows[place])
            if self.event_id(row) == event_id:
                return row
            place += 1
        return None

    def tildes(self) -> int:
        """See `LogRows.tildes`."""
        if not (self.id_bytes == ord("~")).any():
            return 0
        ends = (_TILDES.search(self.event_id(row)) for row in range(self.rows))
        return max((len(found[1]) for found in ends if found is not None), default=0)

    def has(self, column: Column, rows: slice) -> bool:
        """See `LogRows.has`."""
        if column == "eligible":
            start, stop, _ = rows.indices(self.rows)
            return bool(self.eligible_offsets[stop] > self.eligible_offsets[start])
        return bool((getattr(self, column)[rows] != MISSING).any())

    def batches(self, size: int = 16_384) -> Iterator[LogBatch]:
        """Yield all rows as log batches."""
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            block = self.block(start, stop)
            yield LogBatch(
                [self.event_id(row) for row in range(start, stop)], block.offsets, block.indices, block.values,
                self.decided_at_ms[start:stop], block.labels, self.actions[start:stop], self.propensities[start:stop],
                self.rewards[start:stop], self.delays_ms[start:stop],
                self.eligible_of_rows.part(start, stop) if self.eligible.size else None, self.baselines[start:stop],
                None if self.blocks is None else self._offered_in(start, stop),
            )  # fmt: skip

    def _offered_in(self, start: int, stop: int) -> OfferedIds:
        offsets = self.offered_offsets[start : stop + 1]
        return OfferedIds(offsets - offsets[0], [name for row in range(start, stop) for name in self.offered(row)])


def store_log(log: LogFile, folder: Path) -> StoredLog:
    """Read a log once and store it in a new or empty directory.

    Raises:
        DatasetError: a row is invalid, there are no rows, or the directory cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DatasetError(f"{folder} is not empty; expected a new directory")
        with ExitStack() as stack:
            files = {name: stack.enter_context((folder / name).open("wb")) for name in _COLUMNS}
            rows = _write(log, files)
        _index(folder)
        content = {
            "version": VERSION, "name": log.name, "rows": rows, "n_features": log.n_features,
            "class_names": log.class_names, "skipped": log.skipped,
            "first_skipped": log.first_skipped, "remarks": log.remarks, "uneven": log.uneven,
            "blocks": None if log.blocks is None else list(log.blocks),
        }  # fmt: skip
        (folder / _CONTENT).write_bytes(orjson.dumps(content))
    except OSError as error:
        raise DatasetError(f"cannot store {log.name} in {folder}: {error.strerror or error}") from error
    return open_stored(folder)


def open_stored(folder: Path) -> StoredLog:
    """Open a log stored by `store_log`.

    Raises:
        DatasetError: the directory contains no stored log, or the log is damaged or has a different version.
    """
    try:
        content = orjson.loads((folder / _CONTENT).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise DatasetError(f"{folder} contains no stored log: {error}") from error
    if type(content) is not dict:
        raise DatasetError(f"{folder} contains no stored log: log.json is not an object")
    if content.get("version") != VERSION:
        raise DatasetError(f"{folder}: expected a stored log of version {VERSION}; got {content.get('version')}")
    try:
        columns: dict[str, Any] = {name: _mapped(folder / name, dtype) for name, dtype in _COLUMNS.items()}
        names = tuple(content["class_names"])
        log = StoredLog(
            name=content["name"], rows=content["rows"], n_features=content["n_features"], class_names=names,
            skipped=content["skipped"], first_skipped=content["first_skipped"], remarks=tuple(content["remarks"]),
            uneven=content["uneven"], blocks=content["blocks"] and ActionBlocks(*content["blocks"]), **columns,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{folder} contains a damaged log: {error}") from error
    _check_sizes(log, folder)
    return log


def remarks_of(log: LogFile | StoredLog) -> Iterator[str]:
    """Yield one line for each reason why rows were skipped in the last pass, then the remarks on the columns."""
    for reason, count in log.skipped.items():
        rows = "1 row" if count == 1 else f"{count:,} rows"
        first = log.first_skipped.get(reason)
        where = "" if first is None else f" ({'at' if count == 1 else 'first at'} {first})"
        yield f"{rows} of {log.name} skipped: {reason}{where}"
    for remark in log.remarks:
        yield f"{log.name}: {remark}"


def _write(log: LogFile, files: Mapping[str, BinaryIO]) -> int:
    rows = entries = id_bytes = listed = actions = action_bytes = 0
    zero = np.zeros(1, "<i8").tobytes()
    for name in ("offsets", "id_offsets", "eligible_offsets", "offered_offsets", "offered_id_offsets"):
        files[name].write(zero)
    for batch in log.batches():
        for name in ("indices", "values", "decided_at_ms", "labels", "actions", "propensities", "rewards", "delays_ms"):
            files[name].write(np.ascontiguousarray(getattr(batch, name), _COLUMNS[name]).tobytes())
        ids, ends = _encoded(batch.ids)
        files["offsets"].write((batch.offsets[1:] + entries).astype("<i8").tobytes())
        files["id_offsets"].write((ends + id_bytes).astype("<i8").tobytes())
        files["id_bytes"].write(b"".join(ids))
        files["id_hashes"].write(hashes_of(batch.ids).astype("<u8").tobytes())
        baselines = np.full(len(ids), MISSING) if batch.baselines is None else batch.baselines
        files["baselines"].write(baselines.astype("<i8").tobytes())
        eligible = batch.eligible or Eligible.of_lists([()] * len(ids))
        files["eligible"].write(eligible.classes.astype("<i4").tobytes())
        files["eligible_offsets"].write((eligible.offsets[1:] + listed).astype("<i8").tobytes())
        listed += eligible.classes.size
        offered = batch.offered or OfferedIds.of_counts(np.zeros(len(ids), np.int64), ())
        names, name_ends = _encoded(offered.ids)
        files["offered_offsets"].write((offered.offsets[1:] + actions).astype("<i8").tobytes())
        files["offered_id_offsets"].write((name_ends + action_bytes).astype("<i8").tobytes())
        files["offered_id_bytes"].write(b"".join(names))
        actions += len(names)
        action_bytes += sum(map(len, names))
        rows += len(ids)
        entries += int(batch.offsets[-1])
        id_bytes += int(ends[-1]) if ids else 0
    if not rows:
        raise no_usable_rows(log.name, log.skipped)
    return rows


def _encoded(ids: Sequence[str]) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the ids' bytes, and the end of each one."""
    encoded = [one.encode() for one in ids]
    return encoded, np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))


def _index(folder: Path) -> None:
    """Sort the id hashes, using 16 bytes of memory per id."""
    hashes = np.fromfile(folder / "id_hashes", "<u8")
    order = np.argsort(hashes, kind="stable")
    order.astype("<i8").tofile(folder / "id_rows")
    hashes[order].tofile(folder / "id_hashes")


def _check_sizes(log: StoredLog, folder: Path) -> None:
    """Check the size of every column file, because a system crash may have truncated files."""
    entries = {
        "indices": log.offsets,
        "values": log.offsets,
        "id_bytes": log.id_offsets,
        "eligible": log.eligible_offsets,
        "offered_id_offsets": log.offered_offsets,
        "offered_id_bytes": log.offered_id_offsets,
    }
    for name in _COLUMNS:
        size = getattr(log, name).size
        one_more = int(name.endswith("offsets"))
        expected = log.rows + one_more
        if (ends := entries.get(name)) is not None:
            expected = int(ends[-1]) + one_more if ends.size else -1
        if size != expected:
            raise DatasetError(f"{folder} contains a damaged log: {name} has {size} entries")


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    """Map a column into memory with copy-on-write.

    The array is writable, because numba would recompile kernels for read-only arrays.
    """
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    assert sys.byteorder == "little"
    return np.asarray(np.memmap(path, dtype, mode="c"))


def _given(value: np.int64) -> int | None:
    return None if value == MISSING else int(value)
