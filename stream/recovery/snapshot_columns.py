"""Pending decisions, orphans and retained ids as columns of a snapshot, and back.

A *block* is up to some thousand entries as one array for each column. A column of texts or bytes is two arrays:
`NAME.lengths` (-1: none) and `NAME.bytes`, all of them joined. Beside its own columns each block has the ids, `id`.

A later version may add a column: then it is declared here with what it means where it is absent, and the number of the
format stays. A version that does not know a column refuses the snapshot, rather than lose what stands in it.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from stream.joining.join import Orphan, Pending, Retained
from stream.wire.events import NOTHING_LOGGED, Decision, Features, Feedback, Outcome
from stream.wire.records import Record

Columns = Mapping[str, NDArray[Any]]

NEEDED = object()
"""Marks a column that every version has written."""

PENDING_COLUMNS: Mapping[str, Any] = {
    **dict.fromkeys(
        ("decided_at_ms", "action", "greedy", "propensity", "scores", "nnz", "x.indices", "x.values"), NEEDED
    ),
    "logged": NOTHING_LOGGED,
}
ORPHAN_COLUMNS: Mapping[str, Any] = {**dict.fromkeys(
    (
        "reward", "label", "kept_at_ms", "topic.lengths", "topic.bytes", "partition", "offset", "append_ms",
        "key.lengths", "key.bytes", "value.lengths", "value.bytes", "headers.lengths", "headers.bytes",
    ),
    NEEDED,
), "feedback_action": -1}  # fmt: skip
RETAINED_COLUMNS: Mapping[str, Any] = {
    **dict.fromkeys(("outcome", "reward", "settled_at_ms"), NEEDED), "kept": 0, "decided_action": -1,
}  # fmt: skip
"""For each column what it holds, entry by entry, where it is absent. An array is that for one entry.

Retained entries of which some are kept for a correction have the columns of those as pending decisions, too.
"""

_ID_COLUMNS = ("id.lengths", "id.bytes")

_OUTCOME_CODES = {Outcome.MATCHED: 0, Outcome.EXPIRED: 1, Outcome.UNMATCHED: 2}
_OUTCOMES = {code: outcome for outcome, code in _OUTCOME_CODES.items()}


class UnknownColumnError(ValueError):
    """A column of a later version."""


def pending_block(ids: Sequence[str], entries: Sequence[Pending]) -> Columns:
    """A block of decisions that wait."""
    return {**_texts("id", ids), **_pending_columns(entries)}


def read_pending_block(columns: Columns) -> tuple[list[str], list[Pending]]:
    """Ids and entries of a block; the inverse of `pending_block`.

    Raises:
        UnknownColumnError: a column that this version does not know.
        KeyError: a column that is needed is not there.
    """
    _check_known(columns, PENDING_COLUMNS)
    ids = _texts_of("id", columns)
    return ids, _pending_entries(_completed(columns, PENDING_COLUMNS, len(ids)))


def orphan_block(ids: Sequence[str], entries: Sequence[Orphan]) -> Columns:
    """A block of feedback that waits for its context."""
    return {**_texts("id", ids), **_orphan_columns(entries)}


def read_orphan_block(columns: Columns) -> tuple[list[str], list[Orphan]]:
    """Ids and entries of a block; see `read_pending_block`."""
    _check_known(columns, ORPHAN_COLUMNS)
    ids = _texts_of("id", columns)
    return ids, _orphan_entries(ids, _completed(columns, ORPHAN_COLUMNS, len(ids)))


def retained_block(ids: Sequence[str], entries: Sequence[Retained]) -> Columns:
    """A block of settled ids."""
    return {**_texts("id", ids), **_retained_columns(entries)}


def read_retained_block(columns: Columns) -> tuple[list[str], list[Retained]]:
    """Ids and entries of a block; see `read_pending_block`."""
    _check_known(columns, {**RETAINED_COLUMNS, **PENDING_COLUMNS})
    ids = _texts_of("id", columns)
    return ids, _retained_entries(_completed(columns, RETAINED_COLUMNS, len(ids)))


def _check_known(columns: Columns, declared: Mapping[str, Any]) -> None:
    if unknown := sorted(columns.keys() - declared.keys() - set(_ID_COLUMNS)):
        raise UnknownColumnError(unknown[0])


def _completed(columns: Columns, declared: Mapping[str, Any], count: int) -> Columns:
    """The columns, and those that are absent as what they mean then."""
    absent = {name: value for name, value in declared.items() if value is not NEEDED and name not in columns}
    return {**columns, **{name: np.full((count, *np.shape(value)), value) for name, value in absent.items()}}


def _pending_columns(entries: Sequence[Pending]) -> dict[str, NDArray[Any]]:
    xs, decisions, decided_at_ms = zip(*entries, strict=True)
    indices, values = zip(*xs, strict=True)
    actions, greedies, propensities, scores, logged = zip(*decisions, strict=True)
    return {
        "decided_at_ms": np.array(decided_at_ms, np.int64),
        "action": np.array(actions, np.int32),
        "greedy": np.array(greedies, np.int32),
        "propensity": np.array(propensities, np.float64),
        "scores": np.concatenate(scores).reshape(len(entries), -1),
        "logged": np.concatenate(logged).reshape(len(entries), logged[0].size),
        "nnz": np.array([array.size for array in indices], np.int32),
        "x.indices": np.concatenate(indices),
        "x.values": np.concatenate(values),
    }


def _pending_entries(columns: Columns) -> list[Pending]:
    ends = np.cumsum(columns["nnz"])[:-1]
    xs = map(Features, np.split(columns["x.indices"], ends), np.split(columns["x.values"], ends))
    decisions = map(
        Decision,
        columns["action"].tolist(),
        columns["greedy"].tolist(),
        columns["propensity"].tolist(),
        list(columns["scores"]),
        list(columns["logged"]),
    )
    return list(map(Pending, xs, decisions, columns["decided_at_ms"].tolist()))


def _orphan_columns(entries: Sequence[Orphan]) -> dict[str, NDArray[Any]]:
    feedback, records, kept_at_ms = zip(*entries, strict=True)
    return {
        "reward": np.array([event.reward for event in feedback], np.int8),
        "label": _numbers([event.label for event in feedback]),
        "feedback_action": _numbers([event.action for event in feedback]),
        "kept_at_ms": np.array(kept_at_ms, np.int64),
        **_texts("topic", [record.topic for record in records]),
        "partition": np.array([record.partition for record in records], np.int32),
        "offset": np.array([record.offset for record in records], np.int64),
        "append_ms": np.array([record.append_ms for record in records], np.int64),
        **_blobs("key", [record.key for record in records]),
        **_blobs("value", [record.value for record in records]),
        **_blobs("headers", [_headers(record) for record in records]),
    }


def _headers(record: Record) -> bytes:
    headers = [(name, value.hex()) for name, value in record.headers]
    try:
        return orjson.dumps(headers)
    except TypeError:  # a name that is not UTF-8 has lone surrogates, which the library escapes and orjson refuses
        return json.dumps(headers).encode()


def _orphan_entries(ids: Sequence[str], columns: Columns) -> list[Orphan]:
    records = [
        Record(topic, partition, offset, append_ms, key, value, headers)
        for topic, partition, offset, append_ms, key, value, headers in zip(
            _texts_of("topic", columns),
            columns["partition"].tolist(),
            columns["offset"].tolist(),
            columns["append_ms"].tolist(),
            _blobs_of("key", columns),
            _blobs_of("value", columns),
            [tuple((n, bytes.fromhex(v)) for n, v in json.loads(h or b"")) for h in _blobs_of("headers", columns)],
            strict=True,
        )
    ]
    labels, actions = _numbers_of(columns["label"]), _numbers_of(columns["feedback_action"])
    feedback = map(Feedback, ids, columns["reward"].tolist(), labels, actions)
    return list(map(Orphan, feedback, records, columns["kept_at_ms"].tolist()))


def _retained_columns(entries: Sequence[Retained]) -> dict[str, NDArray[Any]]:
    outcomes, rewards, settled_at_ms, kept, actions = zip(*entries, strict=True)
    pending = [entry for entry in kept if entry is not None]
    columns: dict[str, NDArray[Any]] = {
        "outcome": np.array([_OUTCOME_CODES[outcome] for outcome in outcomes], np.int8),
        "reward": np.array([-1 if reward is None else reward for reward in rewards], np.int8),
        "settled_at_ms": np.array(settled_at_ms, np.int64),
        "decided_action": _numbers(actions),
    }
    if pending:
        columns["kept"] = np.array([entry is not None for entry in kept], np.int8)
        columns |= _pending_columns(pending)
    return columns


def _retained_entries(columns: Columns) -> list[Retained]:
    outcomes = [_OUTCOMES[index] for index in columns["outcome"].tolist()]
    rewards = [None if reward < 0 else reward for reward in columns["reward"].tolist()]
    kept: list[Pending | None] = [None] * len(outcomes)
    places = np.flatnonzero(columns["kept"]).tolist()
    if places:
        completed = _completed(columns, PENDING_COLUMNS, len(places))
        for place, pending in zip(places, _pending_entries(completed), strict=True):
            kept[place] = pending
    actions = _numbers_of(columns["decided_action"])
    return list(map(Retained, outcomes, rewards, columns["settled_at_ms"].tolist(), kept, actions))


def _numbers(numbers: Sequence[int | None]) -> NDArray[np.int64]:
    """Numbers from 0 on, of which some are not known: -1."""
    return np.array([-1 if number is None else number for number in numbers], np.int64)


def _numbers_of(column: NDArray[Any]) -> list[int | None]:
    return [None if number < 0 else number for number in column.tolist()]


def _blobs(name: str, blobs: Sequence[bytes | None]) -> dict[str, NDArray[Any]]:
    lengths = np.array([-1 if blob is None else len(blob) for blob in blobs], np.int32)
    return {
        f"{name}.lengths": lengths,
        f"{name}.bytes": np.frombuffer(b"".join(blob for blob in blobs if blob is not None), np.uint8),
    }


def _blobs_of(name: str, columns: Columns) -> list[bytes | None]:
    lengths = columns[f"{name}.lengths"].tolist()
    joined = columns[f"{name}.bytes"].tobytes()
    ends = accumulate(max(length, 0) for length in lengths)
    return [None if length < 0 else joined[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _texts(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    return _blobs(name, [text.encode() for text in texts])


def _texts_of(name: str, columns: Columns) -> list[str]:
    return [(blob or b"").decode() for blob in _blobs_of(name, columns)]
