"""The feedback program on Kafka: a simulated environment that sends delayed feedback for predictions."""

from collections.abc import Callable, Iterator
from functools import partial

from producers.data import check_rewards, dataset_of
from producers.datasets.base import Dataset
from producers.feedback.plan import feedback_plan, feedback_speed
from producers.feedback.program import FeedbackOptions, FeedbackProgram
from stream.kafka.clocks import EstimatedClock
from stream.kafka.port import Broker
from stream.programs.connection import announce_start, by_client, keep_running, watch_topics
from stream.programs.process import Status, announce, every, freeze_gc, monotonic_ms, tune_gc
from stream.programs.watching import Watched
from stream.randomness.delays import FeedbackPlan
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.telemetry import metrics
from stream.telemetry.metrics import FEEDBACK, Sample

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000


def run_feedback(settings: Settings, stop: Callable[[], bool]) -> None:
    """Send feedback for predictions until stopped. Reconnect after a lost connection.

    Args:
        settings: Settings for the data set and the feedback.
        stop: Returns whether to stop.

    Raises:
        SettingsError: a setting is invalid, or does not match the data.
    """
    dataset = dataset_of(settings)
    check_rewards(settings, dataset)
    loop = _FeedbackLoop(settings, dataset, feedback_plan(settings, dataset), stop)
    keep_running(settings, FEEDBACK, stop, loop.run)


class _FeedbackLoop:
    """The feedback program's main loop. The number of records sent is kept across reconnects."""

    def __init__(self, settings: Settings, dataset: Dataset, plan: FeedbackPlan, stop: Callable[[], bool]) -> None:
        self._settings, self._dataset, self._plan, self._stop = settings, dataset, plan, stop
        self._sent = 0

    def run(self, broker: Broker, partitions: int, watched: Watched) -> None:
        """Send feedback on one connection; see `Work`."""
        settings, clock = self._settings, EstimatedClock(monotonic_ms)
        watch = watch_topics(broker, settings, partitions)
        announce_start(Program.FEEDBACK, settings, partitions)
        options = FeedbackOptions(
            group=f"{settings.topic_prefix}feedback",
            instance=f"feedback-{settings.instance}",
            with_label=settings.with_label,
            speed=feedback_speed(settings),
            rule=settings.feedback,
        )
        program = FeedbackProgram(
            broker, settings.topics, self._dataset.known_of, self._plan, options, clock.now_ms,
            on_append_time=clock.observe, announce=announce,
        )  # fmt: skip
        announce(
            f"feedback on {settings.topics.predictions}: delay {settings.delay}, {by_client(settings)}; press Ctrl-C "
            "to stop"
        )
        tune_gc()
        try:
            self._work(program, clock, watch, watched)
        finally:
            program.close()

    def _work(
        self, program: FeedbackProgram, clock: EstimatedClock, watch: Callable[[], None], watched: Watched
    ) -> None:
        """Send feedback until stopped."""
        status = Status()
        show = every(STATUS_INTERVAL_MS, lambda: status.show([f"{self._sent:,} sent, {program.waiting:,} waiting"]))
        while not self._stop():
            watch()
            if sent := program.step(_until(program.next_due_ms(), clock.now_ms())):
                self._sent += sent
                freeze_gc()
            show()
            unready = "" if program.assigned else "no partition assigned"
            watched.show(unready, partial(feedback_samples, program, self._sent))


def _until(due_ms: int | None, now_ms: int) -> int:
    """Return the poll timeout in milliseconds: POLL_MS, or less if feedback is due sooner."""
    return POLL_MS if due_ms is None else min(max(due_ms - now_ms, 1), POLL_MS)


def feedback_samples(program: FeedbackProgram, sent: int) -> Iterator[Sample]:
    """Return the feedback program's metric samples."""
    yield metrics.FEEDBACK_SENT.at(sent)
    yield metrics.FEEDBACK_WAITING.at(program.waiting)
