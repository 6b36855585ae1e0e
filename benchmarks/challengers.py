"""Count false promotions when the champion and the challenger are identical, and measure a challenger's CPU time.

    python -m benchmarks.challengers

*A/A.* In each stream, the champion and the challenger are both igw-logistic, with the same parameters and exploration
floor. The challenger's estimate is checked after every tenth decision. A stream counts as a false promotion if the
challenger is ever reported as better. The error probability of the interval's lower limit is 2.5%; the goal is at most
5% of the streams.

*CPU.* The extra time per decision and update with a challenger is reported relative to the time taken by the
challenger's learner alone. All times are measured in one process, in seven turns; each reported time is the shortest
of the seven.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from producers.datasets.named import load
from stream.estimating.challengers import ChallengerEstimator
from stream.learners import KernelLearner, create
from stream.learners.wrappers.challenge import Challenge
from stream.learners.wrappers.mixture import Mixture
from stream.wire.records import Challenged, Example, Outcome, Prediction

PAIRS = (("igw-logistic", "late-ucb"), ("late-ucb", "stack-igw"), ("stack-igw", "igw-logistic"))
STREAMS, EVENTS, FLOOR = 1_000, 1_500, 0.1
K, D = 4, 6
TURNS, TIMED = 7, 4_000


def learner(name: str, n_classes: int, n_features: int) -> KernelLearner:
    made = create(name, n_classes, n_features)
    assert isinstance(made, KernelLearner)
    return made


def is_promoted(seed: int) -> bool:
    """Return whether the challenger in an A/A stream is ever reported as better."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(D, K))
    equal = Challenge(*(Mixture(learner("igw-logistic", K, D), FLOOR) for _ in range(2)))
    estimator = ChallengerEstimator()
    for t in range(EVENTS):
        x = rng.normal(size=D)
        decision = equal.predict(x, float(rng.random()))
        equal.observe(x, decision)
        right = int((x @ W).argmax()) if rng.random() < 0.8 else int(rng.integers(K))  # a fifth of the labels are noise
        reward = int(decision.action == right)
        equal.update(x, decision, reward, 0.5)
        challenged = Challenged("champion", {"challenger": equal.choices(decision)[1][1]})
        made = Prediction("a", decision, 0, challenged=challenged)
        settled = Example("a", Outcome.MATCHED, decision.action, decision.propensity, reward, 0, 0, 0)
        estimator.take(0, t + 1, [made], [settled])
        if t % 10 == 9 and estimator.now().better:
            return True
    return False


def pair(champion: Callable[[], KernelLearner], challenger: Callable[[], KernelLearner]) -> Challenge:
    return Challenge(champion(), challenger())


def event_us(make: Callable[[], KernelLearner], data: str) -> float:
    """Return a new learner's CPU time per event in microseconds, after a warm-up."""
    dataset, one, rng = load(data, None), make(), np.random.default_rng(1)
    rows = [(dataset.row(t).x, dataset.known_of(dataset.event_id(t))) for t in range(TIMED)]
    draws = rng.random(TIMED).tolist()
    spent_s = 0.0
    for part in (range(TIMED // 2), range(TIMED // 2, TIMED)):  # the first part is a warm-up
        begun = time.process_time()
        for t in part:
            (x, known), u = rows[t], draws[t]
            decision = one.predict(x, u)
            one.observe(x, decision)
            one.update(x, decision, known.reward_of(decision.action) or 0, u)
        spent_s = time.process_time() - begun
    return 1e6 * spent_s / (TIMED // 2)


def main() -> None:
    """Print the CPU times and the number of false promotions."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("champion + challenger on optdigits: us per event; ratio of the extra time to the challenger's time alone")
    for champion, challenger in PAIRS:
        one, other = partial(learner, champion, 10, 64), partial(learner, challenger, 10, 64)
        makers = one, other, partial(pair, one, other)
        turns = [[event_us(make, "optdigits") for make in makers] for _ in range(TURNS)]
        alone_us, challenger_us, both_us = map(min, zip(*turns, strict=True))
        print(
            f"  {champion} + {challenger}: {alone_us:.1f} and {challenger_us:.1f} alone, {both_us:.1f} together; "
            f"ratio {(both_us - alone_us) / challenger_us:.2f}"
        )
    promoted = 0
    for seed in range(STREAMS):
        promoted += is_promoted(seed)
        if seed % 100 == 99:
            print(f"A/A: false promotions in {promoted} of {seed + 1} streams", flush=True)


if __name__ == "__main__":
    main()
