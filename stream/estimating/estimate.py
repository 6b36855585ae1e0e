"""A log is read twice: first it is surveyed and the reward model learned, then every policy is judged on it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stream.estimating.bootstrap import poisson_counts
from stream.estimating.judge import Judge, Judged, Limits, Options, clip_of
from stream.estimating.policies import EstimateError, Policy
from stream.estimating.reward_model import RunningRewardModel
from stream.estimating.rows import Chunk, DecisionLog, chunks
from stream.estimating.survey import FOLDS, UNIFORM_WITHIN, Flag, Survey, survey
from stream.randomness.draws import Draws, Purpose

Progress = Callable[[int, int], None]
"""Is told how many rows have been read, and how many there are; 0 in the first reading, which counts them."""


class Estimates(NamedTuple):
    """What the policies would have earned."""

    data: str
    events: int
    judged: int  # of them with an action and an outcome
    has_delays: bool  # whether the log says any
    policies: tuple[Judged, ...]


def estimate(
    log: DecisionLog, policies: Sequence[Policy], options: Options | None = None, progress: Progress | None = None
) -> Estimates:
    """Judge policies on a log. Takes constant memory beside the learners and the bits that are under way.

    Args:
        log: Is read from its beginning twice.
        policies: Each is used up: one that learns has learned afterwards.
        options: How.
        progress: Is called now and then.

    Raises:
        EstimateError: the log has no decision with an action and an outcome, or what a policy needs is missing.
    """
    options = options or Options()
    draws = Draws(options.seed, Purpose.ESTIMATE)
    n_classes = len(log.class_names)
    found = survey(_told(chunks(log.batches(), draws), 0, progress), log.n_features, n_classes)
    if not found.judged:
        raise EstimateError(
            f"{log.name}: none of its {found.events:,} events has both the action that was played and its reward; map "
            "both columns"
        )
    if options.propensity_min is not None and options.propensity_min > (1.0 + UNIFORM_WITHIN) / n_classes:
        raise EstimateError(
            f"a least propensity of {options.propensity_min:g}: of {n_classes} classes one has {1 / n_classes:.4g} at "
            "most; it is the least that the logging policy gives any class"
        )
    limits = limits_of(found, options)
    judges = [Judge(policy, options, limits) for policy in policies]
    rows = _told(chunks(log.batches(), draws), found.events, progress)
    _judge_all(judges, rows, found, RunningRewardModel(log.n_features, n_classes), options)
    flags = (*found.flags, *_limit_flags(found, options))
    return Estimates(
        log.name, found.events, found.judged, found.has_delays, tuple(judge.result(flags) for judge in judges)
    )


def limits_of(found: Survey, options: Options) -> Limits:
    """What bounds the weights: what the options say, or what the log shows."""
    least = options.propensity_min if options.propensity_min is not None else found.propensity_min
    return Limits(
        propensity_min=least if found.weighted else 1.0,
        clip=clip_of(options, found.weighted),
        path_stride=max(1, found.weighted // options.path_points),
    )


def _limit_flags(found: Survey, options: Options) -> list[Flag]:
    least = options.propensity_min
    if least is None or not found.weighted or found.propensity_min >= least:
        return []
    return [
        Flag(
            "propensity-below-minimum",
            f"the least propensity is {found.propensity_min:g}, below the {least:g} that was given: raised to it, "
            "which biases all but the direct method",
        )
    ]


def _judge_all(
    judges: Sequence[Judge],
    rows: Iterable[Chunk],
    found: Survey,
    running: RunningRewardModel,
    options: Options,
) -> None:
    for chunk in rows:
        judged = np.flatnonzero(chunk.judged)
        z = running.model.features(chunk)[judged]
        running_q = running.predict_then_add(z, chunk.actions[judged], chunk.rewards[judged])
        fold_z = z if running.model.size == found.reward_model.size else found.reward_model.features(chunk)[judged]
        q = found.reward_model.predict(fold_z, chunk.folds(FOLDS)[judged])
        counts = poisson_counts(chunk, options.resamples)[judged]
        for judge in judges:
            judge.add(chunk, q, running_q, counts)


def _told(rows: Iterable[Chunk], events: int, progress: Progress | None) -> Iterator[Chunk]:
    """The rows, after each of which it is told how far the reading is."""
    read = 0
    for chunk in rows:
        yield chunk
        read += len(chunk.ids)
        if progress is not None:
            progress(read, events)
