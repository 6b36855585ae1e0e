"""All table formats produce the same rows, and invalid rows are reported or counted."""

import gzip
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from producers.datasets.base import DatasetError
from producers.datasets.logs import columns, csv_tables, reading, seen_ids, streams
from producers.datasets.logs.checks import CUT_OFF
from producers.datasets.logs.reading import LogFile, open_log
from producers.datasets.logs.streams import Source
from stream.settings.values import OnBadRow
from stream.wire.named_features import from_plain, to_plain
from tests.producers.logs.rows import mapping, plain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROWS: list[dict[str, Any]] = [
    {"a": "left", "p": 0.5, "r": 1, "price": 2.5, "country": "de"},
    {"a": "right", "p": 0.25, "r": None, "price": None, "country": "fr"},
    {"a": "left", "p": 1.0, "r": 0, "price": -1.0, "country": None},
]

READ = [
    {"id": "log-000000", "x": {0: 2.5, 1: 1.0}, "actions": 0, "propensities": 0.5, "rewards": 1},
    {"id": "log-000001", "x": {2: 1.0}, "actions": 1, "propensities": 0.25},
    {"id": "log-000002", "x": {0: -1.0}, "actions": 0, "propensities": 1.0, "rewards": 0},
]


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    def text(value: object) -> str:
        return "" if value is None else '"' + str(value).replace('"', '""') + '"'

    lines = [",".join(rows[0]), *(",".join(text(row[name]) for name in rows[0]) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def write(folder: Path, content: bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, **options: Any) -> tuple[LogFile, list[dict[str, Any]]]:
    given = options.pop("mapping", None) or mapping()
    log = open_log(path, given, **options)
    return log, plain(log.batches())


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl, as_parquet])
def test_every_format_gives_the_same_rows(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    log, rows = read(write(tmp_path, write_as(ROWS)))
    assert rows == READ
    assert (log.name, log.n_features, log.class_names, log.skipped) == ("log", 3, ("left", "right"), {})
    assert plain(log.batches()) == READ  # the log can be read repeatedly


SETS: list[list[str] | None] = [["right", "left"], None, ["left", "middle"]]


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl, as_parquet])
def test_eligible_classes_are_the_same_in_every_format(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    listed = [";".join(one or ()) if write_as is as_csv else one for one in SETS]
    rows = [row | {"among": one} for row, one in zip(ROWS, listed, strict=True)]
    log, found = read(write(tmp_path, write_as(rows)), mapping=mapping(eligible="among", eligible_separator=";"))
    assert found == READ
    assert log.class_names == ("left", "right", "middle"), (
        "one class was never played, and occurs only in the lists of eligible classes"
    )
    (batch,) = log.batches()
    assert batch.eligible is not None
    assert batch.eligible.mask(3).tolist() == [[True, True, False], [True, True, True], [True, False, True]]


@pytest.mark.parametrize("among", [[], ["left", "left"], ["left", "unheard-of"], ["right"], ["left", {}], ["left", ""]])
def test_invalid_eligible_classes_are_reported(tmp_path: Path, among: list[Any]) -> None:
    rows = [row | {"among": one} for row, one in zip(ROWS, (among, None, ["left", "right"]), strict=True)]
    given = mapping(eligible="among", classes=["left", "right"])
    log, found = read(write(tmp_path, as_jsonl(rows)), mapping=given, on_bad_row="skip")
    assert (len(found), sum(log.skipped.values())) == (2, 1)
    (batch,) = log.batches()
    assert batch.eligible is not None
    assert batch.eligible.mask(2).all()


def in_two_members(data: bytes) -> bytes:
    return gzip.compress(data[:99]) + gzip.compress(data[99:])


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress, in_two_members])
@pytest.mark.parametrize("write_as", [as_csv, as_jsonl])
def test_compressed_files_are_detected_by_content(
    tmp_path: Path, write_as: Callable[..., bytes], pack: Callable[[bytes], bytes]
) -> None:
    assert read(write(tmp_path, pack(write_as(ROWS)), "log.json"))[1] == READ


VALUES = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["left", "right", 'ümlaut, "quoted"', "two\nlines"]),
        "p": st.floats(0.001, 1.0),
        "r": st.sampled_from([0, 1, None]),
        "price": st.none() | st.floats(-1e9, 1e9),
        "country": st.none() | st.text("abc ,;\"'\n\r|é", min_size=1, max_size=8),
    }
)


@given(st.lists(VALUES, min_size=1, max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_values_round_trip_in_every_format(tmp_path: Path, values: list[dict[str, Any]]) -> None:
    rows = [*ROWS, *values]
    classes = ["left", "right", 'ümlaut, "quoted"', "two\nlines"]
    for write_as in (as_csv, as_jsonl, as_parquet):
        log, found = read(write(tmp_path, write_as(rows)), mapping=mapping(classes=classes))
        assert len(found) == len(rows)
        names = log.encoder.names["country"].indices
        assert names is not None
        for row, one in zip(rows, found, strict=True):
            expected = {0: row["price"]} if row["price"] else {}
            assert one["x"] == expected | ({names[row["country"]]: 1.0} if row["country"] else {})
            assert (one["actions"], one.get("rewards")) == (classes.index(row["a"]), row["r"])
            assert math.isclose(one["propensities"], row["p"])


BAD = [
    ({"p": math.nan}, "p: expected a probability in (0, 1]"),
    ({"p": None}, "p: expected a probability in (0, 1]"),
    ({"p": 0.0}, "p: expected a probability in (0, 1]"),
    ({"p": 1.5}, "p: expected a probability in (0, 1]"),
    ({"r": 0.5}, "reward: expected 0 or 1 (or set reward_above, or rewards=graded)"),
    ({"a": None}, "a: expected the action"),
    ({"price": math.inf}, "price: expected a finite number"),
]


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl, as_parquet])
@pytest.mark.parametrize(("fields", "reason"), BAD)
def test_invalid_row_is_reported_or_counted(
    tmp_path: Path, write_as: Callable[..., bytes], fields: dict[str, Any], reason: str
) -> None:
    rows = [ROWS[0], {**ROWS[0], **fields}, *ROWS[1:]]
    path = write(tmp_path, write_as(rows))
    log, found = read(path, on_bad_row="skip")
    if write_as is as_jsonl and not all(value is None or math.isfinite(value) for value in fields.values()):
        reason = "line: expected one JSON object"  # JSON has no NaN or infinity
    assert log.skipped == {reason: 1}
    assert list(log.first_skipped) == [reason]
    assert [row["id"] for row in found] == ["log-000000", "log-000002", "log-000003"]
    with pytest.raises(DatasetError) as caught:
        read(path)
    where = {as_csv: "line 3", as_jsonl: "line 2", as_parquet: "row 2"}[write_as]
    assert f"log, {where}, {reason}; got " in str(caught.value)
    assert log.first_skipped[reason].startswith(f"{where}; got ")


@pytest.mark.parametrize("field", ["p", "t"])
def test_empty_string_is_a_missing_value(tmp_path: Path, field: str) -> None:
    rows = [{**row, "p": str(row["p"]), "t": str(n)} for n, row in enumerate(ROWS)]
    path = write(tmp_path, as_jsonl([rows[0], {**rows[0], field: ""}, *rows[1:]]))
    log, found = read(path, mapping=mapping(timestamp="t"), on_bad_row="skip")
    assert [row["id"] for row in found] == ["log-000000", "log-000002", "log-000003"]
    assert sum(log.skipped.values()) == 1


def test_unknown_class_makes_the_row_invalid(tmp_path: Path) -> None:
    path = write(tmp_path, as_jsonl([*ROWS, {**ROWS[0], "a": "up"}]))
    log, found = read(path, mapping=mapping(classes=["right", "left"]), on_bad_row="skip")
    assert log.skipped == {"action: expected one of the 2 classes": 1}
    assert [row["actions"] for row in found] == [1, 0, 1]
    with pytest.raises(DatasetError, match=r"line 4, action: .*'up'"):
        read(path, mapping=mapping(classes=["left", "right"]))


def test_columns_can_have_mixed_types(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "price": price} for price in (1, "2.5", True, "x", [1], {"y": 1}, "", None, 10**400)]
    log, found = read(write(tmp_path, as_jsonl(rows + ROWS)), on_bad_row="skip")
    assert log.skipped == {"price: expected a finite number": 3, "line: expected one JSON object": 0} | log.skipped
    assert [row["x"].get(0) for row in found] == [1.0, 2.5, 1.0, None, None, 2.5, None, -1.0]


def test_equal_numbers_and_strings_are_one_category(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "country": value} for value in (3, "3", 3.0, True, "true")]
    log, found = read(write(tmp_path, as_jsonl([*rows, ROWS[1]])))
    assert [row["x"] for row in found[:5]] == [{0: 2.5, 1: 1.0}] * 3 + [{0: 2.5, 2: 1.0}] * 2
    assert log.n_features == 4


TIMES = [
    ("2019-11-24 00:00:34.762830+00:00", 1_574_553_634_762),
    ("2019-11-24T00:00:34.7628301Z", 1_574_553_634_762),
    ("2019-11-24T01:00:35+01:00", 1_574_553_635_000),
    ("2019-11-24 00:00:36", 1_574_553_636_000),
    (1_574_553_637, 1_574_553_637_000),
    (1_574_553_638.5, 1_574_553_638_500),
    (1_574_553_639_001, 1_574_553_639_001),
    (1_574_553_640_001_999, 1_574_553_640_001),
]


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl])
def test_times_can_be_iso_8601_or_numbers_in_a_guessed_unit(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    timed = mapping(timestamp="t")
    together = write(tmp_path, write_as([{**ROWS[n % 2], "t": time} for n, (time, _) in enumerate(TIMES)]))
    assert [row["decided_at_ms"] for row in read(together, mapping=timed)[1]] == [time_ms for _, time_ms in TIMES]
    for time, time_ms in TIMES:
        alone = write(tmp_path, write_as([{**row, "t": time} for row in ROWS]))
        assert [row["decided_at_ms"] for row in read(alone, mapping=timed)[1]] == [time_ms] * 3


def test_unit_of_numeric_times_is_reported(tmp_path: Path) -> None:
    for time, note in ((1_574_553_637, ["s"]), (1_574_553_637_000, ["ms"]), ("2019-11-24T00:00:36", [])):
        path = write(tmp_path, as_csv([{**row, "t": time} for row in ROWS]))
        notes = open_log(path, mapping(timestamp="t")).notes
        assert notes == tuple(f"numeric times in t are interpreted as {unit} since 1970" for unit in note)


def test_parquet_timestamps_are_read_in_their_own_unit(tmp_path: Path) -> None:
    for unit, per_ms in (("s", 0.001), ("ms", 1), ("us", 1_000), ("ns", 1_000_000)):
        times = pa.array([int(1_574_553_634_000 * per_ms)] * 3, pa.int64()).cast(pa.timestamp(unit, "Europe/Berlin"))
        table = pa.Table.from_pylist(ROWS).append_column("t", times)
        parquet.write_table(table, tmp_path / "log")
        rows = read(tmp_path / "log", mapping=mapping(timestamp="t"))[1]
        assert [row["decided_at_ms"] for row in rows] == [1_574_553_634_000] * 3


@pytest.mark.parametrize("time", ["yesterday", "2019-13-01T00:00:00Z", -5, 1e300, True, ""])
def test_invalid_time_makes_the_row_invalid(tmp_path: Path, time: object) -> None:
    path = write(tmp_path, as_jsonl([{**ROWS[0], "t": time}, *({**row, "t": 1} for row in ROWS)]))
    log, found = read(path, mapping=mapping(timestamp="t"), on_bad_row="skip")
    assert len(found) == 3
    assert sum(log.skipped.values()) == 1


def test_decreasing_time_makes_the_row_invalid(tmp_path: Path) -> None:
    rows = [{**ROWS[n % 2], "t": 1_000 + time} for n, time in enumerate((0, 5, 3, 4, 5, 6))]
    path = write(tmp_path, as_jsonl(rows))
    log, found = read(path, mapping=mapping(timestamp="t"), on_bad_row="skip")
    assert log.skipped == {"timestamp: expected non-decreasing times; sort the rows by time": 2}
    assert [row["decided_at_ms"] // 1_000 - 1_000 for row in found] == [0, 5, 5, 6]
    with pytest.raises(DatasetError, match=r"line 3, timestamp: .*2000 ms"):
        read(path, mapping=mapping(timestamp="t"))


def test_duplicate_ids_make_the_row_invalid(tmp_path: Path) -> None:
    rows = [{**ROWS[n % 2], "id": one} for n, one in enumerate(["x", "y", "x", "z", "y", "x"])]
    path = write(tmp_path, as_csv(rows))
    log, found = read(path, mapping=mapping(id="id"), on_bad_row="skip")
    assert [row["id"] for row in found] == ["x", "y", "z"]
    ((reason, count),) = log.skipped.items()
    assert (reason.partition(":")[0], count) == ("id", 3)
    with pytest.raises(DatasetError, match=r"line 4, id: .*'x'"):
        read(path, mapping=mapping(id="id"))


@pytest.mark.parametrize("run_ids_max", [40, seen_ids.RUN_IDS_MAX])
def test_duplicates_are_found_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_ids_max: int) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(seen_ids, "RUN_IDS_MAX", run_ids_max)
    ids = [f"id-{n}" for n in range(500)]
    rows = [{**ROWS[n % 2], "id": one} for n, one in enumerate([*ids, "id-7", "id-499", "id-500"])]
    log, found = read(write(tmp_path, as_jsonl(rows)), mapping=mapping(id="id"), on_bad_row="skip")
    assert [row["id"] for row in found] == [*ids, "id-500"]
    assert sum(log.skipped.values()) == 2


def test_delays_can_be_durations_or_numbers_in_the_column_unit(tmp_path: Path) -> None:
    rows = [{**ROWS[n % 2], "wait_ms": wait} for n, wait in enumerate([1500, "2s", None, 0.4])]
    found = read(write(tmp_path, as_jsonl(rows)), mapping=mapping(delay="wait_ms"))[1]
    assert [row.get("delays_ms") for row in found] == [1_500, 2_000, None, 0]
    found = read(write(tmp_path, as_jsonl(rows)), mapping=mapping(delay="wait_ms", delay_unit="s"))[1]
    assert [row.get("delays_ms") for row in found] == [1_500_000, 2_000, None, 400]


def test_delays_are_computed_from_feedback_times(tmp_path: Path) -> None:
    rows = [{**ROWS[n % 2], "t": 1_000, "f": time} for n, time in enumerate([1_002.5, None, 999, 1_000])]
    timed = mapping(timestamp="t", feedback_time="f")
    log, found = read(write(tmp_path, as_jsonl(rows)), mapping=timed, on_bad_row="skip")
    assert [row.get("delays_ms") for row in found] == [2_500, None, 0]
    assert log.skipped == {"f: expected a time at or after the decision": 1}


def test_rewards_above_the_threshold_become_1(tmp_path: Path) -> None:
    rows = [{**ROWS[n % 2], "r": reward} for n, reward in enumerate([0.2, 3, None, 0.5, -1])]
    log, found = read(write(tmp_path, as_jsonl(rows)), reward_above=0.5)
    assert [row.get("rewards") for row in found] == [0, 1, None, 0, 0]
    assert log.skipped == {}


def test_labels_and_actions_share_classes(tmp_path: Path) -> None:
    rows = [{"a": a, "y": y, "price": 1} for a, y in [("10", "9"), ("9", "2"), ("9", None)]]
    given = mapping(label="y", propensity=None, reward=None, features={"numeric": ["price"]})
    log, found = read(write(tmp_path, as_csv(rows)), mapping=given)
    assert log.class_names == ("2", "9", "10")
    assert [(row["actions"], row.get("labels")) for row in found] == [(2, 1), (1, 0), (1, None)]


def test_large_vocabulary_is_hashed_and_collisions_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "VOCABULARY_MAX", 100)
    monkeypatch.setattr(reading, "HASH_BITS", 8)
    rows = [{**ROWS[n % 2], "country": f"c{n}", "note": "red  Red blue"} for n in range(300)]
    given = mapping(features={"numeric": ["price"], "categorical": ["country"], "text": ["note"]})
    log, found = read(write(tmp_path, as_jsonl(rows)), mapping=given)
    assert log.n_features == 1 + 2 + 256
    assert found[0]["x"][1] == 2.0  # "red" occurs twice
    assert len({max(row["x"]) for row in found}) > 100
    assert "features hashed to 256 indices: country; about 207 of 300 values share" in log.notes[-1]
    for row, one in zip(rows[:20], found, strict=False):
        x, _ = log.encoder.encode({"price": row["price"], "country": row["country"], "note": row["note"]})
        assert dict(zip(x.indices.tolist(), x.values.tolist(), strict=True)) == one["x"]


def test_values_outside_the_vocabulary_are_skipped(tmp_path: Path) -> None:
    first, _ = read(write(tmp_path, as_csv(ROWS)))
    log = open_log(write(tmp_path, as_csv([ROWS[1], {**ROWS[0], "country": "it"}]), "other"), mapping())
    log.encoder = from_plain(json.loads(json.dumps(to_plain(first.encoder))))
    assert [row["x"] for row in plain(log.batches())] == [{2: 1.0}, {0: 2.5}]


@pytest.mark.parametrize("content", [gzip.compress(as_jsonl(ROWS)), as_csv(ROWS), as_parquet(ROWS)])
def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    class Stdin:
        buffer = io.BytesIO(content)

    monkeypatch.setattr(sys, "stdin", Stdin)
    log = open_log("-", mapping())
    found = plain(log.batches())
    assert found == [{**row, "id": str(row["id"]).replace("log", "stdin")} for row in READ]
    assert plain(log.batches()) == found
    assert log.class_names == ("left", "right")


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_truncated_compressed_file_is_rejected_or_counted(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    rows = [{**ROWS[n % 2], "price": float(generator.normal())} for n in range(20_000)]
    packed = pack(as_jsonl(rows))
    path = write(tmp_path, packed[: len(packed) // 2])
    with pytest.raises(DatasetError):
        read(path)
    log, found = read(path, on_bad_row="skip")
    assert log.skipped == {CUT_OFF: 1}
    assert 5_000 < len(found) < 20_000
    assert [row["x"].get(0) for row in found] == [row["price"] for row in rows[: len(found)]]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_highly_compressible_file_is_read_in_blocks(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, pack(bytes(4 << 20)))
    assert max(map(len, Source(str(path)).chunks())) <= streams.BLOCK_BYTES


def test_damaged_compressed_file_is_rejected(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(as_jsonl(ROWS * 100)))
    packed[60:90] = b"\xff" * 30
    with pytest.raises(DatasetError):
        read(write(tmp_path, bytes(packed)))


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl])
def test_row_of_100_megabytes_is_invalid(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(write_as(ROWS))
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + (write_as(ROWS).partition(b"\n")[2] if write_as is as_csv else write_as(ROWS)))
    log, found = read(path, on_bad_row="skip")
    assert [row["id"][-1] for row in found] == ["0", "1", "2", "4", "5", "6"]
    assert list(log.skipped.values()) == [1]
    with pytest.raises(DatasetError, match=r"line [45], line: .*8388608 .*100000001"):
        read(path)


@pytest.mark.parametrize("behind", [0, 5, 6_000])  # 6,000 lines together exceed the maximum row length
def test_unclosed_quote_does_not_hide_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 4 << 10)
    monkeypatch.setattr(csv_tables, "LINE_BYTES_MAX", 64 << 10)
    path = write(tmp_path, as_csv(ROWS) + b'left,0.5,1,1,"de\n' + b"left,0.5,1,1,de\n" * behind)
    with pytest.raises(DatasetError, match=r"line 5, row: .*left,0.5,1,1"):
        read(path)
    log = open_log(path, mapping(), on_bad_row="skip")
    assert sum(len(batch.ids) for batch in log.batches()) == 3 + behind
    assert log.skipped == {"row: expected a closing quotation mark": 1}


def test_row_can_span_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 64)
    long = {**ROWS[0], "country": "line\n" * 50}
    path = write(tmp_path, as_csv([ROWS[0], long, *ROWS[1:], {**ROWS[0], "p": 2}]))
    log, found = read(path, on_bad_row="skip")
    assert [row["actions"] for row in found] == [0, 0, 1, 0]
    assert log.first_skipped == {"p: expected a probability in (0, 1]": "line 56; got 2.0"}


@given(st.text('ab,"\n\r\udcff', max_size=60), st.integers(1, 40))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_rows_do_not_depend_on_block_boundaries(tmp_path: Path, text: str, size: int) -> None:
    path = write(tmp_path, b"x,y\n" + text.encode("utf-8", "surrogateescape"))

    def rows() -> list[Any]:
        tables = list(csv_tables.tables(Source(str(path))))
        return [
            (table.where(row), *(column[row] for column in table.columns.values()), *reasons)
            for table in tables
            for row in range(table.n)
            for reasons in [[problem[1:] for problem in table.problems if problem.row == row]]
        ]

    at_once = rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_BYTES", size)
        assert rows() == at_once
    lines = [line for line in text.replace("\r\n", "\n").removesuffix("\r").split("\n") if line]
    if '"' not in text:
        assert len(at_once) == len(lines)


@pytest.mark.parametrize("last", ['"', 'left,0.5,1,1,"', '"left\nleft,0.5,1,1,de', '""",'])
def test_quote_left_open_at_the_end_is_counted(tmp_path: Path, last: str) -> None:
    log, found = read(write(tmp_path, as_csv(ROWS) + last.encode()), on_bad_row="skip")
    assert log.first_skipped["row: expected a closing quotation mark"].startswith("line 5; got ")
    assert [row["id"][-1] for row in found] == ["0", "1", "2", *(["4"] if "de" in last else [])]


def test_unclosed_quote_is_limited_to_the_maximum_row_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(csv_tables, "LINE_BYTES_MAX", 2_000)
    path = write(tmp_path, as_csv(ROWS) + b'left,0.5,1,1,"de\n' + b"left,0.5,1,1,de\n" * 1_000)
    log, found = read(path, on_bad_row="skip")
    assert len(found) == 1_003
    assert log.skipped == {"row: expected a closing quotation mark": 1}


def test_binary_garbage_between_rows_is_counted(tmp_path: Path) -> None:
    garbage = np.random.Generator(np.random.PCG64(1)).bytes(5_000).replace(b'"', b"")
    # The garbage is not at the start, where it would prevent detection of the CSV format.
    before, after = as_csv(ROWS * 10_000), as_csv(ROWS).partition(b"\n")[2]
    log, found = read(write(tmp_path, before + garbage + b"\n" + after), on_bad_row="skip")
    assert [row["x"] for row in found] == [row["x"] for row in READ * 10_001]
    assert sum(log.skipped.values()) == sum(1 for line in garbage.split(b"\n") if line.strip(b"\r"))


def test_only_plain_decimal_numbers_are_accepted(tmp_path: Path) -> None:
    for odd in ("1_0", "nan", "inf", "\u0661", "0x10", "1e999", "1,5", "null"):
        log, found = read(write(tmp_path, as_csv([*ROWS, {**ROWS[0], "price": odd}])), on_bad_row="skip")
        assert log.skipped == {"price: expected a finite number": 1}
        assert len(found) == 3


def test_missing_parquet_reader_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, as_parquet(ROWS))
    monkeypatch.delitem(sys.modules, "producers.datasets.logs.parquet_tables", raising=False)
    monkeypatch.delattr("producers.datasets.logs.parquet_tables", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"pip install 'onebit\[parquet\]'"):
        open_log(path, mapping())


def test_line_numbers_include_quoted_and_blank_lines(tmp_path: Path) -> None:
    content = b'a,p,r,price,country\n\nleft,1,1,1,"d\ne"\nright,1,1,1,fr\nleft,2,1,1,de\nleft,1,1\n'
    with pytest.raises(DatasetError, match="line 6, p: "):
        read(write(tmp_path, content.replace(b"left,1,1\n", b"")))
    with pytest.raises(DatasetError, match="line 6, p: "):
        read(write(tmp_path, content))
    log, found = read(write(tmp_path, content), on_bad_row="skip")
    assert log.skipped["row: expected 5 columns, as in the header"] == 1
    assert [row["id"] for row in found] == ["log-000000", "log-000001"]


def test_csv_with_other_delimiters_and_crlf_is_read(tmp_path: Path) -> None:
    for delimiter in (b";", b"\t", b"|"):
        content = b"\xef\xbb\xbf" + as_csv(ROWS).replace(b",", delimiter).replace(b"\n", b"\r\n")
        assert read(write(tmp_path, content))[1] == READ


def test_non_utf_8_text_makes_the_row_invalid(tmp_path: Path) -> None:
    long = as_csv(ROWS * 3_000)
    log, _ = read(write(tmp_path, long + b'"left","1","1","1","\xff\xfe"\n'), on_bad_row="skip")
    assert log.skipped == {"row: expected UTF-8 text": 1}


def test_missing_column_is_named(tmp_path: Path) -> None:
    for write_as in (as_csv, as_jsonl, as_parquet):
        path = write(tmp_path, write_as(ROWS))
        with pytest.raises(DatasetError, match=r"'contry'.*country"):
            open_log(path, mapping(features={"categorical": ["contry"]}))


def test_nested_columns_have_dotted_names(tmp_path: Path) -> None:
    rows = [
        {"a": row["a"], "p": row["p"], "r": row["r"], "x": {"price": row["price"], "country": row["country"]}}
        for row in ROWS
    ]
    given = mapping(features={"numeric": ["x.price"], "categorical": ["x.country"]})
    for write_as in (as_jsonl, as_parquet):
        assert read(write(tmp_path, write_as(rows)), mapping=given)[1] == READ


def test_table_requires_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        open_log(write(tmp_path, as_csv(ROWS)))


def test_damaged_parquet_file_is_rejected(tmp_path: Path) -> None:
    content = as_parquet(ROWS)
    for damaged in (content[:-20], content[:4] + b"x" * 100 + content[104:]):
        with pytest.raises(DatasetError, match="Parquet"):
            read(write(tmp_path, damaged))


@pytest.mark.parametrize("write_as", [as_jsonl, as_parquet])
def test_list_column_is_rejected_with_a_remedy(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    path = write(tmp_path, write_as([{**row, "price": [0.5, 1.5]} for row in ROWS]))
    with pytest.raises(DatasetError, match=r"price: .*\[0.5, 1.5\]"):
        read(path)


@pytest.mark.parametrize("write_as", [as_csv, as_jsonl, as_parquet])
def test_file_that_changes_during_reading_is_rejected(tmp_path: Path, write_as: Callable[..., bytes]) -> None:
    path = write(tmp_path, write_as(ROWS))
    log = open_log(path, mapping())
    path.write_bytes(write_as([*ROWS, ROWS[0]]))
    with pytest.raises(DatasetError):
        plain(log.batches())


@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_growing_compressed_file_is_reported_as_changed(tmp_path: Path, on_bad_row: OnBadRow) -> None:
    packed = gzip.compress(as_jsonl(ROWS))
    path = write(tmp_path, packed[:-10])
    numbers = mapping(classes=["left", "right"], features={"numeric": ["price"]})
    log = open_log(path, numbers, on_bad_row=on_bad_row)  # does not read the rows
    path.write_bytes(packed[:-5])
    with pytest.raises(DatasetError):
        plain(log.batches())


def test_parquet_strings_are_limited_to_the_maximum_row_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LINE_BYTES_MAX", 100)
    path = write(tmp_path, as_parquet([*ROWS, {**ROWS[0], "country": "x" * 101}, {**ROWS[1], "country": "y" * 100}]))
    log, found = read(path, on_bad_row="skip")
    assert log.skipped == {"country: expected at most 100 bytes": 1}
    assert len(found) == 4
    assert set(log.encoder.names["country"].indices or ()) == {"de", "fr", "y" * 100}
