"""Calls of librdkafka that may never come back, whatever time they are given."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_SLICE_S = 0.1
"""Of a pause of the whole process so much counts as time, at most: an answer that was under way is still heard."""


def bounded(call: Callable[[], T], seconds: float) -> T:
    """What a call gives or raises, if it comes back in time.

    A thread of its own makes it, for whose end no process waits. As long as it lasts it keeps the client that it works
    on, so that nobody else waits for the client's end either.

    Raises:
        TimeoutError: it has not come back. Its client is of no more use.
    """
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except Exception as error:  # the caller's
            made.set_exception(error)

    Thread(target=make, name="onebit-bounded", daemon=True).start()
    while seconds > _SLICE_S and not wait((made,), _SLICE_S).done:
        seconds -= _SLICE_S
    return made.result(seconds)
