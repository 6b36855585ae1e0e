"""The figures of estimates: intervals by policy, their path over the decisions, and the weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stream.estimating.intervals import Interval
from stream.estimating.judge import WEIGHT_EDGES, Judged
from stream.estimating.live import LiveEstimates
from stream.reporting.charts import Axis, Chart, Line
from stream.reporting.drawings import Drawing
from stream.reporting.figures import (
    CHAR_PX,
    DASHES,
    MUTED,
    SERIES,
    SIZES,
    Figure,
    Margins,
    Size,
    chart_figures,
    cut,
    draw,
)
from stream.reporting.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_PX = 19
"""Height of an estimator's line in the figure of intervals."""

_NAME_CHARS_MAX = {"wide": 34, "narrow": 16}

_Paint = Callable[[Size, "Axes"], None]


class _Path(NamedTuple):
    """An estimate after each of some numbers of decisions."""

    name: str
    n: list[int]
    values: list[float]
    intervals: list[Interval]  # as many, or none


def estimate_figures(policies: Sequence[Judged]) -> list[Figure]:
    """The figures of policies that were judged on one log."""
    said = "; ".join(
        f"{policy.policy} {percent(one.value)}"
        for policy in policies
        for one in policy.estimates
        if one.estimator == "dr" and one.value is not None
    )
    alt = f"Estimates by policy. Doubly robust: {said}."
    figures = [
        Figure(
            "Estimates",
            "Each policy's value by each estimator, with its bootstrap interval, and thin the one that holds "
            "at every moment of the log at once. Those of dm leave out how wrong its model is.",
            tuple(Drawing(size.key, _drawn_intervals(size, policies, alt)) for size in SIZES),
            alt,
        )
    ]
    names = [policy.policy for policy in policies]
    paths = [
        _Path(policy.policy, [at.n for at in policy.path], [at.dr for at in policy.path],
              [at.dr_interval for at in policy.path])
        for policy in policies
    ]  # fmt: skip
    if any(path.n for path in paths):
        chart = _chart(
            "path",
            "The estimate over the log",
            "The doubly robust estimate with the running reward model after each number of decisions, and the "
            "interval that holds at every moment at once.",
            f"Line chart of the doubly robust estimate over the log. At the end: {said}.",
            paths,
            _far(policies),
        )
        figures += chart_figures([chart])
        figures += [
            _figure(
                "weights",
                "Weights",
                "Share of decisions by their importance weight: how often the policy would have played the same, over "
                "how often the log did. Far right means that few decisions speak for many.",
                "Line chart of the distribution of importance weights by policy.",
                partial(_paint_weights, policies=policies),
                names,
            ),
        ]
    return figures


def live_charts(names: Sequence[str], found: Sequence[LiveEstimates]) -> list[Chart]:
    """The chart of what learners would have earned while they played a log; none where nothing was settled."""
    paths = [
        _Path(name, [at.n for at in one.path], [at.ips for at in one.path], [at.anytime for at in one.path])
        for name, one in zip(names, found, strict=True)
    ]
    longest = max((one.path for one in found), key=len)
    if not longest:
        return []
    # What the log played is the same for each.
    paths.append(_Path("logged", [at.n for at in longest], [at.logged for at in longest], []))
    said = "; ".join(f"{path.name} {percent(path.values[-1])}" for path in paths if path.n)
    late = [value for path in paths for n, value in zip(path.n, path.values, strict=True) if n >= longest[-1].n / 20]
    ends = [path.intervals[-1].high for path in paths if path.intervals]
    return [
        _chart(
            "live",
            "The estimate over the decisions",
            "The mean reward that each learner's own policy would have had after each number of settled decisions, and "
            "the interval that holds at every moment at once; and that of what the log played.",
            f"Line chart of the estimate over the settled decisions. At the end: {said}.",
            paths,
            _room([*late, *ends]),
        )
    ]


def _chart(key: str, title: str, caption: str, alt: str, paths: Sequence[_Path], limits: tuple[float, float]) -> Chart:
    lines = [
        Line(number, path.name, path.n, path.values, *(zip(*path.intervals, strict=True) if path.intervals else ()))
        for number, path in enumerate(paths)
        if path.n
    ]
    x, y = Axis("decisions", "count"), Axis("mean reward", "share")
    return Chart(key, title, caption, alt, x, y, lines, y_limits=limits)


def _figure(key: str, title: str, caption: str, alt: str, paint: _Paint, names: Sequence[str]) -> Figure:
    drawings = []
    for size in SIZES:
        chars = max(len(cut(name, size.label_chars_max)) for name in names)
        margins = Margins(58, 14 + CHAR_PX * chars)
        drawings.append(Drawing(size.key, draw(size, margins, f"{key}-{size.key}", alt, partial(paint, size))))
    return Figure(title, caption, tuple(drawings), alt)


def _drawn_intervals(size: Size, policies: Sequence[Judged], alt: str) -> str:
    rows = sum(len(policy.estimates) + 1 for policy in policies)
    size = size._replace(height_px=_ROW_PX * rows + 46)
    margins = Margins(110, 20)
    return draw(size, margins, f"intervals-{size.key}", alt, lambda axes: _paint_intervals(size, policies, axes))


def _paint_intervals(size: Size, policies: Sequence[Judged], axes: "Axes") -> None:
    row, places, names = 0, [], []
    for number, policy in enumerate(policies):
        color = SERIES[number % len(SERIES)]
        heading = cut(policy.policy, _NAME_CHARS_MAX[size.key])
        axes.text(0, row, heading, color=color, fontweight="bold", va="center", transform=axes.get_yaxis_transform())
        for one in policy.estimates:
            row += 1
            places.append(row)
            names.append(one.estimator)
            if one.anytime is not None:
                axes.plot(one.anytime, [row, row], color=color, linewidth=1.0, alpha=0.6)
            if one.bootstrap is not None:
                axes.plot(one.bootstrap, [row, row], color=color, linewidth=4.0, solid_capstyle="butt")
            if one.value is not None:
                axes.plot([one.value], [row], marker="o", markersize=6, color=MUTED)
        row += 1
    axes.set_ylim(row - 0.3, -0.7)
    axes.set_yticks(places, names)
    _rates(axes, size, _far(policies), axis="x")
    axes.grid(True, axis="x", linewidth=0.8)
    axes.tick_params(length=0, pad=6)


def _far(policies: Sequence[Judged]) -> tuple[float, float]:
    """What is shown of the rates: all values and bootstrap intervals, and some room for the wider ones."""
    ends = [0.0]
    for policy in policies:
        for one in policy.estimates:
            ends += [one.value] if one.value is not None else []
            ends += [one.bootstrap.low, one.bootstrap.high] if one.bootstrap is not None else []
    return _room(ends)


def _room(ends: Sequence[float]) -> tuple[float, float]:
    """An axis of rates, from 0 or the least of these values, to somewhat above the greatest."""
    greatest = max(ends)
    return min(0.0, *ends), min(max(1.25 * greatest, 1e-3), max(1.0, greatest))


def _rates(axes: "Axes", size: Size, limits: tuple[float, float], axis: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    along = axes.xaxis if axis == "x" else axes.yaxis
    along.set_major_locator(MaxNLocator(size.ticks[0 if axis == "x" else 1], steps=[1, 2, 5, 10]))
    along.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    (axes.set_xlim if axis == "x" else axes.set_ylim)(*limits)


def _paint_weights(size: Size, axes: "Axes", *, policies: Sequence[Judged]) -> None:
    last = max(int(np.flatnonzero(policy.weight_counts).max(initial=7)) for policy in policies)
    for number, policy in enumerate(policies):
        total = max(int(policy.weight_counts.sum()), 1)
        axes.plot(
            np.arange(last + 1), policy.weight_counts[: last + 1] / total, color=SERIES[number % len(SERIES)],
            linestyle=DASHES[number // len(SERIES) % len(DASHES)], drawstyle="steps-mid", linewidth=2.0,
        )  # fmt: skip
    step = max(1, last // (size.ticks[0] + 1))
    ticks = [0, *range(step, last + 1, step)]
    axes.set_xticks(ticks, ["0", *(f"≤ {WEIGHT_EDGES[place]:.3g}" for place in ticks[1:])])
    axes.set_xlabel("weight")
    _rates(axes, size, (0.0, 1.0), axis="y")
    axes.grid(True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    _legend(axes, size, [policy.policy for policy in policies])


def _legend(axes: "Axes", size: Size, names: Sequence[str]) -> None:
    """Name the lines at the right, one below the other."""
    for number, name in enumerate(names):
        axes.text(
            1.02,
            0.96 - 0.08 * number,
            cut(name, size.label_chars_max),
            transform=axes.transAxes,
            color=SERIES[number % len(SERIES)],
            va="center",
            fontweight="bold",
        )
