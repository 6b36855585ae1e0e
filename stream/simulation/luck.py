"""The dice of the simulation: SplitMix64, so that a seed draws the same under every version of Python."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = 2**64 - 1


class Luck:
    """Draws from one seed, one after the other.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the output of SplitMix64.

    >>> luck = Luck(0)
    >>> [luck.below(1_000) for _ in range(4)]
    [883, 431, 26, 970]
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        return z ^ z >> 31

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return self._next() * n >> 64

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True so many times in a hundred."""
        return self.below(100) < percent

    def choice(self, items: Sequence[T]) -> T:
        """One of them, each as likely as the others."""
        return items[self.below(len(items))]
