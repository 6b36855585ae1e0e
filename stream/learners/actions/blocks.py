"""Sizes of the context and the actions in x; see `stream.learners.actions`."""

from stream.learners.base import ParameterError


def action_features(n_classes: int, n_features: int, context: int) -> int:
    """Return the number of features of an action.

    Raises:
        ParameterError: x does not consist of a context and equal blocks.
    """
    a, rest = divmod(n_features - context - n_classes, n_classes)
    if rest or a < 1:
        raise ParameterError(
            f"expected {context} features of a context, and the same number of features for each of {n_classes} "
            f"actions; got {n_features} features. Set actions_max, the maximum number of actions in a context"
        )
    return a
