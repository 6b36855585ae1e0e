"""Charts of estimates: each policy's intervals, the estimates over the course of the log, and the weights."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stream.estimating.evaluation import WEIGHT_EDGES, PolicyEvaluation
from stream.estimating.intervals import Interval
from stream.estimating.live_results import LiveEstimates
from stream.reporting.charts import Axis, Chart, Form, Line
from stream.reporting.tables import number_text, percent
from stream.wire.rewards import BITS, RewardRange


class _Path(NamedTuple):
    """An estimate as a function of the number of decisions."""

    number: int | None  # as in `Line`
    name: str
    n: list[int]
    values: list[float]
    intervals: list[Interval]  # one interval per value; empty without intervals


def form_of(rewards: RewardRange) -> Form:
    """Return the number format for mean rewards: shares from 0 to 1, or numbers in the units of the rewards."""
    return "share" if rewards == BITS else "number"


def _written(value: float, form: Form) -> str:
    return percent(value) if form == "share" else number_text(value)


def estimate_charts(policies: Sequence[PolicyEvaluation], form: Form = "share") -> list[Chart]:
    """Return the charts for policies that were evaluated on a log."""
    summary = "; ".join(
        f"{policy.policy} {_written(one.value, form)}"
        for policy in policies
        for one in policy.estimates
        if one.estimator == "dr" and one.value is not None
    )
    charts = [_intervals(policies, f"Estimates by policy. Doubly robust: {summary}.", form)]
    paths = [
        _Path(number, policy.policy, [at.n for at in policy.path], [at.dr for at in policy.path],
              [at.dr_interval for at in policy.path])
        for number, policy in enumerate(policies)
    ]  # fmt: skip
    if any(path.n for path in paths):
        charts.append(
            _chart(
                "path",
                "The estimate over the log",
                "The doubly robust estimate with the running reward model, by number of decisions, with its "
                "anytime-valid interval.",
                f"Line chart of the doubly robust estimate over the log. At the end: {summary}.",
                paths,
                _far(policies, form),
                form,
            )
        )
        charts.append(_weights(policies))
    return charts


def _intervals(policies: Sequence[PolicyEvaluation], alt: str, form: Form) -> Chart:
    names = list(dict.fromkeys(one.estimator for policy in policies for one in policy.estimates))
    lines = []
    for number, policy in enumerate(policies):
        known = [one for one in policy.estimates if one.value is not None]
        ends = [one.bootstrap or Interval(math.nan, math.nan) for one in known]
        at = [names.index(one.estimator) for one in known]
        values = [float(one.value or 0.0) for one in known]
        lines.append(Line(number, policy.policy, at, values, [end.low for end in ends], [end.high for end in ends]))
    return Chart(
        "intervals",
        "Estimates",
        "Estimates of each policy's value, with bootstrap intervals. The intervals for dm ignore its bias.",
        alt,
        Axis("estimator", "number", names=names),
        Axis("mean reward", form),
        lines,
        is_pointwise=True,
        y_limits=_far(policies, form),
    )


def _weights(policies: Sequence[PolicyEvaluation]) -> Chart:
    last = max(int(np.flatnonzero(policy.weight_counts).max(initial=7)) for policy in policies)
    lines = [
        Line(number, policy.policy, range(last + 1), (counts[: last + 1] / max(counts.sum(), 1)).tolist())
        for number, policy in enumerate(policies)
        if (counts := policy.weight_counts) is not None
    ]
    return Chart(
        "weights",
        "Weights",
        "Share of decisions by importance weight: the policy's probability of the logged action, divided by the "
        "log's. Large weights mean that only a few decisions determine the estimate.",
        "Chart of the distribution of importance weights by policy.",
        Axis("weight", "number", names=["0", *(f"≤ {edge:.3g}" for edge in WEIGHT_EDGES[1 : last + 1])]),
        Axis("share of the decisions", "share"),
        lines,
        is_pointwise=True,
    )


def live_charts(found: Mapping[int, tuple[str, LiveEstimates]], form: Form = "share") -> list[Chart]:
    """Return a chart of the estimates for the learners' own policies in a replay of a log.

    Returns an empty list if no decision has been settled.

    Args:
        found: Each learner's name and estimates, keyed by the number of its line.
        form: The number format of the mean rewards.
    """
    paths = [
        _Path(
            number,
            name,
            [at.n for at in one.path],
            [at.ips for at in one.path],
            [Interval(at.low, at.high) for at in one.path],
        )
        for number, (name, one) in found.items()
    ]
    longest = max((one.path for _, one in found.values()), key=len)
    if not longest:
        return []
    # All learners replay the same logged actions, so one line is enough.
    paths.append(_Path(None, "logged", [at.n for at in longest], [at.logged for at in longest], []))
    summary = "; ".join(f"{path.name} {_written(path.values[-1], form)}" for path in paths if path.n)
    late = [value for path in paths for n, value in zip(path.n, path.values, strict=True) if n >= longest[-1].n / 20]
    ends = [path.intervals[-1].high for path in paths if path.intervals]
    return [
        _chart(
            "live",
            "The estimate over the decisions",
            "Estimated mean reward of each learner's own policy, by number of settled decisions, with its "
            "anytime-valid interval, and the mean reward of the logged actions.",
            f"Line chart of the estimate over the settled decisions. At the end: {summary}.",
            paths,
            _room([*late, *ends], form),
            form,
        )
    ]


def _chart(
    key: str,
    title: str,
    caption: str,
    alt: str,
    paths: Sequence[_Path],
    limits: tuple[float, float],
    form: Form,
) -> Chart:
    lines = [
        Line(path.number, path.name, path.n, path.values, *zip(*path.intervals, strict=True))
        for path in paths
        if path.n
    ]
    x, y = Axis("decisions", "count"), Axis("mean reward", form)
    return Chart(key, title, caption, alt, x, y, lines, y_limits=limits)


def _far(policies: Sequence[PolicyEvaluation], form: Form) -> tuple[float, float]:
    """Return an axis range that includes all values and bootstrap intervals, with a margin for wider intervals."""
    ends = [0.0]
    for policy in policies:
        for one in policy.estimates:
            ends += [one.value] if one.value is not None else []
            ends += [one.bootstrap.low, one.bootstrap.high] if one.bootstrap is not None else []
    return _room(ends, form)


def _room(ends: Sequence[float], form: Form) -> tuple[float, float]:
    """Return the range for an axis: from 0 (or a negative value) to slightly above the largest value."""
    greatest = max(ends)
    if form != "share":
        return min(0.0, *ends), max(1.25 * greatest, 1e-3)
    return min(0.0, *ends), min(max(1.25 * greatest, 1e-3), max(1.0, greatest))
