"""SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

The words of the sequence from a state s are `mix(s + GAMMA)`, `mix(s + 2 GAMMA)`, ..., modulo 2⁶⁴; all are distinct.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15

_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_MASK = 2**64 - 1

Words = TypeVar("Words", np.uint64, NDArray[np.uint64])


def mix(z: int) -> int:
    """The output function, a bijection of 64 bits.

    >>> hex(mix(GAMMA))
    '0xe220a8397b1dcdaf'
    """
    z = (z ^ z >> 30) * int(_MULTIPLIER_1) & _MASK
    z = (z ^ z >> 27) * int(_MULTIPLIER_2) & _MASK
    return z ^ z >> 31


def mix_words(z: Words) -> Words:
    """Apply the output function to an array of words, or to one word in compiled code."""
    z = (z ^ (z >> _S30)) * _MULTIPLIER_1
    z = (z ^ (z >> _S27)) * _MULTIPLIER_2
    return z ^ (z >> _S31)


def words(state: int, n: int) -> NDArray[np.uint64]:
    """Return the first n words from a state, uint64[n].

    >>> int(words(0, 1)[0]) == mix(GAMMA)
    True
    """
    return mix_words(np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(state))
