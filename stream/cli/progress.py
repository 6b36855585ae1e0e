"""The progress line of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stream.cli.console import announce, err
from stream.reporting import tables


class RunProgress:
    """The progress line of a run: events, events per second, error so far, pending, time to go.

    On a terminal it moves; elsewhere a line is written now and then.
    """

    LINE_INTERVAL_S = 5.0
    REFRESH_INTERVAL_S = 0.1

    def __init__(self, label: str, events: int) -> None:
        self._label = label
        self._events = events
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if err.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=err,
                auto_refresh=False,
            )
            self._task = self._bar.add_task(label, total=events, figures="")
            self._bar.start()

    def due(self) -> bool:
        """Whether it is time to show something; cheap enough for an inner loop."""
        interval_s = self.LINE_INTERVAL_S if self._bar is None else self.REFRESH_INTERVAL_S
        return time.monotonic() - self._shown_s >= interval_s

    def show(self, done: int, error_rate: float, pending: int) -> None:
        """Show where the run stands."""
        now_s = time.monotonic()
        self._shown_s = now_s
        per_s = done / max(now_s - self._started_s, 1e-9)
        figures = f"{per_s:,.0f} events/s  error {tables.percent(error_rate)}  pending {pending:,}"
        if self._bar is None:
            remaining = (self._events - done) / per_s if per_s else 0.0
            announce(f"{self._label}: {done:,} of {self._events:,} events  {figures}  ETA {remaining:.0f} s")
        else:
            self._bar.update(self._task, completed=done, figures=figures)
            self._bar.refresh()

    def close(self) -> None:
        """Leave the line as it is."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def run_progress(label: str, events: int) -> Iterator[RunProgress]:
    """A progress line for the time of a run."""
    progress = RunProgress(label, events)
    try:
        yield progress
    finally:
        progress.close()
