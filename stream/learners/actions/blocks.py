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
            f"context: expected c such that d = c + K (1 + a), with a whole number a ≥ 1; got c = {context}, "
            f"K = {n_classes}, d = {n_features}"
        )
    return a
