"""Experiments: sweeps over data, learners, parameters, delays and seeds, with reports."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from onebit.experiments.definition import Experiment, ExperimentError, read_experiment, shipped
from onebit.experiments.opponents import OPPONENTS
from onebit.experiments.plan import check_learners
from onebit.experiments.report import HTML_PAGE, write_report
from onebit.experiments.rows import read_rows
from onebit.experiments.runner import ROWS_FILE, ExperimentProgress, Refused, rows_of, run_experiment
from onebit.experiments.sets import Sets
from stream.learners import registered
from stream.parsing import close_matches

AS_RUN = "experiment.json"
"""Name of the file in the results folder that contains a copy of the experiment's definition, for later reports."""


class Sizes(NamedTuple):
    """Options that override an experiment's definition."""

    events: int | None = None  # maximum number of events per run
    seeds: int | None = None
    sweeps: tuple[str, ...] = ()  # names of the sweeps to run; all if empty


class Written(NamedTuple):
    """An experiment's report."""

    page: Path
    files: int  # number of files, excluding the page and its Markdown version


class Experimented(NamedTuple):
    """An experiment's result."""

    report: Written
    refused: list[Refused]


def find_experiment(name: str) -> Experiment:
    """Return a built-in experiment, or read one from a TOML file.

    Raises:
        ExperimentError: the name is unknown, or the file cannot be read.
    """
    known = shipped()
    if name in known:
        return read_experiment(known[name])
    if Path(name).suffix == ".toml":
        return read_experiment(Path(name))
    raise ExperimentError(
        f"unknown experiment {name!r}{close_matches(name, known)}; expected one of {', '.join(known)}, or a .toml file"
    )


def prepare(name: str, sizes: Sizes, data_dir: Path | None) -> tuple[Experiment, Sets]:
    """Load an experiment, apply the overriding options, and find the data sets.

    Raises:
        ExperimentError: an experiment, a sweep or a learner is unknown.
    """
    experiment = find_experiment(name).resized(sizes.events, sizes.seeds, sizes.sweeps)
    accepted = {name: frozenset(p.name for p in cls.parameters) for name, cls in registered().items()}
    check_learners(experiment, accepted | OPPONENTS)
    known = [one.name for one in experiment.sweeps]
    if unknown := [each for each in sizes.sweeps if each not in known]:
        raise ExperimentError(
            f"--sweep {unknown[0]}: expected one of {', '.join(known)} (experiment {experiment.name})"
        )
    return experiment, Sets(experiment.sets, data_dir)


def run(
    experiment: Experiment,
    sets: Sets,
    results: Path,
    jobs: int | None,
    show: Callable[[ExperimentProgress], None],
    sweeps: Sequence[str] = (),
) -> Experimented:
    """Execute the runs that have no results yet, and write the experiment's report to a folder in `results`."""
    folder = results / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / AS_RUN).write_text(experiment.model_dump_json(indent=1), encoding="utf-8")
    refused = run_experiment(experiment, sets, folder, jobs or os.cpu_count() or 1, show, list(sweeps) or None)
    return Experimented(_report(experiment, sets, folder), refused)


def report(name: str, results: Path, data_dir: Path | None) -> Written:
    """Recreate an experiment's report from its stored result rows.

    Raises:
        ExperimentError: no rows are stored.
    """
    folder = results / Path(name).stem
    if not (folder / AS_RUN).exists():
        raise ExperimentError(f"{folder}: no runs of {name}. Run: onebit experiment run {name}")
    experiment = Experiment.model_validate_json((folder / AS_RUN).read_text(encoding="utf-8"))
    return _report(experiment, Sets(experiment.sets, data_dir), folder)


def _report(experiment: Experiment, sets: Sets, folder: Path) -> Written:
    written = write_report(experiment, sets, rows_of(experiment, read_rows(folder / ROWS_FILE)), folder)
    return Written(folder / HTML_PAGE, len(written) - 2)
