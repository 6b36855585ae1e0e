"""Live estimates of a running learner: its own policy while logged actions are played, and its holdout."""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from stream.journal.commit import Commit
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.codec import decode_example, decode_prediction
from stream.wire.records import Example, Prediction, TopicPartition
from stream.wire.topics import Topics

if TYPE_CHECKING:
    from stream.estimating.arms import ArmComparison, Arms
    from stream.estimating.live import LiveEstimates, LiveEstimator

Estimating = TypeVar("Estimating", "LiveEstimator", "Arms")


class LiveEstimating:
    """Estimates the value of a running learner's policy, and compares it with a holdout, if there is one."""

    def __init__(self, *, is_asked: bool) -> None:
        self._estimator = live_estimator() if is_asked else None
        self._arms: Arms | None = None

    def compare(self, share: float) -> None:
        """Compare the learner with a holdout of this share, unless it is 0 or the comparison has begun."""
        if share and self._arms is None:
            self._arms = arms_of(share)

    def add(self, commits: Sequence[Commit]) -> None:
        """Add the records of committed transactions."""
        for counter in self._counters():
            for partition, step, effects, *_ in commits:
                counter.take(
                    partition,
                    step.number,
                    (prediction for prediction, _ in effects.predictions),
                    (example for example, _ in effects.examples),
                )

    def _counters(self) -> "list[LiveEstimator | Arms]":
        return [counter for counter in (self._estimator, self._arms) if counter is not None]

    def comparison(self) -> "ArmComparison | None":
        """Return the comparison with the holdout, or None without one."""
        return None if self._arms is None else self._arms.now()

    def lines(self, partitions: frozenset[int]) -> list[str]:
        """Return the log lines for a process to which these partitions are assigned."""
        lines: list[str] = []
        if partitions:
            for counter in self._counters():
                counter.keep(partitions)
        if self._estimator is not None:
            lines += estimate_lines(self._estimator.now(), since=" since this program started")
        if (compared := self.comparison()) is not None:
            lines += arm_lines(compared)
        return lines


def from_topics(broker: Broker, topics: Topics, partitions: int, counter: Estimating) -> Estimating:
    """Let a counter count a run's topics, with the decisions in the order of their times, and return it."""
    steps = [0] * partitions

    def take(partition: int, predictions: Iterable[Prediction], examples: Iterable[Example]) -> None:
        steps[partition] += 1
        counter.take(partition, steps[partition], predictions, examples)

    decided = merge(
        *(read_partition(broker, TopicPartition(topics.predictions, partition)) for partition in range(partitions)),
        key=lambda record: record.append_ms,
    )
    for partition, records in groupby(decided, lambda record: record.partition):
        take(partition, (decode_prediction(record)[0] for record in records), ())
    for partition in range(partitions):
        settled = read_partition(broker, TopicPartition(topics.examples, partition))
        take(partition, (), (decode_example(record)[0] for record in settled))
    return counter


def live_estimator() -> "LiveEstimator":
    """Return an estimator without decisions."""
    from stream.estimating.live import LiveEstimator  # deferred: loads the estimators, which most runs do not need

    return LiveEstimator()


def arms_of(share: float) -> "Arms":
    """Return a comparison without decisions for a holdout of this share."""
    from stream.estimating.arms import Arms  # deferred, as above

    return Arms(share)


def arm_lines(found: "ArmComparison", prefix: str = "") -> list[str]:
    """Format a comparison of the learner with its holdout.

    Args:
        found: The comparison.
        prefix: Text before each line, to distinguish several comparisons.
    """
    learner, holdout = found.learner.mean, found.holdout.mean
    if learner is None or holdout is None:
        waiting = f"; {found.waiting:,} decisions are pending or later than a pending one" if found.waiting else ""
        return [f"{prefix}holdout: no comparison yet{waiting}"]
    low, high = found.difference
    lines = [
        f"{prefix}holdout: mean reward {learner:.3f} of the learner ({found.learner.n:,} decisions), {holdout:.3f} of "
        f"the holdout ({found.holdout.n:,}); difference {low:+.3f} to {high:+.3f} (anytime)"
    ]
    if found.shares_differ:
        lines.append(f"{prefix}holdout: {found.mismatch}")
    return lines


def estimate_lines(found: "LiveEstimates", prefix: str = "", since: str = "") -> list[str]:
    """Format an estimate and its flags.

    Args:
        found: The estimate.
        prefix: Text before each line, to distinguish several estimates.
        since: Describes which decisions are included.
    """
    if not found.estimates:
        waiting = f"; {found.waiting:,} are pending or later than a pending decision" if found.waiting else ""
        lines = [
            f"{prefix}estimate: none yet; no settled decision{since} has an outcome and a logged propensity{waiting}"
        ]
    else:
        ips = found.estimates[0]
        assert ips.anytime is not None
        lines = [
            f"{prefix}estimate: mean reward of the learner's own policy {ips.value:.3f} "
            f"(anytime {ips.anytime.low:.3f} to {ips.anytime.high:.3f}) over {found.n:,} settled decisions{since}; "
            f"logged {found.logged:.3f}"
        ]
    return lines + [f"{prefix}estimate: {flag.name}: {flag.text}" for flag in found.flags]
