"""Rows of numbers as most JSON writes them, those of many records read at once by compiled code.

A row is plain when it is `[1,2,3]`, with or without blanks before its numbers, and these are whole ones of at most nine
digits, or decimal ones of at most fifteen, which one division gives as they are rounded. Of all others this says
nothing; they are for a parser of JSON. What it reads is what such a parser reads, to the bit.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.kernels import compiled
from stream.wire.events import FloatArray, IndexArray

ByteArray = NDArray[np.uint8]
PlaceArray = NDArray[np.int64]
Numbers = TypeVar("Numbers", IndexArray, FloatArray)

OPENING, CLOSING, COMMA, BLANK, MINUS, POINT, ZERO, NINE = b"[], -.09"
NOT_PLAIN = -1  # the length of a row of which nothing is said
INDEX_DIGITS_MAX = 9  # what is below 10⁹ fits 32 bits
NUMBER_DIGITS_MAX = 15  # a whole number below 10¹⁵ is a float64, and so are these powers: a quotient is rounded once
POWERS: FloatArray = np.array([float(10**places) for places in range(NUMBER_DIGITS_MAX + 1)])


def read_indices(texts: Sequence[bytes], n_features: int) -> list[IndexArray | None]:
    """The row in each text, of strictly increasing indices below n_features; None where it is not plain.

    >>> read_indices([b"[0,2]", b"[2,1]", b"[1]"], 3)
    [array([0, 2], dtype=int32), None, array([1], dtype=int32)]
    """
    text, ends, lengths = _joined(texts)
    indices = np.empty(text.size, np.int32)
    _read_indices(text, ends, n_features, indices, lengths)
    return _rows(indices, lengths)


def read_numbers(texts: Sequence[bytes]) -> list[FloatArray | None]:
    """The row of numbers in each text; None where it is not plain.

    >>> read_numbers([b"[0.5,-2]", b"[1e5]"])
    [array([ 0.5, -2. ]), None]
    """
    text, ends, lengths = _joined(texts)
    numbers = np.empty(text.size)
    _read_numbers(text, ends, numbers, lengths)
    return _rows(numbers, lengths)


def _joined(texts: Sequence[bytes]) -> tuple[ByteArray, PlaceArray, PlaceArray]:
    """The bytes of all texts, where each ends, and room for the lengths of their rows."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return np.frombuffer(b"".join(texts), np.uint8), ends, np.empty(len(texts), np.int64)


def _rows(numbers: Numbers, lengths: PlaceArray) -> list[Numbers | None]:
    """Each row as a copy: one that is kept would else keep the memory of all."""
    rows: list[Numbers | None] = []
    start = 0
    for length in lengths.tolist():
        if length == NOT_PLAIN:
            rows.append(None)
        else:
            stop = start + length
            rows.append(numbers[start:stop].copy())
            start = stop
    return rows


@compiled
def _read_indices(text: ByteArray, ends: PlaceArray, n_features: int, indices: IndexArray, lengths: PlaceArray) -> None:
    n = start = 0
    for row in range(ends.size):
        lengths[row] = _read_index_row(text[start : ends[row]], n_features, indices[n:])
        n += max(lengths[row], 0)
        start = ends[row]


@compiled
def _read_index_row(text: ByteArray, n_features: int, indices: IndexArray) -> int:
    """The length of the row, or NOT_PLAIN."""
    if text.size < 2 or text[0] != OPENING or text[-1] != CLOSING:
        return NOT_PLAIN
    if text.size == 2:
        return 0
    n, last = 0, -1
    number = digits = 0
    for at in range(1, text.size):
        byte = text[at]
        if ZERO <= byte <= NINE:
            if digits == INDEX_DIGITS_MAX or (digits == 1 and number == 0):
                return NOT_PLAIN
            number = 10 * number + (byte - ZERO)
            digits += 1
        elif byte == BLANK and digits == 0:
            continue
        elif digits == 0 or number <= last or number >= n_features or (byte != COMMA and at < text.size - 1):
            return NOT_PLAIN
        else:
            indices[n] = last = number
            n += 1
            number = digits = 0
    return n


@compiled
def _read_numbers(text: ByteArray, ends: PlaceArray, numbers: FloatArray, lengths: PlaceArray) -> None:
    n = start = 0
    for row in range(ends.size):
        lengths[row] = _read_number_row(text[start : ends[row]], numbers[n:])
        n += max(lengths[row], 0)
        start = ends[row]


@compiled
def _read_number_row(text: ByteArray, numbers: FloatArray) -> int:
    """The length of the row, or NOT_PLAIN."""
    if text.size < 2 or text[0] != OPENING or text[-1] != CLOSING:
        return NOT_PLAIN
    if text.size == 2:
        return 0
    n = 0
    sign, number, digits, places = 1.0, 0, 0, -1  # places behind the point; -1: there is none
    for at in range(1, text.size):
        byte = text[at]
        if ZERO <= byte <= NINE:
            if digits == NUMBER_DIGITS_MAX or (digits == 1 and number == 0 and places < 0):
                return NOT_PLAIN
            number = 10 * number + (byte - ZERO)
            digits += 1
            places += places >= 0
        elif byte == POINT:
            if digits == 0 or places >= 0:
                return NOT_PLAIN
            places = 0
        elif byte == MINUS:
            if digits > 0 or places >= 0 or sign < 0.0:
                return NOT_PLAIN
            sign = -1.0
        elif byte == BLANK and digits == 0 and sign > 0.0:
            continue
        elif digits == 0 or places == 0 or (byte != COMMA and at < text.size - 1) or (number == 0 and sign < 0.0):
            return NOT_PLAIN
        else:
            numbers[n] = sign * number / POWERS[max(places, 0)]
            n += 1
            sign, number, digits, places = 1.0, 0, 0, -1
    return n
