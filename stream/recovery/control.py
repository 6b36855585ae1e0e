"""Reads the control topic, whose requests change the settings of a running pipeline or record a move."""

from bisect import bisect_left
from hashlib import sha256
from io import BytesIO

from stream.errors import OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import RecordsAt, read_partition
from stream.learners import ParameterError
from stream.parsing import shown
from stream.recovery.inputs import LOST_RECORDS
from stream.recovery.model_files import ModelError, decode_model_file
from stream.recovery.steps import UnrecoverableError
from stream.task.carry import StartModel, no_models
from stream.task.changes import Changed, fold
from stream.task.settings import TaskSettings
from stream.wire.codec import MalformedError
from stream.wire.control import (
    STARTED_FROM,
    Moved,
    Part,
    Requested,
    decode_request,
    model_digest,
    models_of,
    part_of,
)
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class MovedError(OnebitError):
    """The pipeline was moved to other topics, or a move to its topics is incomplete."""


RECORDS_MAX = 1_000
"""Maximum number of requests per poll."""


class Upload:
    """The records of a model file, as far as they have been read."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.count = 0  # number of records of the whole file
        self._sha256 = sha256()
        self.digest = ""  # of the whole file; empty while parts are missing

    def add(self, part: Part, record: Record) -> None:
        """Add the next part. The first part begins the file again, unless it is whole. Others must be in order."""
        if self.digest:
            return
        if part.number == 0:
            self.offsets, self.count, self._sha256 = [], part.parts, sha256()
        if (part.number, part.parts) == (len(self.offsets), self.count):
            self.offsets.append(record.offset)
            self._sha256.update(record.value or b"")
            if len(self.offsets) == self.count:
                self.digest = self._sha256.hexdigest()


class Requests:
    """The requests in a control topic, in order, and the positions of the model files that they name."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self._broker = broker
        self._tp = control_tp(topics)
        self.all: list[Requested] = []
        self.end = 0  # offset after the last record
        self._uploads: dict[str, Upload] = {}  # the model files, by digest
        self._ids: set[str] = set()
        self._moves: list[Requested] = []

    def add(self, record: Record) -> None:
        """Add the next record. A request with an earlier request's id has no effect."""
        self.end = record.offset + 1
        request, refusal = None, ""
        try:
            if (part := part_of(record)) is not None:
                self._uploads.setdefault(part.digest, Upload()).add(part, record)
                return
            request = decode_request(record)
        except MalformedError as error:
            refusal = f"expected a request: {error}"
        else:
            if request.id in self._ids:
                refusal = f"id: expected a new one; got {request.id!r} again"
            elif missing := [one for one in models_of(request) if not self.has_model(str(one))]:
                refusal = (
                    f"{STARTED_FROM}: expected the digest of a model file in earlier records; got {shown(missing[0])}. "
                    "Send the file before the request, as `onebit change` does"
                )
            self._ids.add(request.id)
        self.all.append(Requested(record.offset, record.append_ms, request, refusal))
        if request is not None and not refusal and request.moves:
            self._moves.append(self.all[-1])

    @property
    def due(self) -> int:
        """The offset after the last request, or 0 if there is none."""
        return self.all[-1].offset + 1 if self.all else 0

    def has_model(self, digest: str) -> bool:
        """Return whether the topic contains the whole model file with this digest."""
        return digest in self._uploads and self._uploads[digest].digest == digest

    def model(self, digest: str) -> StartModel:
        """Read the model file with this digest.

        Raises:
            UnrecoverableError: its records were deleted.
            ParameterError: the topic does not contain the file, or it is not a model.
        """
        if not self.has_model(digest):
            return no_models(digest)
        offsets = self._uploads[digest].offsets
        reader = RecordsAt(self._broker, self._tp)
        try:
            found = reader.read(offsets)
        finally:
            reader.close()
        content = b"".join(found[offset].value or b"" for offset in offsets if offset in found)
        if model_digest(content) != digest:
            raise UnrecoverableError(
                f"expected the model file {digest} at offsets {offsets[0]} to {offsets[-1]}, with which a challenger "
                f"started; the records were deleted. The topic was truncated or recreated. {LOST_RECORDS}",
                str(self._tp),
            )
        try:
            return decode_model_file(BytesIO(content), len(content), f"the model file {digest} in {self._tp}").start()
        except ModelError as error:
            raise ParameterError(f"{STARTED_FROM}: {error}") from error

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
        """Return the offset after the first request at or after an offset, or after the last one if there is none."""
        place = bisect_left(self.all, control, key=lambda requested: requested.offset)
        return self.all[place].offset + 1 if place < len(self.all) else self.due

    def after(self, settings: TaskSettings, control: int, until: int | None = None) -> Changed:
        """Return the settings after the requests from one offset to another; see `fold`."""
        return fold(settings, control, self.all, until, self.model)

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
                f"It was truncated or recreated. {LOST_RECORDS}",
                str(self._tp),
            )


def control_tp(topics: Topics) -> TopicPartition:
    """Return the control topic's only partition."""
    return TopicPartition(topics.control, 0)


def read_requests(broker: Broker, topics: Topics) -> Requests:
    """Return all requests up to the topic's current end."""
    requests = Requests(broker, topics)
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
