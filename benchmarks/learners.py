"""Measure the time per event of the learners and Vowpal Wabbit, and the learners' compile time.

    OPENBLAS_NUM_THREADS=1 python benchmarks/learners.py [--drift] [--json FILE]

Times per event are medians over the repetitions in one run. With more BLAS threads than idle cores, full SOBA's block
product waits for a thread that is not running, and an update takes 5 ms instead of 0.7 ms. Vowpal Wabbit is measured if
its Python package is installed (pip install vowpalwabbit). --drift compares full SOBA at K·d = 3,600 with a direct
solution after 10⁵ updates, which takes one to two minutes.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from producers.datasets.synthetic import synsep
from stream.learners import create, registered
from stream.offline import Examples, run
from stream.wire.records import Features

K, D, NNZ = 9, 400, 25
REPEATS = 9
PER_EVENT: dict[str, dict[str, Any]] = {
    "perceptron": {},
    "second-order-perceptron": {},
    "arow": {},
    "banditron": {"gamma": 0.01},
    "soba-diag": {"gamma": 0.01},
    "soba-adaptive": {},
    "pnewtron": {"gamma": 0.01},
    "ova-perceptron": {},
    "confidit": {"variant": 2},
    "confidit diag": {"variant": 5},
    "confidit-kernel": {"support_max": 1_000},
}
OFFLINE = {name: PER_EVENT[name] for name in ("perceptron", "arow", "banditron", "soba-diag", "pnewtron")}


def events(size: int, seed: int) -> list[tuple[Features, int, float]]:
    """Return events that have 25 non-zero features each, with classes determined by linear functions of x."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(K, D))
    drawn = []
    for _ in range(size):
        indices = np.sort(rng.choice(D, NNZ, replace=False)).astype(np.int32)
        drawn.append((Features(indices, np.ones(NNZ)), int(U[:, indices].sum(axis=1).argmax()), float(rng.random())))
    return drawn


def timed_us(call: Callable[[], object], events_per_call: int) -> float:
    """Return the median microseconds per event over the repetitions, after a warm-up call."""
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) / events_per_call * 1e6)
    return median(times)


def per_event() -> dict[str, float]:
    stream = events(4_000, seed=1)
    figures = {}
    for title, parameters in PER_EVENT.items():
        name = title.split()[0]
        if name not in registered():
            continue
        learner = create(name, n_classes=K, n_features=D, **parameters)

        def once(learner: Any = learner) -> None:
            for x, label, u in stream:
                decision = learner.predict(x, u)
                learner.observe(x, decision)
                learner.update(x, decision, 1 if decision.action == label else 0, 0.5, label)

        figures[title] = timed_us(once, len(stream))
    return figures


def offline() -> dict[str, float]:
    """Return the speed of the compiled loop on SynSep, in millions of events per second."""
    size = 100_000
    block = synsep(seed=1).block(0, size)
    data = Examples(block.offsets, block.indices, block.values, block.labels)
    u = np.random.default_rng(2).random(size)
    figures = {}
    for name, parameters in OFFLINE.items():

        def once(name: str = name, parameters: Any = parameters) -> None:
            run(create(name, n_classes=K, n_features=D, **parameters), data, u)

        figures[name] = 1.0 / timed_us(once, size)
    return figures


def full_soba(updates: int, *, check: bool) -> dict[str, float]:
    """Return the milliseconds per update at K·d = 3,600, and the error in W compared with a direct solution."""
    learner = create("soba", n_classes=K, n_features=D, gamma=0.5)
    A, theta = np.eye(K * D) if check else np.zeros((0, 0)), np.zeros(K * D)
    rng = np.random.default_rng(3)
    spent, done = 0.0, 0
    for x, _, u in events(min(updates, 20_000), seed=4) * -(-updates // 20_000):
        # All actions count as right and half of the rounds explore, so that most rounds meet the update condition.
        decision = learner.predict(x, (u + float(rng.random())) % 1.0)
        start = time.perf_counter()
        changed = learner.update(x, decision, 1)
        spent += time.perf_counter() - start
        if changed:
            done += 1
            if check:
                others = decision.scores.copy()
                others[decision.action] = -np.inf
                plus, minus = int(others.argmax()) * D + x.indices, decision.action * D + x.indices
                rows = np.concatenate((plus, minus))
                g = np.concatenate((x.values, -x.values)) / decision.propensity
                A[np.ix_(rows, rows)] += decision.propensity * np.outer(g, g)
                theta[rows] -= g
    figures = {"updates": float(done), "ms per update": spent / done * 1e3}
    if check:
        figures["drift of W"] = float(np.abs(learner.weights().ravel() - np.linalg.solve(A, theta)).max())
    return figures


def compile_s() -> dict[str, float]:
    """Return the time from a learner's creation to its first update, without and with cached kernels.

    Each time is measured in a new process, in seconds.
    """
    program = (
        "import sys, time, numpy as np\n"
        "from stream.learners import create\n"
        "start = time.perf_counter()\n"
        "learner = create(sys.argv[1], n_classes=9, n_features=20)\n"
        "x = np.ones(20)\n"
        "decision = learner.predict(x, 0.5)\n"
        "learner.observe(x, decision)\n"
        "learner.update(x, decision, 1, v=0.5, label=1)\n"
        "print(time.perf_counter() - start)\n"
    )
    figures = {}
    for name in registered():
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(Path(__file__).parent.parent)}
            for title in (name, f"{name}, cached"):
                done = subprocess.run(
                    [sys.executable, "-c", program, name], env=environment, capture_output=True, text=True
                )
                if done.returncode == 0:
                    figures[title] = float(done.stdout)
    return figures


def vowpal_wabbit(ours_us: float) -> dict[str, float]:
    """Return Vowpal Wabbit's microseconds per event for text examples in memory, and the ratio to soba-diag's time."""
    try:
        vw = importlib.import_module("vowpalwabbit")
    except ImportError:
        print("Vowpal Wabbit is not installed, so it is not measured (pip install vowpalwabbit)")
        return {}
    stream = events(400, seed=1)
    shared = ["shared |s " + " ".join(map(str, x.indices)) for x, _, _ in stream]
    actions = [f"|a {k}" for k in range(K)]
    figures = {}
    for exploration in ("squarecb", "softmax"):
        workspace = vw.Workspace(f"--cb_explore_adf --{exploration} -q sa --quiet")

        def once(workspace: Any = workspace) -> None:
            for text, (_, label, u) in zip(shared, stream, strict=True):
                p = workspace.predict([text, *actions])
                action = min(int(np.searchsorted(np.cumsum(p), u, side="right")), K - 1)
                cost = 0 if action == label else 1
                lines = actions.copy()
                lines[action] = f"0:{cost}:{p[action]:.6f} |a {action}"
                workspace.learn([text, *lines])

        figures[exploration] = timed_us(once, len(stream))
        figures[f"{exploration} / soba-diag"] = figures[exploration] / ours_us
        workspace.finish()
    return figures


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:40s} {value:12.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--drift", action="store_true", help="compare full SOBA with a direct solution after 100,000 updates"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for key, title, measure in (
        ("per_event_us", f"predict + update from Python, µs ({NNZ} non-zeros, d={D}, K={K})", per_event),
        ("offline_million_per_s", "compiled loop on SynSep, million events per second", offline),
        ("soba_full", f"full SOBA, K·d={K * D}", lambda: full_soba(2_000, check=False)),
        ("compile_s", "first use in a new process, s", compile_s),
    ):
        figures[key] = measure()
        show(title, figures[key])
    figures["vowpal_wabbit_us"] = vowpal_wabbit(figures["per_event_us"]["soba-diag"])
    show("Vowpal Wabbit, predict + learn from Python, µs", figures["vowpal_wabbit_us"])
    if arguments.drift:
        figures["soba_drift"] = full_soba(100_000, check=True)
        show("full SOBA, drift", figures["soba_drift"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
