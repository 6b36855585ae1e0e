"""Timeouts for librdkafka calls that may never return, whatever their own timeout."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_SLICE_S = 0.1
"""Slice of the timeout. A pause of the whole process uses only one slice, so a pending result is still received."""


def bounded(call: Callable[[], T], seconds: float) -> T:
    """Return or raise the result of a call, with a timeout.

    The call runs in a daemon thread. The thread keeps a reference to the client until the call ends, so that no other
    thread blocks in the client's destructor.

    Raises:
        TimeoutError: the call has not returned. Its client can no longer be used.
    """
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except Exception as error:  # raised in the calling thread
            made.set_exception(error)

    Thread(target=make, name="onebit-bounded", daemon=True).start()
    while seconds > _SLICE_S and not wait((made,), _SLICE_S).done:
        seconds -= _SLICE_S
    return made.result(seconds)
