"""Tables in memory, such as DataFrames, are read like Parquet files."""

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from producers.datasets.base import DatasetError
from producers.datasets.logs.cache import cached_log
from producers.datasets.logs.parquet_tables import BATCH_ROWS
from producers.datasets.logs.reading import open_log, source_of_table
from tests.producers.logs.rows import mapping, plain

ROWS = BATCH_ROWS + 100
GIVEN = mapping(
    action="played", propensity=None, reward="hit", timestamp="when",
    features={"numeric": ["price", "age"], "categorical": ["country", "device"]},
)  # fmt: skip


class Capsule:
    """A table with only Arrow's C stream interface, and with views as strings, as polars has."""

    def __init__(self, table: pa.Table) -> None:
        views = {"country": pa.string_view(), "played": pa.string_view()}
        fields = [field.with_type(views.get(field.name, field.type)) for field in table.schema]
        self._table = table.cast(pa.schema(fields))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def frame() -> Any:
    rng = np.random.default_rng(3)
    whole = pd.DataFrame(
        {
            "price": rng.normal(5.0, 2.0, 2 * ROWS),
            "age": rng.integers(18, 70, 2 * ROWS),
            "country": rng.choice(["de", "fr", "it"], 2 * ROWS).astype(object),
            "device": pd.Categorical(rng.choice(["phone", "desk"], 2 * ROWS)),
            "played": rng.choice(["left", "right"], 2 * ROWS),
            "hit": rng.random(2 * ROWS) < 0.5,
            "when": pd.Timestamp("2026-03-01") + pd.to_timedelta(np.arange(2 * ROWS), "s"),
        },
        index=rng.permutation(2 * ROWS),
    )[::2]  # the columns are not contiguous
    whole.iloc[3, 0] = np.nan
    whole.iloc[4, 2] = None
    return whole


@pytest.mark.parametrize("kind", [lambda given: given, pa.Table.from_pandas, lambda given: Capsule(pa.table(given))])
def test_table_in_memory_is_read_like_the_same_table_in_parquet(kind: Callable[[Any], Any], tmp_path: Path) -> None:
    given = frame()
    given.to_parquet(tmp_path / "dataframe.parquet")
    file, table = (
        open_log(one, GIVEN, scale="standard") for one in (tmp_path / "dataframe.parquet", source_of_table(kind(given)))
    )
    assert plain(table.batches()) == plain(file.batches())
    assert (table.name, table.encoder, table.class_names) == (file.name, file.encoder, file.class_names)
    assert table.remarks == file.remarks != []


def test_dictionary_of_string_views_is_read_as_strings() -> None:
    codes = pa.array([0, 1, None, 0], pa.uint32())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["left", "right"], pa.string_view()))
    given = mapping(action="played", propensity=None, reward=None, features={"numeric": ["x"]})
    table = pa.table({"played": column, "x": [1.0, 2.0, 3.0, 4.0]})
    log = open_log(source_of_table(table), given, on_bad_row="skip")
    assert [row["actions"] for row in plain(log.batches())] == [0, 1, 0]
    assert log.class_names == ("left", "right")


def test_names_of_columns_may_be_numbers_and_the_index_is_ignored() -> None:
    given = mapping(action="0", propensity=None, reward=None, features={"numeric": ["1"]})
    table = pd.DataFrame({0: ["a", "b"], 1: [0.5, 2.0]}, index=[datetime(2026, 3, 1)] * 2)
    log = open_log(source_of_table(table), given)
    assert [row["x"] for row in plain(log.batches())] == [{0: 0.5}, {0: 2.0}]


@pytest.mark.parametrize("data", [np.ones((3, 2)), [[1, 2]], {"a": [1]}, 3, None, (np.ones((3, 2)), [0, 1, 0])])
def test_data_without_an_arrow_interface_are_rejected(data: object) -> None:
    with pytest.raises(DatasetError):
        source_of_table(data)


@pytest.mark.parametrize(
    "table",
    [pd.DataFrame({"a": [1, "b"]}), pd.DataFrame([[1, 2]], columns=["a", "a"])],
    ids=["objects of several types", "two columns with the same name"],
)
def test_table_that_arrow_cannot_represent_is_rejected_with_the_column(table: Any) -> None:
    with pytest.raises(DatasetError, match=r"column.* \[?'?a'?"):
        source_of_table(table)


def test_table_requires_a_mapping_of_its_columns() -> None:
    source = source_of_table(pa.table({"age": [1], "city": ["a"]}))
    with pytest.raises(DatasetError, match="'age', 'city'"):
        open_log(source)
    with pytest.raises(DatasetError, match="no column 'a'"):
        open_log(source, mapping())


def test_table_without_pyarrow_is_rejected_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame()  # pandas imports parts of pyarrow when they are used first
    monkeypatch.delitem(sys.modules, "producers.datasets.logs.parquet_tables", raising=False)
    monkeypatch.delattr("producers.datasets.logs.parquet_tables", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"onebit\[parquet\]"):
        source_of_table(table)


def test_table_is_not_cached(tmp_path: Path) -> None:
    messages: list[str] = []
    stored = cached_log(source_of_table(frame()), GIVEN, tmp_path / "logs", announce=messages.append)
    assert stored.rows == ROWS
    assert list((tmp_path / "logs").iterdir()) == []
    assert [message for message in messages if str(tmp_path) in message] == []
