"""Reproduce the papers' cumulative errors on SynSep and SynNonSep with the compiled loop or with `onebit run`.

    python benchmarks/reference_numbers.py [--by loop|run] [--events 1000000] [--seeds 5] [--json FILE]

With `--by loop`, seed s generates the data set, and numpy's default generator with seed 1000 + s draws the actions.
With `--by run`, each figure is a result of `onebit run --data DATA --learner LEARNER --events N --seed s --delay none`.
That command runs the embedded pipeline with its codec, topics and join, and its draws depend on the event ids. The loop
then uses the same draws, and must end with the same number of mistakes and the same state, bit for bit. This mode
processes about 10,000 events per second.

The reference figures come from an independent implementation. A figure is compared only if the run has the same number
of events.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onebit.runs.embedded import run_embedded
from onebit.runs.plan import resolve_run
from producers.datasets.base import Dataset
from producers.datasets.synthetic import synnonsep, synsep
from stream.learners import create
from stream.offline import Examples, run
from stream.randomness.draws import Draws, Purpose
from stream.recovery.state import state_digest
from stream.settings.definitions import Settings
from stream.wire.records import FloatArray

DATA = {"synsep": synsep, "synnonsep": synnonsep}
NEWTRON: dict[str, Any] = {"alpha": 10.0, "beta": 0.01, "radius": 1.0}


class Known(NamedTuple):
    """A reference figure."""

    events: int
    mean: float  # percentage of wrong actions
    sd: float | None = None  # standard deviation; None to use that of the measured seeds


class Row(NamedTuple):
    """A combination of a learner and a data set."""

    learner: str
    data: str
    parameters: dict[str, Any]
    known: Known

    @property
    def events_max(self) -> int | None:
        """Limit on the number of events. Confidit with full matrices has a reference figure only for 10⁴ events."""
        return self.known.events if self.learner == "confidit" else None


ROWS = (
    Row("banditron", "synsep", {"gamma": 0.014}, Known(10**6, 1.77, 0.19)),
    Row("banditron", "synnonsep", {"gamma": 0.006}, Known(10**6, 12.3, 1.1)),
    Row("pnewtron", "synsep", {"gamma": 0.01, **NEWTRON}, Known(10**6, 0.923, 0.019)),
    Row("pnewtron", "synnonsep", {"gamma": 0.006, **NEWTRON}, Known(10**6, 12.0, 0.3)),
    Row("soba-diag", "synsep", {"gamma": 2**-7}, Known(10**6, 1.65, 0.45)),
    Row("soba-diag", "synnonsep", {"gamma": 2**-7}, Known(10**6, 6.6, 0.4)),
    Row("perceptron", "synnonsep", {}, Known(10**6, 9.8)),
    Row("arow", "synnonsep", {}, Known(10**6, 5.0)),
    Row("confidit", "synsep", {"variant": 2, "eta": 1.0}, Known(10**4, 0.6)),
    Row("confidit", "synnonsep", {"variant": 2, "eta": 1.0}, Known(10**4, 5.7)),
)


class Figures(NamedTuple):
    """The results of a run with one seed."""

    mistakes: int
    last_tenth: float  # percentage of wrong actions in the last tenth of the events
    state_sha256: str


def by_loop(row: Row, dataset: Dataset, events: int, u: FloatArray, v: FloatArray) -> Figures:
    """Run the compiled loop with the given draws."""
    block = dataset.block(0, events)
    data = Examples(block.offsets, block.indices, block.values, block.labels)
    learner = create(row.learner, dataset.n_classes, dataset.n_features, **row.parameters)
    wrong = run(learner, data, u, v).actions != data.labels
    return Figures(int(wrong.sum()), float(wrong[-events // 10 :].mean()) * 100.0, state_digest([learner.state()]))


def by_run(row: Row, dataset: Dataset, events: int, seed: int) -> Figures:
    """Run the embedded pipeline, and the loop with the pipeline's draws."""
    settings = Settings(
        data=row.data,
        learner=[row.learner],
        param=[f"{name}={value}" for name, value in row.parameters.items()],
        events=events,
        seed=seed,
        delay="none",
    )
    report = run_embedded(resolve_run(settings, row.learner, dataset))
    ids = [dataset.event_id(t) for t in range(events)]
    u, v = (np.array(list(map(Draws(seed, purpose), ids))) for purpose in (Purpose.ACTION, Purpose.UPDATE))
    loop = by_loop(row, dataset, events, u, v)
    piped = Figures(int(report.errors.mistakes), loop.last_tenth, report.state_sha256)
    if piped != loop or not report.audit_ok:
        raise SystemExit(f"{row.learner} on {row.data}, seed {seed}: the pipeline gives {piped}; the loop gives {loop}")
    return piped


def measure(row: Row, by: str, events: int, seeds: range) -> dict[str, Any]:
    """Return a row's mean error over the seeds, and other statistics."""
    outcomes = []
    for seed in seeds:
        dataset = DATA[row.data](seed=seed)
        if by == "run":
            outcomes.append(by_run(row, dataset, events, seed))
        else:
            rng = np.random.default_rng(1000 + seed)
            outcomes.append(by_loop(row, dataset, events, rng.random(events), rng.random(events)))
    by_seed = [100.0 * outcome.mistakes / events for outcome in outcomes]
    mean = float(np.mean(by_seed))
    sd = float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else None
    known_sd = (row.known.sd or sd) if row.known.events == events else None
    return {
        "learner": row.learner,
        "data": row.data,
        "parameters": row.parameters,
        "events": events,
        "mean": mean,
        "sd": sd,
        "last_tenth": float(np.mean([outcome.last_tenth for outcome in outcomes])),
        "known": row.known._asdict(),
        "deviation_sd": (mean - row.known.mean) / known_sd if known_sd else None,
        "by_seed": by_seed,
    }


def number(value: float | None, form: str) -> str:
    """Format a number, or return a dash for None."""
    return "-" if value is None else format(value, form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=("loop", "run"), default="loop", help="run the compiled loop or the pipeline")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    print(f"cumulative error of the actions in %, by {arguments.by}; seeds {seeds.start} to {seeds.stop - 1}")
    print(
        f"{'learner':11s} {'data':9s} {'events':>9s} {'mean':>7s} {'sd':>6s} {'last 10%':>9s} {'known':>6s} "
        f"{'dev. in sd':>10s}   by seed"
    )
    rows = []
    for row in ROWS:
        events = min(arguments.events, row.events_max or arguments.events)
        figures = measure(row, arguments.by, events, seeds)
        print(
            f"{row.learner:11s} {row.data:9s} {events:9,} {figures['mean']:7.3f} {number(figures['sd'], '.3f'):>6s} "
            f"{figures['last_tenth']:9.3f} {row.known.mean if events == row.known.events else '-':>6} "
            f"{number(figures['deviation_sd'], '+.1f'):>10s}   {np.round(figures['by_seed'], 3).tolist()}",
            flush=True,
        )
        rows.append(figures)
        if arguments.json:  # written after every row, so that an interrupted run keeps its rows
            notes = {"by": arguments.by, "seeds": list(seeds), "unit": "% wrong actions, cumulative", "rows": rows}
            arguments.json.write_text(json.dumps(notes, indent=1) + "\n")


if __name__ == "__main__":
    main()
