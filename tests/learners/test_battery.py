"""Properties that every registered learner must have."""

import copy
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.learners import KernelLearner, Learner, ParameterError, create, registered
from stream.learners.wrappers.mixture import Mixture
from stream.learners.wrappers.running_scale import RunningScale
from stream.learners.wrappers.wrapper import Wrapper
from stream.offline import NEVER, Examples, run
from stream.wire.records import Decision, Features, FloatArray


class Case(NamedTuple):
    """A learner's configuration, and the size of its tests."""

    name: str
    parameters: Mapping[str, Any] = {}
    n_classes: int = 4
    n_features: int = 9
    long_run_events: int = 100_000
    is_scaled: bool = False
    floor: float = 0.0

    def create(self) -> Learner:
        learner = create(self.name, n_classes=self.n_classes, n_features=self.n_features, **self.parameters)
        assert isinstance(learner, KernelLearner)
        if self.is_scaled:
            learner = RunningScale(learner)
        return Mixture(learner, self.floor) if self.floor else learner


# Learners that need other parameters or another size, or that are too slow for the long run. All other learners are
# tested with their defaults.
SPECIAL = {
    "newtron": Case("newtron", n_classes=3, n_features=4),
    # One feature of the context, and an id and one feature for each place.
    "joint-ucb": Case("joint-ucb", {"context": 1, "ids": 50}, long_run_events=20_000),
    "igw-log": Case("igw-log", {"context": 1, "bits": 10}),
}
VARIANTS = {
    "soba-adaptive full": Case("soba-adaptive", {"covariance": "full"}),
    **{f"{name} without drift": Case(name, {"drift": "off"}) for name in ("late-ucb", "igw-logistic", "stack-igw")},
    **{f"{name}, drift=class": Case(name, {"drift": "class"}) for name in ("late-ucb", "igw-logistic", "stack-igw")},
    "late-ucb quadratic": Case("late-ucb", {"expand": "quadratic", "shortlist": 2}),
    "late-ucb plain": Case("late-ucb", {"expand": "none"}),
    "late-ucb plain, projected": Case("late-ucb", {"expand": "none", "project": 5, "drift": "off"}),
    "late-ucb projected": Case("late-ucb", {"project": 5, "drift": "off"}),
    "late-ucb with many features": Case("late-ucb", n_features=140, long_run_events=5_000),
    "soba without the condition": Case("soba", {"condition": "none"}),
    **{
        f"{name}, margin=decision": Case(name, {"margin": "decision"})
        for name in ("perceptron", "second-order-perceptron", "arow", "banditron", "soba", "soba-diag", "soba-adaptive")
    },
    "banditron without exploration": Case("banditron", {"gamma": 0.0}),
    "soba-diag, exploration only": Case("soba-diag", {"gamma": 1.0}),
    **{f"confidit variant {variant}": Case("confidit", {"variant": variant}) for variant in (1, 3, 4, 5)},
    "confidit modified, alpha 0.5": Case("confidit", {"confidence": "modified", "alpha": 0.5}),
    "confidit projected, diagonal": Case("confidit", {"projection": True, "covariance": "diag", "alpha": 0.2}),
    "confidit-kernel linear": Case("confidit-kernel", {"kernel": "linear", "alpha": 0.5, "support_max": 200}),
    "ova-kernel-perceptron polynomial": Case("ova-kernel-perceptron", {"kernel": "polynomial", "support_max": 50}),
    "one-sided-banditron, small radius": Case("one-sided-banditron", {"eta": 2.0, "radius": 0.5}),
    **{f"{name}, running scale": Case(name, is_scaled=True) for name in ("banditron", "perceptron")},
    "banditron, floor": Case("banditron", floor=0.2),
    "igw-logistic, running scale, floor": Case("igw-logistic", is_scaled=True, floor=0.2),
    "late-ucb projected, running scale": Case("late-ucb", {"project": 5, "drift": "off"}, is_scaled=True),
    "joint-ucb reduced": Case(
        "joint-ucb", {"context": 5, "p": 2, "m": 4, "ids": 9}, n_features=17, long_run_events=5_000
    ),
    "selectron logistic": Case("selectron", {"loss": "logistic", "support_max": 50}),
}
CASES = {name: SPECIAL.get(name, Case(name)) for name in registered()} | VARIANTS

each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def examples(case: Case, size: int, seed: int = 1, absent: int | None = None) -> Examples:
    """Return sparse Gaussian contexts with noisy linear labels.

    Some contexts are empty. Class `absent` never occurs.
    """
    rng = np.random.default_rng(seed)
    d, K = case.n_features, case.n_classes
    X = rng.normal(size=(size, d)) * (rng.random((size, d)) < 0.6)
    scores = X @ rng.normal(size=(d, K)) + 0.1 * rng.normal(size=(size, K))
    if absent is not None:
        scores[:, absent] = -np.inf
    rows, columns = np.nonzero(X)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=size)))).astype(np.int64)
    return Examples(offsets, columns.astype(np.int32), X[rows, columns], scores.argmax(axis=1).astype(np.int64))


def decide(learner: Learner, x: Features | FloatArray, u: float) -> Decision:
    """Make a decision: predict, then observe."""
    decision = learner.predict(x, u)
    learner.observe(x, decision)
    return decision


def learn(learner: Learner, data: Examples, t: int, decision: Decision, v: float = 0.5) -> bool:
    label = int(data.labels[t])
    return learner.update(data.features(t), decision, int(decision.action == label), v=v, label=label)


def trace(learner: Learner, data: Examples, start: int, stop: int) -> list[tuple[int, int, float, list[float]]]:
    """Make decisions for events `start` to `stop`, with immediate feedback. Return the decisions."""
    u = np.random.default_rng(2).random((data.labels.size, 2))
    made = []
    for t in range(start, stop):
        decision = decide(learner, data.features(t), float(u[t, 0]))
        made.append((decision.action, decision.greedy, decision.propensity, decision.scores.tolist()))
        learn(learner, data, t, decision, float(u[t, 1]))
    return made


def assert_same_state(one: Learner, other: Learner) -> None:
    first, second = one.state(), other.state()
    assert first.keys() == second.keys()
    for key in first:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)


def assert_finite(learner: Learner) -> None:
    for key, value in learner.state().items():
        array = np.asarray(value)
        if array.dtype.kind == "f":
            assert np.all(np.isfinite(array)), key


def assert_valid(learner: Learner, decision: Decision) -> None:
    assert 0 <= decision.action < learner.n_classes
    assert 0 <= decision.greedy < learner.n_classes
    assert 0.0 < decision.propensity <= 1.0 + 1e-12
    assert decision.scores.shape == (learner.n_classes,)
    assert not np.any(np.isnan(decision.scores))


def in_dense_form(x: Features, size: int) -> FloatArray:
    filled = np.zeros(size)
    filled[x.indices] = x.values
    return filled


COPIES: dict[str, Callable[[Learner], Learner]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)),  # noqa: S301 (pickled by this test)
}


@each
def test_copies_continue_identically_and_independently(case: Case) -> None:
    """A repeated run, a loaded state and each kind of copy produce identical decisions and states."""
    data = examples(case, 160)
    np.random.seed(1)  # noqa: NPY002 (tests that the global generator is not used)
    hidden = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    learner = case.create()
    trace(learner, data, 0, 100)
    kept = learner.state()
    before = {key: np.array(value) for key, value in kept.items()}

    again, loaded = case.create(), case.create()
    trace(again, data, 0, 100)
    trace(loaded, data, 50, 80)  # a different history, which `load` must discard
    loaded.load(kept)
    others = {"again": again, "loaded": loaded, **{name: copied(learner) for name, copied in COPIES.items()}}

    made = trace(learner, data, 100, 160)
    assert np.random.get_state()[1].tolist() == hidden  # type: ignore[index] # noqa: NPY002
    for key, value in kept.items():  # `state` returns a copy
        np.testing.assert_array_equal(value, before[key], err_msg=key)
    for name, other in others.items():
        assert type(other) is type(learner), name
        for key, value in other.state().items():
            np.testing.assert_array_equal(value, before[key], err_msg=f"{name}: {key}")
        np.random.seed(2)  # noqa: NPY002
        assert trace(other, data, 100, 160) == made, name
        assert_same_state(learner, other)


@each
def test_predict_is_deterministic_and_has_no_side_effects(case: Case) -> None:
    data = examples(case, 120)
    learner = case.create()
    trace(learner, data, 0, 60)
    before = learner.state()
    for t in range(60, 120, 8):
        x = data.features(t)
        one, other = learner.predict(x, 0.7), learner.predict(x, 0.7)
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.logged, other.logged)
        made = {decision.action: decision for u in np.linspace(0.0, 0.999, 40) for decision in [learner.predict(x, u)]}
        for one in made.values():
            for other in made.values():
                played = learner.as_played(x, one, other.action, other.propensity)
                assert played[:3] == (other.action, one.greedy, other.propensity)
                np.testing.assert_array_equal(played.scores, one.scores)
                np.testing.assert_array_equal(played.logged, other.logged)
    after = learner.state()
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key], err_msg=key)


@each
def test_observe_changes_only_the_declared_state(case: Case) -> None:
    data = examples(case, 120)
    learner, never = case.create(), case.create()  # `observe` is never called on `never`
    u = np.random.default_rng(3).random(120)
    changed: set[str] = set()
    for t in range(120):
        x = data.features(t)
        decision = learner.predict(x, float(u[t]))
        before = learner.state()
        learner.observe(x, decision)
        changed |= {key for key, value in learner.state().items() if not np.array_equal(value, before[key])}
        if not learner.observed:  # calls to `observe` must have no effect
            assert never.predict(x, float(u[t]))[:3] == decision[:3]
            assert learn(never, data, t, decision) == learn(learner, data, t, decision)
        elif t % 10 == 0:
            learn(learner, data, t, decision)
    assert changed <= learner.observed.keys()
    assert bool(changed) == bool(learner.observed)
    if not learner.observed:
        assert_same_state(learner, never)


@each
def test_dense_and_sparse_x_give_identical_results(case: Case) -> None:
    data = examples(case, 120)
    sparse, dense = case.create(), case.create()
    u = np.random.default_rng(3).random(120)
    for t in range(120):
        x = data.features(t)
        filled = in_dense_form(x, case.n_features)
        one, other = decide(sparse, x, float(u[t])), decide(dense, filled, float(u[t]))
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.scores, other.scores)
        learn(sparse, data, t, one)
        label = int(data.labels[t])
        dense.update(filled, other, int(other.action == label), v=0.5, label=label)
    assert_same_state(sparse, dense)


EXTREME_X = {
    "empty": Features(np.zeros(0, dtype=np.int32), np.zeros(0)),
    **{
        f"{value:g}": Features(np.array([0, 2], dtype=np.int32), np.array([1.0, value]))
        for value in (1e60, 1e150, -1e150, 1e308)
    },
}


@each
def test_model_stays_valid_after_extreme_input(case: Case) -> None:
    """Test empty contexts, very large values, a class that never occurs, and missing feedback."""
    absent = examples(case, 300, absent=1)
    learner = case.create()
    trace(learner, absent, 0, 300)
    assert_finite(learner)

    data = examples(case, 120)
    for x in EXTREME_X.values():
        learner = case.create()
        trace(learner, data, 0, 40)
        for label in range(case.n_classes):
            decision = decide(learner, x, 0.3)
            assert_valid(learner, decision)
            learner.update(x, decision, int(decision.action == label), v=0.5, label=label)
            assert_finite(learner)
        for action, _, propensity, scores in trace(learner, data, 40, 120):
            assert_valid(learner, Decision(action, 0, propensity, np.array(scores)))
        assert_finite(learner)

    untold = case.create()
    u = np.random.default_rng(3).random(300)
    for t in range(300):
        assert_valid(untold, decide(untold, absent.features(t), float(u[t])))
    assert_finite(untold)


@each
@settings(max_examples=6, deadline=None, derandomize=True)
@given(order=st.permutations(range(24)), decided_first=st.integers(1, 24))
def test_feedback_in_any_order_is_reproducible_and_valid(case: Case, order: list[int], decided_first: int) -> None:
    data = examples(case, 24)
    u = np.random.default_rng(4).random(24)

    def replayed() -> Learner:
        learner = case.create()
        decisions = {t: decide(learner, data.features(t), float(u[t])) for t in range(decided_first)}
        for s in order:
            if s not in decisions:
                decisions[s] = decide(learner, data.features(s), float(u[s]))
            assert_valid(learner, decisions[s])
            learn(learner, data, s, decisions[s])
        return learner

    one = replayed()
    assert_finite(one)
    assert_same_state(one, replayed())


@pytest.mark.slow
@each
def test_model_is_finite_after_many_events(case: Case) -> None:
    size = case.long_run_events
    data = examples(case, size)
    rng = np.random.default_rng(5)
    learner = case.create()
    result = run(learner, data, rng.random(size), rng.random(size), delays=rng.geometric(1 / 6, size) - 1)
    assert np.all((result.propensities > 0.0) & (result.propensities <= 1.0 + 1e-12))
    assert_finite(learner)


@each
def test_decisions_follow_their_distribution(case: Case) -> None:
    """Assert that an action's propensity, its probability, and its share of the draws u are equal.

    The draws u are the midpoints of a grid.
    """
    points, size = 2_000, 150
    data = examples(case, size + 2)
    learner = case.create()
    rng = np.random.default_rng(3)
    for t in range(size):
        decision = decide(learner, data.features(t), float(rng.random()))
        if rng.random() < 0.8:
            learn(learner, data, t, decision, float(rng.random()))
    before = learner.state()
    for t in range(size, size + 2):
        x = data.features(t)
        p = learner.distribution(x)
        assert p.sum() == pytest.approx(1.0, abs=1e-9)
        played = np.zeros(case.n_classes)
        for i in range(points):
            decision = learner.predict(x, (i + 0.5) / points)
            assert decision.propensity == p[decision.action]
            played[decision.action] += 1.0 / points
        assert np.abs(p - played).max() <= 1.001 / points
    after = learner.state()
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key], err_msg=key)


@each
@pytest.mark.parametrize("late", ["immediate", "geometric, some lost"])
def test_compiled_loop_equals_individual_calls(case: Case, late: str) -> None:
    size = 300
    data = examples(case, size)
    rng = np.random.default_rng(7)
    u, v = rng.random(size), rng.random(size)
    delays = {
        "immediate": np.zeros(size, dtype=np.int64),
        "geometric, some lost": np.where(rng.random(size) < 0.1, NEVER, rng.geometric(1 / 6, size) - 1),
    }[late]
    looped, called = case.create(), case.create()
    result = run(looped, data, u, v, delays)
    decisions: dict[int, Decision] = {}
    updates = 0
    waiting: list[tuple[int, int]] = []  # pairs of due round and event
    for t in range(size):
        decisions[t] = decide(called, data.features(t), float(u[t]))
        if delays[t] != NEVER:
            waiting.append((t + int(delays[t]), t))
        for _, s in sorted(w for w in waiting if w[0] <= t):
            updates += learn(called, data, s, decisions[s], float(v[s]))
        waiting = [w for w in waiting if w[0] > t]
    for _, s in sorted(waiting):
        updates += learn(called, data, s, decisions[s], float(v[s]))
    assert result.actions.tolist() == [decisions[t].action for t in range(size)]
    assert result.greedy.tolist() == [decisions[t].greedy for t in range(size)]
    assert result.propensities.tolist() == [decisions[t].propensity for t in range(size)]
    assert result.updates == updates
    assert_same_state(looped, called)


OF_EITHER_MARGIN = [name for name, cls in registered().items() if any(p.name == "margin" for p in cls.parameters)]


def test_list_of_learners_with_a_margin_parameter_is_complete() -> None:
    bandits = ["banditron", "soba", "soba-adaptive", "soba-diag"]
    assert sorted(OF_EITHER_MARGIN) == ["arow", *bandits[:1], "perceptron", "second-order-perceptron", *bandits[1:]]


@pytest.mark.parametrize("late", [0, 7])
@pytest.mark.parametrize("name", OF_EITHER_MARGIN)
def test_margins_are_equivalent_only_without_delay(name: str, late: int) -> None:
    case = CASES[name]
    data = examples(case, 400)
    u = np.random.default_rng(7).random(400)
    now, then = (
        create(name, n_classes=case.n_classes, n_features=case.n_features, margin=margin)
        for margin in ("feedback", "decision")
    )
    one, other = (run(learner, data, u, delays=np.full(400, late)) for learner in (now, then))
    kept = then.state()
    assert all(np.array_equal(value, kept[key]) for key, value in now.state().items()) == (late == 0)
    assert np.array_equal(one.actions, other.actions) == (late == 0)


@each
def test_invalid_arguments_and_states_are_rejected(case: Case) -> None:
    learner = case.create()
    x = examples(case, 10).features(3)
    other = case._replace(n_features=case.n_features - 1)
    if registered()[case.name].for_actions:  # one more feature per action; igw-log's state does not depend on it
        bits = {"bits": 9} if case.name == "igw-log" else {}
        other = case._replace(n_features=case.n_features + case.n_classes, parameters={**case.parameters, **bits})
    with pytest.raises(ValueError, match=case.name):
        learner.load(other.create().state())
    decision = learner.predict(x, 0.5)
    for u in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="u in"):
            learner.predict(x, u)
    if learner.randomised_update:
        with pytest.raises(ValueError, match="v in"):
            learner.update(x, decision, 1, v=1.0)
    with pytest.raises(ValueError, match="reward"):
        learner.update(x, decision, 2, label=0)
    bad: list[Features | FloatArray] = [
        np.zeros(case.n_features + 1),
        Features(np.array([0, case.n_features], dtype=np.int32), np.ones(2)),
        Features(np.array([-1, 2], dtype=np.int32), np.ones(2)),
        Features(np.array([2, 2], dtype=np.int32), np.ones(2)),
        Features(np.array([0, 2], dtype=np.int32), np.ones(1)),
    ]
    for one in bad:
        with pytest.raises(ValueError, match="x: "):
            learner.predict(one, 0.5)
    for label in (None, -1, case.n_classes) if learner.needs_label else ():
        with pytest.raises(ValueError, match="label"):
            learner.update(x, decision, 0, label=label)
    if not learner.needs_label:
        learner.update(x, decision, 0)


@each
def test_error_for_an_unknown_parameter_lists_the_accepted_parameters(case: Case) -> None:
    with pytest.raises(ParameterError) as raised:
        create(case.name, n_classes=4, n_features=9, **{**case.parameters, "no_such": 1})
    assert all(name in str(raised.value) for name in ("no_such", *(p.name for p in registered()[case.name].parameters)))


@each
def test_declared_cost_weights_and_retractability_are_correct(case: Case) -> None:
    """Test the declared cost, the weights, and whether the learner supports `retract`."""
    learner = case.create()
    parameters = {p.name: case.parameters.get(p.name, p.default) for p in learner.parameters}
    parts = [learner]
    while isinstance(parts[-1], Wrapper):
        parts.append(parts[-1].inner)
    costs = [part.cost(case.n_classes, case.n_features, 5, parameters) for part in parts]
    held = sum(np.asarray(value).nbytes for value in learner.state().values())
    assert held <= sum(cost.state_bytes - cost.unused_bytes for cost in costs) + 64  # a new state
    assert all(cost.flops_per_event > 0 and cost.bytes_per_event > 0 for cost in costs)

    with suppress(NotImplementedError):
        weights = learner.weights()
        assert weights.shape == (case.n_classes, case.n_features)
        assert weights.dtype == np.float64
        weights[:] = 1.0  # a copy
        assert not np.array_equal(learner.weights(), weights)

    x = examples(case, 10).features(3)
    decision = learner.predict(x, 0.5)
    learner.update(x, decision, 0, v=0.5, label=0)
    if learner.retractable:
        assert isinstance(learner.retract(x, decision, 0, 1), bool)
        assert_finite(learner)
    else:
        with pytest.raises(NotImplementedError):
            learner.retract(x, decision, 0, 1)


@pytest.mark.parametrize(
    ("name", "parameters", "alternative"),
    [
        ("soba", {}, "soba-diag"),
        ("soba-adaptive", {"covariance": "full"}, "covariance=diag"),
        ("newtron", {}, "pnewtron"),
    ],
)
def test_oversized_state_is_rejected_before_allocation(name: str, parameters: dict[str, Any], alternative: str) -> None:
    with pytest.raises(ParameterError, match=alternative) as raised:
        create(name, n_classes=4, n_features=47_236, **parameters)
    assert "GB" in str(raised.value)
