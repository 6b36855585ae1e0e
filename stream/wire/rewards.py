"""Graded rewards: numbers in a range, in the units of the service, such as stars, seconds or a currency.

Records contain rewards in these units. Learners and estimators use *shares*: 0 for the lowest reward, 1 for the
highest.
"""

from math import inf
from typing import Literal, NamedTuple

from stream.parsing import parse_number

FeedbackRule = Literal["first", "max", "sum"]
"""How a decision's feedback records determine its reward: the first one, their maximum, or the sum of their parts."""


class RewardRange(NamedTuple):
    """The lowest and the highest reward.

    >>> stars = RewardRange(1.0, 5.0)
    >>> stars.share(2.0), stars.value(0.25), stars.size
    (0.25, 2.0, 4.0)
    """

    low: float
    high: float

    @property
    def size(self) -> float:
        """The difference between the highest and the lowest reward, by which differences of shares are multiplied."""
        return self.high - self.low

    def share(self, reward: float) -> float:
        """Return a reward as a share of the range, from 0 to 1."""
        return (reward - self.low) / self.size

    def value(self, share: float) -> float:
        """Return a share, a mean of shares, or a limit of its interval, in the units of the rewards."""
        return self.low + share * self.size

    def total(self, n: int, shares: float) -> float:
        """Return the sum of n rewards, from the sum of their shares; an int if it is whole, as for bits.

        >>> BITS.total(4, 3.0), RewardRange(1.0, 5.0).total(2, 0.75)
        (3, 5)
        """
        total = n * self.low + shares * self.size
        return int(total) if total.is_integer() else total


BITS = RewardRange(0.0, 1.0)
"""The range of bits, and the default for graded rewards. Rewards and shares are equal."""


def parse_range(text: str) -> RewardRange:
    """Parse a range, written as LOW,HIGH.

    >>> parse_range("0,5"), parse_range("-1,2.5")
    (RewardRange(low=0.0, high=5.0), RewardRange(low=-1.0, high=2.5))

    Raises:
        ValueError: the text does not contain two finite numbers in increasing order, or their difference is not finite.
    """
    numbers = [parse_number(part.strip()) for part in text.split(",")]
    if len(numbers) == 2 and None not in numbers:
        low, high = (float(number or 0.0) for number in numbers)
        if 0.0 < high - low < inf:
            return RewardRange(low + 0.0, high + 0.0)  # -0.0 becomes 0.0
    raise ValueError(f"expected two numbers LOW,HIGH with LOW below HIGH, such as 0,5; got {text!r}")


def format_range(rewards: RewardRange) -> str:
    """Format a range, so that equal ranges have equal texts.

    >>> format_range(parse_range("-0.50, 5.0"))
    '-0.5,5'
    """
    return ",".join(repr(limit).removesuffix(".0") for limit in rewards)
