"""Live estimates for a pipeline: the learner's own policy (if it replays a log), its holdout, and its challengers.

The estimators are imported when they are created, because most runs have none.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any

from stream.estimating.live_results import LiveResults
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.commit import Commit
from stream.task.settings import TaskSettings
from stream.wire.codec import decode_example, decode_prediction
from stream.wire.records import Example, Prediction, Record, TopicPartition
from stream.wire.rewards import RewardRange
from stream.wire.topics import Topics

if TYPE_CHECKING:
    from stream.estimating.arms import Arms
    from stream.estimating.challengers import ChallengerEstimator
    from stream.estimating.live import LiveEstimator
    from stream.estimating.prefix import PrefixEstimator


class LiveEstimating:
    """A pipeline's live estimators."""

    def __init__(self, task: TaskSettings, *, is_estimated: bool) -> None:
        """Create the estimators.

        Args:
            task: The task's settings, which determine whether there are a holdout and challengers.
            is_estimated: Whether to estimate the learner's own policy.
        """
        self._rewards = task.range_of_rewards
        self._own = _own_estimator(self._rewards) if is_estimated else None
        self._holdout: Arms | None = None
        self._challengers: ChallengerEstimator | None = None
        self._share = 0.0
        self._follow(task)

    def _follow(self, task: TaskSettings) -> None:
        """Compare the holdout and the challengers of these settings. Earlier results for the same ones are kept."""
        if task.holdout != self._share:
            self._share = task.holdout
            self._holdout = _arms(task.holdout, self._rewards) if 0.0 < task.holdout < 1.0 else None
        if bool(task.challengers) != (self._challengers is not None):
            self._challengers = challenger_estimator(self._rewards) if task.challengers else None

    @property
    def estimators(self) -> "list[PrefixEstimator[Any]]":
        """All estimators."""
        return [one for one in (self._own, self._holdout, self._challengers) if one is not None]

    def add(self, commits: Sequence[Commit]) -> None:
        """Add the records from committed transactions."""
        for _, step, *_ in commits:
            if step.settings is not None:
                self._follow(step.settings)
        for estimator in self.estimators:
            for partition, step, effects, *_ in commits:
                predictions = (prediction for prediction, _ in effects.predictions)
                estimator.take(partition, step.number, predictions, (example for example, _ in effects.examples))

    def keep(self, partitions: frozenset[int]) -> None:
        """Discard the pending decisions of other partitions. Does nothing if no partition is assigned."""
        for estimator in self.estimators if partitions else ():
            estimator.keep(partitions)

    def now(self) -> LiveResults:
        """Return the current results."""
        return LiveResults(
            None if self._own is None else self._own.now(),
            None if self._holdout is None else self._holdout.now(),
            None if self._challengers is None else self._challengers.now(),
        )


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


def results_from_topics(
    broker: Broker, topics: Topics, partitions: int, task: TaskSettings, *, is_estimated: bool
) -> LiveResults:
    """Return the results for all of a run's records."""
    estimating = LiveEstimating(task, is_estimated=is_estimated)
    for estimator in estimating.estimators:
        TopicReader(broker, topics, partitions, estimator).read()
    return estimating.now()


def _own_estimator(rewards: RewardRange) -> "LiveEstimator":
    from stream.estimating.live import LiveEstimator

    return LiveEstimator(rewards)


def _arms(share: float, rewards: RewardRange) -> "Arms":
    from stream.estimating.arms import Arms

    return Arms(share, rewards)


def challenger_estimator(rewards: RewardRange) -> "ChallengerEstimator":
    """Return a new estimator for the challengers, without data."""
    from stream.estimating.challengers import ChallengerEstimator

    return ChallengerEstimator(rewards)
