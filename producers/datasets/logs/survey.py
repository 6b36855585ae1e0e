"""Results of passes over a log: classes, vocabularies, and remarks on the feature columns.

The remarks are about empty cells, decimal commas, and large differences in spread.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import in_order
from producers.datasets.logs.parsed import FeatureEntries, ParsedBatch
from producers.datasets.scaling import Moments, uneven_column
from stream.parsing import parse_whole
from stream.wire.named_features import Kind, hash_of, text_of, words_of

_BITMAP_BITS = 23  # one megabyte, enough to count about 10⁸ distinct values


ODD_SHARE_MAX = 0.02
"""A feature is numeric if at most this share of its values are strings. The rows with these strings are invalid."""


class FeatureSurvey(NamedTuple):
    """The features of the contexts, or of the actions."""

    names: Mapping[str, tuple[Kind, Sequence[str] | None]]  # None if the values are hashed
    is_mixed: bool  # whether a numeric feature also has strings
    hashed_distinct: float  # estimated number of distinct hashed values over all names
    moments: Mapping[str, Moments]  # moments by name, for the numeric features that were read

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each feature."""
        return {name: kind for name, (kind, _) in self.names.items()}


class Survey(NamedTuple):
    """The result of a first pass."""

    classes: tuple[str, ...]
    contexts: FeatureSurvey
    actions: FeatureSurvey | None  # None if the decisions are among classes
    places: int  # largest number of actions of a decision


def survey(
    batches: Iterable[tuple[ParsedBatch, NDArray[np.bool_]]], vocabulary_max: int, *, numbered: bool = False
) -> Survey:
    """Read a whole log and return the classes and vocabularies of its usable rows.

    Args:
        batches: All batches, with masks of the usable rows.
        vocabulary_max: Maximum number of distinct values for a feature. A feature with more values is hashed.
        numbered: Whether class names are numbers starting at 1. If so, the classes include numbers that were never
            played.
    """
    classes: dict[str, None] = {}
    contexts, actions = _Features(vocabulary_max), _Features(vocabulary_max)
    has_actions, places = False, 0
    for batch, kept in batches:
        for named in (batch.labels, batch.actions, batch.baselines):
            if named is not None:
                classes.update(dict.fromkeys(named.where(kept).distinct))
        if batch.eligible is not None:
            classes.update(dict.fromkeys(sorted(batch.eligible.names(kept))))
        contexts.add(batch.features, kept)
        if batch.offered is not None:
            has_actions, counts = True, batch.offered.counts
            actions.add(batch.offered.features, np.repeat(kept, counts))
            places = max(places, int(counts[kept].max(initial=0)))
    names = tuple(in_order(classes))
    if numbered and names:
        names = tuple(map(str, range(1, 1 + max(parse_whole(name) or 0 for name in names))))
    return Survey(names, contexts.survey(), actions.survey() if has_actions else None, places)


class _Features:
    """Collects the vocabularies and moments of features."""

    def __init__(self, vocabulary_max: int) -> None:
        self._vocabularies = _Vocabularies(vocabulary_max)
        self._moments: dict[str, Moments] = {}

    def add(self, features: Iterable[FeatureEntries], kept: NDArray[np.bool_]) -> None:
        """Add the entries of the rows selected by a mask."""
        for feature in (one.where(kept) for one in features):
            self._vocabularies.add(feature)
            if feature.kind is Kind.NUMERIC and feature.numbers is not None:
                moments = self._moments.get(feature.name, Moments())
                self._moments[feature.name] = moments.including(feature.numbers)

    def survey(self) -> FeatureSurvey:
        """Return the results."""
        found = self._vocabularies
        return FeatureSurvey(found.names(), found.is_mixed, found.hashed_distinct(), self._moments)


class _Vocabularies:
    """The distinct values for each feature name, up to a limit."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kinds: dict[str, Kind] = {}  # NUMERIC for a feature without strings
        self._strings: Counter[str] = Counter()  # number of strings, for a feature that may also have numbers
        self._numbers: Counter[str] = Counter()
        self._values: dict[str, dict[str, None] | None] = {}  # None if there are too many
        self._texts_of_numbers: dict[str, dict[str, None] | None] = {}
        self._seen: NDArray[np.uint8] = np.zeros(1 << (_BITMAP_BITS - 3), np.uint8)

    def add(self, feature: FeatureEntries) -> None:
        name = feature.name
        if feature.texts is None:
            self._kinds.setdefault(name, Kind.NUMERIC)
            self._add_numbers(feature)
            return
        self._kinds[name] = feature.kind
        if feature.numbers is None:
            self._strings[name] += len(feature.texts)
        texts = feature.texts.distinct
        values = texts if feature.kind is not Kind.TEXT else [word for text in texts for word in words_of(text)]
        known = self._values.setdefault(name, {})
        if known is None:
            self._note(name, values)
            return
        known.update(dict.fromkeys(values))
        if len(known) > self._size_max:
            self._note(name, known)
            self._values[name] = None

    def _add_numbers(self, feature: FeatureEntries) -> None:
        """Collect the numbers as categories, in case other rows have strings."""
        known = self._texts_of_numbers.setdefault(feature.name, {})
        self._numbers[feature.name] += feature.rows.size
        if known is None or feature.given is None:
            return
        distinct = dict.fromkeys(zip(map(type, feature.given), feature.given, strict=True))  # True is equal to 1
        known.update(dict.fromkeys(text for _, value in distinct if (text := text_of(value)) is not None))
        if len(known) > self._size_max:
            self._texts_of_numbers[feature.name] = None

    def _is_numeric(self, name: str) -> bool:
        numbers, strings = self._numbers[name], self._strings[name]
        return self._kinds[name] is Kind.NUMERIC or (numbers > 0 and strings <= ODD_SHARE_MAX * (numbers + strings))

    @property
    def is_mixed(self) -> bool:
        return any(self._is_numeric(name) and self._strings[name] for name in self._kinds)

    def names(self) -> dict[str, tuple[Kind, Sequence[str] | None]]:
        found: dict[str, tuple[Kind, Sequence[str] | None]] = {}
        for name, kind in self._kinds.items():
            if self._is_numeric(name):
                found[name] = (Kind.NUMERIC, None)
                continue
            values, of_numbers = self._values.get(name, {}), self._texts_of_numbers.get(name, {})
            both = None if values is None or of_numbers is None else values | of_numbers
            found[name] = (kind, None if both is None or len(both) > self._size_max else in_order(both))
        return found

    def hashed_distinct(self) -> float:
        """Estimate the number of hashed values by linear counting with a bitmap (Whang, Vander-Zanden, Taylor 1990)."""
        places = 1 << _BITMAP_BITS
        empty = places - int(np.bitwise_count(self._seen).sum(dtype=np.int64))
        return places * math.log(places / max(empty, 1))

    def _note(self, name: str, values: Iterable[str]) -> None:
        hashes = np.array([hash_of(name, value) for value in set(values)], np.uint64)
        places = hashes >> np.uint64(64 - _BITMAP_BITS)
        bits = (1 << (places & np.uint64(7))).astype(np.uint8)
        np.bitwise_or.at(self._seen, (places >> np.uint64(3)).astype(np.int64), bits)


NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")

DECIMAL_COMMA = "numbers with a decimal comma are read as text; use a decimal point, as in 3.5"


class Remarks:
    """Collects remarks during a pass over the usable rows."""

    def __init__(self) -> None:
        self._moments: dict[str, Moments] = {}
        self._empty: Counter[str] = Counter()
        self._commas: dict[str, int | None] = {}  # None if not all values are numbers

    def add(self, batch: ParsedBatch, kept: NDArray[np.bool_]) -> None:
        """Add the usable rows from a batch."""
        for feature in batch.features:
            if feature.empty is not None:
                self._empty[feature.name] += int(np.count_nonzero(feature.empty & kept))
            if feature.texts is not None:
                self._add_texts(feature, kept)
            elif feature.kind is Kind.NUMERIC and feature.numbers is not None:
                known = self._moments.get(feature.name, Moments())
                self._moments[feature.name] = known.including(feature.numbers[kept[feature.rows]])

    def _add_texts(self, feature: FeatureEntries, kept: NDArray[np.bool_]) -> None:
        count, texts = self._commas.get(feature.name, 0), feature.texts
        if count is None or texts is None:
            return
        if not all(map(NUMBER.fullmatch, texts.distinct)):
            self._commas[feature.name] = None
            return
        has_comma = np.array(["," in text for text in texts.distinct], np.bool_)[texts.codes]
        self._commas[feature.name] = count + int(np.count_nonzero(has_comma & kept[feature.rows]))

    def lines(self) -> list[str]:
        """Return one line for the empty cells, and one line for each column with decimal commas."""
        lines = []
        if empty := +self._empty:
            counts = ", ".join(f"{name!r} {count:,}" for name, count in empty.items())
            lines.append(f"empty cells, for which no entries are created: {counts}")
        lines += [f"{name!r}: {DECIMAL_COMMA} ({count:,} values)" for name, count in self._commas.items() if count]
        return lines

    @property
    def uneven(self) -> str:
        """A warning about a numeric column that varies much more than the others, or an empty string.

        The spread of a categorical or text feature is taken to be 1, because its entries are 1 or small counts.
        """
        numeric = [(repr(name), one.spread) for name, one in self._moments.items() if name not in self._commas]
        return uneven_column(numeric, [1.0] * len(self._commas))
