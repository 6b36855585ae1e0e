"""Comparisons of a live pipeline's learner with its holdout and its challengers, for the page.

Each partition has its own comparisons. A decision is counted only when it and all earlier decisions in its partition
are settled. The page shows the sums over all partitions.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Protocol, Self

from stream.estimating.arms import Arms
from stream.estimating.challengers import ChallengerEstimator
from stream.reporting.live_results import ARM_COLUMNS, CHALLENGER_COLUMNS, arm_cells, challenger_rows, counted
from stream.wire.records import HOLDOUT, Prediction
from stream.wire.rewards import BITS, RewardRange

CHALLENGERS = "challengers"


class Comparison(Protocol):
    """A comparison of the learner with a holdout or with challengers. Comparisons can be stored and combined."""

    def value_of(self, prediction: Prediction) -> Any:
        """Return a JSON value to store with a pending decision, or None to ignore the decision."""

    def count_settled(self, settled: Sequence[tuple[Any, float | None]]) -> None:
        """Count settled decisions, each with its value and its reward as a share."""

    def now(self) -> Any:
        """Return the current comparison."""

    def state(self) -> Any:
        """Return the state as a JSON value, for `load`."""

    def load(self, state: Any) -> None:
        """Restore a state."""

    def __add__(self, other: Any) -> Self:
        """Combine the comparisons from two partitions."""


def comparisons_of(share: float, rewards: RewardRange = BITS, *, has_challengers: bool = True) -> dict[str, Comparison]:
    """Return new, empty comparisons. `share` is the holdout's share; with 0 or 1, there is nothing to compare."""
    found: dict[str, Comparison] = {CHALLENGERS: ChallengerEstimator(rewards)} if has_challengers else {}
    return found | {HOLDOUT: Arms(share, rewards)} if 0.0 < share < 1.0 else found


class ComparisonTable(NamedTuple):
    """A table for the page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str
    flag: str  # the reason why the comparison is invalid, or an empty string


def holdout_table(partitions: Sequence[Mapping[str, Comparison]]) -> ComparisonTable | None:
    """Return the comparison with the holdout, or None if there is no holdout or an arm has no decisions yet."""
    arms = [comparisons[HOLDOUT] for comparisons in partitions if HOLDOUT in comparisons]
    if not arms or (found := reduce(add, arms).now()).mean_difference is None:
        return None
    return ComparisonTable(ARM_COLUMNS, [list(arm_cells(found))], "", found.mismatch)


def challenger_table(partitions: Sequence[Mapping[str, Comparison]]) -> ComparisonTable | None:
    """Return the challengers' estimates, or None if there are no challengers or no decisions yet.

    Args:
        partitions: The comparisons by partition. The last comparison with a counted decision determines the champion.
    """
    estimators = [comparisons[CHALLENGERS] for comparisons in partitions if CHALLENGERS in comparisons]
    if not estimators:
        return None
    found = reduce(add, estimators).now()
    if not found.challengers:
        return None
    flags = [f"{one.name}: {one.contradiction}" for one in found.challengers if not one.is_valid]
    return ComparisonTable(CHALLENGER_COLUMNS, list(challenger_rows(found)), f"{counted(found)}.", "; ".join(flags))
