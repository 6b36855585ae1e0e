"""Measure how decisions that are never shown affect the error, with and without deferred decisions.

    python benchmarks/activation.py [--write]

Half of the decisions are shown, and receive feedback after a random delay. The other half are never shown. The
benchmark reports the error on the shown decisions for three pipelines that run in virtual time with
`--on-expiry negative`:

    without     only the contexts whose decisions are shown
    deferred    all contexts, deferred; the window begins when a decision is shown
    expiry      all contexts, not deferred; decisions that are not shown expire and count as wrong
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import onebit
from producers.datasets.named import load
from stream.reporting.runs import versions

RESULTS = Path(__file__).parent / "results" / "activation.json"

SETS = ("optdigits", "synsep")
ROWS_MAX = 5_000
LEARNERS = ("late-ucb", "stack-igw", "igw-logistic")
PIPELINES = ("without", "deferred", "expiry")
SEEDS = 5

STEP = "100ms"  # time between two contexts
WINDOW = "30s"
SHOWN_MS, FEEDBACK_MS = 2_000, 5_000  # mean time until a decision is shown, and mean time from then until its feedback


def error(kind: str, name: str, learner: str, seed: int) -> float:
    """Return the error on the shown decisions, in percent."""
    dataset = load(name, seed=seed)
    luck = np.random.default_rng(seed)
    settings: dict[str, Any] = {"seed": seed, "on_expiry": "negative", "retain": "1m"}
    mistakes: list[bool] = []
    with onebit.embedded(
        n_classes=dataset.n_classes, n_features=dataset.n_features, learner=learner, window=WINDOW, **settings
    ) as pipeline:
        for number in dataset.order(0, seed)[:ROWS_MAX]:
            is_shown = luck.random() < 0.5
            shown_ms, feedback_ms = (int(luck.exponential(of)) for of in (SHOWN_MS, FEEDBACK_MS))
            pipeline.advance(STEP)
            if not is_shown and kind == "without":
                continue
            row, event_id, is_deferred = dataset.row(number), f"e{number}", kind == "deferred"
            x = {"i": row.x.indices, "v": row.x.values}
            decision = pipeline.decide(event_id, x, deferred=is_deferred)
            if is_shown:
                is_right = decision.action == row.label
                mistakes.append(not is_right)
                if is_deferred:
                    pipeline.shown(event_id, after=f"{shown_ms}ms")
                pipeline.feedback(event_id, int(is_right), after=f"{shown_ms + feedback_ms}ms")
    return 100 * mean(mistakes)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    write = parser.parse_args().write
    rows = []
    for name in SETS:
        for learner in LEARNERS:
            errors = {kind: mean(error(kind, name, learner, seed) for seed in range(SEEDS)) for kind in PIPELINES}
            rows.append({"set": name, "learner": learner} | {kind: round(value, 2) for kind, value in errors.items()})
            print(rows[-1], flush=True)
    if write:
        found = {"versions": versions(), "orders": SEEDS, "error of shown decisions %": rows}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
