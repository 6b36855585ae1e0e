"""Live estimates for a running learner: its own policy (if it replays a log), its holdout, and its challengers."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.commit import Commit
from stream.task.settings import TaskSettings
from stream.wire.codec import decode_example, decode_prediction
from stream.wire.records import Example, Prediction, Record, TopicPartition
from stream.wire.topics import Topics

if TYPE_CHECKING:
    from stream.estimating.arms import ArmComparison, Arms
    from stream.estimating.challengers import ChallengerComparison, ChallengerEstimator
    from stream.estimating.live import LiveEstimates, LiveEstimator
    from stream.estimating.prefix import PrefixEstimator

AnyEstimator = TypeVar("AnyEstimator", bound="PrefixEstimator[Any]")


class LiveEstimating:
    """Estimates the value of a running learner's policy, and compares the policy with a holdout and challengers."""

    def __init__(self, *, is_asked: bool) -> None:
        self._estimator = live_estimator() if is_asked else None
        self._arms: Arms | None = None
        self._challengers: ChallengerEstimator | None = None

    def compare(self, task: TaskSettings) -> None:
        """Start the comparison with the holdout and challengers if it has not started yet."""
        if task.holdout and self._arms is None:
            self._arms = arms_of(task.holdout)
        if task.challengers and self._challengers is None:
            self._challengers = challenger_estimator()

    def add(self, commits: Sequence[Commit]) -> None:
        """Add the records from committed transactions."""
        for estimator in self._estimators():
            for partition, step, effects, *_ in commits:
                estimator.take(
                    partition,
                    step.number,
                    (prediction for prediction, _ in effects.predictions),
                    (example for example, _ in effects.examples),
                )

    def _estimators(self) -> "list[PrefixEstimator[Any]]":
        return [one for one in (self._estimator, self._arms, self._challengers) if one is not None]

    def comparison(self) -> "ArmComparison | None":
        """Return the comparison with the holdout, or None without a holdout."""
        return None if self._arms is None else self._arms.now()

    def challengers(self) -> "ChallengerComparison | None":
        """Return the challengers' estimates, or None without challengers."""
        return None if self._challengers is None else self._challengers.now()

    def lines(self, partitions: frozenset[int]) -> list[str]:
        """Return the log lines for a process to which these partitions are assigned."""
        lines: list[str] = []
        if partitions:
            for estimator in self._estimators():
                estimator.keep(partitions)
        if self._estimator is not None:
            lines += estimate_lines(self._estimator.now(), since=" since this program started")
        if (compared := self.comparison()) is not None:
            lines += arm_lines(compared)
        if (challengers := self.challengers()) is not None:
            lines += challenger_lines(challengers)
        return lines


class TopicReader:
    """Feeds a pipeline's predictions and examples to an estimator.

    Each call to `read` passes the decisions to the estimator in the order of their append times.
    """

    def __init__(self, broker: Broker, topics: Topics, partitions: int, estimator: "PrefixEstimator[Any]") -> None:
        """Start at the beginning of the topics."""
        self._broker, self._estimator = broker, estimator
        self._predictions = [TopicPartition(topics.predictions, partition) for partition in range(partitions)]
        self._examples = [TopicPartition(topics.examples, partition) for partition in range(partitions)]
        self._next: dict[TopicPartition, int] = {}  # next offsets to read
        self._steps = [0] * partitions

    def read(self) -> None:
        """Pass the new records to the estimator."""
        ends = self._broker.ends(self._examples)  # requested first, so that every example's prediction is read
        decided = merge(*map(self._records, self._predictions), key=lambda record: record.append_ms)
        for partition, records in groupby(decided, lambda record: record.partition):
            self._take(partition, (decode_prediction(record)[0] for record in records), ())
        for tp in self._examples:
            settled = self._records(tp, ends[tp].stable)
            self._take(tp.partition, (), (decode_example(record) for record in settled))

    def _records(self, tp: TopicPartition, end: float = inf) -> Iterator[Record]:
        """Yield the unread records before the offset `end`."""
        for record in read_partition(self._broker, tp, start=self._next.get(tp)):
            if record.offset >= end:
                return
            self._next[tp] = record.offset + 1
            yield record

    def _take(self, partition: int, predictions: Iterable[Prediction], examples: Iterable[Example]) -> None:
        self._steps[partition] += 1
        self._estimator.take(partition, self._steps[partition], predictions, examples)


def from_topics(broker: Broker, topics: Topics, partitions: int, estimator: AnyEstimator) -> AnyEstimator:
    """Feed all of a run's records to an estimator and return the estimator."""
    TopicReader(broker, topics, partitions, estimator).read()
    return estimator


def live_estimator() -> "LiveEstimator":
    """Return an empty live estimator."""
    from stream.estimating.live import LiveEstimator  # deferred: loads the estimators, which most runs do not need

    return LiveEstimator()


def arms_of(share: float) -> "Arms":
    """Return an empty comparison for a holdout with this share of the decisions."""
    from stream.estimating.arms import Arms  # deferred: most runs do not need this module

    return Arms(share)


def challenger_estimator() -> "ChallengerEstimator":
    """Return a new estimator for the challengers, without data."""
    from stream.estimating.challengers import ChallengerEstimator  # deferred: most runs do not need this module

    return ChallengerEstimator()


def challenger_lines(found: "ChallengerComparison", prefix: str = "") -> list[str]:
    """Format the challengers' estimates.

    Args:
        found: The estimates.
        prefix: Text before each line; it identifies the run.
    """
    if found.mean is None:
        waiting = f"; {found.waiting:,} decisions are pending or follow a pending decision" if found.waiting else ""
        return [f"{prefix}challengers: no estimate yet{waiting}"]
    return [
        f"{prefix}challenger {one.name}: estimated mean reward {one.ips:.3f} ({one.reward.low:.3f} to "
        f"{one.reward.high:.3f}); champion {found.champion}: {found.mean:.3f}, {found.n:,} decisions; difference "
        f"{one.difference.low:+.3f} to {one.difference.high:+.3f} (95%, valid at all times)"
        + (one.contradiction and f"; {one.contradiction}")
        for one in found.challengers
    ]


def arm_lines(found: "ArmComparison", prefix: str = "") -> list[str]:
    """Format a comparison of the learner with its holdout.

    Args:
        found: The comparison.
        prefix: Text before each line, to distinguish several comparisons.
    """
    learner, holdout = found.learner.mean, found.holdout.mean
    if learner is None or holdout is None:
        waiting = f"; {found.waiting:,} decisions are pending or follow a pending decision" if found.waiting else ""
        return [f"{prefix}holdout: no comparison yet{waiting}"]
    low, high = found.difference
    lines = [
        f"{prefix}holdout: mean reward {learner:.3f} for the learner ({found.learner.n:,} decisions), {holdout:.3f} "
        f"for the holdout ({found.holdout.n:,} decisions); difference {low:+.3f} to {high:+.3f} (anytime)"
    ]
    if found.shares_differ:
        lines.append(f"{prefix}holdout: {found.mismatch}")
    return lines


def estimate_lines(found: "LiveEstimates", prefix: str = "", since: str = "") -> list[str]:
    """Format an estimate and its warnings.

    Args:
        found: The estimate.
        prefix: Text before each line, to distinguish several estimates.
        since: Text that says which decisions are included, such as " since this program started".
    """
    if not found.estimates:
        waiting = f"; {found.waiting:,} are pending or follow a pending decision" if found.waiting else ""
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
