"""`--estimate`: what the learner's own policy would have earned, while it plays the decisions of a log."""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING

from stream.journal.commit import Commit
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.codec import decode_example, decode_prediction
from stream.wire.events import Example, Prediction
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

if TYPE_CHECKING:
    from stream.estimating.live import LiveEstimates, LiveEstimator


class LiveEstimating:
    """The estimate that a running learner tells; where it is not asked for, it tells none and costs nothing."""

    def __init__(self, *, is_asked: bool) -> None:
        self._estimator = _estimator() if is_asked else None

    def add(self, commits: Sequence[Commit]) -> None:
        """Take in what a transaction has published."""
        if self._estimator is not None:
            for partition, step, effects, *_ in commits:
                self._estimator.take(
                    partition,
                    step.number,
                    (prediction for prediction, _ in effects.predictions),
                    (example for example, _ in effects.examples),
                )

    def lines(self, partitions: frozenset[int]) -> list[str]:
        """What to tell, of a process that has these partitions; none: it waits for some, maybe for the same ones."""
        if self._estimator is None:
            return []
        if partitions:
            self._estimator.keep(partitions)
        return estimate_lines(self._estimator.now(), since=" made since this program started")


def from_topics(broker: Broker, topics: Topics, partitions: int) -> "LiveEstimates":
    """The estimate of all that a run has published, over its decisions in the order of their time."""
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
    from stream.estimating.live import LiveEstimator  # here: it loads what estimators need, and most runs need none

    return LiveEstimator()


def estimate_lines(found: "LiveEstimates", prefix: str = "", since: str = "") -> list[str]:
    """An estimate for people, and what is flagged.

    Args:
        found: the estimate.
        prefix: which of several it is.
        since: which decisions it is over.
    """
    if not found.estimates:
        waiting = f"; {found.waiting:,} wait, or are behind one that waits" if found.waiting else ""
        lines = [
            f"{prefix}estimate: none yet; no decision{since} counts, with an outcome and a logged propensity{waiting}"
        ]
    else:
        ips = found.estimates[0]
        assert ips.anytime is not None
        lines = [
            f"{prefix}estimate: the learner's own policy would earn {ips.value:.3f} "
            f"(anytime {ips.anytime.low:.3f} to {ips.anytime.high:.3f}) over {found.n:,} settled decisions{since}; "
            f"logged {found.logged:.3f}"
        ]
    return lines + [f"{prefix}estimate: {flag.name}: {flag.text}" for flag in found.flags]
