"""Run a learner and its naive transcription in parallel, with delayed feedback."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from stream.learners import Learner
from stream.wire.records import Decision, FloatArray, IndexArray
from tests.oracles.logged import LabelledOracle, LimitedOracle, Logged, ObservingOracle, Oracle


def delays(rounds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the delay from each decision to its feedback: geometric with a mean of 5 rounds. Many delays are 0."""
    return rng.geometric(1 / 6, rounds) - 1


class Round(NamedTuple):
    """An event in a test."""

    x: FloatArray
    label: int
    u: float
    v: float


def rounds_of(X: FloatArray, labels: NDArray[np.int64], rng: np.random.Generator) -> list[Round]:
    """Return the events, each with random draws `u` and `v`."""
    return [Round(x, int(y), float(rng.random()), float(rng.random())) for x, y in zip(X, labels, strict=True)]


def settled(late: NDArray[np.int64]) -> Iterator[tuple[str, int]]:
    """Yield ("decide", t) and ("learn", t) in chronological order.

    If several feedback records are due in the same round, they are yielded in the order of their decisions.
    """
    due: dict[int, list[int]] = {}
    for t in range(late.size):
        yield "decide", t
        due.setdefault(t + int(late[t]), []).append(t)
        for s in sorted(due.pop(t, [])):
            yield "learn", s
    for time in sorted(due):
        for s in sorted(due[time]):
            yield "learn", s


def assert_agree(
    learner: Learner,
    oracle: Oracle | LabelledOracle,
    events: list[Round],
    late: NDArray[np.int64],
    eligible: Sequence[IndexArray] | None = None,
    shares: FloatArray | None = None,
) -> int:
    """Assert that actions, greedy classes and propensities agree in every round. Return the number of mistakes.

    `shares` [n, K] contains the reward of each class. Without it, the reward is 1 for the label and 0 for the others.
    """
    labelled = oracle if isinstance(oracle, LabelledOracle) else None
    observing = oracle if isinstance(oracle, ObservingOracle) else None
    decided: dict[int, Decision] = {}
    logged: dict[int, Logged] = {}
    mistakes = 0
    for what, t in settled(late):
        x, label, u, v = events[t]
        if what == "decide":
            if eligible is None:
                decided[t], logged[t] = learner.predict(x, u), oracle.predict(x, u)
            else:
                decided[t] = learner.predict(x, u, eligible[t])
                logged[t] = cast(LimitedOracle, oracle).predict(x, u, eligible[t].tolist())
            learner.observe(x, decided[t])
            if observing is not None:
                observing.observe(x, logged[t])
            ours, theirs = decided[t], logged[t]
            assert (ours.action, ours.greedy) == (theirs.action, theirs.greedy), f"round {t}: {ours}, expected {theirs}"
            assert abs(ours.propensity - theirs.propensity) <= 1e-9 * theirs.propensity, f"round {t}: {ours}"
            mistakes += ours.action != label
        else:
            action = decided[t].action
            reward = int(action == label) if shares is None else float(shares[t, action])
            learner.update(x, decided.pop(t), reward, v=v, label=label)
            if labelled is not None:
                labelled.learn(x, logged.pop(t), label)
            else:
                cast(Oracle, oracle).update(x, logged.pop(t), reward, v)
    return mistakes
