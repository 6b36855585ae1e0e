"""CSV files with a header, as tables of texts."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyarrow import csv as arrow_csv

from producers.datasets.logs.looks import delimiter_of
from producers.datasets.logs.parsed import Problem
from producers.datasets.logs.streams import LINE_BYTES_MAX, LineBlock, Source, line_blocks
from producers.datasets.logs.tables import Table

# The module's limit is one for the whole process, and 131,072 by itself; a line is bounded where it is cut.
csv.field_size_limit(2 * LINE_BYTES_MAX)

_BOM = b"\xef\xbb\xbf"


def column_names(source: Source) -> list[str]:
    """The columns that the header names."""
    head = source.head().removeprefix(_BOM)
    return next(csv.reader(io.StringIO(head.decode("utf-8", "replace"), newline=""), delimiter=delimiter_of(head)))


def tables(source: Source, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """The rows, with the columns asked for; None: all.

    Raises:
        DatasetError: a column is not there, or the file cannot be read.
    """
    header = column_names(source)
    wanted = {name: header.index(name) for name in (header if columns is None else columns) if name in header}
    reader = _Reader(delimiter_of(source.head()), len(header), wanted)
    first_row = 0
    is_first = True
    for block in line_blocks(source.chunks(), quoted=True):
        if is_first:
            block = _behind_header(block, reader.delimiter)
            is_first = False
        for table in reader.read(block, first_row):
            first_row += table.n
            yield table


def _behind_header(block: LineBlock, delimiter: str) -> LineBlock:
    data = block.data.removeprefix(_BOM)
    rows = csv.reader(io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""), delimiter=delimiter)
    next(rows, None)
    end = 0
    for _ in range(rows.line_num):
        end = data.find(b"\n", end) + 1 or len(data)
    return LineBlock(data[end:], block.first_line + rows.line_num)


class _Reader:
    """Blocks of lines, read by Arrow; a block in which something is wrong row by row."""

    def __init__(self, delimiter: str, n_columns: int, wanted: dict[str, int]) -> None:
        self.delimiter = delimiter
        self._n_columns = n_columns
        self._wanted = wanted
        numbered = {str(place): pa.string() for place in wanted.values()}  # names may be there twice
        self._names = [str(place) for place in range(n_columns)]
        self._convert = arrow_csv.ConvertOptions(
            include_columns=list(numbered), column_types=numbered, null_values=[""], strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        )  # fmt: skip

    def read(self, block: LineBlock, first_row: int) -> Iterator[Table]:
        if block.fault is not None:
            nothing = {name: pa.nulls(1, pa.string()) for name in self._wanted}
            problems = (Problem(0, *block.fault),)
            yield Table(1, first_row, nothing, problems, lambda _: f"line {block.first_line}")
        elif block.data.strip():
            yield self._at_once(block, first_row) or self._row_by_row(block, first_row)

    def _at_once(self, block: LineBlock, first_row: int) -> Table | None:
        try:
            read = arrow_csv.read_csv(
                io.BytesIO(block.data),
                arrow_csv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=self._names),
                arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in block.data),
                self._convert,
            )
        except pa.ArrowInvalid:
            return None
        columns = {name: read.column(str(place)).combine_chunks() for name, place in self._wanted.items()}
        return Table(read.num_rows, first_row, columns, (), self._where(block))

    def _row_by_row(self, block: LineBlock, first_row: int) -> Table:
        rows: list[list[str]] = []
        problems: list[Problem] = []
        nothing = [""] * self._n_columns
        for row in self._rows(block):
            wrong = None
            if len(row) != self._n_columns:
                wrong = Problem(len(rows), f"row: expected {self._n_columns} columns, as the header has", str(len(row)))
            elif not "".join(row).isprintable() and any("\udc80" <= one <= "\udcff" for one in "".join(row)):
                wrong = Problem(len(rows), "row: expected UTF-8 text", repr(row)[:60])
            if wrong is not None:
                problems.append(wrong)
            rows.append(row if wrong is None else nothing)
        columns = {
            name: pa.array([row[place] or None for row in rows], pa.string()) for name, place in self._wanted.items()
        }
        return Table(len(rows), first_row, columns, tuple(problems), self._where(block))

    def _rows(self, block: LineBlock) -> Iterator[list[str]]:
        text = io.StringIO(block.data.decode("utf-8", "surrogateescape"), newline="")
        self._line_num = 0
        rows = csv.reader(text, delimiter=self.delimiter)
        for row in rows:
            self._line_num = rows.line_num
            if row:
                yield row

    def _where(self, block: LineBlock) -> Callable[[int], str]:
        def where(row: int) -> str:
            before = 0
            for place, _ in enumerate(self._rows(block)):
                if place == row:
                    break
                before = self._line_num
            return f"line {block.first_line + before}"

        return where
