"""One run of an experiment: a learner processes the stream generated for a seed. The result is a row."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.experiments.definition import FOLDS, Conditions, Evaluation, Parameters
from onebit.experiments.opponents import OPPONENTS, oppose
from onebit.experiments.sets import Loaded, Sets, with_facts
from onebit.experiments.streams import (
    Stream,
    generator,
    in_order,
    life_of,
    lives,
    noisy,
    part_of,
    partitions_of,
    split,
    stream_of,
)
from stream.learners import Learner, ParameterError
from stream.learners.base import KernelLearner
from stream.offline import NEVER, Patience, Run, run
from stream.offline.shared import run_shared
from stream.reporting.runs import versions
from stream.task.settings import TaskSettings

CURVE_POINTS = 60
"""Number of points stored per run. They are evenly spaced on a logarithmic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A planned run. It contains everything that determines the resulting row, except the data and the code."""

    sweep: str
    data: str
    learner: str
    title: str  # the learner's name in figures and tables
    parameters: Parameters = field(default_factory=dict)  # parameters as in the experiment's definition
    conditions: Conditions = field(default_factory=Conditions)
    seed: int = 0
    events: int | None = None
    epochs: int = 1
    evaluate: Evaluation = "online"
    fold: int = 0

    @property
    def key(self) -> str:
        """Return the key that identifies this run's row."""
        parts = (self.sweep, self.data, self.learner, self.parameters, self.conditions.known_by, self.seed,
                 self.events, self.epochs, self.evaluate, self.fold)  # fmt: skip
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=12).hexdigest()


class Row(NamedTuple):
    """The result of a run; one line of the result file."""

    key: str
    sweep: str
    data: str
    learner: str
    title: str
    parameters: str  # parameters as in the definition, in JSON
    conditions: str  # conditions in JSON, without default values
    seed: int
    fold: int
    events: int
    error: float  # fraction of wrong actions, or of wrong answers on test rows
    error_last_tenth: float  # fraction of wrong actions over the last tenth of the events; NaN with test rows
    error_greedy: float  # error of the greedy class
    explored: float  # fraction of actions other than the greedy class
    updates: int
    matched: int
    expired: int
    late: int
    seconds: float  # CPU time of the loop
    curve_events: list[int]  # numbers of events at the points on the curve
    curve_mistakes: list[int]  # number of wrong actions up to each point
    curve_explored: list[int]  # number of actions other than the greedy class up to each point
    onebit: str  # versions of Onebit and its dependencies
    python: str
    numpy: str
    numba: str
    machine: str


@lru_cache(maxsize=1)
def _stream(data: Loaded, seed: int, events: int | None, epochs: int, conditions: Conditions) -> Stream:
    return stream_of(data, seed, events, epochs, conditions)


@lru_cache(maxsize=1)
def _of_seed(sets: Sets, name: str, seed: int, events: int | None) -> Loaded:
    return sets.load(name, seed, events)


def measure(job: Job, sets: Sets) -> Row:
    """Run a job and return its row.

    Raises:
        ParameterError: the learner cannot be created or does not support the conditions.
    """
    data = _of_seed(sets, job.data, job.seed, job.events)
    if job.evaluate == "online":
        stream = _stream(data, job.seed, job.events, job.epochs, job.conditions)
        return _online(job, data, stream)
    return _tested(job, data)


def learner_of(job: Job, data: Loaded) -> Learner:
    """Return a new learner for the job."""
    conditions = job.conditions
    parameters: Mapping[str, Any] = with_facts(job.parameters, data.facts)
    settings = TaskSettings(
        job.learner,
        data.n_classes,
        data.n_features,
        dict(parameters),
        on_expiry=conditions.on_expiry,
        late=conditions.late,
    )
    return settings.make_learner()


_warm: set[object] = set()
"""The kernels that this process has already loaded."""


def _run(job: Job, data: Loaded, learner: Learner, stream: Stream) -> tuple[Run, float]:
    """Run the learner. Return the result and the CPU time of the loop, excluding the time for loading the kernels."""
    kernels = getattr(learner, "kernels", None)
    if kernels not in _warm:
        few = life_of(stream, np.arange(min(2, stream.truth.size)))
        run(learner_of(job, data), few.examples, few.u, few.v, few.delays)
        _warm.add(kernels)
    conditions = job.conditions
    window = None if conditions.window < 0 else conditions.window
    patience = Patience(window, conditions.on_expiry, conditions.late)
    events = stream.examples, stream.u, stream.v, stream.delays, patience
    started_s = time.process_time()
    if conditions.lag == 1 and not conditions.outage:  # without lag, all partitions use the same model
        result = run(learner, *events)
    else:
        assert isinstance(learner, KernelLearner)
        numbers = partitions_of(stream.truth.size, conditions.partitions, job.seed)
        result = run_shared(learner, *events, partitions=numbers, lag=conditions.lag, outage=conditions.outage)
    return result, time.process_time() - started_s


def _online(job: Job, data: Loaded, stream: Stream) -> Row:
    size = stream.truth.size
    wrong, explored, greedy_wrong = (np.zeros(size, dtype=np.bool_) for _ in range(3))
    counts = np.zeros(4, dtype=np.int64)
    seconds = 0.0
    for part, events in _parts(job, stream):
        if job.learner in OPPONENTS:
            result, took_s = _opposed(job, data, part)
        else:
            result, took_s = _run(job, data, learner_of(job, data), part)
        seconds += took_s
        wrong[events] = result.actions != part.truth
        greedy_wrong[events] = result.greedy != part.truth
        explored[events] = result.actions != result.greedy
        counts += (result.updates, result.matched, result.expired, result.late)
    at = curve_points(size)
    return _row(
        job,
        events=size,
        error=float(wrong.mean()),
        error_last_tenth=float(wrong[-max(1, size // 10) :].mean()),
        error_greedy=float(greedy_wrong.mean()),
        explored=float(explored.mean()),
        counts=counts,
        seconds=seconds,
        curve_events=at.tolist(),
        curve_mistakes=np.cumsum(wrong)[at - 1].tolist(),
        curve_explored=np.cumsum(explored)[at - 1].tolist(),
    )


def _opposed(job: Job, data: Loaded, stream: Stream) -> tuple[Run, float]:
    """Run another library's learner. The learner's greedy class is unknown, so the action is used instead."""
    if job.conditions.window >= 0 or job.conditions.model == "shared":
        raise ParameterError(f"{job.learner} supports neither a window nor a shared model")
    started_s = time.process_time()
    actions = oppose(job.learner, job.parameters, data, stream)
    seconds = time.process_time() - started_s
    came = int(np.count_nonzero(stream.delays != NEVER))
    return Run(actions, actions, np.ones(actions.size), came, came, 0, 0), seconds


def _parts(job: Job, stream: Stream) -> list[tuple[Stream, NDArray[np.int64]]]:
    """Return the stream for each learner in a run, with the indices of its events."""
    size, conditions = stream.truth.size, job.conditions
    if conditions.partitions > 1 and conditions.model == "own":
        numbers = partitions_of(size, conditions.partitions, job.seed)
        parts = [np.flatnonzero(numbers == number) for number in range(conditions.partitions)]
        return [(part_of(stream, own), own) for own in parts]
    if conditions.forget_every:
        return [(life_of(stream, own), own) for own in lives(size, conditions.forget_every)]
    return [(stream, np.arange(size))]


SPLIT_FOLDS = 5
"""Number of folds for `evaluate = "split"`. One fold, which contains a fifth of the rows, is used for testing."""


def _tested(job: Job, data: Loaded) -> Row:
    """Train on the training rows. Then predict the test rows greedily, without learning."""
    if job.learner in OPPONENTS:
        raise ParameterError(f'{job.learner} does not support test rows; use evaluate = "online"')
    folds = SPLIT_FOLDS if job.evaluate == "split" else FOLDS
    trained, tested = split(data.examples.labels.size, job.seed, job.fold, folds)
    training = Loaded(data.n_classes, data.n_features, in_order(data.examples, trained))
    stream = stream_of(training, job.seed, job.events, job.epochs, job.conditions)
    learner = learner_of(job, data)
    result, seconds = _run(job, data, learner, stream)
    answers = in_order(data.examples, tested)
    greedy = [learner.predict(answers.features(t), 0.5).greedy for t in range(tested.size)]
    labels = answers.labels
    if job.evaluate == "split":  # a split is used to tune parameters, so its test labels are also noisy
        labels = noisy(labels, data.n_classes, job.conditions.noise, generator(job.seed, "tested"))
    error = float(np.mean(np.array(greedy) != labels))
    return _row(
        job,
        events=stream.truth.size,
        error=error,
        error_last_tenth=float("nan"),
        error_greedy=error,
        explored=float(np.mean(result.actions != result.greedy)),
        counts=np.array((result.updates, result.matched, result.expired, result.late)),
        seconds=seconds,
        curve_events=[],
        curve_mistakes=[],
        curve_explored=[],
    )


def _row(job: Job, *, counts: NDArray[np.int64], **figures: Any) -> Row:
    updates, matched, expired, late = counts.tolist()
    return Row(
        key=job.key,
        sweep=job.sweep,
        data=job.data,
        learner=job.learner,
        title=job.title,
        parameters=json.dumps(job.parameters, sort_keys=True),
        conditions=json.dumps(job.conditions.model_dump(exclude_defaults=True), sort_keys=True),
        seed=job.seed,
        fold=job.fold,
        updates=updates,
        matched=matched,
        expired=expired,
        late=late,
        **figures,
        **versions(),
    )


def curve_points(size: int) -> NDArray[np.int64]:
    """Return the event counts at which a run's curve has points, from 10 to the total.

    >>> curve_points(100).tolist()[:3], curve_points(100).tolist()[-1], curve_points(5).tolist()
    ([10, 11, 12], 100, [5])
    """
    return np.unique(np.rint(np.geomspace(min(10, size), size, CURVE_POINTS)).astype(np.int64))
