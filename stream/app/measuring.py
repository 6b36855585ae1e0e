"""How long a learner's events take, measured on the first rows of a data set."""

import time
from collections.abc import Callable
from typing import NamedTuple

from producers.datasets.base import Dataset, Known
from stream.app.cost import ROWS_SAMPLED
from stream.learners import Learner
from stream.randomness.draws import Draws, Purpose
from stream.wire.events import Features

PART_S = 0.01
"""A part of a measurement lasts so long: a thousand events of a fast learner, and one of a slow one."""

PARTS = 4
"""The fastest part counts: what else a machine does at the time makes the others slower, and never faster."""

SEED = 1


class Event(NamedTuple):
    """The features of a row, what is known of its outcome, and the uniforms that belong to its event."""

    x: Features
    known: Known
    u: float
    v: float


def first_events(dataset: Dataset) -> list[Event]:
    """The first rows of a data set, as events."""
    action, update = Draws(SEED, Purpose.ACTION), Draws(SEED, Purpose.UPDATE)
    ids = [dataset.event_id(row) for row in range(min(dataset.rows, ROWS_SAMPLED))]
    return [Event(dataset.row(row).x, dataset.known_of(one), action(one), update(one)) for row, one in enumerate(ids)]


def event_us(learner: Learner, events: list[Event], clock: Callable[[], float] = time.process_time) -> float:
    """Microseconds of one event: predict, observe and update, called from Python.

    Args:
        learner: learns from the events, so it is of no use afterwards.
        events: are repeated as often as it takes.
        clock: in seconds; CPU time, so that other programs count little.
    """
    _learn(learner, events, 0, 1)  # compiles, which takes seconds the first time
    done, size = 1, 1
    while (spent_s := _part_s(learner, events, done, size, clock)) < PART_S:
        done, size = done + size, 2 * size
    for _ in range(PARTS - 1):
        done += size
        spent_s = min(spent_s, _part_s(learner, events, done, size, clock))
    return 1e6 * spent_s / size


def _part_s(learner: Learner, events: list[Event], start: int, size: int, clock: Callable[[], float]) -> float:
    begun = clock()
    _learn(learner, events, start, size)
    return clock() - begun


def _learn(learner: Learner, events: list[Event], start: int, size: int) -> None:
    for number in range(start, start + size):
        x, known, u, v = events[number % len(events)]
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        learner.update(x, decision, known.bit(decision.action) or 0, v, known.label)
