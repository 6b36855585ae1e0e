"""The learners: what each is for, and what it costs, as counted or measured."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from producers.datasets.base import Dataset, Known
from producers.datasets.catalogue import is_log, load
from producers.datasets.log import OnBadRow
from stream.app.plan import log_of
from stream.app.process import announce, every, warn
from stream.app.resolve import FLOPS_PER_S, ROWS_SAMPLED, SLOW_S, mean_nnz_of, nnz_of
from stream.learners import Cost, Learner, check_parameters, create, registered
from stream.learners.auto import Choice, choose, defaults_for
from stream.randomness.draws import Draws, Purpose
from stream.reporting.tables import duration
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


STATE_BYTES_MAX = 512_000_000
"""A larger state is not made only to measure with it."""

TOLD_EVERY_MS = 5_000
"""Interval of the notices of a measurement."""


class Size(NamedTuple):
    """The size that costs are for."""

    n_classes: int
    n_features: int
    nnz: int


class Row(NamedTuple):
    """One learner."""

    name: str
    cls: type[Learner]
    parameters: Mapping[str, float | int | str]  # as its costs are for
    cost: Cost
    event_us: float | None  # None: not measured
    unmeasured: str  # why it was not, where it should have been
    auto: str  # why auto takes it; nothing where it takes another


USUAL = Size(9, 400, 25)


class Survey(NamedTuple):
    """Learners, with their costs for a size."""

    rows: list[Row]
    size: Size
    choice: Choice  # of auto
    dataset: Dataset | None  # None: the costs are counted, and not measured


def data_of(
    data: str, mapping: str | None, on_bad_row: OnBadRow, reward_above: float | None, n_features: int | None
) -> Dataset:
    """The data set on which the costs are measured."""
    if mapping is not None or is_log(data):
        return log_of(data, mapping, on_bad_row, reward_above)
    return load(data, n_features)


def survey_learners(names: Sequence[str] = (), size: Size = USUAL, dataset: Dataset | None = None) -> Survey:
    """Survey learners.

    Args:
        names: only these; all if empty.
        size: what the costs are for, if there is no data set.
        dataset: on the first rows of which the costs are measured.

    Raises:
        ParameterError: a learner is unknown.
    """
    for name in names:
        check_parameters(name, {})
    for problem in registered().problems() if not names else ():
        warn(f"not listed: {problem}")
    if dataset is not None:
        size = Size(dataset.n_classes, dataset.n_features, nnz_of(dataset))
    mean_nnz = size.nnz if dataset is None else mean_nnz_of(dataset)
    choice = choose(size.n_classes, size.n_features, mean_nnz)
    return Survey(list(_rows(names or list(registered()), size, choice, dataset, mean_nnz)), size, choice, dataset)


def _rows(names: Sequence[str], size: Size, choice: Choice, dataset: Dataset | None, mean_nnz: float) -> Iterator[Row]:
    """What is told of each; measured where there are data."""
    events = [] if dataset is None else first_events(dataset)
    if dataset is not None:
        announce(f"measuring {len(names)} learners on {dataset.name}; what was never compiled takes seconds each")
    tell = every(TOLD_EVERY_MS, lambda: announce(f"{measured} of {len(names)} measured"))
    for measured, name in enumerate(names):
        if events and measured:
            tell()
        chosen = name == choice.learner
        of_data = choice.parameters if chosen else defaults_for(name, size.n_features, mean_nnz)
        parameters = check_parameters(name, of_data)
        cls = registered()[name]
        cost = cls.cost(size.n_classes, size.n_features, size.nnz, parameters)
        measured_us, unmeasured = _measured(name, size, parameters, cost, events) if events else (None, "")
        yield Row(name, cls, parameters, cost, measured_us, unmeasured, choice.why if chosen else "")


def _measured(
    name: str, size: Size, parameters: Mapping[str, Any], cost: Cost, events: list[Event]
) -> tuple[float | None, str]:
    """Microseconds per event, or why there are none."""
    estimate_s = cost.flops_per_event / FLOPS_PER_S
    if estimate_s > SLOW_S:
        return None, f"not measured: some {duration(estimate_s)} an event"
    if cost.state_bytes > STATE_BYTES_MAX:
        return None, f"not measured: a state of more than {STATE_BYTES_MAX / 1e6:,.0f} MB"
    if registered()[name].needs_label and any(event.known.label is None for event in events):
        return None, "not measured: the log does not say the true classes"
    learner = create(name, size.n_classes, size.n_features, **parameters)
    return event_us(learner, events), ""


def fields_of(row: Row) -> dict[str, Any]:
    """A learner as plain values."""
    name, cls, _, cost, measured_us, unmeasured, auto = row
    return {
        "name": name, "summary": cls.summary, "best_for": cls.best_for or None, "paper": cls.paper,
        "needs_label": cls.needs_label, "randomised_update": cls.randomised_update, "retractable": cls.retractable,
        "from_logs": cls.from_logs.name.lower(), "one_right_class": cls.one_right_class,
        "cost": cost._asdict(), "us_per_event": measured_us, "unmeasured": unmeasured or None, "auto": auto or None,
        "parameters": {
            p.name: {"default": p.default, "help": p.help, "accepted": p.accepted()} for p in cls.parameters
        },
    }  # fmt: skip
