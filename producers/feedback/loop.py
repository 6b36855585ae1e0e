"""The feedback program on Kafka: a simulated environment that sends delayed feedback for predictions."""

from collections.abc import Callable, Iterator
from functools import partial

from producers.data import dataset_of
from producers.feedback.plan import feedback_plan, feedback_speed
from producers.feedback.program import FeedbackOptions, FeedbackProgram
from stream.kafka.clocks import EstimatedClock
from stream.kafka.port import Broker
from stream.programs.connection import announce_start, by_client, keep_running, watch_topics
from stream.programs.process import Status, announce, every, freeze_gc, monotonic_ms, tune_gc
from stream.programs.watching import Watched
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
    topics = settings.topics
    plan = feedback_plan(settings, dataset)
    sent = 0

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        nonlocal sent
        watch = watch_topics(broker, settings, partitions)
        announce_start(Program.FEEDBACK, settings, partitions)
        clock = EstimatedClock(monotonic_ms)
        options = FeedbackOptions(
            group=f"{settings.topic_prefix}feedback",
            instance=f"feedback-{settings.instance}",
            with_label=settings.with_label,
            speed=feedback_speed(settings),
        )
        program = FeedbackProgram(
            broker,
            topics,
            dataset.known_of,
            plan,
            options,
            clock.now_ms,
            on_append_time=clock.observe,
            announce=announce,
        )
        announce(
            f"feedback on {topics.predictions}: delay {settings.delay}, {by_client(settings)}; press Ctrl-C to stop"
        )
        status = Status()
        show = every(STATUS_INTERVAL_MS, lambda: status.show([f"{sent:,} sent, {program.waiting:,} waiting"]))
        tune_gc()
        try:
            while not stop():
                watch()
                if sent_now := program.step(_until(program.next_due_ms(), clock.now_ms())):
                    sent += sent_now
                    freeze_gc()
                show()
                unready = "" if program.assigned else "no partition assigned"
                watched.show(unready, partial(feedback_samples, program, sent))
        finally:
            program.close()

    keep_running(settings, FEEDBACK, stop, work)


def _until(due_ms: int | None, now_ms: int) -> int:
    """Return the poll timeout in milliseconds: POLL_MS, or less if feedback is due sooner."""
    return POLL_MS if due_ms is None else min(max(due_ms - now_ms, 1), POLL_MS)


def feedback_samples(program: FeedbackProgram, sent: int) -> Iterator[Sample]:
    """Return the feedback program's metric samples."""
    yield metrics.FEEDBACK_SENT.at(sent)
    yield metrics.FEEDBACK_WAITING.at(program.waiting)
