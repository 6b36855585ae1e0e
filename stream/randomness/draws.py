"""Replayable uniforms: a pure function of (seed, purpose, event id).

A draw depends on nothing else, so partition, batch, restart and process do not change it, and replaying an event
replays its luck. The hash is BLAKE2b from the standard library, keyed with the seed and personalised with the purpose;
the upper 53 of its 64 bits become the double. A draw costs 0.6 to 1 µs, from a copy of a
state that has taken in the key already.

>>> uniform(1, Purpose.ACTION, "optdigits-0-000123")
0.8272803584028373
>>> draw = Draws(1, Purpose.ACTION)
>>> draw("optdigits-0-000123") == uniform(1, Purpose.ACTION, "optdigits-0-000123")
True
"""

from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

SEED_MAX = 2**64 - 1


class Purpose(StrEnum):
    """What a uniform is used for: two purposes of one event are independent.

    The text enters the hash: renaming a purpose changes every draw made for it.
    """

    ACTION = "action"  # the class that is played, from the learner's distribution
    UPDATE = "update"  # whether and how a learner that randomises its updates makes one
    DELAY = "delay"  # when the feedback is sent
    LOSS = "loss"  # whether it is never sent
    DUPLICATE = "duplicate"  # whether it is sent twice
    DUPLICATE_DELAY = "duplicate-delay"  # when the copy is sent
    SHUFFLE = "shuffle"  # the order of the rows in an epoch
    ESTIMATE = "estimate"  # fold, acceptance and resampling of a logged decision, when a policy is judged
    LOG = "log"  # whether a decision of a log that was not uniform is taken for one that was


class Draws:
    """The draws of one seed for one purpose.

    `draw(event_id)` is uniform in [0, 1), a multiple of 2⁻⁵³; `draw.bits(event_id)` are the 64 bits it comes from.
    """

    __slots__ = ("_keyed",)

    def __init__(self, seed: int, purpose: Purpose) -> None:
        if not 0 <= seed <= SEED_MAX:
            raise ValueError(f"draws: a seed is a whole number in [0, 2**64); got {seed}")
        self._keyed = blake2b(digest_size=8, key=seed.to_bytes(8, "little"), person=purpose.encode())

    def bits(self, event_id: str) -> int:
        """64 uniform bits, as a whole number."""
        state = self._keyed.copy()
        state.update(event_id.encode())
        return int.from_bytes(state.digest(), "little")

    def __call__(self, event_id: str) -> float:
        """Uniform in [0, 1)."""
        state = self._keyed.copy()
        state.update(event_id.encode())
        return (int.from_bytes(state.digest(), "little") >> 11) * 2.0**-53


@lru_cache(maxsize=64)
def _draws(seed: int, purpose: Purpose) -> Draws:
    return Draws(seed, purpose)


def uniform(seed: int, purpose: Purpose, event_id: str) -> float:
    """Uniform in [0, 1). Where many are drawn for one purpose, hold a `Draws`."""
    return _draws(seed, purpose)(event_id)
