"""The same value is the same class, id and category in every format, and values of skipped rows do not count."""

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from producers.datasets import svmlight
from producers.datasets.base import DatasetError
from producers.datasets.logs.reading import LogFile, open_log
from stream.wire.named_features import text_of
from tests.producers.logs.rows import mapping, plain

MAPPING = mapping(id="id", features={"categorical": ["c"]})


def as_parquet(columns: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def as_csv(rows: Sequence[dict[str, str]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    return "\n".join(lines).encode() + b"\n"


def read(path: Path, content: bytes, **options: Any) -> tuple[LogFile, list[dict[str, Any]]]:
    path.write_bytes(content)
    log = open_log(path, options.pop("given", MAPPING), **options)
    return log, plain(log.batches())


def values_of(log: LogFile, rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Return the ids, classes and categories of the rows."""
    indices = log.encoder.names["c"].indices or {}
    names = {index: name for name, index in indices.items()}
    categories = [names[index] for row in rows for index in row["x"]]
    return [row["id"] for row in rows], [log.class_names[row["actions"]] for row in rows], categories


NUMBER = decimal.Decimal(12345678901234567890123456789)
UUIDS = [uuid.UUID(int=1 << 100), uuid.UUID(int=7)]

SAME: list[tuple[list[str], list[str], Any, Any]] = [
    # canonical texts, texts in CSV, values in JSON, Parquet column
    (["3", "17"], ["3.0", "17.0"], [3.0, 17], pa.array([3.0, 17.0])),
    (["3", "17"], ["3.00", "17"], [3, 17.0], pa.array([3, 17], pa.int16())),
    (["30000000", "5"], ["3.0E7", "5.0E0"], [3e7, 5.0], pa.array([3e7, 5.0])),
    (["-2", "0"], ["-2.0", "-0.0"], [-2.0, -0.0], pa.array([-2.0, -0.0])),
    (["0.1", "2.5"], ["0.1", "2.5"], [0.1, 2.5], pa.array([0.1, 2.5], pa.float32())),
    (["0.1", "2"], ["0.1", "2.0"], [0.1, 2.0], pa.array([decimal.Decimal("0.10"), decimal.Decimal("2.00")])),
    (["true", "false"], ["True", "FALSE"], [True, False], pa.array([True, False])),
    (["9007199254740993", "7"], ["9007199254740993", "7"], [2**53 + 1, 7], pa.array([2**53 + 1, 7])),
    (["18446744073709551615", "7"], [str(2**64 - 1), "7"], [2**64 - 1, 7], pa.array([2**64 - 1, 7], pa.uint64())),
    (
        [str(NUMBER), "7"], [f"{NUMBER}.0", "7"], [str(NUMBER), 7],
        pa.array([NUMBER, decimal.Decimal(7)], pa.decimal128(38, 2)),
    ),
    ([str(one) for one in UUIDS], [str(one) for one in UUIDS], [str(one) for one in UUIDS],
     pa.array([one.bytes for one in UUIDS], pa.uuid())),
    (["zwölf", "x"], ["zwölf", "x"], ["zwölf", "x"], pa.array(["zwölf".encode(), b"x"], pa.large_binary())),
    (["ab", "cd"], ["ab", "cd"], ["ab", "cd"], pa.array([b"ab", b"cd"], pa.binary(2))),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "in_csv", "in_json", "column"), SAME)
def test_value_is_the_same_in_every_format(
    tmp_path: Path, texts: list[str], in_csv: list[str], in_json: list[Any], column: Any
) -> None:
    csv = as_csv([{"id": one, "a": one, "p": "0.5", "r": "1", "c": one} for one in in_csv])
    lines = b"".join(json.dumps({"id": v, "a": v, "p": 0.5, "r": 1, "c": v}).encode() + b"\n" for v in in_json)
    table = as_parquet({"id": column, "a": column, "p": [0.5, 0.5], "r": [1, 1], "c": column})
    for content in (csv, lines, table):
        log, rows = read(tmp_path / "log", content)
        assert values_of(log, rows) == (texts, texts, texts)
        for value, one in zip(in_json, rows, strict=True):
            found, unknown = log.encoder.encode({"c": value})
            assert (dict.fromkeys(found.indices.tolist(), 1.0), unknown) == (one["x"], [])


ROUNDED = [1.5e22, 2.0**53, -(2.0**64)]


@pytest.mark.parametrize("value", ROUNDED)
@pytest.mark.parametrize("column", ["id", "a", "c"])
def test_whole_number_beyond_float_is_refused_by_name(tmp_path: Path, column: str, value: float) -> None:
    good = {"id": "x", "a": "left", "p": 0.5, "r": 1, "c": "de"}
    rows = [good, {**good, "id": "y", "a": "right"}, {**good, "id": "z", column: value}]
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    csv = as_csv([{name: repr(one) if type(one) is float else str(one) for name, one in row.items()} for row in rows])
    for content in (lines, csv):
        log, found = read(tmp_path / "log", content, on_bad_row="skip")
        assert len(found) == 2
        assert [reason.partition(":")[0] for reason in log.skipped] == [column]
        assert len(log.class_names) == 2


def test_integers_above_64_bits_in_json_are_refused(tmp_path: Path) -> None:
    rows = [{"id": 2**70 + k, "a": 2**70 + k % 3, "p": 0.3, "r": 1, "c": "de"} for k in range(6)]
    with pytest.raises(DatasetError, match=r"id: expected .*64 bits"):
        read(tmp_path / "log", b"\n".join(json.dumps(row).encode() for row in rows))


def test_bytes_that_are_not_text_are_refused_by_name(tmp_path: Path) -> None:
    column = pa.array([b"\xff\xfe", b"ok", b"other"])
    content = as_parquet({"id": column, "a": ["x", "y", "x"], "p": [0.5] * 3, "r": [1] * 3, "c": ["u"] * 3})
    log, found = read(tmp_path / "log", content, on_bad_row="skip")
    assert [row["id"] for row in found] == ["ok", "other"]
    assert [reason.partition(":")[0] for reason in log.skipped] == ["id"]


def test_versions_with_trailing_zeros_are_distinct(tmp_path: Path) -> None:
    content = as_csv([{"id": v, "a": v, "p": "0.5", "r": "1", "c": v} for v in ("1.1", "1.10", "01", "1")])
    log, rows = read(tmp_path / "log", content)
    assert values_of(log, rows)[2] == ["1.1", "1.10", "01", "1"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_delay_may_be_a_duration(tmp_path: Path, unit: str) -> None:
    waits = [datetime.timedelta(seconds=3), None, datetime.timedelta(0)]
    column = pa.array(waits, pa.duration(unit))
    times = pa.array([datetime.datetime(2024, 1, 1)] * 3, pa.timestamp("us"))
    content = as_parquet({"a": ["x", "y", "x"], "t": times, "wait": column, "c": ["u"] * 3})
    given = mapping(timestamp="t", delay="wait", propensity=None, reward=None, features={"categorical": ["c"]})
    _, rows = read(tmp_path / "log", content, given=given)
    assert [row.get("delays_ms") for row in rows] == [3_000, None, 0]


def test_duration_is_no_class(tmp_path: Path) -> None:
    content = as_parquet({"a": [datetime.timedelta(1)] * 2, "c": ["u"] * 2})
    with pytest.raises(DatasetError, match="row 1, a: expected a string or a number"):
        read(tmp_path / "log", content, given=mapping(propensity=None, reward=None, features={"categorical": ["c"]}))


def test_classes_eligible_classes_and_the_mapping_agree(tmp_path: Path) -> None:
    given = mapping(
        label="y", eligible="ok", classes=[0, 1.0, "2.0", True], propensity=None, features={"numeric": ["x"]}
    )
    csv = b"a,y,ok,x,r\n0.0,1,0|1|True,1,1\n2,true,2.0|0,2,0\n"
    lines = b'{"a": 0, "y": 1.0, "ok": [0.0, 1, true], "x": 1, "r": 1}\n'
    lines += b'{"a": 2, "y": true, "ok": ["2", 0], "x": 2, "r": 0}\n'
    for content in (csv, lines):
        log, rows = read(tmp_path / "log", content, given=given)
        assert log.class_names == ("0", "1", "2", "true")
        assert [(row["actions"], row["labels"]) for row in rows] == [(0, 1), (2, 3)]
        eligible = next(log.batches()).eligible
        assert eligible is not None
        assert (eligible.offsets.tolist(), eligible.classes.tolist()) == ([0, 3, 5], [0, 1, 3, 0, 2])


def test_large_svmlight_labels_are_distinct(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("9007199254740993 1:1\n9007199254740992 1:2\n9007199254740993.0 1:3\n")
    found = svmlight.read(tmp_path / "log")
    assert found.class_names == ("9007199254740992", "9007199254740993")
    assert [found.label(row) for row in range(3)] == [1, 0, 1]


def test_svmlight_labels_have_the_names_of_a_logs_classes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("3.0 1:1\n+7 1:2\n3 1:3\n")
    assert svmlight.read(tmp_path / "log").class_names == ("3", "+7")
    (tmp_path / "log").write_text("True 1:1\nno 1:2\ntrue 1:3\n")
    assert svmlight.read(tmp_path / "log").class_names == ("true", "no")


def test_text_of_a_number_does_not_depend_on_its_format() -> None:
    assert {text_of(value) for value in (5, 5.0, "5", "5.0", "5.000", "5.0E0")} == {"5"}
    assert {text_of(value) for value in (1e300, "1e+300", "1.0E300", float("nan"), float("inf"))} == {None}


BAD_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("propensity", {"p": 0}),
    ("reward", {"r": 7}),
    ("time", {"t": "yesterday"}),
    ("order", {"t": 1}),
    ("id", {"id": "id-0"}),
    ("number", {"x": "much"}),
    ("eligible", {"ok": ["a", "b"]}),
]


@pytest.mark.parametrize(("kind", "change"), BAD_ROWS)
def test_skipped_row_leaves_no_class_or_category(tmp_path: Path, kind: str, change: dict[str, Any]) -> None:
    rows = [
        {"id": f"id-{k}", "t": 1_700_000_000 + k, "a": "ab"[k % 2], "p": 0.5, "r": 1, "c": "de", "x": k, "ok": None}
        for k in range(20)
    ]
    bad = {**rows[10], "id": "bad", "a": "other class", "c": "other country", **change}
    given = mapping(
        id="id", timestamp="t", time_unit="s", eligible="ok", features={"categorical": ["c"], "numeric": ["x"]}
    )
    content = b"\n".join(json.dumps(row).encode() for row in [*rows[:10], bad, *rows[11:]])
    log, found = read(tmp_path / "log", content, given=given, on_bad_row="skip")
    assert (len(found), sum(log.skipped.values()), kind != "") == (19, 1, True)
    assert log.class_names == ("a", "b")
    assert list(log.encoder.names["c"].indices or ()) == ["de"]


def test_repeated_header_lines_leave_no_class(tmp_path: Path) -> None:
    part = b"a,p,r,price,country\nleft,0.5,1,1,de\nright,0.5,0,2,fr\n"
    log, found = read(tmp_path / "log", part * 3, given=mapping(), on_bad_row="skip")
    assert (len(found), log.class_names) == (6, ("left", "right"))
    assert list(log.encoder.names["country"].indices or ()) == ["de", "fr"]
    assert sum(log.skipped.values()) == 2


@pytest.mark.parametrize("suffix", ["", "Z", " UTC", "+00", "+00:00"])
@pytest.mark.parametrize("digits", ["", ".2", ".218", ".218000", ".2180000"])
def test_times_are_read_as_databases_write_them(tmp_path: Path, suffix: str, digits: str) -> None:
    content = f"a,t,c\nx,2024-05-01 10:00:00{digits}{suffix},u\ny,2024-05-01 10:00:01{digits}{suffix},u\n".encode()
    given = mapping(timestamp="t", propensity=None, reward=None, features={"categorical": ["c"]})
    _, rows = read(tmp_path / "log", content, given=given)
    assert [row["decided_at_ms"] // 1_000 for row in rows] == [1_714_557_600, 1_714_557_601]
