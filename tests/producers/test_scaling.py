"""Column scaling: the warning about a column that varies much more than the others, and `--scale standard`."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.datasets.base import Dataset, DatasetError, dense_dataset
from producers.datasets.logs.mapping import mapping_of
from producers.datasets.logs.reading import open_log
from producers.datasets.named import load
from producers.datasets.scaling import Moments, standardised, uneven_of
from producers.datasets.svmlight import read
from stream.wire.named_features import Scale, Scaling, from_plain, to_plain
from stream.wire.records import FloatArray


def data_of(x: FloatArray) -> Dataset:
    return dense_dataset("data", x, [str(row % 2) for row in range(len(x))])


def dense(dataset: Dataset) -> FloatArray:
    x = np.zeros((dataset.rows, dataset.n_features))
    for row in range(dataset.rows):
        features = dataset.row(row).x
        assert (np.diff(features.indices) > 0).all()
        assert (features.values != 0.0).all()
        x[row, features.indices] = features.values
    return x


def test_dense_columns_are_standardized_and_sparse_ones_keep_zeros() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack((rng.normal(300.0, 5.0, 40), np.full(40, 7.0), np.zeros(40), np.zeros(40), rng.normal(size=40)))
    x[:5, 2] = 10.0
    x[:15, 4] = 0.0
    scaled = dense(standardised(data_of(x)))

    for column in (0, 4):
        expected = (x[:, column] - x[:, column].mean()) / x[:, column].std()
        np.testing.assert_allclose(scaled[:, column], expected)
    np.testing.assert_array_equal(scaled[:, 1:4], np.column_stack((x[:, 1], x[:, 2] / 10.0, x[:, 3])))


@given(st.lists(st.lists(st.floats(-1e6, 1e6).filter(lambda value: value == 0.0 or abs(value) > 1e-3), min_size=3,
                         max_size=3), min_size=2, max_size=30))  # fmt: skip
def test_columns_in_memory_and_in_a_log_have_equal_scales(rows: list[list[float]]) -> None:
    x = np.array(rows)
    scaled = dense(standardised(data_of(x)))

    for column in range(3):
        moments = Moments().including(x[: len(x) // 2, column]).including(x[len(x) // 2 :, column])
        scale = moments.scale or Scale(0.0, 1.0)
        expected = (x[:, column] - scale.centre) / scale.unit
        np.testing.assert_allclose(scaled[:, column], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("factor", "warns"), [(10_000.0, True), (500.0, False)])
def test_column_with_a_thousand_times_the_spread_is_reported(tmp_path: Path, factor: float, warns: bool) -> None:
    x = np.random.default_rng(2).normal(size=(50, 4))
    x[:, 2] *= factor
    lines = (f"{row % 2} {' '.join(f'{i + 1}:{v!r}' for i, v in enumerate(x[row].tolist()))}\n" for row in range(50))
    (tmp_path / "data.svm").write_text("".join(lines))
    dataset = read(tmp_path / "data.svm")

    assert uneven_of(dataset).startswith("column 2 (counted from 0) varies ") == warns
    assert uneven_of(standardised(dataset)) == ""


def test_single_and_constant_columns_are_never_uneven() -> None:
    x = np.column_stack((np.arange(1.0, 41.0) * 1e6, np.full(40, 1e-6)))

    assert uneven_of(data_of(x)) == ""


def test_generated_rows_have_no_scale() -> None:
    with pytest.raises(DatasetError, match="synsep: expected a file or a log"):
        standardised(load("synsep"))


LOG = "a,age,income,device\nx,20,60000,pc\ny,,20000,pc\nx,0,90000,pc\ny,50,10000,pc\nx,40,,pc\n"
MAPPING = mapping_of({"action": "a", "features": {"numeric": ["age", "income"], "categorical": ["device"]}}, "test")


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_numbers_of_a_log_are_scaled_and_empty_cells_are_omitted(tmp_path: Path, scale: Scaling) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    log = open_log(tmp_path / "log.csv", MAPPING, scale=scale)
    (batch,) = log.batches()
    found = [
        dict(zip(batch.indices[start:stop].tolist(), batch.values[start:stop].tolist(), strict=True))
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]
    ages, incomes = np.array([20.0, 0.0, 50.0, 40.0]), np.array([6e4, 2e4, 9e4, 1e4])

    assert log.remarks == ["empty cells, for which no entries are created: 'age' 1, 'income' 1"]
    if scale == "none":
        assert found[2] == {1: 90_000.0, 2: 1.0}
        assert log.uneven.startswith("column 'income' varies ")
        return
    assert log.uneven == ""
    np.testing.assert_allclose([x[0] for x in found if 0 in x], (ages - ages.mean()) / ages.std())
    np.testing.assert_allclose([x[1] for x in found if 1 in x], (incomes - incomes.mean()) / incomes.std())
    assert [sorted(x) for x in found] == [[0, 1, 2], [1, 2], [0, 1, 2], [0, 1, 2], [0, 2]]
    # A service that uses the saved encoder gets the same values.
    encoder = from_plain(to_plain(log.encoder))
    x, _ = encoder.encode({"age": 0, "income": 90_000, "device": "pc"})
    assert dict(zip(x.indices.tolist(), x.values.tolist(), strict=True)) == found[2]
