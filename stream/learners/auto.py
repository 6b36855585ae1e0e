"""Chooses the default learner, based on the size and density of the data."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stream.learners.actions.igw_log import IgwLog
from stream.learners.actions.joint_ucb import JointUcb
from stream.learners.base import Learner, ParameterError
from stream.learners.late_bits.late_ucb import SIZE_MAX, LateUcb
from stream.learners.late_bits.stack_igw import StackIgw
from stream.learners.registry import check_parameters, is_dense
from stream.wire.actions import CONTEXT, ActionBlocks

STATE_BYTES_MAX = 64 * 2**20
"""Limit on the state size of a default learner. The limit keeps snapshots and recovery fast."""

PROJECTED_DIMENSIONS = 256
"""Number of dimensions after projection. On images, 256 dimensions are as accurate as all 784 and 20 times as fast."""

RANDOM_FEATURES = 64
"""The number of random features that late-ucb adds by default."""

DENSE_FEATURES_MAX = 256
"""Contexts or actions with more features are sparse in most applications, such as words or one-hot ids."""

Parameters = Mapping[str, float | int | str]


class Choice(NamedTuple):
    """A learner and its parameters. Parameters with default values are omitted."""

    learner: str
    parameters: Parameters
    why: str  # the reason, as a sentence for the user


def choose(n_classes: int, n_features: int, mean_nnz: float | None, *, correctable: bool = False) -> Choice:
    """Choose a learner for data of a given size.

    Args:
        n_classes: The number of classes K.
        n_features: The number of features d.
        mean_nnz: Mean number of non-zeros in x, or None if the data are not known in advance.
        correctable: Whether updates must be retractable, for the late policy `correct`.

    Raises:
        ParameterError: no learner with retractable updates fits the data.

    >>> choose(10, 64, mean_nnz=33.0)
    Choice(learner='late-ucb', parameters={}, why='64 features, 33 of them non-zero on average: few and dense')
    >>> choose(10, 400, mean_nnz=20.0, correctable=True).parameters
    {'expand': 'none'}
    >>> choose(20, 165_470, mean_nnz=153.0).learner, choose(10, 784, mean_nnz=150.0).parameters
    ('stack-igw', {'project': 256})
    """
    known = mean_nnz is not None
    dense = mean_nnz is not None and is_dense(n_features, mean_nnz)
    size = f"{n_features:,} features"
    if mean_nnz is not None:
        size += f", {mean_nnz:,.0f} of them non-zero on average"
    few = n_features + 1 <= SIZE_MAX
    for parameters in _regressions(n_features, dense=dense, known=known, correctable=correctable):
        if _fits(LateUcb, n_classes, n_features, parameters):
            amount = "many" if "project" in parameters else "few"
            return Choice(LateUcb.name, parameters, f"{size}: {amount}" + (" and dense" if dense else ""))
    if correctable:
        raise ParameterError(
            f"late policy `correct` requires retractable updates, but late-ucb is too large for {n_classes:,} classes "
            f"and {size}; use banditron or soba-diag, late-ucb with project={PROJECTED_DIMENSIONS} (for "
            f"dense data), or late policy `ignore`"
        )
    if few and (dense or not known):
        return Choice(StackIgw.name, {}, f"late-ucb's matrices for {n_classes:,} classes would exceed 64 MB")
    if dense:
        why = f"late-ucb's projection and matrices for {n_classes:,} classes would exceed 64 MB"
        return Choice(StackIgw.name, {}, why)
    return Choice(StackIgw.name, {}, f"{size}: sparse" if known else f"{size}: many")


def choose_for_actions(
    blocks: ActionBlocks, mean_nnz: float | None, *, is_hashed: bool = False, correctable: bool = False
) -> Choice:
    """Choose a learner for contexts with actions.

    Args:
        blocks: The sizes of contexts and actions.
        mean_nnz: Mean number of non-zeros in x if every place has an action, or None if the data are not known in
            advance.
        is_hashed: Whether features are hashed or text.
        correctable: Whether updates must be retractable, for the late policy `correct`.

    Raises:
        ParameterError: no learner with retractable updates fits the data.

    >>> blocks = ActionBlocks(places=10, context=20, features=8)
    >>> choose_for_actions(blocks, mean_nnz=90.0).learner, choose_for_actions(blocks, None, is_hashed=True).learner
    ('joint-ucb', 'igw-log')
    """
    size = f"{blocks.context:,} features of the context and {blocks.features:,} of each action"
    if correctable and not _fits(JointUcb, blocks.places, blocks.n_features, {CONTEXT: blocks.context}):
        raise ParameterError(
            f"late policy `correct` requires retractable updates, but joint-ucb is too large for {size}; use fewer "
            "features, such as fewer hash bits, or late policy `ignore`"
        )
    if correctable:
        return Choice(JointUcb.name, {}, f"{size}: updates are retractable")
    if is_hashed:
        return Choice(IgwLog.name, {}, f"{size}: hashed or text")
    if max(blocks.context, blocks.features) > DENSE_FEATURES_MAX:
        return Choice(IgwLog.name, {}, f"{size}: many")
    if mean_nnz is not None and not is_dense(blocks.n_features, mean_nnz):
        return Choice(IgwLog.name, {}, f"{size}: sparse")
    return Choice(JointUcb.name, {}, f"{size}: few" if mean_nnz is None else f"{size}: few and dense")


def _regressions(n_features: int, *, dense: bool, known: bool, correctable: bool) -> Iterator[Parameters]:
    """Yield the sets of late-ucb parameters that suit the data, the best first."""
    few = n_features + 1 <= SIZE_MAX
    if dense or not known:
        if n_features + RANDOM_FEATURES + 1 <= SIZE_MAX:
            yield {}
        elif dense:
            yield {"project": PROJECTED_DIMENSIONS}
    if few and (dense or not known or correctable):
        yield {"expand": "none"}


def _fits(learner: type[Learner], n_classes: int, n_features: int, parameters: Parameters) -> bool:
    checked = check_parameters(learner.name, parameters)
    return learner.cost(n_classes, n_features, 0, checked).state_bytes <= STATE_BYTES_MAX
