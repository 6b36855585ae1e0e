"""Logs from files: format, mapping, first pass, and then the rows as batches of a log."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from producers.datasets import svmlight
from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING, LogBatch, OnBadRow
from producers.datasets.logs import csv_tables, json_lines, vw_dsjson, vw_text
from producers.datasets.logs.columns import numbers, unit_by_size
from producers.datasets.logs.encoding import encode_rows, endless_rows
from producers.datasets.logs.looks import Format, format_of
from producers.datasets.logs.mapping import LogMapping, check_columns
from producers.datasets.logs.parsed import ParsedBatch, Problem, problem
from producers.datasets.logs.seen_ids import SeenIds
from producers.datasets.logs.streams import CutOffError, Source
from producers.datasets.logs.survey import Survey, survey
from producers.datasets.logs.tables import Table, parse_names, parse_table
from producers.datasets.logs.texts import Texts
from stream.wire.events import FloatArray
from stream.wire.named_features import FeatureEncoder, Kind, build, sharing

VOCABULARY_MAX = 1_000
"""A name with more values than this is hashed: with dense models, each index costs every class some numbers."""

HASH_BITS = 16
"""65,536 indices for what is hashed."""

CUT_OFF = "the rest of the file: it is damaged or cut off"

_ENDLESS = ("features: expected a finite sum of the numbers that share an index", "one beyond 64 bits")

_SUFFIX = re.compile(r"\.(gz|zst|zstd|csv|tsv|jsonl|ndjson|json|parquet|dsjson|vw)$", re.IGNORECASE)


class TableReader(Protocol):
    """How a format of tables is read."""

    def column_names(self, source: Source) -> list[str]:
        """Return the names of the columns."""
        ...

    def tables(self, source: Source, columns: Sequence[str] | None) -> Iterator[Table]:
        """Return the rows, with the given columns; None: all."""
        ...


TABLES = (Format.CSV, Format.JSONL, Format.PARQUET)


def table_reader(kind: Format) -> TableReader:
    """Return the reader of a format of tables.

    Raises:
        DatasetError: it needs a package that is not installed.
    """
    if kind is Format.CSV:
        return csv_tables
    if kind is Format.JSONL:
        return json_lines
    try:
        from producers.datasets.logs import parquet_tables
    except ImportError as error:
        raise DatasetError(
            f"Parquet needs {error.name}, which is not installed. Run: pip install 'onebit[parquet]'"
        ) from error
    return parquet_tables


class _LineFormat(NamedTuple):
    """How a format that needs no mapping is read."""

    batches: Callable[[Source], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


LINE_FORMATS = {
    Format.VW_DSJSON: _LineFormat(vw_dsjson.batches, vw_dsjson.NOTES),
    Format.VW_TEXT: _LineFormat(vw_text.batches, vw_text.NOTES),
}


@dataclass(slots=True)
class LogFile:
    """A log in a file: what `open_log` makes."""

    name: str
    format: Format
    encoder: FeatureEncoder
    class_names: tuple[str, ...]
    mapping: LogMapping | None
    found: Survey | None  # by the first pass; None: there was none
    notes: tuple[str, ...]  # what people should know about how it is read
    _parse: Callable[[], Iterator[ParsedBatch]]
    _on_bad_row: OnBadRow
    _reward_above: float | None
    skipped: dict[str, int] = field(default_factory=dict)
    first_skipped: dict[str, str] = field(default_factory=dict)
    unknown_values: dict[str, int] = field(
        default_factory=dict
    )  # entries in no vocabulary, by name, of the last reading
    _class_of: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._class_of = {name: k for k, name in enumerate(self.class_names)}

    @property
    def n_features(self) -> int:
        """The dimension d of the feature space."""
        return self.encoder.n_features

    def batches(self) -> Iterator[LogBatch]:
        """The rows in their order.

        Raises:
            DatasetError: a bad row, where bad rows are not to be skipped; or what cannot be read at all.
        """
        self.skipped = {}
        self.first_skipped = {}
        self.unknown_values = {}
        seen = SeenIds()
        latest_ms = MISSING
        parsed = self._parse()
        while True:
            try:
                batch = next(parsed, None)
            except CutOffError:
                if self._on_bad_row == "stop":
                    raise
                self._count(CUT_OFF)
                return
            if batch is None:
                return
            checked = _Checked(self, batch, latest_ms, seen)
            latest_ms = checked.latest_ms
            if (kept := self._kept(checked)).any():
                yield self._batch(checked, kept)

    def _kept(self, checked: "_Checked") -> NDArray[np.bool_]:
        """Which rows are used; what is wrong with the others is counted, or raised."""
        batch = checked.batch
        kept = np.ones(batch.n, np.bool_)
        for row in batch.left_out:
            kept[row.row] = False
            self._leave_out(batch, row)
        bad = [row for row in sorted(checked.first_problems.values()) if kept[row.row]]
        if bad and self._on_bad_row == "stop":
            first = bad[0]
            hint = "correct it, or let bad rows be skipped (on-bad-row: skip)"
            raise DatasetError(f"{self.name}, {batch.where(first.row)}, {first.reason}; got {first.got}: {hint}")
        for row in bad:
            kept[row.row] = False
            self._leave_out(batch, row)
        return kept

    def _batch(self, checked: "_Checked", kept: NDArray[np.bool_]) -> LogBatch:
        batch = checked.batch
        encoded = encode_rows(self.encoder, kept, batch.features)
        for name, count in encoded.unknown.items():
            self.unknown_values[name] = self.unknown_values.get(name, 0) + count
        n = int(np.count_nonzero(kept))
        nowhere = np.full(n, MISSING, np.int64)
        return LogBatch(
            ids=[one for one, keep in zip(checked.ids, kept.tolist(), strict=True) if keep],
            offsets=encoded.offsets,
            indices=encoded.indices,
            values=encoded.values,
            decided_at_ms=nowhere if batch.decided_at_ms is None else batch.decided_at_ms[kept],
            labels=checked.labels[kept],
            actions=checked.actions[kept],
            propensities=np.full(n, np.nan) if batch.propensities is None else batch.propensities[kept],
            rewards=checked.rewards[kept],
            delays_ms=nowhere if batch.delays_ms is None else batch.delays_ms[kept],
        )

    def _leave_out(self, batch: ParsedBatch, row: Problem) -> None:
        if row.reason not in self.skipped:
            self.first_skipped[row.reason] = batch.where(row.row) + (row.got and f"; got {row.got}")
        self._count(row.reason)

    def _count(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _classes(self, names: Texts | None, n: int, role: str, problems: list[Problem]) -> NDArray[np.int64]:
        if names is None:
            return np.full(n, MISSING, np.int64)
        unknown = -2
        found = np.array([*(self._class_of.get(name, unknown) for name in names.distinct), MISSING])[names.codes]
        expected = f"one of the {len(self.class_names)} classes"
        odd = np.flatnonzero(found == unknown).tolist()
        problems.extend(problem(row, role, expected, names[row]) for row in odd)
        return found

    def _bits(self, rewards: FloatArray | None, n: int, problems: list[Problem]) -> NDArray[np.int64]:
        if rewards is None:
            return np.full(n, MISSING, np.int64)
        there = ~np.isnan(rewards)
        if self._reward_above is not None:
            return np.where(there, rewards > self._reward_above, MISSING).astype(np.int64)
        expected = "0 or 1 (or say above which reward the bit is 1: reward_above)"
        odd = np.flatnonzero(there & (rewards != 0.0) & (rewards != 1.0))
        problems.extend(problem(row, "reward", expected, float(rewards[row])) for row in odd.tolist())
        return np.where(there, rewards, MISSING).astype(np.int64)


class _Checked:
    """A batch, with what must hold between its rows and of its classes and rewards."""

    def __init__(self, log: LogFile, batch: ParsedBatch, latest_ms: int, seen: SeenIds) -> None:
        self.batch = batch
        problems = list(batch.problems)
        self.labels = log._classes(batch.labels, batch.n, "label", problems)
        self.actions = log._classes(batch.actions, batch.n, "action", problems)
        self.rewards = log._bits(batch.rewards, batch.n, problems)
        problems += [Problem(row, *_ENDLESS) for row in endless_rows(log.encoder, batch.n, batch.features)]
        self.first_problems: dict[int, Problem] = {}
        for one in problems:
            self.first_problems.setdefault(one.row, one)
        self.latest_ms = self._check_times(latest_ms)
        if batch.ids is None:
            first = batch.first_row
            self.ids = [f"{log.name}-{row:06}" for row in range(first, first + batch.n)]
        else:
            self.ids = [one or "" for one in batch.ids.to_list()]
            self._check_ids(seen, "EventId" if log.mapping is None else str(log.mapping.id))

    def _good(self) -> NDArray[np.int64]:
        left_out = {one.row for one in self.batch.left_out}
        if not left_out and not self.first_problems:
            return np.arange(self.batch.n)
        return np.array(
            [row for row in range(self.batch.n) if row not in self.first_problems.keys() | left_out], np.int64
        )

    def _check_times(self, latest_ms: int) -> int:
        if self.batch.decided_at_ms is None:
            return latest_ms
        good = self._good()
        times = self.batch.decided_at_ms[good]
        latest = np.maximum.accumulate(np.concatenate([[latest_ms], times]))
        for place in np.flatnonzero((times != MISSING) & (times < latest[:-1])).tolist():
            row = int(good[place])
            back_ms = int(latest[place] - times[place])
            expected = "times that do not go back; sort the rows by time"
            self.first_problems[row] = problem(row, "timestamp", expected, f"{back_ms} ms before an earlier row")
        return int(latest[-1])

    def _check_ids(self, seen: SeenIds, field: str) -> None:
        good = self._good()
        ids = [self.ids[row] for row in good.tolist()]
        if ids:
            for place in np.flatnonzero(seen.repeated(ids)).tolist():
                row = int(good[place])
                self.first_problems[row] = problem(row, field, "an id that no row before it has", ids[place])


def open_log(
    path: Path | str,
    mapping: LogMapping | None = None,
    *,
    on_bad_row: OnBadRow = "stop",
    reward_above: float | None = None,
    classes: Sequence[str] | None = None,
    encoder: FeatureEncoder | None = None,
    vocabulary_max: int = VOCABULARY_MAX,
    hash_bits: int = HASH_BITS,
) -> LogFile:
    """Open a log. A file is read once to find its classes and vocabularies, where they are not given.

    Args:
        path: the file, or "-" for standard input, which is copied to a temporary file.
        mapping: which column says what; only tables (CSV, JSON lines, Parquet) have and need one.
        on_bad_row: what to do with a row that cannot be used: raise an error, or skip and count it.
        reward_above: a reward above this is 1, any other 0; None: rewards are 0 or 1, and others bad rows.
        classes: what the classes are called, as `classes` of a mapping.
        encoder: which index each feature has, when that was found out before.
        vocabulary_max: a category or text with more values than this is hashed.
        hash_bits: 2**hash_bits indices are shared by what is hashed.

    Raises:
        DatasetError: the file, or the mapping, cannot be used.
    """
    source = Source(str(path))
    kind = _format(source)
    batches = _table_batches(source, kind, mapping) if kind in TABLES else _line_batches(source, kind, mapping)
    known = tuple(classes) if classes is not None else mapping.classes if mapping is not None else None
    notes = batches.notes
    found = None
    if encoder is None and mapping is not None and _only_numbers(mapping):
        encoder = build({name: (one, None) for name, one in mapping.features.kinds().items()}, hash_bits)
    if known is None or encoder is None:
        found = survey(_whole(batches.to_survey(), on_bad_row), vocabulary_max, numbered=kind in LINE_FORMATS)
        known = known or found.classes
        encoder = encoder or build(_in_order(mapping, found), hash_bits)
        notes += _on_hashing(encoder, found)
    assert known is not None
    assert encoder is not None
    if found is not None and not known:
        raise DatasetError(f"{source.name} has no rows that can be used")
    if len(set(known)) < max(2, len(known)):
        raise DatasetError(f"{source.name}: two or more different classes are needed; got {list(known)}")
    if encoder.n_features < 1:
        raise DatasetError(f"{source.name} has no features of the context")
    return LogFile(
        name_of(source), kind, encoder, known, mapping, found, notes, batches.to_read, on_bad_row, reward_above
    )


class _Batches(NamedTuple):
    """How a file is read, twice perhaps."""

    to_survey: Callable[[], Iterator[ParsedBatch]]
    to_read: Callable[[], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


def _table_batches(source: Source, kind: Format, mapping: LogMapping | None) -> _Batches:
    if mapping is None:
        shown = "FILE` guesses one for a file that is like it" if source.is_stdin else f"{source.path}` guesses one"
        raise DatasetError(
            f"{source.name} is {kind}: a mapping must say which column is what; `onebit data show {shown}"
        )
    known = mapping  # for the functions below, it is there
    tables = table_reader(kind).tables
    check_columns(mapping, table_reader(kind).column_names(source), source.name)
    surveyed = [name for name, one in mapping.features.kinds().items() if one is not Kind.NUMERIC]
    surveyed += [name for name in (mapping.label, mapping.action) if name is not None and name not in surveyed]

    def to_survey() -> Iterator[ParsedBatch]:
        return (parse_names(table, known) for table in tables(source, surveyed))

    def to_read() -> Iterator[ParsedBatch]:
        return (parse_table(table, known) for table in tables(source, known.columns()))

    notes = _on_times(source, tables, mapping)
    if mapping.delay is not None:
        notes.append(f"delays that are numbers, in {mapping.delay}, are in {mapping.unit_of_delay()}")
    return _Batches(to_survey, to_read, tuple(notes))


def _on_times(
    source: Source, tables: Callable[[Source, Sequence[str] | None], Iterator[Table]], mapping: LogMapping
) -> list[str]:
    """In which unit times are that are numbers: as given, or as the size of the first one says."""
    if mapping.timestamp is None or mapping.time_unit is not None:
        return []
    first = next(tables(source, [mapping.timestamp]), None)
    problems: list[Problem] = []
    found = numbers([] if first is None else first.columns[mapping.timestamp], "", "", problems)
    if problems or not found.size or np.isnan(found[0]):
        return []
    return [f"times, in {mapping.timestamp}, are numbers; by their size, {unit_by_size(found[0])} since 1970"]


def _line_batches(source: Source, kind: Format, mapping: LogMapping | None) -> _Batches:
    if kind is Format.SVMLIGHT:
        raise DatasetError(f"{source.name} looks like svmlight, labelled rows and no log; it is read without a mapping")
    if mapping is not None:
        raise DatasetError(f"{source.name} is {kind}, which says itself what is what; it takes no mapping")
    batches, notes = LINE_FORMATS[kind]
    return _Batches(lambda: batches(source), lambda: batches(source), notes)


def _only_numbers(mapping: LogMapping) -> bool:
    return set(mapping.features.kinds().values()) == {Kind.NUMERIC}


def _in_order(mapping: LogMapping | None, found: Survey) -> Mapping[str, tuple[Kind, Sequence[str] | None]]:
    """What the first pass found, in the order of the mapping; of numbers it sees nothing."""
    if mapping is None:
        return found.names
    return {name: found.names.get(name, (kind, ())) for name, kind in mapping.features.kinds().items()}


def _whole(batches: Iterator[ParsedBatch], on_bad_row: OnBadRow) -> Iterator[ParsedBatch]:
    """A file, up to where it is cut off when that is to be skipped."""
    try:
        yield from batches
    except CutOffError:
        if on_bad_row == "stop":
            raise


def _on_hashing(encoder: FeatureEncoder, found: Survey) -> tuple[str, ...]:
    if encoder.hash_bits is None:
        return ()
    hashed = [name for name, one in encoder.names.items() if one.indices is None]
    distinct = found.hashed_distinct
    return (
        f"hashed, to {1 << encoder.hash_bits:,} indices: {', '.join(hashed)}; of about {distinct:,.0f} values "
        f"about {sharing(distinct, encoder.hash_bits):,.0f} share their index with another one",
    )


def name_of(source: Source) -> str:
    """What ids begin with: the name of the file without its suffixes."""
    name = "stdin" if source.is_stdin else Path(source.path).name
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return svmlight.name_of(Path(name))


def _format(source: Source) -> Format:
    path = Path(source.path)
    if not source.is_stdin and path.is_dir():
        raise DatasetError(f"{path} is a folder; give a file")
    return format_of(source.head(), source.name)
