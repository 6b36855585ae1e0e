"""Compare the learners for actions with features with Vowpal Wabbit's `cb_explore_adf`, tuned in hindsight.

    pip install vowpalwabbit==9.11.9
    python benchmarks/actions.py [--sets shop words] [--delays 0 1000 lognormal] [--orders 2] [--rounds 4000]
                                 [--environments FILE.py --sets NAME ...] [--first-seed 400]
    python benchmarks/actions.py --times
    python benchmarks/actions.py --new
    python benchmarks/actions.py --table

For each environment in catalogues.py and each delay, Onebit's learner has its default parameters. Vowpal Wabbit is
tuned on the first seed: all exploration algorithms, then learning rates, namespaces and scalings for the best three of
them. Its best setting is also measured with the other seeds. `--environments` reads environments from a Python file
with `make(name, seed, rounds)`; see `catalogues.converted`.

`--times` measures the time per decision, with its update, in turns in one run. `--new` measures the rewards of new
actions by the number of their plays.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from against_vw import Results, Row
from catalogues import CATALOGUES, Catalogue, Sparse, converted
from late_bits import LOGNORMAL, LOGNORMAL_MEDIAN, RESULTS, delay_of
from numpy.typing import NDArray

from onebit.experiments.vowpal_wabbit import package
from stream.learners import Learner, create
from stream.learners.auto import choose_for_actions
from stream.wire.actions import ActionBlocks
from stream.wire.records import Features, FloatArray

FILES = {"": "actions.json", "times": "actions_times.json", "new": "actions_new.json"}
"""The result file for each option."""

EXPLORATIONS = {
    "squarecb": [f"--squarecb --gamma_scale {scale}" for scale in (10, 100, 1_000)],
    "regcb": [
        f"--regcb{opt} --mellowness {c} --cb_min_cost -1 --cb_max_cost 0" for opt in ("", "opt") for c in (0.1, 0.01)
    ],
    "epsilon": [f"--epsilon {share}" for share in (0.02, 0.1)],
    "cover": ["--cover 5"],
    "softmax": [f"--softmax --lambda {scale}" for scale in (10, 30)],
    "bag": ["--bag 5"],
}  # fmt: skip
LEARNING_RATES = (0.1, 2.0, 8.0)
"""Learning rates to try in addition to the default, 0.5."""

BITS = 22
TUNED = 3
"""The number of exploration settings for which learning rates, namespaces and scalings are tried."""


class Setting(NamedTuple):
    """A configuration of Vowpal Wabbit."""

    exploration: str
    learning_rate: float = 0.5
    with_id: bool = False  # whether the id is a feature, alone and in products with the context
    unit: bool = True  # whether contexts and actions have unit norm

    def text(self) -> str:
        """Return a description of the configuration."""
        namespaces = "-q xa -q xi" if self.with_id else "-q xa"
        return f"{self.exploration} -l {self.learning_rate:g} {namespaces}, {'unit norm' if self.unit else 'unscaled'}"


class Feedback(NamedTuple):
    """The delays of an environment's rewards, and random draws."""

    due: list[list[int]]  # by decision: the earlier decisions whose rewards arrive after it
    u: FloatArray  # [T]


def feedback_of(delay: int | str, rounds: int, seed: int) -> Feedback:
    """Return the delays and draws of an environment. A delay is a number of decisions, or log-normal."""
    rng = np.random.default_rng(seed + 7)
    u = rng.random(rounds)
    delays = (
        np.full(rounds, delay) if delay != LOGNORMAL else np.rint(LOGNORMAL_MEDIAN * np.exp(rng.normal(size=rounds)))
    )
    arrivals = np.arange(rounds) + delays.astype(np.int64)
    due: list[list[int]] = [[] for _ in range(rounds)]
    for s in np.flatnonzero(arrivals < rounds)[np.argsort(arrivals[arrivals < rounds], kind="stable")]:
        due[arrivals[s]].append(int(s))
    return Feedback(due, u)


def learner_of(catalogue: Catalogue, name: str = "") -> Learner:
    """Return a learner for a catalogue, by default the one that `auto` chooses."""
    blocks = ActionBlocks(catalogue.offered.shape[1], catalogue.n_context, catalogue.n_action)
    choice = choose_for_actions(blocks, combined(catalogue, 0).indices.size)
    name, parameters = (name, {}) if name else (choice.learner, choice.parameters)
    return create(name, blocks.places, blocks.n_features, **{"context": blocks.context, **parameters})


def combined(catalogue: Catalogue, t: int) -> Features:
    """Return x: the context, and one block for each offered action."""
    context = catalogue.contexts[t]
    indices, values = [context.indices], [context.values]
    start = catalogue.n_context
    for key in catalogue.offered[t].tolist():
        action = catalogue.actions[key]
        indices += [np.array([start], np.int32), action.indices + np.int32(start + 1)]
        values += [np.array([key + 1.0]), action.values]
        start += 1 + catalogue.n_action
    return Features(np.concatenate(indices), np.concatenate(values))


def play_ours(catalogue: Catalogue, learner: Learner, feedback: Feedback) -> NDArray[np.int64]:
    """Return the places that a learner plays, int64[T]."""
    places = np.empty(len(catalogue.offered), np.int64)
    waiting = {}
    for t in range(places.size):
        x = combined(catalogue, t)
        decision = learner.predict(x, feedback.u[t])
        learner.observe(x, decision)
        places[t] = decision.action
        waiting[t] = x, decision
        for s in feedback.due[t]:
            x, decision = waiting.pop(s)
            learner.update(x, decision, reward=float(catalogue.rewards[s, places[s]]))
    return places


class Vowpal:
    """Vowpal Wabbit's cb_explore_adf. Decisions and rewards are passed as text."""

    def __init__(self, catalogue: Catalogue, setting: Setting) -> None:
        products = "-q xa -q xi" if setting.with_id else "-q xa"
        self._catalogue = catalogue
        self._workspace = package("vowpalwabbit.pyvw").Workspace(
            f"--cb_explore_adf --quiet -b {BITS} {products} -l {setting.learning_rate} {setting.exploration}"
        )
        self._contexts = ["shared |x " + text_of(row, "x", unit=setting.unit) for row in catalogue.contexts]
        self._actions = [
            "|a " + text_of(row, "a", unit=setting.unit) + (f" |i i{key}" if setting.with_id else "")
            for key, row in enumerate(catalogue.actions)
        ]

    def lines(self, t: int) -> list[str]:
        """Return the context and the actions of a decision."""
        return [self._contexts[t], *(self._actions[key] for key in self._catalogue.offered[t].tolist())]

    def decide(self, t: int, u: float) -> tuple[int, float]:
        """Return a place and its probability."""
        return drawn(self._workspace.predict("\n".join(self.lines(t))), u)

    def learn(self, t: int, place: int, probability: float) -> None:
        """Learn from a reward, as a negative cost."""
        lines = self.lines(t)
        lines[1 + place] = f"0:{-self._catalogue.rewards[t, place]:.6g}:{probability:.6g} {lines[1 + place]}"
        self._workspace.learn("\n".join(lines))

    def finish(self) -> None:
        """Free the weights."""
        self._workspace.finish()


def text_of(row: Sparse, prefix: str, *, unit: bool) -> str:
    """Return a row's features in Vowpal Wabbit's text format, with unit norm if `unit`."""
    norm = float(np.linalg.norm(row.values)) if unit else 1.0
    return " ".join(
        f"{prefix}{j}:{v / norm:.5g}" for j, v in zip(row.indices.tolist(), row.values.tolist(), strict=True)
    )


def drawn(probabilities: list[float], u: float) -> tuple[int, float]:
    """Draw a place with a uniform number."""
    below = 0.0
    for place, probability in enumerate(probabilities):
        below += probability
        if u < below:
            return place, probability
    place = int(np.argmax(probabilities))  # the sum of the float32 probabilities may be below 1
    return place, probabilities[place]


def play_vw(catalogue: Catalogue, setting: Setting, feedback: Feedback) -> NDArray[np.int64]:
    """Return the places that Vowpal Wabbit plays, int64[T]."""
    vowpal = Vowpal(catalogue, setting)
    places, probabilities = np.empty(len(catalogue.offered), np.int64), np.empty(len(catalogue.offered))
    for t in range(places.size):
        places[t], probabilities[t] = vowpal.decide(t, feedback.u[t])
        for s in feedback.due[t]:
            vowpal.learn(s, int(places[s]), probabilities[s])
    vowpal.finish()
    return places


def mean_reward(catalogue: Catalogue, places: NDArray[np.int64]) -> float:
    return float(np.mean(catalogue.rewards[np.arange(places.size), places]))


def tuned(measure: Callable[[Setting], float]) -> tuple[float, Setting]:
    """Return the highest mean reward, and the setting that achieves it."""
    found = sorted(
        ((measure(Setting(each)), Setting(each)) for settings in EXPLORATIONS.values() for each in settings),
        key=lambda pair: -pair[0],
    )[:TUNED]
    for change in (
        [{"learning_rate": rate} for rate in LEARNING_RATES], [{"with_id": True}], [{"unit": False}],
    ):  # fmt: skip
        found = [
            max(
                (pair, *((measure(new), new) for new in (pair[1]._replace(**each) for each in change))),
                key=lambda p: p[0],
            )
            for pair in found
        ]
    return max(found, key=lambda pair: pair[0])


def compare(
    name: str, make: Callable[[int, int], Catalogue], delay: int | str, arguments: argparse.Namespace, results: Results
) -> None:
    """Measure both learners for an environment and a delay, if the results do not contain them."""
    seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.orders))
    run: Row = {"set": name, "delay": delay, "rounds": arguments.rounds, "seeds": seeds}
    if results.has(run):
        return
    catalogues = [make(seed, arguments.rounds) for seed in seeds]
    feedbacks = [feedback_of(delay, len(each.offered), seed) for each, seed in zip(catalogues, seeds, strict=True)]
    pairs = list(zip(catalogues, feedbacks, strict=True))
    chosen = learner_of(catalogues[0]).name
    ours = [mean_reward(c, play_ours(c, learner_of(c), f)) for c, f in pairs]
    first, setting = tuned(lambda each: mean_reward(catalogues[0], play_vw(catalogues[0], each, feedbacks[0])))
    theirs = [first, *(mean_reward(c, play_vw(c, setting, f)) for c, f in pairs[1:])]
    results.add({
        **run, "learner": chosen, "reward": round(float(np.mean(ours)), 4),
        "VW reward": round(float(np.mean(theirs)), 4),
        "VW setting": setting.text(), "rewards": [round(each, 4) for each in ours],
        "VW rewards": [round(each, 4) for each in theirs],
        "uniform": round(float(np.mean([c.rewards.mean() for c in catalogues])), 4),
    })  # fmt: skip


def times(rounds: int, repetitions: int) -> Row:
    """Return the median times of the learners and Vowpal Wabbit per decision, with 15 actions of 20 features.

    The learners take turns on the same decisions, and rewards arrive immediately. The median excludes interruptions by
    other processes.
    """
    catalogue = CATALOGUES["latent"](400, rounds)
    feedback = feedback_of(0, rounds, 400)
    setting = Setting(EXPLORATIONS["squarecb"][1])
    events = [combined(catalogue, t) for t in range(rounds)]
    figures: dict[str, list[float]] = {}

    def ours(name: str) -> Iterator[None]:
        learner = learner_of(catalogue, name)
        for t, x in enumerate(events):
            decision = learner.predict(x, feedback.u[t])
            learner.observe(x, decision)
            learner.update(x, decision, reward=float(catalogue.rewards[t, decision.action]))
            yield

    def vw_text() -> Iterator[None]:
        vowpal = Vowpal(catalogue, setting)
        for t in range(rounds):
            vowpal.learn(t, *vowpal.decide(t, feedback.u[t]))
            yield
        vowpal.finish()

    for _ in range(repetitions):
        players = {"joint-ucb": ours("joint-ucb"), "igw-log": ours("igw-log"), "VW squarecb, from text": vw_text()}
        for _ in range(rounds):
            for title, player in players.items():
                start = time.perf_counter()
                next(player)
                figures.setdefault(title, []).append(1e6 * (time.perf_counter() - start))
    medians = {title: round(float(np.median(each)), 1) for title, each in figures.items()}
    return {"what": "µs per decision and update", "rounds": rounds, "repetitions": repetitions, **medians}


STEADY_PLAYS = 40
"""Actions with fewer plays are not compared with their own later plays."""

PLAYS = ((1, 10), (11, 20), (21, None))
"""Ranges of plays of an action, with their ends."""


def new_actions(rounds: int, seeds: list[int], delay: int) -> Row:
    """Return the mean expected rewards of new actions of the environment `churn`, by the number of plays.

    All actions that are first offered in the second half, and are played often, count. The same actions are therefore
    compared in each range.
    """
    found: dict[tuple[int, int | None], list[float]] = {each: [] for each in PLAYS}
    compared = 0
    for seed in seeds:
        catalogue = CATALOGUES["churn"](seed, rounds)
        places = play_ours(catalogue, learner_of(catalogue), feedback_of(delay, rounds, seed))
        start = rounds // 2
        played = catalogue.offered[np.arange(rounds), places]
        expected = catalogue.expected[np.arange(rounds), places]  # without luck, which decides on further plays
        for key in np.setdiff1d(played, catalogue.offered[:start]):
            own = expected[played == key]
            if own.size >= STEADY_PLAYS:
                compared += 1
                for first, last in PLAYS:
                    found[first, last].append(float(own[first - 1 : last].mean()))
    means = {f"plays {first}-{last or ''}": round(float(np.mean(each)), 4) for (first, last), each in found.items()}
    return {"set": "churn", "delay": delay, "rounds": rounds, "seeds": seeds, "actions": compared, **means}


def table(rows: list[Row]) -> str:
    """Return a Markdown table. Each cell contains Onebit's mean reward and, after a slash, Vowpal Wabbit's."""
    delays = {
        0: "immediate",
        1_000: "1,000 decisions late",
        LOGNORMAL: "log-normal, median 1,000",
        10_000: "10,000 late",
    }
    lines = [
        "| environment | learner | uniform | " + " | ".join(delays.values()) + " |",
        "|---|---|---:|" + "---:|" * len(delays),
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        cells = {row["delay"]: row for row in rows if row["set"] == name}
        first = next(iter(cells.values()))
        texts = [f"{cells[d]['reward']:.3f} / {cells[d]['VW reward']:.3f}" if d in cells else "–" for d in delays]
        lines.append(f"| {name} | {first['learner']} | {first['uniform']:.3f} | " + " | ".join(texts) + " |")
    higher = sum(row["reward"] > row["VW reward"] for row in rows)
    return "\n".join([*lines, "", f"Onebit's mean reward is higher in {higher} of {len(rows)} cells."])


def environments(file: Path | None) -> Callable[[str], Callable[[int, int], Catalogue]]:
    """Return a function from an environment's name to its generator."""
    if file is None:
        return lambda name: CATALOGUES[name]
    spec = importlib.util.spec_from_file_location("environments", file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"--environments: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name: lambda seed, rounds: converted(module.make(name, seed, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(CATALOGUES))
    parser.add_argument("--environments", type=Path, help="Python file with make(name, seed, rounds)")
    parser.add_argument("--delays", nargs="+", type=delay_of, default=[0, 1_000, LOGNORMAL])
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=4_000)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the stored rewards")
    parser.add_argument("--results", type=Path, help="result file instead of benchmarks/results/actions*.json")
    arguments = parser.parse_args()
    results = Results(
        arguments.results or RESULTS / FILES["times" if arguments.times else "new" if arguments.new else ""]
    )
    if arguments.table:
        print(table(results.rows))
    elif arguments.times:
        results.add(times(arguments.rounds, 3))
    elif arguments.new:
        for delay in arguments.delays:
            if isinstance(delay, int):
                seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.orders))
                results.add(new_actions(arguments.rounds, seeds, delay))
    else:
        generator = environments(arguments.environments)
        for name in arguments.sets:
            for delay in arguments.delays:
                compare(name, generator(name), delay, arguments, results)


if __name__ == "__main__":
    main()
