"""`onebit.estimate`: off-policy estimates from a log of decisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from onebit.notebook_tables import html_table, text_table
from onebit.use_cases.estimate import IntervalKind, Learning, Log, estimate_policies, fields_of
from stream.estimating.estimate import Estimates
from stream.estimating.evaluation import Options, PolicyEvaluation
from stream.reporting.estimate_page import estimate_page
from stream.reporting.pages import write_whole

COLUMNS = ("policy", "estimator", "value", "low", "high")
Kind = Literal["bootstrap", "bernstein"]


@dataclass(frozen=True)
class EstimateReport:
    """The estimates returned by `onebit.estimate`, indexed by policy, as in `report["late-ucb"]`."""

    found: Estimates
    confidence: float
    interval: Kind  # the kind of interval reported in the columns low and high

    def __getitem__(self, policy: str) -> PolicyEvaluation:
        for judged in self.found.policies:
            if judged.policy == policy:
                return judged
        raise KeyError(
            f"{policy!r}: expected one of {', '.join(repr(judged.policy) for judged in self.found.policies)}"
        )

    def __iter__(self) -> Iterator[PolicyEvaluation]:
        return iter(self.found.policies)

    def __len__(self) -> int:
        return len(self.found.policies)

    @property
    def events(self) -> int:
        """The number of decisions in the log."""
        return self.found.events

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of plain values, as in the JSON output of `onebit estimate`."""
        return fields_of(self.found, IntervalKind(self.interval))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per policy and estimator."""
        return [
            {"policy": policy["policy"], "ess": policy["ess"], **one}
            for policy in self.to_dict()["policies"]
            for one in policy["estimates"]
        ]

    def save(self, path: str | Path) -> Path:
        """Write the report as an HTML page with figures.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(Path(path), estimate_page(self.found, self.confidence, "onebit.estimate(...)"))
        return Path(path)

    def _rows(self) -> list[list[object]]:
        return [["-" if row[name] is None else _short(row[name]) for name in COLUMNS] for row in self.to_dicts()]

    def __repr__(self) -> str:
        return text_table(COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self._rows(), caption=f"{self.found.data}, {self.events:,} events")


def estimate(
    data: str | Path,
    *,
    policies: Sequence[str],
    mapping: str | Path | None = None,
    reward_above: float | None = None,
    on_bad_row: Literal["stop", "skip"] = "stop",
    delay: str | None = None,
    reward: Literal["exclusive", "any"] = "exclusive",
    propensity_min: float | None = None,
    clip: float | None = None,
    interval: Kind = "bootstrap",
    confidence: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> EstimateReport:
    """Estimate the mean rewards of other policies from a log of decisions.

    Args:
        data: Log file in CSV, JSON lines, Parquet, or a Vowpal Wabbit format.
        policies: Policies to evaluate: `logged`, `uniform`, `constant:ACTION`, `model:FILE`, or learners, written
            `NAME` or `NAME:PARAMETER=VALUE,...`.
        mapping: Column mapping for a tabular log: a TOML file, or `action=item,reward=click,...`.
        reward_above: Rewards above this value are converted to 1, all other rewards to 0.
        on_bad_row: Whether to stop at an invalid row or skip it.
        delay: Delay to assume for feedback that has no logged delay, such as `exponential:5s`. The default is no delay.
        reward: `exclusive` if exactly one class is correct in each context, or `any` if any number of classes may be
            correct.
        propensity_min: Smallest probability that the logging policy assigns to any class; by default, the smallest
            propensity in the log.
        clip: Maximum weight in clipped-ips; √n by default.
        interval: Kind of interval to report in `low` and `high`.
        confidence: Confidence level for the intervals.
        resamples: Number of bootstrap samples.
        seed: Seed for resampling, folds, rejection sampling and delays.

    Raises:
        OnebitError: the log cannot be read, or a policy is unknown.
    """
    if interval not in get_args(Kind):
        raise ValueError(f"interval: expected one of {', '.join(get_args(Kind))}; got {interval!r}")
    options = Options(seed=seed, confidence=confidence, resamples=resamples, clip=clip, propensity_min=propensity_min)
    log = Log(Path(data), None if mapping is None else str(mapping), reward_above, on_bad_row)
    found, _ = estimate_policies(log, policies, options, Learning(delay, reward))
    return EstimateReport(found, confidence, interval)


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
