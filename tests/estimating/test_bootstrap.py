"""Bootstrap resampling depends only on the seed and the event ids."""

import numpy as np
import pytest
from scipy import stats

from stream.estimating.bootstrap import ResampledSums, percentile_interval, poisson_counts
from stream.estimating.rows import Chunk, chunks
from stream.randomness.draws import Draws, Purpose
from tests.estimating.logs import MemoryLog, a_log


def all_chunks(n: int, seed: int = 0, batch_rows: int = 700, rows_max: int = 1024) -> list[Chunk]:
    log = MemoryLog(a_log(n), batch_rows=batch_rows)
    return list(chunks(log.batches(), Draws(seed, Purpose.ESTIMATE), rows_max))


def test_resampling_counts_are_poisson_and_independent() -> None:
    counts = poisson_counts(all_chunks(600)[0], 500)
    seen = np.bincount(counts.astype(np.int64).reshape(-1), minlength=8)[:7]
    expected = stats.poisson.pmf(np.arange(7), 1.0) * counts.size
    assert np.abs(seen - expected).max() < 5 * np.sqrt(expected.max())
    assert np.abs(np.corrcoef(counts[:40]) - np.eye(40)).max() < 0.25
    assert np.abs(np.corrcoef(counts[:, :40].T) - np.eye(40)).max() < 0.25


def test_resampling_counts_do_not_depend_on_batch_boundaries() -> None:
    whole = np.concatenate([poisson_counts(chunk, 10) for chunk in all_chunks(500)])
    cut = np.concatenate([poisson_counts(chunk, 10) for chunk in all_chunks(500, batch_rows=33, rows_max=7)])
    assert np.array_equal(whole, cut)
    assert not np.array_equal(whole, np.concatenate([poisson_counts(chunk, 10) for chunk in all_chunks(500, seed=1)]))


def test_spread_of_resampled_means_equals_the_standard_error() -> None:
    sums = ResampledSums(2, resamples=2_000)
    terms = np.random.default_rng(1).random((1_400, 2))
    terms[:, 0] = 1.0
    done = 0
    for chunk in all_chunks(1_400):
        rows = len(chunk.ids)
        sums.add(terms[done : done + rows], poisson_counts(chunk, 2_000))
        done += rows
    means = sums.resampled[:, 1] / sums.resampled[:, 0]
    assert sums.sums[1] / sums.sums[0] == pytest.approx(terms[:, 1].mean())
    assert means.std() == pytest.approx(terms[:, 1].std() / np.sqrt(1_400), rel=0.06)


def test_there_is_no_interval_if_a_resample_has_no_estimate() -> None:
    assert percentile_interval(np.array([0.1, np.nan, 0.3]), 0.95) is None
    assert percentile_interval(np.zeros(500), 0.95) is None
    low, high = percentile_interval(np.linspace(0.0, 1.0, 1_001), 0.9) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.05, 0.95))
