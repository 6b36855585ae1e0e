"""Functions shared by all adapters, for assigning indices to names and creating learners by name."""

import math
from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from stream.learners import Learner, create
from stream.learners.auto import choose
from stream.wire.records import Features

AUTO = "auto"
"""The name that selects the default learner for the given numbers of classes and features."""


class Names:
    """Assigns indices to names in the order of their first appearance.

    >>> names = Names("class", limit=3)
    >>> names.index("cat"), names.index("dog"), names.index("cat")
    (0, 1, 0)
    """

    def __init__(self, kind: str, limit: int, known: Iterable[Hashable] = ()) -> None:
        self.kind = kind
        self.limit = limit
        self.indices: dict[Hashable, int] = {}
        self.names: list[Hashable] = []
        for name in known:
            self.index(name)

    def index(self, name: Hashable) -> int:
        """Return a name's index. A new name gets the next index.

        Raises:
            ValueError: the limit is reached.
        """
        index = self.indices.get(name)
        if index is None:
            index = len(self.indices)
            if index == self.limit:
                raise ValueError(
                    f"{self.kind} {name!r} is number {index + 1:,}, but the learner accepts at most {self.limit:,}; "
                    f"create the learner with a higher limit"
                )
            self.indices[name] = index
            self.names.append(name)
        return index

    def features(self, x: Mapping[Hashable, object]) -> Features:
        """Convert a mapping from names to values to a sparse vector. The order of the mapping has no effect.

        A number becomes the value of the entry for its name. A string is a category: the pair (name, string) gets an
        entry with the value 1. None does not add an entry.

        Raises:
            ValueError: a value is not finite, or there are more names than the learner has features.
        """
        entries = dict(_entry(name, value) for name, value in x.items() if value is not None)
        new = entries.keys() - self.indices.keys()
        for name in sorted(new, key=repr):
            self.index(name)
        pairs = sorted((self.indices[name], value) for name, value in entries.items() if value != 0.0)
        indices, values = zip(*pairs, strict=True) if pairs else ((), ())
        return Features(np.array(indices, dtype=np.int32), np.array(values, dtype=np.float64))


def _entry(name: Hashable, value: object) -> tuple[Hashable, float]:
    if isinstance(value, str):
        return (name, value), 1.0
    number = float(value)  # type: ignore[arg-type] # raises for values that are not numbers
    if not math.isfinite(number):
        raise ValueError(f"feature {name!r} is {number}; expected a finite number. Omit missing values")
    return name, number


def make_learner(name: str, n_classes: int, n_features: int, parameters: Mapping[str, float | int | str]) -> Learner:
    """Create a learner by name, or the default learner for the given numbers of classes and features.

    Raises:
        ParameterError: see `create`.
    """
    if name == AUTO:
        choice = choose(n_classes, n_features, None)
        name, parameters = choice.learner, {**choice.parameters, **parameters}
    return create(name, n_classes, n_features, **parameters)
