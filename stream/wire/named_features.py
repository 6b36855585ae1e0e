"""Named features, `{"price": 3, "country": "de"}`, as indices and values, by an encoder that can be stored as JSON.

Numbers are values. A category has one index for each of its values, with value 1. A text is the words in it, in lower
case, each with the number of times that it stands there. What is null, an empty text or the number 0 has no entry.

A name with a small vocabulary has indices of its own, one for each value. A name with a large one is hashed: its values
take indices at random among 2**hash_bits that stand behind all others, and some of them share one. Entries that share
an index in a row are added up. An encoder without any names hashes them all, numbers too.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import xxhash

from stream.near_names import close_matches
from stream.wire.events import Features, IndexArray
from stream.wire.shown import repr_of

VERSION = 1
HASH_BITS_MAX = 30
"""Indices are 32-bit, and those with names of their own need some."""

NO_INDEX = -1
"""The index of a value that is not in a vocabulary, where nothing is hashed."""

_WORD = re.compile(r"\w+")


class NamedFeaturesError(ValueError):
    """Named features that an encoder cannot read, or an encoder that cannot be read; the message says what came."""


class Kind(StrEnum):
    """What the values of a name are."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"
    TEXT = "text"


class Vocabulary(NamedTuple):
    """What an encoder knows of one name."""

    kind: Kind
    indices: Mapping[str, int] | None  # of its values; None: they are hashed. A numeric name has one, called ""


@dataclass(frozen=True, slots=True)
class FeatureEncoder:
    """Which index each named feature has."""

    names: Mapping[str, Vocabulary]
    own: int  # how many indices stand before those of hashes
    hash_bits: int | None  # None: nothing is hashed
    _numeric: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numeric = {
            name: one.indices[""] for name, one in self.names.items() if one.kind is Kind.NUMERIC and one.indices
        }
        object.__setattr__(self, "_numeric", numeric)

    @property
    def n_features(self) -> int:
        """The dimension d of the feature space."""
        return self.own + (0 if self.hash_bits is None else 1 << self.hash_bits)

    def encode(self, x: Mapping[str, Any]) -> Features:
        """The entries of one row; a category or word that is in no vocabulary has none where nothing is hashed.

        Raises:
            NamedFeaturesError: an unknown name, a value that is not of its name's kind, or numbers that share an index
                and are too large together.
        """
        entries: dict[int, float] = {}
        for name, given in x.items():
            if given is None:
                continue
            if self.kind_of(name, given) is Kind.NUMERIC:
                value = number_of(name, given)
                if value != 0.0:
                    index = self.index_of_number(name)
                    entries[index] = entries.get(index, 0.0) + value
                continue
            for index in self.indices_of(name, self.values_of(name, given)).tolist():
                if index != NO_INDEX:
                    entries[index] = entries.get(index, 0.0) + 1.0
        indices = np.array(sorted(entries), np.int32)
        values = np.array([entries[index] for index in indices.tolist()], np.float64)
        if not np.isfinite(values).all():
            raise NamedFeaturesError(
                "numbers whose names share an index: expected a finite sum; got one beyond 64 bits"
            )
        return Features(indices, values)

    def kind_of(self, name: str, given: object = "") -> Kind:
        """What the values of a name are; without any names, what this one is.

        Raises:
            NamedFeaturesError: the name is unknown.
        """
        if not self.names:
            return Kind.CATEGORICAL if type(given) is str else Kind.NUMERIC
        known = self.names.get(name)
        if known is None:
            hint = close_matches(name, self.names) or f"; the names are {_some(self.names)}"
            raise NamedFeaturesError(f"no feature is called {name[:100]!r}{hint}")
        return known.kind

    def values_of(self, name: str, given: object) -> list[str]:
        """The category, or the words, that one entry of a row stands for."""
        text = text_of(given)
        if text is None:
            raise NamedFeaturesError(
                f"{_shown_name(name)}: expected a text, a number or a truth value; got {_shown(given)}"
            )
        return words_of(text) if self.kind_of(name) is Kind.TEXT else [text] if text else []

    def indices_of(self, name: str, values: Sequence[str]) -> IndexArray:
        """The index of each category or word of a name, or NO_INDEX."""
        indices = self.names[name].indices if self.names else None
        if indices is None:
            return self._hashed(name, values)
        found = np.fromiter((indices.get(value, NO_INDEX) for value in values), np.int32, len(values))
        if self.hash_bits is not None and (unknown := np.flatnonzero(found == NO_INDEX)).size:
            found[unknown] = self._hashed(name, [values[place] for place in unknown.tolist()])
        return found

    def index_of_number(self, name: str) -> int:
        """The index of a numeric name."""
        return self._numeric[name] if self.names else int(self._hashed(name, ("",))[0])

    def _hashed(self, name: str, values: Iterable[str]) -> IndexArray:
        assert self.hash_bits is not None
        mask = (1 << self.hash_bits) - 1
        return np.array([self.own + (hash_of(name, value) & mask) for value in values], np.int32)


def build(
    names: Mapping[str, tuple[Kind, Sequence[str] | None]], hash_bits: int | None, *, unknown: bool = False
) -> FeatureEncoder:
    """An encoder of names with their vocabularies; None stands for one that is hashed.

    Args:
        names: in the order of their indices.
        hash_bits: 2**hash_bits indices are shared by what is hashed.
        unknown: Hash what is in no vocabulary, even when no name is hashed.
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
            known[name] = Vocabulary(kind, {value: own + place for place, value in enumerate(values)})
            own += len(values)
    if hashes and hash_bits is None:
        raise NamedFeaturesError("hash_bits: expected a number, since some names are hashed; got none")
    return FeatureEncoder(known, own, hash_bits if hashes else None)


def to_plain(encoder: FeatureEncoder) -> dict[str, Any]:
    """An encoder as plain values, for JSON; `from_plain` reads it back."""
    names = [{"name": name, "kind": str(one.kind), "values": _values(one)} for name, one in encoder.names.items()]
    return {"version": VERSION, "hash": "xxh3_64", "hash_bits": encoder.hash_bits, "names": names}


def _values(known: Vocabulary) -> list[str] | None:
    return None if known.indices is None or known.kind is Kind.NUMERIC else list(known.indices)


def from_plain(fields: Mapping[str, Any]) -> FeatureEncoder:
    """Read what `to_plain` wrote.

    Raises:
        NamedFeaturesError: it is not such an object.
    """
    if not isinstance(fields, Mapping):
        raise NamedFeaturesError(f"encoder of features: expected an object; got {_shown(fields)}")
    if fields.get("version") != VERSION or fields.get("hash") != "xxh3_64":
        raise NamedFeaturesError(
            f"encoder of features: expected version {VERSION} and hash xxh3_64; got version {fields.get('version')} "
            f"and hash {fields.get('hash')}: another version of Onebit wrote it"
        )
    try:
        bits = _hash_bits(fields["hash_bits"])
        names = {one["name"]: (Kind(one["kind"]), _vocabulary(one["values"])) for one in fields["names"]}
    except (KeyError, TypeError, ValueError) as error:
        raise NamedFeaturesError(f"encoder of features: expected names, kinds and values; got {error}") from error
    return build(names, bits, unknown=bits is not None)


def _hash_bits(bits: object) -> int | None:
    if bits is None or type(bits) is int:
        return bits
    raise TypeError(f"hash_bits {_shown(bits)}")


def _vocabulary(values: object) -> Sequence[str] | None:
    """The values of a name as `to_plain` wrote them."""
    if values is None:
        return None
    if type(values) is not list or set(map(type, values)) - {str} or len(set(values)) < len(values):
        raise TypeError(f"values {_shown(values)}, which are no list of different texts")
    return values


def text_of(value: object) -> str | None:
    """A category, as text: whole numbers are written alike however they came; None for what is no category.

    >>> [text_of(value) for value in ("de", 3, 3.0, 0.5, True, None, [1])]
    ['de', '3', '3', '0.5', 'true', None, None]
    """
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return None


def number_of(name: str, value: object) -> float:
    """The number that an entry of a numeric name is.

    Raises:
        NamedFeaturesError: it is no finite number.
    """
    if type(value) in (int, float, bool):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise NamedFeaturesError(f"{_shown_name(name)}: expected a finite number; got {_shown(value)}")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case.

    >>> words_of("Zwölf Boxkämpfer, don't")
    ['zwölf', 'boxkämpfer', 'don', 't']
    """
    return _WORD.findall(text.lower())


def hash_of(name: str, value: str) -> int:
    """64 bits of a value of a name."""
    return xxhash.xxh3_64_intdigest(f"{len(name)}:{name}{value}".encode("utf-8", "surrogatepass"))


def sharing(distinct: float, hash_bits: int) -> float:
    """How many of so many distinct hashed features share their index with another one, in expectation.

    >>> round(sharing(1_000, 16)), round(sharing(10, 16), 3)
    (15, 0.001)
    """
    return 0.0 if distinct < 1 else distinct * -math.expm1((distinct - 1) * math.log1p(-(2.0**-hash_bits)))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "")


def _shown_name(name: str) -> str:
    """A name as it may stand in a message: where nothing is hashed it is one of ours, and else whatever was sent."""
    return name[:100] if name.isprintable() else f"{name[:100]!r}"


def _shown(value: object) -> str:
    text = repr_of(value, 61)
    return text if len(text) <= 60 else text[:57] + "..."
