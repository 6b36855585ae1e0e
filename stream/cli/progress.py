"""The progress line of a run."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stream.cli.console import announce, err
from stream.reporting import tables

SPEED_S = 30.0
"""The time to go is told from the speed of so many last seconds: the first ones say little about the others."""


class TimeToGo:
    """How long a run goes on, from how fast it has gone on lately.

    An event is done when it is decided and settled, which count alike: a run whose decisions are all made, and whose
    feedback is still to be learned from, is half done at most.
    """

    def __init__(self, events: int, now_s: float) -> None:
        self._events = events
        self._seen = deque([(now_s, 0)])  # when, and how many decisions and settlements there were

    def estimate_s(self, decided: int, pending: int, now_s: float) -> float:
        """Seconds to go; nan while nothing has been done.

        >>> time_to_go = TimeToGo(events=100, now_s=0.0)
        >>> time_to_go.estimate_s(decided=100, pending=90, now_s=11.0)  # 110 of 200 things, 10 in a second
        9.0
        """
        done = 2 * decided - pending
        self._seen.append((now_s, done))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPEED_S:
            self._seen.popleft()
        (then_s, then_done), left = self._seen[0], 2 * self._events - done
        if left <= 0:
            return 0.0
        return left * (now_s - then_s) / (done - then_done) if done > then_done else math.nan


class RunProgress:
    """The progress line of a run: events, events per second, error so far, pending, time to go.

    On a terminal it moves; elsewhere a line is written now and then.
    """

    LINE_INTERVAL_S = 5.0
    REFRESH_INTERVAL_S = 0.1

    def __init__(self, label: str, events: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._events = events
        self._now_s = now_s
        self._started_s = now_s()
        self._shown_s = self._started_s
        self._time_to_go = TimeToGo(events, self._started_s)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if err.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
            self._bar = Progress(*columns, console=err, auto_refresh=False)
            self._task = self._bar.add_task(label, total=2 * events, figures="")
            self._bar.start()

    def due(self) -> bool:
        """Whether it is time to show something; cheap enough for an inner loop."""
        interval_s = self.LINE_INTERVAL_S if self._bar is None else self.REFRESH_INTERVAL_S
        return self._now_s() - self._shown_s >= interval_s

    def show(self, decided: int, error_rate: float = math.nan, pending: int = 0) -> None:
        """Show where the run stands: decisions so far, how many were wrong, and how many wait for their feedback."""
        now_s = self._now_s()
        self._shown_s = now_s
        per_s = decided / max(now_s - self._started_s, 1e-9)
        figures = [f"{decided:,} of {self._events:,} events", f"{per_s:,.0f} events/s"]
        if not math.isnan(error_rate):
            figures.append(f"error {tables.percent(error_rate)}")
        if pending:
            figures.append(f"pending {pending:,}")
        left_s = self._time_to_go.estimate_s(decided, pending, now_s)
        figures.append(f"ETA {f'{left_s:.0f} s' if left_s < 60 else tables.duration(left_s)}")
        if self._bar is None:
            announce(f"{self._label}: {'  '.join(figures)}")
        else:
            self._bar.update(self._task, completed=2 * decided - pending, figures="  ".join(figures))
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
