"""`onebit verify`: recompute the ledger from the topics and, with --replay, the learner's state."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from consumers.tally import misplaced
from consumers.verify import Extent, verify_pipeline
from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, with_settings
from producers.data import dataset_of
from producers.replay.options import events_of
from stream.measures.errors import MatchedError
from stream.measures.latencies import quantiles
from stream.programs.process import quantity
from stream.reporting.tables import number_text, percent
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.verifying.audit import Finding, latencies_of
from stream.verifying.moved import MoveFinding
from stream.verifying.reapply import Replay
from stream.verifying.shared_log import LogFinding
from stream.wire.ledger import MISPLACED_REMEDY, Ledger

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit verify", "onebit verify --wait-events 5620 --timeout 10m --json", "onebit verify --replay --since 7d"
    )
)
@with_settings(Program.VERIFY)
def verify(
    settings: Settings,
    wait_events: Annotated[
        int | None, typer.Option(help="First wait until N events are decided and no decision is pending")
    ] = None,
    wait_replay: Annotated[
        bool,
        typer.Option("--wait-replay", help="First wait for all events from `onebit replay` with the same settings"),
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Maximum time to wait")] = "10m",
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Also replay the journal, and compare the result with the recovered state"),
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="First step of each task to check. Starts at the newest earlier snapshot"
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION|TIME", help="First time to check: 7d (ago), or 2026-03-01T12:00 (UTC)"),
    ] = None,
    json: Json = False,
) -> None:
    """Recompute the ledger from the topics and compare it with the learner's ledger.

    If retention has deleted the first records, or with --from-step or --since, the check starts at a snapshot. The
    state in the snapshot is given; every later record is checked, and the first checked step is printed. With --replay,
    also replays the journal from there. The state must be the same, bit for bit, as after a recovery from the newest
    snapshot. Exits with 1 if a ledger or a state differs, and with 2 if records were deleted and no snapshot is early
    enough.
    """
    if wait_replay and wait_events is None:
        wait_events = events_of(settings, dataset_of(settings))
    found = verify_pipeline(
        settings, wait_events=wait_events, timeout=timeout, replay=replay, extent=Extent(from_step, since)
    )
    if json:
        print_json(found.to_dict())
    else:
        if found.log is not None and found.log.ok:
            print_log(found.log)
        print_findings(found.findings, found.errors)  # last, because it prints the verdict
        if found.log is not None and not found.log.ok:
            print_log(found.log)
        print_moves(found.moves)
        print_replays(found.replays or ())
    if not found.ok:
        raise typer.Exit(found.exit_code)


def print_findings(findings: Sequence[Finding], error: MatchedError) -> None:
    """For each partition, print the learner's ledger, the audited ledger, and all differences.

    The last line contains the verdict and the error rate.
    """
    for finding in findings:
        if finding.deleted:
            out.print(f"partition {finding.partition}: the ledger cannot be recomputed")
            for place in finding.deleted:
                print_line(f"  [yellow]✗[/] {escape(place)}")
            continue
        table = Table(title=f"partition {finding.partition}", title_justify="left")
        for column in ("", "learner", "from the topics", ""):
            table.add_column(column, justify="right" if column else "left")
        for name, counted, audited in zip(Ledger._fields, finding.learner, finding.audited, strict=True):
            verdict = "" if counted == audited else "[bold red]differs"
            table.add_row(name.replace("_", " "), f"{counted:,}", f"{audited:,}", verdict)
        out.print(table)
        for fault in (*finding.faults, *finding.audited.imbalances()):
            out.print(f"  [red]✗[/] {escape(fault)}", highlight=False)
        if finding.exact_from > 1:
            out.print(f"  steps from {finding.exact_from:,} on are checked; the counts before this step are given")
        if found := misplaced(finding.audited):
            print_line(f"  [yellow]![/] {found:,} {MISPLACED_REMEDY}")
        for number, shift_ms in finding.clock_steps:
            shifted = f"from step {number} on, stream time is the broker's time {-shift_ms / 1_000:+,.1f} s"
            print_line(f"  [yellow]![/] the broker's clock was set: {shifted}")
        for place in finding.foreign:
            out.print(f"  [yellow]![/] {escape(place)}", highlight=False)
        if finding.foreign_count > len(finding.foreign):
            out.print(f"  [yellow]![/] and {finding.foreign_count - len(finding.foreign):,} more such records")
        if finding.contexts_behind or finding.feedback_behind:
            out.print(
                f"  not yet applied: {finding.contexts_behind:,} contexts, {finding.feedback_behind:,} feedback records"
            )
    deleted = [finding for finding in findings if finding.deleted]
    wrong = [finding for finding in findings if not finding.ok and not finding.deleted]
    if latency := quantiles(latencies_of(findings)):
        print_line(f"decision latency: median {latency.median_ms:,} ms (99th percentile: {latency.p99_ms:,} ms)")
    partitions = quantity(len(findings), "partition")
    if deleted:
        out.print(f"[bold yellow]✗ the ledger cannot be recomputed[/] in {len(deleted)} of {partitions}")
    if wrong:
        verdict = f"[bold red]✗ the ledger does not add up[/] in {len(wrong)} of {partitions}"
        print_line(f"{verdict}; {_error_line(error)}")
    elif not deleted:
        verdict = f"[bold green]✓ the ledger adds up[/] in {partitions}"
        print_line(f"{verdict}; {_error_line(error)}")


def print_moves(moves: Sequence[MoveFinding]) -> None:
    """Print the pipelines from and to which a pipeline was moved, and the balances that were carried over."""
    for move in moves:
        balance, other = move.other.balance, escape(str(move.other))
        carried = (
            f"{balance.pending:,} pending decisions, {balance.deferred:,} deferred decisions, "
            f"{balance.orphans_waiting:,} orphans"
        )
        what = f"opening balance from {other}" if move.is_origin else f"balance moved to {other}"
        verdict = "[bold green]✓[/]" if move.ok else f"[bold red]✗[/] {escape(move.fault)};"
        print_line(f"{verdict} {what}: {carried}")


def print_log(log: LogFinding) -> None:
    """Print the audit result for a shared model's log, and the replica versions in the journals."""
    for fault in log.faults:
        print_line(f"  [red]✗[/] {escape(fault)}")
    for warning in log.warnings:
        print_line(f"  [yellow]![/] {escape(warning)}")
    replicas = ", ".join(f"{one.instance} {one.sha256[:16]} at {one.version:,}" for one in log.replicas)
    verdict = "[bold green]✓ one model[/]" if log.ok else "[bold red]✗ the shared model's log differs[/]"
    start = f"; entries from version {log.exact_from:,} on are checked" if log.exact_from else ""
    print_line(f"{verdict}, version {log.version:,}; {replicas or 'no replica reported'}{start}")


def _error_line(error: MatchedError) -> str:
    if not error.matched:
        return "no feedback has been matched"
    if error.mean_rewards is not None:
        mean, last_fifth = map(number_text, error.mean_rewards)
        return f"mean reward {mean}, last fifth {last_fifth} ({error.matched:,} decisions with feedback in time)"
    return (
        f"error {percent(error.error_rate)}, last fifth {percent(error.error_rate_last_fifth)} (decisions with "
        f"reward 0, out of {error.matched:,} with feedback in time)"
    )


def print_replays(replays: Sequence[Replay]) -> None:
    """Print the results of replaying each partition's journal."""
    for found in replays:
        if found.foreign:
            out.print(f"[yellow]! partition {found.partition}:[/] {escape(found.foreign)}", soft_wrap=True)
        compared = (
            f"snapshot of step {found.snapshot:,} and later steps" if found.snapshot else "recovery (no snapshot yet)"
        )
        if found.fault:
            out.print(f"[bold red]✗ partition {found.partition}:[/] {escape(found.fault)}", soft_wrap=True)
        elif not found.steps and not found.start:
            out.print(f"partition {found.partition}: no steps yet")
        elif found.ok:
            print_line(
                f"[bold green]✓ partition {found.partition}:[/] the replay of {_replayed(found)} gives the same state "
                f"as the {compared}, learner {found.state[:16]}"
                + ("" if found.version is None else f" at version {found.version:,}")
            )
        else:
            print_line(
                f"[bold red]✗ partition {found.partition}:[/] the replay of {_replayed(found)} gives the state "
                f"{found.replayed[:16]}; the {compared} gives {found.recovered[:16]}"
            )


def _replayed(found: Replay) -> str:
    """Return the part of a message that names the replayed steps."""
    return f"{found.steps:,} steps" + (f" after the snapshot of step {found.start:,}" if found.start else "")
