"""SplitMix64, for numpy and for compiled code.

Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. Output n of the state `key` is
`mix(key + n · GOLDEN)`, n from 1 on; all of them are different.

>>> [hex(word) for word in mix(np.arange(1, 3, dtype=np.uint64) * GOLDEN)]
['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)

Words = TypeVar("Words", np.uint64, NDArray[np.uint64])


def mix(z: Words) -> Words:
    """The output function, a bijection of 64 bits; of one word (in compiled code), or of an array of them."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)
