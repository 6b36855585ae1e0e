"""Formats numbers and tables for terminals and pages.

In the table of runs, runs that differ only in their seed share a row.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

import orjson

from stream.reporting.runs import LearnerRun


def listed(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"; return an empty string if there are none."""
    return "".join(names) if len(names) < 2 else ", ".join(names[:-1]) + " and " + names[-1]


def unbroken(text: str) -> str:
    """Prevent a line break between a number and its unit."""
    return re.sub(r"(\d) (?=(%|ms|s|min|h)\b|%)", "\\1\N{NO-BREAK SPACE}", text)


def shared(values: Iterable[str]) -> str:
    """Return the value if all values are the same, otherwise a list of the distinct values."""
    return listed(list(dict.fromkeys(values)))


def by_run(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the value if it is the same in all runs, otherwise each run's value."""
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def value_text(value: object) -> str:
    """Format a setting's or parameter's value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {value_text(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    return str(value)


def is_number(value: object) -> bool:
    """Return whether a setting's value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_text(value: object) -> str:
    """Format a number with significant digits; return a dash if it is unknown."""
    if not isinstance(value, int | float) or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def rate(value: float | None) -> str:
    """Format an estimated rate, which may be small; return a dash if it is unknown.

    >>> rate(0.004), rate(None), rate(float("nan"))
    ('0.00400', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.5f}"


def between(ends: tuple[float, float] | None) -> str:
    """Format a rate's confidence interval; return a dash if it is unknown."""
    return "–" if ends is None else f"{rate(ends[0])} to {rate(ends[1])}"


SAID_ELSEWHERE = frozenset(("command", "data", "events", "learner", "param", "seed", "topic_prefix"))
"""Settings that are not shown as differences, because they have no effect or have their own field in the report."""


class Series(NamedTuple):
    """One learner's runs with the same settings and different seeds."""

    runs: tuple[LearnerRun, ...]

    @property
    def first(self) -> LearnerRun:
        """The first run, for values that are the same in all runs."""
        return self.runs[0]

    def mean(self, figure: Callable[[LearnerRun], float]) -> float:
        """Return the mean of a figure over the runs, or nan if the figure is nan in any run."""
        return mean(map(figure, self.runs))

    def half_width(self, figure: Callable[[LearnerRun], float]) -> float:
        """Return the half-width of the 95% interval (Student's t) for the mean over seeds; nan for a single run."""
        values = list(map(figure, self.runs))
        return t_factor(len(values)) * stdev(values) if len(values) > 1 else math.nan


def t_factor(n: int) -> float:
    """Return the half-width of the 95% interval for a mean of n values, in units of their standard deviation.

    >>> round(t_factor(10), 3)
    0.715
    """
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) / math.sqrt(n)


def by_error(found: Sequence[Series]) -> list[Series]:
    """Sort series by error, ascending; series without decisions come last."""
    errors = [series.mean(lambda run: run.errors.error_rate) for series in found]
    order = sorted(range(len(found)), key=lambda i: (math.isnan(errors[i]), errors[i]))
    return [found[i] for i in order]


def series_of(reports: Sequence[LearnerRun]) -> list[Series]:
    """Group runs into series, ordered by their first run. A repeated seed starts another series."""
    found: list[tuple[bytes, list[LearnerRun]]] = []
    for report in reports:
        key = _key(report)
        for other, runs in found:
            if other == key and report.seed not in {run.seed for run in runs}:
                runs.append(report)
                break
        else:
            found.append((key, [report]))
    return [Series(tuple(runs)) for _, runs in found]


def _key(report: LearnerRun) -> bytes:
    settings = {name: value for name, value in report.settings.items() if name not in SAID_ELSEWHERE}
    sizes = report.events, report.classes, report.features
    identity = (report.data, report.learner, report.parameters, *sizes, settings, report.versions)
    return orjson.dumps(identity, option=orjson.OPT_SORT_KEYS, default=str)


class Table(NamedTuple):
    """A table of text. The first column contains names, and all others contain numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # notes printed below the table


_RATES: dict[str, str] = {
    "error": "error_rate",
    "last fifth": "error_rate_last_fifth",
    "greedy": "greedy_error_rate",
}
"""Columns that show rates, with the corresponding fields of `Errors`."""

_FIGURES = {(False,): "error", (True,): "mean reward", (False, True): "error or mean reward"}
"""The heading of the column `error`, by whether runs have graded rewards."""

_COUNTS: dict[str, Callable[[LearnerRun], int]] = {
    "matched": lambda run: run.ledger.matched,
    "unmatched": lambda run: run.ledger.unmatched,
    "unshown": lambda run: run.ledger.unshown,
    "expired": lambda run: run.ledger.expired,
    "malformed": lambda run: run.malformed,
    "late": lambda run: run.ledger.late,
    "duplicate": lambda run: run.duplicates,
}

_IF_ANY = ("unmatched", "unshown", "malformed")


def comparison(reports: Sequence[LearnerRun]) -> Table:
    """Return a table of runs, sorted by error. Runs that differ only in their seed share a row, which shows the means.

    Counts that are equal in all runs are moved to the notes. To fit the table into 80 characters, differing counts of
    late and duplicate feedback are shown only in the ledgers. Unmatched and unshown decisions, and malformed records,
    have a column only if there are any.
    """
    found = by_error(series_of(reports))
    has_seeds = any(len(series.runs) > 1 for series in found)
    columns = {"seeds": [f"{len(series.runs)}" for series in found]} if has_seeds else {}
    figure = _FIGURES.get(tuple(sorted({series.first.graded is not None for series in found})), "error")
    columns |= {
        figure if column == "error" else column: [rate_text(series, field) for series in found]
        for column, field in _RATES.items()
    }
    counts = {
        column: [f"{series.mean(count):,.0f}" for series in found]
        for column, count in _COUNTS.items()
        if column not in _IF_ANY or any(count(report) for report in reports)
    }
    same = [f"{cells[0]} {column}" for column, cells in counts.items() if len(set(cells)) == 1]
    columns |= {
        name: counts[name]
        for name in ("matched", "unmatched", "unshown", "expired", "malformed")
        if len(set(counts.get(name, ()))) > 1
    }
    columns["wall time"] = [duration(series.mean(lambda run: run.wall_s)) for series in found]
    names = labels([series.first for series in found])
    notes = [f"{'The same for all: ' if len(found) > 1 else ''}{listed(same)}."] if same else []
    if any(len(series.runs) > 1 for series in found):
        notes.append("± is the half-width of the 95% interval (Student's t) for the mean over the seeds.")
    if any("±" in columns[figure][row] for row, series in enumerate(found) if len(series.runs) == 1):
        notes.append("± is the half-width of the 95% interval from a bootstrap over blocks of the run's decisions.")
    return Table(("learner", *columns), tuple(zip(names, *columns.values(), strict=True)), tuple(notes))


def rate_text(series: Series, field: str) -> str:
    """Format a rate or mean reward, with the half-width of its 95% interval over seeds or, for one run, over blocks."""
    rate = series.mean(lambda run: getattr(run.errors, field))
    is_alone = len(series.runs) == 1
    half: float = (
        getattr(series.first.errors.half_widths, field)
        if is_alone
        else series.half_width(lambda run: getattr(run.errors, field))
    )
    if (graded := series.first.graded) is not None:
        text = number_text(graded.value(1.0 - rate))
        return text if math.isnan(half) else f"{text}±{graded.size * half:.2g}"
    text = percent(rate)
    if math.isnan(half) or text.startswith("<"):
        return text
    digits = ".1f" if half > 0.00095 else ".1g"
    return f"{text.removesuffix('%')}±{100 * half:{digits}}%"


DIFFERENCES_MAX = 3
"""Maximum number of differences shown in a label."""


def labels(reports: Sequence[LearnerRun]) -> tuple[str, ...]:
    """Return a short name for each run: the learner, and the settings that differ from the learner's other runs."""
    names = [report.learner for report in reports]
    result = []
    for number, report in enumerate(reports, start=1):
        same = [_traits(other) for other in reports if other.learner == report.learner]
        own = _traits(report)
        differing = [name for name in own if len({str(other.get(name)) for other in same}) > 1]
        differences = " ".join(f"{name}={_short(own[name])}" for name in differing[:DIFFERENCES_MAX])
        if names.count(report.learner) == 1:
            result.append(report.learner)
        else:
            result.append(f"{report.learner} {differences or f'#{number}'}")
    return tuple(result) if len(set(result)) == len(result) else tuple(f"{n} #{i}" for i, n in enumerate(result, 1))


def _traits(report: LearnerRun) -> dict[str, object]:
    """Return all properties that can distinguish runs, the most important first."""
    settings = {name: value for name, value in report.settings.items() if name not in SAID_ELSEWHERE}
    return {
        **report.parameters,
        "data": report.data,
        "events": report.events,
        **settings,
        **report.versions,
        "seed": report.seed,
    }


def percent(rate: float) -> str:
    """Format a rate with three significant digits; "–" if undefined.

    >>> [percent(rate) for rate in (0.5, 0.0874, 0.00012, 0.0, float("nan"))]
    ['50.0%', '8.74%', '0.012%', '0%', '–']
    """
    if math.isnan(rate):
        return "–"
    value = 100 * rate
    if value == 0:
        return "0%"
    decimals = 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{decimals}f}%" if value >= 0.001 else "< 0.001%"


def duration(seconds: float) -> str:
    """Format a time span.

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
