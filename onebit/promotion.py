"""Promote a challenger by name, or the first challenger whose estimated reward exceeds the champion's."""

import time
from collections.abc import Callable
from typing import NamedTuple

from consumers.live_estimates import TopicReader, challenger_estimator
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.programs.connection import Connected, connected
from stream.programs.process import announce, every
from stream.recovery.recover import pipeline_settings
from stream.reporting.live_results import challenger_lines
from stream.settings.definitions import Settings, SettingsError
from stream.task.stored_settings import restored_settings
from stream.wire.codec import decode_prediction_fields, promotion_headers, step_of
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

READ_INTERVAL_S = 5.0
"""Interval between reads of the topics."""

STATUS_INTERVAL_MS = 60_000

NEWEST_OFFSETS = 100
"""Number of offsets in which to look for a partition's newest prediction. The others are transaction markers."""


class PromotionStoppedError(OnebitError):
    """The command was stopped before a challenger was promoted."""

    exit_code = ExitCode.INTERRUPTED


class Promoted(NamedTuple):
    """A promotion that was written."""

    learner: str
    partitions: int
    was_champion: bool  # whether this learner made the newest decision in every partition


def promote(settings: Settings, name: str | None, stop: Callable[[], bool] = lambda: False) -> Promoted:
    """Write a promotion to each partition of the feedback topic. Each learner applies the promotion in its next step.

    Args:
        settings: Connection settings.
        name: The champion's or a challenger's name. If None, wait until the confidence interval for a challenger's
            reward minus the champion's reward is above 0. The estimates use all of the current champion's decisions in
            the topics.
        stop: Returns whether to stop waiting.

    Raises:
        SettingsError: the pipeline has no such learner, or no challengers.
        PromotionStoppedError: the command was stopped while waiting.
    """
    with connected(settings) as connection:
        members = _members(connection, stop, waits=name is None)
        if name is not None and name not in members:
            raise SettingsError(f"{name}: expected one of the pipeline's learners {', '.join(members)}")
        chosen = _first_better(connection, stop) if name is None else name
        was_champion = _champions(connection) == {chosen}
        write_promotion(*connection, chosen)
    return Promoted(chosen, connection.partitions, was_champion)


def _champions(connection: Connected) -> set[str | None]:
    """Return the learners that made the newest decision in each partition; None for a partition without one."""
    broker, topics, partitions = connection
    tps = [TopicPartition(topics.predictions, partition) for partition in range(partitions)]
    beginnings, ends = broker.beginnings(tps), broker.ends(tps)
    found: set[str | None] = set()
    for tp in tps:
        start = max(beginnings[tp], ends[tp].stable - NEWEST_OFFSETS)
        written = filter(step_of, read_partition(broker, tp, start=start))
        challenged = [decode_prediction_fields(record).challenged for record in written]
        found.add(challenged[-1].champion if challenged and challenged[-1] is not None else None)
    return found


def write_promotion(broker: Broker, topics: Topics, partitions: int, name: str) -> None:
    """Write a promotion to each partition of the feedback topic."""
    producer = broker.producer()
    for partition in range(partitions):
        producer.send(topics.feedback, partition, None, None, promotion_headers(name))
    producer.close()


def _members(connection: Connected, stop: Callable[[], bool], *, waits: bool) -> tuple[str, ...]:
    """Return the names of the champion and the challengers. If `waits` is True, wait for the pipeline's first step."""
    broker, topics, partitions = connection
    is_announced = False
    while "seed" not in (stored := pipeline_settings(broker, topics, partitions)):  # none before the first step
        if not waits:
            raise SettingsError(f"{topics.journal}: expected a pipeline that has made a decision; found no decisions")
        if stop():
            raise PromotionStoppedError("stopped before the first decision")
        if not is_announced:
            announce(f"waiting for the first decision: {topics.journal} has no step yet")
            is_announced = True
        time.sleep(READ_INTERVAL_S)
    members = restored_settings(stored).members
    if not members:
        raise SettingsError(f"{topics.journal}: expected a pipeline with challengers; start one with --challenger")
    return members


def _first_better(connection: Connected, stop: Callable[[], bool]) -> str:
    """Read the topics until a challenger is better than the champion and return the challenger's name."""
    estimator = challenger_estimator()
    reader = TopicReader(*connection, estimator)

    def show() -> None:
        for line in challenger_lines(estimator.now()):
            announce(line)

    show_if_due = every(STATUS_INTERVAL_MS, show)
    while not stop():
        reader.read()
        if (better := estimator.now().better) is not None:
            show()
            return better
        show_if_due()
        time.sleep(READ_INTERVAL_S)
    raise PromotionStoppedError("stopped before a challenger was better than the champion")
