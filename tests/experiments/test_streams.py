from typing import Any

import numpy as np
import pytest

from onebit.experiments.definition import Conditions
from onebit.experiments.sets import Loaded, linear_models
from onebit.experiments.streams import come_and_go, life_of, lives, noisy, part_of, partitions_of, split, stream_of
from stream.offline import NEVER, Examples

ROWS, K = 600, 6


def data(*, is_generated: bool = False) -> Loaded:
    """A data set in which row t has class t mod 6, and feature t is the only nonzero feature."""
    rows = np.arange(ROWS)
    examples = Examples(np.arange(ROWS + 1), rows.astype(np.int32), np.ones(ROWS), rows % K)
    return Loaded(K, ROWS, examples, is_generated)


def stream(events: int | None = None, epochs: int = 1, seed: int = 3, **conditions: Any) -> Any:
    return stream_of(data(), seed, events, epochs, Conditions(**conditions))


def test_order_and_random_draws_of_a_stream_depend_only_on_the_seed() -> None:
    plain, late = stream(), stream(delay="exponential:20ms", loss=0.2, noise=0.3)
    assert plain.examples.indices.tolist() == late.examples.indices.tolist()
    assert plain.truth.tolist() == late.truth.tolist()
    assert (plain.u.tolist(), plain.v.tolist()) == (late.u.tolist(), late.v.tolist())


def test_different_seeds_have_different_orders() -> None:
    assert stream(seed=1).examples.indices.tolist() != stream(seed=2).examples.indices.tolist()


def test_every_epoch_is_a_different_permutation_of_the_rows() -> None:
    rows = stream(epochs=2).examples.indices
    assert sorted(rows[:ROWS]) == sorted(rows[ROWS:]) == list(range(ROWS))
    assert rows[:ROWS].tolist() != rows[ROWS:].tolist()


def test_generated_rows_are_not_shuffled() -> None:
    made = stream_of(data(is_generated=True), 3, 50, 1, Conditions())
    assert made.examples.indices.tolist() == list(range(50))


def test_noise_changes_labels_but_not_the_truth() -> None:
    labels = np.zeros(20_000, dtype=np.int64)
    changed = noisy(labels, 4, 0.4, np.random.default_rng(1))
    assert np.mean(changed != labels) == pytest.approx(0.4 * 3 / 4, abs=0.02)
    learned = stream(noise=0.5)
    assert np.mean(learned.examples.labels != learned.truth) == pytest.approx(0.5 * 5 / 6, abs=0.08)


def test_delays_follow_the_law_and_lost_feedback_never_arrives() -> None:
    late = stream(delay="0=fixed:7ms;*=none", loss=0.25)
    assert np.mean(late.delays == NEVER) == pytest.approx(0.25, abs=0.06)
    came = late.delays != NEVER
    assert np.array_equal(late.delays[came], np.where(late.truth[came] == 0, 7, 0))


def test_all_classes_are_renamed_halfway() -> None:
    renamed, plain = stream(change="rename"), stream()
    half = ROWS // 2
    assert renamed.truth[:half].tolist() == plain.truth[:half].tolist()
    assert not np.any(renamed.truth[half:] == plain.truth[half:])
    assert len(set(zip(plain.truth[half:].tolist(), renamed.truth[half:].tolist(), strict=True))) == K


def test_available_classes_change_over_time() -> None:
    labels = np.random.default_rng(2).integers(0, K, 1_000)
    order = come_and_go(np.arange(1_000), labels, K, np.random.default_rng(0))
    first, second = set(labels[order[:500]].tolist()), set(labels[order[-480:]].tolist())
    assert len(first) == len(second) == 4
    assert len(first & second) == 2
    assert len(set(order.tolist())) == order.size >= 950, "at most 50 rows are omitted, and none is repeated"


def test_delays_within_a_part_are_counted_in_events_of_this_part() -> None:
    whole = stream(10)._replace(delays=np.array([4, 0, 0, 4, 4, 0, 0, 0, 0, NEVER]))
    part = part_of(whole, np.array([0, 3, 4, 9]))
    assert part.delays.tolist() == [2, 1, 0, NEVER]
    assert part.truth.tolist() == whole.truth[[0, 3, 4, 9]].tolist()


def test_feedback_after_a_restart_is_lost() -> None:
    whole = stream(6)._replace(delays=np.array([0, 1, 2, 0, 1, 2]))
    assert [own.tolist() for own in lives(6, 3)] == [[0, 1, 2], [3, 4, 5]]
    assert life_of(whole, np.arange(3)).delays.tolist() == [0, 1, NEVER]
    assert life_of(whole, np.arange(3, 6)).delays.tolist() == [0, 1, NEVER]


def test_every_event_has_one_partition() -> None:
    partitions = partitions_of(100, 4, seed=1)
    assert partitions.size == 100
    assert np.bincount(partitions, minlength=4).min() > 10
    assert partitions.max() == 3


def test_folds_partition_rows_into_disjoint_test_sets() -> None:
    folds = [split(103, 1, fold, 10) for fold in range(10)]
    assert sorted(np.concatenate([tested for _, tested in folds]).tolist()) == list(range(103))
    assert all(not set(trained) & set(tested) and trained.size + tested.size == 103 for trained, tested in folds)


def test_class_in_linear_models_depends_on_the_first_five_features() -> None:
    made = linear_models(1)
    X = made.examples.values.reshape(1_000, 9)
    design = np.linalg.lstsq(X, np.eye(5)[made.examples.labels], rcond=None)[0]
    assert np.abs(design[:5]).max() > 5 * np.abs(design[5:]).max()
    assert made.facts["squared_norm"](2.0) == 4.0 * made.facts["squared_norm"](1.0)
