"""A queue of ids and their times, oldest first, using 17 to 19 bytes per id."""

from array import array
from collections import deque


class AgeQueue:
    """A queue of ids by age. An `OrderedDict` would need 70 bytes more per id."""

    __slots__ = ("_head", "_ids", "_times_ms")

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._times_ms = array("q")  # valid from `_head` on; earlier ones belong to removed ids
        self._head = 0

    def append(self, event_id: str, time_ms: int) -> None:
        """Add the newest id."""
        self._ids.append(event_id)
        self._times_ms.append(time_ms)

    def oldest_id(self) -> str:
        """The oldest id of a queue that is not empty."""
        return self._ids[0]

    def oldest_ms(self) -> int | None:
        """The time of the oldest id; None if the queue is empty."""
        return self._times_ms[self._head] if self._ids else None

    def popleft(self) -> bool:
        """Remove the oldest id; return whether this freed the memory of a quarter of the ids."""
        self._ids.popleft()
        self._head += 1
        if self._head <= len(self._ids) >> 2:
            return False
        del self._times_ms[: self._head]
        self._head = 0
        return True

    def times_ms(self) -> "array[int]":
        """A copy of the times, oldest first."""
        return self._times_ms[self._head :]
