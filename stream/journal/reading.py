"""Finding things in journals without reading them from their beginning."""

from collections.abc import Callable, Iterator

from stream.journal.format import Entry, JournalStep, Opening, SettingsChange, decode_step, is_foreign
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition, read_towards
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


def read_journal(
    broker: Broker,
    journal: TopicPartition,
    start: int | None = None,
    open_ms: int = 0,
    pass_over: Callable[[Record], None] = lambda record: None,
) -> Iterator[tuple[Record, Entry]]:
    """What stands in a journal, with the records that hold it; see `read_partition`.

    Args:
        broker: where the journal is.
        journal: the journal.
        start: the offset to begin with; None for the first one.
        open_ms: how long to wait for the end of an open transaction.
        pass_over: is told of records that other programs have written; see `is_foreign`.

    Raises:
        JournalError: a record cannot be read.
    """
    for record in read_partition(broker, journal, start=start, open_ms=open_ms):
        if is_foreign(record):
            pass_over(record)
        else:
            yield record, decode_step(record)


def last_step(broker: Broker, journal: TopicPartition) -> JournalStep | None:
    """The newest step in a journal, found from its end."""
    beginning = broker.beginnings([journal])[journal]
    end = broker.ends([journal])[journal].stable
    reach = 100  # offsets: beside its record each transaction has a marker
    while True:
        start = max(beginning, end - reach)
        entries = read_journal(broker, journal, start)
        steps = [entry for _, entry in entries if isinstance(entry, JournalStep)]
        if steps or start == beginning:
            return steps[-1] if steps else None
        reach *= 10


def settings_entry(broker: Broker, journal: TopicPartition, number: int) -> Opening | SettingsChange | None:
    """The record of the settings that hold from a step on, 0: from the first one; None when it is gone.

    By bisection: numbers grow along a journal.

    Raises:
        BrokerUnavailableError: nothing came for as long as `read_towards` waits.
    """
    low, high = broker.beginnings([journal])[journal], broker.ends([journal])[journal].stable
    consumer = broker.reader([journal])
    found: Opening | SettingsChange | None = None
    try:
        while low < high:
            middle = (low + high) // 2
            consumer.seek(journal, middle)
            record = None
            while (record is None or is_foreign(record)) and consumer.position(journal) < high:
                record = next(iter(read_towards(consumer, journal, high, records_max=1)), None)
            if record is None or is_foreign(record) or record.offset >= high:
                high = middle  # from the middle on there are only markers of transactions, and what others wrote
                continue
            entry = decode_step(record)
            stands_at = 0 if isinstance(entry, Opening) else entry.number
            if stands_at == number and not isinstance(entry, JournalStep):
                found = entry
                break
            if stands_at >= number:
                high = middle
            else:
                low = record.offset + 1
    finally:
        consumer.close()
    return found


class JournalFollower:
    """Follows the journals of a pipeline: where each of its tasks stands."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int, *, from_end: bool = False) -> None:
        """Begin with the first records; or, from the end, with the last step of each task, whatever was before it."""
        journals = [TopicPartition(topics.journal, partition) for partition in range(partitions)]
        self.steps: dict[int, JournalStep] = {}  # the last step of each task that has made one
        self._consumer = broker.reader(journals)
        if from_end:
            for journal, ends in broker.ends(journals).items():
                self._consumer.seek(journal, ends.stable)
                if (step := last_step(broker, journal)) is not None:
                    self.steps[journal.partition] = step

    def read(self, timeout_ms: int) -> Ledger:
        """Read what has come, and return the sum of the tasks' ledgers."""
        for record in self._consumer.poll(timeout_ms, 10_000):
            entry = None if is_foreign(record) else decode_step(record)
            if isinstance(entry, JournalStep):
                self.steps[record.partition] = entry
        return total_ledger(step.ledger for step in self.steps.values())

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()
