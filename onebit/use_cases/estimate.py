"""Off-policy estimates of policies' mean rewards, from a log of decisions."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.stored import remarks_of
from stream.estimating.estimate import Estimates, Progress, estimate
from stream.estimating.evaluation import Options, estimate_fields
from stream.estimating.named_policies import MODEL, Decisions, policy_of
from stream.estimating.policies import Training
from stream.programs.process import announce, every, monotonic_ms, warn
from stream.randomness.delays import parse_delay
from stream.settings.definitions import SettingsError
from stream.settings.task_fields import Reward
from stream.settings.values import OnBadRow

PROGRESS_INTERVAL_MS = 5_000


class Log(NamedTuple):
    """A log of decisions, and the options for reading it."""

    data: Path
    mapping: str | None = None
    reward_above: float | None = None
    on_bad_row: OnBadRow = "stop"


class Learning(NamedTuple):
    """Training options for learners that are evaluated as policies."""

    delay: str | None = None  # the delay for feedback without a logged delay
    reward: Reward = "exclusive"


def estimate_policies(
    source: Log, specs: Sequence[str], options: Options, learning: Learning
) -> tuple[Estimates, Training]:
    """Estimate the policies' mean rewards.

    Args:
        source: The log.
        specs: Names of the policies.
        options: Options for the estimators.
        learning: Training options for learners.

    Returns:
        The estimates, and a summary of the training.

    Raises:
        SettingsError: an option is out of range.
        EstimateError: a policy is unknown.
        DatasetError: the log cannot be read.
    """
    _check_ranges(options)
    log = open_log(
        source.data,
        None if source.mapping is None else read_mapping(source.mapping),
        on_bad_row=source.on_bad_row,
        reward_above=source.reward_above,
    )
    delay = None if learning.delay is None else parse_delay(learning.delay)
    training = Training(options.seed, delay, learning.reward)
    if training.delay is not None:
        training.delay.check_classes(len(log.class_names))
    decisions = Decisions(log.name, log.class_names, log.n_features, log.encoder)
    policies = [policy_of(spec, decisions, training) for spec in specs]
    found = estimate(log, policies, options, announced_progress())
    for line in remarks_of(log):
        warn(line)
    for spec in specs:
        if spec.startswith(MODEL):
            warn(
                f"{spec}: the estimates are too high if the model learned from decisions in {log.name}; "
                "use a log of later decisions"
            )
    return found, training


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


class IntervalKind(StrEnum):
    """The kind of confidence interval in the fields `low` and `high`."""

    BOOTSTRAP = "bootstrap"
    BERNSTEIN = "bernstein"


def fields_of(found: Estimates, interval: IntervalKind) -> dict[str, Any]:
    """Return the estimates as a dict of plain values. `interval` selects the interval reported as low and high."""
    return {
        "data": found.data,
        "events": found.events,
        "policies": [
            {
                "policy": policy.policy,
                "ess": policy.ess,
                "weight_max": policy.weight_max,
                "flags": [flag.name for flag in policy.flags],
                "estimates": [
                    estimate_fields(
                        one.estimator,
                        one.value,
                        one.bernstein if interval is IntervalKind.BERNSTEIN else one.bootstrap,
                        one.anytime,
                    )
                    for one in policy.estimates
                ],
            }
            for policy in found.policies
        ],
    }


def announced_progress() -> Progress:
    """Return a function that logs the progress of the two passes at intervals."""
    started_ms = monotonic_ms()
    latest = (0, 0)

    def report() -> None:
        read, events = latest
        rate = 1_000 * read / max(monotonic_ms() - started_ms, 1)
        what = f"evaluating: {read:,} of {events:,}" if events else f"first pass: {read:,}"
        announce(f"{what} events, {rate:,.0f} events/s")

    shown = every(PROGRESS_INTERVAL_MS, report)

    def update(read: int, events: int) -> None:
        nonlocal latest, started_ms
        is_second_begun = events > 0 and latest[1] == 0
        latest = (read, events)
        if is_second_begun:
            started_ms = monotonic_ms()  # the passes run at different speeds, so their rates are measured separately
        else:
            shown()

    return update
