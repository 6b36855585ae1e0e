"""Simulated in-memory logs with a known logging policy and known reward probabilities."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.log import MISSING
from stream.estimating.rows import LogBatch
from stream.wire.actions import ActionBlocks
from stream.wire.records import FloatArray

N_CLASSES, N_FEATURES = 4, 5


class MemoryLog(NamedTuple):
    """An in-memory log that is read in batches of `batch_rows` rows."""

    rows: LogBatch
    n_features: int = N_FEATURES
    class_names: tuple[str, ...] = tuple("abcd")
    batch_rows: int = 700
    name: str = "memory"
    blocks: ActionBlocks | None = None

    @property
    def skipped(self) -> dict[str, int]:
        return {}

    @property
    def first_skipped(self) -> dict[str, str]:
        return {}

    def batches(self) -> Iterator[LogBatch]:
        rows = self.rows
        for start in range(0, len(rows.ids), self.batch_rows):
            stop = min(start + self.batch_rows, len(rows.ids))
            first, last = rows.offsets[start], rows.offsets[stop]
            yield LogBatch(
                rows.ids[start:stop],
                rows.offsets[start : stop + 1] - first,
                rows.indices[first:last],
                rows.values[first:last],
                decided_at_ms=rows.decided_at_ms[start:stop],
                labels=rows.labels[start:stop],
                actions=rows.actions[start:stop],
                propensities=rows.propensities[start:stop],
                rewards=rows.rewards[start:stop],
                delays_ms=rows.delays_ms[start:stop],
                eligible=None if rows.eligible is None else rows.eligible.part(start, stop),
                baselines=None if rows.baselines is None else rows.baselines[start:stop],
            )


class World(NamedTuple):
    """Contexts x ~ N(0, I), logistic reward probabilities, and a softmax logging policy mixed with a uniform one."""

    of_reward: FloatArray  # [d, K]
    of_logging: FloatArray  # [d, K]
    floor: float = 0.4  # weight of the uniform policy in the mixture

    def rewards(self, x: FloatArray) -> FloatArray:
        """The probability of a reward of 1 for each class, float64[n, K]."""
        chances: FloatArray = 1.0 / (1.0 + np.exp(1.0 - x @ self.of_reward))
        return chances

    def propensities(self, x: FloatArray) -> FloatArray:
        """The probability that the logging policy plays each class, float64[n, K]."""
        exponents = np.exp(x @ self.of_logging)
        shares = exponents / exponents.sum(axis=1, keepdims=True)
        played: FloatArray = (1.0 - self.floor) * shares + self.floor / shares.shape[1]
        return played

    def value(self, policy: str, n: int = 400_000) -> float:
        """The true value of `uniform`, `logged`, or a policy that plays one class, with an error below 0.001."""
        x = np.random.default_rng(99).normal(size=(n, N_FEATURES))
        chances = self.rewards(x)
        if policy == "logged":
            return float((self.propensities(x) * chances).sum(axis=1).mean())
        if policy == "uniform":
            return float(chances.mean())
        return float(chances[:, "abcd".index(policy)].mean())


def a_world(floor: float = 0.4) -> World:
    rng = np.random.default_rng(7)
    return World(rng.normal(size=(N_FEATURES, N_CLASSES)), rng.normal(size=(N_FEATURES, N_CLASSES)), floor)


def rows_of(x: FloatArray, actions: NDArray[np.int64], propensities: FloatArray, rewards: FloatArray) -> LogBatch:
    """A log with dense contexts and the given actions and rewards. It has one decision per second and no delays."""
    n, d = x.shape
    return LogBatch(
        ids=[f"event-{j}" for j in range(n)],
        offsets=np.arange(n + 1, dtype=np.int64) * d,
        indices=np.tile(np.arange(d, dtype=np.int32), n),
        values=x.reshape(-1).copy(),
        decided_at_ms=np.arange(n, dtype=np.int64) * 1_000,
        labels=np.full(n, MISSING, np.int64),
        actions=actions,
        propensities=propensities,
        rewards=rewards,
        delays_ms=np.full(n, MISSING, np.int64),
    )


def a_log(n: int, seed: int = 0, world: World | None = None) -> LogBatch:
    """A log of `n` decisions by the world's logging policy, with their rewards."""
    world = world or a_world()
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, N_FEATURES))
    played = world.propensities(x)
    actions = (rng.random((n, 1)) >= played.cumsum(axis=1)[:, :-1]).sum(axis=1)
    rewards = (rng.random(n) < world.rewards(x)[np.arange(n), actions]).astype(np.float64)
    return rows_of(x, actions, played[np.arange(n), actions], rewards)
