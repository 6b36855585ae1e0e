"""Long operations in time slices, so that running partitions keep deciding in between."""

from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Parts = Generator[bool, None, T]
"""A long operation in the form of a generator, which yields True after each part and returns the result."""


def finish(parts: Parts[T], pulse: Callable[[], object] = lambda: None) -> T:
    """Run an operation to completion. Call `pulse` after each part. An exception in `pulse` ends the operation."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: T = end.value
            return result
        pulse()


def at_once(operation: Callable[P, Parts[T]]) -> Callable[P, T]:
    """Return a function that runs an operation to completion and returns the result."""

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(operation(*args, **kwargs))

    return run
