"""The ridge regressions in the reward model."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.estimating.reward_model import REFIT_FIRST, RIDGES, ClassRewardModel, RunningRewardModel, size_of
from stream.estimating.rows import Chunk, chunks
from stream.randomness.draws import Draws, Purpose
from stream.wire.records import FloatArray
from tests.estimating.logs import N_CLASSES, N_FEATURES, MemoryLog, a_log, a_world, rows_of


def one_chunk(n: int) -> Chunk:
    return next(iter(chunks(MemoryLog(a_log(n), batch_rows=n).batches(), Draws(0, Purpose.ESTIMATE), n)))


def best_ridge(z: FloatArray, chunk: Chunk, fold: NDArray[np.int64], f: int) -> float:
    """The ridge parameter with the smallest squared error on fold f + 1, after training without folds f and f + 1."""
    held = (f + 1) % 5
    known = (fold != f) & (fold != held)
    mean = chunk.rewards[known].mean()
    losses = {}
    for ridge in RIDGES:
        missed = 0.0
        for a in range(N_CLASSES):
            rows, others = known & (chunk.actions == a), (fold == held) & (chunk.actions == a)
            Z = z[rows]
            S = np.diag((z[known] ** 2).mean(axis=0))
            theta = np.linalg.solve(Z.T @ Z + ridge * S, Z.T @ (chunk.rewards[rows] - mean))
            missed += ((chunk.rewards[others] - mean - z[others] @ theta) ** 2).sum()
        losses[ridge] = missed
    return min(losses, key=lambda ridge: losses[ridge])


def test_predictions_for_a_fold_equal_ridge_regression_on_the_other_folds() -> None:
    chunk = one_chunk(600)
    model = ClassRewardModel(N_FEATURES, N_CLASSES, 5)
    z, fold = model.features(chunk), chunk.folds(5)
    model.add(z, chunk.actions, chunk.rewards, fold)
    model.fit()
    q = model.predict(z, fold)
    for f in range(5):
        others = fold != f
        mean = chunk.rewards[others].mean()
        for a in range(N_CLASSES):
            rows = others & (chunk.actions == a)
            Z, r = z[rows], chunk.rewards[rows] - mean
            S = np.diag((z[others] ** 2).mean(axis=0))
            theta = np.linalg.solve(Z.T @ Z + best_ridge(z, chunk, fold, f) * S, Z.T @ r)
            expected = np.clip(mean + z[fold == f] @ theta, 0.0, 1.0)
            np.testing.assert_allclose(q[fold == f, a], expected, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-9, 1e12, 1e99])
def test_predictions_do_not_depend_on_feature_units(unit: float) -> None:
    chunk = one_chunk(500)
    units = np.array([unit, 1.0, 1.0, 1.0, 1.0])
    predictions = []
    for values in (chunk.values, (chunk.values.reshape(-1, N_FEATURES) * units).reshape(-1)):
        one = chunk._replace(values=values)
        model = ClassRewardModel(N_FEATURES, N_CLASSES, 5)
        z, fold = model.features(one), one.folds(5)
        model.add(z, one.actions, one.rewards, fold)
        model.fit()
        predictions.append(model.predict(z, fold))
    np.testing.assert_allclose(predictions[1], predictions[0], atol=1e-7)


def test_predictions_are_finite_with_nearly_constant_and_huge_features() -> None:
    chunk = one_chunk(300)
    values = chunk.values.reshape(-1, N_FEATURES).copy()
    values[:, 0] = 1.7e12 + np.arange(300)
    values[7, 1] = 1e300
    model = ClassRewardModel(N_FEATURES, N_CLASSES, 5)
    one = chunk._replace(values=values.reshape(-1))
    model.add(model.features(one), one.actions, one.rewards, one.folds(5))
    model.fit()
    q = model.predict(model.features(one), one.folds(5))
    assert np.isfinite(q).all()
    assert np.delete(q, 7, axis=0).mean() == pytest.approx(one.rewards.mean(), abs=0.1)


def test_reward_model_predicts_a_different_reward_for_each_class() -> None:
    chunk = one_chunk(4_000)
    model = ClassRewardModel(N_FEATURES, N_CLASSES, 5)
    z, fold = model.features(chunk), chunk.folds(5)
    model.add(z, chunk.actions, chunk.rewards, fold)
    model.fit()
    truth = a_world().rewards(z[:, :-1])
    assert np.abs(model.predict(z, fold) - truth).mean() < 0.12 < np.abs(truth - truth.mean()).mean()


def test_running_reward_model_uses_only_earlier_rows() -> None:
    chunk = one_chunk(400)
    changed = chunk.rewards.copy()
    changed[300:] = 1 - changed[300:]
    predictions = []
    for rewards in (chunk.rewards, changed):
        running = RunningRewardModel(ClassRewardModel(N_FEATURES, N_CLASSES, 2))
        predictions.append(running.predict_then_add(running.model.features(chunk), chunk.actions, rewards))
    first, second = predictions
    assert np.array_equal(first[:301], second[:301])
    assert not np.array_equal(first[301:], second[301:])
    assert (first[:REFIT_FIRST] == 0.5).all()
    assert np.ptp(first[REFIT_FIRST]) > 0.0


def test_running_reward_model_does_not_depend_on_batch_boundaries() -> None:
    chunk = one_chunk(500)
    whole, cut = (
        RunningRewardModel(ClassRewardModel(N_FEATURES, N_CLASSES, 2)),
        RunningRewardModel(ClassRewardModel(N_FEATURES, N_CLASSES, 2)),
    )
    z = whole.model.features(chunk)
    in_parts = [
        cut.predict_then_add(z[rows], chunk.actions[rows], chunk.rewards[rows])
        for rows in np.split(np.arange(500), [3, 31, 32, 33, 260])
    ]
    np.testing.assert_allclose(
        np.concatenate(in_parts), whole.predict_then_add(z, chunk.actions, chunk.rewards), atol=1e-12
    )


def test_many_features_are_hashed_to_fit_the_memory_limit() -> None:
    d, K = 200_000, 50
    size = size_of(d, K, 5)
    assert 8 * 5 * K * (size + 1) ** 2 <= 8 * 2**20 < 8 * 5 * K * (size + 3) ** 2
    rng = np.random.default_rng(0)
    batch = rows_of(
        rng.normal(size=(6, 3)), rng.integers(0, K, 6), np.full(6, 0.5), rng.integers(0, 2, 6).astype(float)
    )
    batch = batch._replace(indices=np.sort(rng.integers(0, d, (6, 3)), axis=1).astype(np.int32).reshape(-1))
    chunk = next(iter(chunks([batch], Draws(0, Purpose.ESTIMATE))))
    model = ClassRewardModel(d, K, 5)
    z = model.features(chunk)
    assert z.shape == (6, size + 1)
    assert np.abs(z[:, :-1]).sum(axis=1) == pytest.approx(np.abs(chunk.values).reshape(6, 3).sum(axis=1))
