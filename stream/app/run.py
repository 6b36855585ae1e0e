"""Run the pipeline for each learner and seed, embedded or on Kafka."""

import os
from collections.abc import Callable, Sequence

from producers.datasets.logged import LogDataset
from producers.datasets.logs.streams import STDIN
from stream.app.embedded import run_embedded
from stream.app.process import ShowProgress, ignore
from stream.app.resolve import Chosen, choose_learners
from stream.app.settings import Settings, SettingsError
from stream.app.side_by_side import run_side_by_side
from stream.reporting.run_report import RunReport


def run_all_embedded(
    settings: Settings, *, seeds: int = 1, jobs: int | None = None, command: str = "", show: ShowProgress = ignore
) -> list[RunReport]:
    """Run each learner with N consecutive seeds in virtual time.

    Args:
        settings: Settings of the runs, with the first seed.
        seeds: Number of runs of each learner.
        jobs: Parallel runs, each in its own process; None: one per core, if that is faster.
        command: The command line, for the reports.
        show: Called with the progress of each run at intervals.

    Raises:
        SettingsError: settings contradict each other, or do not match the data.
        BrokenOffError: Ctrl-C interrupted the runs.
    """
    chosen = choose_learners(settings)
    runs = chosen.runs(command, seeds)
    seconds = [one_s for one_s in chosen.seconds for _ in range(seeds)]
    is_log = isinstance(chosen.dataset, LogDataset)
    if (at_once := jobs_of(jobs, seconds, os.cpu_count() or 1, is_log=is_log)) > 1:
        longest_first = sorted(range(len(seconds)), key=lambda place: -seconds[place])
        return run_side_by_side(runs, longest_first, at_once, show)
    return [run_embedded(run, show) for run in runs]


def run_all_on_kafka(
    settings: Settings,
    *,
    command: str = "",
    stop: Callable[[], bool] = lambda: False,
    show: ShowProgress = ignore,
) -> list[RunReport]:
    """Run each learner on Kafka, one after the other, with each program in its own process.

    Args:
        settings: Settings of the runs.
        command: The command line, for the reports.
        stop: Returns whether to stop.
        show: Called with the progress of each run at intervals.

    Raises:
        SettingsError: settings contradict each other or do not match the data, or the topics are in use.
        ProgramEndedError: a program ended early.
        RunStoppedError: the run was stopped.
    """
    if settings.data == STDIN:
        raise SettingsError(
            "--data -: in a run on Kafka, several programs read the log; use a file instead of standard input"
        )
    chosen: Chosen = choose_learners(settings)
    from stream.app.on_kafka import run_on_kafka  # deferred: an embedded run needs no Kafka client

    return [
        run_on_kafka(chosen.settings, name, chosen.dataset, command, stop, show) for name in chosen.settings.learner
    ]


PROCESSES_FROM_S = 5.0
"""Minimum total duration of parallel runs; starting a process takes two seconds."""


def jobs_of(asked: int | None, seconds: Sequence[float], cores: int, *, is_log: bool = False) -> int:
    """Return the number of parallel runs.

    By default, runs on a log are not parallel: each process would load the log, which may be larger than the memory.

    >>> jobs_of(None, [9.0, 1.0, 2.0], cores=2), jobs_of(None, [1.0, 1.0], cores=2), jobs_of(8, [1.0, 1.0], cores=2)
    (2, 1, 2)
    >>> jobs_of(None, [9.0, 9.0], cores=2, is_log=True), jobs_of(2, [9.0, 9.0], cores=2, is_log=True)
    (1, 2)
    """
    if asked is None:
        asked = cores if sum(seconds) >= PROCESSES_FROM_S and not is_log else 1
    return min(asked, len(seconds))
