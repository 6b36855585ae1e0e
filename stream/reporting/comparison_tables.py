"""Cells of the tables that compare a learner with its holdout and its challengers, on all pages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream.estimating.arms import ArmComparison
    from stream.estimating.challengers import ChallengerComparison

_ANYTIME = "95\N{NO-BREAK SPACE}% anytime"

ARM_COLUMNS = ("difference", _ANYTIME, "rewards of the learner", "of the holdout")

CHALLENGER_COLUMNS = (
    "challenger", f"difference, {_ANYTIME}", "estimated reward", f"reward, {_ANYTIME}", "champion", "champion's reward",
)  # fmt: skip


def arm_cells(found: "ArmComparison") -> Iterator[str]:
    """Yield a comparison's cells, the most important first, because a narrow screen shows only some of them."""
    difference = found.mean_difference
    yield "–" if difference is None else f"{difference:+.3f}"
    yield "–" if difference is None else f"{found.difference.low:+.3f} to {found.difference.high:+.3f}"
    for arm in (found.learner, found.holdout):
        yield "–" if arm.mean is None else f"{arm.rewards:,} of {arm.n:,} = {arm.mean:.3f}"


def challenger_rows(found: "ChallengerComparison") -> Iterator[tuple[str, ...]]:
    """Yield the cells of each challenger."""
    for one in found.challengers:
        yield (
            one.name,
            f"{one.difference.low:+.3f} to {one.difference.high:+.3f}",
            f"{one.ips:.3f}",
            f"{one.reward.low:.3f} to {one.reward.high:.3f}",
            found.champion or "–",
            "–" if found.mean is None else f"{found.mean:.3f}",
        )


def counted(found: "ChallengerComparison") -> str:
    """Describe the decisions on which the estimates of the challengers are based."""
    return f"{found.n:,} decisions of the champion with a reward, {found.without_reward:,} expired without an outcome"
