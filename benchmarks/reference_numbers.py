"""The papers' cumulative errors on SynSep and SynNonSep, by the compiled loop.

    python benchmarks/reference_numbers.py [--events 1000000] [--seeds 5] [--json FILE]

Seed s draws the data set with seed s and the actions with numpy's default generator seeded 1000 + s.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from producers.datasets.synthetic import synnonsep, synsep
from stream.learners import create, registered
from stream.offline import Examples, run

DATA = {"synsep": synsep, "synnonsep": synnonsep}
NEWTRON: dict[str, Any] = {"alpha": 10.0, "beta": 0.01, "radius": 1.0}
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("banditron", "synsep", {"gamma": 0.014}),
    ("banditron", "synnonsep", {"gamma": 0.006}),
    ("pnewtron", "synsep", {"gamma": 0.01, **NEWTRON}),
    ("pnewtron", "synnonsep", {"gamma": 0.006, **NEWTRON}),
    ("soba-diag", "synsep", {"gamma": 2**-7}),
    ("soba-diag", "synnonsep", {"gamma": 2**-7}),
    ("perceptron", "synnonsep", {}),
    ("arow", "synnonsep", {}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    size, seeds = arguments.events, range(1, arguments.seeds + 1)
    errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in seeds:
        for data_name, make in DATA.items():
            block = make(seed=seed).block(0, size)
            data = Examples(block.offsets, block.indices, block.values, block.labels)
            u = np.random.default_rng(1000 + seed).random(size)
            for name, on, parameters in ROWS:
                if on == data_name and name in registered():
                    result = run(create(name, n_classes=9, n_features=400, **parameters), data, u)
                    wrong = (result.actions != data.labels) * 100.0
                    errors.setdefault((name, on), []).append((wrong.mean(), wrong[-size // 10 :].mean()))
    print(f"cumulative error of the action, %, after {size:,} events; seeds {seeds.start} to {seeds.stop - 1}")
    print(f"{'learner':12s} {'data':10s} {'mean':>7s} {'sd':>6s} {'last 10 %':>10s}   by seed")
    rows = []
    for name, on, parameters in ROWS:
        by_seed = [error for error, _ in errors[name, on]]
        last = float(np.mean([tail for _, tail in errors[name, on]]))
        mean, deviation = float(np.mean(by_seed)), float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else float("nan")
        print(f"{name:12s} {on:10s} {mean:7.3f} {deviation:6.3f} {last:10.3f}   {np.round(by_seed, 3).tolist()}")
        rows.append(
            {
                "learner": name,
                "data": on,
                "parameters": parameters,
                "mean": mean,
                "sd": deviation,
                "last_tenth": last,
                "by_seed": by_seed,
            }
        )
    if arguments.json:
        figures = {"events": size, "seeds": list(seeds), "unit": "% wrong actions, cumulative", "rows": rows}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
