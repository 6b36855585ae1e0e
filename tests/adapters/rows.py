"""Training rows for the coba and River adapter tests."""

import numpy as np

from stream.offline import Examples
from stream.wire.records import FloatArray

N_CLASSES, N_FEATURES = 3, 5


def rows(size: int) -> tuple[FloatArray, list[int]]:
    """Return nonzero features, float64[size, 5], and labels from a linear model."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(size, N_FEATURES))
    return x, np.argmax(x @ rng.normal(size=(N_FEATURES, N_CLASSES)), axis=1).tolist()


def examples(x: FloatArray, labels: list[int]) -> Examples:
    """Return the rows in the compiled loop's format."""
    size = len(labels)
    offsets = np.arange(size + 1, dtype=np.int64) * N_FEATURES
    indices = np.tile(np.arange(N_FEATURES, dtype=np.int32), size)
    return Examples(offsets, indices, x.ravel(), np.array(labels, dtype=np.int64))
