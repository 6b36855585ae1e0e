"""Comparison of the learner with the holdout, in which a fixed policy decides instead of the learner.

Each event is assigned to an arm by a random draw based on its id, so the arms split the stream at random. An event is
in the holdout with probability h. For a decision with reward r, as a share of the range of rewards, let c be the reward
predicted from earlier decisions. Then

    φ = (r − c) (1[learner]/(1 − h) − 1[holdout]/h)

has the conditional mean *the learner's reward − the holdout's reward*, because c is multiplied by a factor with mean 0.
Since |φ| ≤ max(1/h, 1/(1 − h)), the confidence sequences of `intervals` bound the running mean of the difference at all
times simultaneously, even if the learner changes.

*Shares.* Decisions are counted as described in `prefix`. If bits are lost more often in one arm than in the other, the
shares of the counted decisions differ from h, and the comparison is invalid (sample-ratio mismatch). The test uses a
mixture of likelihood ratios over Beta(100 h, 100 (1 − h)), and is also valid at all times: Lindon, Malek,
"Anytime-valid inference for multinomial count data", NeurIPS 2022.
"""

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
from scipy.special import betaln

from stream.estimating.intervals import LowerSequence
from stream.estimating.live_results import ArmComparison, ArmCount, Bounds
from stream.estimating.prefix import PrefixEstimator
from stream.estimating.running import CONFIDENCE
from stream.wire.records import HOLDOUT, FloatArray, Prediction
from stream.wire.rewards import BITS, RewardRange

SHARES_DELTA = 0.001
"""Upper limit on the probability of a false alarm about the shares, over the whole stream."""

PRIOR = 100.0
"""Weight of the prior distribution for the share, expressed as a number of decisions."""


class Arms(PrefixEstimator[float]):
    """Counts decisions by arm. A decision is counted when it and all earlier decisions are settled.

    >>> arms = Arms(0.5)
    >>> arms.count(np.array([0, 1, 0, 1] * 500), np.array([1, 0, 1, 1] * 500))
    >>> found = arms.now()
    >>> found.learner.mean, found.holdout.mean, found.difference.low > 0.3, found.shares_differ
    (1.0, 0.5, True, False)
    """

    def __init__(self, share: float, rewards: RewardRange = BITS) -> None:
        """Initialise an empty comparison.

        Args:
            share: The holdout's share h, in (0, 1).
            rewards: The range of the pipeline's rewards.
        """
        super().__init__(rewards)
        self._share = share
        delta = (1.0 - CONFIDENCE) / 2.0
        reach = max(1.0 / share, 1.0 / (1.0 - share))
        self._sides = (LowerSequence(reach, delta), LowerSequence(reach, delta))
        self._counts = np.zeros((2, 3))  # per arm: decisions with a reward, the sum of shares, decisions without

    def value_of(self, prediction: Prediction) -> float:
        """Return 1 for a decision by the holdout, 0 for a decision by the learner; see PrefixEstimator."""
        return float(prediction.arm == HOLDOUT)

    def count_settled(self, settled: Sequence[tuple[float, float | None]]) -> None:
        """See `PrefixEstimator.count_settled`."""
        for arm, reward in settled:
            self._counts[int(arm), 2] += reward is None
        if known := [row for row in settled if row[1] is not None]:
            self.count(*np.array(known, dtype=np.float64).T)

    def count(self, arms: FloatArray, rewards: FloatArray) -> None:
        """Count decisions with rewards.

        Args:
            arms: 1 for the holdout, 0 for the learner, float64[m].
            rewards: The rewards as shares, float64[m].
        """
        h = self._share
        n, before = self._counts[:, 0].sum(), self._counts[:, 1].sum()
        sums = before + np.concatenate(([0.0], np.cumsum(rewards[:-1])))
        guess = (0.5 + sums) / (1.0 + n + np.arange(rewards.size))  # computed from earlier decisions only
        terms = (rewards - guess) * np.where(arms == 1.0, -1.0 / h, 1.0 / (1.0 - h))
        for side, signed in zip(self._sides, (terms, -terms), strict=True):
            side.extend(signed)
        for arm in (0, 1):
            chosen = arms == arm
            self._counts[arm, 0] += chosen.sum()
            self._counts[arm, 1] += rewards[chosen].sum()

    def state(self) -> list[Any]:
        """Return the share, the counts and the sums as JSON values, for `load`."""
        return [self._share, *self._counts.tolist(), *(side.state() for side in self._sides)]

    def load(self, state: Sequence[Any]) -> None:
        """Restore counts and sums returned by `state`. Those for a different share are discarded."""
        share, *counts_and_sides = state
        if share != self._share:
            return
        self._counts[:] = counts_and_sides[:2]
        for side, stored in zip(self._sides, counts_and_sides[2:], strict=True):
            side.load(stored)

    def __add__(self, other: "Arms") -> "Arms":
        """Combine the comparisons from two partitions."""
        both = Arms(self._share, self._rewards)
        both._counts = self._counts + other._counts
        both._sides = self._sides[0] + other._sides[0], self._sides[1] + other._sides[1]
        return both

    def now(self) -> ArmComparison:
        """Return the current comparison."""
        low, mirrored = (side.now() for side in self._sides)
        learner, holdout = (
            ArmCount(int(n), self._rewards.total(int(n), float(shares)), int(without))
            for n, shares, without in self._counts
        )
        size = self._rewards.size
        return ArmComparison(
            self._share,
            learner,
            holdout,
            Bounds(max(low, -1.0) * size, min(-mirrored, 1.0) * size),
            differs(holdout.n, learner.n, self._share),
            self.waiting,
        )


def differs(holdout: int, learner: int, share: float) -> bool:
    """Return whether the numbers of decisions in the two arms are inconsistent with the holdout's configured share.

    >>> differs(50, 950, 0.05), differs(5, 995, 0.05)
    (False, True)
    """
    a, b = PRIOR * share, PRIOR * (1.0 - share)
    evidence = betaln(a + holdout, b + learner) - betaln(a, b) - holdout * log(share) - learner * log(1.0 - share)
    return bool(evidence >= log(1.0 / SHARES_DELTA))
