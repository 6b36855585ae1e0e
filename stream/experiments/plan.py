"""The runs of an experiment, in the order in which they are made."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from stream.experiments.definition import (
    FOLDS,
    Conditions,
    Contender,
    Experiment,
    ExperimentError,
    Parameters,
    Sweep,
    grid,
)
from stream.experiments.measure import Job, Row


def jobs_of(
    sweep: Sweep, available: Iterable[str], best: Mapping[tuple[str, str, str], Parameters] | None
) -> list[Job]:
    """The runs of a sweep: those of one set and one seed one after the other, so that its stream is made once.

    Args:
        sweep: the sweep.
        available: the data sets that are there.
        best: what `best_of` found; None: the sweep has grids of its own.
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
    """Conditions as a row has them: those that are not the defaults, as JSON."""
    return json.dumps(conditions.model_dump(exclude_defaults=True), sort_keys=True)


def best_parameters(rows: Sequence[Row]) -> dict[tuple[str, str, str], Parameters]:
    """The parameters that err least on average, by data set, title of the learner and conditions."""
    errors: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        errors[row.data, row.title, row.conditions][row.parameters].append(row.error)
    return {
        place: json.loads(min(of_place, key=lambda parameters: mean(of_place[parameters])))
        for place, of_place in errors.items()
    }


def check_learners(experiment: Experiment, accepted: Mapping[str, frozenset[str]]) -> None:
    """See that the learners and parameters of an experiment are there.

    Args:
        experiment: the experiment.
        accepted: the parameters of each learner.

    Raises:
        ExperimentError: one is not.
    """
    for sweep in experiment.sweeps:
        for contender in sweep.learners:
            if contender.learner not in accepted:
                raise ExperimentError(
                    f"sweep {sweep.name}: no learner is called {contender.learner!r}; there are {', '.join(accepted)}"
                )
            unknown = contender.parameters.keys() - accepted[contender.learner]
            if unknown:
                raise ExperimentError(
                    f"sweep {sweep.name}: {contender.learner} has no parameter {', '.join(sorted(unknown))}; it has "
                    f"{', '.join(sorted(accepted[contender.learner])) or 'none'}"
                )
