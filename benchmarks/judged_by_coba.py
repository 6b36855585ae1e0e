"""Use coba's evaluator to compare Onebit's default learner with learners from coba, Vowpal Wabbit and bayesianbandits.

    pip install coba==8.1.0 vowpalwabbit==9.11.9 bayesianbandits==1.5.0
    python benchmarks/judged_by_coba.py DATA_FOLDER [--sets vowel r8] [--orders 3] [--rows-max 2000]
    python benchmarks/judged_by_coba.py --table

Onebit uses the learner that `auto` chooses, with default parameters. Every other learner is tuned over a grid on the
first order of the rows. Vowpal Wabbit's learners are tuned with the default learning rate first, and the best setting
is then tried with other rates. The setting with the smallest error is also measured on the other orders. coba calls
`predict` and `learn` alternately, so each bit arrives immediately.

On dense rows, the grids for Vowpal Wabbit and for coba's LinUCB include products of two features. LinUCB, LinTS and the
linear regressions in bayesianbandits accept only dense rows. Each result is stored in results/judged_by_coba.json as
soon as it is measured. Stored results are not measured again.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from against_vw import Results, Row
from bayesianbandits import Arm, ContextualAgent, NormalRegressor, ThompsonSampling, UpperConfidenceBound
from coba import learners as coba
from coba.evaluators import SequentialCB
from coba.primitives import BinaryReward, Categorical
from late_bits import FILES, RESULTS, Loaded, choice_of, load, stream_of, summary_of

from onebit.adapters.coba import Learner
from stream.offline import Examples

Make = Callable[..., Any]
"""Creates an untrained learner from keyword arguments."""

DENSE_SHARE = 8
"""A data set is dense if more than 1/DENSE_SHARE of its entries are non-zero."""

FEATURES = ((1, "a", "ax"), (1, "a", "ax", "axx"))
"""The inputs to each class's reward regression: x, or x and all products of two of its entries."""

LEARNING_RATES = (0.1, 2.0, 8.0, 32.0)
"""Learning rates to try in addition to Vowpal Wabbit's default of 0.5."""

SCALES = (10, 100, 1_000)

COSTS: dict[str, Any] = {"cb_min_cost": -1, "cb_max_cost": 0}
"""coba passes the reward as a negative cost. With the default cost bounds, 0 and 1, regcb plays at random."""

VOWPAL: dict[str, list[Make]] = {
    "VW squarecb": [
        *(partial(coba.VowpalSquarecbLearner, gamma_scale=scale) for scale in SCALES),
        *(partial(coba.VowpalSquarecbLearner, mode="elimination", gamma_scale=scale, **COSTS) for scale in SCALES),
    ],
    "VW rnd": [
        partial(coba.VowpalRndLearner, rnd=rnd, epsilon=share, rnd_alpha=alpha)
        for rnd, share, alpha in product((3, 10), (0.0, 0.025), (None, 0.5))
    ],
    "VW bag": [partial(coba.VowpalBagLearner, bag=bag) for bag in (2, 5, 10)],
    "VW cover": [partial(coba.VowpalCoverLearner, cover=cover) for cover in (1, 3, 8)],
    "VW regcb": [partial(coba.VowpalRegcbLearner, mode=mode, **COSTS) for mode in ("elimination", "optimistic")],
    "VW epsilon-greedy": [partial(coba.VowpalEpsilonLearner, epsilon=share) for share in (0.02, 0.05, 0.15)],
}

LINUCB = "coba LinUCB"


class Bayesian:
    """A learner from bayesianbandits that predicts the reward of each class with its own Bayesian linear regression."""

    def __init__(self, policy: Any, noise: float) -> None:
        """Set the policy and the noise precision; the prior precision is 1."""
        self.params = {"policy": repr(policy), "noise": noise}
        self._policy, self._noise = policy, noise
        self._agent: Any = None

    def predict(self, context: Any, actions: Any) -> tuple[Any, float]:
        """Return an action and a probability of 1; see coba's Learner."""
        if self._agent is None:
            arms = [Arm(action, learner=NormalRegressor(alpha=1.0, beta=self._noise)) for action in actions]
            self._agent = ContextualAgent(arms, self._policy, random_seed=1)
        (action,) = self._agent.pull(np.array([context]))
        return action, 1.0

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
        """Update the action's regression with its reward; see coba's Learner."""
        self._agent.select_for_update(action).update(np.array([context]), np.array([reward]))


DENSE_ONLY: dict[str, list[Make]] = {
    LINUCB: [partial(coba.LinUCBLearner, alpha=alpha) for alpha in (0.1, 0.3, 1.0)],
    "coba LinTS": [partial(coba.LinTSLearner, v=v) for v in (0.1, 0.3, 1.0)],
    "bayesianbandits Thompson": [
        partial(Bayesian, policy=ThompsonSampling(), noise=noise) for noise in (1.0, 10.0, 100.0)
    ],
    "bayesianbandits UCB": [
        partial(Bayesian, policy=UpperConfidenceBound(share), noise=noise)
        for share, noise in product((0.7, 0.84, 0.95), (1.0, 10.0, 100.0))
    ],
}

WITHOUT_X: dict[str, list[Make]] = {
    "coba epsilon-greedy, without x": [partial(coba.BanditEpsilonLearner, epsilon=share) for share in (0.02, 0.1)],
    "coba UCB, without x": [coba.BanditUCBLearner],
}


class Rows:
    """Rows as a coba environment. The actions are the classes; the reward is 1 for the right class, otherwise 0."""

    def __init__(self, examples: Examples, data: Loaded, *, dense: bool) -> None:
        self._examples, self._n_features, self.dense = examples, data.n_features, dense
        levels = [str(label) for label in range(data.n_classes)]
        self._actions = [Categorical(level, levels) for level in levels]

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield one interaction per row; see coba's Environment."""
        for t, label in enumerate(self._examples.labels.tolist()):
            indices, values = self._examples.features(t)
            if self.dense:
                x = np.zeros(self._n_features)
                x[indices] = values
                context: Any = x.tolist()
            else:
                context = dict(zip((f"f{i}" for i in indices.tolist()), values.tolist(), strict=True))
            yield {"context": context, "actions": self._actions, "rewards": BinaryReward(self._actions[label])}


def error_percent(make: Make, rows: Rows) -> float:
    """Return the percentage of actions that earn no reward."""
    steps = SequentialCB(record=["reward"], seed=1).evaluate(rows, make())
    return 100.0 * (1.0 - float(np.mean([step["reward"] for step in steps])))


def best(makes: Iterable[Make], rows: Rows) -> tuple[float, Make]:
    """Return the smallest error, and the factory for the learner that achieves it."""
    return min(((error_percent(make, rows), make) for make in makes), key=lambda found: found[0])


def tuned(learner: str, makes: list[Make], rows: Rows) -> tuple[float, Make]:
    """Return a learner's smallest error over its grid, and the factory that achieves it."""
    if learner in VOWPAL or learner == LINUCB:
        regressions = FEATURES if rows.dense else FEATURES[:1]
        makes = [partial(make, features=features) for make, features in product(makes, regressions)]
    found = best(makes, rows)
    if learner not in VOWPAL:
        return found
    rates = best((partial(found[1], learning_rate=rate) for rate in LEARNING_RATES), rows)
    return min(found, rates, key=lambda each: each[0])


def text(make: Make) -> str:
    """Return a learner's setting as text."""
    given: dict[str, Any] = getattr(make, "keywords", {})
    return " ".join(f"{name}={value}" for name, value in given.items())


def compare(name: str, data: Loaded, arguments: argparse.Namespace, results: Results) -> None:
    """Measure every learner on a data set."""
    choice = choice_of(data)
    dense = data.examples.indices.size / data.examples.labels.size * DENSE_SHARE > data.n_features
    settings: dict[str, Any] = {"n_features": data.n_features, **choice.parameters}
    grids: dict[str, list[Make]] = {
        "ours": [partial(Learner, choice.learner, **settings)],
        **VOWPAL,
        **(DENSE_ONLY if dense else {}),
        **WITHOUT_X,
    }
    seeds = list(range(1, arguments.orders + 1))
    streams = [stream_of(data, 0, seed, rows_max=arguments.rows_max) for seed in seeds]
    orders = [Rows(stream.examples, data, dense=dense) for stream in streams]
    for learner, makes in grids.items():
        run = {"set": name, "rows": streams[0].examples.labels.size, "seeds": seeds, "learner": learner}
        if results.has(run):
            continue
        first, make = tuned(learner, makes, orders[0])
        errors = [first, *(error_percent(make, rows) for rows in orders[1:])]
        setting = f"{choice.learner} {text(make)}" if learner == "ours" else text(make)
        results.add({**run, "setting": setting, **summary_of(errors)})


def table(rows: list[Row]) -> str:
    """Return the results as a Markdown table with one column per data set."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines = ["| learner | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    for learner in dict.fromkeys(row["learner"] for row in rows):
        found = {row["set"]: f"{row['error %']:.1f} ± {row['s.e.']:.1f}" for row in rows if row["learner"] == learner}
        lines.append(f"| {learner} | " + " | ".join(found.get(name, "–") for name in sets) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", default=["vowel", "r8"], choices=FILES)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--rows-max", type=int, default=2_000)
    parser.add_argument("--table", action="store_true", help="print the results as a table")
    arguments = parser.parse_args()
    results = Results(RESULTS / "judged_by_coba.json")
    if arguments.table:
        print(table(results.rows))
    elif arguments.folder is None:
        parser.error("DATA_FOLDER is required")
    else:
        for name in arguments.sets:
            compare(name, load(name, arguments.folder), arguments, results)


if __name__ == "__main__":
    main()
