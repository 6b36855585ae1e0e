"""Settings that users give and tasks store, each defined once for both.

`Settings` and `TaskSettings` inherit these fields. `docs/settings.md` describes them, and so do the comments in
`TaskSettings` where a task's view differs.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from stream.settings.model import FEEDBACK, LEARN, LOG, PIPELINE, TOPIC_PROGRAMS, Change, Program, Setting, Stored
from stream.settings.values import Duration, OptionalDuration, Probability, RewardRangeText
from stream.wire.named_features import Scaling
from stream.wire.records import Envelope
from stream.wire.rewards import BITS, FeedbackRule, RewardRange, parse_range

OnExpiry = Literal["drop", "negative"]
LatePolicy = Literal["ignore", "correct"]
Play = Literal["own", "logged", "match"]

Reward = Literal["exclusive", "any"]
"""The number of right classes per context: exactly one, or any number. Feedback refers only to the played class."""

Rewards = Literal["bit", "graded"]
"""Whether a reward is a bit or a number in a range."""


@dataclass(frozen=True, kw_only=True)
class DataFields:
    """The seed, the envelope of events, the scale of features, and the kind of rewards."""

    seed: Annotated[
        int,
        Field(ge=0, lt=2**63),
        Setting(PIPELINE | {Program.TRAIN}, "Seed for all random draws and for synthetic data"),
        Stored(reason="all random draws depend on it, including the draws for pending decisions"),
    ] = 0
    envelope: Annotated[
        Envelope,
        Setting(
            frozenset((Program.LEARN,)),
            "Envelope of contexts and feedback: none, or CloudEvents in structured mode, whose data is the event",
        ),
        Stored(change=Change.FREE),
    ] = "none"
    scale: Annotated[
        Scaling,
        Setting(
            PIPELINE | {Program.SHOW, Program.TRAIN},
            "Scaling of numeric features: none, or standard (mean 0 and standard deviation 1 over the file or log, or "
            "over the contexts so far)",
        ),
        Stored(shapes_model=True, reason="the model has learned from features in the earlier scale"),
    ] = "none"
    rewards: Annotated[
        Rewards,
        Setting(
            LOG | {Program.SHOW},
            "Rewards: a bit, 0 or 1, or a number in --reward-range, such as a rating or a revenue (graded)",
        ),
        Stored(shapes_model=True, reason="the pending decisions and the model have rewards of the earlier kind"),
    ] = "bit"
    reward_range: Annotated[
        RewardRangeText,
        Setting(LOG | {Program.SHOW}, "With --rewards graded, the lowest and the highest reward", "LOW,HIGH"),
        Stored(shapes_model=True, reason="the model has learned from rewards as shares of the earlier range"),
    ] = "0,1"

    @property
    def graded(self) -> RewardRange | None:
        """The range of graded rewards, or None if rewards are bits."""
        return parse_range(self.reward_range) if self.rewards == "graded" else None

    @property
    def range_of_rewards(self) -> RewardRange:
        """The range of graded rewards, or of bits."""
        return self.graded or BITS


@dataclass(frozen=True, kw_only=True)
class LearnerFields:
    """How actions are chosen, and what feedback means."""

    play: Annotated[
        Play,
        Setting(
            LEARN,
            "Actions to play in a replay of a log: the learner's actions (own), the logged actions (logged), or the "
            "learner's actions, skipping events with a different logged action (match)",
        ),
        Stored(reason="pending decisions were made in the earlier mode"),
    ] = "own"
    reward: Annotated[
        Reward,
        Setting(
            LEARN | {Program.TRAIN}, "Number of correct classes per context: exactly one, or any number, as for clicks"
        ),
        Stored(reason="the model has learned from bits with the earlier meaning"),
    ] = "exclusive"
    feedback: Annotated[
        FeedbackRule,
        Setting(
            LEARN | FEEDBACK,
            "Reward of a decision with several feedback records: the first reward, the maximum, or the sum of its "
            "parts, limited to the range",
        ),
        Stored(reason="the pending decisions have rewards that were combined by the earlier rule"),
    ] = "first"
    propensity_min: Annotated[
        float,
        Field(ge=0.0, le=1.0),
        Setting(
            LEARN | {Program.TRAIN},
            "With --play logged, and in training, smaller logged propensities are raised to this value. With --play "
            "match, specify the smallest propensity in the log, or 0 for a uniform log",
            "P",
        ),
        Stored(reason="the model has learned with the earlier minimum"),
    ] = 0.0
    floor: Annotated[
        Probability,
        Setting(
            LEARN,
            "Probability of playing a uniformly random class or action, so that other policies can be evaluated",
            "P",
        ),
        Stored(change=Change.MIXED),
    ] = 0.0
    holdout: Annotated[
        Probability,
        Setting(
            LEARN, "Fraction of the decisions that --holdout-policy makes instead of the learner, for comparison", "P"
        ),
        Stored(change=Change.MIXED),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class ExpiryFields:
    """What an expired decision teaches."""

    on_expiry: Annotated[
        OnExpiry,
        Setting(LEARN, "Ignore an expired decision, or learn from it with the lowest reward, 0 for a bit"),
        Stored(change=Change.FREE),
    ] = "drop"
    late: Annotated[
        LatePolicy,
        Setting(LEARN, "Ignore feedback after the window, or revert the reward assumed by --on-expiry negative"),
        Stored(change=Change.FREE),
    ] = "ignore"


@dataclass(frozen=True)
class JoinSettings:
    """The join's windows and limits. When there are too many entries, the oldest is evicted and counted."""

    window_ms: Annotated[
        Duration,
        Setting(LEARN | TOPIC_PROGRAMS, "Time to wait for feedback before a decision expires"),
        Stored(change=Change.FREE),
    ] = 300_000
    activation_window_ms: Annotated[
        OptionalDuration,
        Setting(LEARN | TOPIC_PROGRAMS, "Time to wait for a deferred decision to be shown", unset="the window"),
        Stored(change=Change.FREE),
    ] = None
    orphan_window_ms: Annotated[
        Duration,
        Setting(LEARN | TOPIC_PROGRAMS, "Time to keep feedback that arrives before its context"),
        Stored(change=Change.FREE),
    ] = 300_000
    retain_ms: Annotated[
        Duration,
        Setting(LEARN | TOPIC_PROGRAMS, "Time to remember settled ids, to detect duplicates and late feedback"),
        Stored(change=Change.FREE),
    ] = 3_600_000
    pending_max: Annotated[
        int,
        Field(ge=1),
        Setting(LEARN, "Limit on pending and deferred decisions; the oldest is settled first"),
        Stored(change=Change.FREE),
    ] = 150_000
    orphans_max: Annotated[
        int,
        Field(ge=1),
        Setting(LEARN, "Limit on feedback without a context; the oldest is dropped first"),
        Stored(change=Change.FREE),
    ] = 50_000
    retained_max: Annotated[
        int,
        Field(ge=1),
        Setting(LEARN, "Limit on remembered settled ids; the oldest is removed first"),
        Stored(change=Change.FREE),
    ] = 1_000_000

    @property
    def activation_limit_ms(self) -> int:
        """The maximum time that a deferred decision waits to be shown."""
        return self.window_ms if self.activation_window_ms is None else self.activation_window_ms


def allows_any_right(reward: Reward, rewards: Rewards) -> bool:
    """Return whether several classes may be right, or whether no class is right or wrong."""
    return reward == "any" or rewards == "graded"


def shared_values(settings: DataFields | LearnerFields | ExpiryFields) -> dict[str, Any]:
    """Return the values of the fields that `Settings` and `TaskSettings` share, by name."""
    kinds = (DataFields, LearnerFields, ExpiryFields)
    return {field.name: getattr(settings, field.name) for kind in kinds for field in fields(kind)}
