"""The progress lines of runs."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Protocol

from rich.progress import BarColumn, Progress, TextColumn

from stream.cli.console import announce, err, has_moving_lines
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


class Line(Protocol):
    """Where a run shows how far it is."""

    @property
    def interval_s(self) -> float:
        """Seconds after which it may change."""
        ...

    def show(self, done: int, figures: str) -> None:
        """Show how much is done, an event counting twice as in `TimeToGo`, and this in words."""
        ...


class AnnouncedLine:
    """A line is written now and then."""

    interval_s: ClassVar[float] = 5.0

    def __init__(self, label: str) -> None:
        self._label = label

    def show(self, done: int, figures: str) -> None:
        """See Line."""
        announce(f"{self._label}: {figures}", limited=False)  # each takes the place of the one before


class MovingLine:
    """A bar on a terminal, which can stand below those of other runs."""

    interval_s: ClassVar[float] = 0.1

    def __init__(self, bars: Progress, label: str, events: int) -> None:
        self._bars = bars
        self._task = bars.add_task(label, total=2 * events, figures="")

    def show(self, done: int, figures: str) -> None:
        """See Line."""
        self._bars.update(self._task, completed=done, figures=figures)
        self._bars.refresh()


@contextmanager
def progress_lines() -> Iterator[Callable[[str, int], Line]]:
    """For the time of some runs: makes the line of one, from its label and its number of events.

    On a terminal the lines move, and stay when the runs have ended.
    """
    if not has_moving_lines():
        yield lambda label, _events: AnnouncedLine(label)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=err, auto_refresh=False) as bars:
        yield partial(MovingLine, bars)


class RunProgress:
    """How far a run is: events, events per second, error so far, pending, time to go."""

    def __init__(self, line: Line, events: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._line = line
        self._events = events
        self._now_s = now_s
        self._started_s = now_s()
        self._shown_s = self._started_s
        self._time_to_go = TimeToGo(events, self._started_s)

    def due(self) -> bool:
        """Whether it is time to show something; cheap enough for an inner loop."""
        return self._now_s() - self._shown_s >= self._line.interval_s

    def show(self, decided: int, error_rate: float = math.nan, pending: int = 0, to_come: int = 0) -> None:
        """Show where the run stands.

        Args:
            decided: decisions so far.
            error_rate: of them.
            pending: how many of them wait for their feedback.
            to_come: feedback that will come, for whatever decisions; said when all of them are settled without it.
        """
        now_s = self._now_s()
        self._shown_s = now_s
        per_s = decided / max(now_s - self._started_s, 1e-9)
        figures = [f"{decided:,} of {self._events:,} events", f"{per_s:,.0f} events/s"]
        if not math.isnan(error_rate):
            figures.append(f"error {tables.percent(error_rate)}")
        if pending:
            figures.append(f"pending {pending:,}")
        left_s = self._time_to_go.estimate_s(decided, pending, now_s)
        if to_come and pending == 0 and decided >= self._events:
            figures.append(f"all settled, {to_come:,} late or repeated feedback to come")
        else:
            figures.append(f"ETA {f'{left_s:.0f} s' if left_s < 60 else tables.duration(left_s)}")
        self._line.show(2 * decided - pending, "  ".join(figures))


@contextmanager
def run_progress(label: str, events: int) -> Iterator[RunProgress]:
    """The progress of one run, with a line for its time."""
    with progress_lines() as line_of:
        yield RunProgress(line_of(label, events), events)
