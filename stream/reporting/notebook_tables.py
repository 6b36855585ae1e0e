"""Tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table as HTML. The first column contains names, and the others contain numbers.

    >>> html_table(["learner"], [["a<b"]])
    '<table><tr><th>learner</th></tr><tr><td>a&lt;b</td></tr></table>'
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(number, cell) for number, cell in enumerate(row))}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>"


def _cell(number: int, value: object) -> str:
    style = ' style="text-align:right"' if number else ""
    return f"<td{style}>{escape(str(value))}</td>"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as text.

    >>> print(text_table(["learner", "error"], [["late-ucb", "9.1%"]]))
    learner   error
    late-ucb   9.1%
    """
    lines = [list(map(str, row)) for row in (columns, *rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
