"""Data sets from svmlight files, with one row `LABEL INDEX:VALUE INDEX:VALUE ...` per line.

The reader is strict, because the only symptom of a misread column would be a higher error rate. Indices are integers
that strictly increase within a row, values are finite, and a row has one label. A comment starts with # and extends to
the end of the line. Blank lines are skipped. Ranking files (qid:), multiple labels per row (1,3) and lines of more than
8 MiB are rejected.

Indices start at 1, or at 0 if any index is 0. For a file that starts at 0 but never uses feature 0, set `index_base=0`.

Labels are arbitrary words, with the same names as a log's classes. Classes are numbered 0 to K-1, in numeric order if
all are numbers (1, +1 and 1.0 are the same class), otherwise in the order of their first occurrence.
"""

import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import Dataset, DatasetError, LabelArray, OffsetArray, SparseRows
from producers.datasets.logs.streams import LineBlock, Source, line_blocks
from stream.parsing import parse_exact
from stream.wire.named_features import text_of
from stream.wire.records import FloatArray, IndexArray

N_FEATURES_MAX = 2**31 - 1
"""The largest 32-bit index."""

_SUFFIXES = re.compile(r"(\.(gz|zst|zstd|svm|svmlight|libsvm|txt|dat))+$", re.IGNORECASE)
_OWN_SUFFIX = re.compile(r"\.(svm|svmlight|libsvm)(\.(gz|zst|zstd))?$", re.IGNORECASE)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH_MAX = 64


def read(
    path: Path,
    n_features: int | None = None,
    *,
    index_base: int | None = None,
    name: str | None = None,
    terms: str = "unknown: user file",
) -> Dataset:
    """Read a file into memory.

    Args:
        path: The file. gzip and zstd are detected from the first bytes.
        n_features: The number of features, if this file may lack values for the last features. The default is the
        largest index.
        index_base: 0 or 1; None means that it is detected.
        name: The display name. The default is the file name without suffixes.
        terms: The terms of use for the data.
    """
    table = _Table(path).read(line_blocks(Source(str(path)).chunks()))
    name = name or name_of(path)
    indices, d = table.indices_from_0(index_base, n_features)
    labels, class_names = table.classes()
    return Dataset(
        name=name,
        id_prefix=name,
        rows=labels.size,
        n_features=d,
        n_classes=len(class_names),
        class_names=class_names,
        terms=terms,
        source=SparseRows(table.offset_array, indices, table.value_array, labels),
    )


def name_of(path: Path) -> str:
    """Return a data set name derived from a file name. It contains only characters that are safe in event ids.

    >>> name_of(Path("data/my letters.scale.svm.gz"))
    'my_letters.scale'
    """
    stem = _SUFFIXES.sub("", path.name) or path.name
    return _NOT_IN_A_NAME.sub("_", stem)[:_NAME_LENGTH_MAX]


def has_svmlight_suffix(path: Path) -> bool:
    """Return whether the file name has an svmlight suffix."""
    return _OWN_SUFFIX.search(path.name) is not None


class _Table:
    """The rows as they are in the file. Checks across rows run after the last row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = array("q")  # line number of each row
        self._labels: list[str] = []
        self._offsets = array("q", [0])
        self._indices = array("q")
        self._values = array("d")

    def read(self, blocks: Iterable[LineBlock]) -> "_Table":
        for block in blocks:
            if block.fault is not None:
                self._fail(block.first_line, f"{block.fault.reason}; got {block.fault.got}")
            for number, line in enumerate(block.data.split(b"\n"), block.first_line):
                content, _, _ = line.partition(b"#")
                tokens = content.split()
                if tokens:
                    self._add(number, tokens)
        if not self._labels:
            raise DatasetError(f"{self._path} contains no rows; expected lines such as '3 1:0.5 7:1'")
        # Copy the arrays so that the memory of `array` can be freed.
        self.offset_array: OffsetArray = np.array(self._offsets, np.int64)
        self.index_array: NDArray[np.int64] = np.array(self._indices, np.int64)
        self.value_array: FloatArray = np.array(self._values, np.float64)
        self._check_values()
        self._check_order()
        return self

    def _add(self, number: int, tokens: list[bytes]) -> None:
        label, *entries = tokens
        if b":" in label:
            self._fail(number, f"expected a label at the start of the row; got {_shown(label)}")
        if b"," in label:
            self._fail(number, f"expected one label; got {_shown(label)} (multilabel data are not supported)")
        try:
            self._labels.append(label.decode())
        except UnicodeDecodeError:
            self._fail(number, f"expected a label in UTF-8; got {_shown(label)}. Is this an svmlight file?")
        try:
            pairs = [entry.split(b":") for entry in entries]
            self._indices.extend([int(index) for index, _ in pairs])
            self._values.extend([float(value) for _, value in pairs])
        except (ValueError, OverflowError):
            self._fail_entry(number, entries)
        if b"_" in b"".join(entries):  # Python parses 1_0 as 10
            self._fail_entry(number, entries)
        self._lines.append(number)
        self._offsets.append(len(self._indices))

    def _fail_entry(self, number: int, entries: list[bytes]) -> NoReturn:
        """Raise an error for the first invalid entry on a line."""
        for entry in entries:
            if entry.startswith(b"qid:"):
                self._fail(number, "ranking files (qid:) are not supported; to classify, remove the qid: entries")
            if _ENTRY.fullmatch(entry) is None:
                self._fail(number, f"expected INDEX:VALUE, such as 7:0.5; got {_shown(entry)}")
        self._fail(number, f"expected indices of at most {N_FEATURES_MAX}")

    def _check_values(self) -> None:
        bad = np.flatnonzero(~np.isfinite(self.value_array))
        if bad.size:
            entry = int(bad[0])
            self._fail(
                self._line_of(entry),
                f"expected finite values; got {self.index_array[entry]}:{self.value_array[entry]}",
            )

    def _check_order(self) -> None:
        not_increasing = np.diff(self.index_array) <= 0
        starts = self.offset_array[1:-1]
        starts = starts[(starts > 0) & (starts < self.index_array.size)]
        not_increasing[starts - 1] = False  # boundaries between rows
        bad = np.flatnonzero(not_increasing)
        if bad.size:
            entry = int(bad[0]) + 1
            self._fail(
                self._line_of(entry),
                f"expected strictly increasing indices; got {self.index_array[entry]} after "
                f"{self.index_array[entry - 1]}; sort the indices and merge or remove duplicates",
            )

    def indices_from_0(self, index_base: int | None, n_features: int | None) -> tuple[IndexArray, int]:
        """Return the indices counted from 0, and the number of features."""
        if index_base not in (None, 0, 1):
            raise ValueError(f"expected index_base 0, 1 or None; got {index_base!r}")
        if not self.index_array.size:
            raise DatasetError(f"{self._path}: no features; expected lines such as '3 1:0.5 7:1'")
        least = int(self.index_array.argmin())
        if index_base is None:
            index_base = 0 if self.index_array[least] == 0 else 1
        if self.index_array[least] < index_base:
            got = int(self.index_array[least])
            hint = "remove index_base or use 0" if got == 0 else "indices must not be negative"
            self._fail(self._line_of(least), f"expected indices from {index_base}; got {got}; {hint}")
        greatest = int(self.index_array.argmax())
        seen = int(self.index_array[greatest]) + 1 - index_base
        limit = N_FEATURES_MAX if n_features is None else n_features
        if seen > limit:
            self._fail(
                self._line_of(greatest),
                f"expected at most {limit} features; got index {self.index_array[greatest]} (counted from "
                f"{index_base}); {'use smaller indices' if n_features is None else f'use n_features={seen}'}",
            )
        return (self.index_array - index_base).astype(np.int32), seen if n_features is None else n_features

    def classes(self) -> tuple[LabelArray, tuple[str, ...]]:
        """Return each row's class, and the class labels in the file."""
        texts = {label: text_of(label) or label for label in dict.fromkeys(self._labels)}
        distinct = dict.fromkeys(texts.values())
        numbers = {label: number for label in distinct if (number := parse_exact(label)) is not None}
        if len(numbers) == len(distinct):
            first_name = {number: label for label, number in reversed(numbers.items())}
            class_names = tuple(first_name[number] for number in sorted(first_name))
            class_of_number = {numbers[name]: k for k, name in enumerate(class_names)}
            class_of = {label: class_of_number[number] for label, number in numbers.items()}
        else:
            class_names = tuple(distinct)
            class_of = {label: k for k, label in enumerate(class_names)}
        if len(class_names) < 2:
            raise DatasetError(
                f"{self._path}: all rows have the label {class_names[0]!r}; expected at least two classes"
            )
        class_of_label = {label: class_of[text] for label, text in texts.items()}
        return np.fromiter(map(class_of_label.__getitem__, self._labels), np.int64, len(self._labels)), class_names

    def _line_of(self, entry: int) -> int:
        return self._lines[int(np.searchsorted(self.offset_array, entry, side="right")) - 1]

    def _fail(self, number: int, message: str) -> NoReturn:
        raise DatasetError(f"{self._path}, line {number}: {message}")


_ENTRY = re.compile(rb"[+-]?[0-9]+:[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _shown(token: bytes) -> str:
    return repr(token[:40].decode("utf-8", "backslashreplace"))
