"""Records from other clients that kafka-python cannot read or cannot send again.

- A header's name can contain any bytes, because Kafka does not check it. kafka-python reports a batch with a name that
  is not UTF-8 as corrupt. Here, a byte that is not UTF-8 becomes a lone surrogate (`surrogateescape`), which is
  converted back when the name is sent (`HeaderName`).
- The value of a header can be null. The Broker interface has no null values, so null is read as an empty value.
- A record may lack both a key and a value. kafka-python reads such records, but sends them only if its serializer
  returns null (`NULL`).
- For batches compressed with zstd, kafka-python requires the zstandard package (24 MB). Here, Python 3.14's
  built-in module or its backport (0.5 MB) is used instead.
- If a batch has a wrong checksum, or its codec is missing, kafka-python raises the codec's error without a position,
  and the next read never returns. `PartitionRecords` raises an error with the position on each read.
"""

import sys
from collections.abc import Iterable
from typing import Any

from kafka import codec
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.record import default_records
from kafka.record.default_records import DefaultRecordBatch

from stream.kafka.port import BrokerError
from stream.kafka.refusals import damaged
from stream.wire.records import Headers

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

codec.zstd = zstd  # the client checks only whether this name is None
default_records.zstd_encode, default_records.zstd_decode = zstd.compress, zstd.decompress

NULL = object()
"""Represents the null value in a record that has neither a key nor a value. The producer serializes it as null."""


class HeaderName(str):
    """A header's name; kafka-python calls `encode` to get its bytes."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        """Return the name's original bytes."""
        return super().encode(encoding, errors)


def headers_to_send(headers: Headers) -> list[tuple[str, bytes]]:
    """Convert headers to the format that kafka-python expects."""
    return [(name if name.isascii() else HeaderName(name), value) for name, value in headers]


def headers_read(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Convert headers from kafka-python's format to Onebit's."""
    return tuple([(str(name), b"" if value is None else value) for name, value in headers])


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """A partition's fetched records, read batch by batch."""

    def __init__(self, fetch_offset: int, tp: Any, records: Any, **settings: Any) -> None:
        super().__init__(fetch_offset, tp, _Batches(records), **settings)
        self._unreadable: BrokerError | None = None

    def take(self, n: int | None = None) -> Any:
        """See Fetcher.PartitionRecords.

        Raises:
            BrokerError: a batch cannot be read. The message contains its position, the reason and the remedy.
        """
        if self._unreadable is not None:
            raise self._unreadable
        try:
            return super().take(n)
        except Exception as error:  # every codec has its own exception classes
            reason, remedy = f"{type(error).__name__}: {error}", ""
            if isinstance(error, kafka_errors.UnsupportedCodecError):
                remedy = "install the Python package for the batch's compression codec"
            self._unreadable = BrokerError(damaged(self.topic_partition, self.next_fetch_offset, reason, remedy))
            raise self._unreadable from error


class _Batches:
    """The batches in a fetch response. Their header names can contain any bytes."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch:
            batch.__class__ = _Batch
        return batch


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch whose header names can contain any bytes."""

    __slots__ = ()

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:  # the position has not advanced; read the rest of the batch with a slower method
            self._buffer = _Buffer(self._buffer)  # type: ignore[misc, has-type]
            return super()._read_msg()


class _Buffer(bytearray):
    """Bytes whose slices can always be decoded as header names."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Buffer(found) if isinstance(index, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> HeaderName:
        """Return a header's name."""
        return HeaderName(super().decode(encoding, "surrogateescape"))
