"""Simulations of the learner program with random schedules."""

from typing import NamedTuple

from consumers.learner import LearnerOptions, LearnerProgram
from consumers.recovery import Parked
from stream.simulation.outside import TOPICS
from stream.simulation.processes import GROUP, LearnerSetup
from stream.simulation.schedule import EVENTS, Schedule, draw_schedule
from stream.task.settings import Sharing


def make_learner(setup: LearnerSetup) -> LearnerProgram:
    """Create the learner program for a simulation."""
    schedule = setup.schedule
    options = LearnerOptions(
        group=GROUP,
        instance=setup.instance,
        records_max=schedule.records_max,
        idle_ms=schedule.idle_ms,
        snapshot_interval_ms=schedule.snapshot_interval_ms,
        snapshot_bytes_max=schedule.snapshot_bytes_max,
        snapshot_chunk_bytes=schedule.snapshot_chunk_bytes,
    )
    parked = setup.parked if isinstance(setup.parked, Parked) else None
    return LearnerProgram(
        setup.broker, TOPICS, schedule.task, options, setup.now_ms, setup.announce, setup.crash_point,
        parked=parked,
    )  # fmt: skip


class Runs(NamedTuple):
    """Generates random runs from seeds."""

    events: int
    model: Sharing

    def draw(self, seed: int) -> Schedule:
        """Return the run for a seed."""
        return draw_schedule(seed, self.events, self.model)

    def replay(self, seed: int, only: str | None = None) -> str:
        """Return the command that shows the run for a seed, with all items in the schedule or only those selected."""
        command = f"onebit simulate --seed {seed} --trace"
        if self.events != EVENTS:
            command += f" --events {self.events}"
        if self.model != "own":
            command += f" --model {self.model}"
        return command if only is None else f"{command} --only {only}"
