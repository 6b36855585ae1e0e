"""The svmlight reader accepts valid files, and reports errors with their line numbers."""

import gzip
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.datasets.base import Dataset, DatasetError
from producers.datasets.logs import streams
from producers.datasets.svmlight import name_of, read

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "letters.svm"


def entries(data: Dataset) -> list[tuple[int, dict[int, float]]]:
    rows = [data.row(row) for row in range(data.rows)]
    return [(label, dict(zip(x.indices.tolist(), x.values.tolist(), strict=True))) for x, label in rows]


def test_rows_are_read_with_indices_from_0(path: Path) -> None:
    path.write_text("1 1:0.5 3:-2e-1\n0 2:+1\n1\n")
    data = read(path)
    assert entries(data) == [(1, {0: 0.5, 2: -0.2}), (0, {1: 1.0}), (1, {})]
    assert (data.name, data.id_prefix, data.rows) == ("letters", "letters", 3)
    assert (data.n_features, data.n_classes, data.class_names) == (3, 2, ("0", "1"))


def test_arrays_have_the_dtypes_of_features(path: Path) -> None:
    path.write_text("0 1:1\n1 1:1\n")
    row = read(path).row(0)
    assert (row.x.indices.dtype.name, row.x.values.dtype.name) == ("int32", "float64")
    assert type(row.label) is type(read(path).label(0)) is int
    assert row.x.indices.flags.c_contiguous
    assert row.x.indices.flags.writeable  # numba would compile again for read-only arrays


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_compressed_file_is_detected_by_its_first_bytes(path: Path, pack: Callable[[bytes], bytes]) -> None:
    path.write_bytes(pack(b"0 1:1\n1 2:1\n"))
    assert entries(read(path)) == [(0, {0: 1.0}), (1, {1: 1.0})]


def test_comments_blank_lines_and_crlf_are_ignored(path: Path) -> None:
    path.write_bytes(b"# a comment\r\n\r\n0 1:1 # seen 2:3\r\n  \n1\t2:1")
    assert entries(read(path)) == [(0, {0: 1.0}), (1, {1: 1.0})]


def test_file_with_index_0_is_zero_based(path: Path) -> None:
    path.write_text("0 1:1\n1 0:1 3:1\n")
    assert entries(read(path)) == [(0, {1: 1.0}), (1, {0: 1.0, 3: 1.0})]
    assert read(path).n_features == 4


def test_lines_that_are_too_long_are_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINE_BYTES_MAX", 50)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 20)
    path.write_text("0 1:1\n1 " + "1:1 " * 30 + "\n")
    with pytest.raises(DatasetError, match="line 2: "):
        read(path)


def test_labels_that_only_python_parses_as_integers_are_strings(path: Path) -> None:
    path.write_text("10 1:1\n1_0 1:1\n10.0 1:1\n١ 1:1\n")
    assert read(path).class_names == ("10", "1_0", "١")


@pytest.mark.parametrize("entry", ["1:1_0", "1_0:1", "1:١", "1:0x1", "1:1e"])
def test_entries_with_invalid_numbers_or_with_underscores_are_rejected(path: Path, entry: str) -> None:
    path.write_text(f"0 1:1\n1 {entry}\n")
    with pytest.raises(DatasetError, match="line 2: "):
        read(path)


def test_index_base_can_be_given(path: Path) -> None:
    path.write_text("0 1:1\n1 2:1\n")
    assert entries(read(path, index_base=0)) == [(0, {1: 1.0}), (1, {2: 1.0})]
    assert read(path, index_base=0).n_features == 3


def test_number_of_features_can_be_given(path: Path) -> None:
    path.write_text("0 1:1\n1 2:1\n")
    assert read(path, 47_236).n_features == 47_236
    assert read(path, 2).n_features == 2


@pytest.mark.parametrize(
    ("labels", "classes", "class_names"),
    [
        (["10", "9", "2", "9"], [2, 1, 0, 1], ("2", "9", "10")),
        (["+1", "-1", "1", "1.0"], [1, 0, 1, 1], ("-1", "+1")),
        (["0.5", "-3", "0.5"], [1, 0, 1], ("-3", "0.5")),
        (["cat", "10", "ant", "cat"], [0, 1, 2, 0], ("cat", "10", "ant")),
        (["2", "nan", "1"], [0, 1, 2], ("2", "nan", "1")),
        (["größer", "kleiner"], [0, 1], ("größer", "kleiner")),
    ],
)
def test_labels_are_numbered_as_classes(
    path: Path, labels: list[str], classes: list[int], class_names: tuple[str, ...]
) -> None:
    path.write_text("".join(f"{label} 1:1\n" for label in labels), encoding="utf-8")
    data = read(path)
    assert data.class_names == class_names
    assert data.block(0, data.rows).labels.tolist() == classes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1:x", "expected INDEX:VALUE, such as 7:0.5; got '1:x'"),
        ("1 1:", "got '1:'"),
        ("1 :1", "got ':1'"),
        ("1 1", "got '1'"),
        ("1 1:2:3 4", "got '1:2:3'"),
        ("1 1.5:1", "got '1.5:1'"),
        ("1 1:1_0", "got '1:1_0'"),
        ("1 1_0:1", "got '1_0:1'"),
        ("1 x:1", "got 'x:1'"),
        ("1 1:0x1", "got '1:0x1'"),
        ("1 1:nan", "expected finite values; got 1:nan"),
        ("1 1:1 2:-inf", "expected finite values; got 2:-inf"),
        ("1 1:1e400", "expected finite values; got 1:inf"),
        ("1 2:1 1:1", "expected strictly increasing indices; got 1 after 2"),
        ("1 2:1 2:1", "expected strictly increasing indices; got 2 after 2"),
        ("1 -1:1", "expected indices from 1; got -1; indices must not be negative"),
        ("1 4294967296:1", "expected at most 2147483647 features; got index 4294967296 (counted from 1)"),
        ("1 99999999999999999999:1", "expected indices of at most 2147483647"),
        ("1 qid:3 1:1", "ranking files (qid:) are not supported"),
        ("1:1 2:1", "expected a label at the start of the row; got '1:1'"),
        ("1,2 1:1", "expected one label; got '1,2'"),
        ("\udcff 1:1", "expected a label in UTF-8; got '\\\\xff'"),
    ],
)
def test_invalid_line_is_reported_with_its_number_and_the_expected_form(path: Path, line: str, message: str) -> None:
    path.write_text(
        f"0 7:1\n# the wrong line is the third\n{line}\n0 1:1\n", encoding="utf-8", errors="surrogateescape"
    )
    with pytest.raises(DatasetError, match=f"{re.escape(f'{path}, line 3: ')}.*{re.escape(message)}"):
        read(path)


def test_index_beyond_the_number_of_features_is_rejected(path: Path) -> None:
    path.write_text("0 1:1\n1 5:1\n")
    with pytest.raises(DatasetError, match=r"line 2: .*n_features=5"):
        read(path, 4)


def test_index_0_is_rejected_with_index_base_1(path: Path) -> None:
    path.write_text("0 1:1\n1 0:1\n")
    with pytest.raises(DatasetError, match=r"line 2: .*index_base"):
        read(path, index_base=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no rows"),
        (b"# nothing\n", "contains no rows"),
        (b"0\n1\n", "no features"),
        (b"7 1:1\n7 2:1\n", "all rows have the label '7'; expected at least two classes"),
        (gzip.compress(b"0 1:1\n" * 1_000, mtime=0)[:-9], "is damaged or truncated"),
        (b"\x1f\x8bno gzip at all", "is damaged or truncated"),
        (zstd.compress(b"0 1:1\n" * 1_000)[:-9], "is damaged or truncated"),
        (zstd.compress(b"0 1:1\n" * 1_000) + b"no frame", "is damaged or truncated"),
    ],
)
def test_file_without_rows_is_rejected(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{re.escape(str(path))}.*{message}"):
        read(path)


def test_missing_file_is_rejected(path: Path) -> None:
    with pytest.raises(DatasetError, match=f"cannot read {re.escape(str(path))}: No such file"):
        read(path)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a/b/optdigits.scale.svm.gz", "optdigits.scale"),
        ("letters.svm.zst", "letters"),
        ("letter", "letter"),
        ("my letters (2).TXT", "my_letters_2_"),
        (".svm", ".svm"),
        ("x" * 300, "x" * 64),
    ],
)
def test_data_set_is_named_after_its_file(file: str, name: str) -> None:
    assert name_of(Path(file)) == name


ROWS = st.lists(
    st.tuples(
        st.integers(-3, 3),
        st.dictionaries(st.integers(0, 50), st.floats(allow_nan=False, allow_infinity=False), max_size=8),
    ),
    min_size=2,
    max_size=20,
)


@given(ROWS, st.booleans(), st.sampled_from([0, 1]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_rows_round_trip(path: Path, rows: list[tuple[int, dict[int, float]]], packed: bool, base: int) -> None:
    rows = [(label, dict(sorted(x.items()))) for label, x in [*rows, (-4, {0: 1.0})]]
    text = "".join(f"{label} {' '.join(f'{i + base}:{v!r}' for i, v in x.items())}\n" for label, x in rows).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    classes = sorted({label for label, _ in rows})
    data = read(path)
    assert entries(data) == [(classes.index(label), x) for label, x in rows]
    for start in range(0, data.rows, 3):
        block = data.block(start, data.rows)
        assert block.offsets[0] == 0
        for j, row in enumerate(range(start, data.rows)):
            cut = slice(block.offsets[j], block.offsets[j + 1])
            assert (
                block.labels[j],
                dict(zip(block.indices[cut].tolist(), block.values[cut].tolist(), strict=True)),
            ) == (entries(data)[row])
