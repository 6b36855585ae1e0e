"""Values of others as they stand in messages."""

from typing import Any


def repr_of(value: object, length: int) -> str:
    """The first characters of a value's `repr`, of JSON as deep as it may be.

    Python gives `repr` up where a value is nested deeper than its stack, which a kilobyte of brackets is.

    >>> repr_of({"a": [1, 2, 3]}, 12)
    "{'a': [1, 2,"
    """
    return repr(_to_depth(value, length))[:length]


def _to_depth(value: Any, depth: int) -> Any:
    """A value without what is nested so deep that as many brackets stand before it."""
    if type(value) is list:
        return [_to_depth(item, depth - 1) for item in value] if depth > 0 else []
    if type(value) is dict:
        return {name: _to_depth(item, depth - 1) for name, item in value.items()} if depth > 0 else {}
    return value
