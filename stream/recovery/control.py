"""Reads the control topic, whose requests change the settings of a running pipeline."""

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.task.changes import Changed, fold
from stream.task.settings import TaskSettings
from stream.wire.codec import MalformedError
from stream.wire.control import Requested, decode_request
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

RECORDS_MAX = 1_000
"""Maximum number of requests per poll."""


class Requests:
    """The requests in a control topic, in order."""

    def __init__(self) -> None:
        self.all: list[Requested] = []
        self.end = 0  # offset after the last request
        self._ids: set[str] = set()

    def add(self, record: Record) -> None:
        """Add the next record. A request with an earlier request's id has no effect."""
        request, refusal = None, ""
        try:
            request = decode_request(record)
        except MalformedError as error:
            refusal = f"expected a request: {error}"
        else:
            if request.id in self._ids:
                refusal = f"id: expected a new one; got {request.id!r} again"
            self._ids.add(request.id)
        self.all.append(Requested(record.offset, record.append_ms, request, refusal))
        self.end = record.offset + 1

    def after(self, settings: TaskSettings, control: int, until: int | None = None) -> Changed:
        """Return the settings after the requests from one offset to another; see `fold`."""
        return fold(settings, control, self.all, until)


def control_tp(topics: Topics) -> TopicPartition:
    """Return the control topic's only partition."""
    return TopicPartition(topics.control, 0)


def read_requests(broker: Broker, topics: Topics) -> Requests:
    """Return all requests up to the topic's current end."""
    requests = Requests()
    for record in read_partition(broker, control_tp(topics)):
        requests.add(record)
    return requests


class ControlFollower:
    """Reads a control topic from its beginning, and then new requests as they arrive."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self.requests = read_requests(broker, topics)
        tp = control_tp(topics)
        self._reader = broker.reader([tp])
        self._reader.seek(tp, self.requests.end)

    def read(self) -> None:
        """Add the requests that have arrived, without waiting for others."""
        for record in self._reader.poll(0, RECORDS_MAX):
            self.requests.add(record)

    def close(self) -> None:
        """Release the connection."""
        self._reader.close()
