"""`onebit feedback`: the simulated environment on its own, against Kafka."""

from functools import partial

import typer

from producers.feedback import FeedbackOptions, FeedbackProgram
from stream.cli.banner import announce_start
from stream.cli.collecting import collect_seldom, leave_out_what_stays
from stream.cli.composition import dataset_of, feedback_plan, feedback_speed, topics_of
from stream.cli.connection import by_client, keep_running, watch_topics
from stream.cli.console import Status, StopRequest, announce, every, examples, monotonic_ms
from stream.cli.flags import with_settings
from stream.cli.program_metrics import feedback_samples
from stream.cli.settings import Program, Settings
from stream.cli.watching import Watched
from stream.kafka.clocks import EstimatedClock
from stream.kafka.port import Broker
from stream.telemetry.metrics import FEEDBACK

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

app = typer.Typer()


@app.command(epilog=examples("onebit feedback --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01"))
@with_settings(Program.FEEDBACK)
def feedback(settings: Settings) -> None:
    """Answer predictions with right or wrong, late. It knows the labels of the data set by event id.

    Ctrl-C or SIGTERM ends it; feedback that is still due is sent when it is started again.
    """
    stop = StopRequest("what was sent is acknowledged")
    dataset = dataset_of(settings)
    topics = topics_of(settings)
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
            broker, topics, dataset.known_of, plan, options, clock.now_ms, heard=clock.heard, announce=announce
        )
        announce(f"feedback on {topics.predictions}: delay {settings.delay}, {by_client(settings)}; Ctrl-C stops it")
        said = Status()
        show = every(STATUS_INTERVAL_MS, lambda: said.show([f"{sent:,} sent, {program.waiting:,} waiting"]))
        collect_seldom()
        try:
            while not stop():
                watch()
                if sent_now := program.step(_until(program.next_due_ms(), clock.now_ms())):
                    sent += sent_now
                    leave_out_what_stays()
                show()
                unready = "" if program.assigned else "no partition is assigned to it"
                watched.show(unready, partial(feedback_samples, program, sent))
        finally:
            program.close()

    keep_running(settings, FEEDBACK, stop, work)


def _until(due_ms: int | None, now_ms: int) -> int:
    """How long a poll may wait so that what is due is not late."""
    return POLL_MS if due_ms is None else min(max(due_ms - now_ms, 1), POLL_MS)
