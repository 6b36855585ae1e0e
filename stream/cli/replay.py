"""`onebit replay`: a data set's rows as contexts, against Kafka."""

import time
from dataclasses import replace
from typing import Annotated

import typer

from producers.replay import ReplayProgram, Timetable, resume_position
from stream.cli.banner import announce_start
from stream.cli.composition import dataset_of, replay_options, topics_of
from stream.cli.connection import by_client, keep_running, watch_topics
from stream.cli.console import StopRequest, announce, examples, monotonic_ms, warn
from stream.cli.flags import with_settings
from stream.cli.program_metrics import replay_samples
from stream.cli.progress import run_progress
from stream.cli.settings import Panel, Program, Settings
from stream.cli.watching import Watched
from stream.kafka.port import Broker
from stream.reporting.tables import duration
from stream.telemetry.metrics import REPLAY

app = typer.Typer()


@app.command(
    name="replay",
    epilog=examples("onebit replay --data synsep --events 100000 --rate 500", "onebit replay --resume"),
)
@with_settings(Program.REPLAY)
def replay_command(
    settings: Settings,
    resume: Annotated[
        bool, typer.Option("--resume", rich_help_panel=Panel.DATA, help="Go on after the last event in the topic.")
    ] = False,
) -> None:
    """Write a data set's rows as contexts, at a pace. Ctrl-C or SIGTERM ends it; --resume goes on from there."""
    replay(settings, resume=resume)


def replay(settings: Settings, *, resume: bool) -> None:
    """Replay a data set to its end, or until asked to stop."""
    stop = StopRequest("what was sent is acknowledged")
    dataset = dataset_of(settings)
    topics = topics_of(settings)
    reached = 0
    timetable: Timetable | None = None

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        nonlocal reached, timetable
        watch = watch_topics(broker, settings, partitions)
        options = replay_options(settings.model_copy(update={"partitions": partitions}), dataset, start=reached)
        announce_start(Program.REPLAY, settings, partitions)
        if resume or reached:
            announce(f"looking for the last event in {topics.contexts}")
            options = replace(options, start=resume_position(broker, topics, dataset, options))
        events = options.events - options.start
        announce(f"{dataset.name}: {events:,} events from position {options.start:,}, {by_client(settings)}")
        program = ReplayProgram(broker, topics, dataset, options, monotonic_ms, timetable)
        timetable = program.timetable
        with run_progress("replay", options.events) as progress:
            try:
                while not program.finished and not stop():
                    watch()
                    sent = program.step(0)
                    reached = program.position
                    watched.show("", lambda: replay_samples(program, options.events))
                    if progress.due():
                        progress.show(program.position)
                    due_ms = program.next_due_ms()
                    if not sent and due_ms is not None:
                        time.sleep(max(due_ms - monotonic_ms(), 1) / 1_000)
            finally:
                program.close()
        announce(f"{program.position:,} of {options.events:,} events are in {topics.contexts}")
        if timetable.slip.events:
            warn(
                f"the schedule slipped: {timetable.slip.events:,} events were sent late, the latest "
                f"{duration(timetable.slip.worst_ms / 1_000)} after its time; a lower --rate or --speed can be kept"
            )

    keep_running(settings, REPLAY, stop, work)
