"""Files and standard input as streams of bytes, unpacked, and cut into blocks of whole lines."""

import shutil
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NamedTuple, Protocol, cast

import zstandard

from producers.datasets.base import DatasetError

STDIN = "-"
"""How standard input is called where a path is asked for."""

BLOCK_BYTES = 1 << 19
"""The size of a block of lines: large enough for arrays, and small enough for the caches of a processor."""

LINE_BYTES_MAX = 8 << 20
"""A longer line is a bad row: no decision's context is that large, and it must not fill the memory."""

HEAD_BYTES = 1 << 16
"""What is looked at to find out the format."""

_PACKED_BYTES = 1 << 15  # read at once from a packed file; it may unpack to a thousand times as much

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class CutOffError(DatasetError):
    """A packed file that is damaged, or ends before its end."""


class Fault(NamedTuple):
    """What is wrong with a line."""

    reason: str
    got: str


class LineBlock(NamedTuple):
    """Whole lines."""

    data: bytes  # ends with a line end, but perhaps at the end of the file
    first_line: int  # the number of its first line, from 1
    fault: Fault | None = None  # this block stands for one line that cannot be used, and its data was left out


class _Unpacker(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(slots=True, weakref_slot=True)
class Source:
    """A file that can be read any number of times. Standard input is copied to a temporary file first."""

    path: str
    _head: bytes | None = None
    _copy: Path | None = None  # of standard input, deleted with this
    _identity: tuple[int, ...] | None = None  # of the file as it was when it was opened for the first time

    @property
    def is_stdin(self) -> bool:
        """Whether it is standard input."""
        return self.path == STDIN

    @property
    def name(self) -> str:
        """As messages call it."""
        return "standard input" if self.is_stdin else self.path

    def file(self) -> Path:
        """Return the file to read.

        Raises:
            DatasetError: there is no room for the copy of standard input.
        """
        if not self.is_stdin:
            return Path(self.path)
        if self._copy is None:
            try:
                with tempfile.NamedTemporaryFile(prefix="onebit-", delete=False) as copy:
                    self._copy = Path(copy.name)
                    weakref.finalize(self, self._copy.unlink, missing_ok=True)
                    shutil.copyfileobj(sys.stdin.buffer, copy)
            except OSError as error:
                raise DatasetError(
                    f"cannot copy standard input to {tempfile.gettempdir()}: {error.strerror or error}"
                ) from error
        return self._copy

    def head(self) -> bytes:
        """Return the first bytes, unpacked."""
        if self._head is None:
            head = b""
            with closing(self.chunks()) as chunks:
                try:
                    while len(head) < HEAD_BYTES and (chunk := next(chunks, None)) is not None:
                        head += chunk
                except CutOffError:
                    if not head:
                        raise
            self._head = head
        return self._head

    def check_unchanged(self) -> None:
        """See that a file is the one that was opened first: what is read of it belongs together.

        Raises:
            DatasetError: it has changed, or cannot be looked at.
        """
        try:
            found = self.file().stat()
        except OSError as error:
            raise DatasetError(f"cannot read {self.name}: {error.strerror or error}") from error
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        self._identity = self._identity or identity
        if identity != self._identity and S_ISREG(found.st_mode):
            raise DatasetError(f"{self.name} has changed while it was read; wait until it is written, or read a copy")

    def chunks(self) -> Generator[bytes, None, None]:
        """Return all bytes from the beginning, unpacked.

        Raises:
            CutOffError: at the place where a packed file is damaged or ends too early.
            DatasetError: it cannot be read, or has changed.
        """
        try:
            with self.file().open("rb") as file:
                self.check_unchanged()
                try:
                    yield from self._unpacked(file)
                except CutOffError:
                    self.check_unchanged()
                    raise
                self.check_unchanged()
        except OSError as error:
            raise DatasetError(f"cannot read {self.name}: {error.strerror or error}") from error

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        first = file.read(_PACKED_BYTES)
        if first.startswith(_GZIP):
            yield from self._decompressed(file, first, _gzip, "gzip")
        elif first.startswith(_ZSTD):
            yield from self._decompressed(file, first, _zstd, "zstd")
        else:
            while first:
                yield first
                first = file.read(BLOCK_BYTES)

    def _decompressed(self, file: BinaryIO, packed: bytes, new: Callable[[], _Unpacker], kind: str) -> Iterator[bytes]:
        """Both kinds of files may be several packed ones behind each other."""
        unpacker = new()
        while packed:
            try:
                unpacked = unpacker.decompress(packed)
            except (zlib.error, zstandard.ZstdError) as error:
                raise CutOffError(f"{self.name} is damaged {kind}: {error}; fetch it again") from error
            if unpacked:
                yield unpacked
            packed = (unpacker.unused_data if unpacker.eof else b"") or file.read(_PACKED_BYTES)
            if unpacker.eof:
                packed = packed.lstrip(b"\0") or file.read(_PACKED_BYTES)  # tapes and block devices pad with zeros
                if not packed:
                    return
                unpacker = new()
        raise CutOffError(f"{self.name} is cut off: its {kind} stream has no end; fetch it again")


def _gzip() -> _Unpacker:
    return cast(_Unpacker, zlib.decompressobj(wbits=31))


def _zstd() -> _Unpacker:
    return cast(_Unpacker, zstandard.ZstdDecompressor().decompressobj())


def line_blocks(chunks: Iterator[bytes]) -> Iterator[LineBlock]:
    """Cut a stream into blocks of whole lines; a line that is too long is a fault of its own."""
    held = b""  # the beginning of a line
    number = 1
    lost = 0  # bytes of a line that is too long, so far
    for chunk in _gathered(chunks):
        begin = 0
        if lost:
            begin = chunk.find(b"\n") + 1
            lost += begin or len(chunk)
            if not begin:
                continue
            yield LineBlock(b"", number, _too_long(lost))
            number, lost = number + 1, 0
        end = chunk.rfind(b"\n") + 1
        if end > begin:
            block = held + chunk[begin:end]
            yield LineBlock(block, number)
            number += block.count(b"\n")
            held, begin = b"", end
        held += chunk[begin:]
        if len(held) > LINE_BYTES_MAX:
            held, lost = b"", len(held)
    if lost:
        yield LineBlock(b"", number, _too_long(lost))
    elif held:
        yield LineBlock(held, number)


def _too_long(size: int) -> Fault:
    return Fault(f"line: expected at most {LINE_BYTES_MAX} bytes", f"{size} bytes")


def _gathered(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about the size of a block."""
    held: list[bytes] = []
    size = 0
    try:
        for chunk in chunks:
            held.append(chunk)
            size += len(chunk)
            if size >= BLOCK_BYTES:
                yield b"".join(held)
                held, size = [], 0
    except CutOffError:
        # What came before is whole, but for its last line.
        whole = b"".join(held)
        yield whole[: whole.rfind(b"\n") + 1]
        raise
    if held:
        yield b"".join(held)
