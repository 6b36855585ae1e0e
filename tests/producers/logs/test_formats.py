"""A file's format is detected from its content, regardless of its name."""

import contextlib
import gzip
import io
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from producers.datasets.base import DatasetError
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.reading import open_log
from tests.limits import slowness
from tests.producers.logs.rows import mapping

KNOWN = [
    (b"PAR1\x15\x04", Format.PARQUET),
    (b"a,b,c\n1,2,3\n", Format.CSV),
    (b"a\tb\n1\t2\n", Format.CSV),
    (b"a|b|c\n1|2|3\n", Format.CSV),
    (b'"time, of day",b\n1,2\n', Format.CSV),
    (b"just,a,header", Format.CSV),
    (b'{"a": 1}\n', Format.JSONL),
    (b'{"c": 1, "p": 0.5}\n', Format.JSONL),
    (b'{"_label_cost":-1,"EventId":"x","a":[1,2],"c":{},"p":[0.5,0.5]}\n', Format.VW_DSJSON),
    (b'{"RewardValue":1,"EventId":"x"}\n{"EventId":"y","a":[1],"c":{},"p":[1]}\n', Format.VW_DSJSON),
    (b"1:2:0.4 | a c\n3:0.5:0.2 | b d\n", Format.VW_TEXT),
    (b"| a c\n1 2 3:-1:0.5 'tag|user a:2 |b c\n", Format.VW_TEXT),
    (b"3 1:0.5 7:1\n1 2:1\n", Format.SVMLIGHT),
    (b"# letters\n+1 1:0.5 # one\n-1\n", Format.SVMLIGHT),
    (b"1\t2:1\n", Format.SVMLIGHT),
    (b"1,3 1:0.5\n2 x:1\n", Format.SVMLIGHT),  # detected as svmlight, although the reader rejects the lines
    (b"x,time\n1,2024-01-01 12:30\n", Format.CSV),
]


@pytest.mark.parametrize(("head", "kind"), KNOWN)
def test_formats_are_detected_by_content(head: bytes, kind: Format) -> None:
    assert format_of(head, "log") is kind


UNKNOWN = [
    (b"", "an empty file"),
    (b" \n\n", "an empty file"),
    (b"a\xff\xfeb,c\n1,2\n", "text that is not UTF-8"),
    ("a,b\n1,2\n".encode("utf-16"), "UTF-16 text"),
    (b"\x00\x01\x02", "a binary file"),
    (b"%PDF-1.4", "a PDF document"),
    (b"BZh91AY", "compressed with bzip2"),
    (b'[{"a": 1}]', "a JSON array; write one object per line"),
    (b"<html><body>,</body></html>", "HTML or XML"),
    (b"| a b\n| c\n", "VW text without labels"),
    (b"hello\nworld\n", "text with one column ('hello')"),
]


@pytest.mark.parametrize(("head", "what"), UNKNOWN)
def test_error_for_an_unknown_format_describes_the_content(head: bytes, what: str) -> None:
    with pytest.raises(DatasetError, match=r"^log looks like") as caught:
        format_of(head, "log")
    assert what in str(caught.value)
    assert "CSV with a header, JSON lines, Parquet, VW dsjson" in str(caught.value)


def test_error_for_archives_and_unsupported_tables_names_the_format(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("log.csv", "a,b\n1,2\n")
    (tmp_path / "log.csv").write_bytes(packed.getvalue())
    with pytest.raises(DatasetError, match="zip"):
        open_log(tmp_path / "log.csv", mapping())
    feather.write_feather(pa.table({"a": [1]}), tmp_path / "log.parquet")
    with pytest.raises(DatasetError, match="Arrow"):
        open_log(tmp_path / "log.parquet", mapping())


def test_missing_files_and_directories_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere"):
        open_log(tmp_path / "nowhere", mapping())
    with pytest.raises(DatasetError):
        open_log(tmp_path, mapping())


def test_parquet_within_gzip_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(b"PAR1" + b"\x15" * 100))
    with pytest.raises(DatasetError, match="Parquet"):
        open_log(tmp_path / "log", mapping())


@pytest.mark.parametrize(
    "line", [b"0.0625 " * 500, b"1:" * 2_000, b"1 " * 2_000 + b"|" * 9, b'"' * 5_001, b"1:0:" * 999]
)
def test_format_detection_is_fast_on_unusual_lines(line: bytes) -> None:
    started = time.process_time()
    with contextlib.suppress(DatasetError):
        format_of(line + b"x\n" + line, "log")
    assert time.process_time() - started < 0.5 * slowness()
