"""Estimation in two passes over a log: first the summary and the reward model, then the evaluation of the policies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from stream.estimating.bootstrap import poisson_counts
from stream.estimating.evaluation import PROPENSITY_FLOOR, Limits, Options, PolicyEvaluation, PolicyEvaluator
from stream.estimating.live_results import Flag
from stream.estimating.policies import EstimateError, Policy, evaluable_learners
from stream.estimating.reward_model import RunningRewardModel, reward_model
from stream.estimating.rows import Chunk, DecisionLog, chunks
from stream.estimating.survey import FOLDS, UNIFORM_WITHIN, Survey, survey
from stream.learners import registered
from stream.randomness.draws import Draws, Purpose
from stream.wire.rewards import BITS, RewardRange

ReadProgress = Callable[[int, int], None]
"""Callback that receives the number of rows read, and the total (0 in the first pass, because it is not yet known)."""


class Estimates(NamedTuple):
    """The policies' estimated values."""

    data: str
    events: int
    judged: int  # number of events with an action and an outcome
    has_delays: bool  # True if the log contains delays
    policies: tuple[PolicyEvaluation, ...]
    rewards: RewardRange = BITS  # the range of the rewards


def estimate(
    log: DecisionLog, policies: Sequence[Policy], options: Options | None = None, progress: ReadProgress | None = None
) -> Estimates:
    """Evaluate policies on a log. Memory use is constant, apart from the learners and the pending rewards.

    Args:
        log: The log. It is read twice from its start.
        policies: The policies. Evaluating a learning policy trains it, so use each object only once.
        options: The evaluation settings.
        progress: A callback that is called periodically.

    Raises:
        EstimateError: no decision in the log has both an action and an outcome, or a policy requires data that the log
            does not contain.
    """
    options = options or Options()
    draws = Draws(options.seed, Purpose.ESTIMATE)
    n_classes = len(log.class_names)
    found = survey(
        _with_progress(chunks(log.batches(), draws, rewards=options.rewards), 0, progress),
        log.n_features,
        n_classes,
        log.blocks,
    )
    if not found.events:
        raise EstimateError(f"{log.name} contains no usable rows. Run: onebit data show")
    if not found.judged:
        raise EstimateError(
            f"{log.name}: none of its {found.events:,} events has both an action and a reward; map a column to each"
        )
    if options.propensity_min is not None and options.propensity_min > (1.0 + UNIFORM_WITHIN) / found.classes_max:
        one, several = ("class", "classes") if log.blocks is None else ("action", "actions")
        raise EstimateError(
            f"minimum propensity {options.propensity_min:g} is impossible: with {found.classes_max} {several} it is at "
            f"most {1 / found.classes_max:.4g}; specify the smallest probability with which the logging policy plays "
            f"any {one}"
        )
    for policy in policies:
        if found.has_eligible and not policy.supports_eligible:
            able = [
                name
                for name in evaluable_learners(for_actions=log.blocks is not None)
                if registered()[name].supports_eligible
            ]
            raise EstimateError(
                f"{policy.name} cannot decide among the eligible classes of {log.name}; use one of {', '.join(able)}"
            )
    limits = limits_of(found, options)
    judges = [PolicyEvaluator(policy, options, limits) for policy in policies]
    rows = _with_progress(chunks(log.batches(), draws, rewards=options.rewards), found.events, progress)
    running = RunningRewardModel(reward_model(log.n_features, n_classes, log.blocks, folds=2))
    _evaluate_all(judges, rows, found, running, options)
    flags = (*found.flags, *_limit_flags(found, options))
    return Estimates(
        log.name,
        found.events,
        found.judged,
        found.has_delays,
        tuple(judge.result(flags) for judge in judges),
        options.rewards,
    )


def limits_of(found: Survey, options: Options) -> Limits:
    """Return the limits on the weights, taken from the options where specified, and otherwise from the log."""
    least = options.propensity_min if options.propensity_min is not None else found.propensity_min
    return Limits(
        propensity_min=max(least, PROPENSITY_FLOOR) if found.weighted else 1.0,
        classes_min=found.classes_min,
        clip=options.clip if options.clip is not None else sqrt(max(found.weighted, 1)),
        path_stride=max(1, found.weighted // options.path_points),
        rounding=found.rounding,
    )


def _limit_flags(found: Survey, options: Options) -> list[Flag]:
    least = options.propensity_min or PROPENSITY_FLOOR
    smallest = found.propensity_min
    if not found.weighted or smallest + found.rounding.absolute + found.rounding.relative * smallest >= least:
        return []
    return [
        Flag(
            "propensity-below-minimum",
            f"the smallest propensity is {smallest:g}, below the minimum {least:g}: smaller values "
            "were raised to this minimum, which biases all estimates except those from the direct method",
        )
    ]


def _evaluate_all(
    judges: Sequence[PolicyEvaluator],
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


def _with_progress(rows: Iterable[Chunk], events: int, progress: ReadProgress | None) -> Iterator[Chunk]:
    """Yield the rows, and report progress after each chunk."""
    read = 0
    for chunk in rows:
        yield chunk
        read += len(chunk.ids)
        if progress is not None:
            progress(read, events)
