"""Measure the coverage of intervals for off-policy estimates on data with known true values.

    python benchmarks/estimates.py [--sets synsep optdigits] [--seeds 1000] [--rows 2000] [--minutes 30] [--write]

The rows of a data set are the population. Each seed draws rows with replacement. A known policy chooses the classes,
and the bit reports whether the class is right. This policy mixes 70% uniform play, which bounds the weights, with 30%
play by a learner trained on some of the rows. The evaluated policies are uniform play, a constant class, and a trained
model that plays every class with a probability of at least 0.02. Their true values are means over the population. The
coverage is the fraction of seeds whose interval contains the true value. It is measured for the bootstrap, the
empirical Bernstein interval, and the confidence sequence, which must contain the true value after every row. `--write`
stores the table in benchmarks/results/estimates.json. `--minutes` limits the time per data set; the table shows the
number of completed seeds.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import Dataset
from producers.datasets.log import MISSING
from producers.datasets.named import load
from stream.estimating.estimate import estimate
from stream.estimating.evaluation import Options, PolicyEvaluation
from stream.estimating.intervals import Interval
from stream.estimating.policies import Policy, Training, parse_policy
from stream.estimating.rows import Chunk, LogBatch
from stream.learners import KernelLearner, Learner, create
from stream.learners.wrappers.mixture import Mixture
from stream.wire.actions import ActionBlocks
from stream.wire.records import Features, FloatArray

RESULTS = Path(__file__).parent / "results"
SETS = ("synsep", "optdigits")
POPULATION = 4_000
LEARNED = 1_000
"""Number of rows used to train the logging policy. The evaluated model is trained on the same number of other rows."""

FLOOR = 0.2
"""Exploration floor of the evaluated model."""

UNIFORM = 0.7
"""Share of the logging policy's decisions that are uniformly random. Weights are at most K/UNIFORM."""


class Population(NamedTuple):
    """The rows in the population, with the class probabilities under two policies."""

    name: str
    contexts: list[Features]
    labels: NDArray[np.int64]
    n_classes: int
    n_features: int
    logging: FloatArray  # [N, K], probabilities of the classes under the logging policy
    judged: FloatArray  # [N, K], probabilities of the classes under the evaluated model


class Known(Policy):
    """A policy with known probabilities for every row in the population. Event ids end with the row number."""

    def __init__(self, name: str, probabilities: FloatArray) -> None:
        self.name = name
        self._probabilities = probabilities

    def probabilities(self, chunk: Chunk) -> FloatArray:
        """Return the known probabilities for the rows."""
        return self._probabilities[[int(one.rpartition("-")[2]) for one in chunk.ids]]


class MemoryLog(NamedTuple):
    """A decision log in memory."""

    rows: LogBatch
    n_features: int
    class_names: tuple[str, ...]
    name: str = "memory"
    blocks: ActionBlocks | None = None

    def batches(self) -> Iterator[LogBatch]:
        """Yield all rows as one batch."""
        yield self.rows


def population_of(name: str) -> Population:
    """Return the first rows of a data set as the population."""
    dataset = load(name)
    rows = [dataset.row(row) for row in range(min(POPULATION, dataset.rows))]
    contexts, labels = [x for x, _ in rows], np.array([label for _, label in rows])
    logs, judged = trained(dataset, 0, "igw-logistic"), trained(dataset, LEARNED, "late-ucb", FLOOR, project=20)
    own, model = (np.stack([learner.distribution(x) for x in contexts]) for learner in (logs, judged))
    logging = UNIFORM / dataset.n_classes + (1.0 - UNIFORM) * own
    return Population(name, contexts, labels, dataset.n_classes, dataset.n_features, logging, model)


def trained(dataset: Dataset, start: int, name: str, floor: float = 0.0, **parameters: float) -> Learner:
    """Return a learner with an exploration floor, trained on the bits of LEARNED rows from row `start` onwards."""
    bare = create(name, dataset.n_classes, dataset.n_features, **parameters)
    assert isinstance(bare, KernelLearner)
    learner = Mixture(bare, floor)
    uniforms = np.random.default_rng(start).random(LEARNED)
    for row, u in zip(range(start, start + LEARNED), uniforms, strict=True):
        x, label = dataset.row(row)
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        learner.update(x, decision, int(decision.action == label))
    return learner


def drawn(population: Population, rows: int, seed: int) -> MemoryLog:
    """Return a log of the logging policy's decisions on rows drawn with this seed."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(population.contexts), rows)
    played = population.logging[chosen]
    actions = np.minimum((rng.random((rows, 1)) >= played.cumsum(axis=1)).sum(axis=1), population.n_classes - 1)
    contexts = [population.contexts[row] for row in chosen]
    nowhere = np.full(rows, MISSING, np.int64)
    batch = LogBatch(
        ids=[f"{seed}-{number}-{row}" for number, row in enumerate(chosen)],
        offsets=np.concatenate(([0], np.cumsum([x.indices.size for x in contexts]))),
        indices=np.concatenate([x.indices for x in contexts]),
        values=np.concatenate([x.values for x in contexts]),
        decided_at_ms=nowhere,
        labels=nowhere,
        actions=actions,
        propensities=played[np.arange(rows), actions],
        rewards=(population.labels[chosen] == actions).astype(np.float64),
        delays_ms=nowhere,
    )
    return MemoryLog(batch, population.n_features, tuple(map(str, range(population.n_classes))))


def truths(population: Population) -> dict[str, float]:
    """Return the true value of each evaluated policy."""
    right = population.judged[np.arange(population.labels.size), population.labels]
    return {
        "uniform": 1.0 / population.n_classes,
        "constant:3": float((population.labels == 3).mean()),
        "model": float(right.mean()),
    }


def holds(interval: Interval | None, truth: float) -> bool | None:
    """Return whether an interval contains the true value, or None if there is no interval."""
    return None if interval is None else interval.low <= truth <= interval.high


def intervals_of(judged: PolicyEvaluation, truth: float) -> Iterator[tuple[str, str, bool | None, float]]:
    """Yield the estimator, the kind of interval, whether it contains the true value, and its width."""
    for one in judged.estimates:
        for kind, interval in (("bootstrap", one.bootstrap), ("bernstein", one.bernstein)):
            if interval is not None:
                yield one.estimator, kind, holds(interval, truth), interval.high - interval.low
    for name, path in (
        ("ips", [point.ips_interval for point in judged.path]),
        ("dr", [point.dr_interval for point in judged.path]),
    ):
        yield name, "anytime", all(holds(one, truth) for one in path), path[-1].high - path[-1].low


def measure(population: Population, seeds: int, rows: int, minutes: float = math.inf) -> list[dict[str, object]]:
    """Return the coverage of every kind of interval, for each policy and estimator."""
    known = truths(population)
    found: dict[tuple[str, str, str], list[tuple[bool | None, float]]] = {}
    weight_max = 0.0
    started_s = time.monotonic()
    for seed in range(seeds):
        if time.monotonic() - started_s > 60.0 * minutes:
            break
        log = drawn(population, rows, seed)
        policies: list[Policy] = [
            parse_policy(spec, log.class_names, log.n_features, Training()) for spec in ("uniform", "constant:3")
        ]
        policies.append(Known("model", population.judged))
        least = float(population.logging.min())
        options = Options(seed=seed, path_points=rows, propensity_min=least)
        for judged in estimate(log, policies, options).policies:
            weight_max = max(weight_max, judged.weight_max)
            for estimator, kind, hit, width in intervals_of(judged, known[judged.policy]):
                found.setdefault((judged.policy, estimator, kind), []).append((hit, width))
    return [
        {
            "set": population.name, "policy": policy, "value": round(known[policy], 4), "estimator": estimator,
            "interval": kind, "rows": rows, "seeds": len(cases),
            "covers %": round(100.0 * sum(bool(hit) for hit, _ in cases) / len(cases), 1),
            "mean width": round(float(np.mean([width for _, width in cases])), 4),
            "largest weight": round(weight_max, 1),
        }
        for (policy, estimator, kind), cases in found.items()
    ]  # fmt: skip


def main() -> None:
    """Measure and print the coverage, and store it if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = []
    for name in arguments.sets:
        for line in measure(population_of(name), arguments.seeds, arguments.rows, arguments.minutes):
            print(json.dumps(line), flush=True)
            table.append(line)
    if arguments.write:
        lines = ",\n".join(json.dumps(line) for line in table)
        (RESULTS / "estimates.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
