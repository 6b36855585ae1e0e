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

from producers.datasets.logs.parsed import FeatureEntries, ParsedBatch
from producers.datasets.scaling import Moments, uneven_column
from stream.parsing import parse_number, parse_whole
from stream.wire.named_features import Kind, hash_of, words_of

_BITMAP_BITS = 23  # one megabyte, enough to count about 10⁸ distinct values


class Survey(NamedTuple):
    """The result of a first pass."""

    classes: tuple[str, ...]
    names: Mapping[str, tuple[Kind, Sequence[str] | None]]  # None if the values are hashed
    hashed_distinct: float  # estimated number of distinct hashed values over all names
    moments: Mapping[str, Moments]  # moments by name, for the numeric features that were read


def survey(batches: Iterable[ParsedBatch], vocabulary_max: int, *, numbered: bool = False) -> Survey:
    """Read a whole log and return its classes and vocabularies.

    Args:
        batches: All batches.
        vocabulary_max: Maximum number of distinct values for a feature. A feature with more values is hashed.
        numbered: Whether class names are numbers starting at 1. If so, the classes include numbers that were never
            played.
    """
    classes: dict[str, None] = {}
    vocabularies = _Vocabularies(vocabulary_max)
    moments: dict[str, Moments] = {}
    for batch in batches:
        for named in (batch.labels, batch.actions):
            if named is not None:
                classes.update(dict.fromkeys(named.distinct))
        classes.update(dict.fromkeys(sorted(batch.other_classes)))
        for feature in batch.features:
            vocabularies.add(feature)
            if feature.kind is Kind.NUMERIC and feature.numbers is not None:
                moments[feature.name] = moments.get(feature.name, Moments()).including(feature.numbers)
    names = tuple(in_order(classes))
    if numbered and names:
        names = tuple(map(str, range(1, 1 + max(parse_whole(name) or 0 for name in names))))
    return Survey(names, vocabularies.names(), vocabularies.hashed_distinct(), moments)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names numerically if all are numbers. Otherwise keep their order.

    >>> in_order(["10", "9", "0.5"]), in_order(["10", "9", "x"])
    (['0.5', '9', '10'], ['10', '9', 'x'])
    """
    listed = list(names)
    numbers = {name: parse_number(name) for name in listed}
    if any(number is None for number in numbers.values()):
        return listed
    return sorted(listed, key=lambda name: numbers[name] or 0.0)


class _Vocabularies:
    """The distinct values for each feature name, up to a limit."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kinds: dict[str, Kind] = {}
        self._values: dict[str, dict[str, None] | None] = {}
        self._seen: NDArray[np.uint8] = np.zeros(1 << (_BITMAP_BITS - 3), np.uint8)

    def add(self, feature: FeatureEntries) -> None:
        name = feature.name
        if feature.texts is None:
            self._kinds.setdefault(name, Kind.NUMERIC)  # becomes categorical if other batches contain strings
            return
        self._kinds[name] = feature.kind
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

    def names(self) -> dict[str, tuple[Kind, Sequence[str] | None]]:
        found: dict[str, tuple[Kind, Sequence[str] | None]] = {}
        for name, kind in self._kinds.items():
            values = self._values.get(name, {})
            found[name] = (kind, None if kind is Kind.NUMERIC or values is None else in_order(values))
        return found

    def hashed_distinct(self) -> float:
        """Estimate the number of hashed values by linear counting with a bitmap (Whang, Vander-Zanden, Taylor 1990)."""
        places = 1 << _BITMAP_BITS
        empty = places - int(np.bitwise_count(self._seen).sum(dtype=np.int64))
        return -places * math.log(max(empty, 1) / places)

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
