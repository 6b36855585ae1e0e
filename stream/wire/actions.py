"""The layout of x for contexts with actions that have features.

A pipeline with actions decides among up to K *places* in a context's list of actions. To learners and the join, a place
is a class. x is one vector with the context's features, followed by a block for each place. A block contains the key of
the action's id and the action's features. A place without an action has an empty block.

    x = context [c], then for each place k < K: key_k, action_k [a]        d = c + K (1 + a)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from stream.wire.records import Features, FloatArray, make

ACTIONS_MAX = 50
"""Maximum number of actions in a context."""

CONTEXT = "context"
"""The parameter of learners for actions that contains the number of features of a context."""

KEY_BITS = 52
"""Every key is a whole number from 1 to 2^52, which a float64 represents exactly."""

INDICES_MAX = 2**31 - 1
"""Maximum dimension of x, because indices have 32 bits."""

_KEY_MASK = (1 << KEY_BITS) - 1


class Action(NamedTuple):
    """An action that a context offers."""

    id: str
    x: Features


class ActionBlocks(NamedTuple):
    """The sizes of the context and of the actions.

    >>> blocks = ActionBlocks(places=3, context=2, features=1)
    >>> blocks.n_features
    8
    >>> x = Features(np.array([1], np.int32), np.array([0.5]))
    >>> price = Features(np.array([0], np.int32), np.array([9.0]))
    >>> combined = blocks.joined(x, [Action("tea", price), Action("milk", price)])
    >>> combined.indices.tolist(), combined.values.tolist()[2::2]
    ([1, 2, 3, 4, 5], [9.0, 9.0])
    >>> blocks.key_at(combined, 1) == key_of("milk")
    True
    """

    places: int  # K, the maximum number of actions in a context
    context: int  # c, the number of features of a context
    features: int  # a, the number of features of an action

    @classmethod
    def of_dimension(cls, n_features: int, places: int, context: int) -> "ActionBlocks":
        """Return the layout of an x with this dimension.

        Raises:
            ValueError: x does not consist of a context and equal blocks.
        """
        width, rest = divmod(n_features - context, places)
        if rest or width < 2:
            raise ValueError(
                f"expected {context} features of a context, and the same number of features for each of {places} "
                f"actions; got {n_features} features. Set actions_max, the maximum number of actions in a context"
            )
        return cls(places, context, width - 1)

    @property
    def width(self) -> int:
        """The size of a block."""
        return 1 + self.features

    @property
    def n_features(self) -> int:
        """The dimension d of x."""
        return self.context + self.places * self.width

    def start(self, place: int) -> int:
        """Return the index of a block's first entry, the key."""
        return self.context + place * self.width

    def check(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: a size is out of range, or x would have too many features.
        """
        for name, size, low, high in (
            ("number of actions", self.places, 2, ACTIONS_MAX),
            ("number of context features", self.context, 1, INDICES_MAX),
            ("number of action features", self.features, 1, INDICES_MAX),
        ):
            if not low <= size <= high:
                raise ValueError(f"{name}: expected {low} to {high}; got {size}")
        if self.n_features > INDICES_MAX:
            raise ValueError(
                f"expected fewer than 2^31 features in a context with {self.places} actions; got {self.n_features:,}: "
                f"{self.context:,} for the context and {self.features:,} for each action. Use fewer hash bits or a "
                "smaller number of actions"
            )

    def joined(self, x: Features, actions: Sequence[Action]) -> Features:
        """Return the combined features of a context and its actions."""
        start, width = self.context, self.width
        indices: list[Any] = [x.indices]
        values: list[FloatArray] = [x.values]
        for name, features in actions:
            indices += (np.array((start,), np.int32), features.indices + np.int32(start + 1))
            values += (np.array((key_of(name),)), features.values)
            start += width
        return make(Features, (np.concatenate(indices), np.concatenate(values)))

    def joined_dense(self, x: Features, ids: Sequence[str], actions: FloatArray) -> Features:
        """Return the combined features of a context and its actions, whose features are the rows of an array."""
        blocks = np.empty((len(ids), self.width))
        blocks[:, 0] = [key_of(name) for name in ids]
        blocks[:, 1:] = actions
        nonzero = np.flatnonzero(blocks)
        indices = (nonzero + self.context).astype(np.int32)
        values = blocks.ravel()[nonzero]
        return make(Features, (np.concatenate((x.indices, indices)), np.concatenate((x.values, values))))

    def split(self, x: Features) -> tuple[Features, list[Features]]:
        """Return the context's features and those of each action, up to the last place that has an action."""
        last = int(x.indices[-1]) if x.indices.size else -1
        places = 0 if last < self.context else (last - self.context) // self.width + 1
        bounds = np.searchsorted(x.indices, [self.start(place) for place in range(places + 1)]).tolist()
        context = make(Features, (x.indices[: bounds[0]], x.values[: bounds[0]]))
        actions = []
        for place in range(places):
            indices, values = x.indices[bounds[place] : bounds[place + 1]], x.values[bounds[place] : bounds[place + 1]]
            first = int(indices.size > 0 and indices[0] == self.start(place))  # 1 if the block has a key
            actions.append(make(Features, (indices[first:] - np.int32(self.start(place) + 1), values[first:])))
        return context, actions

    def only(self, x: Features, place: int) -> Features:
        """Return the context's features and one block, with the same indices as in x."""
        end, first, last = np.searchsorted(x.indices, (self.context, self.start(place), self.start(place + 1))).tolist()
        return make(
            Features,
            (
                np.concatenate((x.indices[:end], x.indices[first:last])),
                np.concatenate((x.values[:end], x.values[first:last])),
            ),
        )

    def key_at(self, x: Features, place: int) -> float:
        """Return the key of the action at a place, or 0 if x has no such block."""
        start = self.start(place)
        at = int(np.searchsorted(x.indices, start))
        return float(x.values[at]) if at < x.indices.size and x.indices[at] == start else 0.0


def key_of(name: str) -> float:
    """Return the key of an action's id: a whole number from 1 to 2^52.

    >>> key_of("article-17")
    4409775507438901.0
    """
    return float((xxhash.xxh64_intdigest(name.encode()) & _KEY_MASK) + 1)
