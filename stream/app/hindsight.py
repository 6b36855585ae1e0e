"""What can only be told when a run has ended: whether its feedback came in time to be of use."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from stream.reporting import tables
from stream.wire.events import Example

AFTER_END_MAX = 1 / 3
"""More of the feedback than this after the last decision, and the error tells little about the learner."""

DELAYS_PER_RUN = 10
"""A run that lasts so many mean delays has a tenth of its feedback, at most, after its last decision."""


class Answers(NamedTuple):
    """The matched feedback of a run."""

    delays_ms: list[int]
    lasted_ms: int  # from the first decision to the last
    after_end: float  # the share that came after the last decision; nan without any


def answers(examples: Iterable[Example]) -> Answers:
    """Sum up the settled decisions of a run.

    >>> from stream.wire.events import Outcome
    >>> settled = [Example("a", Outcome.MATCHED, 0, 1.0, 1, 5, 15), Example("b", Outcome.MATCHED, 0, 1.0, 1, 2, 22)]
    >>> answers(settled)  # decided at 10 and at 20
    Answers(delays_ms=[5, 2], lasted_ms=10, after_end=0.5)
    """
    matched = [(one.settled_at_ms, one.delay_ms) for one in examples if one.delay_ms is not None]
    if not matched:
        return Answers([], 0, math.nan)
    decided_ms = [settled_at_ms - delay_ms for settled_at_ms, delay_ms in matched]
    last_ms = max(decided_ms)
    late = sum(settled_at_ms > last_ms for settled_at_ms, _ in matched)
    return Answers([delay_ms for _, delay_ms in matched], last_ms - min(decided_ms), late / len(matched))


def warnings(found: Answers, events: int, rate_per_s: float) -> tuple[str, ...]:
    """What to tell about feedback that came too late to be of use, with a --rate at which most of it would not."""
    if not found.after_end > AFTER_END_MAX:
        return ()
    mean_s = sum(found.delays_ms) / len(found.delays_ms) / 1_000
    better_per_s = _rounded_down(min(events / (DELAYS_PER_RUN * mean_s), rate_per_s / 2))
    return (
        f"{tables.percent(found.after_end)} of the feedback came after the last event, when there was nothing left to "
        f"decide: all was decided within {tables.duration(found.lasted_ms / 1_000)}, and feedback takes "
        f"{tables.duration(mean_s)} in the mean. --rate {better_per_s:g} spreads the same events over "
        f"{tables.duration(events / better_per_s)}; or give a shorter --delay, or more --epochs",
    )


def _rounded_down(value: float) -> float:
    """A number with one digit that counts.

    >>> [_rounded_down(value) for value in (56.2, 9.99, 0.0123)]
    [50.0, 9.0, 0.01]
    """
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.floor(value / unit) * unit:.1g}")
