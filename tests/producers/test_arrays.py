"""Data sets from arrays."""

from typing import Any

import numpy as np
import pytest

from producers.data import dataset_of, in_memory
from producers.datasets.base import Dataset, DatasetError, dense_dataset
from stream.settings.sources import given_settings

X = np.array([[0.0, 1.5], [2.0, 0.0], [3.0, 4.0]])


def rows_of(dataset: Dataset) -> list[list[float]]:
    found = np.zeros((dataset.rows, dataset.n_features))
    for row in range(dataset.rows):
        x = dataset.row(row).x
        found[row, x.indices] = x.values
    return found.tolist()


@pytest.mark.parametrize(
    ("x", "rows"),
    [
        (X, X),
        (np.asfortranarray(X), X),
        (np.repeat(X, 2, axis=0)[::2], X),
        (X.astype(np.float32), X),
        (X.astype(object), X),
        (X > 1, X > 1),
        (X.tolist(), X),
    ],
    ids=["float64", "column-major", "strided", "float32", "objects", "booleans", "lists"],
)
def test_rows_equal_those_of_the_array(x: Any, rows: Any) -> None:
    assert rows_of(dense_dataset("data", x, [0, 1, 0])) == rows.astype(float).tolist()


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["b", "a", "b"], ("b", "a"), [0, 1, 0]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
        (np.array([10, 9, 10], np.uint8), ("9", "10"), [1, 0, 1]),
        (np.array([1.0, 0.0, 1.0]), ("0", "1"), [1, 0, 1]),
        (np.array(["b", "a", "b"]), ("b", "a"), [0, 1, 0]),
        ([True, False, True], ("true", "false"), [0, 1, 0]),
        ([("a", 1), ("a", 2), ("a", 1)], ("('a', 1)", "('a', 2)"), [0, 1, 0]),
        (["b", "None", "b"], ("b", "None"), [0, 1, 0]),
    ],
    ids=str,
)
def test_classes_have_the_names_and_the_order_of_a_file(labels: Any, names: Any, numbers: list[int]) -> None:
    dataset = dense_dataset("data", X, labels)
    assert dataset.class_names == names
    assert [dataset.label(row) for row in range(3)] == numbers


@pytest.mark.parametrize(
    ("x", "labels", "place"),
    [
        (X, [0, 1], "2 labels and 3 rows"),
        (X[0], [0, 1], r"shape \(2,\)"),
        (X[:, :0], [0, 1, 0], r"shape \(3, 0\)"),
        (np.where(X == 4, np.nan, X), [0, 1, 0], r"x\[2, 1\]"),
        (np.where(X == 2, np.inf, X), [0, 1, 0], r"x\[1, 0\]"),
        (X.astype(str), [0, 1, 0], "type <U"),
        (X.astype(complex), [0, 1, 0], "complex"),
        ([[1.0], [2.0, 3.0], [4.0]], [0, 1, 0], "number per row"),
        ([["a"], ["b"], ["c"]], [0, 1, 0], "type <U"),
        (np.array([["a"], [1], [2]], object), [0, 1, 0], "could not convert"),
        (X, [0, None, 1], "label 1"),
        (X, [0.0, 1.0, np.nan], "label 2"),
        (X, ["", "a", "b"], "label 0"),
        (X, np.zeros((3, 1)), r"\(3, 1\)"),
        (X, [1, 1, 1], "two or more classes"),
        (X[:0], [], "two or more classes"),
    ],
)
def test_arrays_of_other_shapes_or_values_are_rejected_with_the_place(x: Any, labels: Any, place: str) -> None:
    with pytest.raises(DatasetError, match=place):
        dense_dataset("data", x, labels)


def test_settings_apply_to_arrays() -> None:
    name, memory = in_memory((X, ["a", "b", "a"]))
    scaled = dataset_of(given_settings({"data": name, "scale": "standard"}), memory)
    np.testing.assert_allclose(np.mean(rows_of(scaled), axis=0), 0.0, atol=1e-12)
    assert dataset_of(given_settings({"data": name, "n_features": 2}), memory).n_features == 2
    for refused in ({"map": "label=a,numeric=b"}, {"n_features": 3}, {"limit": 2}):
        with pytest.raises(DatasetError):
            dataset_of(given_settings({"data": name, **refused}), memory)


def test_tuple_of_other_length_is_rejected() -> None:
    with pytest.raises(DatasetError):
        in_memory((X, [0, 1, 0], X))  # type: ignore[arg-type]
