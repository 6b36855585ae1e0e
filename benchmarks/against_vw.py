"""Compare the default learner, which `auto` chooses, with Vowpal Wabbit tuned in hindsight.

    pip install vowpalwabbit==9.11.9
    python benchmarks/against_vw.py DATA_FOLDER [--sets pendigits r8] [--delays 0 1000 lognormal] [--orders 3]
        [--rows-max 10000] [--quadratic] [--times]
    python benchmarks/against_vw.py --table [--quadratic]

For each set and delay, Vowpal Wabbit's squarecb, softmax and epsilon-greedy are tuned on the first order of the rows.
The grid combines exploration settings, costs (0 for a right action and 1 for a wrong one, or -1 and 0) and scalings of
x, with the default learning rate. Other learning rates are then tried with the best of these settings. The setting with
the smallest error is also measured on the other orders. Onebit's learner is not tuned. `--quadratic` compares late-ucb
on all pairwise products of features with Vowpal Wabbit using `-q ff`. `--times` instead measures the time per event in
microseconds, in a single run with calls from Python and immediate bits.

Every row is stored in benchmarks/results/ as soon as it is measured. Stored rows are not measured again.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from late_bits import (
    GOALS,
    RESULTS,
    SETS,
    Loaded,
    Stream,
    choice_of,
    delay_of,
    error_percent,
    load,
    stream_of,
    summary_of,
)
from late_bits_speed import EVENTS, best_us, called_us

from onebit.experiments.opponents import VowpalWabbit, play
from onebit.experiments.vowpal_wabbit import Bandit, Setting
from stream.learners import create

FILES = {"": "against_vw.json", "quadratic": "against_vw_quadratic.json", "times": "against_vw_times.json"}
"""The result file for each option."""

GRID = {
    "squarecb": [f"--squarecb --gamma_scale {scale}" for scale in (10, 100, 1_000)],
    "softmax": [f"--softmax --lambda {scale}" for scale in (3, 10, 30)],
    "epsilon-greedy": [f"--epsilon {share}" for share in (0.02, 0.05, 0.15)],
}
COSTS = ((0, 1), (-1, 0))
LEARNING_RATES = (0.1, 2.0, 8.0)
"""Learning rates to try in addition to the default, 0.5."""

IN_ORDER = sorted(SETS, key=lambda name: (name not in GOALS[1_000], name not in GOALS[0]))
"""The data sets in order: sets with goals for late bits, sets with goals for immediate bits, and all others."""

QUADRATIC_SETS = ("vowel", "pendigits", "letter", "shuttle")
"""The data sets used with `--quadratic`."""

Row = dict[str, Any]


class Results:
    """The rows in a result file. The parameters of a run identify its row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = json.loads(path.read_text()) if path.exists() else []

    def has(self, run: Row) -> bool:
        """Return whether the file already contains a row for this run."""
        return any(run.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        """Store and print a row."""
        self.rows.append(row)
        lines = ",\n".join(json.dumps(kept, ensure_ascii=False) for kept in self.rows)
        self._path.write_text(f"[\n{lines}\n]\n")
        print(json.dumps(row, ensure_ascii=False), flush=True)


def error_of_vw(data: Loaded, stream: Stream, setting: Setting, *, quadratic: bool) -> float:
    taken = play(VowpalWabbit(Bandit(data, setting, quadratic=quadratic), stream.examples), stream)
    return 100.0 * float(np.mean(taken != stream.examples.labels))


def tuned(data: Loaded, stream: Stream, family: str, *, quadratic: bool) -> tuple[float, Setting]:
    """Return the smallest error of an exploration algorithm on a stream, and the setting that achieves it."""

    def best(settings: Iterable[Setting]) -> tuple[float, Setting]:
        return min(
            ((error_of_vw(data, stream, setting, quadratic=quadratic), setting) for setting in settings),
            key=lambda found: found[0],
        )

    found = best(Setting(*point) for point in product(GRID[family], COSTS, (True, False)))
    return min(
        (found, best(found[1]._replace(learning_rate=rate) for rate in LEARNING_RATES)), key=lambda each: each[0]
    )


def ours(data: Loaded, streams: list[Stream], *, quadratic: bool) -> Row:
    choice = choice_of(data)
    name, parameters = ("late-ucb", {"expand": "quadratic"}) if quadratic else (choice.learner, choice.parameters)
    errors = [error_percent(create(name, data.n_classes, data.n_features, **parameters), stream) for stream in streams]
    return {"setting": " ".join([name, *(f"{key}={value}" for key, value in parameters.items())]), **summary_of(errors)}


def theirs(data: Loaded, streams: list[Stream], family: str, *, quadratic: bool) -> Row:
    first, setting = tuned(data, streams[0], family, quadratic=quadratic)
    errors = [first, *(error_of_vw(data, stream, setting, quadratic=quadratic) for stream in streams[1:])]
    return {"setting": setting.text(), **summary_of(errors)}


def compare(name: str, data: Loaded, delay: int | str, arguments: argparse.Namespace, results: Results) -> None:
    """Measure the missing rows for a data set and a delay."""
    streams: list[Stream] = []
    for learner in ("ours", *GRID):
        run = {
            "set": name,
            "delay": delay,
            "quadratic": arguments.quadratic,
            "rows max": arguments.rows_max,
            "seeds": list(range(1, arguments.orders + 1)),
            "learner": learner,
        }
        if results.has(run):
            continue
        streams = streams or [stream_of(data, delay, seed, rows_max=arguments.rows_max) for seed in run["seeds"]]
        if learner == "ours":
            row = ours(data, streams, quadratic=arguments.quadratic)
        else:
            row = theirs(data, streams, learner, quadratic=arguments.quadratic)
        results.add({**run, "rows": streams[0].examples.labels.size, **row})


def compare_times(name: str, data: Loaded, results: Results) -> None:
    """Measure the time per event for the chosen learner and squarecb, and for igw-logistic if stack-igw is chosen."""
    run: Row = {"set": name, "what": "µs per event"}
    if results.has(run):
        return
    choice = choice_of(data)
    stream = stream_of(data, 0, 1, rows_max=EVENTS)
    shuffled = data._replace(examples=stream.examples)
    figures = {choice.learner: called_us(shuffled, choice.learner, dict(choice.parameters))}
    if choice.learner == "stack-igw":
        figures["igw-logistic"] = called_us(shuffled, "igw-logistic", {})
    size = stream.examples.labels.size
    squarecb = Setting(GRID["squarecb"][0], COSTS[0], unit=True)
    for title, made in (("VW squarecb", False), ("VW squarecb, examples made beforehand", True)):
        figures[title] = best_us(part(data, stream, squarecb, made=made), size)
    results.add({**run, "events": size, **{learner: round(us, 2) for learner, us in figures.items()}})


def table(rows: list[Row], *, quadratic: bool) -> str:
    """Return a Markdown table. Each cell contains Onebit's error and, after a slash, Vowpal Wabbit's smallest error."""
    delays = {0: "immediate", 1_000: "1,000 decisions late", "lognormal": "log-normal, median 1,000"}
    lines = ["| data | rows | " + " | ".join(delays.values()) + " |", "|---|---:|" + "---:|" * len(delays)]
    for name in SETS:
        of_set = [row for row in rows if row["set"] == name and row.get("quadratic") is quadratic]
        if of_set:
            cells = [_cell([row for row in of_set if row["delay"] == delay]) for delay in delays]
            lines.append(f"| {name} | {of_set[0]['rows']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(rows: list[Row]) -> str:
    """Return the errors for a data set and a delay, or a dash until all learners have been measured."""
    if {row["learner"] for row in rows} != {"ours", *GRID}:
        return "–"
    vw = min((row for row in rows if row["learner"] != "ours"), key=lambda row: row["error %"])
    (mine,) = (row for row in rows if row["learner"] == "ours")
    return " / ".join(f"{row['error %']:.1f} ± {row['s.e.']:.1f}" for row in (mine, vw))


def part(data: Loaded, stream: Stream, setting: Setting, *, made: bool) -> Callable[[int, int], None]:
    """Return the function to be timed. It predicts and learns from a range of events.

    Args:
        data: The data set.
        stream: The first events in the data set.
        setting: Vowpal Wabbit's configuration.
        made: Whether the examples are created in advance, so that the measured time excludes their creation.
    """
    bandit = Bandit(data, setting)
    labels, u = stream.examples.labels.tolist(), stream.u.tolist()
    examples = [bandit.example(stream.examples, t) for t in range(len(labels))] if made else []

    def run(start: int, stop: int) -> None:
        for t in range(start, stop):
            example = examples[t] if made else bandit.example(stream.examples, t)
            action, probability = bandit.decide(example, u[t])
            bandit.learn(example, action, probability, right=action == labels[t])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", choices=SETS)
    parser.add_argument("--delays", nargs="+", type=delay_of, default=[0, 1_000, "lognormal"])
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--rows-max", type=int, help="maximum number of rows in each order")
    parser.add_argument("--quadratic", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the stored errors")
    parser.add_argument("--results", type=Path, help="result file instead of benchmarks/results/against_vw*.json")
    arguments = parser.parse_args()
    asked = "times" if arguments.times else "quadratic" if arguments.quadratic else ""
    results = Results(arguments.results or RESULTS / FILES[asked])
    if arguments.table:
        print(table(results.rows, quadratic=arguments.quadratic))
        return
    if arguments.folder is None:
        parser.error("DATA_FOLDER or --table is required")
    for name in arguments.sets or (QUADRATIC_SETS if arguments.quadratic else IN_ORDER):
        data = load(name, arguments.folder)
        if arguments.times:
            compare_times(name, data, results)
            continue
        for delay in arguments.delays:
            compare(name, data, delay, arguments, results)


if __name__ == "__main__":
    main()
