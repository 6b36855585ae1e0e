"""The sizes of a data set, from which a task's settings are resolved."""

from collections.abc import Callable
from typing import NamedTuple

from stream.settings.definitions import Settings
from stream.wire.actions import ActionBlocks


class DataSizes(NamedTuple):
    """The numbers of classes and features, the mean number of non-zeros per context, and a log's class names.

    With actions, a class is a place, and the number of features is the dimension of a context with its actions.
    """

    n_classes: int
    n_features: int
    mean_nnz: float
    class_names: tuple[str, ...] | None = None
    blocks: ActionBlocks | None = None  # None without actions


SizesOf = Callable[[Settings], DataSizes]
"""Returns the sizes of the data set that the settings select."""
