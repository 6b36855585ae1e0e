"""Streams: rows from a data set, in order, with draws, delays, noise and changes that depend only on a seed.

Draws for different purposes are independent. A seed therefore gives the same order and draws regardless of the delay,
noise and change.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.experiments.definition import Conditions
from onebit.experiments.sets import Loaded
from stream.offline import NEVER, Examples
from stream.randomness.delays import parse_delay
from stream.wire.records import FloatArray

_PURPOSES = ("order", "action", "update", "delay", "loss", "noise", "change", "partition", "split", "tested")

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return a random generator for a seed and a purpose."""
    return np.random.default_rng([seed, _PURPOSES.index(purpose)])


class Stream(NamedTuple):
    """Events in order, with all their random draws."""

    examples: Examples  # events with the labels used for training
    truth: Labels  # int64[n], the labels used for evaluation
    u: FloatArray  # float64[n]
    v: FloatArray  # float64[n]
    delays: Labels  # int64[n], the delay of each bit in decisions, or NEVER


def stream_of(data: Loaded, seed: int, events: int | None, epochs: int, conditions: Conditions) -> Stream:
    """Return the stream for a seed, with at most `events` events. Each epoch contains the rows in random order.

    Generated rows keep their order, which already depends on the seed.
    """
    order = _order(data, seed, epochs)[:events]
    change = generator(seed, "change")
    if conditions.change == "come-and-go":
        order = come_and_go(order, data.examples.labels[order], data.n_classes, change)
    examples = in_order(data.examples, order)
    if conditions.change == "rename":
        examples = examples._replace(labels=renamed(examples.labels, data.n_classes, change))
    truth = examples.labels
    size = truth.size
    if conditions.noise > 0.0:
        examples = examples._replace(labels=noisy(truth, data.n_classes, conditions.noise, generator(seed, "noise")))
    return Stream(
        examples,
        truth,
        generator(seed, "action").random(size),
        generator(seed, "update").random(size),
        delays_of(truth, seed, conditions),
    )


def _order(data: Loaded, seed: int, epochs: int) -> Indices:
    rows = data.examples.labels.size
    if data.is_generated:
        return np.tile(np.arange(rows), epochs)
    rng = generator(seed, "order")
    return np.concatenate([rng.permutation(rows) for _ in range(epochs)])


def in_order(examples: Examples, order: Indices) -> Examples:
    """Return the rows in the given order, which may omit or repeat rows."""
    if order.size == examples.labels.size and np.array_equal(order, np.arange(order.size)):
        return examples
    sizes = np.diff(examples.offsets)[order]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    places = np.repeat(examples.offsets[order] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Examples(offsets, examples.indices[places], examples.values[places], examples.labels[order])


def noisy(labels: Labels, n_classes: int, share: float, rng: np.random.Generator) -> Labels:
    """Replace a fraction of the labels with uniformly drawn classes, which may equal the original labels."""
    replaced = rng.random(labels.size) < share
    return np.where(replaced, rng.integers(0, n_classes, labels.size), labels)


def renamed(labels: Labels, n_classes: int, rng: np.random.Generator) -> Labels:
    """Rename the labels in the second half with a random cyclic permutation of the classes."""
    circle = rng.permutation(n_classes)
    names = np.empty(n_classes, dtype=np.int64)
    names[circle] = np.roll(circle, 1)
    half = labels.size // 2
    return np.concatenate((labels[:half], names[labels[half:]]))


def come_and_go(order: Indices, labels: Labels, n_classes: int, rng: np.random.Generator) -> Indices:
    """Reorder the rows so that a third of the classes occur only in the first half, and a third only in the second.

    Rows in the wrong half are swapped in pairs, one from each half. Rows that remain in the wrong half are omitted.
    """
    classes = rng.permutation(n_classes)
    third = n_classes // 3
    kind = np.zeros(n_classes, dtype=np.int64)
    kind[classes[:third]], kind[classes[third : 2 * third]] = -1, 1  # -1: only in the first half; 1: only in the second
    half = labels.size // 2
    side = np.where(np.arange(labels.size) < half, -1, 1)
    of_rows = kind[labels]
    early, late = np.flatnonzero((of_rows == -1) & (side == 1)), np.flatnonzero((of_rows == 1) & (side == -1))
    swaps = min(early.size, late.size)
    order = order.copy()
    order[early[:swaps]], order[late[:swaps]] = order[late[:swaps]], order[early[:swaps]]
    keep = np.ones(labels.size, dtype=np.bool_)
    keep[early[swaps:]] = keep[late[swaps:]] = False
    return order[keep]


def delays_of(labels: Labels, seed: int, conditions: Conditions) -> Labels:
    """Return each bit's delay in decisions, or NEVER for a lost bit."""
    delay, size = conditions.delay, labels.size
    if isinstance(delay, int):
        delays = np.full(size, delay, dtype=np.int64)
    else:
        model = parse_delay(delay)
        draws = generator(seed, "delay").random(size)
        pairs = zip(labels.tolist(), draws.tolist(), strict=True)
        delays = np.fromiter((model.draw_ms(label, u) for label, u in pairs), np.int64, size)
    if conditions.loss > 0.0:
        delays[generator(seed, "loss").random(size) < conditions.loss] = NEVER
    return delays


def part_of(stream: Stream, events: Indices) -> Stream:
    """Return a stream that consists of some of the events.

    A bit arrives with the same event as in the original stream or, if that event is omitted, with the last selected
    event before it.
    """
    due = events + stream.delays[events]
    delays = np.searchsorted(events, due, side="right") - 1 - np.arange(events.size)
    return _taken(stream, events, np.where(stream.delays[events] == NEVER, NEVER, delays))


def life_of(stream: Stream, events: Indices) -> Stream:
    """Return a stream of consecutive events that ends when the state is lost. Bits due later are never delivered."""
    delays = stream.delays[events]
    return _taken(stream, events, np.where(events + delays > events[-1], NEVER, delays))


def _taken(stream: Stream, events: Indices, delays: Labels) -> Stream:
    examples = in_order(stream.examples, events)
    return Stream(examples, stream.truth[events], stream.u[events], stream.v[events], delays)


def partitions_of(size: int, partitions: int, seed: int) -> Indices:
    """Return each event's partition, drawn uniformly at random, as if the events' keys were hashed."""
    return generator(seed, "partition").integers(0, partitions, size)


def lives(size: int, forget_every: int) -> list[Indices]:
    """Return the groups of events between consecutive losses of the state."""
    return [np.arange(start, min(start + forget_every, size)) for start in range(0, size, forget_every)]


def split(size: int, seed: int, fold: int, folds: int) -> tuple[Indices, Indices]:
    """Return the training rows and the test rows for a fold."""
    order = generator(seed, "split").permutation(size)
    tested = np.zeros(size, dtype=np.bool_)
    tested[order[fold::folds]] = True
    return np.flatnonzero(~tested), np.flatnonzero(tested)
