"""Encodes named features, such as `{"price": 3, "country": "de"}`, as indices and values.

An *entry* is an index and its value. A numeric feature has one index, and its entry's value is the number. A
categorical feature has one index for each distinct value, and the entry's value is 1. A text feature has one index for
each lower-case word, and the entry's value is the number of occurrences. Null, an empty string and the number 0 have no
entry.

A feature with a small vocabulary has its own indices, one for each value. A feature with a large vocabulary is hashed:
its values share 2**hash_bits indices, which follow the vocabularies' indices. Within a row, entries with equal indices
are summed. An encoder without names hashes all features, including numbers. An encoder can be stored as JSON.

An encoder can be extended by features and values that are *added*. Their indices follow all other indices, so the
earlier indices stay the same.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import xxhash
from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from stream.parsing import close_matches, shown
from stream.wire.records import Features, FloatArray, IndexArray

VERSION: Literal[1] = 1
HASH_BITS_MAX = 30
"""Limit on hash bits. An index has 32 bits, and features with a vocabulary also need indices."""

T = TypeVar("T", float, FloatArray)

ACTIONS = "actions"
"""The member of a stored encoder that contains the encoder of the actions' features; see `stream.wire.actions`."""

NO_INDEX = -1
"""Marks a value that is not in the vocabulary, if no values are hashed."""

_WORD = re.compile(r"\w+")


class NamedFeaturesError(ValueError):
    """Raised when an encoder is invalid or cannot encode some named features."""


class Kind(StrEnum):
    """The kind of a feature's values."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"
    TEXT = "text"


Scaling = Literal["none", "standard"]
"""The scaling of numeric features: either none, or to a mean of 0 and a standard deviation of 1; see
`producers.datasets.scaling` and `stream.learners.wrappers.running_scale`."""


class Scale(NamedTuple):
    """The scale of a numeric feature: a value x is encoded as (x - centre) / unit."""

    centre: float
    unit: Annotated[float, Meta(gt=0)]


class Vocabulary(NamedTuple):
    """A feature's kind, indices and scale."""

    kind: Kind
    indices: Mapping[str, int] | None  # indices by value (key "" for a number); None if values are hashed
    scale: Scale | None = None  # None if values are encoded unchanged


@dataclass(frozen=True, slots=True)
class FeatureEncoder:
    """Maps named features to indices."""

    names: Mapping[str, Vocabulary]
    own: int  # number of indices that are not hashed
    hash_bits: int | None  # None if nothing is hashed
    hashed_from: int = 0  # first hashed index; of the indices that are not hashed, only those that were added follow
    retired: frozenset[str] = frozenset()  # names whose values are ignored

    @property
    def n_features(self) -> int:
        """The dimension d of the feature space."""
        return self.own + (0 if self.hash_bits is None else 1 << self.hash_bits)

    def encode(self, x: Mapping[str, Any]) -> tuple[Features, list[str]]:
        """Encode one row. Also return, for each category or word without an entry, the name of its feature.

        A category or word that is not in the vocabulary has no entry if hashing is disabled.

        Raises:
            NamedFeaturesError: a name is unknown, a value has the wrong kind for its feature, or the sum of numbers
                that share an index is too large.
        """
        entries: dict[int, float] = {}
        unknown: list[str] = []
        for name, given in x.items():
            if given is None or name in self.retired:
                continue
            kind = self._kind_of(name, given)
            if kind is Kind.NUMERIC:
                if value := self.scaled(name, number_of(name, given)):
                    index = self.index_of_number(name)
                    entries[index] = entries.get(index, 0.0) + value
                continue
            text = text_of(given)
            if text is None:
                expected = "a string, a number or a boolean"
                raise NamedFeaturesError(f"{_shown_name(name)}: expected {expected}; got {shown(given)}")
            words = words_of(text) if kind is Kind.TEXT else [text] if text else []
            for word in words:
                index = self._index_of(name, word)
                if index == NO_INDEX:
                    unknown.append(name)
                else:
                    entries[index] = entries.get(index, 0.0) + 1.0
        indices = np.array(sorted(entries), np.int32)
        values = np.array([entries[index] for index in indices.tolist()], np.float64)
        if not np.isfinite(values).all():
            raise NamedFeaturesError("features that share an index: expected a finite sum; the sum overflows")
        return Features(indices, values), unknown

    def _kind_of(self, name: str, given: object) -> Kind:
        if not self.names:
            return Kind.CATEGORICAL if type(given) is str else Kind.NUMERIC
        known = self.names.get(name)
        if known is None:
            names = ", ".join(list(self.names)[:10]) + ", ..." * (len(self.names) > 10)
            hint = close_matches(name, self.names) or f"; the names are {names}"
            raise NamedFeaturesError(f"no feature is called {name[:100]!r}{hint}")
        return known.kind

    def indices_of(self, name: str, values: Sequence[str]) -> IndexArray:
        """Return the indices of a feature's categories or words, with NO_INDEX for those without an entry."""
        return np.fromiter((self._index_of(name, value) for value in values), np.int32, len(values))

    def index_of_number(self, name: str) -> int:
        """Return the index of a numeric feature."""
        return self._index_of(name, "")

    def scaled(self, name: str, values: T) -> T:
        """Scale a numeric feature's values."""
        scale = self.names[name].scale if self.names else None
        return values if scale is None else (values - scale.centre) / scale.unit

    def _index_of(self, name: str, value: str) -> int:
        indices = self.names[name].indices if self.names else None
        if indices is not None:
            if (index := indices.get(value)) is not None:
                return index
            if self.hash_bits is None:
                return NO_INDEX
        assert self.hash_bits is not None
        return self.hashed_from + (hash_of(name, value) & ((1 << self.hash_bits) - 1))


def build(
    names: Mapping[str, tuple[Kind, Sequence[str] | None]],
    hash_bits: int | None,
    *,
    unknown: bool = False,
    scales: Mapping[str, Scale] = MappingProxyType({}),
    added: Iterable[tuple[str, Kind, Sequence[str] | None]] = (),
) -> FeatureEncoder:
    """Build an encoder from the features' kinds and vocabularies. Values without a vocabulary are hashed.

    Args:
        names: the features by name, in the order of their indices.
        hash_bits: hashed values share 2**hash_bits indices.
        unknown: whether to hash values that are not in a vocabulary, even if every feature has a vocabulary.
        scales: the scales of numeric features, by name; values of features without a scale are encoded unchanged.
        added: features that are added, or that receive more values, in the order of their indices.
    """
    if hash_bits is not None and not 1 <= hash_bits <= HASH_BITS_MAX:
        raise NamedFeaturesError(f"hash_bits: expected 1 to {HASH_BITS_MAX}; got {hash_bits}")
    known: dict[str, Vocabulary] = {}
    own = 0
    hashes = unknown
    for name, (kind, vocabulary) in names.items():
        values = ("",) if kind is Kind.NUMERIC else vocabulary
        if values is None:
            known[name] = Vocabulary(kind, None)
            hashes = True
        else:
            scale = scales.get(name) if kind is Kind.NUMERIC else None
            known[name] = Vocabulary(kind, {value: own + place for place, value in enumerate(values)}, scale)
            own += len(values)
    added = list(added)
    hashes = hashes or any(kind is not Kind.NUMERIC and values is None for _, kind, values in added)
    if hashes and hash_bits is None:
        raise NamedFeaturesError("hash_bits: expected a number, because some features are hashed; got none")
    hashed_from, gap = own, 1 << hash_bits if hashes and hash_bits is not None else 0
    for name, kind, vocabulary in added:
        earlier = known.get(name)
        values = ("",) if kind is Kind.NUMERIC else vocabulary
        if earlier is None and values is None:
            known[name] = Vocabulary(kind, None)
            continue
        indices = {} if earlier is None else earlier.indices
        if indices is None or values is None or (earlier is not None and earlier.kind is not kind):
            raise NamedFeaturesError(f"{_shown_name(name)}, added: expected a new name, or values for its vocabulary")
        repeated = next((value for value in values if value in indices), None)
        if repeated is not None:
            raise NamedFeaturesError(f"{_shown_name(name)}, added: expected new values; got {shown(repeated)} again")
        scale = scales.get(name) if kind is Kind.NUMERIC else None
        more = {value: own + gap + place for place, value in enumerate(values)}
        known[name] = Vocabulary(kind, {**indices, **more}, scale)
        own += len(values)
    return FeatureEncoder(known, own, hash_bits if hashes else None, hashed_from)


class _PlainName(Struct, omit_defaults=True):
    name: str
    kind: Kind
    values: list[str] | None
    scale: Scale | None = None


class _PlainEncoder(Struct, omit_defaults=True):
    version: Literal[1]
    hash: Literal["xxh3_64"]
    hash_bits: int | None
    names: list[_PlainName]
    added: list[_PlainName] = []


def to_plain(encoder: FeatureEncoder) -> dict[str, Any]:
    """Convert an encoder to plain values, for JSON; `from_plain` is the inverse."""
    names, later = [], list[tuple[int, str, str]]()
    for name, (kind, indices, scale) in encoder.names.items():
        if indices is None:
            names.append(_PlainName(name, kind, None))
            continue
        first = [value for value, index in indices.items() if index < encoder.hashed_from]
        later += [(index, name, value) for value, index in indices.items() if index >= encoder.hashed_from]
        if first or not indices:
            names.append(_PlainName(name, kind, None if kind is Kind.NUMERIC else first, scale))
    added = []
    for name, group in groupby(sorted(later), key=itemgetter(1)):
        kind, _, scale = encoder.names[name]
        values = None if kind is Kind.NUMERIC else [value for _, _, value in group]
        added.append(_PlainName(name, kind, values, scale))
    plain: dict[str, Any] = to_builtins(_PlainEncoder(VERSION, "xxh3_64", encoder.hash_bits, names, added))
    return plain


def from_plain(fields: Mapping[str, Any]) -> FeatureEncoder:
    """Create an encoder from the output of `to_plain`.

    Raises:
        NamedFeaturesError: the object is invalid, or was written by a different version of Onebit.
    """
    try:
        plain = convert(fields, _PlainEncoder)
    except ValidationError as error:
        raise NamedFeaturesError(f"feature encoder: {error}") from error
    for one in (*plain.names, *plain.added):
        if one.values is not None and len(set(one.values)) < len(one.values):
            raise NamedFeaturesError(f"feature encoder, {one.name[:100]!r}: expected distinct values")
        if one.scale is not None and one.kind is not Kind.NUMERIC:
            raise NamedFeaturesError(
                f"feature encoder, {one.name[:100]!r}: a scale requires a numeric feature; got {one.kind}"
            )
    names = {one.name: (one.kind, one.values) for one in plain.names}
    if len(names) < len(plain.names):
        ((repeated, _),) = Counter(one.name for one in plain.names).most_common(1)
        raise NamedFeaturesError(f"feature encoder, {repeated[:100]!r}: expected distinct names; got this name twice")
    scales = {one.name: one.scale for one in (*plain.names, *plain.added) if one.scale is not None}
    added = [(one.name, one.kind, one.values) for one in plain.added]
    return build(names, plain.hash_bits, unknown=plain.hash_bits is not None, scales=scales, added=added)


def check_extends(old: FeatureEncoder, new: FeatureEncoder) -> None:
    """Check that an encoder extends another one: every earlier entry has the same index and the same value.

    Raises:
        NamedFeaturesError: a feature or a value is missing, or has a different index, kind or scale.
    """
    if (old.hash_bits, bool(old.names)) != (new.hash_bits, bool(new.names)):
        raise NamedFeaturesError(f"hash_bits is {old.hash_bits} in the earlier features, and {new.hash_bits} now")
    if old.hash_bits is not None and old.hashed_from != new.hashed_from:
        raise NamedFeaturesError(
            f"hashed features would begin at index {new.hashed_from}, not at {old.hashed_from}; additions belong in "
            "`added`"
        )
    for name, (kind, indices, scale) in old.names.items():
        known = new.names.get(name)
        if known is None:
            raise NamedFeaturesError(f"{_shown_name(name)} is missing")
        if (known.kind, known.scale, known.indices is None) != (kind, scale, indices is None):
            raise NamedFeaturesError(f"{_shown_name(name)} has a different kind, scale or encoding")
        if indices is None or known.indices is None:
            continue
        for value, index in indices.items():
            if known.indices.get(value) != index:
                raise NamedFeaturesError(
                    f"{_shown_name(name)}: {value!r} has index {index} in the earlier features, and "
                    f"{known.indices.get(value)} now"
                )
        if old.hash_bits is not None and len(known.indices) > len(indices):
            added = next(value for value in known.indices if value not in indices)
            raise NamedFeaturesError(f"{_shown_name(name)}: {added!r} had a hashed index in earlier contexts")


def text_of(value: object) -> str | None:
    """Return the one text of a category, class or id, or None if the value is none of these.

    Numbers and booleans have the same text in every format: programs write 3 as `3`, `3.0` or `3.0E0`, and true as
    `True` or `TRUE`. A float of 2**53 or more has no text, because it may be a whole number that was rounded.

    >>> [text_of(value) for value in ("de", 3, 3.0, "3.0", 0.5, "1.10", True, "True", None, [1])]
    ['de', '3', '3', '3', '0.5', '1.10', 'true', 'true', None, None]
    >>> [text_of(value) for value in (2**70, "1180591620717411303424", 2.0**70, "1.1805916207174113e+21")]
    ['1180591620717411303424', '1180591620717411303424', None, None]
    """
    if type(value) is str:
        if value[-1:] in _DIGITS:
            return _text_of_number(value) if _WRITTEN_AS_FLOAT.fullmatch(value) else value
        return _BOOLEANS.get(value, value)
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float and math.isfinite(value):
        if not value.is_integer():
            return repr(value)
        return str(int(value)) if abs(value) < EXACT_BELOW else None
    return None


EXACT_BELOW = 2**53
"""A float below this limit represents at most one whole number."""

_DIGITS = frozenset("0123456789")
_BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
_WRITTEN_AS_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.0+|-?[0-9]\.[0-9]+E[0-9]+|-?[1-9](?:\.[0-9]+)?e\+[0-9]+")
"""How programs write whole numbers that are floats, such as 3.0, 1.2345678E7 and 1e+22."""


def _text_of_number(text: str) -> str | None:
    number = float(text)
    if "e" in text.lower() or abs(number) < EXACT_BELOW or repr(number) == text:
        return text_of(number)
    return text.partition(".")[0]  # more digits than a float has


def number_of(name: str, value: object) -> float:
    """Convert a numeric feature's value to a float.

    Raises:
        NamedFeaturesError: the value is not a finite number.
    """
    if type(value) in (int, float, bool):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise NamedFeaturesError(f"{_shown_name(name)}: expected a finite number; got {shown(value)}")


def words_of(text: str) -> list[str]:
    """Return the words in a text, in lower case.

    >>> words_of("Zwölf Boxkämpfer, don't")
    ['zwölf', 'boxkämpfer', 'don', 't']
    """
    return _WORD.findall(text.lower())


def hash_of(name: str, value: str) -> int:
    """Return a 64-bit hash of a feature's name and value."""
    return xxhash.xxh3_64_intdigest(f"{len(name)}:{name}{value}".encode("utf-8", "surrogatepass"))


def sharing(distinct: float, hash_bits: int) -> float:
    """Return how many of `distinct` hashed features are expected to share an index with another one.

    >>> round(sharing(1_000, 16)), round(sharing(10, 16), 3)
    (15, 0.001)
    """
    return 0.0 if distinct < 1 else distinct * -math.expm1((distinct - 1) * math.log1p(-(2.0**-hash_bits)))


def _shown_name(name: str) -> str:
    """Escape a name for a message. Names come from clients and can contain any characters."""
    return name[:100] if name.isprintable() else repr(name[:100])
