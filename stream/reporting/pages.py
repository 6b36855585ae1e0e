"""The folder of pages, with an index.

Each run regenerates the index from the pages' heads, so that the index includes added pages and omits deleted ones.
"""

import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from stream.reporting.page import environment, page
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import labels, rate_text, series_of

REPORTS = Path("reports")
"""Default folder for pages."""

INDEX = "index.html"
_HEAD_BYTES = 20_000  # the first bytes of a page, which contain its index entry
_ENTRY = re.compile(r'<meta name="onebit-run" content="([^"]*)">')


class _Entry(NamedTuple):
    """A page's index entry."""

    href: str
    at: str
    data: str
    events: int
    learners: list[tuple[str, str]]  # names of learners with their errors
    ledger_ok: bool


def write_page(path: Path, reports: Sequence[LearnerRun], at: datetime) -> Path:
    """Write a page for these runs to a file, replacing any existing file.

    Raises:
        ValueError: there are no reports.
        OSError: the page cannot be written.
    """
    write_whole(path, page(reports, _entry(reports, at)))
    return path


def add_page(folder: Path, reports: Sequence[LearnerRun], at: datetime) -> Path:
    """Write a page for these runs to a new file in a folder, update the folder's index, and return the page's path.

    Raises:
        ValueError: there are no reports.
        OSError: the page or the index cannot be written.
    """
    content = page(reports, _entry(reports, at))
    path = _free_name(folder, reports, at)
    write_whole(path, content)
    runs = sorted(_entries(folder), key=lambda entry: (entry.at, entry.href), reverse=True)
    write_whole(folder / INDEX, environment().get_template("index.html").render(title="Runs", runs=runs))
    return path


def _free_name(folder: Path, reports: Sequence[LearnerRun], at: datetime) -> Path:
    """Return an unused path, named after the time, the data and the learners."""
    learner = reports[0].learner if len(reports) == 1 else f"{len(reports)}-learners"
    words = re.sub(r"[^A-Za-z0-9]+", "-", f"{Path(reports[0].data).name}-{learner}").strip("-").lower()
    stem = f"{at:%Y%m%d-%H%M%S}-{words[:60]}"
    number, path = 1, folder / f"{stem}.html"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.html"
    return path


def _entry(reports: Sequence[LearnerRun], at: datetime) -> str:
    found = series_of(reports)
    learners = [
        (name, rate_text(series, "error_rate"))
        for name, series in zip(labels([series.first for series in found]), found, strict=True)
    ]
    fields: dict[str, Any] = {
        "at": f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "data": reports[0].data if reports else "",
        "events": reports[0].events if reports else 0,
        "learners": learners,
        "ledger_ok": all(report.ok for report in reports),
    }
    return json.dumps(fields)


def _entries(folder: Path) -> list[_Entry]:
    entries = []
    for path in folder.glob("*.html"):
        with path.open(encoding="utf-8", errors="replace") as file:
            found = _ENTRY.search(file.read(_HEAD_BYTES))
        if found is not None and found[1]:
            entries.append(_Entry(path.name, **json.loads(unescape(found[1]))))
    return entries


def write_whole(path: Path, content: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
