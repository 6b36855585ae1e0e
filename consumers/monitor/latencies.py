"""Decision latency: the append time of the prediction minus that of its context. The broker sets both times.

A prediction contains the offset of its context, and a partition's contexts are processed in order. The two topics
are merged by offset, and either may be read first. Memory is bounded: while more than WAITING_MAX offsets are waiting,
every other offset is skipped, and each remaining offset is counted twice.
"""

from typing import Any, NamedTuple

from consumers.monitor.windows import RECENT_MS, WINDOW_MS, window_start
from stream.telemetry.sketch import Sketch, total_sketch

WAITING_MAX = 500


class _Waiting(NamedTuple):
    append_ms: int
    times: int  # weight of the record's latency in the counts


class Latencies:
    """The latencies in one partition."""

    def __init__(self) -> None:
        self.all = Sketch()
        self.recent: dict[int, Sketch] = {}  # one sketch per window, by the prediction's append time
        self._stride = 1  # only offsets that are multiples of this number are counted
        self._contexts: dict[int, _Waiting] = {}  # contexts without a prediction, by offset
        self._answers: dict[int, _Waiting] = {}  # predictions whose contexts have not been read, by context offset
        self._read = 0  # next offset to read in the contexts topic

    def ask(self, offset: int, append_ms: int) -> None:
        """Add a context."""
        self._read = offset + 1
        if offset % self._stride:
            return
        while self._answers and next(iter(self._answers)) < offset:
            del self._answers[next(iter(self._answers))]  # this prediction's context no longer exists
        if offset in self._answers:
            answered_ms, times = self._answers.pop(offset)
            self._add(append_ms, answered_ms, times)
        elif not self._answers:  # otherwise a later context has a prediction, so this one is a duplicate
            self._contexts[offset] = _Waiting(append_ms, self._stride)
        self._bound()

    def answer(self, offset: int, append_ms: int) -> None:
        """Add a prediction, given the offset of its context."""
        if offset % self._stride:
            return
        if offset >= self._read:
            self._answers[offset] = _Waiting(append_ms, self._stride)
        else:
            while self._contexts and (first := next(iter(self._contexts))) <= offset:
                asked_ms, times = self._contexts.pop(first)
                if first == offset:
                    self._add(asked_ms, append_ms, times)
        self._bound()

    def since(self, start_ms: int) -> Sketch:
        """Return the latencies for the predictions in all windows that start at `start_ms` or later."""
        return total_sketch(sketch for at_ms, sketch in self.recent.items() if at_ms >= start_ms)

    def _add(self, asked_ms: int, answered_ms: int, times: int) -> None:
        latency_ms = answered_ms - asked_ms
        self.all.add(latency_ms, times)
        self.recent.setdefault(window_start(answered_ms), Sketch()).add(latency_ms, times)
        if len(self.recent) > RECENT_MS // WINDOW_MS:
            del self.recent[min(self.recent)]

    def _bound(self) -> None:
        while max(len(self._contexts), len(self._answers)) > WAITING_MAX:
            self._stride *= 2
            self._contexts, self._answers = self._thinned(self._contexts), self._thinned(self._answers)
        if self._stride > 1 and max(len(self._contexts), len(self._answers)) < WAITING_MAX // 8:
            self._stride //= 2

    def _thinned(self, waiting: dict[int, _Waiting]) -> dict[int, _Waiting]:
        return {
            offset: _Waiting(one.append_ms, self._stride)
            for offset, one in waiting.items()
            if not offset % self._stride
        }

    def state(self) -> dict[str, Any]:
        """Return the state as a JSON value for `load`."""
        return {
            "all": self.all.as_lists(),
            "recent": [[start_ms, sketch.as_lists()] for start_ms, sketch in sorted(self.recent.items())],
            "stride": self._stride,
            "contexts": _rows(self._contexts),
            "answers": _rows(self._answers),
            "read": self._read,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state`."""
        self.all = Sketch(dict(state["all"]))
        self.recent = {start_ms: Sketch(dict(counts)) for start_ms, counts in state["recent"]}
        self._stride, self._read = state["stride"], state["read"]
        self._contexts, self._answers = (
            {offset: _Waiting(*waiting) for offset, *waiting in state[topic]} for topic in ("contexts", "answers")
        )


def _rows(waiting: dict[int, _Waiting]) -> list[list[int]]:
    return [[offset, *one] for offset, one in waiting.items()]
