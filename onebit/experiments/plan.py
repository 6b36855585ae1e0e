"""The runs in an experiment, in execution order."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from onebit.experiments.definition import (
    FOLDS,
    Conditions,
    Contender,
    Experiment,
    ExperimentError,
    Parameters,
    Sweep,
    grid,
)
from onebit.experiments.measure import Job, Row


def jobs_of(
    sweep: Sweep, available: Iterable[str], best: Mapping[tuple[str, str, str], Parameters] | None
) -> list[Job]:
    """Return the runs in a sweep, ordered by data set and seed so that each stream is created only once.

    Args:
        sweep: The sweep.
        available: The available data sets.
        best: The result of `best_parameters` for another sweep, or None to use the sweep's own grids.
    """
    folds = FOLDS if sweep.evaluate == "folds" else 1
    there = set(available)
    return [
        Job(
            sweep=sweep.name,
            data=data,
            learner=contender.learner,
            title=contender.title,
            parameters=parameters,
            conditions=conditions,
            seed=seed,
            events=_events(sweep, contender),
            epochs=sweep.epochs,
            evaluate=sweep.evaluate,
            fold=fold,
        )
        for data in sweep.data
        if data in there
        for seed in range(1, sweep.seeds + 1)
        for fold in range(folds)
        for conditions in map(Conditions.model_validate, grid(sweep.conditions))
        for contender in sweep.learners
        if contender.data is None or data in contender.data
        for parameters in _parameters(contender, data, conditions, best)
    ]


def _events(sweep: Sweep, contender: Contender) -> int | None:
    limits = [limit for limit in (sweep.events, contender.events) if limit is not None]
    return min(limits, default=None)


def _parameters(
    contender: Contender,
    data: str,
    conditions: Conditions,
    best: Mapping[tuple[str, str, str], Parameters] | None,
) -> Iterable[Parameters]:
    if best is None:
        return grid(contender.parameters)
    found = best.get((data, contender.title, conditions_text(conditions)))
    return () if found is None else (found,)


def conditions_text(conditions: Conditions) -> str:
    """Return conditions in the form used in rows: JSON, without default values."""
    return json.dumps(conditions.model_dump(exclude_defaults=True), sort_keys=True)


def best_parameters(rows: Sequence[Row]) -> dict[tuple[str, str, str], Parameters]:
    """Return the parameters with the smallest mean error for each data set, learner title and conditions."""
    errors: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        errors[row.data, row.title, row.conditions][row.parameters].append(row.error)
    return {
        place: json.loads(min(of_place, key=lambda parameters: mean(of_place[parameters])))
        for place, of_place in errors.items()
    }


def check_learners(experiment: Experiment, accepted: Mapping[str, frozenset[str]]) -> None:
    """Check the learners and parameters in an experiment.

    Args:
        experiment: The experiment.
        accepted: The parameters that each learner accepts.

    Raises:
        ExperimentError: a learner or parameter is unknown.
    """
    for sweep in experiment.sweeps:
        for contender in sweep.learners:
            if contender.learner not in accepted:
                raise ExperimentError(
                    f"sweep {sweep.name}: unknown learner {contender.learner!r}; available: {', '.join(accepted)}"
                )
            unknown = contender.parameters.keys() - accepted[contender.learner]
            if unknown:
                raise ExperimentError(
                    f"sweep {sweep.name}: {contender.learner}: unknown parameter {', '.join(sorted(unknown))}; "
                    f"available: {', '.join(sorted(accepted[contender.learner])) or 'none'}"
                )
