"""Compare the learners for late bits to their naive transcriptions and check their defaults and limits."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.learners import Learner, ParameterError, check_parameters, create, registered
from stream.learners.base import KernelLearner
from stream.learners.late_bits.late_ucb import PROJECTION_SEED, WAVES_SEED, projection, random_waves
from stream.learners.late_bits.random_features_kernels import cosines, median_of_distances
from stream.learners.late_bits.symmetric_kernels import BLOCK
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features, FloatArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles.late_bits import NaiveIgwLogistic, NaiveLateUcb, NaiveStackIgw

K, D, ROUNDS = 6, 9, 300
LATE = ("late-ucb", "igw-logistic", "stack-igw")

Naive = NaiveLateUcb | NaiveIgwLogistic | NaiveStackIgw


def waves(d: int, m: int = 64) -> tuple[FloatArray, FloatArray]:
    """Return the random matrices σω [m, d] and β [m] that the learner uses."""
    omega, phases = random_waves(d, m, WAVES_SEED)
    return omega.T, phases


def of_projection(p: int) -> FloatArray:
    """Return the random projection G [p, D] that the learner uses."""
    return projection(D, p, PROJECTION_SEED).T


CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Naive]]] = {
    "late-ucb": ("late-ucb", {}, lambda: NaiveLateUcb(K, D, waves=waves(D), drift="global")),
    "late-ucb, other parameters": (
        "late-ucb",
        {"lam": 0.5, "eta": 0.4, "shortlist": 3, "bias": 0.7, "m": 30, "drift": "off"},
        lambda: NaiveLateUcb(K, D, lam=0.5, eta=0.4, shortlist=3, bias=0.7, waves=waves(D, 30)),
    ),
    "late-ucb, no shortlist": (
        "late-ucb",
        {"shortlist": 99},
        lambda: NaiveLateUcb(K, D, shortlist=99, waves=waves(D), drift="global"),
    ),
    "late-ucb, projected": (
        "late-ucb",
        {"project": 5},
        lambda: NaiveLateUcb(K, D, lam=0.1, G=of_projection(5), waves=waves(D), drift="global"),
    ),
    "late-ucb, drift=class": (
        "late-ucb",
        {"drift": "class"},
        lambda: NaiveLateUcb(K, D, waves=waves(D), drift="class"),
    ),
    "late-ucb, plain": ("late-ucb", {"expand": "none"}, lambda: NaiveLateUcb(K, D, drift="global")),
    "late-ucb, plain, projected": (
        "late-ucb",
        {"expand": "none", "project": 5},
        lambda: NaiveLateUcb(K, D, lam=0.1, G=of_projection(5), drift="global"),
    ),
    "late-ucb, quadratic": (
        "late-ucb",
        {"expand": "quadratic"},
        lambda: NaiveLateUcb(K, D, expand="quadratic", drift="global"),
    ),
    "igw-logistic": ("igw-logistic", {}, lambda: NaiveIgwLogistic(K, D, drift="global")),
    "igw-logistic, other parameters": (
        "igw-logistic",
        {"scale": 20.0, "step": 0.5, "others": 0.6, "bias": 0.4, "drift": "off"},
        lambda: NaiveIgwLogistic(K, D, scale=20.0, step=0.5, others=0.6, bias=0.4),
    ),
    "igw-logistic, drift=class": (
        "igw-logistic",
        {"drift": "class"},
        lambda: NaiveIgwLogistic(K, D, drift="class"),
    ),
    "stack-igw": ("stack-igw", {}, lambda: NaiveStackIgw(K, D, drift="global")),
    "stack-igw, 32 dimensions": ("stack-igw", {"vectors": 32}, lambda: NaiveStackIgw(K, D, vectors=32, drift="global")),
    "stack-igw, no vectors": ("stack-igw", {"vectors": 0}, lambda: NaiveStackIgw(K, D, vectors=0, drift="global")),
    "stack-igw, drift=class": ("stack-igw", {"drift": "class"}, lambda: NaiveStackIgw(K, D, drift="class")),
}


def events(data: str, size: int = ROUNDS) -> list[Round]:
    """Return sparse contexts with labels from a linear model. Every 50th context is empty.

    After half of the events, "all renamed" renames all classes, and "two swapped" swaps two classes.
    """
    rng = np.random.default_rng(5)
    X: FloatArray = rng.normal(size=(size, D)) * (rng.random((size, D)) < 0.6)
    if data == "positive":
        X = np.abs(X)
    labels: NDArray[np.int64] = (X @ rng.normal(size=(D, K))).argmax(axis=1)
    if data == "all renamed":
        labels[size // 2 :] = (labels[size // 2 :] + 1) % K
    if data == "two swapped":
        labels[size // 2 :] = np.array([1, 0, *range(2, K)])[labels[size // 2 :]]
    X[::50] = 0.0
    return rounds_of(X, labels, rng)


@pytest.mark.parametrize(
    ("case", "data"), [*((case, "gaussian") for case in CASES), *((name, "positive") for name in LATE)]
)
def test_learner_agrees_with_the_transcription_in_every_round(case: str, data: str) -> None:
    name, parameters, make = CASES[case]
    learner, oracle = create(name, n_classes=K, n_features=D, **parameters), make()
    assert_agree(learner, oracle, events(data), delays(ROUNDS, np.random.default_rng(6)))
    assert oracle.closest > 1e-12  # rounding did not affect any decision
    assert_same_models(learner, oracle)


@pytest.mark.parametrize(("drift", "data"), [("global", "all renamed"), ("class", "two swapped")])
@pytest.mark.parametrize("name", LATE)
def test_learner_agrees_with_the_transcription_when_classes_are_renamed(name: str, drift: str, data: str) -> None:
    size, late = 1_000, 25
    learner = create(name, n_classes=K, n_features=D, drift=drift)
    makers: dict[str, Callable[..., Naive]] = {
        "late-ucb": functools.partial(NaiveLateUcb, waves=waves(D)),
        "igw-logistic": NaiveIgwLogistic,
        "stack-igw": NaiveStackIgw,
    }
    oracle = makers[name](K, D, drift=drift)
    mistakes = assert_agree(learner, oracle, events(data, size), np.full(size, late))
    alarms = np.asarray(learner.state()["alarms"])
    assert (alarms[:K] + alarms[K]).tolist() == oracle.drift.resets
    assert (alarms[K] if drift == "global" else alarms[:K].sum()) >= 1.0
    assert_same_models(learner, oracle)
    unmoved = create(name, n_classes=K, n_features=D, drift="off")
    assert mistakes < mistakes_of(unmoved, events(data, size), late)


def texts(size: int, d: int, seed: int = 12) -> list[Round]:
    """Return word counts for texts from 2·K topics, two for each class. Some words are frequent in all topics."""
    rng = np.random.default_rng(seed)
    topics = rng.gamma(0.1, size=(2 * K, d)) + 0.02 * rng.gamma(0.5, size=d)
    topics /= topics.sum(axis=1, keepdims=True)
    topic = rng.integers(2 * K, size=size)
    X = np.array([rng.multinomial(25, topics[t]) for t in topic]).astype(np.float64)
    return rounds_of(X, topic % K, rng)


@pytest.mark.parametrize(("rows_max", "late"), [(32_768, 300), (90, 0)])
def test_word_vectors_agree_with_the_transcription(rows_max: int, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    d = 160
    monkeypatch.setattr("stream.learners.late_bits.stack_igw.ROWS_MAX", rows_max)
    learner, oracle = create("stack-igw", n_classes=K, n_features=d), NaiveStackIgw(K, d, drift="global")
    assert oracle.words is not None
    oracle.words.rows_max = rows_max
    assert_agree(learner, oracle, texts(800, d), np.full(800, late))
    assert oracle.closest > 1e-12
    assert np.asarray(learner.state()["words"])[:3].tolist() == [min(rows_max, oracle.words.has_row.sum()), 3.0, 1.0]
    assert np.count_nonzero(oracle.words.V.any(axis=0)) == 64
    assert_same_models(learner, oracle)


def test_state_contains_only_vectors_in_use() -> None:
    learner, other = (create("stack-igw", n_classes=3, n_features=20_000) for _ in range(2))
    spare = learner.state()
    assert np.shape(spare["vectors"]) == (0, 128)
    for event in texts(300, 200):
        x = Features(np.flatnonzero(event.x).astype(np.int32) * 100, event.x[np.flatnonzero(event.x)])
        decision = learner.predict(x, event.u)
        learner.observe(x, decision)
        learner.update(x, decision, int(decision.action == event.label % 3))
    state = learner.state()
    assert 100 < np.shape(state["vectors"])[0] <= 200
    other.load(state)
    for found in (other.state(), learner.state_into(spare)):
        for name, value in state.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def mistakes_of(learner: Learner, rounds: list[Round], late: int) -> int:
    waiting: list[tuple[Round, Decision]] = []
    mistakes = 0
    for event in rounds:
        decision = learner.predict(event.x, event.u)
        learner.observe(event.x, decision)
        mistakes += decision.action != event.label
        waiting.append((event, decision))
        if len(waiting) > late:
            (x, label, _, _), due = waiting.pop(0)
            learner.update(x, due, int(due.action == label))
    return mistakes


def assert_close(ours: NDArray[Any], theirs: NDArray[Any], what: str = "") -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-7, rtol=1e-7, err_msg=what)


def assert_same_models(learner: Learner, oracle: Naive) -> None:
    state = {name: np.asarray(value) for name, value in learner.state().items()}
    if isinstance(oracle, NaiveLateUcb):
        assert_close(state["W"], oracle.w)
        assert_close(inverses_of(learner), np.linalg.inv(oracle.A))
        np.testing.assert_array_equal(state["P"], state["P"].transpose(0, 2, 1))
        assert_close(state["N"], oracle.N)
        if oracle.m:
            assert_close(state["Y"], oracle.y)
            assert_close(inverses_of(learner, "Q", "U", "pending_settled"), np.linalg.inv(oracle.B))
            np.testing.assert_array_equal(state["Q"], state["Q"].transpose(0, 2, 1))
            assert_close(state["bandwidth"], np.array([64.0, oracle.sigma_sq]))
            assert not state["sample"].any()
        return
    assert_close(state["W"], oracle.W)
    assert_close(state["A"], oracle.A)
    if isinstance(oracle, NaiveStackIgw):
        for ours, theirs in (
            ("C", oracle.C), ("N", oracle.N), ("M", oracle.M), ("df", oracle.df), ("norm_sq", oracle.nr),
            ("hits", oracle.h), ("misses", oracle.w), ("waiting", oracle.pend), ("v", oracle.v), ("P", oracle.P),
            ("totals", [oracle.m, oracle.n, oracle.settled]),
        ):  # fmt: skip
            assert_close(state[ours], np.asarray(theirs), ours)
        if oracle.words is not None:
            assert_close(vectors_of(learner), oracle.words.V)
            assert_close(state["centroids"].T, oracle.words.C)
            assert_close(state["b"].T, oracle.words.b)
            assert_close(state["R"], oracle.words.R)


def vectors_of(learner: Learner) -> FloatArray:
    """Return V [d, m], computed from the two slots and the basis in the learner's state."""
    state = {name: np.asarray(value) for name, value in learner.state().items()}
    m, (_, refreshes, is_on, old) = state["basis"].shape[0], state["words"].astype(int).tolist()
    first = m * (1 - refreshes % 2)
    V = np.zeros((learner.n_features, m))
    for i in np.flatnonzero((state["row"] > 0) & (state["stamp"] >= refreshes - 1)):
        row = int(state["row"][i]) - 1
        is_itself = row >= old and not is_on
        V[i] = (np.eye(m) if is_itself else state["basis"].T) @ state["vectors"][row, first : first + m]
    return V


def inverses_of(learner: Learner, matrix: str = "P", changes: str = "V", pending: str = "pending") -> FloatArray:
    """Return P − VᵀV for every class."""
    state = {name: np.asarray(value) for name, value in learner.state().items()}
    kept = [V[: int(count)] for V, count in zip(state[changes], state[pending], strict=True)]
    return np.array([P - V.T @ V for P, V in zip(state[matrix], kept, strict=True)])


def ridge(learner: Learner, played: list[tuple[Features, Decision, int]]) -> FloatArray:
    """Return w_k = A_k⁻¹ Σ r x, from one linear system per class. Here, x is the input to the regressions."""
    state, d = learner.state(), learner.n_features
    with_waves = "Y" in state
    naive = NaiveLateUcb(learner.n_classes, d, waves=waves(d) if with_waves else None)
    naive.sigma_sq = float(np.asarray(state["bandwidth"])[1]) if with_waves else 0.0
    lam = 0.03 if naive.size <= 201 else 0.1
    rows, bits = [], []
    for x, decision, reward in played:
        dense = np.zeros(d)
        dense[x.indices] = x.values
        rows.append(naive.features(dense, with_waves and bool(decision.logged[1]))[0])
        bits.append([reward if decision.action == k else 0.0 for k in range(learner.n_classes)])
    X, r, W = np.array(rows), np.array(bits), np.zeros((learner.n_classes, naive.size))
    for k in range(learner.n_classes):
        mine = X[[decision.action == k for _, decision, _ in played]]
        W[k] = np.linalg.solve(lam * np.eye(naive.size) + mine.T @ mine, X.T @ r[:, k])
    return W


def assert_ridge(learner: Learner, played: list[tuple[Features, Decision, int]], within: float) -> None:
    """Assert that W and, if present, Y equal the weights of a ridge regression on the bits."""
    state, expected = learner.state(), ridge(learner, played)
    for name in ("W", "Y") if "Y" in state else ("W",):
        assert np.abs(np.asarray(state[name]) - expected).max() <= within, name


each_expansion = pytest.mark.parametrize("expand", ["none", "rff"])


def sparse_events(size: int, d: int, seed: int) -> list[tuple[Features, int, float]]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(d, 5))
    made = []
    for _ in range(size):
        indices = np.sort(rng.choice(d, max(2, d // 2), replace=False)).astype(np.int32)
        x = Features(indices, rng.normal(size=indices.size))
        made.append((x, int((x.values @ centres[indices]).argmax()), float(rng.random())))
    return made


@each_expansion
def test_late_ucb_equals_ridge_regression_for_any_feedback_order(expand: str) -> None:
    learner = create("late-ucb", n_classes=5, n_features=12, drift="off", expand=expand)
    rng = np.random.default_rng(3)
    waiting: list[tuple[Features, Decision, int]] = []
    played = []
    for x, label, u in sparse_events(2_000, 12, seed=1):
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        played.append((x, decision, int(decision.action == label)))
        waiting.append(played[-1])
        if len(waiting) > 300:
            learner.update(*waiting.pop(int(rng.integers(len(waiting)))))
    for event in waiting:
        learner.update(*event)
    assert_ridge(learner, played, within=5e-9)


@each_expansion
def test_retraction_in_any_order_gives_the_model_of_the_actual_feedback(expand: str) -> None:
    size = 2_000
    made = sparse_events(size, 8, seed=2)
    late = create("late-ucb", n_classes=5, n_features=8, drift="off", expand=expand)
    assert late.retractable
    played = []
    for x, label, u in made:
        decision = late.predict(x, u)
        late.observe(x, decision)
        late.update(x, decision, 0)
        played.append((x, decision, int(decision.action == label)))
    for t in np.random.default_rng(4).permutation(size):
        x, decision, _ = played[t]
        assert late.retract(x, decision, 0, 1)
    for t in np.random.default_rng(5).permutation(size):
        x, decision, reward = played[t]
        late.retract(x, decision, 1, reward)
    assert_ridge(late, played, within=1e-8)


@each_expansion
def test_retraction_works_with_buffered_changes_of_p(expand: str) -> None:
    d, size = 200, 200
    late = create("late-ucb", n_classes=3, n_features=d, drift="off", expand=expand)
    played = []
    for x, label, u in sparse_events(size, d, seed=9):
        decision = late.predict(x, u)
        late.observe(x, decision)
        late.update(x, decision, 0)
        played.append((x, decision, int(decision.action == label)))
        if len(played) > 60:
            x, decision, reward = played[-61]
            late.retract(x, decision, 0, reward)
    assert np.asarray(late.state()["pending"]).any()
    for x, decision, reward in played[-60:]:
        late.retract(x, decision, 0, reward)
    assert sum(reward for _, _, reward in played) > 20
    assert_ridge(late, played, within=1e-8)


@pytest.mark.slow
def test_p_stays_close_to_a_newly_computed_inverse() -> None:
    """Process ten thousand events. `benchmarks/late_bits_speed.py --inverses` processes 10⁵."""
    learner = create("late-ucb", n_classes=5, n_features=12, drift="off", expand="none")
    A = np.array([0.03 * np.eye(13)] * 5)
    for x, label, u in sparse_events(10_000, 12, seed=7):
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        learner.update(x, decision, int(decision.action == label))
        row = np.zeros(13)
        row[x.indices] = x.values / np.linalg.norm(x.values)
        row[12] = 0.3
        A[decision.action] += np.outer(row, row)
    P = np.asarray(learner.state()["P"])
    assert np.abs(P - np.linalg.inv(A)).max() <= 1e-9
    np.testing.assert_array_equal(P, P.transpose(0, 2, 1))


@pytest.mark.parametrize("n_features", [3, 64, 140])
def test_rows_of_p_and_q_start_at_a_cache_line(n_features: int) -> None:
    learner = create("late-ucb", 3, n_features)
    assert isinstance(learner, KernelLearner)
    for name in ("P", "Q"):
        inverses = learner.arrays[name]
        assert [step % 64 for step in (inverses.ctypes.data, *inverses.strides[:2])] == [0, 0, 0]


@pytest.mark.parametrize("nnz", [8, 60, 140])
def test_buffered_changes_of_p_agree_with_the_transcription(nnz: int) -> None:
    d, size, classes = 140, 150, 3
    rng = np.random.default_rng(8)
    X = np.array([rng.normal(size=d) * (rng.permutation(d) < nnz) for _ in range(size)])
    rounds = rounds_of(X, (X[:, ::3] @ rng.normal(size=(47, classes))).argmax(axis=1), rng)
    learner = create("late-ucb", classes, d)
    oracle = NaiveLateUcb(classes, d, lam=0.1, waves=waves(d), drift="global")
    assert_agree(learner, oracle, rounds, np.full(size, 5))
    assert oracle.closest > 1e-12
    waiting = np.asarray(learner.state()["pending"])
    assert waiting.any()
    assert oracle.N.max() > 1.1 * BLOCK  # a block of changes was applied to P
    assert_same_models(learner, oracle)


def test_pending_decisions_spread_over_the_classes() -> None:
    learner = create("late-ucb", n_classes=4, n_features=3)
    x = np.array([1.0, 2.0, 0.5])
    actions = []
    for _ in range(8):
        decision = learner.predict(x, 0.5)
        learner.observe(x, decision)
        actions.append(decision.action)
    assert sorted(actions) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_observe_uses_the_score_at_decision_time() -> None:
    learner = create("late-ucb", n_classes=2, n_features=2, drift="off")
    x = np.array([3.0, 4.0])
    early = learner.predict(x, 0.5)
    decision = learner.predict(x, 0.5)
    learner.observe(x, decision)
    learner.update(x, decision, 1)
    before = np.asarray(learner.state()["W"])
    learner.observe(x, early)
    after = np.asarray(learner.state()["W"])
    moved = before[0] != 0.0
    assert moved.any()
    assert np.all(np.abs(after[0][moved]) < np.abs(before[0][moved]))


@pytest.mark.parametrize("name", LATE)
def test_defaults_equal_the_measured_configuration(name: str) -> None:
    assert check_parameters(name, {}) == {
        "late-ucb": {
            "lam": 0.0, "eta": 0.1, "shortlist": 4, "bias": 0.3, "expand": "rff", "m": 64, "project": 0,
            "drift": "global",
        },
        "igw-logistic": {"scale": 300.0, "step": 2.0, "others": 0.3, "bias": 0.1, "drift": "global"},
        "stack-igw": {"scale": 300.0, "step": 2.0, "others": 0.3, "bonus": 2.5, "bias": 0.1, "vectors": 64,
            "drift": "global",
        },
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    ("n_features", "parameters", "lam"),
    [
        (200, {"expand": "none"}, 0.03),
        (201, {"expand": "none"}, 0.1),
        (136, {}, 0.03),
        (137, {}, 0.1),
        (19, {"expand": "quadratic"}, 0.1),
        (9, {"project": 4}, 0.1),
        (9, {"lam": 2}, 2),
    ],
)
def test_default_ridge_grows_with_the_number_of_features(
    n_features: int, parameters: dict[str, Any], lam: float
) -> None:
    P = np.asarray(create("late-ucb", 2, n_features, **parameters).state()["P"])
    assert P[0, 0, 0] == pytest.approx(1.0 / lam)


@pytest.mark.parametrize(
    ("n_features", "parameters", "message"),
    [
        (31, {"expand": "quadratic"}, "527.*511.*expand=none"),
        (9, {"expand": "quadratic", "project": 4}, "expand=quadratic and project"),
        (47_236, {}, "use stack-igw for sparse data, or project=256 for dense data"),
    ],
)
def test_oversized_configurations_are_rejected_with_an_alternative(
    n_features: int, parameters: dict[str, Any], message: str
) -> None:
    create("late-ucb", 4, 30, expand="quadratic")
    with pytest.raises(ParameterError, match=message):
        create("late-ucb", 4, n_features, **parameters)


@pytest.mark.parametrize("name", ["igw-logistic", "stack-igw"])
def test_sparse_learners_reject_oversized_states(name: str) -> None:
    with pytest.raises(ParameterError):
        create(name, 1_000, 10_000_000)


def test_late_ucb_without_drift_is_retractable_and_the_default_for_corrections() -> None:
    assert registered()["late-ucb"].retractable
    settings = TaskSettings("late-ucb", 3, 4, on_expiry="negative", late="correct")
    assert settings.resolved().parameters["drift"] == "off"
    assert settings.make_learner().retractable
    with pytest.raises(ParameterError):
        TaskSettings("late-ucb", 3, 4, {"drift": "global"}, on_expiry="negative", late="correct").make_learner()
    for name in ("igw-logistic", "stack-igw"):
        with pytest.raises(ParameterError):
            TaskSettings(name, 3, 4, on_expiry="negative", late="correct").make_learner()


@pytest.mark.parametrize("seed", ["PROJECTION_SEED", "WAVES_SEED"])
def test_state_with_other_random_matrices_is_rejected(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    state = create("late-ucb", 3, 9, project=4).state()
    create("late-ucb", 3, 9, project=4).load(state)
    monkeypatch.setattr(f"stream.learners.late_bits.late_ucb.{seed}", 7)
    with pytest.raises(ValueError, match="matrices"):
        create("late-ucb", 3, 9, project=4).load(state)


def test_random_matrices_are_reproducible() -> None:
    np.testing.assert_allclose(projection(3, 4, PROJECTION_SEED)[0], GOLDEN_PROJECTION, rtol=1e-15)
    omega, phases = random_waves(3, 4, WAVES_SEED)
    np.testing.assert_allclose(omega[0], GOLDEN_OMEGA, rtol=1e-15)
    np.testing.assert_allclose(phases, GOLDEN_PHASES, rtol=1e-15)


def test_cosines_agree_with_numpy() -> None:
    angles = np.concatenate((np.linspace(-40.0, 40.0, 10_001), [1e6, -1e6, 1e300]))
    ours = angles.copy()
    cosines(ours, 0.5)
    np.testing.assert_allclose(ours[:-3], 0.5 * np.cos(angles[:-3]), atol=1e-14)
    np.testing.assert_allclose(ours[-3:-1], 0.5 * np.cos(angles[-3:-1]), atol=1e-9)
    assert abs(ours[-1]) <= 0.5


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], 18.0),
        ([[1.0], [1.0], [1.0]], 1.0),
        ([[0.0], [1e200], [-1e200]], 1.0),
        ([[0.0], [1.0], [2.0], [np.inf]], np.inf),
    ],
)
def test_bandwidth_is_the_median_distance_or_1(sample: list[list[float]], expected: float) -> None:
    found = median_of_distances(np.array(sample))
    assert found == (expected if np.isfinite(expected) else 1.0)


GOLDEN_PROJECTION = [0.78893471724497, 0.5893363460701462, 0.15525493273757798, -0.19295008626568377]
GOLDEN_OMEGA = [0.3512830613637772, 1.4521482299909905, -1.2704774683188607, 0.07702691303814106]
GOLDEN_PHASES = [2.412061893283977, 3.8039165786690643, 4.6936495996146, 3.7686259352113862]
