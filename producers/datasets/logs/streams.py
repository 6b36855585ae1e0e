"""Files and standard input as decompressed byte streams, split into blocks of whole lines; and tables in memory."""

import gzip
import shutil
import sys
import tempfile
import weakref
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from producers.datasets.base import DatasetError
from stream.text import BYTE_ORDER_MARK

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STDIN = "-"
"""The path that denotes standard input."""

BLOCK_BYTES = 1 << 19
"""Size of a block of lines. It is large enough for vectorisation and small enough for CPU caches."""

LINE_BYTES_MAX = 8 << 20
"""Maximum length of a line, which limits memory use. A longer line is treated as an invalid row."""

HEAD_BYTES = 1 << 16
"""Number of bytes used to detect the format. If the first line is longer, the whole line is used."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""The second to fourth byte of a skippable zstd frame. The first byte is 0x50 to 0x5f."""


class CutOffError(DatasetError):
    """Raised if a compressed file is damaged or truncated."""


class Fault(NamedTuple):
    """A problem with a line."""

    reason: str
    got: str


class LineBlock(NamedTuple):
    """A block of whole lines."""

    data: bytes  # ends at the end of a line, except possibly at the end of the file
    first_line: int  # the number of the block's first line, from 1
    fault: Fault | None = None  # set if this block replaces an invalid line; the line's data are omitted


@dataclass(slots=True, weakref_slot=True)
class Source:
    """A file or a table in memory, which can be read repeatedly. Standard input is copied to a temporary file."""

    path: str  # for a table in memory, its display name
    table: Any = None  # the pyarrow.Table of a table in memory
    _head: bytes | None = None
    _copy: Path | None = None  # copy of standard input, deleted with this object
    _identity: tuple[int, ...] | None = None  # the file's identity when it was first opened

    @property
    def is_stdin(self) -> bool:
        """Whether this is standard input."""
        return self.path == STDIN

    @property
    def is_file(self) -> bool:
        """Whether this is a file, which other processes can read."""
        return self.table is None and not self.is_stdin

    @property
    def name(self) -> str:
        """The display name."""
        return "standard input" if self.is_stdin else self.path

    def file(self) -> Path:
        """Return the file to read.

        Raises:
            DatasetError: there is not enough disk space for the copy of standard input.
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
        """Return the first lines, decompressed, without a byte-order mark.

        Only the last line of the file can be incomplete, or a first line above the maximum length of a line.
        """
        if self._head is None:
            head = b""
            with closing(self.chunks()) as chunks:
                try:
                    while (chunk := next(chunks, None)) is not None:
                        head += chunk
                        if len(head) >= HEAD_BYTES and (b"\n" in head or len(head) > LINE_BYTES_MAX):
                            head = head[: head.rfind(b"\n") + 1] or head
                            break
                except CutOffError:
                    if not head:
                        raise
            self._head = head
        return self._head

    def check_unchanged(self) -> None:
        """Check that the file has not changed since it was first opened.

        Raises:
            DatasetError: the file has changed or cannot be accessed.
        """
        if self.table is not None:
            return
        try:
            found = self.file().stat()
        except OSError as error:
            raise DatasetError(f"cannot read {self.name}: {error.strerror or error}") from error
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        self._identity = self._identity or identity
        if identity != self._identity and S_ISREG(found.st_mode):
            raise DatasetError(f"{self.name} changed while being read; wait until it is complete, or read a copy")

    def chunks(self) -> Generator[bytes, None, None]:
        """Yield all bytes from the start, decompressed, without a byte-order mark.

        Raises:
            CutOffError: the compressed file is damaged or truncated from this point on.
            DatasetError: the file cannot be read or has changed.
        """
        try:
            with self.file().open("rb") as file, _decompressed(file) as content:
                self.check_unchanged()
                try:
                    # A few kilobytes can expand 32,000-fold. The size of a read limits memory use.
                    first = b""
                    while len(first) < len(BYTE_ORDER_MARK) and (chunk := content.read1(BLOCK_BYTES)):
                        first += chunk
                    if first := first.removeprefix(BYTE_ORDER_MARK):
                        yield first
                    while chunk := content.read1(BLOCK_BYTES):
                        yield chunk
                except (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError) as error:
                    self.check_unchanged()
                    raise CutOffError(f"{self.name} is damaged or truncated: {error}. Download it again") from error
                self.check_unchanged()
        except OSError as error:
            raise DatasetError(f"cannot read {self.name}: {error.strerror or error}") from error


def _decompressed(file: BufferedReader) -> BufferedIOBase:
    """Return a file's decompressed content. gzip and zstd are detected from the first bytes."""
    first = file.peek(4)
    if first.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if first.startswith(_ZSTD) or (first[1:4] == _SKIPPABLE and first[0] >> 4 == 5):
        return zstd.ZstdFile(file)
    return file


def line_blocks(chunks: Iterator[bytes]) -> Iterator[LineBlock]:
    """Split a stream into blocks of whole lines. A line that is too long becomes a block with a fault."""
    held = b""  # the start of an incomplete line
    number = 1
    lost = 0  # number of skipped bytes in a line that is too long
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
    """Join chunks into pieces of at least the block size and yield these pieces."""
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
        # Of the data read so far, only the last line can be incomplete.
        whole = b"".join(held)
        yield whole[: whole.rfind(b"\n") + 1]
        raise
    if held:
        yield b"".join(held)
