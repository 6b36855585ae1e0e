"""The random generator of the simulation: SplitMix64, with the same draws in every version of Python."""

from collections.abc import Sequence
from typing import TypeVar

from stream.randomness import splitmix

T = TypeVar("T")

_MASK = 2**64 - 1


class Luck:
    """Sequential random draws from a seed.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the output of SplitMix64.

    >>> luck = Luck(0)
    >>> [luck.below(1_000) for _ in range(4)]
    [883, 431, 26, 970]
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def _next(self) -> int:
        self._state = self._state + splitmix.GAMMA & _MASK
        return splitmix.mix(self._state)

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return self._next() * n >> 64

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True with a probability in percent."""
        return self.below(100) < percent

    def choice(self, items: Sequence[T]) -> T:
        """A uniformly drawn item."""
        return items[self.below(len(items))]
