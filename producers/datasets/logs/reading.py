"""Opens log files: format detection, mapping, first pass, and batches of rows."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from producers.datasets import svmlight
from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING
from producers.datasets.logs import csv_tables, json_lines, vw_dsjson, vw_text
from producers.datasets.logs.columns import numbers, unit_by_size
from producers.datasets.logs.encoding import encode_rows, overflowing_rows
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.mapping import LogMapping, check_columns
from producers.datasets.logs.parsed import Lists, ParsedBatch, Problem, Texts, problem
from producers.datasets.logs.seen_ids import SeenIds
from producers.datasets.logs.streams import CutOffError, Source
from producers.datasets.logs.survey import Remarks, Survey, survey
from producers.datasets.logs.tables import Table, parse_names, parse_table
from stream.estimating.rows import Eligible, LogBatch
from stream.settings.values import OnBadRow
from stream.wire.named_features import FeatureEncoder, Kind, Scale, Scaling, build, sharing
from stream.wire.records import FloatArray

VOCABULARY_MAX = 1_000
"""A feature with more distinct values than this is hashed. In dense models, each index costs memory and time for every
class."""

HASH_BITS = 16
"""Hashed values share 2¹⁶ = 65,536 indices."""

CUT_OFF = "the rest of the file: damaged or truncated"

_ENDLESS = ("features: expected a finite sum of the numbers with the same index", "a value beyond float64")

_SUFFIX = re.compile(r"\.(gz|zst|zstd|csv|tsv|jsonl|ndjson|json|parquet|dsjson|vw)$", re.IGNORECASE)


class TableReader(Protocol):
    """A reader for a table format."""

    def column_names(self, source: Source, wanted: Collection[str] = (), /) -> list[str]:
        """Return the column names. A reader that has to search for them stops once the wanted ones are found."""
        ...

    def tables(self, source: Source, columns: Sequence[str] | None) -> Iterator[Table]:
        """Yield the rows, restricted to these columns; None means all columns."""
        ...


TABLES = (Format.CSV, Format.JSONL, Format.PARQUET)


def table_reader(kind: Format) -> TableReader:
    """Return the reader for a table format.

    Raises:
        DatasetError: a package that the format requires is not installed.
    """
    if kind is Format.CSV:
        return csv_tables
    if kind is Format.JSONL:
        return json_lines
    try:
        from producers.datasets.logs import parquet_tables
    except ImportError as error:
        raise DatasetError(
            f"Parquet requires {error.name}, which is not installed. Run: pip install 'onebit[parquet]'"
        ) from error
    return parquet_tables


class _LineFormat(NamedTuple):
    """A format that requires no mapping."""

    batches: Callable[[Source], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


LINE_FORMATS = {
    Format.VW_DSJSON: _LineFormat(vw_dsjson.batches, vw_dsjson.NOTES),
    Format.VW_TEXT: _LineFormat(vw_text.batches, vw_text.NOTES),
}


@dataclass(slots=True)
class LogFile:
    """A log in a file, as returned by `open_log`."""

    name: str
    format: Format
    encoder: FeatureEncoder
    class_names: tuple[str, ...]
    mapping: LogMapping | None
    notes: tuple[str, ...]  # notes for the user about the interpretation of the file
    _parse: Callable[[], Iterator[ParsedBatch]]
    _on_bad_row: OnBadRow
    _reward_above: float | None
    skipped: dict[str, int] = field(default_factory=dict)  # number of rows, by reason; from the last pass
    first_skipped: dict[str, str] = field(default_factory=dict)  # position and value of the first row, by reason
    _remarks: Remarks = field(default_factory=Remarks)
    _class_of: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._class_of = {name: k for k, name in enumerate(self.class_names)}

    @property
    def n_features(self) -> int:
        """The dimension d of the feature space."""
        return self.encoder.n_features

    @property
    def remarks(self) -> list[str]:
        """Remarks from the last pass about columns with empty cells or decimal commas."""
        return self._remarks.lines()

    @property
    def uneven(self) -> str:
        """A warning from the last pass about a column that varies much more than the others.

        The warning is empty if features are scaled.
        """
        is_scaled = any(one.scale is not None for one in self.encoder.names.values())
        return "" if is_scaled else self._remarks.uneven

    def batches(self) -> Iterator[LogBatch]:
        """Yield the rows as batches, in order.

        Raises:
            DatasetError: the file cannot be read, or a row is invalid and invalid rows are not skipped.
        """
        self.skipped = {}
        self.first_skipped = {}
        self._remarks = Remarks()
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
        """Return a mask of the usable rows. Count the problems in the other rows, or raise an error."""
        batch = checked.batch
        kept = np.ones(batch.n, np.bool_)
        for row in batch.left_out:
            kept[row.row] = False
            self._leave_out(batch, row)
        bad = [row for row in sorted(checked.first_problems.values()) if kept[row.row]]
        if bad and self._on_bad_row == "stop":
            first = bad[0]
            hint = 'correct the row, or set on_bad_row = "skip" to skip invalid rows'
            raise DatasetError(f"{self.name}, {batch.where(first.row)}, {first.reason}; got {first.got}: {hint}")
        for row in bad:
            kept[row.row] = False
            self._leave_out(batch, row)
        return kept

    def _batch(self, checked: "_Checked", kept: NDArray[np.bool_]) -> LogBatch:
        batch = checked.batch
        self._remarks.add(batch, kept)
        encoded = encode_rows(self.encoder, kept, batch.features)
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
            eligible=None if checked.eligible is None else checked.eligible.where(kept),
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

    def _eligible(self, lists: Lists | None, actions: NDArray[np.int64], problems: list[Problem]) -> Eligible | None:
        if lists is None:
            return None
        sets = [sorted(self._class_of.get(name, MISSING) for name in names) for names in lists.distinct]
        invalid = {code for code, one in enumerate(sets) if not one or one[0] == MISSING or len(set(one)) < len(one)}
        unlisted = {MISSING, *invalid}
        listed = [[] if code in unlisted else sets[code] for code in lists.codes.tolist()]
        for row, (code, one, action) in enumerate(zip(lists.codes.tolist(), listed, actions.tolist(), strict=True)):
            if code in invalid:
                expected = f"one or more of the {len(self.class_names)} classes, without duplicates"
            elif one and action >= 0 and action not in one:
                expected = "classes that include the played class"
            else:
                continue
            problems.append(problem(row, "eligible", expected, list(lists.distinct[code])))
        return Eligible.of_lists(listed)

    def _bits(self, rewards: FloatArray | None, n: int, problems: list[Problem]) -> NDArray[np.int64]:
        if rewards is None:
            return np.full(n, MISSING, np.int64)
        there = ~np.isnan(rewards)
        if self._reward_above is not None:
            return np.where(there, rewards > self._reward_above, MISSING).astype(np.int64)
        expected = "0 or 1 (or set reward_above)"
        odd = np.flatnonzero(there & (rewards != 0.0) & (rewards != 1.0))
        problems.extend(problem(row, "reward", expected, float(rewards[row])) for row in odd.tolist())
        return np.where(there, rewards, MISSING).astype(np.int64)


class _Checked:
    """A batch with its classes, its rewards, and the results of checks across rows."""

    def __init__(self, log: LogFile, batch: ParsedBatch, latest_ms: int, seen: SeenIds) -> None:
        self.batch = batch
        problems = list(batch.problems)
        self.labels = log._classes(batch.labels, batch.n, "label", problems)
        self.actions = log._classes(batch.actions, batch.n, "action", problems)
        self.eligible = log._eligible(batch.eligible, self.actions, problems)
        self.rewards = log._bits(batch.rewards, batch.n, problems)
        problems += [Problem(row, *_ENDLESS) for row in overflowing_rows(log.encoder, batch.n, batch.features)]
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
            expected = "non-decreasing times; sort the rows by time"
            got = f"a time {back_ms} ms before the time of an earlier row"
            self.first_problems[row] = problem(row, "timestamp", expected, got)
        return int(latest[-1])

    def _check_ids(self, seen: SeenIds, field: str) -> None:
        good = self._good()
        ids = [self.ids[row] for row in good.tolist()]
        if ids:
            for place in np.flatnonzero(seen.repeated(ids)).tolist():
                row = int(good[place])
                self.first_problems[row] = problem(row, field, "a unique id", ids[place])


def open_log(
    path: Path | str,
    mapping: LogMapping | None = None,
    *,
    on_bad_row: OnBadRow = "stop",
    reward_above: float | None = None,
    scale: Scaling = "none",
) -> LogFile:
    """Open a log. The file is read once to find classes, vocabularies and scales that the mapping does not specify.

    Args:
        path: The file, or "-" for standard input, which is copied to a temporary file.
        mapping: The column mapping. Only tables (CSV, JSON lines, Parquet) have one.
        on_bad_row: How to handle invalid rows: raise an error, or skip and count them.
        reward_above: Rewards above this value become 1, all other rewards 0. None means that rewards must be 0 or 1.
        scale: Whether numeric features are scaled; see `producers.datasets.scaling`.

    Raises:
        DatasetError: the file or the mapping cannot be used.
    """
    source = Source(str(path))
    kind = _format(source)
    scales = scale == "standard"
    batches = (
        _table_batches(source, kind, mapping, scales=scales) if kind in TABLES else _line_batches(source, kind, mapping)
    )
    known = None if mapping is None else mapping.classes
    notes = batches.notes
    encoder = None
    if mapping is not None and _only_numbers(mapping) and not scales:
        encoder = build({name: (one, None) for name, one in mapping.features.kinds().items()}, HASH_BITS)
    if known is None or encoder is None:
        found = survey(_whole(batches.to_survey(), on_bad_row), VOCABULARY_MAX, numbered=kind in LINE_FORMATS)
        known = known or found.classes
        if not known:
            raise DatasetError(f"{source.name} has no usable rows")
        encoder = encoder or build(_in_order(mapping, found), HASH_BITS, scales=_scales(found) if scales else {})
        notes += _on_hashing(encoder, found)
    if len(set(known)) < max(2, len(known)):
        raise DatasetError(f"{source.name}: expected two or more distinct classes; got {list(known)}")
    if encoder.n_features < 1:
        raise DatasetError(f"{source.name} has no context features")
    return LogFile(name_of(source), kind, encoder, known, mapping, notes, batches.to_read, on_bad_row, reward_above)


class _Batches(NamedTuple):
    """Functions that start a pass over a file, and notes about the file."""

    to_survey: Callable[[], Iterator[ParsedBatch]]
    to_read: Callable[[], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


def _table_batches(source: Source, kind: Format, mapping: LogMapping | None, *, scales: bool) -> _Batches:
    if mapping is None:
        shown = "FILE` for a similar file" if source.is_stdin else f"{source.path}` to guess one"
        raise DatasetError(f"{source.name} is {kind}, which requires a mapping. Run `onebit data show {shown}")
    known = mapping  # gives the nested functions the narrower type
    tables = table_reader(kind).tables
    check_columns(mapping, table_reader(kind).column_names(source, mapping.columns()), source.name)
    surveyed = [name for name, one in mapping.features.kinds().items() if scales or one is not Kind.NUMERIC]
    surveyed += [
        name for name in (mapping.label, mapping.action, mapping.eligible) if name is not None and name not in surveyed
    ]

    def to_survey() -> Iterator[ParsedBatch]:
        return (parse_names(table, known) for table in tables(source, surveyed))

    def to_read() -> Iterator[ParsedBatch]:
        return (parse_table(table, known) for table in tables(source, known.columns()))

    notes = _on_times(source, tables, mapping)
    if mapping.delay is not None:
        notes.append(f"numeric delays in {mapping.delay} are interpreted as {mapping.unit_of_delay()}")
    return _Batches(to_survey, to_read, tuple(notes))


def _on_times(
    source: Source, tables: Callable[[Source, Sequence[str] | None], Iterator[Table]], mapping: LogMapping
) -> list[str]:
    """Return a note about the unit of numeric times, if this unit is inferred from the first time."""
    if mapping.timestamp is None or mapping.time_unit is not None:
        return []
    first = next(tables(source, [mapping.timestamp]), None)
    problems: list[Problem] = []
    found = numbers([] if first is None else first.columns[mapping.timestamp], "", "", problems)
    if problems or not found.size or np.isnan(found[0]):
        return []
    return [f"numeric times in {mapping.timestamp} are interpreted as {unit_by_size(found[0])} since 1970"]


def _line_batches(source: Source, kind: Format, mapping: LogMapping | None) -> _Batches:
    if kind is Format.SVMLIGHT:
        raise DatasetError(
            f"{source.name} looks like svmlight, which is a labelled data set and not a log; remove the mapping"
        )
    if mapping is not None:
        raise DatasetError(f"{source.name} is {kind}, which requires no mapping; remove the mapping")
    batches, notes = LINE_FORMATS[kind]
    return _Batches(lambda: batches(source), lambda: batches(source), notes)


def _only_numbers(mapping: LogMapping) -> bool:
    return set(mapping.features.kinds().values()) == {Kind.NUMERIC}


def _in_order(mapping: LogMapping | None, found: Survey) -> Mapping[str, tuple[Kind, Sequence[str] | None]]:
    """Return the features in mapping order. Numeric columns that the first pass did not read are included."""
    if mapping is None:
        return found.names
    return {name: found.names.get(name, (kind, ())) for name, kind in mapping.features.kinds().items()}


def _scales(found: Survey) -> dict[str, Scale]:
    return {name: scale for name, one in found.moments.items() if (scale := one.scale) is not None}


def _whole(batches: Iterator[ParsedBatch], on_bad_row: OnBadRow) -> Iterator[ParsedBatch]:
    """Yield the batches. If invalid rows are skipped, stop where the file is truncated instead of raising an error."""
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
        f"features hashed to {1 << encoder.hash_bits:,} indices: {', '.join(hashed)}; about "
        f"{sharing(distinct, encoder.hash_bits):,.0f} of {distinct:,.0f} values share an index",
    )


def name_of(source: Source) -> str:
    """Return the prefix for event ids, which is the file name without its suffixes."""
    name = "stdin" if source.is_stdin else Path(source.path).name
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return svmlight.name_of(Path(name))


def _format(source: Source) -> Format:
    path = Path(source.path)
    if not source.is_stdin and path.is_dir():
        raise DatasetError(f"{path} is a directory; expected a file")
    return format_of(source.head(), source.name)
