"""CSV files with a header, as tables of strings.

Fields can be quoted, and a quoted field can contain line breaks. Quotation marks must be closed before a delimiter or
the end of a line: Python's reader would otherwise append the following text, and rows up to the next quotation mark, to
the field. Spaces after a delimiter are skipped, so that `a, "b, c"` has two fields.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from producers.datasets.base import DatasetError
from producers.datasets.logs.columns import Column
from producers.datasets.logs.formats import SEPARATOR_LINE, delimiter_of
from producers.datasets.logs.parsed import Problem
from producers.datasets.logs.streams import LINE_BYTES_MAX, LineBlock, Source, line_blocks
from producers.datasets.logs.tables import Table

if TYPE_CHECKING:
    from _csv import Reader

_CARRIAGE_RETURN = "\udc0d"
"""Replaces a carriage return within a line, where Python's reader would end the row. UTF-8 text contains no
surrogates, and decoding creates only those from U+DC80 on."""

_WITHIN_A_LINE = re.compile(r"\r(?!\n|\Z)")

_UNCLOSED = "row: expected a closing quotation mark"


def column_names(source: Source, _wanted: Collection[str] = ()) -> list[str]:
    """Return the column names in the header.

    Raises:
        DatasetError: a quotation mark in the header is not closed.
    """
    lines = _lines_of(source.head())
    begin = _header_begin(lines)
    rows = _split(lines[begin:], delimiter_of(source.head()), strict=True)
    try:
        return [_restored(name) for name in next(filter(None, rows), ())]
    except csv.Error as error:
        raise DatasetError(f"{source.name}, line {begin + 1}, {_UNCLOSED}; got {lines[begin][:60]!r}") from error


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """Yield the rows, restricted to these columns; None means all columns.

    Raises:
        DatasetError: the file cannot be read.
    """
    header = column_names(source)
    n = len(header)
    wanted = {name: header.index(name) for name in (header if columns is None else columns) if name in header}
    first_row = 0
    for rows in _Reader(delimiter_of(source.head()), n).rows(line_blocks(source.chunks())):
        if rows.lines:
            found: dict[str, Column] = {name: rows.cells[place::n] for name, place in wanted.items()}
            yield Table(len(rows.lines), first_row, found, tuple(rows.problems), partial(_where, rows.lines))
        first_row += len(rows.lines)


class _Rows(NamedTuple):
    """Complete rows. Rows with a problem have empty cells."""

    lines: list[int]  # number of each row's first line
    cells: list[str]  # all cells, one row after another
    problems: list[Problem]

    def add_problem(self, line: int, n_columns: int, reason: str, got: str) -> None:
        self.problems.append(Problem(len(self.lines), reason, got))
        self.lines.append(line)
        self.cells.extend([""] * n_columns)


class _Reader:
    """Splits lines into rows. A line break within quotation marks does not end a row."""

    def __init__(self, delimiter: str, n_columns: int) -> None:
        self._delimiter = delimiter
        self._n_columns = n_columns

    def rows(self, blocks: Iterable[LineBlock]) -> Iterator[_Rows]:
        """Yield the rows after the header.

        If a quotation mark is not closed within the maximum line length, its line is reported as a problem, and reading
        continues at the next line.
        """
        held: list[str] = []  # the lines of an incomplete row
        number = 1
        for block in chain(blocks, (None,)):
            if block is not None and not held:
                number = block.first_line
            lines = held + ([] if block is None else _lines_of(block.data))
            begin = self._header_end(lines) if number == 1 else 0
            is_last = block is None or block.fault is not None
            found, end = self._parse(lines, begin, number, is_last=is_last)
            held = lines[end:]
            number += end
            if block is not None and block.fault is not None:
                found.add_problem(block.first_line, self._n_columns, *block.fault)
            yield found

    def _header_end(self, lines: list[str]) -> int:
        begin = _header_begin(lines)
        reader = _split(lines[begin:], self._delimiter)
        next(filter(None, reader), None)
        return begin + reader.line_num

    def _parse(self, lines: list[str], begin: int, first_line: int, *, is_last: bool) -> tuple[_Rows, int]:
        """Return the rows from line `begin` on, and the number of lines before the first incomplete row.

        If `is_last`, no lines follow that could complete a row.
        """
        found = _Rows([], [], [])
        n = self._n_columns
        while begin < len(lines):
            reader = _split(lines[begin:] if begin else lines, self._delimiter, strict=True)
            offset, used = begin, 0
            is_closed = True
            try:
                for row in reader:
                    rows_lines = reader.line_num - used
                    if rows_lines > 1 and self._is_table(lines[begin : begin + rows_lines]):
                        is_closed = False
                        break
                    if len(row) == n:
                        found.lines.append(first_line + begin)
                        found.cells.extend(row)
                    elif row and row != [""]:  # a blank line may contain spaces
                        expected = f"row: expected {n} columns, as in the header"
                        found.add_problem(first_line + begin, n, expected, str(len(row)))
                    used = reader.line_num
                    begin = offset + used
            except csv.Error:
                is_closed = False
                is_at_end = offset + reader.line_num == len(lines)
                if is_at_end and not is_last and sum(map(len, lines[begin:])) <= LINE_BYTES_MAX:
                    break
            if not is_closed:
                found.add_problem(first_line + begin, n, _UNCLOSED, repr(_restored(lines[begin])[:60]))
                begin += 1
        self._check_text(found, lines)
        return found, begin

    def _is_table(self, lines: list[str]) -> bool:
        """Return whether each line alone is a row, so that the quotation mark that joins the lines was not closed."""
        n = self._n_columns
        return n > 2 and all(line.count(self._delimiter) == n - 1 for line in lines)

    def _check_text(self, found: _Rows, lines: list[str]) -> None:
        """Report rows that are not UTF-8, and restore carriage returns."""
        try:
            "".join(lines).encode()
        except UnicodeEncodeError:
            n = self._n_columns
            for row in range(len(found.lines)):
                cells = [_restored(cell) for cell in found.cells[row * n : row * n + n]]
                if any("\udc80" <= one <= "\udcff" for one in "".join(cells)):
                    found.problems.append(Problem(row, "row: expected UTF-8 text", repr(cells)[:60]))
                    cells = [""] * n
                found.cells[row * n : row * n + n] = cells


def _header_begin(lines: list[str]) -> int:
    """Return the number of blank lines and separator lines before the header."""
    for place, line in enumerate(lines):
        if line.strip():
            return place + bool(SEPARATOR_LINE.fullmatch(line.rstrip("\r\n")))
    return len(lines)


def _split(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> "Reader":
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=strict)


def _lines_of(data: bytes) -> list[str]:
    r"""Return the lines with their ends, \n or \r\n."""
    text = data.decode("utf-8", "surrogateescape")
    if text.count("\r") > text.count("\r\n"):
        text = _WITHIN_A_LINE.sub(_CARRIAGE_RETURN, text)
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + [last] * bool(last)


def _restored(text: str) -> str:
    return text.replace(_CARRIAGE_RETURN, "\r")


def _where(lines: list[int], row: int) -> str:
    return f"line {lines[row]}"
