"""Estimates of policies over actions with features, from a log of uniformly drawn offers with known rewards."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest

from producers.datasets.offers import BLOCKS, CONTEXT_FEATURES, OFFERED, catalogue
from stream.estimating.estimate import estimate
from stream.estimating.evaluation import Options, PolicyEvaluation
from stream.estimating.named_policies import Decisions, policy_of_model
from stream.estimating.policies import EstimateError, Policy, Training, parse_policy
from stream.estimating.reward_model import RIDGES, ActionRewardModel, sizes_of_sides
from stream.estimating.rows import Chunk, Eligible, LogBatch, chunks
from stream.learners import create
from stream.randomness.draws import Draws, Purpose
from stream.recovery.model_files import Model, model_of
from stream.task.settings import TaskSettings
from stream.wire.actions import ActionBlocks
from stream.wire.records import FloatArray
from tests.estimating.logs import MemoryLog

ROWS = 3_000
DATA = catalogue(8, ROWS)
PLACES = tuple(map(str, range(OFFERED)))
TRAINING = Training(reward="any")


@lru_cache(maxsize=1)
def rewards() -> FloatArray:
    return np.stack([DATA.offers.visit(row).rewards for row in range(ROWS)])


@lru_cache(maxsize=2)
def offered_log(n: int = ROWS) -> MemoryLog:
    """A log of n offers of 2 to 15 actions, of which one was played uniformly at random."""
    rng = np.random.default_rng(1)
    counts = rng.integers(2, OFFERED + 1, n)
    actions = (rng.random(n) * counts).astype(np.int64)
    block, nothing = DATA.block(0, n), np.full(n, -1, np.int64)
    rows = LogBatch(
        [DATA.event_id(row) for row in range(n)], block.offsets, block.indices, block.values, nothing, nothing,
        actions, 1.0 / counts, rewards()[np.arange(n), actions], nothing,
        Eligible.of_lists([range(count) for count in counts]), np.zeros(n, np.int64),
    )  # fmt: skip
    return MemoryLog(rows, BLOCKS.n_features, PLACES, blocks=BLOCKS)


def counts() -> FloatArray:
    eligible = offered_log().rows.eligible
    assert eligible is not None
    return np.diff(eligible.offsets)


def parsed(spec: str) -> Policy:
    return parse_policy(spec, PLACES, BLOCKS.n_features, TRAINING, BLOCKS)


def evaluated(*policies: Policy, rows: int = ROWS) -> tuple[PolicyEvaluation, ...]:
    return estimate(offered_log(rows), policies, Options(resamples=100)).policies


def values(found: PolicyEvaluation) -> dict[str, float]:
    return {one.estimator: one.value for one in found.estimates if one.value is not None}


def test_estimates_agree_with_the_known_rewards() -> None:
    first = rewards()[:, 0].mean()
    mean = (rewards() * (np.arange(OFFERED) < counts()[:, None])).sum(axis=1) / counts()
    for spec, truth, errors in (
        ("first", first, {"ips": 0.05, "snips": 0.03, "dr": 0.03}),
        ("baseline", first, {"ips": 0.05, "snips": 0.03, "dr": 0.03}),
        ("uniform", mean.mean(), {"ips": 0.02, "snips": 0.02, "dr": 0.02}),
    ):
        (found,) = evaluated(parsed(spec))
        for estimator, error in errors.items():
            assert values(found)[estimator] == pytest.approx(truth, abs=error), (spec, estimator)


def test_reward_model_makes_doubly_robust_estimates_more_precise() -> None:
    (found,) = evaluated(parsed("first"))
    of = {one.estimator: one for one in found.estimates}
    ips, dr = of["ips"].bootstrap, of["dr"].bootstrap
    assert ips is not None
    assert dr is not None
    assert dr.high - dr.low < 0.9 * (ips.high - ips.low)


def test_estimates_of_the_logged_policy_are_the_mean_reward() -> None:
    (found,) = evaluated(parsed("logged"))
    for estimator in ("ips", "snips", "dr"):
        assert values(found)[estimator] == pytest.approx(offered_log().rows.rewards.mean(), abs=1e-12)


@pytest.mark.parametrize("name", ["igw-log", "joint-ucb"])
def test_learner_is_better_than_uniform_play(name: str) -> None:
    uniform, learner = evaluated(parsed("uniform"), parsed(name), rows=1_000)
    assert learner.changes
    assert values(learner)["dr"] > values(uniform)["dr"] + 0.1


def all_chunks() -> Iterator[Chunk]:
    return chunks(offered_log().batches(), Draws(0, Purpose.ESTIMATE))


def test_constant_action_is_played_where_it_is_eligible() -> None:
    chunk = next(all_chunks())
    name = DATA.actions(0)[0]
    p = parsed(f"constant:{name}").probabilities(chunk)
    played = 0
    for j, row in enumerate(p):
        m = int(counts()[j])
        ids = DATA.actions(j)[:m]
        expected = [1.0 / m] * m if name not in ids else [float(one == name) for one in ids]
        assert row.tolist() == pytest.approx([*expected, *[0.0] * (OFFERED - m)])
        played += name in ids
    assert played > 20


def test_first_eligible_action_is_played() -> None:
    rows = offered_log().rows._replace(eligible=Eligible.of_lists([(2, 4), (), *[(1,)] * (ROWS - 2)]))
    chunk = next(chunks([rows], Draws(0, Purpose.ESTIMATE)))
    assert parsed("first").probabilities(chunk).argmax(axis=1).tolist()[:3] == [2, 0, 1]


@pytest.mark.parametrize("spec", ["late-ucb", "constant:", "nothing"])
def test_policy_for_classes_is_rejected(spec: str) -> None:
    with pytest.raises(EstimateError):
        parsed(spec)


@pytest.mark.parametrize("spec", ["first", "joint-ucb"])
def test_policy_for_actions_is_rejected_for_classes(spec: str) -> None:
    with pytest.raises(EstimateError):
        parse_policy(spec, PLACES, BLOCKS.n_features, TRAINING)


def saved(places: int, context: int = CONTEXT_FEATURES) -> Model:
    blocks = ActionBlocks(places, context, BLOCKS.features)
    task = TaskSettings(
        "igw-log", places, blocks.n_features, {"bits": 12}, actions={"context": context, "features": None}
    )
    learner = create("igw-log", places, blocks.n_features, context=context, bits=12)
    fits = places >= OFFERED and context == CONTEXT_FEATURES
    for chunk in all_chunks() if fits else ():
        for j in range(100):
            x, among = chunk.features(j), chunk.among(j)
            decision = learner.as_played(x, learner.predict(x, 0.0, among), int(chunk.actions[j]), 0.5)
            learner.observe(x, decision)
            learner.update(x, decision, int(chunk.rewards[j]), 0.0)
    return model_of(task.resolved(), learner, None, {}, {})


def test_model_with_more_places_plays_the_same_actions() -> None:
    decisions = Decisions("log", PLACES, BLOCKS.n_features, None, BLOCKS)
    own, larger = (policy_of_model("model", saved(places), decisions) for places in (OFFERED, OFFERED + 6))
    chunk = next(all_chunks())
    np.testing.assert_allclose(own.probabilities(chunk), larger.probabilities(chunk), atol=1e-12)


@pytest.mark.parametrize(("places", "context"), [(OFFERED - 1, CONTEXT_FEATURES), (OFFERED, CONTEXT_FEATURES + 21)])
def test_model_for_other_contexts_is_rejected(places: int, context: int) -> None:
    decisions = Decisions("log", PLACES, BLOCKS.n_features, None, BLOCKS)
    with pytest.raises(EstimateError):
        policy_of_model("model", saved(places, context), decisions)


def test_model_for_actions_is_rejected_for_classes() -> None:
    with pytest.raises(EstimateError):
        policy_of_model("model", saved(OFFERED), Decisions("log", PLACES, BLOCKS.n_features, None))


def test_reward_model_is_a_ridge_regression_on_products() -> None:
    chunk = next(all_chunks())
    model = ActionRewardModel(BLOCKS, folds=2)
    z, fold = model.features(chunk), np.arange(len(chunk.ids)) % 2
    model.add(z, chunk.actions, chunk.rewards, fold)
    model.fit()
    q = model.predict(z, fold)
    products = np.empty((len(chunk.ids), OFFERED, (CONTEXT_FEATURES + 1) * (BLOCKS.features + 1)))
    for j in range(len(chunk.ids)):
        x, actions = BLOCKS.split(chunk.features(j))
        for place, action in enumerate(actions):
            products[j, place] = np.outer([*x.values, 1.0], [*action.values, 1.0]).ravel()
    own = products[np.arange(len(chunk.ids)), chunk.actions]
    mean, S = chunk.rewards.mean(), np.diag((own**2).mean(axis=0))
    found = []
    for ridge in RIDGES:
        theta = np.linalg.solve(own.T @ own + ridge * S, own.T @ (chunk.rewards - mean))
        found.append(np.clip(mean + products @ theta, 0.0, 1.0))
    assert min(float(np.abs(q - one).max()) for one in found) < 1e-8


@pytest.mark.parametrize(("context", "features"), [(10, 20), (1, 1), (3, 2**20), (2**20, 7), (2**20, 2**20), (40, 30)])
def test_size_of_the_reward_model_is_limited(context: int, features: int) -> None:
    of_context, of_action = sizes_of_sides(context, features)
    assert 1 <= of_context <= context
    assert 1 <= of_action <= features
    assert (of_context + 1) * (of_action + 1) <= 256


def test_reward_model_of_many_features_hashes_them() -> None:
    blocks = ActionBlocks(3, 50, 1_000)
    model = ActionRewardModel(blocks, folds=2)
    assert model.size <= 255
    one = np.array([0, 49, 50, 51, 1_050, 1_051, 1_052])
    chunk = next(all_chunks())._replace(
        ids=("a",), offsets=np.array([0, one.size]), indices=one.astype(np.int32), values=np.full(one.size, 1e200),
    )  # fmt: skip
    z = model.features(chunk)
    assert z.shape[0] == 1
    assert np.isfinite(z).all()
    assert np.isfinite(model.predict(z, np.zeros(1, np.int64))).all()
