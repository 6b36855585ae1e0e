"""Reading a partition from a broker that goes away."""

import pytest

from stream.brokers.port import BrokerUnavailableError
from stream.brokers.reading import read_partition
from stream.simulation.faulty_broker import FaultyBroker, Transactions, Verdict
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
        self.broker = FaultyBroker(pipeline.broker, "reader", self._consult, Transactions())

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
