"""Runs experiments in parallel processes. An interrupted experiment can be resumed."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from onebit.experiments.definition import Experiment
from onebit.experiments.measure import Job, Row, measure
from onebit.experiments.plan import best_parameters, jobs_of
from onebit.experiments.rows import read_rows, write_rows
from onebit.experiments.sets import Sets
from stream.learners import ParameterError

ROWS_FILE = "rows.jsonl.gz"

SAVE_INTERVAL_S = 5.0


class Refused(NamedTuple):
    """A run that failed, and the reason."""

    job: Job
    reason: str


Ended = Row | Refused


@dataclass(slots=True)
class TimeLeft:
    """Estimates the remaining time from the durations of similar runs.

    >>> left = TimeLeft(jobs=1)
    >>> job = Job(sweep="s", data="digits", learner="arow", title="arow", events=100)
    >>> left.took(job, 2.0)
    >>> left.estimate_s([job, job])
    4.0
    """

    jobs: int  # number of parallel processes
    _seconds: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def took(self, job: Job, seconds: float) -> None:
        """Record a run's duration."""
        for place in self._places(job):
            self._seconds.setdefault(place, []).append(seconds)

    def estimate_s(self, left: Sequence[Job]) -> float:
        """Estimate the time for these runs in seconds; NaN if no run has been measured."""
        if not self._seconds:
            return float("nan")
        means = {place: sum(seconds) / len(seconds) for place, seconds in self._seconds.items()}
        return sum(next(means[place] for place in self._places(job) if place in means) for job in left) / self.jobs

    def _places(self, job: Job) -> tuple[tuple[str, ...], ...]:
        """Return the keys under which similar runs are recorded, the most similar first."""
        return (job.sweep, job.data, job.learner), (job.data, job.learner), (job.data,), ()


class ExperimentProgress(NamedTuple):
    """The progress of an experiment."""

    sweep: str
    done: int
    of: int
    left_s: float  # remaining time; NaN if unknown
    error: float | None  # error of the last completed run
    job: Job | None  # the last completed run


def run_experiment(
    experiment: Experiment,
    sets: Sets,
    folder: Path,
    jobs: int,
    progress: Callable[[ExperimentProgress], None] = lambda progress: None,
    only: Sequence[str] | None = None,
) -> list[Refused]:
    """Run the jobs that have no row yet, sweep by sweep, and store their rows. Return the runs that failed.

    Args:
        experiment: The experiment.
        sets: The data sets. Missing data sets are skipped.
        folder: The results directory.
        jobs: The number of processes.
        progress: Called after each run.
        only: Names of the sweeps to run; None means all. The sweeps whose best parameters they use are also run.
    """
    path = folder / ROWS_FILE
    rows = read_rows(path)
    missing = sets.missing(experiment)
    refused: list[Refused] = []
    saved_s = time.monotonic()
    try:
        with _processes(sets, jobs) as make:
            for sweep in experiment.sweeps if only is None else experiment.with_tuning(only):
                best = None
                if sweep.best_of is not None:
                    best = best_parameters(rows_of(experiment, rows)[sweep.best_of])
                planned = jobs_of(sweep, [name for name in sweep.data if name not in missing], best)
                done = {row.key for row in rows}
                left = {job.key: job for job in planned if job.key not in done}
                runs, time_left = len(planned), TimeLeft(jobs)
                progress(ExperimentProgress(sweep.name, runs - len(left), runs, float("nan"), None, None))
                for job, ended, seconds in make(list(left.values())):
                    del left[job.key]
                    time_left.took(job, seconds)
                    error = None
                    if isinstance(ended, Refused):
                        refused.append(ended)
                    else:
                        rows.append(ended)
                        error = ended.error
                    if time.monotonic() - saved_s > SAVE_INTERVAL_S:
                        write_rows(path, rows)
                        saved_s = time.monotonic()
                    left_s = time_left.estimate_s(list(left.values()))
                    progress(ExperimentProgress(sweep.name, runs - len(left), runs, left_s, error, job))
    finally:
        if rows:
            write_rows(path, rows)
    return refused


def rows_of(experiment: Experiment, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows for the runs in the current definition, grouped by sweep, in order. Other rows are ignored."""
    found: dict[str, list[Row]] = {}
    by_key = {row.key: row for row in rows}
    for sweep in experiment.sweeps:
        best = None if sweep.best_of is None else best_parameters(found[sweep.best_of])
        keys = [job.key for job in jobs_of(sweep, sweep.data, best)]
        found[sweep.name] = [by_key[key] for key in keys if key in by_key]
    return found


Make = Callable[[Sequence[Job]], Iterator[tuple[Job, Ended, float]]]


@contextmanager
def _processes(sets: Sets, jobs: int) -> Iterator[Make]:
    """Start one process pool for all sweeps, because the first run in each process takes several seconds longer."""
    if jobs == 1:
        yield lambda planned: (_make(job, sets) for job in planned)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start, (sets,)) as pool:
        yield lambda planned: pool.imap_unordered(_make, planned)


_sets: list[Sets] = []
"""The data sets for a process in the pool. All runs in the process share these, so that loaded data are reused."""


def _start(sets: Sets) -> None:
    # A terminal sends Ctrl-C to all processes. Only the parent handles it; the parent terminates the other processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _sets.append(sets)


def _make(job: Job, sets: Sets | None = None) -> tuple[Job, Ended, float]:
    started_s = time.monotonic()
    try:
        ended: Ended = measure(job, sets or _sets[0])
    except ParameterError as error:
        ended = Refused(job, str(error))
    return job, ended, time.monotonic() - started_s
