"""Runs that differ in their seed alone, taken together: their figures are means, with intervals over the seeds."""

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

import orjson

from stream.reporting.run_report import RunReport

SAID_ELSEWHERE = frozenset(("command", "data", "events", "learner", "param", "seed", "topic_prefix"))
"""Settings that do not tell runs apart: a report has what they come to as a field of its own, or it means nothing."""


class Series(NamedTuple):
    """Runs of one learner under the same settings, each with a seed of its own."""

    runs: tuple[RunReport, ...]

    @property
    def first(self) -> RunReport:
        """The run that speaks for all where they are alike."""
        return self.runs[0]

    def mean(self, figure: Callable[[RunReport], float]) -> float:
        """The mean of a figure over the runs; nan where a run has none."""
        return mean(map(figure, self.runs))

    def half_width(self, figure: Callable[[RunReport], float]) -> float:
        """Half of the 95 % interval of the mean over the seeds, by Student's t; nan for a single one."""
        values = list(map(figure, self.runs))
        return t_factor(len(values)) * stdev(values) if len(values) > 1 else math.nan


def t_factor(n: int) -> float:
    """Half of the 95 % interval of the mean of n values, over their standard deviation.

    >>> round(t_factor(10), 3)
    0.715
    """
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) / math.sqrt(n)


def by_error(found: Sequence[Series]) -> list[Series]:
    """Series by their error, the least first; those without a decision last."""
    errors = [series.mean(lambda run: run.errors.error_rate) for series in found]
    order = sorted(range(len(found)), key=lambda i: (math.isnan(errors[i]), errors[i]))
    return [found[i] for i in order]


def series_of(reports: Sequence[RunReport]) -> list[Series]:
    """The runs by series, in the order in which each began; a seed that comes again begins another one."""
    found: list[tuple[bytes, list[RunReport]]] = []
    for report in reports:
        key = _key(report)
        for other, runs in found:
            if other == key and report.seed not in {run.seed for run in runs}:
                runs.append(report)
                break
        else:
            found.append((key, [report]))
    return [Series(tuple(runs)) for _, runs in found]


def _key(report: RunReport) -> bytes:
    settings = {name: value for name, value in report.settings.items() if name not in SAID_ELSEWHERE}
    told = (report.data, report.learner, report.params, report.events, report.classes, report.features, settings,
            report.versions)  # fmt: skip
    return orjson.dumps(told, option=orjson.OPT_SORT_KEYS, default=str)
