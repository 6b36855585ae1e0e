"""Reading journals: all steps, the last step, steps from a number on, and the current settings."""

from collections.abc import Iterator
from typing import Any

from stream.journal.format import JournalStep, decode_step
from stream.journal.stored_settings import stored_settings
from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_partition
from stream.snapshots.chunks import Pulse, read_model_snapshots, read_snapshots
from stream.snapshots.state import decode, decode_model
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


def read_journal(
    broker: Broker, journal: TopicPartition, start: int | None = None, open_ms: int = 0
) -> Iterator[tuple[Record, JournalStep]]:
    """The steps of a journal with their records, up to its current end; see `read_partition`.

    Raises:
        JournalError: a record cannot be read, or was written by another program.
    """
    for record in read_partition(broker, journal, start=start, open_ms=open_ms):
        yield record, decode_step(record)


def read_from_step(broker: Broker, journal: TopicPartition, number: int) -> Iterator[tuple[Record, JournalStep]]:
    """The steps of a journal, starting at a number; see `read_journal`."""
    return read_journal(
        broker, journal, offset_of_number(broker, journal, number, lambda record: decode_step(record).number)
    )


def last_step(broker: Broker, journal: TopicPartition) -> JournalStep | None:
    """The last step of a journal, searched backwards from its end."""
    beginning = broker.beginnings([journal])[journal]
    end = broker.ends([journal])[journal].stable
    reach = 100  # in offsets, which include a marker for each transaction
    while True:
        start = max(beginning, end - reach)
        steps = [step for _, step in read_journal(broker, journal, start)]
        if steps or start == beginning:
            return steps[-1] if steps else None
        reach *= 10


def settings_in_force(broker: Broker, topics: Topics, partition: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """The settings of a task after its last step, by name.

    If the task has made no step, these are the settings of the imported model. The result is empty if the task has not
    started or its settings record is deleted; in the latter case recovery reports the missing records.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        partition: the task's partition.
        pulse: called repeatedly while snapshots are read.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    if last is not None:
        _, step = next(read_from_step(broker, journal, last.settings_from))
        if step.settings is not None and step.number == last.settings_from:
            return stored_settings(step.settings)
    stored = read_snapshots(broker, topics, partition, pulse=pulse)
    generation = stored.imported if last is None else stored.newest
    if generation is None:
        return {}
    snapshot = decode(generation, pulse)
    is_older = last is not None and snapshot.step.settings_from != last.settings_from
    return {} if is_older else {"model": "own", **snapshot.settings}


def pipeline_settings(broker: Broker, topics: Topics, partitions: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """The settings by name for tasks that have not started: those of the first task that has started.

    If no task has started, these are the settings of the first imported model. The result is empty in a new pipeline.
    See `settings_in_force`.
    """
    for topic in (topics.journal, topics.snapshots):
        ends = broker.ends([TopicPartition(topic, partition) for partition in range(partitions)])
        for tp, end in ends.items():
            if end.high_watermark and (found := settings_in_force(broker, topics, tp.partition, pulse)):
                return found
    imported = read_model_snapshots(broker, topics, pulse).imported
    return {} if imported is None else {**decode_model(imported).settings, "model": "shared"}


class JournalFollower:
    """Follows the journals of a pipeline, and keeps the last step of each task."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int, *, from_end: bool = False) -> None:
        """Start at the beginning of the journals; with `from_end`, at the last step of each task."""
        journals = [TopicPartition(topics.journal, partition) for partition in range(partitions)]
        self.steps: dict[int, JournalStep] = {}  # last step of each task that has made one
        self._consumer = broker.reader(journals)
        if from_end:
            for journal, ends in broker.ends(journals).items():
                self._consumer.seek(journal, ends.stable)
                if (step := last_step(broker, journal)) is not None:
                    self.steps[journal.partition] = step

    def read(self, timeout_ms: int) -> Ledger:
        """Read new records, and return the sum of the tasks' ledgers."""
        for record in self._consumer.poll(timeout_ms, 10_000):
            self.steps[record.partition] = decode_step(record)
        return total_ledger(step.ledger for step in self.steps.values())

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()
