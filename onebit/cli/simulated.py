"""Runs simulations for `onebit simulate`, and prints their results."""

import time
from dataclasses import asdict
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from onebit.cli.console import out, print_json, print_line
from onebit.simulation.campaign import (
    COVERED_FROM_SEEDS,
    Campaign,
    examine,
    expected_coverage,
    parse_ranges,
    ranges,
    shrink,
)
from onebit.simulation.random_schedule import draw_schedule
from onebit.simulation.schedule import EVENTS, Schedule
from onebit.simulation.tracing import Happened, trace_digest
from stream.errors import ExitCode
from stream.programs.process import Meter, Progress, announce, every
from stream.reporting.tables import duration
from stream.settings.definitions import SettingsError
from stream.task.settings import Sharing

SHOWN_MAX = 3
"""Number of failing seeds to shrink and show. Any other failing seeds are only listed."""

PROGRESS_INTERVAL_MS = 5_000


class Runs(NamedTuple):
    """Generates random runs from seeds."""

    events: int
    model: Sharing

    def draw(self, seed: int) -> Schedule:
        """Return the run for a seed."""
        return draw_schedule(seed, self.events, self.model)

    def replay(self, seed: int, only: str | None = None) -> str:
        """Return the command that shows the run for a seed, with all items in its schedule or only those in `only`."""
        command = f"onebit simulate --seed {seed} --trace"
        if self.events != EVENTS:
            command += f" --events {self.events}"
        if self.model != "own":
            command += f" --model {self.model}"
        return command if only is None else f"{command} --only {only}"


def simulate_campaign(runs: Runs, seeds: range, jobs: int, *, shrinks: bool, json: bool) -> ExitCode:
    """Run many seeds, and print the coverage and the failures."""
    started_s = time.monotonic()
    campaign = Campaign(runs.model)

    def announce_progress(so_far: Progress) -> None:
        announce(
            f"{so_far.decided:,} of {len(seeds):,} seeds  {so_far.per_s:,.1f} seeds/s  "
            f"{len(campaign.failures)} failed  ETA {duration(so_far.left_s)}"
        )

    meter = Meter("", len(seeds), announce_progress)
    campaign.run(seeds, runs.events, jobs, every(PROGRESS_INTERVAL_MS, lambda: meter.show(campaign.seeds)))
    return show_campaign(campaign, runs, seeds, time.monotonic() - started_s, shrinks=shrinks, json=json)


def show_campaign(
    campaign: Campaign, runs: Runs, seeds: range, wall_s: float, *, shrinks: bool, json: bool
) -> ExitCode:
    """Print a campaign's coverage and failures, and return the exit code. An interrupted campaign is not shrunk."""
    if json:
        _print_json(campaign, runs, seeds, wall_s)
    else:
        _print_coverage(campaign)
        _print_verdict(campaign, seeds, wall_s)
        _print_failures(campaign, runs, shrinks=shrinks and not campaign.is_interrupted)
    if campaign.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if campaign.ok else ExitCode.DIFFERS


def _print_coverage(campaign: Campaign) -> None:
    table = Table(title="what occurred", title_justify="left", box=None, header_style="bold underline")
    table.add_column("")
    table.add_column("times", justify="right")
    table.add_column("seeds", justify="right")
    missing = campaign.never_occurred()
    for name in expected_coverage(campaign.model):
        times, seeds = campaign.coverage[name], campaign.seeds_with[name]
        table.add_row(f"[red]{name}[/]" if name in missing else name, f"{times:,}", f"{seeds:,}")
    out.print(table)


def _print_verdict(campaign: Campaign, seeds: range, wall_s: float) -> None:
    per_s = campaign.seeds / max(wall_s, 1e-9)
    shared = " with a shared model" if campaign.model == "shared" else ""
    out.print(
        f"{campaign.seeds:,} seeds from {seeds.start}{shared}, {campaign.timeless:,} of them with instant faults, in "
        f"{wall_s:,.1f} s ({per_s:,.1f} seeds/s)",
        highlight=False,
    )
    if campaign.is_interrupted:
        left = len(seeds) - campaign.seeds
        out.print(f"[bold yellow]interrupted, {left:,} of {len(seeds):,} seeds not run", highlight=False)
    missing = campaign.never_occurred()
    if missing:
        out.print(f"[bold red]✗ never occurred in {campaign.seeds:,} seeds: {', '.join(missing)}", highlight=False)
    elif campaign.seeds < COVERED_FROM_SEEDS:
        out.print(f"[dim]coverage is checked only with at least {COVERED_FROM_SEEDS:,} seeds", highlight=False)
    if campaign.failures:
        out.print(f"[bold red]✗ {len(campaign.failures):,} of {campaign.seeds:,} seeds failed", highlight=False)
    else:
        out.print(f"[bold green]✓ all {'of these ' if campaign.is_interrupted else ''}passed", highlight=False)


def _print_failures(campaign: Campaign, runs: Runs, *, shrinks: bool) -> None:
    for failure in campaign.failures[:SHOWN_MAX]:
        _show_failure(runs, runs.draw(failure.seed), shrinks=shrinks)
    if len(campaign.failures) > SHOWN_MAX:
        more = ", ".join(str(failure.seed) for failure in campaign.failures[SHOWN_MAX:])
        out.print(f"also failed: {more}", highlight=False)


def _print_json(campaign: Campaign, runs: Runs, seeds: range, wall_s: float) -> None:
    fields = {
        "ok": campaign.ok and not campaign.is_interrupted,
        "interrupted": campaign.is_interrupted,
        "first_seed": seeds.start,
        "seeds": campaign.seeds,
        "timeless": campaign.timeless,
        "events": runs.events,
        "model": runs.model,
        "wall_s": round(wall_s, 3),
        "never_occurred": campaign.never_occurred(),
        "coverage": {
            name: {"times": campaign.coverage[name], "seeds": campaign.seeds_with[name]}
            for name in expected_coverage(runs.model)
        },
        "failures": [
            {"seed": failure.seed, "wrong": failure.wrong, "replay": runs.replay(failure.seed)}
            for failure in campaign.failures
        ],
    }
    print_json(fields)


def _show_failure(runs: Runs, schedule: Schedule, *, shrinks: bool) -> None:
    """Print a failing seed: violations, shrunk schedule, trace, and the command that replays the schedule."""
    kept = list(range(len(schedule.items)))
    if shrinks:
        kept = shrink(schedule)
        announce(f"seed {schedule.seed}: shrunk to {len(kept)} of {len(schedule.items)} items")
    out.print(f"\n[bold red]✗ seed {schedule.seed}", highlight=False)
    _print_run(schedule.only(kept))
    print_line(f"to replay: {runs.replay(schedule.seed, ranges(kept) if shrinks else None)}")


def simulate_seed(runs: Runs, seed: int, only: str | None, *, json: bool) -> bool:
    """Run a seed and print its events. Return whether the run passed.

    Raises:
        SettingsError: `only` does not select items of the schedule.
    """
    schedule = runs.draw(seed)
    if only is not None:
        try:
            schedule = schedule.only(parse_ranges(only))
        except (ValueError, IndexError) as error:
            raise SettingsError(
                f"--only: expected items of seed {seed}, 0 to {len(schedule.items) - 1}, such as 0-3,7; got {only!r}"
            ) from error
    if json:
        wrong, trace = examine(schedule)
        lines = [line._asdict() for line in trace.lines]
        print_json({"ok": not wrong, "seed": seed, "wrong": wrong, "digest": trace_digest(trace.lines), "trace": lines})
        return not wrong
    passed = _print_run(schedule)
    if passed:
        out.print("[bold green]✓ passed", highlight=False)
    return passed


def _print_run(schedule: Schedule) -> bool:
    """Run a schedule, and print its settings, events and violations. Return whether the run passed."""
    task = schedule.task
    limits = ", ".join(f"{name} {getattr(task.join, name)}" for name in task.join.__dataclass_fields__)
    hidden = ("task", "items", "seed", "options", "instance")
    parts = (schedule._asdict() | asdict(schedule.options)).items()
    model = "a shared model" if task.model == "shared" else "own models"
    out.print(f"  {task.learner}, {model}, on expiry {task.on_expiry}, late {task.late}; {limits}", highlight=False)
    out.print("  " + ", ".join(f"{name} {value}" for name, value in parts if name not in hidden), highlight=False)
    wrong, trace = examine(schedule)
    for line in trace.lines:
        _print_line(line)
    out.print(f"  [dim]{len(trace.lines)} lines, digest {trace_digest(trace.lines)}", highlight=False)
    for what in wrong:
        print_line(f"  [red]✗[/] {escape(what)}")
    return not wrong


def _print_line(line: Happened) -> None:
    text = escape(line.what)
    if line.what.startswith("FAULT"):
        text = f"[bold yellow]{text}[/]"
    print_line(f"{line.at_ms:>8,} ms  {line.who:<12} {text}")
