"""`onebit dead-letters`: write dead letters back to their original topics."""

from collections import Counter
from typing import Annotated

import typer

from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, with_settings
from onebit.requeueing import Fate, requeue
from stream.programs.connection import connected
from stream.reporting.record_lines import quoted, short_name
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.wire.dead_letters import DeadLetter

app = typer.Typer(help="Write dead letters back to their original topics.", no_args_is_help=True)


@app.callback()
def dead_letters() -> None:
    """Manage dead letters. `onebit tail dead-letter` shows them."""


@app.command("requeue", epilog=examples(
    "onebit dead-letters requeue --dry-run",
    "onebit dead-letters requeue --reason orphan",
    'onebit dead-letters requeue --reason "x: expected 64 numbers"',
))  # fmt: skip
@with_settings(Program.CONNECT)
def requeue_letters(
    settings: Settings,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="KIND|TEXT",
            help="Only dead letters of this kind (malformed, orphan, mismatched or excess), or with this text in the "
            "reason",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the dead letters, but write nothing")] = False,
    json: Json = False,
) -> None:
    """Write dead letters back to their original topics, as the original records.

    Each dead letter is written only once. A header in the new record contains the dead letter's offset. If a record
    with this header already exists, the dead letter is skipped. A record that is still invalid becomes a dead letter
    again. Truncated records are skipped.
    """

    def wanted(letter: DeadLetter) -> bool:
        return reason is None or reason == letter.kind or reason in letter.reason

    with connected(settings) as (broker, topics, partitions):
        results = requeue(broker, topics, partitions, wanted, dry_run=dry_run)
    counts = Counter(one.fate for one in results)
    if json:
        print_json({str(fate): count for fate, count in counts.items()} | {"dry_run": dry_run})
        return
    for one in results:
        letter, topic = one.letter, short_name(one.letter.topic, topics)
        line = (
            f"dead-letter/{one.partition}@{one.offset} {topic}/{letter.partition}@{letter.offset} {letter.kind}: "
            f"{quoted(letter.reason)}: {'would be ' if dry_run and one.fate is Fate.REQUEUED else ''}{one.fate}"
        )
        print_line(line, markup=False)
    verb = "would be written" if dry_run else "written"
    passed_over = counts.total() - counts[Fate.REQUEUED]
    out.print(f"{counts[Fate.REQUEUED]:,} {verb} back to their topics, {passed_over:,} skipped")
