"""Deletes old records as retention and compaction do, and restores them for the checks of a whole run."""

from bisect import bisect_left
from collections import defaultdict

from onebit.simulation.outside import TOPICS, Place
from onebit.simulation.schedule import Item, Schedule
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.reading import read_partition
from stream.randomness.draws import Luck
from stream.recovery.steps import decode_step
from stream.wire.records import Record, TopicPartition


class Retention:
    """The retention of a run's topics."""

    def __init__(self, schedule: Schedule, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._keep_ms = schedule.options.keep_ms
        topics = [*TOPICS, TOPICS.updates] if schedule.task.model == "shared" else [*TOPICS]
        self._tps = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(1 if topic == TOPICS.updates else schedule.partitions)
        ]
        self._deleted: dict[TopicPartition, list[Record]] = defaultdict(list)
        self._aborted: dict[TopicPartition, set[int]] = defaultdict(set)
        self._emptied: list[Place] = []  # the ends of journals at which all steps were deleted
        # Steps without records after a snapshot. Once they were deleted, the task continued from the snapshot.
        self.superseded: set[Place] = set()

    @property
    def has_deleted(self) -> bool:
        """Whether any record was deleted."""
        return any(self._deleted.values())

    def delete(self, item: Item) -> None:
        """Delete records that are older than the retention. Kafka deletes whole segments, so it can keep older ones."""
        luck = Luck(item.number)
        for tp in self._tps:
            age_ms = self._keep_ms + luck.choice((0, 0, self._keep_ms // 4, 2 * self._keep_ms))
            self._delete(
                tp, self._end_of_obsolete(tp) if tp.topic == TOPICS.snapshots else self._end_of_old(tp, age_ms)
            )

    def restore(self) -> None:
        """Restore all deleted records, except superseded steps."""
        for tp, records in self._deleted.items():
            log = self._broker.log(tp)
            log.records[:0] = records
            log.first -= len(records)
            log.aborted |= self._aborted[tp]
        self._deleted.clear()
        for tp, end in self._emptied:
            steps = [(record.offset, decode_step(record).number) for record in read_partition(self._broker, tp)]
            first = next((number for offset, number in steps if offset >= end), None)
            again = {offset for offset, number in steps if first is not None and offset < end and number >= first}
            self._broker.log(tp).aborted |= again
            self.superseded |= {(tp, offset) for offset in again}

    def _end_of_old(self, tp: TopicPartition, age_ms: int) -> int:
        log = self._broker.log(tp)
        times_ms = [record.append_ms for record in log.records]
        return log.first + bisect_left(times_ms, self._broker.clock.now_ms - age_ms)

    def _end_of_obsolete(self, tp: TopicPartition) -> int:
        """Return the offset of the first chunk that is the newest one with its key, as compaction sees it."""
        newest = {record.key: record.offset for record in read_partition(self._broker, tp)}
        return min(newest.values(), default=0)

    def _delete(self, tp: TopicPartition, before: int) -> None:
        log = self._broker.log(tp)
        first, records, aborted = log.first, list(log.records), set(log.aborted)
        self._broker.delete_records(tp, before)
        self._deleted[tp] += records[: log.first - first]
        self._aborted[tp] |= aborted - log.aborted
        if tp.topic == TOPICS.journal and first < log.first == log.stable():
            self._emptied.append((tp, log.first))
