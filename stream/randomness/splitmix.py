"""SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

The words of the sequence from a state s are `mix(s + GAMMA)`, `mix(s + 2 GAMMA)`, ..., modulo 2⁶⁴; they all differ.
"""

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB

_MASK = 2**64 - 1


def mix(z: int) -> int:
    """The output function, a bijection of 64 bits.

    >>> hex(mix(GAMMA))
    '0xe220a8397b1dcdaf'
    """
    z = (z ^ z >> 30) * MULTIPLIER_1 & _MASK
    z = (z ^ z >> 27) * MULTIPLIER_2 & _MASK
    return z ^ z >> 31


def words(state: int, n: int) -> NDArray[np.uint64]:
    """The first n words from a state, as uint64[n].

    >>> int(words(0, 1)[0]) == mix(GAMMA)
    True
    """
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MULTIPLIER_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MULTIPLIER_2)
    return z ^ (z >> np.uint64(31))
