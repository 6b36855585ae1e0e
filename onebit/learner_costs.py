"""The table of learners: uses, parameters, and cost per event, either counted or measured."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from producers.data import ROWS_SAMPLED, mean_nnz_of, nnz_of
from producers.datasets.base import Dataset, Known
from stream.learners import Cost, Learner, check_parameters, create, registered, sparse_defaults
from stream.learners.auto import Choice, choose, choose_for_actions
from stream.programs.costs import FLOPS_PER_S, SLOW_S
from stream.programs.process import announce, every, warn
from stream.randomness.draws import Draws, Purpose
from stream.reporting.tables import duration
from stream.wire.actions import CONTEXT, ActionBlocks
from stream.wire.records import Features

PART_S = 0.01
"""Minimum duration of one part of a measurement, long enough for a thousand events of a fast learner, or for one event
of a slow learner."""

PARTS = 4
"""Number of parts per measurement. The result is the fastest part's time, because other programs on the machine
can only slow a part down."""

SEED = 1


class SampleEvent(NamedTuple):
    """A row's features and known outcome, and the uniform draws for its event."""

    x: Features
    known: Known
    u: float
    v: float


def first_events(dataset: Dataset) -> list[SampleEvent]:
    """Return the first rows of a data set as events."""
    action, update = Draws(SEED, Purpose.ACTION), Draws(SEED, Purpose.UPDATE)
    ids = [dataset.event_id(row) for row in range(min(dataset.rows, ROWS_SAMPLED))]
    return [
        SampleEvent(dataset.row(row).x, dataset.known_of(one), action(one), update(one)) for row, one in enumerate(ids)
    ]


def event_us(learner: Learner, events: list[SampleEvent], clock: Callable[[], float] = time.process_time) -> float:
    """Return the time per event, in microseconds, that predict, observe and update take when called from Python.

    Args:
        learner: The learner to measure. It learns from the events, so do not use the learner afterwards.
        events: The events, repeated as often as necessary.
        clock: Returns a time in seconds. The default is CPU time, which reduces the influence of other programs.
    """
    _learn(learner, events, 0, 1)  # compiles the kernels, which can take several seconds
    done, size = 1, 1
    while (spent_s := _part_s(learner, events, done, size, clock)) < PART_S:
        done, size = done + size, 2 * size
    for _ in range(PARTS - 1):
        done += size
        spent_s = min(spent_s, _part_s(learner, events, done, size, clock))
    return 1e6 * spent_s / size


def _part_s(learner: Learner, events: list[SampleEvent], start: int, size: int, clock: Callable[[], float]) -> float:
    started_s = clock()
    _learn(learner, events, start, size)
    return clock() - started_s


def _learn(learner: Learner, events: list[SampleEvent], start: int, size: int) -> None:
    for number in range(start, start + size):
        x, known, u, v = events[number % len(events)]
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        learner.update(x, decision, int(known.reward_of(decision.action) == 1), v, known.label)


STATE_BYTES_MAX = 512_000_000
"""Learners with a state larger than this are not measured."""

NOTICE_INTERVAL_MS = 5_000
"""Interval between progress notices."""


class Size(NamedTuple):
    """The problem size to which the costs apply."""

    n_classes: int
    n_features: int
    nnz: int


class LearnerRow(NamedTuple):
    """A learner with its costs."""

    name: str
    cls: type[Learner]
    parameters: Mapping[str, float | int | str]  # parameters for which the costs were determined
    cost: Cost
    event_us: float | None  # None if not measured
    unmeasured: str  # why the learner was not measured
    auto: str  # why auto chooses this learner; empty for all others

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain values."""
        cls = self.cls
        return {
            "name": self.name, "summary": cls.summary, "best_for": cls.best_for or None, "paper": cls.paper,
            "needs_label": cls.needs_label, "randomised_update": cls.randomised_update,
            "retractable": cls.retractable, "from_logs": cls.from_logs.name.lower(),
            "one_right_class": cls.one_right_class, "learns_values": cls.learns_values,
            "supports_eligible": cls.supports_eligible, "for_actions": cls.for_actions,
            "cost": self.cost._asdict(), "us_per_event": self.event_us, "unmeasured": self.unmeasured or None,
            "auto": self.auto or None,
            "parameters": {
                p.name: {"default": p.default, "help": p.help, "accepted": p.accepted()} for p in cls.parameters
            },
        }  # fmt: skip


USUAL = Size(9, 400, 25)


class LearnerSurvey(NamedTuple):
    """The learners and their costs for a problem size."""

    rows: list[LearnerRow]
    size: Size
    choice: Choice  # the learner that auto chooses
    dataset: Dataset | None  # None if costs are counted instead of measured


def survey_learners(names: Sequence[str] = (), size: Size = USUAL, dataset: Dataset | None = None) -> LearnerSurvey:
    """Return the learners' uses, parameters and costs.

    Args:
        names: Names of learners; all if empty.
        size: Problem size to which the costs apply if there is no data set.
        dataset: Data set whose first rows are used for measurements.

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
    if dataset is None or dataset.blocks is None:
        choice = choose(size.n_classes, size.n_features, mean_nnz)
    else:
        choice = choose_for_actions(dataset.blocks, mean_nnz)
    return LearnerSurvey(
        list(_rows(names or list(registered()), size, choice, dataset, mean_nnz)), size, choice, dataset
    )


def _rows(
    names: Sequence[str], size: Size, choice: Choice, dataset: Dataset | None, mean_nnz: float
) -> Iterator[LearnerRow]:
    """Return a row for each learner, with measured costs if there is a data set."""
    events = [] if dataset is None else first_events(dataset)
    if dataset is not None:
        announce(f"auto selects {choice.learner}: {choice.why}")
        announce(f"measuring {len(names)} learners on {dataset.name}; compiling a learner may take several seconds")
    notify = every(NOTICE_INTERVAL_MS, lambda: announce(f"{measured} of {len(names)} measured"))
    for measured, name in enumerate(names):
        if events and measured:
            notify()
        chosen = name == choice.learner
        of_data = choice.parameters if chosen else sparse_defaults(name, size.n_features, mean_nnz)
        cls, own = registered()[name], size
        blocks = None if dataset is None else dataset.blocks
        if cls.for_actions:
            layout = blocks or _layout_of(size)
            of_data = {CONTEXT: layout.context}
            own = size._replace(n_features=layout.n_features)
        parameters = check_parameters(name, of_data)
        cost = cls.cost(own.n_classes, own.n_features, own.nnz, parameters)
        measured_us, unmeasured = None, ""
        if events and cls.for_actions is not (blocks is not None):
            unmeasured = f"not measured: the data have {'classes' if blocks is None else 'actions'}"
        elif events:
            measured_us, unmeasured = _measured(name, own, parameters, cost, events)
        yield LearnerRow(name, cls, parameters, cost, measured_us, unmeasured, choice.why if chosen else "")


def _layout_of(size: Size) -> ActionBlocks:
    """Return a layout with about `n_features` features, as many in the context as in each action."""
    each = max(1, (size.n_features - size.n_classes) // (size.n_classes + 1))
    return ActionBlocks(size.n_classes, each, each)


def _measured(
    name: str, size: Size, parameters: Mapping[str, Any], cost: Cost, events: list[SampleEvent]
) -> tuple[float | None, str]:
    """Return the time per event in microseconds, or the reason why the learner was not measured."""
    estimate_s = cost.flops_per_event / FLOPS_PER_S
    if estimate_s > SLOW_S:
        return None, f"not measured: about {duration(estimate_s)} per event"
    if cost.state_bytes > STATE_BYTES_MAX:
        return None, f"not measured: state larger than {STATE_BYTES_MAX / 1e6:,.0f} MB"
    if registered()[name].needs_label and any(event.known.label is None for event in events):
        return None, "not measured: the log has no true classes"
    learner = create(name, size.n_classes, size.n_features, **parameters)
    with registered().blamed(name):
        return event_us(learner, events), ""
