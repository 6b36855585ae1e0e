"""Offline runs with a shared model, compared with the compiled loop (without lag) or with an oracle (with lag)."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.learners import create
from stream.learners.base import KernelLearner
from stream.offline import NEVER, Examples, Patience, run
from stream.offline.shared import run_shared
from stream.recovery.state import state_digest
from tests.oracles.shared_model import LogEntry, SharedModel

K, D, N = 4, 9, 90
PARTITIONS = np.random.default_rng(3).integers(0, 3, N)


def data() -> tuple[Examples, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.6)
    rows, columns = np.nonzero(X)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=N)))).astype(np.int64)
    examples = Examples(offsets, columns.astype(np.int32), X[rows, columns], rng.integers(0, K, N))
    return examples, rng.random(N), rng.random(N), rng.integers(NEVER, 12, N)


def fresh(name: str) -> KernelLearner:
    learner = create(name, K, D, **({"drift": "off"} if name == "late-ucb" else {}))
    assert isinstance(learner, KernelLearner)
    return learner


PATIENCE = {
    "late-ucb": Patience(6, "negative", "correct"),
    "stack-igw": Patience(6, "negative"),
    "soba-diag": Patience(),
    "confidit": Patience(4),
    "perceptron": Patience(),
}


@pytest.mark.parametrize("name", PATIENCE)
def test_run_with_a_shared_model_without_lag_equals_a_run_with_one_partition(name: str) -> None:
    one, other = fresh(name), fresh(name)
    expected = run(one, *data(), PATIENCE[name])
    found = run_shared(other, *data(), PATIENCE[name], partitions=PARTITIONS, lag=1)
    for field, column in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, field), column, err_msg=field)
    assert state_digest([other.state()]) == state_digest([one.state()])


@pytest.mark.parametrize(
    ("lag", "outage", "readings"),
    [
        (7, 0, range(0, N, 7)),
        (40, 0, range(0, N, 40)),
        (N + 1, 0, [0]),
        (1, 20, [*range(N // 2 + 1), *range(N // 2 + 20, N)]),
        (7, N, range(0, N // 2, 7)),
    ],
)
@pytest.mark.parametrize("name", ["late-ucb", "soba-diag"])
def test_task_decides_with_the_updates_it_has_read_and_its_own_decisions(
    name: str, lag: int, outage: int, readings: Sequence[int]
) -> None:
    examples, u, v, delays = data()
    delays = np.maximum(delays, 0)
    learner = fresh(name)
    found = run_shared(learner, examples, u, v, delays, partitions=PARTITIONS, lag=lag, outage=outage)
    oracle = SharedModel(lambda: fresh(name))
    due = {t: [s for s in range(N) if min(s + delays[s], N - 1) == t] for t in range(N)}
    due[N - 1].sort(key=lambda s: (s + delays[s], s))
    decisions = {}
    for start, stop in pairwise([*readings, N]):
        written: list[LogEntry] = []
        for t in range(start, stop):
            x, task = examples.features(t), int(PARTITIONS[t])
            decided = [entry for entry in written if entry.kind == "decided"]
            decisions[t] = oracle.decide(task, len(oracle.log), decided, x, float(u[t]))
            written += [LogEntry(task, "decided", x, decisions[t])] if learner.observed else []
            for s in due[t]:
                bit = int(decisions[s].action == examples.labels[s])
                written.append(
                    LogEntry(int(PARTITIONS[s]), "settled", examples.features(s), decisions[s], bit, v=float(v[s]))
                )
        oracle.log += written
    assert found.actions.tolist() == [decisions[t].action for t in range(N)]
    assert found.propensities.tolist() == [decisions[t].propensity for t in range(N)]
    assert state_digest([learner.state()]) == state_digest([oracle.model(len(oracle.log)).state()])


@pytest.mark.parametrize(
    ("partitions", "lag", "outage", "message"),
    [
        (PARTITIONS[1:], 2, 0, "90 entries"),
        (PARTITIONS, 0, 0, "at least 1 round; got 0"),
        (PARTITIONS, 2, -1, "at least 0 rounds; got -1"),
    ],
)
def test_invalid_partitions_lag_and_outage_are_rejected(
    partitions: NDArray[np.int64], lag: int, outage: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_shared(fresh("soba-diag"), *data(), partitions=partitions, lag=lag, outage=outage)
