"""`onebit dead-letters`: what could not be used, put into its topic again."""

from typing import Annotated

import typer

from stream.app.connection import connected
from stream.app.settings import Program, Settings
from stream.cli.console import examples, out, print_json
from stream.cli.flags import Json, with_settings
from stream.kafka.requeueing import Fate, Requeued, requeue
from stream.reporting.record_lines import quoted, short_name
from stream.wire.dead_letters import DeadLetter

app = typer.Typer(help="Put unusable records into their topics again.", no_args_is_help=True)


@app.callback()
def dead_letters() -> None:
    """Records that could not be used. `onebit tail dead-letter` shows them."""


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
            help="Only those of this kind (malformed, orphan, mismatched), or whose reason has this text in it.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Put dead letters into their topics again, as the records that they were.

    Each is put once: the record has a header that names its letter, and a letter whose record is there is passed over.
    A record that still cannot be used becomes another dead letter. A record of which not all was kept is passed over.
    """

    def wanted(letter: DeadLetter) -> bool:
        return reason is None or reason == letter.kind or reason in letter.reason

    with connected(settings) as (broker, topics, partitions):

        def told(one: Requeued) -> None:
            letter, topic = one.letter, short_name(one.letter.topic, topics)
            line = (
                f"dead-letter/{one.partition}@{one.offset} {topic}/{letter.partition}@{letter.offset} {letter.kind}: "
                f"{quoted(letter.reason)}: {'would be ' if dry_run and one.fate is Fate.REQUEUED else ''}{one.fate}"
            )
            if not json:
                out.print(line, highlight=False, soft_wrap=True, markup=False)

        counts = requeue(broker, topics, partitions, wanted, told, dry_run=dry_run)
    if json:
        print_json({str(fate): count for fate, count in counts.items()} | {"dry_run": dry_run})
        return
    verb = "would be put" if dry_run else "put"
    passed_over = counts.total() - counts[Fate.REQUEUED]
    out.print(f"{counts[Fate.REQUEUED]:,} {verb} into their topics again, {passed_over:,} passed over")
