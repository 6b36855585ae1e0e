"""The set of ids seen in a log, stored with 8 bytes per id in sorted runs that double in size up to a limit."""

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

RUN_IDS_MAX = 1 << 22
"""Maximum number of ids per run (33 MB).

Merging larger runs would need 50% more memory. Smaller runs would slow down lookups, because a lookup searches every
run.
"""


def hashes_of(ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return 64-bit hashes of ids. For ten million ids, the probability of a collision is 3e-6."""
    return np.array([xxhash.xxh3_64_intdigest(one.encode()) for one in ids], np.uint64)


class SeenIds:
    """A growing set of ids."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []  # sorted runs, from large to small

    def repeated(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each id occurred in an earlier call or earlier in this sequence. Add all ids to the set."""
        hashes = hashes_of(ids)
        distinct, first = np.unique(hashes, return_index=True)
        again = np.ones(hashes.size, np.bool_)
        again[first] = False
        new = np.ones(distinct.size, np.bool_)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, distinct), run.size - 1)
            known = run[places] == distinct
            again[first[known]] = True
            new &= ~known
        self._add(distinct[new])
        return again

    def _add(self, run: NDArray[np.uint64]) -> None:
        if not run.size:
            return
        while self._runs and self._runs[-1].size <= run.size <= RUN_IDS_MAX - self._runs[-1].size:
            merged = self._runs.pop()
            size = merged.size
            merged.resize(size + run.size, refcheck=False)  # resized in place, because a copy would double the memory
            merged[size:] = run
            run = merged
            run.sort(kind="stable")  # a stable sort merges sorted runs in linear time
        self._runs.append(run)
