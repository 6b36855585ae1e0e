"""Feature blocks, a learner with a table that stores the class of each small cell in feature space."""

from collections.abc import Mapping
from math import floor, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    argmax,
    check_event,
    kernel,
    sample_from,
    subroutine,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray, IndexArray

CELL_MAX = 2.0**31 - 2.0
"""Cell numbers are limited to this value so that they fit in an int32."""

UNKNOWN = -1


class Model(NamedTuple):
    """The table of blocks; see `FeatureBlocks`."""

    table: NDArray[np.int32]  # a hash table of the blocks' numbers, -1 in empty slots
    blocks: NDArray[np.int32]  # [blocks_max, d], the cells
    occupied: NDArray[np.int32]  # [blocks_max], the number of non-zero cells
    known: NDArray[np.int32]  # [blocks_max], the class or UNKNOWN
    excluded: NDArray[np.int8]  # [blocks_max, K]
    fill: NDArray[np.int32]  # [1], the number of blocks
    side: float


@subroutine
def cells_of(values: FloatArray, side: float) -> NDArray[np.int32]:
    """Return the cell number of each entry, ⌊x_j / side⌋, or 0 for NaN."""
    cells = np.zeros(values.size, np.int32)
    for j in range(values.size):
        ratio = values[j] / side
        if ratio == ratio:  # not NaN
            cells[j] = np.int32(floor(min(max(ratio, -CELL_MAX), CELL_MAX)))
    return cells


@subroutine
def place_of(indices: IndexArray, cells: NDArray[np.int32], model: Model) -> tuple[int, int]:
    """Return the index of the block with these cells (-1 if there is none) and its slot in the hash table.

    A block matches if it has these cells and the same number of non-zero cells.
    """
    table, blocks, occupied = model.table, model.blocks, model.occupied
    key = np.uint64(14695981039346656037)  # FNV-1a, one word at a time
    outside = 0
    for j in range(indices.size):
        if cells[j] != 0:
            key = (key ^ np.uint64(np.uint32(indices[j]))) * np.uint64(1099511628211)
            key = (key ^ np.uint64(np.uint32(cells[j]))) * np.uint64(1099511628211)
            key ^= key >> np.uint64(29)
            outside += 1
    place = int(np.int64(key % np.uint64(table.size)))  # mixing signed and unsigned integers would yield a float
    while table[place] >= 0:
        block = int(table[place])
        same = occupied[block] == outside
        for j in range(indices.size):
            same = same and blocks[block, indices[j]] == cells[j]
        if same:
            return block, place
        place = (place + 1) % table.size
    return -1, place


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Play the block's class if it is known; otherwise, play a uniformly random class that is not excluded."""
    indices, values = event.x
    excluded = model.excluded
    scores = event.scores
    check_event(event.x, model.blocks.shape[1])
    block, _ = place_of(indices, cells_of(values, model.side), model)
    K = scores.size
    if block >= 0 and model.known[block] != UNKNOWN:
        scores[:] = 0.0
        scores[model.known[block]] = 1.0
    elif block >= 0:
        left = K - excluded[block].sum()
        for i in range(K):
            scores[i] = 0.0 if excluded[block, i] else 1.0 / left
    else:
        scores[:] = 1.0 / K
    action = sample_from(scores, event.u)
    return action, argmax(scores), scores[action]


@kernel
def update(event: Decided, model: Model) -> bool:
    """Record the block's class, or exclude the action. Add a new block if the table has space."""
    indices, values = event.x
    blocks, occupied, known, excluded = model.blocks, model.occupied, model.known, model.excluded
    if not usable(event, excluded.shape[1], blocks.shape[1]):
        return False
    cells = cells_of(values, model.side)
    block, place = place_of(indices, cells, model)
    if block < 0:
        if model.fill[0] == blocks.shape[0]:
            return False
        block = int(model.fill[0])
        model.fill[0] += 1
        model.table[place] = block
        for j in range(indices.size):
            blocks[block, indices[j]] = cells[j]
            occupied[block] += cells[j] != 0
    if event.reward == 1:
        learned = bool(known[block] != event.action)
        known[block] = event.action
        return learned
    changed = bool(excluded[block, event.action] == 0 or known[block] == event.action)
    excluded[block, event.action] = 1
    if known[block] == event.action:
        known[block] = UNKNOWN
    if excluded[block].sum() == excluded.shape[1]:
        excluded[block] = 0
    return changed


@register
class FeatureBlocks(KernelLearner):
    """Learns the class of each small block in feature space by trial and error.

    "Bandit Multiclass Classification" (the Notes), sect. 2, first approach.

        block of x: the cell of side γ/√d that contains x, ⌊x_j √d / γ⌋ for all j
        class of the block known: play it;  else: uniform over the classes not excluded there
        right: the class of the block is the action;  wrong: exclude the action

    Symbols: γ `gamma`, the margin of the data; blocks int32[blocks_max, d], the cells; known and excluded, a block's
    class and its excluded classes; scores, the probabilities of the classes. A cell's diagonal has length γ, and x and
    x' from different classes are at least γ apart. This is because (w_y - w_i)ᵀx ≥ γ and (w_i - w_y)ᵀx' ≥ γ add up to
    2γ, and ‖w_y - w_i‖ ≤ 2 because ‖w_i‖ ≤ 1.

    Assumes linear separability with margin γ. There are then at most K-1 mistakes in each block, and K (1/γ)^O(d) in
    the unit ball.

    Memory: the table contains at most `blocks_max` blocks. In any other block, the action is uniform and nothing is
    stored.

    Delay: several decisions for a block may be pending at the same time. Each bit has the same effect as without delay.
    Mistakes in pending decisions add to the mistake bound.

    Departures from the paper: the number of blocks is limited. A block is reset if its recorded class is wrong or if
    every class was wrong, because the data in this block are not separable.

    >>> from stream.learners import create
    >>> learner = create("feature-blocks", n_classes=3, n_features=2, gamma=0.1)
    >>> x = np.array([0.6, 0.8])
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.action, decision.propensity
    (1, 0.3333333333333333)
    >>> learner.update(x, decision, reward=0)
    True
    >>> learner.predict(x, u=0.5)[:3]
    (2, 0, 0.5)
    """

    name: ClassVar[str] = "feature-blocks"
    summary: ClassVar[str] = "stores one class per block of the feature space; for small problems"
    paper: ClassVar[str] = "Notes, sect. 2"
    is_linear = False
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("gamma", 0.1, "margin of the data", low=1e-9, high=1e9),
        Parameter(
            "blocks_max",
            1_024,
            "maximum number of stored blocks; the learner guesses in other blocks",
            low=1,
            high=10_000_000,
        ),
    )
    kernels = Kernels(predict, update)

    def __init__(self, n_classes: int, n_features: int, gamma: float, blocks_max: int) -> None:
        arrays: dict[str, NDArray[Any]] = {
            "table": np.full(2 * blocks_max + 1, -1, dtype=np.int32),  # more than half empty, for short searches
            "blocks": np.zeros((blocks_max, n_features), dtype=np.int32),
            "occupied": np.zeros(blocks_max, dtype=np.int32),  # number of non-zero cells in a block
            "known": np.full(blocks_max, UNKNOWN, dtype=np.int32),
            "excluded": np.zeros((blocks_max, n_classes), dtype=np.int8),
            "fill": np.zeros(1, dtype=np.int32),
        }
        super().__init__(n_classes, n_features, arrays, Model(**arrays, side=gamma / sqrt(n_features)))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of one hash-table lookup for the prediction and one for the update."""
        blocks_max = int(parameters["blocks_max"])
        return Cost(
            flops_per_event=4 * nnz + 2 * n_classes,
            bytes_per_event=8 * nnz + 10 * n_classes,
            state_bytes=blocks_max * (4 * n_features + n_classes + 16) + 8,
        )
