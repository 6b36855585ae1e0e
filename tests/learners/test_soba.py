import numpy as np
import pytest

from stream.learners import create
from stream.learners.second_order.soba import BLOCK
from stream.wire.records import Decision, Features


def correct_rounds(size: int, K: int, d: int, nnz: int, seed: int) -> list[tuple[Features, float]]:
    rng = np.random.default_rng(seed)
    return [
        (Features(np.sort(rng.choice(d, nnz, replace=False)).astype(np.int32), np.ones(nnz)), float(rng.random()))
        for _ in range(size)
    ]


@pytest.mark.slow
def test_w_stays_close_to_a_newly_computed_solution() -> None:
    """Apply hundreds of blocks of updates at K·d = 240. The benchmark applies 10⁵ updates."""
    K, d = 6, 40
    learner = create("soba", n_classes=K, n_features=d, gamma=0.5)
    A, theta = np.eye(K * d), np.zeros(K * d)
    updates = 0
    for x, u in correct_rounds(7_000, K, d, nnz=6, seed=1):
        decision = learner.predict(x, u)
        if learner.update(x, decision, 1):
            updates += 1
            others = decision.scores.copy()
            others[decision.action] = -np.inf
            g = np.zeros((K, d))
            g[others.argmax(), x.indices] = x.values / decision.propensity
            g[decision.action, x.indices] = -x.values / decision.propensity
            A += decision.propensity * np.outer(g, g)
            theta -= g.ravel()
    assert updates > 100 * BLOCK
    np.testing.assert_allclose(learner.weights().ravel(), np.linalg.solve(A, theta), atol=1e-9)


@pytest.mark.parametrize("updates", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_inverse_is_accurate_before_and_after_a_block_update(updates: int) -> None:
    K, d = 3, 7
    learner = create("soba", n_classes=K, n_features=d, a=2.0, margin="decision")
    A = 2.0 * np.eye(K * d)
    for t, (x, p) in enumerate(correct_rounds(updates, K, d, nnz=3, seed=2)):
        action, rival = t % K, (t + 1) % K
        # Another class has the highest score, so m > 0 and the condition is always satisfied.
        assert learner.update(x, Decision(action, rival, p, np.eye(K)[rival]), 1)
        z = np.zeros((K, d))
        z[rival, x.indices] = x.values / np.sqrt(p)
        z[action, x.indices] = -x.values / np.sqrt(p)
        A += np.outer(z.ravel(), z.ravel())
    state = learner.state()
    pending = int(np.asarray(state["pending"])[0])
    assert pending == updates % BLOCK
    V = np.asarray(state["V"])[:pending]
    np.testing.assert_allclose(np.asarray(state["P"]) - V.T @ V, np.linalg.inv(A), atol=1e-10)
