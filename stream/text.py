r"""Text in files: UTF-8 with or without a byte-order mark, in lines that end with `\n` or `\r\n`.

`str.splitlines` also cuts at U+2028, U+0085, form feeds and other characters, which are data here.
"""

from importlib.resources.abc import Traversable

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The UTF-8 byte-order mark, which some editors and exports write at the start of a file."""


def read_bytes(path: Traversable) -> bytes:
    """Read a file without its byte-order mark."""
    return path.read_bytes().removeprefix(BYTE_ORDER_MARK)


def read_text(path: Traversable) -> str:
    """Read a UTF-8 file without its byte-order mark. Line ends are kept.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return read_bytes(path).decode()


def is_utf8(text: str) -> bool:
    r"""Return whether a text can be written as UTF-8. Lone surrogates represent bytes that are not UTF-8.

    >>> is_utf8("café"), is_utf8("caf\udce9")
    (True, False)
    """
    return text.encode(errors="ignore").decode() == text  # "ignore" drops lone surrogates


def lines_of(text: str) -> list[str]:
    r"""Split a text into lines, without their ends.

    >>> lines_of("a\u2028b\r\nc\x0cd\n")
    ['a\u2028b', 'c\x0cd']
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
