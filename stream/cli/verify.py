"""`onebit verify`: the ledger again, from the topics alone; with --replay the learner's whole state too."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from stream.cli import model
from stream.cli.collecting import collect_seldom
from stream.cli.composition import dataset_of, events_of
from stream.cli.connection import connected
from stream.cli.console import announce, every, examples, fail, monotonic_ms, out
from stream.cli.exits import ExitCode
from stream.cli.flags import Json, with_settings
from stream.cli.settings import Program, Settings, SettingsError
from stream.cli.tally import ledger_line, misplaced
from stream.durations import parse_duration
from stream.journal.format import JournalError
from stream.journal.reading import JournalFollower
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.reporting.errors import MatchedError, matched_error
from stream.reporting.latency import quantiles
from stream.reporting.remedies import MISPLACED_REMEDY
from stream.reporting.tables import percent
from stream.verifying.audit import Finding, audit_partition, latencies_of
from stream.verifying.reapply import Replay
from stream.verifying.shared_log import LogFinding, audit_log, shares_model
from stream.wire import codec
from stream.wire.events import Example
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

app = typer.Typer()


@app.command(
    epilog=examples("onebit verify", "onebit verify --wait-events 5620 --timeout 10m --json", "onebit verify --replay")
)
@with_settings(Program.VERIFY)
def verify(
    settings: Settings,
    wait_events: Annotated[
        int | None, typer.Option(help="First wait until so many events are decided and none is pending.")
    ] = None,
    wait_replay: Annotated[
        bool,
        typer.Option("--wait-replay", help="First wait for all events of `onebit replay` with the same settings."),
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for that.")] = "10m",
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Apply the whole journal again too, and compare the state with a recovery's."),
    ] = False,
    json: Json = False,
) -> None:
    """Recompute the ledger from the topics alone, and compare it with what the learner counted.

    With --replay the learner's whole state as well: from the first step on, without any snapshot, it must come out to
    the bit as a recovery from the newest snapshot gives it. Exit code 1 and the differences when they do not agree; 2
    when records that the ledger is counted from have been deleted, by retention or otherwise.
    """
    if wait_replay and wait_events is None:
        wait_events = events_of(settings, dataset_of(settings))
    findings = audit(settings, wait_events=wait_events, timeout_ms=parse_duration(timeout))
    log = audit_model(settings)
    replays = model.replay(settings) if replay else []
    error = matched_error_of(settings)
    parts: list[Finding | LogFinding | Replay] = [*findings, *replays]
    ok = all(part.ok for part in (parts if log is None else [*parts, log]))
    if json:
        result = {
            "ok": ok,
            "matched": error.matched,
            "error": error.error_rate,
            "error_last_fifth": error.error_rate_last_fifth,
            "latency": latency._asdict() if (latency := quantiles(latencies_of(findings))) else None,
            "partitions": [finding.as_json() for finding in findings],
            **({"model": "own"} if log is None else log.as_json()),
        }
        if replay:
            result["replay"] = [found._asdict() | {"ok": found.ok} for found in replays]
        sys.stdout.write(orjson.dumps(result).decode() + "\n")
    else:
        if log is not None and log.ok:
            print_log(log)
        print_findings(findings, error)  # whose last line is the verdict
        if log is not None and not log.ok:
            print_log(log)
        model.print_replays(replays)
    if not ok:
        gone = {finding.partition for finding in findings if finding.gone}
        wrong = [one.partition for one in findings if not one.ok] + [one.partition for one in replays if not one.ok]
        differs = bool(set(wrong) - gone) or not (log is None or log.ok)
        raise typer.Exit(ExitCode.DIFFERS if differs else ExitCode.USAGE)


def audit(settings: Settings, *, wait_events: int | None, timeout_ms: int) -> list[Finding]:
    """Audit every partition; before that, if asked, wait until a number of events is settled."""
    try:
        with connected(settings) as (broker, topics, partitions):
            if wait_events is not None:
                _wait(broker, topics, partitions, wait_events, timeout_ms)
            collect_seldom()
            return [audit_partition(broker, topics, partition, announce) for partition in range(partitions)]
    except JournalError as error:
        raise SettingsError(str(error)) from error


def audit_model(settings: Settings) -> LogFinding | None:
    """Audit the log of the shared model; None: tasks have models of their own."""
    with connected(settings) as (broker, topics, partitions):
        return audit_log(broker, topics, partitions) if shares_model(broker, topics, partitions) else None


def _wait(broker: Broker, topics: Topics, partitions: int, events: int, timeout_ms: int) -> None:
    deadline_ms = monotonic_ms() + timeout_ms
    follower = JournalFollower(broker, topics, partitions)
    ledger = Ledger()
    show = every(STATUS_INTERVAL_MS, lambda: announce(f"waiting for {events:,} settled events: {ledger_line(ledger)}"))
    while ledger.decided < events or ledger.pending:
        if monotonic_ms() > deadline_ms:
            raise fail(
                f"waited {timeout_ms // 1_000} s for {events:,} settled events; got {ledger_line(ledger)}",
                ExitCode.DIFFERS,
            )
        ledger = follower.read(POLL_MS)
        show()
    follower.close()


def matched_error_of(settings: Settings) -> MatchedError:
    """The error that the examples tell; the audit names those that cannot be read."""
    with connected(settings) as (broker, topics, partitions):
        return matched_error(_examples(broker, TopicPartition(topics.examples, number)) for number in range(partitions))


def _examples(broker: Broker, tp: TopicPartition) -> Iterator[Example]:
    for record in read_partition(broker, tp, open_ms=OPEN_MS):
        with suppress(codec.MalformedError):
            yield codec.decode_example(record)[0]


def print_findings(findings: list[Finding], error: MatchedError) -> None:
    """Show the learner's ledger beside the audited one, for each partition, and all that is wrong.

    The last line is for those who read no other: whether the ledger adds up, and how often the learner was wrong.
    """
    for finding in findings:
        if finding.gone:
            out.print(f"partition {finding.partition}: the ledger cannot be recomputed")
            for place in finding.gone:
                out.print(f"  [yellow]✗[/] {escape(place)}", highlight=False, soft_wrap=True)
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
        if found := misplaced(finding.audited):
            out.print(f"  [yellow]![/] {found:,} {MISPLACED_REMEDY}", highlight=False, soft_wrap=True)
        for place in finding.foreign:
            out.print(f"  [yellow]![/] {escape(place)}", highlight=False)
        if finding.foreign_count > len(finding.foreign):
            out.print(f"  [yellow]![/] and {finding.foreign_count - len(finding.foreign):,} more such records")
        if finding.contexts_behind or finding.feedback_behind:
            out.print(f"  not applied yet: {finding.contexts_behind:,} contexts, {finding.feedback_behind:,} feedback")
    gone = [finding for finding in findings if finding.gone]
    wrong = [finding for finding in findings if not finding.ok and not finding.gone]
    if latency := quantiles(latencies_of(findings)):
        out.print(
            f"decisions came {latency.median_ms:,} ms after their contexts (the median; the 99th percentile: "
            f"{latency.p99_ms:,} ms)",
            highlight=False,
            soft_wrap=True,
        )
    if gone:
        out.print(f"[bold yellow]✗ the ledger cannot be recomputed[/] in {len(gone)} of {len(findings)} partitions")
    if wrong:
        verdict = f"[bold red]✗ the ledger does not add up[/] in {len(wrong)} of {len(findings)} partitions"
        out.print(f"{verdict}; {_error_line(error)}", highlight=False, soft_wrap=True)
    elif not gone:
        where = "the one partition" if len(findings) == 1 else f"all {len(findings)} partitions"
        verdict = f"[bold green]✓ the ledger adds up[/] in {where}"
        out.print(f"{verdict}; {_error_line(error)}", highlight=False, soft_wrap=True)


def print_log(log: LogFinding) -> None:
    """Show what the log of a shared model comes to, and what its processes told of their replicas."""
    for fault in log.faults:
        out.print(f"  [red]✗[/] {escape(fault)}", highlight=False, soft_wrap=True)
    for warning in log.warnings:
        out.print(f"  [yellow]![/] {escape(warning)}", highlight=False, soft_wrap=True)
    replicas = ", ".join(f"{name} {sha256[:16]} at {version:,}" for name, version, sha256 in log.replicas)
    verdict = "[bold green]✓ one model[/]" if log.ok else "[bold red]✗ the shared model's log does not agree[/]"
    out.print(
        f"{verdict}, version {log.version:,}; {replicas or 'no replica was told'}", highlight=False, soft_wrap=True
    )


def _error_line(error: MatchedError) -> str:
    if not error.matched:
        return "no feedback has been matched, so that the error is not known"
    return (
        f"error {percent(error.error_rate)}, last fifth {percent(error.error_rate_last_fifth)} (reward 0 among the "
        f"{error.matched:,} decisions with feedback in time)"
    )
