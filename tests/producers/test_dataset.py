"""A data set's event ids, order and schedule."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from producers.datasets.base import Dataset, Slot, UnknownEventError
from producers.datasets.synthetic import synsep

SEEDS = st.none() | st.integers(0, 2**64 - 1)


def dataset(rows: int = 7, id_prefix: str = "some-data.1") -> Dataset:
    return replace(synsep(seed=1, rows=rows), id_prefix=id_prefix)


def test_event_id_contains_data_set_epoch_and_row() -> None:
    assert synsep(seed=5).event_id(123) == "synsep.5-0-000123"
    assert synsep(seed=5).event_id(123, epoch=2) == "synsep.5-2-000123"
    assert dataset(rows=10**7).event_id(9_999_999) == "some-data.1-0-9999999"


@given(st.integers(0, 10**9), st.integers(0, 10**8 - 1))
def test_event_id_is_parsed_into_epoch_and_row(epoch: int, row: int) -> None:
    data = dataset(rows=10**8)
    assert data.parse_event_id(data.event_id(row, epoch)) == (epoch, row)


def test_event_id_identifies_the_label_of_its_row() -> None:
    data = dataset(rows=100)
    assert [data.label_of(data.event_id(row, epoch=3)) for row in range(100)] == data.block(0, 100).labels.tolist()


@pytest.mark.parametrize(
    "event_id",
    [
        "",
        "000003",
        "some-data.1-000003",
        "some-data.2-0-000003",
        "Some-data.1-0-000003",
        "some-data.1-0-3",
        "some-data.1-0-0000003",
        "some-data.1-00-000003",
        "some-data.1--1-000003",
        "some-data.1-0-000007",
        "some-data.1-0-٠٠٠٠٠٣",
        "some-data.1-0-+00003",
        "some-data.1-0- 00003",
        "some-data.1-0-" + "9" * 10_000,
        "x" * 10_000,
    ],
)
def test_id_of_another_format_is_rejected(event_id: str) -> None:
    with pytest.raises(UnknownEventError, match="EPOCH-ROW") as raised:
        dataset().label_of(event_id)
    assert len(str(raised.value)) < 400


def test_row_out_of_range_is_rejected() -> None:
    for row in (-1, 7):
        with pytest.raises(IndexError, match=re.escape(f"synsep: expected a row in 0..6; got {row}")):
            dataset().row(row)
        with pytest.raises(IndexError):
            dataset().label(row)
    for start, stop in ((-1, 2), (3, 2), (0, 8)):
        with pytest.raises(IndexError, match=re.escape(f"got [{start}, {stop})")):
            dataset().block(start, stop)


@given(st.integers(1, 50), st.integers(0, 5), SEEDS)
def test_epoch_contains_every_row_once(rows: int, epoch: int, seed: int | None) -> None:
    assert sorted(dataset(rows).order(epoch, seed)) == list(range(rows))


def test_without_a_seed_rows_are_in_file_order() -> None:
    assert list(dataset().order(3)) == list(range(7))


def test_shuffled_order_is_stable() -> None:
    assert list(dataset().order(0, shuffle_seed=1)) == [2, 3, 4, 1, 6, 5, 0]
    assert list(dataset().order(1, shuffle_seed=1)) == [1, 0, 5, 4, 3, 6, 2]


def test_orders_of_different_epochs_seeds_and_data_sets_are_uncorrelated() -> None:
    n = 10_000
    orders = [
        dataset(n).order(0, 1),
        dataset(n).order(1, 1),
        dataset(n).order(0, 2),
        dataset(n, "other").order(0, 1),
        range(n),
    ]
    # The standard deviation of Spearman's coefficient is 1/sqrt(n - 1). The limit is six standard deviations, which
    # gives a false-alarm rate of about 1e-8.
    coefficients = stats.spearmanr(np.array([list(order) for order in orders]), axis=1).statistic
    assert np.abs(coefficients - np.eye(len(orders))).max() < 6 / np.sqrt(n - 1)


def test_schedule_continues_over_epochs() -> None:
    data = dataset(rows=3)
    assert list(data.schedule(2, 7)) == [
        Slot("some-data.1-0-000002", 2),
        Slot("some-data.1-1-000000", 0),
        Slot("some-data.1-1-000001", 1),
        Slot("some-data.1-1-000002", 2),
        Slot("some-data.1-2-000000", 0),
    ]
    assert list(data.schedule(4, 4)) == []


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 60), SEEDS)
def test_schedule_resumes_after_any_event(rows: int, start: int, length: int, seed: int | None) -> None:
    data = dataset(rows)
    whole = list(data.schedule(0, start + length, seed))
    assert len({slot.event_id for slot in whole}) == start + length
    assert list(data.schedule(start, start + length, seed)) == whole[start:]
    assert [data.parse_event_id(slot.event_id)[1] for slot in whole] == [slot.row for slot in whole]
