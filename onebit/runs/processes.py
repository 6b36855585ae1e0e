"""Run the pipeline for each learner and seed, embedded or on Kafka.

Parallel embedded runs are executed by worker processes. The main process distributes the runs and receives messages:

    main process   a run's index in the list        →  a worker
    a worker       Progress, LogRecord, ..., finally RunReport or Failed  →  main process

Except for the wall time, a report depends only on settings and data, not on the process.
"""

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from onebit.runs.embedded import RunInterruptedError, interruption, run_embedded
from onebit.runs.plan import Chosen, Run, choose_learners
from producers.datasets.log import LogDataset
from producers.datasets.logs.streams import STDIN
from stream.errors import ExitCode, OnebitError
from stream.programs.process import Progress, ShowProgress, ignore, logger
from stream.reporting.run_report import RunReport
from stream.settings.definitions import Settings, SettingsError


def run_all_embedded(
    settings: Settings, *, seeds: int = 1, jobs: int | None = None, command: str = "", show: ShowProgress = ignore
) -> list[RunReport]:
    """Run each learner with N consecutive seeds in virtual time.

    Args:
        settings: The settings for the runs, including the first seed.
        seeds: Number of runs per learner.
        jobs: Number of parallel runs, each in its own process. None means one run per core, or one at a time for short
            runs and logs.
        command: The command line, for the reports.
        show: Called at intervals with the progress of each run.

    Raises:
        SettingsError: settings contradict each other, or do not match the data.
        RunInterruptedError: Ctrl-C interrupted the runs.
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
    """Run the learners on Kafka, one after another, with each program in its own process.

    Args:
        settings: The settings for the runs.
        command: The command line, for the reports.
        stop: Returns whether to stop.
        show: Called at intervals with the progress of each run.

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
    from onebit.runs.on_kafka import run_on_kafka  # deferred: an embedded run does not need a Kafka client

    return [
        run_on_kafka(chosen.settings, name, chosen.dataset, command, stop, show) for name in chosen.settings.learner
    ]


PROCESSES_FROM_S = 5.0
"""By default, runs are parallel only if they take at least this long in total. Starting a process takes two seconds."""


def jobs_of(asked: int | None, seconds: Sequence[float], cores: int, *, is_log: bool = False) -> int:
    """Return the number of parallel runs.

    By default, runs on a log are not parallel, because each process would load its own copy of the log, and the copies
    might exceed the available memory.

    >>> jobs_of(None, [9.0, 1.0, 2.0], cores=2), jobs_of(None, [1.0, 1.0], cores=2), jobs_of(8, [1.0, 1.0], cores=2)
    (2, 1, 2)
    >>> jobs_of(None, [9.0, 9.0], cores=2, is_log=True), jobs_of(2, [9.0, 9.0], cores=2, is_log=True)
    (1, 2)
    """
    if asked is None:
        asked = cores if sum(seconds) >= PROCESSES_FROM_S and not is_log else 1
    return min(asked, len(seconds))


class WorkerLostError(OnebitError):
    """A run's process was killed."""

    exit_code = ExitCode.CRASHED


def run_side_by_side(
    runs: Sequence[Run], order: Sequence[int], jobs: int, show: ShowProgress = ignore
) -> list[RunReport]:
    """Run in parallel processes and return the reports in the order of the runs.

    Args:
        runs: The runs.
        order: Indices into `runs` in starting order, with the longest runs first.
        jobs: Number of processes.
        show: Called at intervals with the progress of each run.

    Raises:
        RunInterruptedError: Ctrl-C interrupted the runs.
        WorkerLostError: a process was killed.
    """
    waiting = deque(order)
    reports: dict[int, RunReport] = {}
    with _workers(min(jobs, len(order))) as workers:

        def begin(worker: _Worker) -> None:
            if waiting:
                worker.begin(place := waiting.popleft(), runs[place].name)

        try:
            for worker in workers:
                worker.send(tuple(runs))
                begin(worker)
            while len(reports) < len(order):
                for worker in _ready_workers(workers):
                    report = worker.listen(show)
                    if report is not None:
                        reports[worker.place] = report
                        begin(worker)
        except KeyboardInterrupt:
            interrupted = [interruption(worker.progress) for worker in workers if worker.progress is not None]
            if not interrupted:
                raise
            raise RunInterruptedError("; ".join(interrupted)) from None
    return [reports[place] for place in range(len(order))]


class Failed(NamedTuple):
    """The exception that ended a run."""

    error: Exception


class _Worker:
    """A worker process, as seen by the main process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe is closed when the process ends
        self.place, self.name = -1, "no run yet"
        self.progress: Progress | None = None  # progress of the current run; None between runs

    def send(self, message: object) -> None:
        """Send a message to the worker."""
        try:
            self.connection.send(message)
        except OSError:
            raise self._lost() from None

    def begin(self, place: int, name: str) -> None:
        """Start a run in the worker."""
        self.place, self.name, self.progress = place, name, None
        self.send(place)

    def listen(self, show: ShowProgress) -> RunReport | None:
        """Receive the next message: return a report, raise an error, or forward anything else."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        match message:
            case RunReport():
                self.progress = None
                return message
            case Failed():
                raise message.error
            case logging.LogRecord() if logger.isEnabledFor(message.levelno):
                logger.handle(message)
            case Progress():
                self.progress = message
                show(message)
        return None

    def _lost(self) -> WorkerLostError:
        self.process.join()
        error = WorkerLostError(f"{self.name}: the process for this run exited with code {self.process.exitcode}")
        error.hint = "if memory was insufficient, use --jobs 1"
        return error


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    """Start N processes and kill all of them on exit."""
    workers: list[_Worker] = []
    try:
        # A terminal sends Ctrl-C to all processes. Workers ignore the signal, and the main process kills them.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            workers.extend(_Worker() for _ in range(count))
        finally:
            signal.signal(signal.SIGINT, before)
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _ready_workers(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until a worker has sent a message or ended, and return all such workers."""
    ready = wait([worker.connection for worker in workers])
    return [worker for worker in workers if worker.connection in ready]


def _work(connection: Connection) -> None:
    """Execute the runs that the main process assigns, until this process is killed."""
    with suppress(EOFError, OSError):  # the main process has ended
        sender = _Sender(connection)
        logger.addHandler(sender)
        logger.setLevel(logging.INFO)  # the main process filters log records
        runs: tuple[Run, ...] = connection.recv()
        while True:
            sender.send(_run(runs[connection.recv()], sender))


def _run(run: Run, sender: "_Sender") -> RunReport | Failed:
    try:
        return run_embedded(run, sender.send)
    except Exception as error:  # raised again in the main process
        return Failed(_portable(error))


def _portable(error: Exception) -> Exception:
    """Return the error, or an equivalent error that can be pickled, with the traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        copy(error)  # pickle recreates an exception from its class and arguments
    except TypeError:
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__notes__ = error.__notes__
        return portable
    return error


class _Sender(logging.Handler):
    """Sends messages and log records to the main process."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()  # notices about slow operations come from another thread

    def send(self, message: Progress | logging.LogRecord | RunReport | Failed) -> None:
        """Send a message."""
        with self._sending:
            self._connection.send(message)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record; see `logging.Handler`."""
        record.msg, record.args = record.getMessage(), None  # the arguments might not be picklable
        self.send(record)
