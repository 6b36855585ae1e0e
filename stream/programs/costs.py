"""Estimates of a learner's speed, and compilation before the first event."""

import numpy as np

from stream.learners import registered
from stream.programs.process import announced_when_slow
from stream.reporting.tables import duration
from stream.task.settings import TaskSettings, learner_of
from stream.wire.records import Features

FLOPS_PER_S = 2e9
"""Assumed speed of one core running a compiled kernel, in operations per second. Factorisations of 3,600 x 3,600
matrices reach 1.8e9 to 3.2e9."""


SLOW_S = 0.1
"""Time per event above which a warning is logged."""


STEP_S = 0.5
"""Approximate maximum duration of a step. Between steps, the learner reports progress and polls the group."""


def event_s(task: TaskSettings, nnz: int) -> float:
    """Estimate the time in seconds for one decision and its update.

    >>> from stream.learners import check_parameters
    >>> task = TaskSettings("newtron", 9, 400, check_parameters("newtron", {}))
    >>> 10 < event_s(task, 25) < 40
    True
    """
    cost = registered()[task.learner].cost(task.n_classes, task.n_features, nnz, task.parameters)
    return cost.flops_per_event / FLOPS_PER_S


def cost_change(before: TaskSettings, after: TaskSettings) -> str:
    """Describe the cost of a change per partition, or return an empty string if the cost stays the same.

    The time per event is that of contexts whose features are all different from 0.

    >>> cost_change(TaskSettings("banditron", 10, 64), TaskSettings("banditron", 10, 64, challengers={"late-ucb": {}}))
    'model: 5 kB -> 2,755 kB in memory and in each snapshot; computing per event: at most 1 µs -> 149 µs'
    """
    costs = [_costs(settings) for settings in (before, after)]
    if costs[0] == costs[1]:
        return ""
    (bytes_before, s_before), (bytes_after, s_after) = costs
    return (
        f"model: {bytes_before / 1e3:,.0f} kB -> {bytes_after / 1e3:,.0f} kB in memory and in each snapshot; computing "
        f"per event: at most {s_before * 1e6:,.0f} µs -> {s_after * 1e6:,.0f} µs"
    )


def _costs(task: TaskSettings) -> tuple[int, float]:
    """Return the size of a task's model in bytes, and its time per event in seconds."""
    whole, size = task.resolved(), (task.n_classes, task.n_features, task.n_features)
    costs = [
        registered()[learner_of(name)].cost(*size, whole.parameters_of(name))
        for name in (task.learner, *task.challengers)
    ]
    return sum(cost.state_bytes for cost in costs), sum(cost.flops_per_event for cost in costs) / FLOPS_PER_S


PIPELINE_S = 1e-4
"""Time per event that an embedded run spends on the topics, the join and the ledger, excluding the learner itself."""


def run_s(task: TaskSettings, nnz: int, events: int) -> float:
    """Estimate an embedded run's duration in seconds."""
    return events * (PIPELINE_S + event_s(task, nnz))


def slow_warning(task: TaskSettings, nnz: int, events: int | None = None) -> str:
    """Return a warning if the learner is slow, otherwise an empty string. `events` is None if unknown."""
    one_s = event_s(task, nnz)
    if one_s < SLOW_S:
        return ""
    cls = registered()[task.learner]
    total = "" if events is None else f", {events:,} events about {duration(one_s * events)}"
    instead = f"; faster: {cls.instead}" if cls.instead else ""
    return (
        f"{task.learner} with {task.n_classes} {_choices(task)} and {task.n_features} features: an update takes about "
        f"{duration(one_s)}{total}{instead}"
    )


def _choices(task: TaskSettings) -> str:
    return "classes" if task.actions is None else "actions"


_EXPLORE = "To explore, use --floor 0.05, or `onebit change --floor 0.05` in a running pipeline"


def exploration_notice(task: TaskSettings) -> str:
    """Return a notice if there is too little exploration to evaluate other policies, otherwise an empty string."""
    if task.challengers and not task.floor:
        return (
            f"challengers cannot learn about {_choices(task)} that {task.learner} never plays. The estimate for a "
            f"challenger that chooses them is too low. {_EXPLORE}"
        )
    decision = task.make_learner().predict(Features(np.zeros(1, np.int32), np.ones(1)), 0.5)
    if decision.propensity < 1.0 or task.play == "logged":
        return ""
    return (
        f"{task.learner} does not explore: the propensity is 1, and no other policy can be evaluated from the "
        f"decisions. {_EXPLORE}"
    )


def records_max(task: TaskSettings, nnz: int, most: int) -> int:
    """Return the maximum number of records in a step."""
    return max(1, min(most, int(STEP_S / max(event_s(task, nnz), 1e-9))))


def compile_kernels(task: TaskSettings) -> None:
    """Compile the learner's kernels before the first event. Log a notice if compilation is slow."""
    from stream.learners.kernels import CACHE_DIRECTORY  # deferred: loads numba

    what = (
        f"compiling kernels, or loading them from {CACHE_DIRECTORY}"
        if CACHE_DIRECTORY
        else "compiling kernels, which are not cached: no cache directory is writable. Set NUMBA_CACHE_DIR"
    )
    with announced_when_slow(f"{', '.join(task.members or (task.learner,))}: {what}"):
        task.warm_up()
