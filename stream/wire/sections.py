"""Sections, the units of all binary formats. A section encodes a name, values and arrays as bytes.

All numbers are little-endian:

    length of the head, u32 | head, JSON | the arrays' bytes, concatenated, in row-major order

    head    {"name": "learner", "values": {...}, "arrays": [["W", "<f8", [3, 400]], ...]}
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray


class Section(NamedTuple):
    """A named part of a stored state."""

    name: str
    values: Mapping[str, Any] = MappingProxyType({})
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})


def encode_section(section: Section) -> Iterator[bytes | memoryview]:
    """Encode a section and yield the bytes in parts."""
    arrays = [
        (name, np.asarray(array, array.dtype.newbyteorder("<"), order="C")) for name, array in section.arrays.items()
    ]
    described = [(name, array.dtype.str, array.shape) for name, array in arrays]
    yield headed({"name": section.name, "values": dict(section.values), "arrays": described})
    for _, array in arrays:
        if array.size:
            yield array.reshape(-1).view(np.uint8).data


def headed(head: Mapping[str, Any]) -> bytes:
    """Encode a JSON object, preceded by the length of its encoding."""
    encoded = orjson.dumps(head)
    return len(encoded).to_bytes(4, "little") + encoded


def section_name(data: bytes) -> str | None:
    """Return the name of the section at the start of the data, or None if there is no section."""
    try:
        head = orjson.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])
    except orjson.JSONDecodeError:
        return None
    return head.get("name") if isinstance(head, dict) else None


class SectionReader:
    """Reads sections from payloads and releases each payload after reading it."""

    def __init__(self, payloads: list[memoryview]) -> None:
        self._payloads = payloads
        self._payloads.reverse()
        self._remaining = sum(map(len, payloads))
        self._start = 0  # position in the next payload

    def section(self) -> Section:
        """Return the next section.

        Raises:
            ValueError, TypeError, KeyError, IndexError, AttributeError: the bytes do not contain a section.
        """
        head = orjson.loads(self._bytes(int.from_bytes(self._bytes(4), "little")))
        arrays = {}
        for name, dtype, shape in head["arrays"]:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            if np.dtype(dtype).kind not in "biuf" or size > self._remaining:
                raise ValueError(f"{name}: no {dtype} array of shape {shape} fits in the {self._remaining} bytes left")
            # The array is a copy, because the kernels require aligned and writable arrays.
            array = np.empty(shape, dtype)
            if array.size:
                self._fill(array.reshape(-1).view(np.uint8).data)
            arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
        return Section(head["name"], head["values"], arrays)

    def _bytes(self, size: int) -> bytes:
        if size > self._remaining:
            raise ValueError(f"expected {size} more bytes; {self._remaining} are left")
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, target: memoryview) -> None:
        done = 0
        self._remaining -= len(target)
        while done < len(target):
            payload = self._payloads[-1]
            count = min(len(target) - done, len(payload) - self._start)
            target[done : done + count] = payload[self._start : self._start + count]
            done += count
            self._start += count
            if self._start == len(payload):
                self._payloads.pop()
                self._start = 0
