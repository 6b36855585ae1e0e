"""The figures of a page about estimates: intervals by policy, their path over the log, and the weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stream.estimating.judge import WEIGHT_EDGES, Judged
from stream.reporting.figures import (
    CHAR_PX,
    DASHES,
    MUTED,
    SERIES,
    SIZES,
    Drawing,
    Figure,
    Margins,
    Size,
    compact,
    cut,
    draw,
)
from stream.reporting.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_PX = 19
"""Height of an estimator's line in the figure of intervals."""

_NAME_CHARS_MAX = {"wide": 34, "narrow": 16}

_Paint = Callable[[Size, Sequence[Judged], "Axes"], None]


def estimate_figures(policies: Sequence[Judged]) -> list[Figure]:
    """The figures of policies that were judged on one log."""
    said = "; ".join(
        f"{policy.policy} {percent(one.value)}"
        for policy in policies
        for one in policy.estimates
        if one.estimator == "dr" and one.value is not None
    )
    figures = [
        Figure(
            "Estimates",
            "Each policy's value by each estimator, with its bootstrap interval, and thin the one that holds "
            "at every moment of the log at once. Those of dm leave out how wrong its model is.",
            tuple(
                Drawing(size.key, _drawn_intervals(size, policies, f"Estimates by policy. Doubly robust: {said}."))
                for size in SIZES
            ),
        )
    ]
    if any(policy.path for policy in policies):
        figures += [
            _figure(
                "path",
                "The estimate over the log",
                "The doubly robust estimate with the running reward model after each number of decisions, and the "
                "interval that holds at every moment at once.",
                f"Line chart of the doubly robust estimate over the log. At the end: {said}.",
                _paint_paths,
                policies,
            ),
            _figure(
                "weights",
                "Weights",
                "Share of decisions by their importance weight: how often the policy would have played the same, over "
                "how often the log did. Far right means that few decisions speak for many.",
                "Line chart of the distribution of importance weights by policy.",
                _paint_weights,
                policies,
            ),
        ]
    return figures


def _figure(key: str, title: str, caption: str, alt: str, paint: _Paint, policies: Sequence[Judged]) -> Figure:
    drawings = []
    for size in SIZES:
        chars = max(len(cut(policy.policy, size.label_chars_max)) for policy in policies)
        margins = Margins(58, 14 + CHAR_PX * chars)
        drawings.append(
            Drawing(size.key, draw(size, margins, f"{key}-{size.key}", alt, partial(paint, size, policies)))
        )
    return Figure(title, caption, tuple(drawings))


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
    return min(ends), min(max(1.25 * max(ends), 1e-3), max(1.0, max(ends)))


def _rates(axes: "Axes", size: Size, limits: tuple[float, float], axis: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    along = axes.xaxis if axis == "x" else axes.yaxis
    along.set_major_locator(MaxNLocator(size.ticks[0 if axis == "x" else 1], steps=[1, 2, 5, 10]))
    along.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    (axes.set_xlim if axis == "x" else axes.set_ylim)(*limits)


def _paint_paths(size: Size, policies: Sequence[Judged], axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter

    for number, policy in enumerate(policies):
        if not policy.path:
            continue
        color, dashes = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
        at = [point.n for point in policy.path]
        axes.fill_between(
            at, [p.dr_interval.low for p in policy.path], [p.dr_interval.high for p in policy.path],
            color=color, alpha=0.12, linewidth=0,
        )  # fmt: skip
        axes.plot(at, [point.dr for point in policy.path], color=color, linestyle=dashes, linewidth=2.0)
    axes.set_xlim(0, max(policy.path[-1].n for policy in policies if policy.path))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.set_xlabel("decisions")
    _rates(axes, size, _far(policies), axis="y")
    axes.grid(True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    ends = [(policy.path[-1].dr if policy.path else None) for policy in policies]
    _legend(axes, size, policies, ends)


def _paint_weights(size: Size, policies: Sequence[Judged], axes: "Axes") -> None:
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
    _legend(axes, size, policies, [None] * len(policies))


def _legend(axes: "Axes", size: Size, policies: Sequence[Judged], ends: Sequence[float | None]) -> None:
    """Name the lines at the right, in the order in which they end, or one below the other."""
    order = sorted(range(len(policies)), key=lambda number: -(ends[number] or 0.0))
    for place, number in enumerate(order):
        axes.text(
            1.02,
            0.96 - 0.08 * place,
            cut(policies[number].policy, size.label_chars_max),
            transform=axes.transAxes,
            color=SERIES[number % len(SERIES)],
            va="center",
            fontweight="bold",
        )
