"""The replay program on Kafka: writes the rows of a data set as contexts at a given rate."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from producers.data import dataset_of, uneven_warning
from producers.datasets.scaling import uneven_of
from producers.replay.options import replay_options
from producers.replay.program import ReplayProgram, Timetable, resume_position
from stream.kafka.port import Broker
from stream.programs.connection import announce_start, by_client, keep_running, watch_topics
from stream.programs.process import Meter, ShowProgress, announce, ignore, monotonic_ms, warn
from stream.programs.watching import Watched
from stream.reporting.tables import duration
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.telemetry import metrics
from stream.telemetry.metrics import REPLAY, Sample


def run_replay(
    settings: Settings, stop: Callable[[], bool], *, resume: bool = False, show: ShowProgress = ignore
) -> None:
    """Replay a data set to its end or until stopped. Reconnect after a lost connection.

    Args:
        settings: Settings for the data set and its replay.
        stop: Returns whether to stop.
        resume: Whether to continue after the last event in the topic.
        show: Called at intervals with the progress.

    Raises:
        SettingsError: a setting is invalid, or does not match the data.
    """
    dataset = dataset_of(settings)
    if uneven := uneven_warning(uneven_of(dataset)):
        warn(uneven)
    topics = settings.topics
    reached = 0
    timetable: Timetable | None = None

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        nonlocal reached, timetable
        watch = watch_topics(broker, settings, partitions)
        options = replay_options(settings, dataset, partitions, start=reached)
        announce_start(Program.REPLAY, settings, partitions)
        if resume or reached:
            announce(f"looking for the last event in {topics.contexts}")
            options = replace(options, start=resume_position(broker, topics, dataset, options))
        events = options.events - options.start
        announce(f"{dataset.name}: {events:,} events from position {options.start:,}, {by_client(settings)}")
        program = ReplayProgram(broker, topics, dataset, options, monotonic_ms, timetable)
        timetable = program.timetable
        meter = Meter("replay", options.events, show)
        try:
            while not program.finished and not stop():
                watch()
                sent = program.step(0)
                reached = program.position
                watched.show("", lambda: replay_samples(program, options.events))
                if meter.is_due():
                    meter.show(program.position)
                due_ms = program.next_due_ms()
                if not sent and due_ms is not None:
                    time.sleep(max(due_ms - monotonic_ms(), 1) / 1_000)
        finally:
            program.close()
        announce(f"{program.position:,} of {options.events:,} events are in {topics.contexts}")
        if timetable.slip.events:
            warn(
                f"replay too slow: {timetable.slip.events:,} events were sent late, by up to "
                f"{duration(timetable.slip.worst_ms / 1_000)}. Use a lower --rate or --speed"
            )

    keep_running(settings, REPLAY, stop, work)


def replay_samples(program: ReplayProgram, events: int) -> Iterator[Sample]:
    """Return the replay's metric samples."""
    slip = program.timetable.slip
    yield metrics.REPLAYED.at(program.position)
    yield metrics.REPLAY_EVENTS.at(events)
    yield metrics.SLIPPED.at(slip.events)
    yield metrics.SLIP_WORST.at(slip.worst_ms / 1_000)
