"""`onebit.estimate`: off-policy estimates of policies' mean rewards, from a log of decisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from producers.data import ArrowTable
from producers.datasets.logs.mapping import mapping_for, read_mapping
from producers.datasets.logs.reading import open_log, source_of_table
from producers.datasets.logs.stored import remarks_of
from producers.datasets.logs.streams import Source
from stream.estimating.estimate import Estimates
from stream.estimating.estimate import estimate as estimate_log
from stream.estimating.evaluation import Options, PolicyEvaluation
from stream.estimating.live_results import estimate_fields
from stream.estimating.named_policies import MODEL, Decisions, policy_of
from stream.estimating.policies import Training
from stream.programs.pass_progress import announced_passes
from stream.programs.process import warn
from stream.programs.task_settings import encoding_in
from stream.randomness.delays import parse_delay
from stream.reporting.estimate_page import estimate_page
from stream.reporting.notebook_tables import html_table, text_table
from stream.reporting.pages import write_whole
from stream.settings.definitions import SettingsError
from stream.settings.task_fields import Reward, Rewards
from stream.settings.values import OnBadRow
from stream.wire.rewards import BITS, format_range, parse_range

COLUMNS = ("policy", "estimator", "value", "low", "high")

IntervalKind = Literal["bootstrap", "bernstein"]
"""The kind of confidence interval in the fields `low` and `high`."""


@dataclass(frozen=True)
class EstimateReport:
    """The estimates returned by `onebit.estimate`, indexed by policy, as in `report["late-ucb"]`."""

    found: Estimates
    confidence: float
    interval: IntervalKind  # the kind of interval reported in the columns low and high
    training: Training  # how learners were trained

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
        return {
            "data": self.found.data,
            "events": self.found.events,
            "policies": [
                {
                    "policy": policy.policy,
                    "ess": policy.ess,
                    "weight_max": policy.weight_max,
                    "flags": [flag.name for flag in policy.flags],
                    "estimates": [
                        estimate_fields(one.estimator, one.value, getattr(one, self.interval), one.anytime)
                        for one in policy.estimates
                    ],
                }
                for policy in self.found.policies
            ],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per policy and estimator."""
        return [
            {"policy": policy["policy"], "ess": policy["ess"], **one}
            for policy in self.to_dict()["policies"]
            for one in policy["estimates"]
        ]

    def save(self, path: str | Path, command: str = "onebit.estimate(...)") -> Path:
        """Write the report as an HTML page with figures. `command` is the command line that the page shows.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(Path(path), estimate_page(self.found, self.confidence, command))
        return Path(path)

    def _rows(self) -> list[list[object]]:
        return [["-" if row[name] is None else _short(row[name]) for name in COLUMNS] for row in self.to_dicts()]

    def __repr__(self) -> str:
        return text_table(COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self._rows(), caption=f"{self.found.data}, {self.events:,} events")


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def estimate(
    data: str | Path | ArrowTable,
    *,
    policies: Sequence[str],
    map: str | Path | None = None,  # noqa: A002 - name of the setting
    features: str | Path | None = None,
    reward_above: float | None = None,
    on_bad_row: OnBadRow = "stop",
    delay: str | None = None,
    reward: Reward = "exclusive",
    rewards: Rewards = "bit",
    reward_range: str = format_range(BITS),
    propensity_min: float | None = None,
    clip: float | None = None,
    interval: IntervalKind = "bootstrap",
    confidence: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> EstimateReport:
    """Estimate the mean rewards of other policies from a log of decisions.

    Args:
        data: Log file in CSV, JSON lines, Parquet, or a Vowpal Wabbit format. Or a table in memory, such as a pandas or
            polars DataFrame or a pyarrow table, which is read like a Parquet file.
        policies: Policies to evaluate: `logged`, `uniform`, `baseline`, `constant:ACTION`, `model:FILE`, or learners,
            written `NAME` or `NAME:PARAMETER=VALUE,...`. With actions that have features, also `first`.
        map: Column mapping for a table: a TOML file, or `action=item,reward=click,...`.
        features: File that maps feature names to indices, for a log without a mapping.
        reward_above: Rewards above this value are converted to 1, all other rewards to 0.
        on_bad_row: Whether to stop at an invalid row or skip it.
        delay: Delay to assume for feedback that has no logged delay, such as `exponential:5s`. The default is no delay.
        reward: `exclusive` if exactly one class is correct in each context, or `any` if any number of classes may be
            correct.
        rewards: `bit` if the log's rewards are 0 or 1, or `graded` if they are numbers.
        reward_range: The lowest and the highest graded reward, written as `0,5`.
        propensity_min: Smallest probability that the logging policy assigns to any class; by default, the smallest
            propensity in the log.
        clip: Maximum weight in clipped-ips; √n by default.
        interval: Kind of interval to report in `low` and `high`.
        confidence: Confidence level for the intervals.
        resamples: Number of bootstrap samples.
        seed: Seed for resampling, folds, rejection sampling and delays.

    Raises:
        OnebitError: an option is out of range, the log cannot be read, or a policy is unknown.
    """
    if interval not in get_args(IntervalKind):
        raise ValueError(f"interval: expected one of {', '.join(get_args(IntervalKind))}; got {interval!r}")
    graded = parse_range(reward_range) if rewards == "graded" else None
    options = Options(
        seed=seed,
        confidence=confidence,
        resamples=resamples,
        clip=clip,
        propensity_min=propensity_min,
        rewards=graded or BITS,
    )
    _check_ranges(options)
    source: Source | Path
    if isinstance(data, str | Path):
        source, mapping = Path(data), mapping_for(data, map)
    else:
        source, mapping = source_of_table(data), None if map is None else read_mapping(map)
    log = open_log(
        source, mapping, on_bad_row=on_bad_row, reward_above=reward_above, graded=graded,
        encoding=None if features is None else encoding_in(Path(features)),
    )  # fmt: skip
    training = Training(seed, None if delay is None else parse_delay(delay), reward, rewards)
    if training.delay is not None:
        training.delay.check_classes(len(log.class_names))
    decisions = Decisions(log.name, log.class_names, log.n_features, log.encoder, log.blocks, log.action_encoder)
    found = estimate_log(
        log,
        [policy_of(spec, decisions, training) for spec in policies],
        options,
        announced_passes("first pass", "evaluating", "events"),
    )
    for line in remarks_of(log):
        warn(line)
    for spec in policies:
        if spec.startswith(MODEL):
            warn(
                f"{spec}: the estimates are too high if the model learned from decisions in {log.name}; "
                "use a log of later decisions"
            )
    return EstimateReport(found, confidence, interval, training)


def _check_ranges(options: Options) -> None:
    confidence, clip, propensity_min = options.confidence, options.clip, options.propensity_min
    for flag, value, ok, accepted in (
        ("--confidence", confidence, 0.0 < confidence < 1.0, "a number between 0 and 1, such as 0.95"),
        ("--clip", clip, clip is None or clip > 0.0, "a number above 0"),
        (
            "--propensity-min",
            propensity_min,
            propensity_min is None or 0.0 < propensity_min <= 1.0,
            "a number in (0, 1]",
        ),
    ):
        if not ok:
            raise SettingsError(f"{flag}: expected {accepted}; got {value}")
