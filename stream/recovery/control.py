"""Reads the control topic, whose requests change the settings of a running pipeline or record a move."""

from bisect import bisect_left

from stream.errors import OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.inputs import NEW_PIPELINE
from stream.recovery.steps import UnrecoverableError
from stream.task.changes import Changed, fold
from stream.task.settings import TaskSettings
from stream.wire.codec import MalformedError
from stream.wire.control import Moved, Requested, decode_request
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class MovedError(OnebitError):
    """The pipeline was moved to other topics, or a move to its topics is incomplete."""


RECORDS_MAX = 1_000
"""Maximum number of requests per poll."""


class Requests:
    """The requests in a control topic, in order."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.all: list[Requested] = []
        self.end = 0  # offset after the last request
        self._ids: set[str] = set()
        self._moves: list[Requested] = []

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
        if request is not None and not refusal and request.moves:
            self._moves.append(self.all[-1])
        self.end = record.offset + 1

    @property
    def moved_to(self) -> Moved | None:
        """The pipeline to which this one was moved, or None."""
        return next((one.request.moved_to for one in self._moves if one.request and one.request.moved_to), None)

    @property
    def moved_from(self) -> Requested | None:
        """The last record that names the pipeline from which this one is moved, or None."""
        return next((one for one in reversed(self._moves) if one.request and one.request.moved_from), None)

    def check_not_moved(self, topics: Topics) -> None:
        """Check that a pipeline was not moved to other topics.

        Raises:
            MovedError: it was.
        """
        if (other := self.moved_to) is not None:
            raise MovedError(
                f"{topics.control}: expected a pipeline that was not moved; this one was moved to {other}. Start the "
                "learners with that broker and topic prefix"
            )

    def check_opened(self, topics: Topics) -> None:
        """Check that no move to these topics is incomplete. Call this only if a task has not taken a step.

        Raises:
            MovedError: a move is incomplete.
        """
        if (one := self.moved_from) is not None and one.request is not None and one.request.moved_from is not None:
            raise MovedError(
                f"{topics.control}: expected a complete move from {one.request.moved_from}; the openings are missing. "
                "Run `onebit move` again, with the same options"
            )

    def end_of_next(self, control: int) -> int:
        """Return the offset after the first request at or after an offset, or the end if there is none."""
        place = bisect_left(self.all, control, key=lambda requested: requested.offset)
        return self.all[place].offset + 1 if place < len(self.all) else self.end

    def after(self, settings: TaskSettings, control: int, until: int | None = None) -> Changed:
        """Return the settings after the requests from one offset to another; see `fold`."""
        return fold(settings, control, self.all, until)

    def settings_after(self, settings: TaskSettings, control: int, until: int) -> TaskSettings:
        """Return the settings of a shared model after the requests from one offset to another; see `SettingsAfter`.

        Raises:
            UnrecoverableError: the topic ends before these requests.
        """
        self.check_end(until)
        return self.after(settings, control, until).settings

    def check_end(self, control: int) -> None:
        """Check that the topic contains all requests before an offset, which were applied or refused.

        Raises:
            UnrecoverableError: it does not.
        """
        if control > self.end:
            raise UnrecoverableError(
                f"expected requests up to offset {control}, which were applied; the topic ends at offset {self.end}. "
                f"It was truncated or recreated. {NEW_PIPELINE}",
                self._topic,
            )


def control_tp(topics: Topics) -> TopicPartition:
    """Return the control topic's only partition."""
    return TopicPartition(topics.control, 0)


def read_requests(broker: Broker, topics: Topics) -> Requests:
    """Return all requests up to the topic's current end."""
    requests = Requests(topics.control)
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
