"""Dictionary-encoded strings. Each distinct string is stored once, with its positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MISSING = -1


@dataclass(frozen=True, slots=True)
class Texts:
    """A sequence of n strings. An empty string is a missing value."""

    distinct: list[str]  # in order of first occurrence
    codes: NDArray[np.int64]  # [n], indices in `distinct`, -1 if missing

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "Texts":
        """Create a sequence from values. None is a missing value."""
        return cls(*distinct_of(values))

    @classmethod
    def by_code(cls, values: Sequence[str], codes: NDArray[np.int64]) -> "Texts":
        """Create a sequence from distinct values and codes. A code of -1 is a missing value."""
        known = cls.of(values)
        return cls(known.distinct, np.append(known.codes, _MISSING)[codes])

    def __len__(self) -> int:
        return self.codes.size

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code == _MISSING else self.distinct[code]

    def missing(self) -> NDArray[np.bool_]:
        """Return a mask of the missing strings."""
        missing: NDArray[np.bool_] = self.codes == _MISSING
        return missing

    def present(self) -> "Texts":
        """Return the strings that are not missing."""
        return Texts(self.distinct, self.codes[self.codes != _MISSING])

    def to_list(self) -> list[str | None]:
        """Return the strings, with None for missing values."""
        return [None if code == _MISSING else self.distinct[code] for code in self.codes.tolist()]


class Lists(NamedTuple):
    """A sequence of n lists of strings. Each distinct list is stored once."""

    distinct: list[tuple[str, ...]]
    codes: NDArray[np.int64]  # [n], indices in `distinct`, -1 if missing


def distinct_of(values: Sequence[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct values in order of first occurrence, and the index of each value, -1 for None and ""."""
    places = dict.fromkeys(values, _MISSING)
    distinct = [value for value in places if value is not None and value != ""]
    places.update(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.fromiter(map(places.__getitem__, values), np.int64, len(values))
