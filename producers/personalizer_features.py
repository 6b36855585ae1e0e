"""Features in Azure Personalizer's requests and logs: lists of objects.

Nested objects become dotted names such as `user.age`, as in logs in dsjson. In an array, numbers become `grams[0]`,
`grams[1]`, and strings become features with the value 1, such as `tags.new`. Null values, and names that start with an
underscore, are ignored, as in Personalizer.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from stream.parsing import shown
from stream.wire.codec import VALUE_BYTES_MAX, MalformedError

LEVELS_MAX = 32
"""Limit on the levels of nested objects in features."""


def flat_features(name: str, given: Any) -> dict[str, Any]:
    """Return named features from a list of objects.

    >>> flat_features("features", [{"taste": "sweet", "_url": "/7"}, {"user": {"age": 21, "pro": True, "city": None}}])
    {'taste': 'sweet', 'user.age': 21, 'user.pro': True}
    >>> flat_features("features", [{"grams": [400, 800], "tags": ["new", "new", "hot"]}])
    {'grams[0]': 400, 'grams[1]': 800, 'tags.new': 2.0, 'tags.hot': 1}
    >>> flat_features("features", [{"tag": "new", "clicks": 3}, {"tag": "hot", "clicks": 4}])
    {'tag': 'new', 'clicks': 7.0, 'tag.hot': 1}

    Raises:
        MalformedError: a value is not a feature, the names and texts are too long, or a sum of numbers is too large.
    """
    found: dict[str, Any] = {}
    size = 0  # a nested feature's name repeats the names of the objects around it, so it can exceed the request's size
    for place, one in enumerate(list_of(name, given)):
        where = f"{name}[{place}]"
        for feature, value in _flat(where, object_of(where, one), "", LEVELS_MAX):
            size += len(feature) + (len(value) if type(value) is str else 0)
            if size > VALUE_BYTES_MAX:
                raise MalformedError(
                    f"{where}: expected at most {VALUE_BYTES_MAX} characters in the names and texts of all features, "
                    "with the names of nested objects in each name; got more"
                )
            _add(where, found, feature, value)
    return found


def object_of(name: str, given: Any) -> dict[str, Any]:
    """Return an object. `name` is its place in the request, for messages."""
    if type(given) is not dict:
        raise MalformedError(f"{name}: expected an object; got {shown(given)}")
    return given


def list_of(name: str, given: Any) -> list[Any]:
    """Return an array. A missing array is empty."""
    if given is None:
        return []
    if type(given) is not list:
        raise MalformedError(f"{name}: expected an array; got {shown(given)}")
    return given


def _flat(where: str, fields: Mapping[str, Any], prefix: str, levels: int) -> Iterator[tuple[str, str | float]]:
    """Yield the names and values in an object."""
    if not levels:
        raise MalformedError(f"{where}: expected at most {LEVELS_MAX} levels of nesting; got more")
    for name, value in fields.items():
        if name.startswith("_"):
            continue
        for inner, one in _elements(prefix + name, value):
            if type(one) is dict:
                yield from _flat(where, one, f"{inner}.", levels - 1)
            elif type(one) in (str, int, float, bool):
                yield inner, one
            elif one is not None:
                raise MalformedError(
                    f"{where}, {inner}: expected a string, a number, a boolean or an object; got {shown(one)}"
                )


def _elements(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an array's elements with their names, or the value itself."""
    if type(value) is not list:
        yield name, value
        return
    for place, one in enumerate(value):
        if type(one) is str:
            yield f"{name}.{one}", 1
        else:
            yield (name if type(one) is dict else f"{name}[{place}]"), one


def _add(where: str, found: dict[str, Any], name: str, value: str | float) -> None:
    """Add a feature. A category of a feature that has a value already becomes a feature with the value 1."""
    while (earlier := found.get(name)) is not None:
        if type(value) is str:
            name, value = f"{name}.{value}", 1
        elif type(earlier) is str:
            found[name] = value
            name, value = f"{name}.{earlier}", 1
        else:
            found[name] = earlier + float(value)
            if not isfinite(found[name]):
                raise MalformedError(
                    f"{where}, {name}: expected numbers with a finite sum; got {shown(earlier)} and {shown(value)}"
                )
            return
    found[name] = value
