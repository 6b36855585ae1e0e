"""Estimate the values of policies from the included log, and plot them with the true values for the docs.

    python benchmarks/estimates_of_offers.py           # the estimates and true values, one JSON object per policy
    python benchmarks/estimates_of_offers.py --draw    # write the figure to docs/figures/

The true value of a policy is the mean of sum_a p(a|x) P(click | x, a) over the events with an outcome, where p(a|x) is
the policy's probability of action a. P is defined in tests/producers/logs/offers.py. For `logged`, p is 1/10, the
probability with which the offers were drawn. The figure shows bootstrap intervals.
"""

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import producers.datasets
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import LogFile, open_log
from stream.estimating.estimate import estimate
from stream.estimating.policies import Training, parse_policy
from stream.estimating.rows import chunks
from stream.randomness.draws import Draws, Purpose
from stream.wire.records import FloatArray
from tests.producers.logs.offers import LOG_NAME, MAPPING_NAME, ROWS, truth, visits

SHIPPED = Path(producers.datasets.__file__).parent / "files"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "estimates_of_offers.svg"

POLICIES = ("late-ucb", "igw-logistic", "constant:offer-07", "uniform", "logged")
SHOWN = {"dm": "#bc6c25", "ips": "#a06be0", "dr": "#2f81d8"}
"""The estimators in the figure, each with its colour."""

TRAINING = Training(reward="any")

NAME_PX, PLOT_PX, ROW_PX, LINE_PX, TOP_PX, BOTTOM_PX = 130, 500, 60, 15, 36, 34
VALUE_MAX, TICK = 0.5, 0.1

# Colours of medium lightness, because the figure is shown on light and dark pages.
TEXT, GRID, TRUE = "#6e7781", "#8c959f", "#3f9142"

Row = dict[str, Any]


def rows_of(log: LogFile) -> list[Row]:
    """Return the estimates and the true value for every policy."""
    found = estimate(log, [parse_policy(one, log.class_names, log.n_features, TRAINING) for one in POLICIES])
    return [
        {
            "policy": judged.policy,
            "truth": round(true_value(log, judged.policy), 4),
            "ess": round(judged.ess),
            "estimates": {
                one.estimator: [round(value, 4) for value in (one.value, one.bootstrap.low, one.bootstrap.high)]
                for one in judged.estimates
                if one.value is not None and one.bootstrap is not None
            },
        }
        for judged in found.policies
    ]


def true_value(log: LogFile, spec: str) -> float:
    """Return the mean of sum_a p(a|x) P(click | x, a) over the events with an outcome."""
    if spec == "logged":
        return true_value(log, "uniform")
    policy = parse_policy(spec, log.class_names, log.n_features, TRAINING)
    drawn = Draws(0, Purpose.ESTIMATE)  # a required argument, which these policies do not use
    parts = [(policy.probabilities(chunk), chunk.judged) for chunk in chunks(log.batches(), drawn)]
    p, judged = np.concatenate([p for p, _ in parts]), np.concatenate([judged for _, judged in parts])
    expected: FloatArray = (p * truth().click(visits(ROWS))).sum(axis=1)
    return float(expected[judged].mean())


def picture(rows: list[Row]) -> str:
    """Return the figure: each policy's estimates with their intervals, and a line at its true value."""
    width, height = NAME_PX + PLOT_PX + 20, TOP_PX + ROW_PX * len(rows) + BOTTOM_PX
    described = "; ".join(
        f"{row['policy']} truth {row['truth']:.3f}, "
        + ", ".join("{} {:.3f} ({:.3f} to {:.3f})".format(one, *row["estimates"][one]) for one in SHOWN)
        for row in rows
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}">',
        "<title>Estimated and true mean reward of five policies on the shipped log</title>",
        f"<desc>{escape(described)}.</desc>",
        *_legend(),
        *_axis(TOP_PX + ROW_PX * len(rows)),
    ]
    for number, row in enumerate(rows):
        lines += [f'<g transform="translate(0 {TOP_PX + number * ROW_PX})">', *_policy(row), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _x(value: float) -> str:
    return f"{NAME_PX + value / VALUE_MAX * PLOT_PX:.1f}"


def _legend() -> Iterator[str]:
    x = NAME_PX
    for estimator, colour in SHOWN.items():
        yield f'<path d="M{x} 14h26" stroke="{colour}" stroke-width="2"/>'
        yield f'<circle cx="{x + 13}" cy="14" r="4" fill="{colour}"/>'
        yield f'<text x="{x + 32}" y="18">{estimator}, 95%</text>'
        x += 115
    yield f'<path d="M{x} 6v16" stroke="{TRUE}" stroke-width="3"/><text x="{x + 10}" y="18">truth</text>'


def _axis(bottom: int) -> Iterator[str]:
    for place in range(round(VALUE_MAX / TICK) + 1):
        x = _x(place * TICK)
        yield f'<path d="M{x} {TOP_PX - 6}V{bottom}" stroke="{GRID}" stroke-opacity=".45" stroke-width=".8"/>'
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{place * TICK:.1f}</text>'
    yield f'<text x="{_x(VALUE_MAX / 2)}" y="{bottom + 30}" text-anchor="middle">mean reward: clicks per visit</text>'


def _policy(row: Row) -> Iterator[str]:
    """Yield a policy's name, its estimates, and a line at the true value."""
    yield f'<text x="{NAME_PX - 10}" y="{LINE_PX * 2}" text-anchor="end">{row["policy"]}</text>'
    yield f'<path d="M{_x(row["truth"])} 2V{ROW_PX - 8}" stroke="{TRUE}" stroke-width="3"/>'
    for number, (estimator, colour) in enumerate(SHOWN.items()):
        value, low, high = row["estimates"][estimator]
        y = LINE_PX * (number + 1) - 4
        yield f'<path d="M{_x(low)} {y}H{_x(high)}" stroke="{colour}" stroke-width="2"/>'
        yield f'<circle cx="{_x(value)}" cy="{y}" r="4" fill="{colour}"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the figure")
    arguments = parser.parse_args()
    rows = rows_of(open_log(SHIPPED / LOG_NAME, read_mapping(SHIPPED / MAPPING_NAME)))
    for row in rows:
        print(json.dumps(row))
    if arguments.draw:
        FIGURE.parent.mkdir(exist_ok=True)
        FIGURE.write_text(picture(rows))


if __name__ == "__main__":
    main()
