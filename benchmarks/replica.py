"""How many entries of its log a replica of a shared model takes in per second, decoding included.

    python benchmarks/replica.py [--events N]

Learners whose decisions move the model have two entries for an event, the others one. Times are of the processor.
"""

import argparse
import time

import numpy as np

from producers.datasets.catalogue import load
from stream.learners import create
from stream.learners.base import KernelLearner
from stream.sharing.replica import Replica
from stream.sharing.view import View
from stream.wire.records import Record
from stream.wire.updates import HEADERS, encode_updates

LEARNERS = ("soba-diag", "late-ucb", "stack-igw")
DATA = "optdigits"


def fresh(name: str, n_classes: int, n_features: int) -> Replica:
    learner = create(name, n_classes, n_features)
    assert isinstance(learner, KernelLearner)
    return Replica(learner)


def log_of(name: str, events: int, step: int) -> tuple[list[Record], int, int, float]:
    """The log of one task's steps, the sizes of the model, and the seconds that a decision took with the overlay."""
    data = load(DATA)
    size = data.rows
    replica = fresh(name, data.n_classes, data.n_features)
    view = View(replica, 0)
    u = np.random.default_rng(1).random(events)
    log: list[Record] = []
    took_s = 0.0
    for number in range(1, events // step + 1):
        rows = [(number - 1) * step + place for place in range(step)]
        decided = []
        started_s = time.process_time()
        with view.step() as entries:
            for row in rows:
                x = data.row(row % size).x
                decision = view.learner.predict(x, float(u[row]))
                view.observe(x, decision)
                decided.append((row, x, decision))
        took_s += time.process_time() - started_s
        for row, x, decision in decided:
            view.settle(x, decision, int(decision.action == data.label(row % size)), 0.0, None)
        for value in encode_updates(0, number, number - 1, entries):
            log.append(Record("updates", 0, len(log), 0, None, value, HEADERS))
        replica.read(log[-1:])
    return log, data.n_classes, data.n_features, took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--events", type=int, default=40_000)
    arguments = parser.parse_args()
    print(f"{DATA}, {arguments.events} events")
    for name in LEARNERS:
        for step, at_once in ((1, 500), (20, 50), (500, 10)):
            events = arguments.events if step > 1 else arguments.events // 10
            log, K, d, took_s = log_of(name, events, step)
            best_s = float("inf")
            for _ in range(3):
                replica = fresh(name, K, d)
                started_s = time.process_time()
                for start in range(0, len(log), at_once):
                    replica.read(log[start : start + at_once])
                best_s = min(best_s, time.process_time() - started_s)
            size = sum(len(record.value or b"") for record in log) / replica.version
            print(
                f"{name:10} steps of {step:3}, {at_once:3} records at once: {replica.version / best_s:9,.0f} "
                f"entries/s, {size:5.0f} bytes an entry; a decision {1e6 * took_s / events:5.1f} us"
            )


if __name__ == "__main__":
    main()
