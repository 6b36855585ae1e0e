"""Formats values of unknown origin for messages."""

from collections.abc import Sequence
from typing import Any


def shown(value: object) -> str:
    """A value for a message, shortened to about 80 characters.

    >>> shown(None), shown("a"), shown([1] * 100)[-12:]
    ('nothing', "'a'", ', 1, 1, 1...')
    """
    if value is None:
        return "nothing"
    if isinstance(value, Sequence) and len(value) > 40:
        return f"{repr_of(value[:40], 80)}..."
    return repr_of(value, 80)


def repr_of(value: object, length: int) -> str:
    """The first characters of a value's `repr`, for JSON of any depth.

    Python's `repr` fails for deeply nested values: a kilobyte of brackets is enough.

    >>> repr_of({"a": [1, 2, 3]}, 12)
    "{'a': [1, 2,"
    """
    return repr(_to_depth(value, length))[:length]


def _to_depth(value: Any, depth: int) -> Any:
    """A value without the parts nested deeper than `depth`."""
    if type(value) is list:
        return [_to_depth(item, depth - 1) for item in value] if depth > 0 else []
    if type(value) is dict:
        return {name: _to_depth(item, depth - 1) for name, item in value.items()} if depth > 0 else {}
    return value
