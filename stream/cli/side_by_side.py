"""`onebit run`, embedded, with several learners or seeds: each run in a process of its own, some at a time.

This process hands out the runs and alone writes to the terminal; the others send it what is to be shown:

    this process   place of the run, seconds between two figures  →  a worker
    a worker       Shown, Said ... and at last RunReport or Failed  →  this process

A run is a function of settings and data, so that its report is the same wherever it was made, but for the wall time.
"""

import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from io import StringIO
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from rich.text import Text

from producers.datasets.base import Dataset
from stream.cli import console
from stream.cli.composition import dataset_of_seed, events_of
from stream.cli.console import fail
from stream.cli.embedded import BrokenOffError, ShownProgress, run_embedded
from stream.cli.exits import ExitCode
from stream.cli.progress import Line, RunProgress, progress_lines, run_progress
from stream.cli.settings import Settings
from stream.reporting.run_report import RunReport


class OneRun(NamedTuple):
    """A run that is to be made."""

    learner: str
    seed: int
    name: str  # for people


class Plan(NamedTuple):
    """What all runs have in common, and which there are."""

    settings: Settings
    dataset: Dataset
    command: str
    runs: tuple[OneRun, ...]

    def make(self, run: OneRun, progress: ShownProgress = run_progress) -> RunReport:
        """Make one of the runs, see `run_embedded`."""
        settings = self.settings.model_copy(update={"seed": run.seed})
        dataset = dataset_of_seed(self.settings, run.seed, self.dataset)
        return run_embedded(
            settings, run.learner, dataset, self.command, lambda _learner, events: progress(run.name, events)
        )


def planned(settings: Settings, dataset: Dataset, command: str, seeds: int = 1) -> Plan:
    """Each learner of the settings with so many seeds, from that of the settings on."""
    runs = [
        OneRun(learner, seed, f"{learner}, seed {seed}" if seeds > 1 else learner)
        for learner in settings.learner
        for seed in range(settings.seed, settings.seed + seeds)
    ]
    return Plan(settings, dataset, command, tuple(runs))


def run_side_by_side(plan: Plan, order: Sequence[int], jobs: int) -> list[RunReport]:
    """Make all runs of a plan, in processes; their reports, in the order of the plan.

    Args:
        plan: settings, data, command line and runs.
        order: places of the runs in the plan, as they begin: the longest runs first.
        jobs: how many run at once.

    Raises:
        BrokenOffError: Ctrl-C broke them off.
        SystemExit: a process was lost.
    """
    events = events_of(plan.settings, plan.dataset)
    waiting = deque(order)
    reports: dict[int, RunReport] = {}
    with progress_lines() as line_of, _workers(min(jobs, len(order))) as workers:

        def begin(worker: _Worker) -> None:
            if waiting:
                place = waiting.popleft()
                name = plan.runs[place].name
                worker.begin(place, name, line_of(name, events))

        try:
            for worker in workers:
                worker.send(plan)
                begin(worker)
            while len(reports) < len(order):
                for worker in _heard(workers):
                    report = worker.listen()
                    if report is not None:
                        reports[worker.place] = report
                        begin(worker)
        except KeyboardInterrupt:
            reached = _break_off(workers)
            if not reached:
                raise
            raise BrokenOffError("; ".join(reached)) from None
    return [reports[place] for place in range(len(order))]


class Shown(NamedTuple):
    """How far a run is, see `Line`."""

    done: int
    figures: str


class Said(NamedTuple):
    """Something for stderr, with the marks of a terminal if there is one."""

    text: str


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
        self._line: Line | None = None

    def send(self, message: object) -> None:
        """Send it something."""
        try:
            self.connection.send(message)
        except OSError:
            raise self._lost() from None

    def begin(self, place: int, name: str, line: Line) -> None:
        """Let it make a run, and show that in this line."""
        self.place, self.name, self._line = place, name, line
        self.send((place, line.interval_s))

    def listen(self) -> RunReport | None:
        """Take the next message: the report if it is one, what a run raised is raised; else it is shown."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(message, RunReport):
            return message
        if isinstance(message, Failed):
            raise message.error
        if isinstance(message, Said):
            console.err.print(Text.from_ansi(message.text.rstrip("\n")), soft_wrap=True)
        elif self._line is not None:
            self._line.show(*message)
        return None

    def _lost(self) -> SystemExit:
        self.process.join()
        return fail(
            f"{self.name}: the process of its run ended with code {self.process.exitcode}; where memory was short, "
            "--jobs 1 runs the learners one after the other",
            ExitCode.DIFFERS,
        )


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
    """Make runs as long as some are sent."""
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):  # it is told to end, or nobody listens any more
        sender = _Sender(connection)
        console.err.file = _Stderr(sender)
        plan: Plan = connection.recv()
        while True:
            place, interval_s = connection.recv()
            sender.send(_run(plan, plan.runs[place], _SentLine(sender, interval_s)))


def _run(plan: Plan, run: OneRun, line: Line) -> RunReport | Failed:
    @contextmanager
    def progress(_name: str, events: int) -> Iterator[RunProgress]:
        yield RunProgress(line, events)

    try:
        return plan.make(run, progress)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:  # it is raised again where people are told of it
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

    def send(self, message: Shown | Said | RunReport | Failed) -> None:
        """Send something, and raise KeyboardInterrupt afterwards if the process is to end."""
        with self._lock:
            self._sending = True
            try:
                self._connection.send(message)
            finally:
                self._sending = False
        if self._asked:
            raise KeyboardInterrupt


class _SentLine:
    """A line that is shown by another process."""

    def __init__(self, sender: _Sender, interval_s: float) -> None:
        self.interval_s = interval_s
        self._sender = sender

    def show(self, done: int, figures: str) -> None:
        """See Line."""
        self._sender.send(Shown(done, figures))


class _Stderr(StringIO):
    """What is written to it goes to another process."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    def write(self, text: str) -> int:
        """Send a text."""
        self._sender.send(Said(text))
        return len(text)
