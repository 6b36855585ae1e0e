"""Measure what a model that was trained on the included log is worth to a new pipeline.

    python benchmarks/warm_start.py > benchmarks/results/warm_start.json

New visitors arrive, whose clicks have the law of the log (tests/producers/logs/offers.py). For each seed, a learner
without a model and a learner with the model from `onebit train` decide for the same 1,000 visitors. Nine seconds pass
between two visits on average, and a click is known after 30 seconds on average. The result is the mean click
probability of the offers that the learners show, over the first 100 decisions and over all 1,000, with the standard
deviation over the seeds.
"""

import json
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

import onebit
import producers.datasets
from stream.recovery.model_files import Model
from stream.wire.named_features import from_plain
from tests.producers.logs.offers import DELAY_MEAN_S, DEVICES, GAP_MEAN_S, LOG_NAME, N_OFFERS, REGIONS, truth, visits

LOG = Path(producers.datasets.__file__).parent / "files" / LOG_NAME
LEARNERS = ("late-ucb", "igw-logistic")
SEEDS = 20
VISITS = 1_000
FIRST = 100


def shown(model: Model, seed: int, *, is_warm: bool) -> list[float]:
    """Return the click probabilities of the offers that a learner shows, with or without the model's state."""
    learner = model.learner()
    if not is_warm:
        learner = onebit.create(learner.name, N_OFFERS, learner.n_features, **model.meta["parameters"])
    encoder = from_plain(model.meta["settings"]["features"])
    seen = visits(VISITS, 100 + seed)
    p = truth().click(seen)
    draw = np.random.Generator(np.random.PCG64(seed))
    u, clicks = draw.random(VISITS), draw.random(VISITS)
    shown_s = np.cumsum(draw.exponential(GAP_MEAN_S, VISITS))
    heard_s = shown_s + draw.exponential(DELAY_MEAN_S, VISITS)
    waiting: list[tuple[float, int]] = []  # times of the bits, and visits
    decided: list[tuple[onebit.Features, onebit.Decision]] = []
    found: list[float] = []
    for number in range(VISITS):
        while waiting and waiting[0][0] <= shown_s[number]:
            _, earlier = heappop(waiting)
            learner.update(*decided[earlier], int(clicks[earlier] < found[earlier]))
        x, _ = encoder.encode({
            "one": 1, "hours_away": float(seen.hours[number]), "device": DEVICES[seen.devices[number]],
            "region": REGIONS[seen.regions[number]],
        })  # fmt: skip
        decision = learner.predict(x, float(u[number]))
        learner.observe(x, decision)
        decided.append((x, decision))
        found.append(float(p[number, decision.action]))
        heappush(waiting, (float(heard_s[number]), number))
    return found


def main() -> None:
    best = [float(truth().click(visits(VISITS, 100 + seed)).max(axis=1).mean()) for seed in range(SEEDS)]
    print(json.dumps({"best offer for each visitor": round(float(np.mean(best)), 4), "seeds": SEEDS}))
    for name in LEARNERS:
        model = onebit.train(LOG, name, reward="any").model
        for is_warm in (False, True):
            runs = np.array([shown(model, seed, is_warm=is_warm) for seed in range(SEEDS)])
            row: dict[str, object] = {"learner": name, "trained": is_warm}
            for label, part in (("first 100", runs[:, :FIRST]), ("first 1,000", runs)):
                means = part.mean(axis=1)
                row[label] = [round(float(means.mean()), 4), round(float(means.std(ddof=1)), 4)]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
