"""Tables and figures as people read them, for a terminal or a page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from stream.reporting.run_report import RunReport


class Table(NamedTuple):
    """Text in rows and columns, for a terminal or a page. The first column names its row; all others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison(reports: Sequence[RunReport]) -> Table:
    """The runs side by side; of decisions that a log gave no bit for only where there are any."""
    unmatched = any(report.ledger.unmatched for report in reports)
    return Table(
        (
            "learner", "error", "last fifth", "greedy", "matched", *(("unmatched",) if unmatched else ()), "expired",
            "late", "duplicate", "wall time",
        ),
        tuple(
            (
                label,
                percent(report.errors.error_rate),
                percent(report.errors.error_rate_last_fifth),
                percent(report.errors.greedy_error_rate),
                f"{report.ledger.matched:,}",
                *((f"{report.ledger.unmatched:,}",) if unmatched else ()),
                f"{report.ledger.expired:,}",
                f"{report.ledger.late:,}",
                f"{report.duplicates:,}",
                duration(report.wall_s),
            )
            for label, report in zip(labels(reports), reports, strict=True)
        ),
    )  # fmt: skip


def labels(reports: Sequence[RunReport]) -> tuple[str, ...]:
    """A short name for each run: its learner, with what tells it from other runs of the same learner."""
    names = [report.learner for report in reports]
    result = []
    for number, report in enumerate(reports, start=1):
        same = [other for other in reports if other.learner == report.learner]
        differing = [key for key in report.params if len({str(other.params.get(key)) for other in same}) > 1]
        told_apart = " ".join(f"{key}={_short(report.params[key])}" for key in differing)
        if names.count(report.learner) == 1:
            result.append(report.learner)
        else:
            result.append(f"{report.learner} {told_apart or f'#{number}'}")
    return tuple(result) if len(set(result)) == len(result) else tuple(f"{n} #{i}" for i, n in enumerate(result, 1))


def percent(rate: float) -> str:
    """A rate for people: three digits that count, "–" when it is not defined.

    >>> [percent(rate) for rate in (0.5, 0.0874, 0.00012, 0.0, float("nan"))]
    ['50.0 %', '8.74 %', '0.012 %', '0 %', '–']
    """
    if math.isnan(rate):
        return "–"
    value = 100 * rate
    if value == 0:
        return "0 %"
    decimals = 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{decimals}f} %" if value >= 0.001 else "< 0.001 %"


def duration(seconds: float) -> str:
    """A time span for people.

    >>> [duration(seconds) for seconds in (0.0042, 3.14, 59.96, 125, 7320)]
    ['4 ms', '3.1 s', '1 min 0 s', '2 min 5 s', '2 h 2 min']
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def _short(value: float | int | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
