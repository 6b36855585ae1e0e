"""Remarks on the feature columns of a log: empty cells, decimal commas, and large differences in spread."""

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from producers.datasets.logs.parsed import FeatureEntries, ParsedBatch
from producers.datasets.scaling import Moments, uneven_column
from stream.wire.named_features import Kind

NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")

DECIMAL_COMMA = "numbers with a decimal comma are read as texts; use a decimal point, as in 3.5"


class Remarks:
    """Collects remarks during a pass over the usable rows."""

    def __init__(self) -> None:
        self._moments: dict[str, Moments] = {}
        self._empty: Counter[str] = Counter()
        self._commas: dict[str, int | None] = {}  # None if not all values are numbers

    def add(self, batch: ParsedBatch, kept: NDArray[np.bool_]) -> None:
        """Add the usable rows of a batch."""
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
            lines.append(f"empty cells, which have no entry: {counts}")
        lines += [f"{name!r}: {DECIMAL_COMMA} ({count:,} values)" for name, count in self._commas.items() if count]
        return lines

    @property
    def uneven(self) -> str:
        """A warning about a numeric column that varies much more than the others, or an empty string.

        The spread of a categorical or text feature is taken to be 1, because its entries are 1 or small counts.
        """
        numeric = [(repr(name), one.spread) for name, one in self._moments.items() if name not in self._commas]
        return uneven_column(numeric, [1.0] * len(self._commas))
