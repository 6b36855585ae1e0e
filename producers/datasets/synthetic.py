"""SynSep and SynNonSep: synthetic data sets that resemble documents, generated row by row.

S. M. Kakade, S. Shalev-Shwartz, A. Tewari, "Efficient bandit algorithms for online multiclass prediction", ICML 2008,
section 5. There are 9 classes and 400 binary features: 120 keywords (0 to 119) and 280 common words (120 to 399). Each
class has n fixed keywords, drawn without replacement, with n uniform in {20, ..., 40}. Classes may share keywords. Each
row has a uniformly drawn class, all but 5 of that class's keywords, and 20 common words. The values are 1 and are
not normalised. There is no bias feature. SynNonSep has the same rows, but with probability 0.05 the label is one of the
8 wrong classes, drawn uniformly.

Departures from the paper: none. A row corresponds to a "document" in the paper.

Row i is a function of (seed, i), so a million rows need no memory, and access in any order is fast. Its random numbers
are words of a SplitMix64 sequence (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) that
starts at a hash of the seed and the row. Each number has a fixed position in the sequence, so label noise does not
change the features. The probability that any two of a million sequences overlap is 4e-6.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import Block, Dataset, DatasetError, Row
from stream.learners.kernels import compiled
from stream.randomness.draws import GAMMA, SEED_MAX, mix_words
from stream.wire.records import Features, FloatArray, IndexArray, make

N_CLASSES = 9
N_KEYWORDS = 120
N_COMMON = 280
N_FEATURES = N_KEYWORDS + N_COMMON
CLASS_KEYWORDS_MIN = 20
CLASS_KEYWORDS_MAX = 40
KEYWORDS_OFF = 5
COMMON_ON = 20
LABEL_NOISE = 0.05
ROWS = 1_000_000
TERMS = "generated; no restrictions"

ROW_NNZ_MAX = CLASS_KEYWORDS_MAX - KEYWORDS_OFF + COMMON_ON

# Positions in a row's sequence of random numbers.
_CLASS = 0
_NOISE = 1
_WRONG_CLASS = 2
_OFF = 3
_COMMON = _OFF + KEYWORDS_OFF

# The keyword lists use their own sequence, which no row uses.
_KEYWORDS_SEQUENCE = 2**64 - 1

_U64 = np.uint64
_S11, _S32 = _U64(11), _U64(32)
_ONE = _U64(1)


_GOLDEN = _U64(GAMMA)
_mix = compiled(mix_words)


@compiled
def _sequence(seed: np.uint64, row: np.uint64) -> np.uint64:
    return _mix(_mix(seed + _GOLDEN) + (row + _ONE) * _GOLDEN)


@compiled
def _word(sequence: np.uint64, place: int) -> np.uint64:
    return _mix(sequence + (_U64(place) + _ONE) * _GOLDEN)


@compiled
def _below(n: int, sequence: np.uint64, place: int) -> int:
    """Return the upper half of a 32-by-32-bit product, which is uniform in {0, ..., n-1} to one part in 2³²/n."""
    # In numba, int() of an unsigned number is unsigned, and an operation with a signed number yields a float.
    return int(np.int64(((_word(sequence, place) >> _S32) * _U64(n)) >> _S32))


@compiled
def _subset(n: int, k: int, sequence: np.uint64, place: int, first: int, chosen: IndexArray, offset: int) -> None:
    """Write a sorted uniform k-subset of {first, ..., first+n-1} to chosen[offset:offset+k], using k words.

    R. W. Floyd's algorithm (Bentley, "A sample of brilliance", 1987).
    """
    for j in range(k):
        greatest = n - k + j
        element = first + _below(greatest + 1, sequence, place + j)
        for i in range(offset, offset + j):
            if chosen[i] == element:
                element = first + greatest
                break
        i = offset + j
        while i > offset and chosen[i - 1] > element:
            chosen[i] = chosen[i - 1]
            i -= 1
        chosen[i] = element


@compiled
def _label(sequence: np.uint64, noise: float) -> int:
    label = _below(N_CLASSES, sequence, _CLASS)
    if np.float64(_word(sequence, _NOISE) >> _S11) * 2.0**-53 < noise:
        wrong = _below(N_CLASSES - 1, sequence, _WRONG_CLASS)
        return wrong + 1 if wrong >= label else wrong
    return label


@compiled
def _row(
    sequence: np.uint64,
    keywords: IndexArray,
    n_keywords: NDArray[np.int64],
    indices: IndexArray,
    offset: int,
) -> int:
    """Write a row's indices to indices[offset:] and return the end offset."""
    label = _below(N_CLASSES, sequence, _CLASS)
    # The omitted keywords are stored at the end of the row's space. The loop reads each of them before it overwrites
    # the entry.
    off_end = offset + n_keywords[label]
    off = off_end - KEYWORDS_OFF
    _subset(n_keywords[label], KEYWORDS_OFF, sequence, _OFF, 0, indices, off)
    end = offset
    for j in range(n_keywords[label]):
        if off < off_end and indices[off] == j:
            off += 1
        else:
            indices[end] = keywords[label, j]
            end += 1
    _subset(N_COMMON, COMMON_ON, sequence, _COMMON, N_KEYWORDS, indices, end)
    return end + COMMON_ON


@compiled
def _label_kernel(seed: np.uint64, row: int, noise: float) -> int:
    return _label(_sequence(seed, _U64(row)), noise)


@compiled
def _row_kernel(
    seed: np.uint64,
    row: int,
    noise: float,
    keywords: IndexArray,
    n_keywords: NDArray[np.int64],
    indices: IndexArray,
) -> tuple[int, int]:
    sequence = _sequence(seed, _U64(row))
    return _row(sequence, keywords, n_keywords, indices, 0), _label(sequence, noise)


@compiled
def _block_kernel(
    seed: np.uint64,
    start: int,
    noise: float,
    keywords: IndexArray,
    n_keywords: NDArray[np.int64],
    offsets: NDArray[np.int64],
    indices: IndexArray,
    labels: NDArray[np.int64],
) -> None:
    offsets[0] = 0
    for j in range(labels.size):
        sequence = _sequence(seed, _U64(start + j))
        labels[j] = _label(sequence, noise)
        offsets[j + 1] = _row(sequence, keywords, n_keywords, indices, offsets[j])


@compiled
def _keywords_kernel(seed: np.uint64, keywords: IndexArray, n_keywords: NDArray[np.int64]) -> None:
    sequence = _sequence(seed, _U64(_KEYWORDS_SEQUENCE))
    for label in range(N_CLASSES):
        place = label * (CLASS_KEYWORDS_MAX + 1)
        n_keywords[label] = CLASS_KEYWORDS_MIN + _below(CLASS_KEYWORDS_MAX - CLASS_KEYWORDS_MIN + 1, sequence, place)
        _subset(N_KEYWORDS, n_keywords[label], sequence, place + 1, 0, keywords[label], 0)


class Keywords(NamedTuple):
    """The keywords for the classes, drawn once per seed."""

    indices: IndexArray  # int32[K, 40]: row k contains the n_k keywords of class k, increasing, then zeros
    counts: NDArray[np.int64]  # int64[K]: n_k


def draw_keywords(seed: int) -> Keywords:
    """Draw the keywords for the classes."""
    drawn = Keywords(np.zeros((N_CLASSES, CLASS_KEYWORDS_MAX), np.int32), np.zeros(N_CLASSES, np.int64))
    _keywords_kernel(_U64(seed), drawn.indices, drawn.counts)
    return drawn


@dataclass(frozen=True, slots=True)
class SyntheticRows:
    """The rows that are generated from one seed."""

    seed: np.uint64
    noise: float
    keywords: Keywords
    ones: FloatArray  # float64[ROW_NNZ_MAX], shared by all rows

    def row(self, row: int) -> Row:
        """Generate a row."""
        indices = np.empty(ROW_NNZ_MAX, np.int32)
        nnz, label = _row_kernel(self.seed, row, self.noise, self.keywords.indices, self.keywords.counts, indices)
        return make(Row, (make(Features, (indices[:nnz], self.ones[:nnz])), label))

    def label(self, row: int) -> int:
        """Generate a row's label."""
        return _label_kernel(self.seed, row, self.noise)

    def block(self, start: int, stop: int) -> Block:
        """Generate the rows [start, stop)."""
        n = stop - start
        offsets = np.empty(n + 1, np.int64)
        indices = np.empty(n * ROW_NNZ_MAX, np.int32)
        labels = np.empty(n, np.int64)
        _block_kernel(
            self.seed, start, self.noise, self.keywords.indices, self.keywords.counts, offsets, indices, labels
        )
        nnz = int(offsets[n])
        return Block(offsets, indices[:nnz], np.ones(nnz), labels)


def synsep(seed: int = 0, rows: int = ROWS) -> Dataset:
    """Create SynSep, which is linearly separable."""
    return _synthetic("synsep", seed, rows, noise=0.0)


def synnonsep(seed: int = 0, rows: int = ROWS) -> Dataset:
    """Create SynNonSep, which has SynSep's features (for the same seed) and 5% wrong labels."""
    return _synthetic("synnonsep", seed, rows, noise=LABEL_NOISE)


def _synthetic(name: str, seed: int, rows: int, noise: float) -> Dataset:
    if not 0 <= seed <= SEED_MAX:
        raise DatasetError(f"{name}: expected a seed in [0, 2**64); got {seed}")
    if rows < 1:
        raise DatasetError(f"{name}: expected at least 1 row; got {rows}")
    return Dataset(
        name=name,
        # The id contains the seed, because labels from another seed would make all feedback wrong without an error.
        id_prefix=f"{name}.{seed}",
        rows=rows,
        n_features=N_FEATURES,
        n_classes=N_CLASSES,
        class_names=tuple(str(label) for label in range(N_CLASSES)),
        terms=TERMS,
        source=SyntheticRows(_U64(seed), noise, draw_keywords(seed), np.ones(ROW_NNZ_MAX)),
    )
