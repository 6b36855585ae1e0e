"""CSV files with a header, as tables of strings."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from producers.datasets.logs.columns import Column
from producers.datasets.logs.formats import delimiter_of
from producers.datasets.logs.parsed import Problem
from producers.datasets.logs.streams import LINE_BYTES_MAX, Fault, LineBlock, Source, line_blocks
from producers.datasets.logs.tables import Table

# This limit applies to the whole process and is 131,072 by default. A field is at most as long as a block plus the
# incomplete row before it.
csv.field_size_limit(4 * LINE_BYTES_MAX)

_BOM = b"\xef\xbb\xbf"
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")


def column_names(source: Source) -> list[str]:
    """Return the column names in the header."""
    head = source.head().removeprefix(_BOM).decode("utf-8", "replace")
    return next(filter(None, csv.reader(io.StringIO(head, newline=""), delimiter=delimiter_of(source.head()))))


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
        found: dict[str, Column] = {name: rows.cells[place::n] for name, place in wanted.items()}
        if rows.n:
            yield Table(rows.n, first_row, found, tuple(rows.problems), rows.where)
        first_row += rows.n


@dataclass(frozen=True, slots=True)
class _Rows:
    """Complete rows. Rows with a problem have empty cells."""

    n: int
    cells: list[str]  # all cells, one row after another
    problems: list[Problem]
    where: partial[str]


class _Reader:
    """Splits lines into rows. A line break within quotation marks does not end a row."""

    def __init__(self, delimiter: str, n_columns: int) -> None:
        self._delimiter = delimiter
        self._n_columns = n_columns
        self._is_whole = True  # whether the last row is complete

    def rows(self, blocks: Iterable[LineBlock]) -> Iterator[_Rows]:
        """Yield the rows after the header.

        If a quotation mark is not closed within the maximum line length, its line is reported as a problem, and reading
        continues at the next line.
        """
        open_row: list[str] = []
        number = 1
        for block in chain(blocks, (None,)):
            if block is not None and not open_row:
                number = block.first_line
            lines = open_row + _lines_of(block)
            if number == 1:
                behind = self._header_lines(lines)
                number += _line_ends(lines[:behind])
                lines = lines[behind:]
            while lines:
                rows, n_lines = self._whole(lines, number)
                yield rows
                number += _line_ends(lines[:n_lines])
                lines = lines[n_lines:]
                if block is not None and block.fault is None and sum(map(len, lines)) <= LINE_BYTES_MAX:
                    break
                if lines:
                    yield self._fault(Fault("row: expected a closing quotation mark", repr(lines[0][:60])), number)
                    number += _line_ends(lines[:1])
                    lines = lines[1:]
            open_row = lines
            if block is not None and block.fault is not None:
                yield self._fault(block.fault, block.first_line)

    def _header_lines(self, lines: list[str]) -> int:
        reader = csv.reader(lines, delimiter=self._delimiter)
        next(filter(None, reader), None)
        return reader.line_num

    def _whole(self, lines: list[str], first_line: int) -> tuple[_Rows, int]:
        """Return the complete rows in these lines, and the number of lines in the rows."""
        n = self._n_columns
        sizes: dict[int, int] = {}  # number of columns found, for each row in which it is wrong
        # The sentinel line `end` becomes a row or part of an incomplete row, and is removed afterwards.
        end = self._delimiter * n
        cells = list(chain.from_iterable(self._sized(chain(lines, (end,)), sizes)))
        del cells[-n:]
        n_rows = len(cells) // n
        sizes.pop(n_rows, None)
        n_lines = len(lines) if self._is_whole else self._begin_of_last(lines)
        problems = [Problem(row, f"row: expected {n} columns, as in the header", str(k)) for row, k in sizes.items()]
        if not _is_utf_8(lines[:n_lines]):
            for row in range(n_rows):
                one = cells[row * n : row * n + n]
                if _NOT_UTF_8.search("".join(one)):
                    problems.append(Problem(row, "row: expected UTF-8 text", repr(one)[:60]))
                    cells[row * n : row * n + n] = [""] * n
        return _Rows(n_rows, cells, problems, partial(self._where, lines, first_line)), n_lines

    def _sized(self, lines: Iterable[str], sizes: dict[int, int]) -> Iterator[list[str]]:
        """Yield all rows. If a row has the wrong number of columns, record a problem and yield an empty row."""
        nothing = [""] * self._n_columns
        for place, row in enumerate(filter(None, csv.reader(lines, delimiter=self._delimiter))):
            if len(row) == self._n_columns:
                yield row
            else:
                sizes[place] = len(row)
                yield nothing
        self._is_whole = row == [""] * (self._n_columns + 1)

    def _begin_of_last(self, lines: list[str]) -> int:
        reader = csv.reader(lines, delimiter=self._delimiter)
        return [0, *(reader.line_num for _ in reader)][-2]

    def _where(self, lines: list[str], first_line: int, row: int) -> str:
        begins = 0
        reader = csv.reader(lines, delimiter=self._delimiter)
        for found in reader:
            if found and row == 0:
                break
            row -= bool(found)
            begins = reader.line_num
        return f"line {first_line + _line_ends(lines[:begins])}"

    def _fault(self, fault: Fault, line: int) -> _Rows:
        return _Rows(1, [""] * self._n_columns, [Problem(0, *fault)], partial(self._where, [], line))


def _lines_of(block: LineBlock | None) -> list[str]:
    if block is None:
        return []
    data = block.data.removeprefix(_BOM) if block.first_line == 1 else block.data
    return list(io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""))


def _line_ends(lines: list[str]) -> int:
    """Return the number of newlines. A carriage return without a newline is not counted."""
    return sum(line.endswith("\n") for line in lines)


def _is_utf_8(lines: list[str]) -> bool:
    try:
        "".join(lines).encode()
    except UnicodeEncodeError:
        return False
    return True
