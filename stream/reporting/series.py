"""Runs that differ in their seed alone, taken together: what is said of them is a mean, and how far they lie apart."""

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

    def spread(self, figure: Callable[[RunReport], float]) -> float:
        """The standard deviation of a figure over the runs; nan for a single one."""
        return stdev(map(figure, self.runs)) if len(self.runs) > 1 else math.nan


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
