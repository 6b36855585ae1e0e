"""Measure the default learners' errors on each data set, with immediate and late bits.

    python benchmarks/late_bits.py DATA_FOLDER [--sets pendigits r8] [--delays 0 1000] [--orders 3] [--drift] [--write]
                                   [--learner igw-logistic] [--param scale=100]

For each data set, the learner that `auto` chooses, with default parameters, processes the rows once in each of several
random orders. Every bit arrives after a fixed number of decisions, or after a log-normal delay. The error is the share
of wrong actions. "error % seeing" is the error on the decisions made after the first bit arrives. With `--drift`, the
classes are renamed halfway through by a cyclic permutation, and the learner is measured with each value of its `drift`
parameter. `--learner` selects a different learner. `--write` stores each row as soon as it is measured, in
benchmarks/results/late_bits.json or late_bits_drift.json.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets import svmlight
from producers.datasets.synthetic import synnonsep, synsep
from stream.learners import Learner, create
from stream.learners.auto import Choice, choose
from stream.learners.kernels import DRIFTS
from stream.offline import Examples, run
from stream.wire.records import FloatArray

RESULTS = Path(__file__).parent / "results"

SYNTHETIC_ROWS = 50_000

LOGNORMAL = "lognormal"
"""Random delays with a median of 1,000 decisions: `LOGNORMAL_MEDIAN` · exp(z), where z is standard normal."""

LOGNORMAL_MEDIAN = 1_000

FILES = {
    "vowel": ("vowel.scale.svm.gz", 10),
    "optdigits": ("optdigits.scale.svm.gz", 64),
    "pendigits": ("pendigits.scale.svm.gz", 16),
    "satimage": ("satimage.scale.svm.gz", 36),
    "usps": ("usps.svm.gz", 256),
    "letter": ("letter.scale.svm.gz", 16),
    "shuttle": ("shuttle.scale.svm.gz", 9),
    "covtype": ("covtype_natural.scale.svm.gz", 54),
    "r8": ("r8.svm.gz", 7_688),
    "reuters4": ("reuters4.svm.gz", 47_236),
    "20news": ("20news.svm.gz", 165_470),
    "amazon3": ("amazon3.svm.gz", 393_548),
    "amazon7": ("amazon7.svm.gz", 600_042),
    "sector": ("sector.scale.svm.gz", 55_197),
}
"""Each data set's file name and number of features."""

SETS = (*FILES, "SynSep", "SynNonSep")

GOALS: dict[int | str, dict[str, float]] = {
    0: {
        "vowel": 60, "optdigits": 8.2, "pendigits": 6, "satimage": 15.5, "usps": 11.3, "letter": 31, "shuttle": 1.2,
        "covtype": 31, "r8": 5.7, "reuters4": 5.5, "20news": 17.5, "amazon3": 7.6, "amazon7": 26.2, "SynSep": 0.2,
        "SynNonSep": 5.2,
    },
    1_000: {
        "pendigits": 14, "letter": 38, "satimage": 27.5, "usps": 22.5, "r8": 17.8, "20news": 25.5, "amazon7": 31.5,
    },
    10_000: {"20news": 34.5, "letter": 51, "pendigits": 27, "amazon7": 33.5},
}  # fmt: skip
"""Maximum errors in percent, by delay. At a delay of 10,000, the limits apply only to decisions after the first bit."""


class Loaded(NamedTuple):
    """A data set in memory."""

    examples: Examples
    n_classes: int
    n_features: int


class Stream(NamedTuple):
    """A data set in a given order, with its random draws."""

    examples: Examples
    u: FloatArray  # float64[n]
    v: FloatArray  # float64[n]
    delays: NDArray[np.int64]  # int64[n], in decisions


def load(name: str, folder: Path) -> Loaded:
    if name in FILES:
        file, n_features = FILES[name]
        dataset = svmlight.read(folder / file, n_features)
        block = dataset.block(0, dataset.rows)
    else:
        dataset = (synsep if name == "SynSep" else synnonsep)(1)
        block = dataset.block(0, SYNTHETIC_ROWS)
    examples = Examples(block.offsets, block.indices, block.values, block.labels)
    return Loaded(examples, dataset.n_classes, dataset.n_features)


def in_order(examples: Examples, order: NDArray[np.int64]) -> Examples:
    """Return the rows in the given order."""
    sizes = np.diff(examples.offsets)[order]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    places = np.repeat(examples.offsets[order] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Examples(offsets, examples.indices[places], examples.values[places], examples.labels[order])


def renamed_halfway(labels: NDArray[np.int64], n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the labels, with those in the second half renamed by a random cyclic permutation of the classes."""
    circle = rng.permutation(n_classes)
    names = np.empty(n_classes, dtype=np.int64)
    names[circle] = np.roll(circle, 1)
    half = labels.size // 2
    return np.concatenate((labels[:half], names[labels[half:]]))


def delay_of(text: str) -> int | str:
    """Parse a delay: a number of decisions, or `lognormal`."""
    return LOGNORMAL if text == LOGNORMAL else int(text)


def stream_of(
    data: Loaded, delay: int | str, seed: int, *, rows_max: int | None = None, epochs: int = 1, renamed: bool = False
) -> Stream:
    """Return at most `rows_max` rows. The seed determines a random order for each epoch."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(data.examples.labels.size) for _ in range(epochs)])
    examples = in_order(data.examples, order[:rows_max])
    if renamed:
        examples = examples._replace(labels=renamed_halfway(examples.labels, data.n_classes, rng))
    size = examples.labels.size
    u, v = rng.random(size), rng.random(size)
    if delay == LOGNORMAL:
        return Stream(examples, u, v, np.rint(LOGNORMAL_MEDIAN * np.exp(rng.normal(size=size))).astype(np.int64))
    return Stream(examples, u, v, np.full(size, delay, dtype=np.int64))


def choice_of(data: Loaded) -> Choice:
    """Return the learner that `auto` chooses for the data set."""
    return choose(data.n_classes, data.n_features, data.examples.indices.size / data.examples.labels.size)


def wrong_of(learner: Learner, stream: Stream) -> NDArray[np.bool_]:
    """Return, for each event in a stream, whether the learner's action is wrong."""
    actions = run(learner, stream.examples, stream.u, stream.v, stream.delays).actions
    return np.asarray(actions != stream.examples.labels)


def error_percent(learner: Learner, stream: Stream) -> float:
    """Return a learner's error on a stream: the percentage of wrong actions."""
    return 100.0 * float(np.mean(wrong_of(learner, stream)))


def summary_of(errors: Sequence[float]) -> dict[str, Any]:
    """Return the mean and standard error of the errors over several orders."""
    return {
        "error %": round(mean(errors), 2),
        "s.e.": round(stdev(errors) / len(errors) ** 0.5, 2) if len(errors) > 1 else None,
        "orders": [round(error, 2) for error in errors],
    }


def measure(
    name: str, data: Loaded, delay: int | str, orders: int, choice: Choice, *, renamed: bool = False
) -> dict[str, Any]:
    errors, seeing = [], []
    size = data.examples.labels.size
    blind = delay if isinstance(delay, int) else 0
    for seed in range(1, orders + 1):
        learner = create(choice.learner, data.n_classes, data.n_features, **choice.parameters)
        wrong = wrong_of(learner, stream_of(data, delay, seed, renamed=renamed))
        errors.append(100.0 * float(np.mean(wrong)))
        seeing.append(100.0 * float(wrong[blind:].sum()) / max(size - blind, 1))
    goal = None if renamed else GOALS.get(delay, {}).get(name)
    return {
        "set": name,
        "delay": delay,
        "learner": choice.learner,
        "parameters": dict(choice.parameters),
        "rows": size,
        **summary_of(errors),
        "error % seeing": round(mean(seeing), 2) if blind < size else None,
        "goal": goal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--delays", nargs="+", type=delay_of, default=[0, 1_000], help="decisions, or lognormal")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--learner", help="learner to measure instead of the learner that auto chooses")
    parser.add_argument("--param", nargs="*", default=[], help="the learner's parameters, as NAME=VALUE")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    given = dict(text.split("=", 1) for text in arguments.param)
    results = RESULTS / ("late_bits_drift.json" if arguments.drift else "late_bits.json")
    rows = json.loads(results.read_text()) if arguments.write and results.exists() else []
    for name in arguments.sets:
        data = load(name, arguments.folder)
        choice = Choice(arguments.learner, {}, "selected by --learner") if arguments.learner else choice_of(data)
        for delay, drift in product(arguments.delays, DRIFTS if arguments.drift else [None]):
            drifting = {} if drift is None else {"drift": drift}
            asked = choice._replace(parameters={**choice.parameters, **given, **drifting})
            row = measure(name, data, delay, arguments.orders, asked, renamed=arguments.drift)
            print(json.dumps(row, ensure_ascii=False), flush=True)
            if arguments.write:
                rows = [other for other in rows if _what(other) != _what(row)] + [row]
                lines = ",\n".join(json.dumps(kept, ensure_ascii=False) for kept in rows)
                results.write_text(f"[\n{lines}\n]\n")


def _what(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["set"], row["delay"], row["learner"], row["parameters"]


if __name__ == "__main__":
    main()
