"""Runs and checks a schedule for each of many seeds, and shrinks the schedules that fail."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple

from onebit.simulation.checks import (
    EVICTIONS,
    RETENTION_CUT,
    change_name,
    check,
    check_ranges,
    check_retained,
    equal_faultless,
    row_name,
)
from onebit.simulation.moves import check_move
from onebit.simulation.random_changes import CHANGED_SETTINGS
from onebit.simulation.random_schedule import LEARNERS, OFFERING, draw_schedule
from onebit.simulation.schedule import (
    ENVIRONMENT,
    EVENTS,
    IN_COMMIT,
    OTHER_FAULTS,
    SHARED_FAULTS,
    TIMED_FAULTS,
    ItemKind,
    Schedule,
)
from onebit.simulation.tracing import (
    APPLIED,
    BEFORE_CHANGE,
    BEHIND_ITS_LOG,
    FED_AFTER_MOVE,
    FOREIGN_IN_LOG,
    MOVE_DIED,
    MOVED,
    NAMED_TWICE,
    OPEN_IN_LOG,
    REFUSED,
    WAITS_FOR_FOLLOWERS,
    Trace,
)
from onebit.simulation.world import World
from stream.recovery.commit import COMMIT_STEPS
from stream.task.join_table import TRANSITIONS, Input, State
from stream.task.settings import Sharing


class Result(NamedTuple):
    """The result for one seed."""

    seed: int
    wrong: tuple[str, ...]  # empty if all checks passed
    coverage: Counter[str]
    timeless: bool


def run_seed(seed: int, events: int = EVENTS, model: Sharing = "own") -> Result:
    """Generate the schedule for a seed, run it, and check the run."""
    schedule = draw_schedule(seed, events, model)
    wrong, trace = examine(schedule)
    return Result(seed, tuple(wrong), trace.fired, schedule.timeless)


def examine(schedule: Schedule) -> tuple[list[str], Trace]:
    """Run a schedule, check the run, and return the findings and the trace. An error is added to both."""
    world = World(schedule)
    world.trace.fired[schedule.learner] += 1
    world.trace.fired[CLOCK_PAUSES] += schedule.clock_pauses
    try:
        world.run()
        wrong = check_retained(world)
        world.retention.restore()
        wrong += check(world)
        if schedule.timeless and schedule.task.model == "own":
            faultless = World(schedule.faultless())
            faultless.run()
            wrong += equal_faultless(world, faultless)
        wrong += check_ranges(world)
        if schedule.move is not None:
            wrong += check_move(schedule, world.trace)
    except Exception as error:  # reported as a finding for this seed, so that the campaign continues
        wrong = [f"{type(error).__name__}: {error}"]
        world.trace.note("!", wrong[0])
    return wrong, world.trace


CLOCK_PAUSES = "clock is paused"


def expected_coverage(model: Sharing = "own") -> list[str]:
    """Return the names of everything that a long campaign must cover, such as faults, join-table rows and learners."""
    shares = model == "shared"
    outside = [str(kind) for kind in ItemKind if kind in ENVIRONMENT]
    faults: list[str] = []
    for kind in dict.fromkeys((*TIMED_FAULTS, *OTHER_FAULTS, *(SHARED_FAULTS if shares else ()))):
        faults += [f"{kind} {step}" for step in COMMIT_STEPS] if kind in IN_COMMIT else [str(kind)]
    others = [
        "reordered feedback", "operation during an outage", "fenced", "removed and ends",
        "blocked by a transaction", "step aborted after a rebalance", "transaction timeout",
        WAITS_FOR_FOLLOWERS, CLOCK_PAUSES, APPLIED, REFUSED, RETENTION_CUT, MOVED, MOVE_DIED,
        FED_AFTER_MOVE, *EVICTIONS,
    ]  # fmt: skip
    if shares:
        others += [BEHIND_ITS_LOG, FOREIGN_IN_LOG, OPEN_IN_LOG, NAMED_TWICE, BEFORE_CHANGE]
    rows = [
        row_name(state.name.lower(), happened.name.lower())
        for state, happened in TRANSITIONS
        if not shares or (state is not State.UNMATCHED and happened is not Input.UNMATCHED)  # only in replays
    ]
    changes = [change_name(name) for name in CHANGED_SETTINGS]
    return [*outside, *faults, *others, *rows, *changes, *LEARNERS, *OFFERING]


COVERED_FROM_SEEDS = 2_000
"""Campaigns with fewer seeds than this do not require complete coverage. The rarest event occurs in about one in 100
seeds.
"""

FAILURES_MAX = 20
"""Number of failing seeds after which a campaign ends."""


@dataclass(slots=True)
class Campaign:
    """The results for many seeds."""

    model: Sharing = "own"
    seeds: int = 0
    timeless: int = 0
    failures: list[Result] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)  # number of occurrences of each event
    seeds_with: Counter[str] = field(default_factory=Counter)  # number of seeds in which each event occurred
    is_interrupted: bool = False

    def run(self, seeds: Sequence[int], events: int, jobs: int, show: Callable[[], None]) -> None:
        """Run the seeds until FAILURES_MAX of them have failed. After Ctrl-C, keep the results so far.

        Args:
            seeds: The seeds.
            events: Number of contexts per run.
            jobs: Number of processes.
            show: Called after each seed.
        """
        try:
            for result in run_seeds(seeds, events, jobs, self.model):
                self.add(result)
                show()
                if len(self.failures) >= FAILURES_MAX:
                    break
        except KeyboardInterrupt:
            self.is_interrupted = True

    def add(self, result: Result) -> None:
        """Add the result for one seed."""
        self.seeds += 1
        self.timeless += result.timeless
        self.coverage.update(result.coverage)
        self.seeds_with.update(name for name, count in result.coverage.items() if count)
        if result.wrong:
            self.failures.append(result)

    def never_occurred(self) -> list[str]:
        """Return the expected events that never occurred. For a campaign with few seeds, the list is empty."""
        if self.seeds < COVERED_FROM_SEEDS:
            return []
        return [name for name in expected_coverage(self.model) if not self.coverage[name]]

    @property
    def ok(self) -> bool:
        """Whether all seeds passed and coverage is complete."""
        return not self.failures and not self.never_occurred()


def run_seeds(seeds: Sequence[int], events: int = EVENTS, jobs: int = 1, model: Sharing = "own") -> Iterator[Result]:
    """Run the seeds and yield their results. If there are several processes, results arrive in arbitrary order."""
    run = partial(run_seed, events=events, model=model)
    if jobs == 1:
        yield from map(run, seeds)
        return
    # A terminal sends Ctrl-C to every process. The worker processes ignore the signal, and this process stops them.
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=max(1, min(50, len(seeds) // (4 * jobs))))


def shrink(schedule: Schedule) -> list[int]:
    """Find a small subset of a failing schedule's items with which a run still fails, and return their indices.

    The algorithm is that of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 2002.
    It removes large groups of items first, then smaller groups, and finally single items. A group is removed only if a
    run with the remaining items still fails. The subset may fail in a different way than the whole schedule.
    """
    indices = list(range(len(schedule.items)))
    size = max(1, len(indices) // 2)
    while True:
        start, has_shrunk = 0, False
        while start < len(indices):
            fewer = indices[:start] + indices[start + size :]
            if fewer and examine(schedule.only(fewer))[0]:
                indices, has_shrunk = fewer, True
            else:
                start += size
        if size == 1 and not has_shrunk:
            return indices
        size = max(1, size // 2)


def ranges(indices: Sequence[int]) -> str:
    """Format indices for a command-line option.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    groups = groupby(enumerate(indices), lambda each: each[1] - each[0])  # the same for consecutive indices
    parts = [[index for _, index in group] for _, group in groups]
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def parse_ranges(text: str) -> list[int]:
    """Parse indices in the format of `ranges`.

    Raises:
        ValueError: the text has a different format, or a range is empty.

    >>> parse_ranges("0-2,5,7-8")
    [0, 1, 2, 5, 7, 8]
    """
    indices: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"range {part} ends before it begins")
        indices += numbers
    return indices
