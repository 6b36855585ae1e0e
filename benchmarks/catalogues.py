"""Environments for learners that decide among actions with features. They contain new actions throughout.

shop     one-hot contexts (segment, device, hour, country) and products (category, brand, price, age); few rewards
words    contexts and actions contain the words of topics; vocabulary with Zipf frequencies
churn    dense features; half of the actions are replaced every 500 decisions
latent   dense features; low-rank preferences, popularity that the features do not contain, a non-linear part
graded   as latent, with rewards between 0 and 1
tastes   dense features with more than 20 dimensions; the reward is the similarity of context and action, with noise
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.wire.records import FloatArray, IndexArray


class Sparse(NamedTuple):
    """One row of features."""

    indices: IndexArray  # int32[n] in increasing order
    values: FloatArray  # [n]


class Catalogue(NamedTuple):
    """An environment. Decision t has the context `contexts[t]` and the actions `offered[t]`."""

    contexts: list[Sparse]
    actions: list[Sparse]  # by id
    offered: NDArray[np.int64]  # [T, n], ids
    rewards: FloatArray  # [T, n], from 0 to 1
    expected: FloatArray  # [T, n], their expected values
    n_context: int
    n_action: int


def offers(
    rng: np.random.Generator, rounds: int, offered: int, pool: int, share: float, every: int
) -> NDArray[np.int64]:
    """Draw the offered ids from a pool. Every `every` decisions, new ids replace a share of the pool."""
    active, used = np.arange(pool), pool
    ids = np.empty((rounds, offered), np.int64)
    for t in range(rounds):
        if t and t % every == 0:
            size = int(share * pool)
            active[rng.choice(pool, size, replace=False)] = np.arange(used, used + size)
            used += size
        ids[t] = rng.choice(active, offered, replace=False)
    return ids


def dense_rows(rows: FloatArray) -> list[Sparse]:
    indices = np.arange(rows.shape[1], dtype=np.int32)
    return [Sparse(indices, row) for row in rows]


def one_hot_rows(columns: list[NDArray[np.int64]], sizes: list[int]) -> list[Sparse]:
    starts = np.concatenate(([0], np.cumsum(sizes[:-1])))
    rows = (np.stack(columns, axis=1) + starts).astype(np.int32)
    return [Sparse(row, np.ones(row.size)) for row in rows]


def sigmoid(z: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-z)))


def shop(seed: int, rounds: int) -> Catalogue:
    rng = np.random.default_rng(seed)
    ids = offers(rng, rounds, 12, 120, 0.15, 1_000)
    count = int(ids.max()) + 1
    of_context, of_action = [8, 3, 6, 10], [12, 20, 6, 4]
    contexts = [rng.integers(size, size=rounds) for size in of_context]
    actions = [rng.integers(size, size=count) for size in of_action]
    logits = -2.4 + 0.5 * rng.normal(size=count)[ids]  # popularity
    for j, k, strength in ((0, 0, 0.9), (0, 2, 0.6), (3, 1, 0.5), (2, 0, 0.4)):
        taste = strength * rng.normal(size=(of_context[j], of_action[k]))
        logits += taste[contexts[j][:, None], actions[k][ids]]
    for k, strength in ((0, 0.4), (1, 0.4), (3, 0.3)):
        logits += (strength * rng.normal(size=of_action[k]))[actions[k][ids]]
    expected = sigmoid(logits)
    rewards = (rng.random(ids.shape) < expected).astype(float)
    return Catalogue(
        one_hot_rows(contexts, of_context), one_hot_rows(actions, of_action), ids, rewards, expected, sum(of_context),
        sum(of_action),
    )  # fmt: skip


def words(seed: int, rounds: int, vocabulary: int = 5_000, topics: int = 12) -> Catalogue:
    rng = np.random.default_rng(seed)
    ids = offers(rng, rounds, 10, 60, 0.2, 1_000)
    count = int(ids.max()) + 1
    common = 1.0 / np.arange(1, vocabulary + 1)
    frequencies = np.stack([common * rng.gamma(0.15, size=vocabulary) for _ in range(topics)])
    frequencies = 0.5 * frequencies / frequencies.sum(1, keepdims=True) + 0.5 * common / common.sum()

    def text(topic: int, length: int) -> Sparse:
        found = np.unique(rng.choice(vocabulary, length, p=frequencies[topic]))
        return Sparse(found.astype(np.int32), np.ones(found.size))

    of_context, of_action = rng.integers(topics, size=rounds), rng.integers(topics, size=count)
    likes = np.clip(0.1 + 0.15 * rng.normal(size=(topics, topics)), 0.02, 0.5)
    likes[np.arange(topics), rng.permutation(topics)] = 0.8
    probabilities = likes[of_context[:, None], of_action[ids]]
    rewards = (rng.random(ids.shape) < probabilities).astype(float)
    contexts, actions = [text(k, 60) for k in of_context], [text(k, 25) for k in of_action]
    return Catalogue(contexts, actions, ids, rewards, probabilities, vocabulary, vocabulary)


def latent(seed: int, rounds: int, *, graded: bool = False) -> Catalogue:
    rng = np.random.default_rng(seed)
    return _bilinear(rng, offers(rng, rounds, 15, 200, 0.1, 1_000), 20, 20, popularity=0.6, graded=graded)


def churn(seed: int, rounds: int) -> Catalogue:
    rng = np.random.default_rng(seed)
    return _bilinear(rng, offers(rng, rounds, 10, 100, 0.5, 500), 10, 10, popularity=0.3, graded=False)


def _bilinear(
    rng: np.random.Generator, ids: NDArray[np.int64], n_context: int, n_action: int, *, popularity: float, graded: bool
) -> Catalogue:
    rank, hidden = 5, 12
    X, A = rng.normal(size=(ids.shape[0], n_context)), rng.normal(size=(int(ids.max()) + 1, n_action))
    U, V = rng.normal(size=(n_context, rank)), rng.normal(size=(n_action, rank))
    logits = -1.5 + popularity * rng.normal(size=len(A))[ids]
    logits += np.einsum("tr,tnr->tn", X @ U, (A @ V)[ids]) * 1.3 / np.sqrt(n_context * n_action * rank)
    H, J = rng.normal(size=(n_context, hidden)), rng.normal(size=(n_action, hidden))
    inner = 1.5 * (X @ H / np.sqrt(n_context))[:, None] + 1.5 * (A @ J / np.sqrt(n_action))[ids]
    logits += np.tanh(inner) @ rng.normal(size=hidden) / np.sqrt(hidden)
    p = sigmoid(logits)
    rewards = np.clip(p + 0.1 * rng.normal(size=p.shape), 0, 1) if graded else (rng.random(p.shape) < p).astype(float)
    return Catalogue(dense_rows(X), dense_rows(A), ids, rewards, p, n_context, n_action)


def tastes(seed: int, rounds: int, n_features: int = 48, rank: int = 8) -> Catalogue:
    rng = np.random.default_rng(seed)
    ids = offers(rng, rounds, 10, 80, 0.25, 1_000)
    mixing = rng.normal(size=(rank, n_features))
    S, Q = rng.normal(size=(rounds, rank)), rng.normal(size=(int(ids.max()) + 1, rank))
    X = S @ mixing + 0.5 * rng.normal(size=(rounds, n_features))
    A = Q @ mixing + 0.5 * rng.normal(size=(len(Q), n_features))
    near = -np.square(S[:, None] - Q[ids]).sum(2) / (2 * rank)
    expected = np.exp(1.5 * near)
    rewards = (rng.random(ids.shape) < expected).astype(float)
    return Catalogue(dense_rows(X), dense_rows(A), ids, rewards, expected, n_features, n_features)


CATALOGUES: dict[str, Callable[[int, int], Catalogue]] = {
    "shop": shop,
    "words": words,
    "churn": churn,
    "latent": latent,
    "graded": partial(latent, graded=True),
    "tastes": tastes,
}


def converted(found: dict[str, Any]) -> Catalogue:
    """Return an environment with the fields X and AF (arrays or CSR matrices), IDS and R."""

    def rows(matrix: Any) -> list[Sparse]:
        if isinstance(matrix, np.ndarray):
            return dense_rows(matrix)
        bounds = matrix.indptr
        return [
            Sparse(matrix.indices[a:b].astype(np.int32), matrix.data[a:b].astype(float)) for a, b in pairwise(bounds)
        ]

    X, A = found["X"], found["AF"]
    return Catalogue(rows(X), rows(A), found["IDS"].astype(np.int64), found["R"], found["R"], X.shape[1], A.shape[1])
