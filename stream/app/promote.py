"""Promote a challenger: by name, or the first one that is surely better than the champion."""

import time
from collections.abc import Callable
from typing import NamedTuple

from stream.app.connection import Connected, connected
from stream.app.live_estimates import TopicEstimates, contest_estimator, contest_lines
from stream.app.process import announce, every
from stream.app.settings import Settings, SettingsError
from stream.errors import ExitCode, StoppedError
from stream.journal.format import task_settings
from stream.journal.reading import pipeline_settings
from stream.kafka.port import Broker
from stream.wire.codec import promotion_headers
from stream.wire.topics import Topics

READ_S = 5.0
"""Interval between readings of the topics."""

STATUS_INTERVAL_MS = 60_000


class Promoted(NamedTuple):
    """A promotion that was written."""

    learner: str
    partitions: int


def promote(settings: Settings, name: str | None, stop: Callable[[], bool] = lambda: False) -> Promoted:
    """Write a promotion to each partition of the feedback topic. The learners apply it with their next steps.

    Args:
        settings: Settings of the connection.
        name: The champion's or a challenger's name; None to wait until a challenger is better than the champion. It is
            better once the interval of the difference is above 0, from the first decision in the topics on.
        stop: Returns whether to stop waiting.

    Raises:
        SettingsError: the pipeline has no such learner, or no challengers.
        StoppedError: the program was stopped while waiting.
    """
    with connected(settings) as connection:
        broker, topics, partitions = connection
        begun = pipeline_settings(broker, topics, partitions)
        members = task_settings(begun).members if "seed" in begun else ()
        if not members:
            raise SettingsError(f"{topics.journal}: no running pipeline with challengers; start one with --challenger")
        if name is not None and name not in members:
            raise SettingsError(f"{name}: expected one of the pipeline's learners {', '.join(members)}")
        chosen = _first_better(connection, stop) if name is None else name
        write_promotion(broker, topics, partitions, chosen)
    return Promoted(chosen, partitions)


def write_promotion(broker: Broker, topics: Topics, partitions: int, name: str) -> None:
    """Write a promotion to each partition of the feedback topic."""
    producer = broker.producer()
    for partition in range(partitions):
        producer.send(topics.feedback, partition, None, None, promotion_headers(name))
    producer.close()


def _first_better(connection: Connected, stop: Callable[[], bool]) -> str:
    """Read the topics until a challenger is better than the champion, and return its name."""
    estimator = contest_estimator()
    reading = TopicEstimates(*connection, estimator)

    def show() -> None:
        for line in contest_lines(found):
            announce(line)

    show_sometimes = every(STATUS_INTERVAL_MS, show)
    while not stop():
        reading.read()
        found = estimator.now()
        if found.better is not None:
            show()
            return found.better
        show_sometimes()
        time.sleep(READ_S)
    stopped = StoppedError("stopped before a challenger was better than the champion")
    stopped.exit_code = ExitCode.INTERRUPTED
    raise stopped
