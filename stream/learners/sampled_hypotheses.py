"""A finite sample of linear hypotheses, over which learners vote.

The Notes take a grid of γ^(-Kd) matrices or the whole space; here a sample of `hypotheses` matrices W stands for it,
rows uniform in the ball of the given radius, drawn once by numpy's PCG64 from `seed`.
"""

import zlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from stream.learners.base import Cost, KernelLearner, Parameter, State
from stream.wire.events import FloatArray


def draw_hypotheses(size: int, n_classes: int, n_features: int, radius: float, seed: int) -> FloatArray:
    """Matrices with rows uniform in the ball of a radius: a Gaussian direction, and a length whose d-th power is so."""
    generator = np.random.Generator(np.random.PCG64(seed))
    directions = generator.standard_normal((size, n_classes, n_features))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    lengths: FloatArray = radius * generator.random((size, n_classes, 1)) ** (1.0 / n_features)
    return directions * lengths


class Sampled(KernelLearner):
    """What learners over a sample share: their hypotheses, float64[n, K, d]."""

    common: ClassVar[tuple[Parameter, ...]] = (
        Parameter("hypotheses", 256, "matrices in the sample", low=1, high=10_000_000),
        Parameter("radius", 1.0, "bound on the norm of each row", low=1e-9, high=1e9),
        Parameter("seed", 0, "seed of the sample", low=0, high=2.0**63),
    )
    hypotheses: FloatArray

    def state(self) -> State:
        """The state, as copies, and a checksum of the hypotheses, which follow from the parameters."""
        return {**super().state(), "fingerprint": zlib.crc32(self.hypotheses.tobytes())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `state()` of the same learner, sizes and parameters.

        Raises:
            ValueError: it belongs to another sample of hypotheses.
        """
        expected = zlib.crc32(self.hypotheses.tobytes())
        if int(state.get("fingerprint", -1)) != expected:
            raise ValueError(
                f"loading {self.name}: the state belongs to other hypotheses (checksum {state.get('fingerprint')}, "
                f"here {expected}); give the seed, radius and number of hypotheses that it was made with"
            )
        super().load(state)

    def weights(self) -> FloatArray:
        """Not linear in x.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.name}: many hypotheses vote, so there are no linear weights")

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """The scores of every hypothesis, at the prediction and at the update."""
        products = int(parameters["hypotheses"]) * n_classes * nnz
        return Cost(
            flops_per_event=4 * products,
            bytes_per_event=16 * products,
            state_bytes=8 * int(parameters["hypotheses"]) * (n_classes * n_features + 1),
        )
