"""The replay program on Kafka: writes the rows of a data set as contexts at a given rate."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from producers.data import dataset_of, uneven_warning
from producers.datasets.base import Dataset
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
    keep_running(settings, REPLAY, stop, _ReplayLoop(settings, dataset, stop, show, resume=resume).run)


class _ReplayLoop:
    """A replay's main loop. The position and the timetable are kept across reconnects."""

    def __init__(
        self, settings: Settings, dataset: Dataset, stop: Callable[[], bool], show: ShowProgress, *, resume: bool
    ) -> None:
        self._settings, self._dataset, self._stop, self._show = settings, dataset, stop, show
        self._resume = resume
        self._position = 0
        self._timetable: Timetable | None = None

    def run(self, broker: Broker, partitions: int, watched: Watched) -> None:
        """Replay on one connection; see `Work`."""
        settings, dataset, contexts = self._settings, self._dataset, self._settings.topics.contexts
        watch = watch_topics(broker, settings, partitions)
        options = replay_options(settings, dataset, partitions, start=self._position)
        announce_start(Program.REPLAY, settings, partitions)
        if self._resume or self._position:
            announce(f"looking for the last event in {contexts}")
            options = replace(options, start=resume_position(broker, settings.topics, dataset, options))
        events = options.events - options.start
        announce(f"{dataset.name}: {events:,} events from position {options.start:,}, {by_client(settings)}")
        program = ReplayProgram(broker, settings.topics, dataset, options, monotonic_ms, self._timetable)
        self._timetable = program.timetable
        try:
            self._work(program, options.events, watch, watched)
        finally:
            program.close()
        announce(f"{program.position:,} of {options.events:,} events are in {contexts}")
        if (slip := program.timetable.slip).events:
            warn(
                f"replay too slow: {slip.events:,} events were sent late, by up to {duration(slip.worst_ms / 1_000)}. "
                "Use a lower --rate or --speed"
            )

    def _work(self, program: ReplayProgram, events: int, watch: Callable[[], None], watched: Watched) -> None:
        """Send events until all are sent or the program is stopped."""
        meter = Meter("replay", events, self._show, decided=program.position)
        while not program.finished and not self._stop():
            watch()
            sent = program.step(0)
            self._position = program.position
            watched.show("", lambda: replay_samples(program, events))
            if meter.is_due():
                meter.show(program.position)
            due_ms = program.next_due_ms()
            if not sent and due_ms is not None:
                time.sleep(max(due_ms - monotonic_ms(), 1) / 1_000)


def replay_samples(program: ReplayProgram, events: int) -> Iterator[Sample]:
    """Return the replay's metric samples."""
    slip = program.timetable.slip
    yield metrics.REPLAYED.at(program.position)
    yield metrics.REPLAY_EVENTS.at(events)
    yield metrics.SLIPPED.at(slip.events)
    yield metrics.SLIP_WORST.at(slip.worst_ms / 1_000)
