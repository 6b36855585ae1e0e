"""The synthetic data set with graded rewards."""

import numpy as np
import pytest

from producers.data import check_play, check_rewards, dataset_of
from producers.datasets.ratings import N_CLASSES, N_FEATURES, STARS, ratings
from stream.settings.definitions import Settings, SettingsError
from stream.settings.task_fields import Rewards

ROWS = 400


def test_rewards_are_half_stars_and_depend_on_the_row_and_the_seed_alone() -> None:
    data, again, other = ratings(3, ROWS), ratings(3, ROWS), ratings(4, ROWS)
    stars = np.stack([data.rated.stars(row) for row in range(ROWS)])
    assert stars.shape == (ROWS, N_CLASSES)
    assert set(np.unique(stars)) <= set(np.arange(STARS.low, STARS.high + 0.5, 0.5))
    assert set(np.unique(stars)) >= {1.0, 3.0, 5.0}
    backwards = [again.rated.stars(row) for row in reversed(range(ROWS))]
    assert np.array_equal(stars, backwards[::-1])
    assert not np.array_equal(stars, [other.rated.stars(row) for row in range(ROWS)])


def test_known_outcome_is_the_reward_of_the_played_class() -> None:
    data = ratings(0, ROWS)
    known = data.known_of(data.event_id(7, epoch=2))
    assert (known.label, known.reward_of(3)) == (None, data.rated.stars(7)[3])


def test_rewards_follow_the_expected_ratings() -> None:
    data = ratings(0, ROWS)
    stars = np.stack([data.rated.stars(row) for row in range(ROWS)])
    labels = [data.label(row) for row in range(ROWS)]
    assert stars[np.arange(ROWS), labels].mean() > stars.mean(axis=0).max() + 0.5


def test_block_equals_the_rows() -> None:
    data = ratings(1, ROWS)
    block = data.block(5, 9)
    for place, row in enumerate(range(5, 9)):
        x, label = data.row(row)
        assert np.array_equal(block.values[place * N_FEATURES : (place + 1) * N_FEATURES], x.values)
        assert block.labels[place] == label
    assert block.offsets.tolist() == [0, 10, 20, 30, 40]


@pytest.mark.parametrize(
    ("data", "rewards", "reward_range", "is_refused"),
    [
        ("ratings", "graded", "1,5", False),
        ("ratings", "graded", "0,5", True),
        ("ratings", "bit", "0,1", True),
        ("optdigits", "graded", "-1,1", False),
        ("optdigits", "graded", "1,5", True),
        ("optdigits", "bit", "0,1", False),
    ],
)
def test_rewards_of_the_settings_must_be_those_of_the_data(
    data: str, rewards: Rewards, reward_range: str, is_refused: bool
) -> None:
    settings = Settings(data=data, rewards=rewards, reward_range=reward_range)
    dataset = dataset_of(settings)
    check_play("own", dataset)
    if is_refused:
        with pytest.raises(SettingsError):
            check_rewards(settings, dataset)
    else:
        check_rewards(settings, dataset)
