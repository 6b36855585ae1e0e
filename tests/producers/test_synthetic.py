"""SynSep and SynNonSep have all the properties stated in their descriptions."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse, stats

from producers.datasets.base import Dataset, DatasetError
from producers.datasets.synthetic import (
    N_CLASSES,
    N_COMMON,
    N_FEATURES,
    N_KEYWORDS,
    ROWS,
    Keywords,
    draw_keywords,
    synnonsep,
    synsep,
)

FALSE_ALARM = 1e-6
"""False-alarm rate of the statistical tests. The seeds are fixed, so the results change only if a generator changes."""

N = 50_000
SEED = 3


def keyword_lists(keywords: Keywords) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(keywords.indices, keywords.counts, strict=True)]


def dense(data: Dataset, n: int) -> NDArray[np.float64]:
    block = data.block(0, n)
    matrix: NDArray[np.float64] = sparse.csr_array(
        (block.values, block.indices, block.offsets), shape=(n, N_FEATURES)
    ).toarray()
    return matrix


@pytest.fixture(scope="module")
def x() -> NDArray[np.float64]:
    return dense(synsep(SEED), N)


@pytest.fixture(scope="module")
def labels() -> NDArray[np.int64]:
    return synsep(SEED).block(0, N).labels


def test_rows_are_stable() -> None:
    row = synsep(seed=3).row(5)
    assert row.label == 8
    assert row.x.indices.tolist() == [
        0, 1, 2, 9, 20, 22, 24, 30, 39, 40, 43, 44, 50, 51, 52, 53, 56, 64, 66, 69, 72, 76, 84, 85, 95, 96, 97, 99, 100,
        103, 105, 106, 112, 115, 117, 128, 130, 135, 141, 148, 169, 172, 200, 222, 240, 241, 272, 294, 295, 311, 342,
        344, 346, 360, 379
    ]  # fmt: skip
    assert synnonsep(seed=3).block(0, 40).labels.tolist() == [
        8, 6, 8, 7, 2, 8, 8, 6, 5, 2, 2, 6, 6, 1, 8, 3, 7, 1, 6, 1, 8, 8, 3, 1, 4, 0, 3, 8, 2, 0, 7, 6, 5, 5, 6, 7, 2,
        2, 0, 0
    ]  # fmt: skip


def test_there_are_400_features_9_classes_and_a_million_rows() -> None:
    for data in (synsep(), synnonsep()):
        assert (data.n_features, data.n_classes, data.rows) == (400, 9, 1_000_000)


def test_each_class_has_20_to_40_of_the_120_keywords() -> None:
    drawn = [draw_keywords(seed) for seed in range(3_000)]
    for keywords in drawn:
        for row in keyword_lists(keywords):
            assert row == sorted(set(row))
            assert row[0] >= 0
            assert row[-1] < N_KEYWORDS
    counts = np.concatenate([keywords.counts for keywords in drawn])
    assert (counts.min(), counts.max()) == (20, 40)
    assert stats.chisquare(np.bincount(counts - 20, minlength=21)).pvalue > FALSE_ALARM
    uses = np.bincount([feature for keywords in drawn for row in keyword_lists(keywords) for feature in row])
    assert stats.chisquare(uses).pvalue > FALSE_ALARM
    assert any(set(one) & set(other) for one, other in [keyword_lists(drawn[0])[:2]])


def test_values_are_one_and_indices_strictly_increase() -> None:
    block = synnonsep(SEED).block(0, 1_000)
    dtypes = [array.dtype.name for array in (block.indices, block.values, block.labels, block.offsets)]
    assert dtypes == ["int32", "float64", "int64", "int64"]
    assert (block.values == 1.0).all()
    for start, stop in zip(block.offsets[:-1], block.offsets[1:], strict=True):
        assert (np.diff(block.indices[start:stop]) > 0).all()


def test_row_has_all_but_5_keywords_of_its_class_and_20_common_words(
    x: NDArray[np.float64], labels: NDArray[np.int64]
) -> None:
    lists = keyword_lists(draw_keywords(SEED))
    for label in range(N_CLASSES):
        own = x[labels == label]
        assert (own[:, lists[label]].sum(axis=1) == len(lists[label]) - 5).all()
        assert (own[:, :N_KEYWORDS].sum(axis=1) == len(lists[label]) - 5).all()
    assert (x[:, N_KEYWORDS:].sum(axis=1) == 20).all()


def test_classes_are_uniform(labels: NDArray[np.int64]) -> None:
    assert stats.chisquare(np.bincount(labels, minlength=N_CLASSES)).pvalue > FALSE_ALARM


def test_all_keywords_are_absent_equally_often(x: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    for label, keywords in enumerate(keyword_lists(draw_keywords(SEED))):
        own = x[labels == label][:, keywords]
        assert subset_p_value(own.shape[0] - own.sum(axis=0), own.shape[0], 5) > FALSE_ALARM / N_CLASSES


def test_all_common_words_are_present_equally_often(x: NDArray[np.float64]) -> None:
    assert subset_p_value(x[:, N_KEYWORDS:].sum(axis=0), N, 20) > FALSE_ALARM


def subset_p_value(counts: NDArray[np.float64], draws: int, k: int) -> float:
    """The p-value of Pearson's statistic for the counts of n elements in `draws` uniformly drawn subsets of size k.

    A count has variance draws·k/n·(1 - k/n), and two counts have correlation -1/(n - 1). The sum of squares below
    therefore has the distribution of n/(n - 1) times a chi-squared variable with n - 1 degrees of freedom.
    """
    n = counts.size
    share = k / n
    statistic = ((counts - draws * share) ** 2).sum() / (draws * share * (1 - share)) * (n - 1) / n
    return float(stats.chi2.sf(statistic, n - 1))


def test_pair_frequencies_match_sampling_without_replacement(x: NDArray[np.float64]) -> None:
    common = x[:, N_KEYWORDS:]
    together = common.T @ common
    pairs = together[np.triu_indices(N_COMMON, 1)]
    share = 20 * 19 / (N_COMMON * (N_COMMON - 1))
    z = (pairs - N * share) / np.sqrt(N * share * (1 - share))
    # The factor of 1.1 is necessary because binomial distributions have slightly heavier tails than normal ones.
    assert np.abs(z).max() < stats.norm.isf(FALSE_ALARM / pairs.size / 2) * 1.1


def test_neighbouring_rows_are_independent(x: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    table = np.zeros((N_CLASSES, N_CLASSES))
    np.add.at(table, (labels[1:], labels[:-1]), 1)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    shared = (x[1:, N_KEYWORDS:] * x[:-1, N_KEYWORDS:]).sum(axis=1)
    expected = stats.hypergeom(N_COMMON, 20, 20)
    assert abs(shared.mean() - expected.mean()) < stats.norm.isf(FALSE_ALARM / 2) * expected.std() / np.sqrt(N - 1)


def test_synsep_is_separated_by_the_keywords_of_the_classes(x: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    # The score of a class is the number of its keywords in the row, minus the number of other keywords in the row,
    # minus the total number of its keywords. Every row has 20 common words, so equal weights on the common words
    # produce the last term. The true class has a score of -5, and all other classes have lower scores.
    keywords = draw_keywords(SEED)
    W = np.full((N_CLASSES, N_FEATURES), -1.0)
    for label, own in enumerate(keyword_lists(keywords)):
        W[label, own] = 1.0
        W[label, N_KEYWORDS:] = -keywords.counts[label] / 20
    scores = x @ W.T
    assert scores[np.arange(N), labels] == pytest.approx(-5.0)
    assert (scores.argmax(axis=1) == labels).all()


def test_synnonsep_has_the_features_of_synsep(x: NDArray[np.float64]) -> None:
    assert (dense(synnonsep(SEED), 2_000) == x[:2_000]).all()


def test_5_percent_of_synnonsep_labels_are_replaced_uniformly(labels: NDArray[np.int64]) -> None:
    noisy = synnonsep(SEED).block(0, N).labels
    wrong = noisy != labels
    assert stats.binomtest(int(wrong.sum()), N, 0.05).pvalue > FALSE_ALARM
    shift = (noisy - labels)[wrong] % N_CLASSES
    assert stats.chisquare(np.bincount(shift, minlength=N_CLASSES)[1:]).pvalue > FALSE_ALARM
    by_class = [np.count_nonzero(wrong & (labels == label)) for label in range(N_CLASSES)]
    assert stats.chisquare(by_class, np.bincount(labels) * wrong.mean()).pvalue > FALSE_ALARM
    assert stats.ks_1samp(np.flatnonzero(wrong) / N, stats.uniform.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("make", [synsep, synnonsep])
def test_row_is_the_same_alone_and_in_any_block(make: Callable[[int], Dataset]) -> None:
    data = make(SEED)
    for start, stop in ((0, 50), (40, 60), (999_990, 1_000_000), (7, 7)):
        block = data.block(start, stop)
        assert block.offsets[0] == 0
        assert block.offsets.size == stop - start + 1
        for j, row in enumerate(range(start, stop)):
            entries = slice(block.offsets[j], block.offsets[j + 1])
            alone = data.row(row)
            assert alone.x.indices.tolist() == block.indices[entries].tolist()
            assert alone.x.values.tolist() == block.values[entries].tolist()
            assert alone.label == block.labels[j] == data.label(row)
            assert type(alone.label) is type(data.label(row)) is int


def test_row_does_not_depend_on_the_number_of_rows() -> None:
    assert synsep(SEED, rows=10).row(9).x.indices.tolist() == synsep(SEED, rows=ROWS).row(9).x.indices.tolist()


def test_different_seeds_give_different_data() -> None:
    assert synsep(1).block(0, 100).labels.tolist() != synsep(2).block(0, 100).labels.tolist()
    assert keyword_lists(draw_keywords(1)) != keyword_lists(draw_keywords(2))


def test_largest_seed_is_accepted() -> None:
    assert 35 <= synsep(2**64 - 1).row(999_999).x.indices.size <= 55


def test_seed_or_number_of_rows_out_of_range_is_rejected() -> None:
    for seed in (-1, 2**64):
        with pytest.raises(DatasetError):
            synsep(seed)
    with pytest.raises(DatasetError):
        synnonsep(rows=0)
