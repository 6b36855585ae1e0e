"""Text as editors, spreadsheets and exports write it: byte-order marks, separators, quotation marks, long lines."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onebit.experiments.definition import FILES as FILES_OF_EXPERIMENTS
from onebit.experiments.definition import read_experiment
from producers.datasets import svmlight
from producers.datasets.base import DatasetError
from producers.datasets.logs import reading, streams
from producers.datasets.logs.json_lines import column_names
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import LogFile, open_log
from producers.datasets.logs.streams import HEAD_BYTES, Source
from stream.programs.task_settings import named_features
from stream.randomness.delays import read_empirical
from stream.settings.sources import load_settings
from stream.text import BYTE_ORDER_MARK
from stream.wire.named_features import Kind, build, to_plain
from tests.producers.logs.rows import mapping, plain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CSV = b"a,p,r,price,country\nleft,0.5,1,2.5,de\nright,0.5,0,1,fr\nleft,0.5,0,3,de\n"
JSONL = b"".join(
    json.dumps({"a": a, "p": 0.5, "r": r, "price": price, "country": country}).encode() + b"\n"
    for a, r, price, country in (("left", 1, 2.5, "de"), ("right", 0, 1, "fr"), ("left", 0, 3, "de"))
)
VW = b"1:-1:0.5 |u price:2.5 de\n2:0:0.5 |u price:1 fr\n1:0:0.5 |u price:3 de\n"
DSJSON = b"".join(
    json.dumps({"_label_cost": -r, "EventId": f"e{r}{a}", "a": [a, 3 - a], "p": [0.5, 0.5], "c": {"x": a}}).encode()
    + b"\n"
    for a, r in ((1, 1), (2, 0), (1, 0))
)

FILES: dict[str, tuple[bytes, Any]] = {
    "CSV": (CSV, mapping()),
    "TSV": (CSV.replace(b",", b"\t"), mapping()),
    "JSON lines": (JSONL, mapping()),
    "VW text": (VW, None),
    "VW dsjson": (DSJSON, None),
}


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "log"
    path.write_bytes(content)
    return path


def read(path: Path, given: Any = None, **options: Any) -> tuple[LogFile, list[dict[str, Any]]]:
    log = open_log(path, given, **options)
    return log, plain(log.batches())


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize("kind", FILES)
def test_byte_order_mark_does_not_change_a_log(tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]) -> None:
    content, given = FILES[kind]
    expected, rows = read(write(tmp_path, content), given)
    log, found = read(write(tmp_path, pack(BYTE_ORDER_MARK + content)), given)
    assert (log.format, log.class_names, log.encoder, found) == (
        expected.format, expected.class_names, expected.encoder, rows,
    )  # fmt: skip
    assert len(rows) == 3


def test_byte_order_mark_does_not_change_an_svmlight_file(tmp_path: Path) -> None:
    found = svmlight.read(write(tmp_path, BYTE_ORDER_MARK + b"3 1:0.5\n2 1:1\n3 2:1\n"))
    assert (found.class_names, found.label(0)) == (("2", "3"), 1)


def test_byte_order_mark_is_accepted_in_settings_and_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def marked(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(BYTE_ORDER_MARK + text.encode())
        return path

    assert read_mapping(marked("map.toml", 'action = "a"\r\n[features]\nnumeric = ["x"]\n')).action == "a"
    assert read_empirical(marked("delays", "10\r\n20\n")).delays_ms == (10, 20)
    shipped = (FILES_OF_EXPERIMENTS / "delay.toml").read_text(encoding="utf-8")
    assert read_experiment(marked("delay.toml", shipped)) == read_experiment(FILES_OF_EXPERIMENTS / "delay.toml")
    monkeypatch.setenv("ONEBIT_CONFIG", str(marked("onebit.toml", 'window = "7s"\n')))
    encoder = to_plain(build({"x": (Kind.NUMERIC, None)}, None))
    settings = load_settings({"features": str(marked("features.json", json.dumps(encoder)))})
    assert settings.window_ms == 7_000
    assert named_features(settings) == encoder


def test_delays_are_cut_at_line_ends_only(tmp_path: Path) -> None:
    (tmp_path / "delays").write_bytes("10\u2028\n20\n".encode())
    assert read_empirical(tmp_path / "delays").delays_ms == (10, 20)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0c", "\x0b", "\x1c", "\x1e"])
@pytest.mark.parametrize("kind", FILES)
def test_only_line_ends_separate_rows_and_words(tmp_path: Path, kind: str, mark: str) -> None:
    content, given = FILES[kind]
    if kind == "JSON lines":
        row = {"a": "left", "p": 0.5, "r": 1, "price": 1, "country": f"d{mark}e"}
        first = json.dumps(row, ensure_ascii=False)
    elif kind == "VW dsjson":
        fields = {"EventId": "e", "a": [1, 2], "p": [0.5, 0.5], "c": {"country": f"d{mark}e"}, "_label_cost": 0}
        first = json.dumps(fields, ensure_ascii=False)
    else:
        first = {
            "CSV": f"left,0.5,1,1,d{mark}e", "TSV": f"left\t0.5\t1\t1\td{mark}e", "VW text": f"1:0:0.5 |u d{mark}e",
        }[kind]  # fmt: skip
    header, rows = (content[:20], content[20:]) if kind in ("CSV", "TSV") else (b"", content)
    log, found = read(write(tmp_path, header + first.encode() + b"\n" + rows), given)
    assert len(found) == 4
    known = log.encoder.names["u" if kind == "VW text" else "country"].indices
    assert known is not None
    assert f"d{mark}e" in known


@pytest.mark.parametrize("delimiter", [b",", b"\t", b";"])
@pytest.mark.parametrize(
    ("last", "lines"),
    [
        (b'left,0.5,1,1,"Best of\nright,0.5,1,1,fr\nleft,0.5,0,1,"Last one\nright,0.5,1,1,fr\n', [5, 7]),
        (b'left,0.5,1,1,"Best" of\nright,0.5,1,1,fr\n', [5]),
        (b'"left,0.5,1,1,de\nright,0.5,1,1,fr\nleft",0.5,0,1,de\n', [5]),
        (b'left,0.5,1,1,"Best of\nright,0.5,1,1,fr\nleft,0.5,0,1,Last one"\nright,0.5,1,1,fr\n', [5]),
    ],
)
def test_unclosed_quotation_mark_loses_only_its_own_line(
    tmp_path: Path, delimiter: bytes, last: bytes, lines: list[int]
) -> None:
    path = write(tmp_path, (CSV + last).replace(b",", delimiter))
    log, found = read(path, mapping(), on_bad_row="skip")
    assert len(found) == 3 + last.count(b"\n") - len(lines)
    assert log.skipped == {"row: expected a closing quotation mark": len(lines)}
    with pytest.raises(DatasetError, match=f"line {lines[0]}, row: "):
        read(path, mapping())


def test_quoted_fields_may_span_lines_and_contain_delimiters(tmp_path: Path) -> None:
    _, found = read(write(tmp_path, CSV + b'left,0.5,1,1,"a, b\nc, d\r\n""e"", f"\n'), mapping())
    assert len(found) == 4
    log, _ = read(write(tmp_path, CSV + b'left,0.5,1,1,"a, b\nc, d\r\n""e"", f"\n'), mapping())
    assert 'a, b\nc, d\r\n"e", f' in (log.encoder.names["country"].indices or {})


def test_unclosed_quotation_mark_in_the_header_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 1, row: expected a closing quotation mark"):
        read(write(tmp_path, CSV.replace(b"country", b'"country', 1) + b'left,0.5,1,1,"x"\n'), mapping())


@pytest.mark.parametrize(
    ("old", "new"), [(b",", b", "), (b",", b",   "), (b"de", b' "de"'), (b",country", b', "country"')]
)
def test_spaces_after_commas_are_not_part_of_values(tmp_path: Path, old: bytes, new: bytes) -> None:
    expected, rows = read(write(tmp_path, CSV), mapping())
    log, found = read(write(tmp_path, CSV.replace(old, new)), mapping())
    assert (log.encoder, log.class_names, found) == (expected.encoder, expected.class_names, rows)


@pytest.mark.parametrize("delimiter", [b",", b"\t", b";", b"~"])
def test_separator_line_of_a_spreadsheet_names_the_delimiter(tmp_path: Path, delimiter: bytes) -> None:
    first = b"sep=" + delimiter + b"\r\n"
    content = first + CSV.replace(b",", delimiter).replace(b"\n", b"\r\n")
    log, found = read(write(tmp_path, BYTE_ORDER_MARK + content + b"left\r\n"), mapping(), on_bad_row="skip")
    assert len(found) == 3
    assert log.first_skipped == {"row: expected 5 columns, as in the header": "line 6; got 1"}


@pytest.mark.parametrize("kind", FILES)
def test_first_line_may_be_longer_than_a_block(tmp_path: Path, kind: str) -> None:
    content, given = FILES[kind]
    long = b"x" * (max(HEAD_BYTES, streams.BLOCK_BYTES) + 10)
    if kind in ("CSV", "TSV"):
        delimiter = b"," if kind == "CSV" else b"\t"
        lines = content.splitlines()
        content = b"".join([long, delimiter, lines[0], b"\n", *(b"1" + delimiter + line + b"\n" for line in lines[1:])])
    elif kind == "VW text":
        content = content.replace(b"|u ", b"|u " + long + b" ", 1)
    else:
        content = content.replace(b"{", b'{"note": "' + long + b'", ', 1)
    expected, _ = read(write(tmp_path, FILES[kind][0]), given)
    log, found = read(write(tmp_path, content), given)
    assert (log.format, len(found)) == (expected.format, 3)


@pytest.mark.parametrize("name", ["late", "user.late"])
def test_key_that_first_appears_late_is_a_column(tmp_path: Path, name: str) -> None:
    late = {"a": "left", "p": 0.5, "r": 1, **({"late": 7.0} if name == "late" else {"user": {"late": 7.0}})}
    path = write(tmp_path, JSONL * 5_000 + json.dumps(late).encode() + b"\n")
    assert path.stat().st_size > streams.BLOCK_BYTES
    log, found = read(path, mapping(features={"numeric": [name]}))
    assert [row["x"] for row in found if row["x"]] == [{0: 7.0}]
    assert name in column_names(Source(str(path)))
    with pytest.raises(DatasetError, match="has no column 'latest'"):
        open_log(path, mapping(features={"numeric": ["latest"]}))
    assert log.format in reading.TABLES


def test_nested_and_dotted_names_may_be_mixed(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"a": "left", "p": 1, "r": 1, "user.x": 2.0},
        {"a": "right", "p": 1, "r": 1, "user": {"x": 3.0}},
    ]
    content = b"\n".join(json.dumps(row).encode() for row in rows)
    _, found = read(write(tmp_path, content), mapping(features={"numeric": ["user.x"]}))
    assert [row["x"] for row in found] == [{0: 2.0}, {0: 3.0}]


SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"


@pytest.mark.parametrize("kind", FILES)
def test_zstd_frames_without_content_are_skipped(tmp_path: Path, kind: str) -> None:
    content, given = FILES[kind]
    parts = [content[:20], content[20:]]
    packed = SKIPPABLE * 2 + SKIPPABLE.join(map(zstd.compress, parts)) + zstd.compress(b"") + SKIPPABLE
    _, rows = read(write(tmp_path, packed), given)
    assert len(rows) == 3
