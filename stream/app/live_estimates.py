"""`--estimate`: off-policy estimate of the learner's own policy while logged actions are played."""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING

from stream.journal.commit import Commit
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.codec import decode_example, decode_prediction
from stream.wire.records import Example, Prediction, TopicPartition
from stream.wire.topics import Topics

if TYPE_CHECKING:
    from stream.estimating.live import LiveEstimates, LiveEstimator


class LiveEstimating:
    """Estimates the value of a running learner's policy; does nothing unless requested."""

    def __init__(self, *, is_asked: bool) -> None:
        self._estimator = _estimator() if is_asked else None

    def add(self, commits: Sequence[Commit]) -> None:
        """Add the records of committed transactions."""
        if self._estimator is not None:
            for partition, step, effects, *_ in commits:
                self._estimator.take(
                    partition,
                    step.number,
                    (prediction for prediction, _ in effects.predictions),
                    (example for example, _ in effects.examples),
                )

    def lines(self, partitions: frozenset[int]) -> list[str]:
        """Return the log lines for a process to which these partitions are assigned."""
        if self._estimator is None:
            return []
        if partitions:
            self._estimator.keep(partitions)
        return estimate_lines(self._estimator.now(), since=" since this program started")


def from_topics(broker: Broker, topics: Topics, partitions: int) -> "LiveEstimates":
    """Compute the estimate from a run's topics, processing the decisions in the order of their times."""
    estimator = _estimator()
    steps = [0] * partitions

    def take(partition: int, predictions: Iterable[Prediction], examples: Iterable[Example]) -> None:
        steps[partition] += 1
        estimator.take(partition, steps[partition], predictions, examples)

    decided = merge(
        *(read_partition(broker, TopicPartition(topics.predictions, partition)) for partition in range(partitions)),
        key=lambda record: record.append_ms,
    )
    for partition, records in groupby(decided, lambda record: record.partition):
        take(partition, (decode_prediction(record)[0] for record in records), ())
    for partition in range(partitions):
        settled = read_partition(broker, TopicPartition(topics.examples, partition))
        take(partition, (), (decode_example(record)[0] for record in settled))
    return estimator.now()


def _estimator() -> "LiveEstimator":
    from stream.estimating.live import LiveEstimator  # deferred: loads the estimators, which most runs do not need

    return LiveEstimator()


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
