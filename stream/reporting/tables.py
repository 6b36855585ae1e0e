"""Tables and figures as people read them, for a terminal or a page."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stream.reporting.run_report import RunReport
from stream.reporting.series import SAID_ELSEWHERE, Series, series_of
from stream.reporting.words import value_text


class Table(NamedTuple):
    """Text in rows and columns, for a terminal or a page. The first column names its row; all others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison(reports: Sequence[RunReport]) -> Table:
    """The runs side by side, those that differ in their seed alone as one row with the means.

    A rate has its standard deviation over the seeds, and what that leaves no room for stands in the ledgers. Decisions
    that a log gave no bit for have a column where there are any.
    """
    found = series_of(reports)
    has_unmatched = any(report.ledger.unmatched for report in reports)
    has_seeds = any(len(series.runs) > 1 for series in found)
    return Table(
        (
            "learner", *(("seeds",) if has_seeds else ()), "error", "last fifth", "greedy", "matched",
            *(("unmatched",) if has_unmatched else ()), "expired", *(() if has_seeds else ("late", "duplicate")),
            "wall time",
        ),
        tuple(
            (
                label,
                *((f"{len(series.runs)}",) if has_seeds else ()),
                rate_over_seeds(series, lambda run: run.errors.error_rate),
                rate_over_seeds(series, lambda run: run.errors.error_rate_last_fifth),
                rate_over_seeds(series, lambda run: run.errors.greedy_error_rate),
                f"{series.mean(lambda run: run.ledger.matched):,.0f}",
                *((f"{series.mean(lambda run: run.ledger.unmatched):,.0f}",) if has_unmatched else ()),
                f"{series.mean(lambda run: run.ledger.expired):,.0f}",
                *(() if has_seeds else (f"{series.first.ledger.late:,}", f"{series.first.duplicates:,}")),
                duration(series.mean(lambda run: run.wall_s)),
            )
            for label, series in zip(labels([series.first for series in found]), found, strict=True)
        ),
    )  # fmt: skip


def rate_over_seeds(series: Series, figure: Callable[[RunReport], float]) -> str:
    """A rate for people, with its standard deviation where there are several seeds, in as few characters as can be."""
    spread = series.spread(figure)
    text = percent(series.mean(figure))
    if math.isnan(spread):
        return text
    return f"{text.removesuffix(' %')}±{100 * spread:{'.1f' if spread > 0.00095 else '.1g'}} %"


DIFFERENCES_MAX = 3
"""More of them in a label would leave no room for the lines of a figure."""


def labels(reports: Sequence[RunReport]) -> tuple[str, ...]:
    """A short name for each run: its learner, with what tells it from other runs of the same learner."""
    names = [report.learner for report in reports]
    result = []
    for number, report in enumerate(reports, start=1):
        same = [_traits(other) for other in reports if other.learner == report.learner]
        own = _traits(report)
        differing = [name for name in own if len({str(other.get(name)) for other in same}) > 1]
        told_apart = " ".join(f"{name}={_short(own[name])}" for name in differing[:DIFFERENCES_MAX])
        if names.count(report.learner) == 1:
            result.append(report.learner)
        else:
            result.append(f"{report.learner} {told_apart or f'#{number}'}")
    return tuple(result) if len(set(result)) == len(result) else tuple(f"{n} #{i}" for i, n in enumerate(result, 1))


def _traits(report: RunReport) -> dict[str, object]:
    """All that may tell a run from another, what people look at first at the front."""
    settings = {name: value for name, value in report.settings.items() if name not in SAID_ELSEWHERE}
    return {
        **report.params,
        "data": report.data,
        "events": report.events,
        **settings,
        **report.versions,
        "seed": report.seed,
    }


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


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else value_text(value)
