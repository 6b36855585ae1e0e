"""Check that every decision is an eligible class, and measure how fast a class that appears halfway through is learned.

    python benchmarks/eligible.py DATA_FOLDER [--decisions 1000000] [--write]

1. A task with open classes makes decisions for contexts in which 2 to 30 of 50 names, chosen at random, are eligible.
   Every decision must be one of the context's eligible classes.
2. For each class of letter and 20news, one run omits the class from the first half of the rows, where it is not
   eligible. In a second run, the class is eligible from the start. In both runs, the benchmark counts the class's rows
   until the accuracy on its last 50 rows reaches 90% of the steady accuracy. The steady accuracy is the mean over the
   last quarter of the class's rows.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import orjson
from late_bits import Loaded, load
from numpy.typing import NDArray

from stream.learners import create
from stream.learners.auto import choose
from stream.task.settings import TaskSettings
from stream.task.task import Task
from stream.wire.codec import HEADERS
from stream.wire.records import IndexArray, Record

RESULTS = Path(__file__).parent / "results" / "eligible.json"

N_NAMES, SMALLEST, LARGEST, N_FEATURES, BATCH = 50, 2, 30, 10, 500

WINDOW, REACHED = 50, 0.9


def outside(decisions: int) -> int:
    """Return the number of decisions whose class was not eligible."""
    rng = np.random.default_rng(1)
    names = [f"class-{k}" for k in range(N_NAMES)]
    task = Task(TaskSettings("late-ucb", N_NAMES, N_FEATURES, open_classes=True), "contexts")
    wrong = 0
    for step in range(decisions // BATCH):
        records, sets = [], []
        for n in range(step * BATCH, (step + 1) * BATCH):
            eligible = [names[k] for k in rng.choice(N_NAMES, rng.integers(SMALLEST, LARGEST + 1), replace=False)]
            fields = {"id": f"e{n}", "x": rng.normal(size=N_FEATURES).round(3).tolist(), "eligible": eligible}
            records.append(Record("contexts", 0, n, n, None, orjson.dumps(fields), HEADERS))
            sets.append(eligible)
        found = task.step(records, step + 1).predictions
        assert len(found) == BATCH
        wrong += sum(one.class_name not in given for (one, _), given in zip(found, sets, strict=True))
    return wrong


class Reached(NamedTuple):
    """The number of rows needed to learn a class, and the steady accuracy for that class."""

    rows: int | None  # None if the required accuracy was not reached
    steady: float


def accuracy(name: str, data: Loaded, of_class: int, *, is_late: bool, seed: int) -> Reached:
    """Run the default learner over the rows in random order and measure its accuracy on one class."""
    examples, K = data.examples, data.n_classes
    order = np.random.default_rng(seed).permutation(examples.labels.size)
    begins = order.size // 2 if is_late else 0
    choice = choose(K, data.n_features, examples.indices.size / order.size)
    learner = create(choice.learner, K, data.n_features, **choice.parameters)
    u = np.random.default_rng(seed + 1).random(order.size)
    known: IndexArray = np.delete(np.arange(K, dtype=np.int32), of_class)
    hits: list[bool] = []
    for t, row in enumerate(order.tolist()):
        label = int(examples.labels[row])
        if t < begins and label == of_class:
            continue
        x = examples.features(row)
        decision = learner.predict(x, float(u[t]), known if t < begins else None)
        learner.observe(x, decision)
        learner.update(x, decision, int(decision.action == label), 0.5, label)
        if label == of_class:
            hits.append(decision.action == label)
    return reached(np.array(hits))


def reached(hits: NDArray[np.bool_]) -> Reached:
    """Return the number of rows until the recent accuracy reaches the required share of the steady accuracy."""
    steady = float(hits[-(hits.size // 4) :].mean())
    moving = np.convolve(hits, np.full(WINDOW, 1.0 / WINDOW), "valid")
    at = np.flatnonzero(moving >= REACHED * steady)
    return Reached(int(at[0]) + WINDOW if at.size else None, steady)


def measured(name: str, folder: Path, seeds: int) -> dict[str, Any]:
    """Return the results for all classes in a data set."""
    data = load(name, folder)
    rows: dict[str, list[Reached]] = {"known": [], "new": []}
    for of_class in range(data.n_classes):
        for seed in range(seeds):
            for kind, is_late in (("known", False), ("new", True)):
                rows[kind].append(accuracy(name, data, of_class, is_late=is_late, seed=seed))
        print(name, of_class, *(rows[kind][-1] for kind in rows), flush=True)
    pairs = [(a.rows, b.rows) for a, b in zip(rows["known"], rows["new"], strict=True) if a.rows and b.rows]
    return {
        "set": name,
        "classes": data.n_classes,
        "orders": seeds,
        "median rows, known from the start": median(a for a, _ in pairs),
        "median rows, new halfway": median(b for _, b in pairs),
        "median ratio": round(median(b / a for a, b in pairs), 2),
        "share of pairs with a ratio of at most 3": round(float(np.mean([b <= 3 * a for a, b in pairs])), 3),
        "not reached": len(rows["new"]) - len(pairs),
        "steady accuracy %, known": round(100 * float(np.mean([one.steady for one in rows["known"]])), 1),
        "steady accuracy %, new": round(100 * float(np.mean([one.steady for one in rows["new"]])), 1),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--sets", nargs="+", default=["letter", "20news"])
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"decisions": arguments.decisions, "not eligible": outside(arguments.decisions)}
    print(found, flush=True)
    found["sets"] = [measured(name, arguments.folder, arguments.orders) for name in arguments.sets]
    print(json.dumps(found, indent=1))
    if arguments.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
