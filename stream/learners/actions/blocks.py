"""The number of features of an action, from the dimension of x; see `stream.wire.actions`."""

from stream.learners.base import ParameterError
from stream.wire.actions import ActionBlocks


def action_features(n_classes: int, n_features: int, context: int) -> int:
    """Return the number of features of an action.

    Raises:
        ParameterError: x does not consist of a context and equal blocks.
    """
    try:
        return ActionBlocks.of_dimension(n_features, n_classes, context).features
    except ValueError as error:
        raise ParameterError(str(error)) from error
