"""A summary of a log: its format, a guessed mapping, and its first rows."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from producers.data import uneven_warning
from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING
from producers.datasets.logs.columns import is_empty
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.guess import Guess, guess
from producers.datasets.logs.mapping import LogMapping, mapping_for, mapping_of
from producers.datasets.logs.reading import TABLES, LogFile, open_log
from producers.datasets.logs.stored import remarks_of
from producers.datasets.logs.streams import STDIN, Source
from stream.estimating.rows import LogBatch
from stream.parsing import format_duration
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import ACTIONS, FeatureEncoder, Kind, Scaling, to_plain
from stream.wire.records import Features
from stream.wire.rewards import RewardRange

_ROWS_SHOWN = 5
_ENTRIES_SHOWN = 6
_GUESSED = "as guessed"


class LogSummary(NamedTuple):
    """A summary of a log."""

    file: str
    format: Format
    columns: list[str]  # column names of a tabular log
    mapping: LogMapping | None
    guessed: Guess | None  # None if there is a mapping, or none is needed
    log: LogFile | None  # None if the rows cannot be read with the guessed mapping
    rows: int
    first: LogBatch | None

    def save_features(self, path: Path) -> None:
        """Save a file that maps feature names to indices.

        Raises:
            DatasetError: the rows cannot be read, or the file cannot be written.
        """
        if self.log is None:
            raise DatasetError(f"cannot write {path}: the rows cannot be read with the guessed mapping; use --map")
        try:
            plain = to_plain(self.log.encoder)
            if self.log.action_encoder is not None:
                plain[ACTIONS] = to_plain(self.log.action_encoder)
            path.write_bytes(orjson.dumps(plain))
        except OSError as error:
            raise DatasetError(f"cannot write {path}: {error.strerror or error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a dict of plain values."""
        log = self.log
        return {
            "file": self.file,
            "format": str(self.format),
            "columns": self.columns,
            "mapping": None if self.mapping is None else self.mapping.model_dump(exclude_none=True),
            "guessed": self.guessed is not None,
            "remarks": [] if self.guessed is None else self.guessed.remarks,
            "rows": self.rows if log is not None else None,
            "warnings": [] if log is None else [*filter(None, [*remarks_of(log), uneven_warning(log.uneven)])],
            "skipped": {} if log is None else log.skipped,
            "first_skipped": {} if log is None else log.first_skipped,
            "features": None if log is None else log.n_features,
            "classes": None if log is None else len(log.class_names),
            "class_names": None if log is None else log.class_names,
            "actions": None if log is None or log.blocks is None else log.blocks._asdict(),
            "notes": [] if log is None else log.notes,
            "first": [] if log is None else list(rows_of(self.first, log)),
        }


def summarise_log(
    path: str,
    mapping_given: str | None,
    reward_above: float | None,
    scale: Scaling = "none",
    graded: RewardRange | None = None,
) -> LogSummary:
    """Read a log and count its invalid rows.

    Raises:
        DatasetError: the log cannot be read, or is standard input.
    """
    if path == STDIN:
        raise DatasetError("cannot show standard input; specify a file")
    source = Source(path)
    kind = format_of(source.head(), path)
    mapping = mapping_for(path, mapping_given)
    columns: list[str] = []
    guessed = None
    if kind in TABLES:
        columns = TABLES[kind]().column_names(source)
        if mapping is None:
            guessed = _guess(source, kind)
            try:
                mapping = mapping_of(guessed.fields, _GUESSED)
            except DatasetError as error:
                what = str(error).removeprefix(f"mapping {_GUESSED}: ")
                remark = f"complete the mapping to show rows: {what}"
                guessed = Guess(guessed.fields, (*guessed.remarks, remark))
                return LogSummary(path, kind, columns, None, guessed, None, 0, None)
    log = open_log(path, mapping, on_bad_row="skip", reward_above=reward_above, graded=graded, scale=scale)
    batches = log.batches()
    first = next(batches, None)
    rows = sum(len(batch.ids) for batch in chain(() if first is None else (first,), batches))
    return LogSummary(path, kind, columns, mapping, guessed, log, rows, first)


def _guess(source: Source, kind: Format) -> Guess:
    tables = TABLES[kind]().tables
    table = next(tables(source, None), None)
    if table is None:
        raise DatasetError(f"{source.name} ({kind}) has no rows")
    columns = dict(table.columns)
    empty = [name for name, column in columns.items() if is_empty(column)]
    for later in tables(source, empty) if empty else ():  # a column may have its first values late in the file
        columns |= {name: later.columns[name] for name in empty if not is_empty(later.columns[name])}
        empty = [name for name in empty if is_empty(columns[name])]
        if not empty:
            break
    return guess(table._replace(columns=columns))


def rows_of(batch: LogBatch | None, log: LogFile) -> Iterator[dict[str, Any]]:
    """Return the first rows, with class and feature names. Unknown values are None."""
    if batch is None:
        return
    names = _names_of(log)
    for row in range(min(_ROWS_SHOWN, len(batch.ids))):
        start, stop = batch.offsets[row], batch.offsets[row + 1]
        x = Features(batch.indices[start:stop], batch.values[start:stop])
        action, ids = int(batch.actions[row]), None if batch.offered is None else batch.offered.of(row)
        if log.blocks is not None:  # only the context and the played action
            x = log.blocks.only(x, action) if action != MISSING else log.blocks.split(x)[0]
        propensity = float(batch.propensities[row])
        among = None if batch.eligible is None else batch.eligible.of(row)
        classes = log.class_names if ids is None else ids
        yield {
            "id": batch.ids[row],
            "time": _time(int(batch.decided_at_ms[row])),
            "action": None if action == MISSING else classes[action],
            "propensity": None if propensity != propensity else round(propensity, 6),
            "reward": _reward(float(batch.rewards[row])),
            "delay": None if batch.delays_ms[row] == MISSING else format_duration(int(batch.delays_ms[row])),
            "label": None if batch.labels[row] == MISSING else classes[int(batch.labels[row])],
            "actions": None if ids is None else ", ".join(ids),
            "eligible": None if among is None or len(among) == len(ids or ()) else ", ".join(classes[k] for k in among),
            "features": _entries(x, names, log.blocks),
        }


def _entries(x: Features, names: Mapping[int, str], blocks: ActionBlocks | None) -> str:
    """Return the first features, and those of the action."""
    shown, of_action = list[str](), list[str]()
    for index, value in zip(x.indices.tolist(), x.values.tolist(), strict=True):
        place, part = index, shown
        if blocks is not None and index >= blocks.context:
            place, part = blocks.context + (index - blocks.context) % blocks.width, of_action
            if place == blocks.context:
                continue  # the key of the action's id
        part.append(f"{names.get(place, f'#{place}')[:40]}{'' if value == 1.0 else f': {value:g}'}")
    listed = [
        ", ".join(part[:_ENTRIES_SHOWN]) + (", ..." if len(part) > _ENTRIES_SHOWN else "")
        for part in (shown, of_action)
    ]
    return " | ".join(filter(None, listed))


def _names_of(log: LogFile) -> dict[int, str]:
    """Return the feature name for each index, except for hashed features. Actions' features follow their key."""
    names = _names_in(log.encoder, 0)
    if log.action_encoder is not None:
        names |= _names_in(log.action_encoder, log.encoder.n_features + 1)
    return names


def _names_in(encoder: FeatureEncoder, first: int) -> dict[int, str]:
    return {
        first + index: name if one.kind is Kind.NUMERIC else f"{name}={value}"
        for name, one in encoder.names.items()
        for value, index in (one.indices or {}).items()
    }


def _time(time_ms: int) -> str | None:
    if time_ms == MISSING:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    )


def _reward(reward: float) -> float | None:
    """Return a reward as a JSON value, with bits as ints; None if it is missing."""
    if isnan(reward):
        return None
    return int(reward) if reward.is_integer() else reward
