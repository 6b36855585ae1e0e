"""Random Fourier features with a bandwidth computed from the first contexts (Rahimi, Recht, NIPS 2007).

    σ² = the median of ‖x − x'‖² over all pairs of the first 64 contexts observed, or 1 if the median is 0
    z_j = √(2/m) cos(ω_jᵀx + β_j),  ω_j ~ N(0, I/σ²),  β_j ~ U[0, 2π),  j = 1..m

The cosine is computed with a polynomial. 64 cosines take 0.1 µs, and the results are bitwise equal on every machine.
"""

from math import inf, pi, sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import compiled, inlined, subroutine, sum_of_rows
from stream.wire.records import Features, FloatArray

SAMPLE = 64
"""Number of contexts that determine σ²."""

RATIO_MAX = 1e12
"""Limit on ‖x‖/σ, above which the cosine contains no information about x."""

# sin(π c) = c Σ_n SINE_n c²ⁿ, from its Taylor series. The first omitted term is below 3e-16 for |c| ≤ ½.
S0, S1, S2, S3, S4, S5, S6, S7, S8, S9 = (
    pi,
    -(pi**3) / 6.0,
    pi**5 / 120.0,
    -(pi**7) / 5_040.0,
    pi**9 / 362_880.0,
    -(pi**11) / 39_916_800.0,
    pi**13 / 6_227_020_800.0,
    -(pi**15) / 1_307_674_368_000.0,
    pi**17 / 355_687_428_096_000.0,
    -(pi**19) / 121_645_100_408_832_000.0,
)


@inlined
def cosines(angles: FloatArray, scale: float) -> None:
    """Replace each angle t with scale · cos t = scale · (1 − 2 sin²(t/2))."""
    for j in range(angles.size):
        turns = angles[j] * (0.5 / pi)
        c = turns - np.floor(turns + 0.5)
        q = c * c
        low = S0 + q * (S1 + q * (S2 + q * (S3 + q * S4)))
        high = S5 + q * (S6 + q * (S7 + q * (S8 + q * S9)))
        q2 = q * q
        sine = c * (low + q2 * q2 * q * high)
        angles[j] = scale * (1.0 - 2.0 * sine * sine)


class Waves(NamedTuple):
    """The random frequencies, and the bandwidth with the contexts from which it is computed; m = 0 if unused."""

    omega: FloatArray  # [d, m], σω
    phases: FloatArray  # [m], β
    sample: FloatArray  # [64, d], the first contexts; zeros when σ² is known
    bandwidth: FloatArray  # [2], the number of stored contexts, and σ² (0 if not yet known)


@inlined
def write_waves(x: Features, norm: float, waves: Waves, z: FloatArray) -> None:
    """Write the features z/√2, whose squares sum to about ½, into an array.

    Args:
        x: x/‖x‖, or zeros if ‖x‖ is zero or NaN.
        norm: ‖x‖.
        waves: The frequencies and the bandwidth.
        z: The result, float64[m].
    """
    phases = waves.phases
    sum_of_rows(waves.omega, x.indices, x.values, z)
    ratio = min(norm / sqrt(waves.bandwidth[1]), RATIO_MAX)
    for j in range(z.size):
        z[j] = ratio * z[j] + phases[j]
    cosines(z, 1.0 / sqrt(z.size))


@compiled
def median_of_distances(sample: FloatArray) -> float:
    """Return the median of ‖x − x'‖² over all pairs of rows, or 1 if it is 0 or NaN."""
    n = sample.shape[0]
    distances = np.empty(n * (n - 1) // 2)  # kept in order, because numba's sort is slow to compile
    place = 0
    for a in range(n):
        for b in range(a):
            total = 0.0
            for i in range(sample.shape[1]):
                difference = sample[a, i] - sample[b, i]
                total += difference * difference
            distance = total if total >= 0.0 else inf  # inf − inf is NaN
            at = place
            while at > 0 and distances[at - 1] > distance:
                distances[at] = distances[at - 1]
                at -= 1
            distances[at] = distance
            place += 1
    lower, upper = distances[(place - 1) // 2], distances[place // 2]
    median = lower + 0.5 * (upper - lower)
    return float(median) if 0.0 < median < inf else 1.0


@subroutine
def add_to_sample(x: Features, waves: Waves) -> None:
    """Store one of the first contexts. After the last of these contexts, compute σ²."""
    indices, values = x
    sample, bandwidth = waves.sample, waves.bandwidth
    row = sample[int(bandwidth[0])]
    for a in range(indices.size):
        row[indices[a]] = values[a]
    bandwidth[0] += 1.0
    if bandwidth[0] == sample.shape[0]:
        bandwidth[1] = median_of_distances(sample)
        sample[:] = 0.0
