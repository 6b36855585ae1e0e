"""Opens log files: format detection, mapping, first pass, and batches of rows."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from producers.datasets import svmlight
from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING
from producers.datasets.logs import csv_tables, json_lines, vw_actions, vw_dsjson, vw_text
from producers.datasets.logs.checks import CheckedBatch, Checks, Meaning, Options
from producers.datasets.logs.columns import numbers, unit_by_size
from producers.datasets.logs.encoding import encode_rows
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.mapping import LogMapping, check_columns
from producers.datasets.logs.offered import combined, where
from producers.datasets.logs.parsed import ParsedBatch, Problem, no_usable_rows
from producers.datasets.logs.streams import Source
from producers.datasets.logs.survey import FeatureSurvey, Remarks, Survey, survey
from producers.datasets.logs.tables import Table, parse_table
from stream.estimating.rows import Eligible, LogBatch, OfferedIds
from stream.settings.values import OnBadRow
from stream.wire.actions import ACTIONS_MAX, ActionBlocks
from stream.wire.named_features import ACTIONS, FeatureEncoder, Kind, Scaling, build, from_plain, sharing
from stream.wire.rewards import RewardRange

VOCABULARY_MAX = 1_000
"""A feature with more distinct values than this is hashed. In dense models, each index costs memory and time for every
class."""

COLUMNS_SHOWN = 20
"""Maximum number of columns that a message lists."""

HASH_BITS = 16
"""Hashed values share 2¹⁶ = 65,536 indices."""

_SUFFIX = re.compile(r"\.(gz|zst|zstd|csv|tsv|jsonl|ndjson|json|parquet|dsjson|vw)$", re.IGNORECASE)


class TableReader(Protocol):
    """A reader for a table format."""

    def column_names(self, source: Source, wanted: Collection[str] = (), /) -> list[str]:
        """Return the column names. A reader that has to search for them stops once the wanted ones are found."""
        ...

    def tables(self, source: Source, columns: Sequence[str] | None) -> Iterator[Table]:
        """Yield the rows, restricted to these columns; None means all columns."""
        ...


def _parquet() -> TableReader:
    """Return the reader for Parquet and for tables in memory.

    Raises:
        DatasetError: pyarrow is not installed.
    """
    with _requiring_pyarrow("Parquet"):
        from producers.datasets.logs import parquet_tables
    return parquet_tables


def source_of_table(table: object) -> Source:
    """Return a source that reads a table in memory, such as a DataFrame.

    Raises:
        DatasetError: this is not a table, or pyarrow is not installed or cannot convert the table.
    """
    if not hasattr(table, "__arrow_c_stream__"):
        expected = "a name, a table such as a DataFrame (pandas 2.2 or later) or, except for estimates, arrays (x, y)"
        raise DatasetError(f"data: expected {expected}; got {type(table).__name__}")
    with _requiring_pyarrow(f"a {type(table).__name__} as data"):
        from producers.datasets.logs import parquet_tables
    return parquet_tables.source_of(table)


@contextmanager
def _requiring_pyarrow(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise DatasetError(
            f"{what} requires {error.name}, which is not installed. Run: pip install 'onebit[parquet]'"
        ) from error


TABLES: Mapping[Format, Callable[[], TableReader]] = {
    Format.CSV: lambda: csv_tables,
    Format.JSONL: lambda: json_lines,
    Format.PARQUET: _parquet,
    Format.TABLE: _parquet,
}
"""The formats that require a mapping, each with a function that returns its reader."""


class _LineFormat(NamedTuple):
    """A format that requires no mapping."""

    batches: Callable[[Source], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


LINE_FORMATS = {
    Format.VW_DSJSON: _LineFormat(vw_dsjson.batches, vw_dsjson.NOTES),
    Format.VW_DSJSON_ACTIONS: _LineFormat(partial(vw_dsjson.batches, has_actions=True), vw_dsjson.NOTES_ON_ACTIONS),
    Format.VW_TEXT: _LineFormat(vw_text.batches, vw_text.NOTES),
    Format.VW_TEXT_ACTIONS: _LineFormat(vw_actions.batches, vw_actions.NOTES),
}


WITH_ACTIONS = frozenset((Format.VW_DSJSON_ACTIONS, Format.VW_TEXT_ACTIONS))


@dataclass(slots=True)
class LogFile:
    """A log in a file, as returned by `open_log`.

    If decisions are among actions with features, the classes are the actions' places.
    """

    name: str
    format: Format
    encoder: FeatureEncoder  # of the contexts' features
    action_encoder: FeatureEncoder | None  # of the actions' features; None if the decisions are among classes
    class_names: tuple[str, ...]
    mapping: LogMapping | None
    notes: tuple[str, ...]  # notes for the user about the interpretation of the file
    _parse: Callable[[], Iterator[ParsedBatch]]
    _options: Options
    _checks: Checks = field(init=False)  # from the last pass
    _remarks: Remarks = field(default_factory=Remarks)
    _meaning: Meaning = field(init=False)

    def __post_init__(self) -> None:
        self._checks = Checks(self._options)
        class_of = {name: k for k, name in enumerate(self.class_names)}
        is_given = self.mapping is not None and self.mapping.classes is not None
        own, of_actions = self.encoder, self.action_encoder
        places = ACTIONS_MAX if self.mapping is None else self.mapping.actions_max or ACTIONS_MAX
        self._meaning = Meaning(class_of, is_given, own, _kinds(own), of_actions, _kinds(of_actions), places)

    @property
    def skipped(self) -> dict[str, int]:
        """The number of rows skipped in the last pass, by reason."""
        return self._checks.skipped

    @property
    def first_skipped(self) -> dict[str, str]:
        """The position and value of the first row skipped in the last pass, by reason."""
        return self._checks.first_skipped

    @property
    def n_features(self) -> int:
        """The dimension d of the feature space."""
        return self.encoder.n_features if self.blocks is None else self.blocks.n_features

    @property
    def blocks(self) -> ActionBlocks | None:
        """The layout of x, or None if the decisions are among classes."""
        if self.action_encoder is None:
            return None
        return ActionBlocks(len(self.class_names), self.encoder.n_features, self.action_encoder.n_features)

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
        self._checks = Checks(self._options)
        self._remarks = Remarks()
        for checked in self._checks.apply(self._parse(), self._meaning):
            if checked.kept.any():
                yield self._batch(checked)

    def _batch(self, checked: CheckedBatch) -> LogBatch:
        batch, kept = checked.batch, checked.kept
        self._remarks.add(batch, kept)
        encoded = encode_rows(self.encoder, kept, batch.features)
        ids = None
        if batch.offered is not None and self.action_encoder is not None and self.blocks is not None:
            offered = where(batch.offered, kept)
            of_actions = np.repeat(kept, batch.offered.counts)
            actions = encode_rows(self.action_encoder, of_actions, batch.offered.features)
            encoded = combined(self.blocks, encoded, actions, offered)
            ids = OfferedIds.of_counts(offered.counts, [one or "" for one in offered.ids.to_list()])
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
            eligible=self._eligible(checked),
            baselines=None if checked.baselines is None else checked.baselines[kept],
            offered=ids,
        )

    def _eligible(self, checked: CheckedBatch) -> Eligible | None:
        """Return the eligible classes. Lines that list all classes, as in most Vowpal Wabbit logs, list none here."""
        if checked.eligible is None:
            return None
        found = checked.eligible.where(checked.kept)
        if self.format not in LINE_FORMATS:
            return found
        sizes = np.diff(found.offsets)
        is_part = sizes < len(self.class_names)
        offsets = np.concatenate(([0], np.cumsum(np.where(is_part, sizes, 0))))
        return Eligible(offsets, found.classes[np.repeat(is_part, sizes)])


def open_log(
    data: Path | str | Source,
    mapping: LogMapping | None = None,
    *,
    on_bad_row: OnBadRow = "stop",
    reward_above: float | None = None,
    graded: RewardRange | None = None,
    scale: Scaling = "none",
    encoding: Mapping[str, Any] | None = None,
) -> LogFile:
    """Open a log. The file is read once to find classes, vocabularies and scales that the mapping does not specify.

    Args:
        data: The file; "-" for standard input, which is copied to a temporary file; or a table in memory.
        mapping: The column mapping. Only tables (CSV, JSON lines, Parquet, tables in memory) have one.
        on_bad_row: How to handle invalid rows: raise an error, or skip and count them.
        reward_above: Rewards above this value become 1, all other rewards 0. None means that rewards must be 0 or 1.
        graded: The range of graded rewards; None means bits.
        scale: Whether numeric features are scaled; see `producers.datasets.scaling`.
        encoding: The features' indices for a log without a mapping; see `LogMapping.encoding`.

    Raises:
        DatasetError: the file or the mapping cannot be used.
    """
    source = data if isinstance(data, Source) else Source(str(data))
    kind = _format(source)
    scales = scale == "standard"
    batches = _table_batches(source, kind, mapping) if kind in TABLES else _line_batches(source, kind, mapping)
    known = None if mapping is None else mapping.classes
    id_field = "EventId" if mapping is None else str(mapping.id)
    if graded is not None and reward_above is not None:
        raise DatasetError(f"reward_above={reward_above:g} converts rewards to bits; remove it, or use rewards=bit")
    options = Options(name_of(source), id_field, on_bad_row, reward_above, graded)
    notes = batches.notes
    encoder = of_actions = None
    if mapping is not None and encoding is not None:
        raise DatasetError(f"{source.name}: name the file of features in the mapping, as `encoding`. Remove features")
    if (given := encoding if mapping is None else mapping.encoding) is not None:
        if scales:
            raise DatasetError(f"{source.name}: the encoding determines the scale. Remove scale")
        if (ACTIONS in given) != (kind in WITH_ACTIONS) and mapping is None:
            raise DatasetError(
                f"{source.name}: expected a file of features with a member `{ACTIONS}` if and only if the actions in "
                "the log have features"
            )
        encoder = from_plain(given)
        of_actions = from_plain(given[ACTIONS]) if ACTIONS in given else None
    elif mapping is not None and _only_numbers(mapping) and not scales:
        encoder = build({name: (one, None) for name, one in mapping.features.kinds().items()}, HASH_BITS)
    if mapping is not None and mapping.actions_max is not None:
        known = _places(mapping.actions_max)
    if known is None or encoder is None or (of_actions is None and mapping is not None and mapping.actions is not None):
        found = _surveyed(batches, options, known, numbered=kind in LINE_FORMATS, is_encoded=encoder is not None)
        if encoder is None:
            names = _in_order(mapping, found)
            encoder = _built(found.contexts, names, scales)
            notes += _on_hashing(encoder, found.contexts, "features")
        if found.actions is not None:
            known = known or _places(max(2, found.places))
            if of_actions is None:
                of_actions = _built(found.actions, found.actions.names, scales)
                notes += _on_hashing(of_actions, found.actions, "features of actions")
            encoder, of_actions = _or_placeholder(encoder), _or_placeholder(of_actions)
        known = known or found.classes
    if len(set(known)) < max(2, len(known)):
        raise DatasetError(f"{source.name}: expected two or more distinct classes; got {list(known)}")
    if encoder.n_features < 1:
        raise DatasetError(f"{source.name} has no context features")
    log = LogFile(options.name, kind, encoder, of_actions, known, mapping, notes, batches.read, options)
    if log.blocks is not None:
        try:
            log.blocks.check()
        except ValueError as error:
            raise DatasetError(f"{source.name}: {error}") from error
    return log


def _surveyed(
    batches: "_Batches", options: Options, known: tuple[str, ...] | None, *, numbered: bool, is_encoded: bool
) -> Survey:
    """Make the first pass, and repeat it if it finds strings in numeric features that are not encoded yet.

    The rows with these strings are left out, so that their classes and values do not count.

    Raises:
        DatasetError: there are no usable rows, or a row is invalid and invalid rows are not skipped.
    """
    class_of = None if known is None else {name: k for k, name in enumerate(known)}

    def once(kinds: Mapping[str, Kind], action_kinds: Mapping[str, Kind]) -> Survey:
        checks = Checks(options)
        meaning = Meaning(class_of, known is not None, None, kinds, None, action_kinds)
        checked = checks.apply(batches.read(), meaning)
        found = survey(((one.batch, one.kept) for one in checked), VOCABULARY_MAX, numbered=numbered)
        if known is None and not found.classes and not found.places:
            raise no_usable_rows(options.name, checks.skipped)
        return found

    found = once({}, {})
    actions = found.actions
    is_mixed = found.contexts.is_mixed or (actions is not None and actions.is_mixed)
    if is_encoded or not is_mixed:
        return found
    return once(found.contexts.kinds, {} if actions is None else actions.kinds)


class _Batches(NamedTuple):
    """A function that starts a pass over a file, and notes about the file."""

    read: Callable[[], Iterator[ParsedBatch]]
    notes: tuple[str, ...]


def _table_batches(source: Source, kind: Format, mapping: LogMapping | None) -> _Batches:
    reader = TABLES[kind]()
    if mapping is None:
        raise DatasetError(f"{source.name} is {kind}, which requires a mapping. {_how_to_map(source, reader)}")
    known = mapping  # gives the nested function the narrower type
    tables = reader.tables
    check_columns(mapping, reader.column_names(source, mapping.columns()), source.name)
    notes = _on_times(source, tables, mapping)
    if mapping.delay is not None:
        notes.append(f"numeric delays in {mapping.delay} are interpreted as {mapping.unit_of_delay()}")
    return _Batches(lambda: (parse_table(table, known) for table in tables(source, known.columns())), tuple(notes))


def _how_to_map(source: Source, reader: TableReader) -> str:
    if source.table is not None:
        columns = ", ".join(map(repr, reader.column_names(source)[:COLUMNS_SHOWN]))
        return f"Set map, such as map='label=COLUMN,numeric=COLUMN+COLUMN'; the columns are {columns}"
    return f"Run `onebit data show {'FILE` for a similar file' if source.is_stdin else f'{source.path}` to guess one'}"


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
    return _Batches(lambda: batches(source), notes)


def _only_numbers(mapping: LogMapping) -> bool:
    return set(mapping.features.kinds().values()) == {Kind.NUMERIC}


def _places(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _in_order(mapping: LogMapping | None, found: Survey) -> Mapping[str, tuple[Kind, Sequence[str] | None]]:
    """Return the features in mapping order."""
    names = found.contexts.names
    if mapping is None or mapping.x is not None:
        return names
    return {name: names.get(name, (kind, ())) for name, kind in mapping.features.kinds().items()}


def _built(
    found: FeatureSurvey, names: Mapping[str, tuple[Kind, Sequence[str] | None]], is_scaled: bool
) -> FeatureEncoder:
    moments = found.moments.items() if is_scaled else ()
    return build(names, HASH_BITS, scales={name: scale for name, one in moments if (scale := one.scale) is not None})


def _or_placeholder(encoder: FeatureEncoder) -> FeatureEncoder:
    """Return the encoder. If it has no features, return one with a feature that no row has, as layouts require one."""
    return encoder if encoder.n_features else build({"(none)": (Kind.NUMERIC, None)}, None)


def _kinds(encoder: FeatureEncoder | None) -> dict[str, Kind]:
    return {} if encoder is None else {name: one.kind for name, one in encoder.names.items()}


def _on_hashing(encoder: FeatureEncoder, found: FeatureSurvey, what: str) -> tuple[str, ...]:
    if encoder.hash_bits is None:
        return ()
    hashed = [name for name, one in encoder.names.items() if one.indices is None]
    distinct = found.hashed_distinct
    return (
        f"{what} hashed to {1 << encoder.hash_bits:,} indices: {', '.join(hashed)}; about "
        f"{sharing(distinct, encoder.hash_bits):,.0f} of {distinct:,.0f} values share an index",
    )


def name_of(source: Source) -> str:
    """Return the prefix for event ids, which is the file name without its suffixes."""
    if source.table is not None:
        return "dataframe"
    name = "stdin" if source.is_stdin else Path(source.path).name
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return svmlight.name_of(Path(name))


def _format(source: Source) -> Format:
    if source.table is not None:
        return Format.TABLE
    if not source.is_stdin and Path(source.path).is_dir():
        raise DatasetError(f"{source.path} is a directory; expected a file")
    return format_of(source.head(), source.name)
