"""Detection of file formats from the first bytes."""

import csv
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import takewhile
from typing import Any

import orjson

from producers.datasets.base import DatasetError
from producers.datasets.logs.streams import LINE_BYTES_MAX
from stream.text import lines_of


class Format(StrEnum):
    """The supported formats."""

    CSV = "CSV"
    JSONL = "JSON lines"
    PARQUET = "Parquet"
    VW_DSJSON = "VW dsjson"
    VW_DSJSON_ACTIONS = "VW dsjson with action features"
    VW_TEXT = "VW contextual-bandit text"
    VW_TEXT_ACTIONS = "VW contextual-bandit text with action features"
    SVMLIGHT = "svmlight"
    TABLE = "a table in memory"


ACCEPTED = (
    "supported formats: CSV with a header, JSON lines, Parquet, VW dsjson, VW contextual-bandit text "
    "(`action:cost:probability | features`, or one line per action) and svmlight; all except Parquet may be compressed "
    "with gzip or zstd"
)

# This limit applies to the whole process and is 131,072 by default. A field is at most as long as a block plus the
# incomplete row before it.
csv.field_size_limit(4 * LINE_BYTES_MAX)

_DELIMITERS = (",", "\t", ";", "|")

SEPARATOR_LINE = re.compile('sep=([^"])', re.IGNORECASE)
"""A line before the header, which Excel writes to name the delimiter."""

_MAGIC = (
    (b"PK\x03\x04", "a zip archive (or an .xlsx spreadsheet); extract it, or save it as CSV"),
    (b"BZh", "compressed with bzip2; use gzip or zstd"),
    (b"\xfd7zXZ", "compressed with xz; use gzip or zstd"),
    (b"ARROW1", "an Arrow or Feather file; write it as Parquet"),
    (b"ORC", "an ORC file; write it as Parquet"),
    (b"Obj\x01", "an Avro file; write it as Parquet or JSON lines"),
    (b"SQLite format 3", "an SQLite database; export a table as CSV"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "an image"),
    (b"\x89HDF", "an HDF5 file; write it as Parquet"),
    (b"\x93NUMPY", "a numpy array; write it as Parquet, with named columns"),
    (b"\xff\xfe", "UTF-16 text; write it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text; write it as UTF-8"),
)

# The pattern is matched against single tokens. A pattern for a whole line could take exponential time.
_ENTRY = re.compile(r"(qid|[0-9]+):[-+0-9.eE]+")
_COSTED = re.compile(r"[0-9]+:[-+0-9.eE]+:[-+0-9.eE]+")
_ACTION = re.compile(r"[0-9]+(:[^:]*){0,2}")


def format_of(head: bytes, name: str) -> Format:
    """Return the format of a file that starts with these bytes.

    Raises:
        DatasetError: the format is not supported.
    """
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    unlike = _unlike_text(head)
    if unlike is None:
        lines = _first_lines(head)
        if _is_vw_text_with_actions(head):
            return Format.VW_TEXT_ACTIONS
        for what, fits in _TESTS:
            if fits(lines):
                return what
        unlike = _unlike_lines(lines)
    raise DatasetError(f"{name} looks like {unlike}; {ACCEPTED}")


def delimiter_of(head: bytes) -> str:
    """Return the column delimiter of a CSV file that starts with these bytes."""
    lines = _first_lines(head)
    if lines and (given := SEPARATOR_LINE.fullmatch(lines[0])):
        return given[1]
    return _commonest_delimiter(lines[0] if lines else "")


def _commonest_delimiter(header: str) -> str:
    outside = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=lambda one: (outside.count(one), -_DELIMITERS.index(one)))


def _unlike_text(head: bytes) -> str | None:
    if not head.strip():
        return "an empty file"
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if b"\0" in head:
        return "a binary file"
    try:
        head[: head.find(b"\n") + 1].decode()  # only the first line, because later rows may be invalid
    except UnicodeDecodeError as error:
        return f"text that is not UTF-8 (byte {error.start}); write it as UTF-8"
    return None


def _first_lines(head: bytes) -> list[str]:
    return [line for line in lines_of(head.decode("utf-8", "ignore")) if line.strip()][:20]


def _contexts(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the contexts `c` of the lines that have one and another field from a dsjson log record."""
    for line in lines:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:  # the last line may be truncated
            continue
        if type(fields) is dict and type(fields.get("c")) is dict and fields.keys() & {"_label_cost", "EventId", "p"}:
            yield fields["c"]


def _is_dsjson(lines: list[str]) -> bool:
    return any(True for _ in _contexts(lines))


def _is_dsjson_with_actions(lines: list[str]) -> bool:
    """Return whether an action of a dsjson line has a feature."""
    return any(
        any(name == "_text" or not name.startswith("_") for name in action)
        for context in _contexts(lines)
        for action in _list(context.get("_multi"))
        if type(action) is dict
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_jsonl(lines: list[str]) -> bool:
    line = lines[0].lstrip()
    return line.startswith("{") and line[1:].lstrip()[:1] in ('"', "}", "")


def _is_vw_text(lines: list[str]) -> bool:
    return all(map(_may_be_vw, lines)) and any(
        _COSTED.fullmatch(token) for line in lines for token in vw_labels(line.partition("|")[0])
    )


def _may_be_vw(line: str) -> bool:
    """Return whether the text before the bar consists of actions and, optionally, a tag."""
    label, bar, _ = line.partition("|")
    return bool(bar) and all(_ACTION.fullmatch(token) for token in vw_labels(label))


def _is_vw_text_with_actions(head: bytes) -> bool:
    """Return whether this is VW text with a line for each action.

    A shared context has the label `shared`. Without one, the actions of a decision are several lines, of which at most
    one has a cost, and an empty line follows them.
    """
    lines = [line.partition("|") for line in lines_of(head.decode("utf-8", "ignore"))[:20]]
    if any(bar and before.split()[:1] == ["shared"] for before, bar, _ in lines):
        return True
    decision = list(takewhile(any, lines))  # up to the first empty line
    labels = [vw_labels(before) for before, _, _ in decision]
    has_cost = [any(_COSTED.fullmatch(token) for token in tokens) for tokens in labels]
    is_one = len(decision) > 1 and sum(has_cost) == 1 and len(decision) < len(lines)
    return is_one and all(bar for _, bar, _ in decision) and all(len(tokens) <= 1 for tokens in labels)


def vw_labels(text: str) -> list[str]:
    """Return the labels in the text before the first bar of a line in VW text.

    The last word is a tag, and no label, if it touches the bar or starts with an apostrophe.

    >>> vw_labels("1:0:0.5 2 "), vw_labels("1:0:0.5 2"), vw_labels("1:0:0.5 'two ")
    (['1:0:0.5', '2'], ['1:0:0.5'], ['1:0:0.5'])
    """
    words = vw_words(text)
    if words and (words[-1].startswith("'") or text.endswith(words[-1])):
        words.pop()
    return words


def vw_words(text: str) -> list[str]:
    """Split VW text at spaces and tabs. All other characters are part of a word."""
    return [word for word in text.replace("\t", " ").split(" ") if word]


def _is_svmlight(lines: list[str]) -> bool:
    """Return whether any row has an svmlight entry. The reader reports invalid rows.

    If the first line has columns but no entries, it is a header, and the file is not svmlight. Its later lines may
    contain times such as 12:30, which look like entries.
    """
    rows = [line for line in lines if not line.lstrip().startswith("#")][:5]
    if not rows or {"|", '"', "{"} & set(rows[0]):
        return False
    has_entry = [any(_ENTRY.fullmatch(token) for token in row.partition("#")[0].split()[1:]) for row in rows]
    return any(has_entry) and (has_entry[0] or not set(_DELIMITERS) & set(rows[0].strip()))


def _is_csv(lines: list[str]) -> bool:
    given = SEPARATOR_LINE.fullmatch(lines[0])
    lines = lines[1:] if given else lines
    if not lines or lines[0].lstrip()[:1] in ("<", "[", "{"):
        return False
    delimiter = given[1] if given else _commonest_delimiter(lines[0])
    rows = list(csv.reader((line.replace("\r", " ") for line in lines), delimiter=delimiter, skipinitialspace=True))
    if delimiter == "|" and any(name != name.strip() or not name for name in rows[0]):
        return False  # VW text
    return len(rows[0]) > 1 and (len(rows) < 2 or any(len(row) == len(rows[0]) for row in rows[1:]))


def _unlike_lines(lines: list[str]) -> str:
    first = lines[0].lstrip()
    if first.startswith("["):
        return "a JSON array; write one object per line"
    if first.startswith("<"):
        return "HTML or XML"
    if all("|" in line for line in lines):
        return "VW text without labels such as 2:0:0.25 (action:cost:probability)"
    return f"text with one column ({first[:60]!r})"


_TESTS: tuple[tuple[Format, Callable[[list[str]], bool]], ...] = (
    (Format.VW_DSJSON_ACTIONS, _is_dsjson_with_actions),
    (Format.VW_DSJSON, _is_dsjson),
    (Format.JSONL, _is_jsonl),
    (Format.VW_TEXT, _is_vw_text),
    (Format.SVMLIGHT, _is_svmlight),
    (Format.CSV, _is_csv),
)
