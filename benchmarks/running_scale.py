"""Measure the error and the time per event with and without a running scale.

    python benchmarks/running_scale.py DATA_FOLDER [--sets pendigits r8] [--delays 0 100 1000] [--orders 3]

For each data set, the learner that `auto` chooses processes the original rows, and a copy in which the column with the
most entries is multiplied by 10,000. Both are processed with and without a running scale. Each time is the CPU time of
`predict`, `observe` and `update` in the fastest of five passes. Passes with and without the scale alternate.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean

import numpy as np
from late_bits import Loaded, choice_of, error_percent, load, stream_of

from stream.learners import KernelLearner, Learner, create
from stream.learners.wrappers.running_scale import RunningScale

UNIT = 1e4

PARTS, EVENTS = 5, 2_000


def learner_of(data: Loaded, *, is_scaled: bool) -> Learner:
    """Return the learner that `auto` chooses for the data set, with or without the running scale."""
    choice = choice_of(data)
    learner = create(choice.learner, data.n_classes, data.n_features, **choice.parameters)
    assert isinstance(learner, KernelLearner)
    return RunningScale(learner) if is_scaled else learner


def in_another_unit(data: Loaded) -> Loaded:
    """Return the data set with its most frequent column (the first, if there are several) multiplied by `UNIT`."""
    examples = data.examples
    column = int(np.bincount(examples.indices).argmax())
    values = np.where(examples.indices == column, UNIT * examples.values, examples.values)
    return data._replace(examples=examples._replace(values=values))


def event_us(data: Loaded) -> tuple[float, float]:
    """Return the microseconds per event without and with the scale."""
    learners = [learner_of(data, is_scaled=is_scaled) for is_scaled in (False, True)]
    stream = stream_of(data, 0, 1, rows_max=EVENTS)
    best = [float("inf")] * 2
    for part in range(PARTS + 1):  # the first part serves as warm-up
        for which, learner in enumerate(learners):
            started_s = time.process_time()
            for t in range(stream.u.size):
                x = stream.examples.features(t)
                decision = learner.predict(x, float(stream.u[t]))
                learner.observe(x, decision)
                learner.update(x, decision, int(decision.action == stream.examples.labels[t]), float(stream.v[t]))
            if part:
                best[which] = min(best[which], 1e6 * (time.process_time() - started_s) / stream.u.size)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=["pendigits", "r8"])
    parser.add_argument("--delays", nargs="+", type=int, default=[0, 100, 1_000])
    parser.add_argument("--orders", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.sets:
        data = load(name, arguments.folder)
        for shown, rows in (("original", data), ("one column times 10,000", in_another_unit(data))):
            for delay in arguments.delays:
                streams = [stream_of(rows, delay, seed) for seed in range(1, arguments.orders + 1)]
                bare, scaled = (
                    mean(error_percent(learner_of(data, is_scaled=is_scaled), stream) for stream in streams)
                    for is_scaled in (False, True)
                )
                row = {"set": name, "rows": shown, "delay": delay, "none": round(bare, 1), "running": round(scaled, 1)}
                print(json.dumps(row), flush=True)
        bare, scaled = event_us(data)
        ratio = round(scaled / bare, 2)
        print(json.dumps({"set": name, "none us": round(bare, 1), "running us": round(scaled, 1), "ratio": ratio}))


if __name__ == "__main__":
    main()
