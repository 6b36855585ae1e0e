"""A finite sample of linear hypotheses, for learners that let hypotheses vote.

The Notes use a grid of γ^(-Kd) matrices or the whole space. This module draws a sample of matrices W; the parameter
`hypotheses` is their number. The rows of W are uniformly distributed in a ball of the given radius. They are drawn once
with numpy's PCG64 and the given seed.
"""

import zlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from stream.learners.base import Cost, KernelLearner, Parameter, State
from stream.wire.records import FloatArray


def draw_hypotheses(size: int, n_classes: int, n_features: int, radius: float, seed: int) -> FloatArray:
    """Draw matrices whose rows are uniform in a ball. Each row is a Gaussian direction times a random length."""
    generator = np.random.Generator(np.random.PCG64(seed))
    directions = generator.standard_normal((size, n_classes, n_features))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    lengths: FloatArray = radius * generator.random((size, n_classes, 1)) ** (1.0 / n_features)
    return directions * lengths


class Sampled(KernelLearner):
    """Base class of learners that use a sample of hypotheses, float64[n, K, d]."""

    common: ClassVar[tuple[Parameter, ...]] = (
        Parameter("hypotheses", 256, "number of matrices in the sample", low=1, high=10_000_000),
        Parameter("radius", 1.0, "bound on the norm of each row", low=1e-9, high=1e9),
        Parameter("seed", 0, "seed of the sample", low=0, high=2.0**63),
    )
    hypotheses: FloatArray

    def state(self) -> State:
        """Return a copy of the state with a checksum of the hypotheses, which the parameters determine."""
        return {**super().state(), "fingerprint": zlib.crc32(self.hypotheses.tobytes())}

    def load(self, state: Mapping[str, Any]) -> None:
        """See Learner.

        Raises:
            ValueError: the state belongs to another sample of hypotheses.
        """
        expected = zlib.crc32(self.hypotheses.tobytes())
        if int(state.get("fingerprint", -1)) != expected:
            raise ValueError(
                f"cannot load {self.name}: expected hypotheses with checksum {expected}, got "
                f"{state.get('fingerprint')}; use the seed, radius and number of hypotheses of the stored state"
            )
        super().load(state)

    def weights(self) -> FloatArray:
        """Raise NotImplementedError, because the learner is not linear in x.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.name} has no linear weights: it is a vote of many hypotheses")

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing all hypotheses' scores, once for the prediction and once for the update."""
        products = int(parameters["hypotheses"]) * n_classes * nnz
        return Cost(
            flops_per_event=4 * products,
            bytes_per_event=16 * products,
            state_bytes=8 * int(parameters["hypotheses"]) * (n_classes * n_features + 1),
        )
