"""Encodes batches of named features as CSR matrices: a vectorised `FeatureEncoder.encode`."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import OffsetArray
from producers.datasets.logs.parsed import FeatureEntries, Texts
from stream.wire.named_features import NO_INDEX, FeatureEncoder, Kind, build, text_of, words_of
from stream.wire.records import FloatArray, IndexArray


class EncodedRows(NamedTuple):
    """Feature rows as a CSR matrix."""

    offsets: OffsetArray  # int64[n + 1]
    indices: IndexArray  # int32[nnz], strictly increasing within a row
    values: FloatArray  # float64[nnz]


def encode_rows(encoder: FeatureEncoder, keep: NDArray[np.bool_], features: Iterable[FeatureEntries]) -> EncodedRows:
    """Encode the usable rows in a batch. Skip entries outside the vocabularies."""
    n = int(np.count_nonzero(keep))
    place = np.cumsum(keep) - 1
    keys: list[NDArray[np.int64]] = []  # row * d + index
    values: list[FloatArray] = []
    for feature in features:
        rows, indices, entries = _entries(encoder, feature)
        used = keep[rows] & (indices != NO_INDEX) & (entries != 0.0)
        keys.append(place[rows[used]] * encoder.n_features + indices[used])
        values.append(entries[used])
    key = np.concatenate(keys) if keys else np.zeros(0, np.int64)
    value = np.concatenate(values) if values else np.zeros(0)
    order = np.argsort(key, kind="stable")  # the entries for each name are sorted, so this sort is a fast merge
    key, value = key[order], value[order]
    if key.size and not np.all(first := np.concatenate([[True], key[1:] != key[:-1]])):
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowing_rows` reports these rows
            value = np.add.reduceat(value, np.flatnonzero(first))
        key = key[first]
    offsets = np.searchsorted(key, np.arange(n + 1, dtype=np.int64) * encoder.n_features).astype(np.int64)
    return EncodedRows(offsets, (key % max(encoder.n_features, 1)).astype(np.int32), value)


HARMLESS = 1e290
"""If all numbers in a row are within this limit, any sum of them is finite."""


def overflowing_rows(encoder: FeatureEncoder | None, n: int, features: Sequence[FeatureEntries]) -> list[int]:
    """Return the rows with an entry, or a sum of entries with the same index, outside the range of float64.

    Values that are equal share an index, and so do values whose hashes in the encoder collide.
    """
    numbers = [feature.numbers for feature in features if feature.numbers is not None]
    if all(one.size == 0 or (one.max() <= HARMLESS and one.min() >= -HARMLESS) for one in numbers):
        return []
    rows: set[int] = set()
    for one in filter(None, (_encoder_of(features), encoder)):
        encoded = encode_rows(one, np.ones(n, np.bool_), features)
        endless = np.flatnonzero(~np.isfinite(encoded.values))
        rows.update((np.searchsorted(encoded.offsets, endless, side="right") - 1).tolist())
    return sorted(rows)


def _encoder_of(features: Sequence[FeatureEntries]) -> FeatureEncoder:
    values: dict[str, dict[str, None]] = {}
    kinds: dict[str, Kind] = {}
    for one in features:
        known = values.setdefault(one.name, {})
        if one.texts is None:
            kinds.setdefault(one.name, Kind.NUMERIC)
        else:
            kinds[one.name] = one.kind
            words = one.texts.distinct if one.kind is not Kind.TEXT else chain(*map(words_of, one.texts.distinct))
            known.update(dict.fromkeys(words))
    return build({name: (kind, list(values[name])) for name, kind in kinds.items()}, None)


def _entries(
    encoder: FeatureEncoder, feature: FeatureEntries
) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """Return the row, index and value of each entry."""
    known = encoder.names.get(feature.name)
    texts = feature.texts
    if encoder.names and (known is None or (known.kind is Kind.NUMERIC and texts is not None)):
        return feature.rows, np.full(feature.rows.size, NO_INDEX), np.ones(feature.rows.size)
    if texts is None:
        assert feature.numbers is not None
        if known is None or known.kind is Kind.NUMERIC:
            scaled = encoder.scaled(feature.name, feature.numbers)
            return feature.rows, np.full(feature.rows.size, encoder.index_of_number(feature.name)), scaled
        # Numbers here, but the feature has strings in other rows. A number without a text is in a row that is left out.
        texts = Texts.of([text_of(number) for number in feature.given or feature.numbers.tolist()])
        feature = feature._replace(rows=feature.rows[~texts.missing()], numbers=None)
        texts = texts.present()
    distinct, codes = texts.distinct, texts.codes
    if feature.kind is not Kind.TEXT:
        indices = encoder.indices_of(feature.name, distinct).astype(np.int64)[codes]
        return feature.rows, indices, np.ones(codes.size) if feature.numbers is None else feature.numbers
    by_text = [encoder.indices_of(feature.name, words_of(text)) for text in distinct]
    sizes = np.fromiter(map(len, by_text), np.int64, len(by_text))[codes]
    indices = np.concatenate([by_text[code] for code in codes.tolist()] or [np.zeros(0, np.int32)])
    return np.repeat(feature.rows, sizes), indices.astype(np.int64), np.ones(indices.size)
