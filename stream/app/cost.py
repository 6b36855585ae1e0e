"""How long a learner's events take on a machine like this one, before the first has been applied."""

from producers.datasets.base import Dataset
from stream.learners import registered
from stream.reporting.tables import duration
from stream.task.settings import TaskSettings

FLOPS_PER_S = 2e9
"""Of one core in a compiled kernel. Factorisations of 3,600 x 3,600 do 1.8 to 3.2e9; it tells minutes from hours."""

SLOW_S = 0.1
"""From so much an event on people are told."""

STEP_S = 0.5
"""A step of a slow learner takes as many records as take about so long: progress is shown, and the group is polled."""

ROWS_SAMPLED = 1_000


def event_s(task: TaskSettings, nnz: int) -> float:
    """About how long one decision with its update takes.

    >>> from stream.learners import check_parameters
    >>> task = TaskSettings("newtron", 9, 400, check_parameters("newtron", {}))
    >>> 10 < event_s(task, 25) < 40
    True
    """
    cost = registered()[task.learner].cost(task.n_classes, task.n_features, nnz, task.parameters)
    return cost.flops_per_event / FLOPS_PER_S


PIPELINE_S = 1e-4
"""What the rest of an embedded run takes for an event: topics, join, ledger; as learners that cost little show."""


def run_s(task: TaskSettings, nnz: int, events: int) -> float:
    """About how long an embedded run takes."""
    return events * (PIPELINE_S + event_s(task, nnz))


def mean_nnz_of(dataset: Dataset) -> float:
    """How many entries of a row are not zero, on average over the first ones."""
    rows = min(dataset.rows, ROWS_SAMPLED)
    return int(dataset.block(0, rows).offsets[-1]) / rows


def nnz_of(dataset: Dataset) -> int:
    """About how many entries of a row are not zero."""
    return int(mean_nnz_of(dataset))


def warning(task: TaskSettings, nnz: int, events: int | None = None) -> str:
    """What to tell before a slow learner begins; nothing for others. Events: how many come, where that is known."""
    one_s = event_s(task, nnz)
    if one_s < SLOW_S:
        return ""
    cls = registered()[task.learner]
    total = "" if events is None else f", and {events:,} of them some {duration(one_s * events)}"
    instead = f"; faster: {cls.instead}" if cls.instead else ""
    return (
        f"{task.learner} with {task.n_classes} classes and {task.n_features} features: an update takes some "
        f"{duration(one_s)}{total}{instead}"
    )


def records_max(task: TaskSettings, nnz: int, most: int) -> int:
    """How many records a step takes at most."""
    return max(1, min(most, int(STEP_S / max(event_s(task, nnz), 1e-9))))
