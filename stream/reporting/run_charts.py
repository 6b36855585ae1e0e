"""Charts for runs: errors, feedback over time, and latencies. The page's script draws them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.parsing import DurationError, parse_duration
from stream.reporting.charts import Axis, Chart, Form, Level, Line, Mark, Scale
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import Series, duration, number_text, percent, t_factor, unbroken
from stream.telemetry.sketch import Sketch

_Points = list[tuple[float, float]]  # points (x, y) in order of x


class _Curve(NamedTuple):
    """A chart of a quantity over a run's decisions."""

    key: str
    title: str
    caption: Callable[[LearnerRun], str]
    points: Callable[[LearnerRun], _Points]
    alt: str
    label: str
    form: Form = "share"
    hides_start: bool = False  # as in `Chart`; with a logarithmic y-axis, the x-axis is then logarithmic
    has_constant: bool = False  # True to show the error of the most frequent class as a reference
    is_half: bool = False
    is_regret: bool = False


def _progressive(report: LearnerRun) -> _Points:
    few = min(10, report.errors.events)  # the first values are noisy, so the chart skips them
    return [(point.events, point.error_rate) for point in report.errors.points if point.events >= few]


def _windowed(report: LearnerRun) -> _Points:
    points = report.errors.points
    return [(point.events, point.window_error_rate) for point in points if not math.isnan(point.window_error_rate)]


def _mistakes(report: LearnerRun) -> _Points:
    return list(zip(report.errors.curve.events, report.errors.curve.mistakes, strict=True))


def _known(report: LearnerRun) -> _Points:
    few = min(10, report.ledger.matched)
    return [(point.decided, point.error_rate) for point in report.delayed.points if point.matched >= max(1, few)]


def _as_rewards(report: LearnerRun, points: _Points) -> _Points:
    """Convert mean losses to mean rewards."""
    return [(x, report.reward_of(loss)) for x, loss in points]


def _expired(report: LearnerRun) -> _Points:
    if not any(point.expired for point in report.delayed.points):
        return []
    return [(point.decided, point.expired_rate) for point in report.delayed.points if point.matched + point.expired]


def _explored(report: LearnerRun) -> _Points:
    return list(zip(report.exploration.decided, report.exploration.share, strict=True))


def _outstanding(report: LearnerRun) -> str:
    last = report.delayed.points[-1:]
    return f"{last[0].outstanding:,}" if last else "none"


_ERRORS = (
    _Curve(
        "progressive",
        "Progressive error",
        lambda report: (
            "Share of wrong decisions among all decisions so far, each evaluated before the learner learns from it."
        ),
        _progressive,
        "the progressive error by number of decisions",
        "error",
        hides_start=True,
        has_constant=True,
    ),
    _Curve(
        "windowed",
        "Recent error",
        lambda report: (
            f"Share of wrong decisions among the last {report.errors.window_events:,}: the current performance, "
            "regardless of earlier decisions."
        ),
        _windowed,
        "the error over a sliding window of decisions",
        "error",
        has_constant=True,
    ),
    _Curve(
        "regret",
        "Regret",
        lambda report: (
            "Number of wrong decisions so far, which is the regret relative to a learner that makes no mistakes. A "
            "flat line means that the learner makes no more mistakes."
        ),
        _mistakes,
        "the number of wrong decisions so far",
        "wrong decisions",
        form="count",
        has_constant=True,
        is_regret=True,
    ),
    _Curve(
        "known",
        "Error known so far",
        lambda report: (
            "Share of wrong decisions among those whose feedback had arrived by then. At the last decision, "
            f"{_outstanding(report)} were outstanding; these are excluded."
        ),
        _known,
        "the error among the decisions whose feedback is known, by number of decisions",
        "error",
    ),
)

_MEAN_REWARDS = (
    _Curve(
        "mean-reward",
        "Mean reward",
        lambda report: "Mean reward of all decisions so far, each counted before the learner learns from it.",
        lambda report: _as_rewards(report, _progressive(report)),
        "the mean reward by number of decisions",
        "mean reward",
        form="number",
        hides_start=True,
        has_constant=True,
    ),
    _Curve(
        "recent-reward",
        "Recent mean reward",
        lambda report: f"Mean reward of the last {report.errors.window_events:,} decisions: the current performance.",
        lambda report: _as_rewards(report, _windowed(report)),
        "the mean reward over a sliding window of decisions",
        "mean reward",
        form="number",
        has_constant=True,
    ),
    _Curve(
        "known-reward",
        "Mean reward known so far",
        lambda report: (
            "Mean reward of the decisions whose feedback had arrived by then. At the last decision, "
            f"{_outstanding(report)} were outstanding; these are excluded."
        ),
        lambda report: _as_rewards(report, _known(report)),
        "the mean reward of the decisions whose feedback is known, by number of decisions",
        "mean reward",
        form="number",
    ),
)
"""The charts for graded rewards, which replace those of the error."""

_EXPIRED = _Curve(
    "expired",
    "Expired",
    lambda report: "Share of expired decisions among those that had expired or been matched by then.",
    _expired,
    "the share of expired decisions among the settled ones, by number of decisions",
    "expired",
    is_half=True,
)

_EXPLORED = _Curve(
    "exploration",
    "Exploration",
    lambda report: f"Share of non-greedy actions in the last {max(1, report.events // 20):,} decisions.",
    _explored,
    "the share of exploratory decisions over a sliding window",
    "explored",
    is_half=True,
)

_LIMITS: dict[Form, tuple[float, float]] = {
    "share": (0.0, 1.0),
    "count": (0.0, math.inf),
    "number": (-math.inf, math.inf),
}
_WRITTEN: dict[Form, Callable[[float], str]] = {"share": percent, "count": "{:,.0f}".format, "number": number_text}

_LOG_BELOW = 0.02
"""Below this error, the axis is logarithmic, because the lines would be invisible on a linear axis that starts at 0."""


def error_charts(names: Sequence[str], found: Sequence[Series]) -> list[Chart]:
    """Return the charts of errors and of mean rewards; the list is empty if the runs have no decisions."""
    charts = []
    for curves, is_graded in ((_ERRORS, False), (_MEAN_REWARDS, True)):
        own = [one for one in zip(names, found, strict=True) if (one[1].first.graded is not None) == is_graded]
        if own:
            charts += _charts(curves, [name for name, _ in own], [series for _, series in own])
    return charts


def time_charts(names: Sequence[str], found: Sequence[Series]) -> list[Chart]:
    """Return the charts for feedback delays, expiry, exploration and latency."""
    charts = _charts((_EXPLORED, _EXPIRED), names, found)
    delays = _spread(
        "delays",
        "Delays",
        "Share of the matched feedback that arrived within each delay after the decision.",
        names,
        found,
        lambda run: run.delay_counts,
        "feedback",
    )
    if delays is not None:
        charts.insert(0, delays._replace(marks=_windows(found)))
    for of, caption in _LATENCIES.items():
        latency = _spread(
            f"latency-{of}", "Decision latency", caption, names, found, partial(_latency, of=of), f"{of}s"
        )
        charts += [] if latency is None else [latency]
    return charts


_LATENCIES = {
    "decision": "Share of the decisions made within each latency: the time from the append of the context to the "
    "append of the prediction, by the broker's clock.",
    "step": "Share of the learner's steps that took at most each real time. A step decides on the available contexts, "
    "learns from the available feedback, and writes the results. An embedded run has no network latency.",
}


def _latency(run: LearnerRun, of: str) -> Sketch | None:
    found = run.latency_counts
    return found.counts if found is not None and found.of == of else None


def _charts(curves: Sequence[_Curve], names: Sequence[str], found: Sequence[Series]) -> list[Chart]:
    charts = []
    marks = _first_feedback(found)
    levels = _constants(found)
    for curve in curves:
        lines = [
            _line(number, name, [curve.points(run) for run in series.runs], _LIMITS[curve.form])
            for number, (name, series) in enumerate(zip(names, found, strict=True))
        ]
        drawn = _merged([line for line in lines if line.y])
        if not drawn:
            continue
        written = _WRITTEN[curve.form]
        ends = "; ".join(f"{line.label} {written(line.y[-1])}" for line in drawn)
        x_scale, y_scale = _scales(drawn, curve)
        charts.append(
            Chart(
                curve.key,
                curve.title,
                curve.caption(found[0].first),
                f"Line chart of {curve.alt}. At the end: {ends}.",
                Axis("decisions", "count", x_scale),
                Axis(curve.label, curve.form, y_scale),
                drawn,
                [level._replace(is_slope=curve.is_regret) for level in levels] if curve.has_constant else (),
                marks,
                is_half=curve.is_half,
                hides_start=curve.hides_start,
                compares=curve.is_regret,
            )
        )
    return charts


def _merged(lines: Sequence[Line]) -> Sequence[Line]:
    """Merge the lines if all are identical, because they would hide each other."""
    if len(lines) > 1 and all(line[2:] == lines[0][2:] for line in lines):
        return [lines[0]._replace(number=None, label="all")]
    return lines


def _scales(lines: Sequence[Line], curve: _Curve) -> tuple[Scale, Scale]:
    tops = max(max(line.y) for line in lines)
    if curve.form == "share" and not curve.is_half and min(line.y[-1] for line in lines) < _LOG_BELOW < tops:
        return ("log" if curve.hides_start else "linear"), "log"
    return "linear", "linear"


def _line(number: int, name: str, runs: Sequence[_Points], limits: tuple[float, float]) -> Line:
    """Return the line for the mean over a series' runs, with the 95% interval if there are several runs."""
    runs = [points for points in runs if points]
    if not runs:
        return Line(number, name, (), ())
    start, end = max(points[0][0] for points in runs), min(points[-1][0] for points in runs)
    x = [at for at, _ in runs[0] if start <= at <= end]
    if len(runs) == 1 or not x:
        return Line(number, name, x, [y for at, y in runs[0] if start <= at <= end])
    own = [np.array(points) for points in runs]
    return _banded(number, name, x, np.array([np.interp(x, points[:, 0], points[:, 1]) for points in own]), limits)


def _banded(
    number: int, name: str, x: Sequence[float], ys: NDArray[np.float64], limits: tuple[float, float] = (0.0, 1.0)
) -> Line:
    """Return the mean over the rows of ys [runs, len(x)], with a band clipped to the limits."""
    mean = ys.mean(axis=0)
    if len(ys) == 1:
        return Line(number, name, x, mean.tolist())
    half = t_factor(len(ys)) * ys.std(axis=0, ddof=1)
    low, high = (np.clip(end, *limits).tolist() for end in (mean - half, mean + half))
    return Line(number, name, x, mean.tolist(), low, high)


def _spread(
    key: str,
    title: str,
    caption: str,
    names: Sequence[str],
    found: Sequence[Series],
    counts_of: Callable[[LearnerRun], Sketch | None],
    what: str,
) -> Chart | None:
    """Return cumulative distributions, or None if there are no data."""
    lines, quantiles = [], []
    for number, (name, series) in enumerate(zip(names, found, strict=True)):
        counts = [one for run in series.runs if (one := counts_of(run)) is not None]
        if not counts:
            continue
        shares = [one.shares(_BINS_PER_DECADE) for one in counts]
        # The first bin is empty, so that the line starts at 0.
        bins = range(min(map(min, shares)) - 1, max(map(max, shares)) + 1)
        ends_ms = [10 ** (place / _BINS_PER_DECADE) for place in bins]
        within = np.cumsum([[of.get(place, 0.0) for place in bins] for of in shares], axis=1)
        lines.append(_banded(number, name, ends_ms, within))
        quantiles.append([duration(counts[0].quantile_s(share) or 0.0) for share in (0.5, 0.99)])
    if not lines:
        return None
    merged = _merged(lines)
    summary = "; ".join(
        f"{line.label}: median {median}, 99th percentile {most}"
        for line, (median, most) in zip(merged, quantiles, strict=False)
    )
    alt = f"Cumulative distribution of {title.lower()}. {unbroken(summary)}."
    x, y = Axis("", "ms", "log"), Axis(f"share of the {what}", "share")
    return Chart(key, title, caption, alt, x, y, merged, is_half=True, y_limits=(0.0, 1.0))


_BINS_PER_DECADE = 10


def _first_feedback(found: Sequence[Series]) -> list[Mark]:
    """Return marks at the first matched feedback."""
    at = [[run.first_feedback for run in series.runs if run.first_feedback is not None] for series in found]
    return _marks("first feedback", [float(round(np.mean(matched).item())) if matched else None for matched in at])


def _windows(found: Sequence[Series]) -> list[Mark]:
    windows: list[float | None] = []
    for series in found:
        try:
            windows.append(float(parse_duration(str(series.first.settings.get("window")))))
        except DurationError:
            windows.append(None)
    return _marks("window", windows)


def _marks(label: str, places: Sequence[float | None]) -> list[Mark]:
    """Return a mark for each position. Only the first has a label, because labels would overlap."""
    of: dict[float, list[int]] = {}
    for number, place in enumerate(places):
        if place is not None:
            of.setdefault(place, []).append(number)
    return [
        Mark("" if turn else label, place, numbers[0] if len(numbers) == 1 < len(of) else None)
        for turn, (place, numbers) in enumerate(sorted(of.items()))
    ]


def _constant_of(run: LearnerRun) -> float:
    return run.constant_error_rate if run.graded is None else run.reward_of(run.constant_error_rate)


def _constants(found: Sequence[Series]) -> list[Level]:
    rates = {
        series.first.data: series.mean(_constant_of)
        for series in found
    }  # fmt: skip
    known = {data: rate for data, rate in rates.items() if not math.isnan(rate)}
    label = "most frequent class" if found[0].first.graded is None else "best single class"
    return [Level(f"{label}, {data}" if len(known) > 1 else label, rate) for data, rate in known.items()]
