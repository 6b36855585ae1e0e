"""Parallel embedded runs, in worker processes.

The main process distributes the runs and receives messages:

    main process   a run's index in the list        →  a worker
    a worker       Progress, LogRecord, ..., finally LearnerRun or Failed  →  main process

Except for the wall time, a report depends only on settings and data, not on the process.
"""

import logging
import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from onebit.runs.embedded import RunInterruptedError, interruption, run_embedded
from onebit.runs.plan import Run
from stream.errors import ExitCode, OnebitError
from stream.programs.process import Progress, ShowProgress, ignore, logger
from stream.reporting.runs import LearnerRun

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


def run_in_processes(runs: Sequence[Run], jobs: int, show: ShowProgress = ignore) -> list[LearnerRun]:
    """Run in parallel processes, the longest runs first, and return the reports in the order of the runs.

    Args:
        runs: The runs.
        jobs: Number of processes.
        show: Called at intervals with the progress of each run.

    Raises:
        RunInterruptedError: Ctrl-C interrupted the runs.
        WorkerLostError: a process was killed.
    """
    waiting = deque(sorted(range(len(runs)), key=lambda place: -runs[place].estimated_s))
    reports: dict[int, LearnerRun] = {}
    with _workers(min(jobs, len(runs))) as workers:

        def begin(worker: _Worker) -> None:
            if waiting:
                worker.begin(place := waiting.popleft(), runs[place].name)

        try:
            for worker in workers:
                worker.send(tuple(runs))
                begin(worker)
            while len(reports) < len(runs):
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
    return [reports[place] for place in range(len(runs))]


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

    def listen(self, show: ShowProgress) -> LearnerRun | None:
        """Receive the next message: return a report, raise an error, or forward anything else."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        match message:
            case LearnerRun():
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


def _run(run: Run, sender: "_Sender") -> LearnerRun | Failed:
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

    def send(self, message: Progress | logging.LogRecord | LearnerRun | Failed) -> None:
        """Send a message."""
        with self._sending:
            self._connection.send(message)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record; see `logging.Handler`."""
        record.msg, record.args = record.getMessage(), None  # the arguments might not be picklable
        self.send(record)
