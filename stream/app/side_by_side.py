"""Embedded runs in parallel, each in a process of its own, some at a time.

This process hands out the runs and hears of them:

    this process   a run's place in the list        →  a worker
    a worker       Progress, Notice ... and at last RunReport or Failed  →  this process

A run is a function of settings and data, so that its report is the same wherever it was made, but for the wall time.
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
from typing import Any, NamedTuple

from stream.app.embedded import BrokenOffError, run_embedded
from stream.app.process import Progress, ShowProgress, ignore, logger
from stream.app.resolve import Run
from stream.errors import ExitCode, OnebitError
from stream.reporting.run_report import RunReport


class WorkerLostError(OnebitError):
    """The process of a run was killed."""

    exit_code = ExitCode.CRASHED


def run_side_by_side(
    runs: Sequence[Run], order: Sequence[int], jobs: int, show: ShowProgress = ignore
) -> list[RunReport]:
    """Make runs in processes; their reports, in the order of the runs.

    Args:
        runs: what is run.
        order: places in `runs`, in which they begin: the longest runs first.
        jobs: how many run at once.
        show: is called with the progress of each run now and then.

    Raises:
        BrokenOffError: Ctrl-C broke them off.
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
                for worker in _heard(workers):
                    report = worker.listen(show)
                    if report is not None:
                        reports[worker.place] = report
                        begin(worker)
        except KeyboardInterrupt:
            reached = _break_off(workers)
            if not reached:
                raise
            raise BrokenOffError("; ".join(reached)) from None
    return [reports[place] for place in range(len(order))]


class Notice(NamedTuple):
    """A record of the logger."""

    level: int
    message: str
    attributes: dict[str, Any]  # see stream/app/process.py


class Failed(NamedTuple):
    """A run has raised this."""

    error: Exception


class _Worker:
    """A process, as the first one sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.place, self.name = -1, "no run yet"

    def send(self, message: object) -> None:
        """Send it something."""
        try:
            self.connection.send(message)
        except OSError:
            raise self._lost() from None

    def begin(self, place: int, name: str) -> None:
        """Let it make a run."""
        self.place, self.name = place, name
        self.send(place)

    def listen(self, show: ShowProgress) -> RunReport | None:
        """Receive the next message: a report is returned, an error is raised, anything else is passed on."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        match message:
            case RunReport():
                return message
            case Failed():
                raise message.error
            case Notice():
                logger.log(message.level, "%s", message.message, extra=message.attributes)
            case Progress():
                show(message)
        return None

    def _lost(self) -> WorkerLostError:
        self.process.join()
        error = WorkerLostError(f"{self.name}: the process of its run ended with code {self.process.exitcode}")
        error.hint = "if memory was short, --jobs 1 runs the learners one after the other"
        return error


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    """So many processes; none is left afterwards."""
    workers: list[_Worker] = []
    try:
        # Ctrl-C goes to every process of a terminal; the first one alone hears it, and ends the others.
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


def _heard(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until some of them have sent something, or have ended."""
    ready = wait([worker.connection for worker in workers])
    return [worker for worker in workers if worker.connection in ready]


def _break_off(workers: Sequence[_Worker]) -> list[str]:
    """End all runs, and tell of each that had begun how far it had come."""
    reached = []
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        with suppress(EOFError, OSError):
            while True:
                message = worker.connection.recv()
                if isinstance(message, Failed) and isinstance(message.error, BrokenOffError):
                    reached.append(str(message.error))
    return reached


def _work(connection: Connection) -> None:
    """Make runs until no more come."""
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):  # it is told to end, or nobody listens any more
        sender = _Sender(connection)
        logger.addHandler(_SentNotices(sender))
        logger.setLevel(logging.INFO)  # the first process decides what it writes
        runs: tuple[Run, ...] = connection.recv()
        while True:
            sender.send(_run(runs[connection.recv()], sender))


def _run(run: Run, sender: "_Sender") -> RunReport | Failed:
    try:
        return run_embedded(run, sender.send)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:  # it is raised again in the first process
        return Failed(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, as it can be sent; where it came from is a note of it."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        copy(error)  # by its class and its arguments, as it is sent
    except TypeError:
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__notes__ = error.__notes__
        return portable
    return error


class _Sender:
    """The worker's end of the pipe. SIGTERM is Ctrl-C to a run, but does not cut a message in two."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # what is slow is announced by a thread of its own
        self._sending = self._asked = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._asked = True
        if not self._sending:
            raise KeyboardInterrupt

    def send(self, message: Progress | Notice | RunReport | Failed) -> None:
        """Send something, and raise KeyboardInterrupt afterwards if the process is to end."""
        with self._lock:
            self._sending = True
            try:
                self._connection.send(message)
            finally:
                self._sending = False
        if self._asked:
            raise KeyboardInterrupt


class _SentNotices(logging.Handler):
    """Sends the records of the logger to another process."""

    def __init__(self, sender: _Sender) -> None:
        super().__init__()
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        names = ("limited", "fields")
        attributes: dict[str, Any] = {name: vars(record)[name] for name in names if name in vars(record)}
        self._sender.send(Notice(record.levelno, record.getMessage(), attributes))
