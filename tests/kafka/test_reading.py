"""Reading a partition from a broker that goes away, and some of its records again."""

import pytest

from stream.kafka.port import BrokerUnavailableError
from stream.kafka.reading import RUN_GAP_MAX, RecordsAt, read_partition
from stream.simulation.faulty_broker import FaultyBroker, Verdict
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, small_task

CONTEXTS = TopicPartition(TOPICS.contexts, 0)


class _Outage:
    """A broker with three contexts, that from a moment on does not answer."""

    def __init__(self) -> None:
        self.away = False
        pipeline = Pipeline(small_task())
        for number in range(3):
            pipeline.context(f"e{number}")
        self.broker = FaultyBroker(pipeline.broker, "reader", self._consult)

    def _consult(self, operation: str) -> Verdict:
        if self.away:
            raise BrokerUnavailableError(f"no broker for: {operation}")
        return Verdict.PROCEEDS


def test_a_reader_that_is_abandoned_while_the_broker_is_away_says_nothing() -> None:
    outage = _Outage()
    reading = read_partition(outage.broker, CONTEXTS)
    assert next(reading).offset == 0
    outage.away = True
    del reading  # what its end raised would be printed, and warned of


def test_all_that_was_read_is_given_although_the_broker_went_away_before_the_end() -> None:
    outage = _Outage()
    offsets = []
    for record in read_partition(outage.broker, CONTEXTS):
        outage.away = True
        offsets.append(record.offset)
    assert offsets == [0, 1, 2]


def test_a_reading_that_the_outage_breaks_off_is_an_error() -> None:
    outage = _Outage()
    reading = read_partition(outage.broker, CONTEXTS)
    outage.away = True
    with pytest.raises(BrokerUnavailableError, match="no broker for: ends"):
        next(reading)


@pytest.fixture
def many() -> RecordsAt:
    """What reads contexts e0, e1, ... again, of which there are enough for two runs."""
    pipeline = Pipeline(small_task())
    for number in range(RUN_GAP_MAX + 10):
        pipeline.context(f"e{number}")
    return RecordsAt(pipeline.broker, CONTEXTS)


def test_records_are_found_by_their_offsets_in_any_order_and_those_that_are_not_there_are_left_out(
    many: RecordsAt,
) -> None:
    last = RUN_GAP_MAX + 9
    for offsets in ([5, 3], [4, 6, 7], [3], [last, 2, 2], [8], [], [last, last + 1, 10**15, -1], [0, last]):
        found = many.read(offsets)
        assert found.keys() == {offset for offset in offsets if 0 <= offset <= last}
        assert {offset: record.key for offset, record in found.items()} == {offset: b"e%d" % offset for offset in found}


def test_an_outage_is_an_error_of_reading_again() -> None:
    outage = _Outage()
    again = RecordsAt(outage.broker, CONTEXTS)
    assert again.read([1]).keys() == {1}
    outage.away = True
    with pytest.raises(BrokerUnavailableError, match="no broker for"):
        again.read([2])
