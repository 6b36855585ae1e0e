"""Records as other clients write them, which kafka-python does not read, or does not write again.

- A header's name need not be UTF-8: Kafka does not look at it, and librdkafka sends any bytes. kafka-python calls such
  a batch corrupt. Here a byte that is not UTF-8 becomes a lone surrogate (`surrogateescape`), and the same byte again
  when the name is sent (`HeaderName`).
- The value of a header may be null. The port knows no such value: it is read as an empty one.
- A record may have neither key nor value. kafka-python reads it, and refuses to send it, unless its serializer makes
  the null (`NullSerializer`).
- A batch that cannot be read (its checksum is wrong, its codec is not installed) is told without its place, by whatever
  error the codec raises; and when it is asked for again, kafka-python turns in an endless loop. `PartitionRecords` says
  where it stands, again and again.
"""

from collections.abc import Iterable
from typing import Any

from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch
from kafka.serializer import Serializer

from stream.kafka.refusals import damaged
from stream.wire.records import Headers

NULL = object()
"""Stands for the value of a record that has neither key nor value."""


class NullSerializer(Serializer):  # type: ignore[misc]
    """Makes null of NULL, and leaves bytes as they are."""

    def serialize(self, topic: str, headers: Any, data: Any) -> Any:
        """See kafka.serializer.Serializer."""
        return None if data is NULL else data


class HeaderName(str):
    """The name of a header, whose bytes kafka-python asks for by `encode`."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        """The bytes that the name was read from."""
        return super().encode(encoding, errors)


def headers_to_send(headers: Headers) -> list[tuple[str, bytes]]:
    """Headers as kafka-python takes them."""
    return [(name if name.isascii() else HeaderName(name), value) for name, value in headers]


def headers_read(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers as the port has them."""
    return tuple([(str(name), b"" if value is None else value) for name, value in headers])


class UnreadableError(Exception):
    """A batch that kafka-python cannot read; the message says where it stands, why, and what to do."""


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What was fetched of a partition, read batch by batch."""

    def __init__(self, fetch_offset: int, tp: Any, records: Any, **settings: Any) -> None:
        super().__init__(fetch_offset, tp, _Batches(records), **settings)
        self._unreadable: UnreadableError | None = None

    def take(self, n: int | None = None) -> Any:
        """See Fetcher.PartitionRecords."""
        if self._unreadable is not None:
            raise self._unreadable
        try:
            return super().take(n)
        except Exception as error:  # each codec raises errors of its own
            tp = self.topic_partition
            self._unreadable = UnreadableError(
                damaged(tp, self.next_fetch_offset, f"{type(error).__name__}: {error}", _remedy(error))
            )
            raise self._unreadable from error


def _remedy(error: Exception) -> str:
    is_codec = isinstance(error, kafka_errors.UnsupportedCodecError)
    return "install the package of the codec that its batch is compressed with" if is_codec else ""


class _Batches:
    """The batches of a fetch, each to be read leniently."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch:
            batch.__class__ = _Batch
        return batch


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch in which the name of a header may be any bytes."""

    __slots__ = ()

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:  # the position has not moved; from here on the batch is read more slowly
            self._buffer = _Buffer(self._buffer)  # type: ignore[misc, has-type]
            return super()._read_msg()


class _Buffer(bytearray):
    """Bytes whose parts are decoded whatever they are."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Buffer(found) if isinstance(index, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> HeaderName:
        """A header's name."""
        return HeaderName(super().decode(encoding, "surrogateescape"))
