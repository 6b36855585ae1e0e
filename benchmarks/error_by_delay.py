"""Measure each learner's error at several feedback delays, and draw the figure for docs/learners.md.

    python benchmarks/error_by_delay.py DATA_FOLDER [--learners late-ucb arow] [--write]
    python benchmarks/error_by_delay.py --draw

Two data sets of digits are replayed for 30,000 events, in a new random order in each epoch. Every bit arrives after a
fixed number of decisions. All learners use their default parameters. newtron is omitted because it takes 0.1 s per
event, and kwik-banditron because it requires a comparator. `--write` stores each learner's errors in
benchmarks/results/error_by_delay.json; `--draw` writes the figure to docs/figures/.
"""

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from late_bits import RESULTS, error_percent, load, stream_of

from stream.learners import create, registered

FILE = RESULTS / "error_by_delay.json"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "error_by_delay.svg"

SETS = {"optdigits": "", "pendigits": "4 3"}
"""The data sets, each with the dash pattern of its line."""

DELAYS = (0, 10, 100, 1_000, 10_000)
EVENTS = 30_000
LEFT_OUT = frozenset(("newtron", "kwik-banditron"))
SEED = 1

COLUMNS = 5
PANEL_PX, PANEL_HIGH_PX = 176, 138  # including margins
PLOT_PX, PLOT_HIGH_PX = 118, 84
LEFT_PX, TOP_PX = 44, 34

# Colours of medium lightness, because the figure is shown on light and dark pages.
TEXT, GRID, SOLE, LATE, LABELLED = "#6e7781", "#8c959f", "#bc6c25", "#2f81d8", "#3f9142"
COLOURS = {"late-ucb": LATE, "igw-logistic": LATE, "stack-igw": LATE}

Row = dict[str, Any]


def measure(learner: str, folder: Path) -> Row:
    """Return a learner's errors for each data set and delay."""
    errors: dict[str, list[float]] = {}
    for name in SETS:
        data = load(name, folder)
        epochs = -(-EVENTS // data.examples.labels.size)
        errors[name] = [
            round(
                error_percent(
                    create(learner, data.n_classes, data.n_features),
                    stream_of(data, delay, SEED, rows_max=EVENTS, epochs=epochs),
                ),
                2,
            )
            for delay in DELAYS
        ]
    return {"learner": learner, "events": EVENTS, "seed": SEED, "delays": list(DELAYS), "error %": errors}


def picture(rows: list[Row]) -> str:
    """Return the figure. It has one panel per learner, sorted by the learners' errors with delayed bits."""
    ordered = sorted(rows, key=lambda row: sum(sum(errors[2:]) for errors in row["error %"].values()))
    width = COLUMNS * PANEL_PX
    height = TOP_PX + -(-len(ordered) // COLUMNS) * PANEL_HIGH_PX
    described = "; ".join(
        f"{row['learner']} " + ", ".join(f"{name} {_few(errors)}" for name, errors in row["error %"].items())
        for row in ordered
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="11" fill="{TEXT}">',
        "<title>Error of each learner versus feedback delay</title>",
        f"<desc>Error in %, with delays of {', '.join(f'{delay:,}' for delay in DELAYS)} decisions: "
        f"{escape(described)}.</desc>",
        *_legend(),
    ]
    for number, row in enumerate(ordered):
        x, y = number % COLUMNS * PANEL_PX, TOP_PX + number // COLUMNS * PANEL_HIGH_PX
        lines += [f'<g transform="translate({x} {y})">', *_panel(row), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _few(errors: list[float]) -> str:
    return " ".join(f"{error:.0f}" for error in errors)


def _legend() -> Iterator[str]:
    x = 8
    for name, dashes in SETS.items():
        yield f'<path d="M{x} 14h26" stroke="{TEXT}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        yield f'<text x="{x + 32}" y="18">{name}</text>'
        x += 100
    for colour, title in ((LATE, "for late bits"), (SOLE, "from one bit"), (LABELLED, "from the true class")):
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="18">{title}</text>'
        x += 140
    yield f'<text x="{x}" y="18">error, by delay in decisions</text>'


def _panel(row: Row) -> Iterator[str]:
    """Yield a learner's panel: its name, axes and lines."""
    name = row["learner"]
    colour = LABELLED if registered()[name].needs_label else COLOURS.get(name, SOLE)
    bottom = 22 + PLOT_HIGH_PX
    step = PLOT_PX / (len(DELAYS) - 1)
    yield f'<text x="8" y="12" font-weight="bold" fill="{colour}">{name}</text>'
    for percent in (0, 50, 100):
        y = bottom - percent / 100 * PLOT_HIGH_PX
        yield f'<path d="M{LEFT_PX} {y:g}h{PLOT_PX}" stroke="{GRID}" stroke-opacity=".45" stroke-width=".8"/>'
        yield f'<text x="{LEFT_PX - 5}" y="{y + 4:g}" text-anchor="end">{percent}%</text>'
    for place, delay in enumerate(("0", "10", "100", "1k", "10k")):
        yield f'<text x="{LEFT_PX + place * step:g}" y="{bottom + 15}" text-anchor="middle">{delay}</text>'
    for of_set, errors in row["error %"].items():
        points = " ".join(
            f"{LEFT_PX + place * step:.1f},{bottom - error / 100 * PLOT_HIGH_PX:.1f}"
            for place, error in enumerate(errors)
        )
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{SETS[of_set]}"/>'
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--learners", nargs="+", default=[name for name in registered() if name not in LEFT_OUT])
    parser.add_argument("--write", action="store_true", help="store the errors in the results")
    parser.add_argument("--draw", action="store_true", help="draw the figure from the results")
    arguments = parser.parse_args()
    if arguments.folder is None and not arguments.draw:
        parser.error("DATA_FOLDER or --draw is required")
    rows: list[Row] = json.loads(FILE.read_text()) if FILE.exists() else []
    for learner in arguments.learners if arguments.folder else ():
        row = measure(learner, arguments.folder)
        print(json.dumps(row), flush=True)
        if arguments.write:
            rows = [kept for kept in rows if kept["learner"] != learner] + [row]
            FILE.write_text("[\n" + ",\n".join(json.dumps(kept) for kept in rows) + "\n]\n")
    if arguments.draw:
        FIGURE.parent.mkdir(exist_ok=True)
        FIGURE.write_text(picture(rows))


if __name__ == "__main__":
    main()
