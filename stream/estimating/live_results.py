"""Results of the live estimates: the learner's own policy, its holdout, and its challengers.

The structs are JSON objects, and the NamedTuples are JSON arrays; see docs/formats.md, "Saved runs". Importing this
module does not load the estimators.
"""

from typing import NamedTuple

from msgspec import Struct

from stream.estimating.intervals import Interval
from stream.measures.rates import Rate


class Flag(NamedTuple):
    """A warning that a property of the log, or of an evaluated policy, can make estimates wrong."""

    name: str
    text: str


class LiveEstimate(NamedTuple):
    """One estimate. Undefined values and intervals are None."""

    estimator: str
    value: float | None
    normal: Interval | None  # approximate interval for a single check; None if the ESS is below ESS_MIN
    anytime: Interval | None  # interval that is valid at all times simultaneously


class LivePoint(NamedTuple):
    """The estimate after n decisions, with its anytime-valid interval."""

    n: int
    ips: float
    low: float
    high: float
    logged: float  # mean reward of the logged actions


class LiveEstimates(Struct, frozen=True):
    """The current estimates for the learner's own policy."""

    n: int  # number of settled decisions with an outcome and a weight, on which the estimates are based
    without_outcome: int  # number of settled decisions that expired
    waiting: int  # number of decisions that are pending or follow a pending decision
    ess: float
    weight_max: float
    logged: Rate  # mean reward of the logged actions over the n decisions; undefined if n is 0
    flags: tuple[Flag, ...]
    estimates: tuple[LiveEstimate, ...]
    path: tuple[LivePoint, ...]  # at most PATH_POINTS_MAX points, evenly spaced over the n decisions

    def as_json(self) -> dict[str, object]:
        """Return the estimates without the path, as JSON-serializable values named as in `onebit estimate`."""
        return {
            "n": self.n,
            "without_outcome": self.without_outcome,
            "waiting": self.waiting,
            "ess": self.ess,
            "weight_max": self.weight_max,
            "logged": self.logged,
            "flags": [flag.name for flag in self.flags],
            "estimates": [estimate_fields(*one) for one in self.estimates],
        }


def estimate_fields(
    estimator: str, value: float | None, interval: Interval | None, anytime: Interval | None
) -> dict[str, object]:
    """Return an estimate as JSON-serializable values; low and high are the limits of `interval`."""
    return {
        "estimator": estimator,
        "value": value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "anytime_low": None if anytime is None else anytime.low,
        "anytime_high": None if anytime is None else anytime.high,
    }


class Bounds(Struct, frozen=True):
    """The limits of an anytime-valid interval."""

    low: float
    high: float


class ArmCount(Struct, frozen=True):
    """Counts of the decisions in one arm."""

    n: int
    rewards: int | float  # sum of the rewards
    without_reward: int  # number of decisions that expired without an assumed reward

    @property
    def mean(self) -> float | None:
        """The mean reward, or None before the first decision with a reward."""
        return self.rewards / self.n if self.n else None


class ArmComparison(Struct, frozen=True):
    """The current comparison of the learner with its holdout."""

    share: float  # the holdout's configured share
    learner: ArmCount
    holdout: ArmCount
    difference: Bounds  # interval for the difference in mean rewards, learner minus holdout
    shares_differ: bool  # True if the shares of the counted decisions contradict the configured share
    waiting: int  # number of decisions that are pending or follow a pending decision

    @property
    def mean_difference(self) -> float | None:
        """The learner's mean reward minus the holdout's, or None until both arms have a reward."""
        learner, holdout = self.learner.mean, self.holdout.mean
        return None if learner is None or holdout is None else learner - holdout

    @property
    def mismatch(self) -> str:
        """A warning that the arms' shares differ from the configured ones, or an empty string if they do not."""
        if not self.shares_differ:
            return ""
        share = self.holdout.n / (self.holdout.n + self.learner.n)
        return (
            f"the holdout's share of the decisions with a reward is {share:.4f}; expected {self.share:g}. More rewards "
            "are lost in one arm than in the other, so the comparison is invalid. Check the service's feedback"
        )


class ChallengerEstimate(Struct, frozen=True):
    """The current estimate for one challenger."""

    name: str
    ips: float  # estimate of the challenger's mean reward
    snips: float | None  # estimate with less variance, but biased; None if no chosen class was played
    reward: Bounds  # interval for the challenger's mean reward
    difference: Bounds  # interval for this reward minus the champion's; valid for all challengers jointly

    @property
    def is_valid(self) -> bool:
        """Whether all intervals are non-empty. If one is empty, some actions lose more rewards than others."""
        return self.reward.low <= self.reward.high and self.difference.low <= self.difference.high

    @property
    def contradiction(self) -> str:
        """The reason why the estimate is invalid, or an empty string."""
        return (
            "" if self.is_valid else "the intervals contradict each other: some actions lose more rewards than others"
        )


class ChallengerComparison(Struct, frozen=True):
    """The current estimates for all challengers."""

    champion: str | None  # name of the champion; None before the first counted decision
    n: int  # number of this champion's counted decisions with a reward
    mean: float | None  # mean reward of these decisions
    without_reward: int  # number of counted decisions that expired without an assumed reward
    waiting: int  # number of decisions that are pending or follow a pending decision
    challengers: tuple[ChallengerEstimate, ...]

    @property
    def better(self) -> str | None:
        """The challenger with the highest lower limit on its lead over the champion, or None if no limit is above 0."""
        valid = (one for one in self.challengers if one.is_valid)
        surest = max(valid, key=lambda one: one.difference.low, default=None)
        return surest.name if surest is not None and surest.difference.low > 0.0 else None


class LiveResults(NamedTuple):
    """The current results of all live estimates of a pipeline; None for those that it does not have."""

    estimate: LiveEstimates | None = None
    holdout: ArmComparison | None = None
    challengers: ChallengerComparison | None = None
