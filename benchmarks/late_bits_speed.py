"""Measure the time per event for the learners designed for late bits, called from Python and in the compiled loop.

    python benchmarks/late_bits_speed.py DATA_FOLDER [--sets optdigits reuters4] [--write]
    python benchmarks/late_bits_speed.py DATA_FOLDER --inverses 100000

Every row includes the perceptron's time on the same events in the same run. On a busy machine, the ratio of a learner's
time to the perceptron's is more reliable than the absolute times. The events are divided into a warm-up part and five
other parts; each time is the CPU time per event in the fastest of these five. `--write` stores the rows, with the
machine's load, in benchmarks/results/late_bits_speed.json.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from late_bits import RESULTS, Loaded, in_order, load

from stream.learners import check_parameters, create, registered
from stream.offline import Examples, run

PLAIN: dict[str, Any] = {"expand": "none"}
WITHOUT_WORDS: dict[str, Any] = {"vectors": 0}

ROWS: dict[str, tuple[tuple[str, dict[str, Any], float], ...]] = {
    "optdigits": (("late-ucb", {}, 25.0), ("late-ucb", PLAIN, 8.0)),
    "covtype": (("late-ucb", {}, 18.0), ("late-ucb", PLAIN, 6.0)),
    "letter": (("late-ucb", {}, 16.0), ("late-ucb", PLAIN, 8.0)),
    "dense": (("late-ucb", {"project": 256, **PLAIN}, 150.0),),
    "SynSep": (("late-ucb", PLAIN, 60.0),),
    "reuters4": (("igw-logistic", {}, 8.0), ("stack-igw", {}, 40.0), ("stack-igw", WITHOUT_WORDS, 12.0)),
    "20news": (("igw-logistic", {}, 25.0), ("stack-igw", {}, 110.0), ("stack-igw", WITHOUT_WORDS, 40.0)),
}
"""For each data set: learner, parameters, and goal in microseconds per event on an idle machine."""

LOOPS = {"pendigits": ("late-ucb", PLAIN, 400_000), "reuters4": ("igw-logistic", {}, 250_000)}
"""For each data set: learner, parameters, and goal in events per second in the compiled loop."""

RESULT = RESULTS / "late_bits_speed.json"

Row = dict[str, Any]

EVENTS = 6_000
PARTS = 6


def dense_images() -> Loaded:
    """Return random dense rows with ten classes and 784 features."""
    rng = np.random.default_rng(0)
    size, d = 1_500, 784
    labels = rng.integers(10, size=size)
    values = np.abs(rng.normal(size=(10, d))[labels] + rng.normal(size=(size, d)))
    offsets = np.arange(0, size * d + 1, d, dtype=np.int64)
    return Loaded(Examples(offsets, np.tile(np.arange(d, dtype=np.int32), size), values.ravel(), labels), 10, d)


def best_us(part: Callable[[int, int], object], size: int) -> float:
    """Return the shortest CPU time per event among all parts except the first."""
    step = size // PARTS
    times = []
    for start in range(0, step * PARTS, step):
        started_s = time.process_time()
        part(start, start + step)
        times.append((time.process_time() - started_s) / step * 1e6)
    return min(times[1:])


def called_us(data: Loaded, learner_name: str, parameters: dict[str, Any]) -> float:
    learner = create(learner_name, data.n_classes, data.n_features, **parameters)
    size = min(EVENTS, data.examples.labels.size)
    xs = [data.examples.features(t) for t in range(size)]
    labels = data.examples.labels[:size].tolist()
    u = np.random.default_rng(1).random(size).tolist()

    def part(start: int, stop: int) -> None:
        for t in range(start, stop):
            x, label = xs[t], labels[t]
            decision = learner.predict(x, u[t])
            learner.observe(x, decision)
            learner.update(x, decision, 1 if decision.action == label else 0, 0.0, label)

    return best_us(part, size)


def state_bytes(data: Loaded, learner: str, parameters: dict[str, Any]) -> int:
    checked = check_parameters(learner, parameters)
    return registered()[learner].cost(data.n_classes, data.n_features, 0, checked).state_bytes


def looped_per_s(data: Loaded, learner_name: str, parameters: dict[str, Any]) -> float:
    size = data.examples.labels.size
    u = np.random.default_rng(1).random(size)
    rates = []
    for _ in range(4):
        learner = create(learner_name, data.n_classes, data.n_features, **parameters)
        started_s = time.process_time()
        run(learner, data.examples, u)
        rates.append(size / (time.process_time() - started_s))
    return max(rates)


def inverse_error(d: int, events: int) -> tuple[float, float]:
    """Return the largest errors in late-ucb's inverse matrices and in W after N events, against a direct solution."""
    rng = np.random.default_rng(3)
    K = 4
    X = rng.normal(size=(events, d))
    labels = (X @ rng.normal(size=(d, K))).argmax(axis=1)
    offsets = np.arange(0, events * d + 1, d, dtype=np.int64)
    examples = Examples(offsets, np.tile(np.arange(d, dtype=np.int32), events), X.ravel(), labels)
    learner = create("late-ucb", K, d, drift="off", **PLAIN)
    actions = run(learner, examples, rng.random(events)).actions
    state = {name: np.asarray(value) for name, value in learner.state().items()}
    x = np.hstack((X / np.linalg.norm(X, axis=1, keepdims=True), np.full((events, 1), 0.3)))
    of_inverse, of_w = 0.0, 0.0
    for k in range(K):
        mine = actions == k
        A = (0.03 if d <= 200 else 0.1) * np.eye(d + 1) + x[mine].T @ x[mine]
        V = state["V"][k, : int(state["pending"][k])]
        of_inverse = max(of_inverse, float(np.abs(state["P"][k] - V.T @ V - np.linalg.inv(A)).max()))
        w = np.linalg.solve(A, x[mine].T @ (labels[mine] == k))
        of_w = max(of_w, float(np.abs(state["W"][k] - w).max()))
    return of_inverse, of_w


def rows_of(name: str, folder: Path) -> Iterator[Row]:
    """Yield the measurements for a data set, with the machine's load average over the last minute."""
    data = dense_images() if name == "dense" else load(name, folder)
    order = np.random.default_rng(0).permutation(data.examples.labels.size)
    data = data._replace(examples=in_order(data.examples, order))
    reference = called_us(data, "perceptron", {})
    for learner, parameters, goal in ROWS.get(name, ()):
        figure = called_us(data, learner, parameters)
        yield {
            "set": name,
            "learner": learner,
            "parameters": parameters,
            "µs": round(figure, 2),
            "goal µs": goal,
            "perceptron µs": round(reference, 2),
            "ratio": round(figure / reference, 2),
            "state kB": round(state_bytes(data, learner, parameters) / 1e3),
            "load": round(os.getloadavg()[0], 1),
        }
    if name in LOOPS:
        learner, parameters, goal_per_s = LOOPS[name]
        rate, of_perceptron = looped_per_s(data, learner, parameters), looped_per_s(data, "perceptron", {})
        yield {
            "set": name,
            "learner": learner,
            "parameters": parameters,
            "events/s in the compiled loop": round(rate),
            "goal events/s": goal_per_s,
            "perceptron events/s": round(of_perceptron),
            "ratio": round(rate / of_perceptron, 3),
            "load": round(os.getloadavg()[0], 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=[*ROWS, "pendigits"], choices=[*ROWS, "pendigits"])
    parser.add_argument("--write", action="store_true", help="store the measurements in the results")
    parser.add_argument("--inverses", type=int, metavar="EVENTS", help="measure only the errors of late-ucb's inverses")
    arguments = parser.parse_args()
    if arguments.inverses:
        for d in (12, 64, 200):
            of_inverse, of_w = inverse_error(d, arguments.inverses)
            print(f"d = {d}: error of P {of_inverse:.1e}, of W {of_w:.1e} after {arguments.inverses:,} events")
        return
    rows: list[Row] = []
    for name in arguments.sets:
        for row in rows_of(name, arguments.folder):
            print(json.dumps(row, ensure_ascii=False), flush=True)
            rows.append(row)
    if arguments.write:
        RESULT.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
