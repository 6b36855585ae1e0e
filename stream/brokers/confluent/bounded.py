"""Calls of librdkafka that may never come back, whatever time they are given."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


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
    return made.result(seconds)
