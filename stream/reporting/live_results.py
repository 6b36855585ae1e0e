"""Renderings of the live estimates: lines for logs and terminals, and rows for tables on pages.

In a table, the most important cells come first, because a narrow screen shows only some of them.
"""

from collections.abc import Iterator

from stream.estimating.live_results import ArmComparison, ChallengerComparison, LiveEstimates, LiveResults

_ANYTIME = "95\N{NO-BREAK SPACE}% anytime"

ARM_COLUMNS = ("difference", _ANYTIME, "rewards of the learner", "of the holdout")

CHALLENGER_COLUMNS = (
    "challenger", f"difference, {_ANYTIME}", "estimated reward", f"reward, {_ANYTIME}", "champion", "champion's reward",
)  # fmt: skip


def arm_cells(found: ArmComparison) -> Iterator[str]:
    """Yield the cells for a comparison with a holdout."""
    difference = found.mean_difference
    yield "–" if difference is None else f"{difference:+.3f}"
    yield "–" if difference is None else f"{found.difference.low:+.3f} to {found.difference.high:+.3f}"
    for arm in (found.learner, found.holdout):
        yield "–" if arm.mean is None else f"{arm.rewards:,} of {arm.n:,} = {arm.mean:.3f}"


def challenger_rows(found: ChallengerComparison) -> Iterator[tuple[str, ...]]:
    """Yield the cells for each challenger."""
    for one in found.challengers:
        yield (
            one.name,
            f"{one.difference.low:+.3f} to {one.difference.high:+.3f}",
            f"{one.ips:.3f}",
            f"{one.reward.low:.3f} to {one.reward.high:.3f}",
            found.champion or "–",
            "–" if found.mean is None else f"{found.mean:.3f}",
        )


def counted(found: ChallengerComparison) -> str:
    """Describe the decisions on which the challengers' estimates are based."""
    return (
        f"{found.n:,} of the champion's decisions have a reward and {found.without_reward:,} expired without an outcome"
    )


def result_lines(found: LiveResults, prefix: str = "", since: str = "") -> list[str]:
    """Format the results of all estimates.

    Args:
        found: The results.
        prefix: Text before each line; it identifies the run.
        since: Text that says which decisions the learner's own estimate includes, such as " since this program
            started".
    """
    lines = [] if found.estimate is None else _estimate_lines(found.estimate, since)
    lines += [] if found.holdout is None else _holdout_lines(found.holdout)
    lines += [] if found.challengers is None else challenger_lines(found.challengers)
    return [prefix + line for line in lines]


def _estimate_lines(found: LiveEstimates, since: str) -> list[str]:
    if not found.estimates:
        waiting = f"; {found.waiting:,} are pending or follow a pending decision" if found.waiting else ""
        lines = [f"estimate: none yet; no settled decision{since} has an outcome and a logged propensity{waiting}"]
    else:
        ips = found.estimates[0]
        assert ips.anytime is not None
        lines = [
            f"estimate: mean reward of the learner's own policy {ips.value:.3f} (anytime {ips.anytime.low:.3f} to "
            f"{ips.anytime.high:.3f}) over {found.n:,} settled decisions{since}; logged {found.logged:.3f}"
        ]
    return lines + [f"estimate: {flag.name}: {flag.text}" for flag in found.flags]


def _holdout_lines(found: ArmComparison) -> list[str]:
    learner, holdout, difference = found.learner, found.holdout, found.difference
    if found.mean_difference is None:
        return [f"holdout: no comparison yet{_waiting(found.waiting)}"]
    lines = [
        f"holdout: mean reward {learner.mean:.3f} for the learner ({learner.n:,} decisions), {holdout.mean:.3f} for "
        f"the holdout ({holdout.n:,} decisions); difference {difference.low:+.3f} to {difference.high:+.3f} (anytime)"
    ]
    return [*lines, f"holdout: {found.mismatch}"] if found.shares_differ else lines


def challenger_lines(found: ChallengerComparison) -> list[str]:
    """Format the challengers' estimates."""
    if found.mean is None:
        return [f"challengers: no estimate yet{_waiting(found.waiting)}"]
    return [
        f"challenger {one.name}: estimated mean reward {one.ips:.3f} ({one.reward.low:.3f} to {one.reward.high:.3f}); "
        f"champion {found.champion}: {found.mean:.3f}, {found.n:,} decisions; difference {one.difference.low:+.3f} to "
        f"{one.difference.high:+.3f} (95%, valid at all times)" + (one.contradiction and f"; {one.contradiction}")
        for one in found.challengers
    ]


def _waiting(decisions: int) -> str:
    return f"; {decisions:,} decisions are pending or follow a pending decision" if decisions else ""
