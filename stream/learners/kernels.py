"""Compiled functions that several learners share.

A learner's kernels take the event first and the model last. The model is a NamedTuple of arrays and numbers that the
learner defines:

    predict(event: Event, model) -> (action, greedy, propensity)
    observe(event: Decided, model)
    log(event: Decided, model)
    update(event: Decided, model) -> changed
    retract(event: Decided, assumed_reward, model) -> changed

`log` stores the logged values of an action that another policy chose. Python and compiled loops, such as the one in
`stream.offline`, call kernels through entry points; see `stream.learners.entries`. A predict kernel calls `limit`, so
that a decision's scores also show which classes were eligible.

A predict kernel starts with `check_event` or `linear_greedy`. An update kernel starts with `usable`, or with
`check_decision` if it scales x to unit norm. Compiled code does not check array bounds, so these functions check them,
which takes 0.02 µs.

Kernels are compiled without fast-math, so equal inputs give bitwise equal results in every run. A kernel may call only
functions in its own file, in this file, and in files whose names end with `kernels.py` (see `_cache_directory`). The
only exception is `murmur2`, which never changes (see `stream.task.placement`).
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

from stream.wire.records import NOT_ELIGIBLE, Features, FloatArray, IndexArray

P = ParamSpec("P")
R = TypeVar("R")

VALUE_MAX = 1e100
"""If x has a larger entry, the update is rejected, because the square of the entry divided by a propensity could
overflow float64. An infinite weight would make all weights NaN. Predictions are still made for such x."""

PROPENSITY_MIN = 1e-100
"""Updates are rejected for decisions with a smaller propensity, because float64 could overflow."""

SCORE_MAX = 1e300
"""Scores are limited to ±1e300 and NaN becomes 0, so that every decision is valid."""


def _cache_directory() -> str:
    """Return a writable directory for machine code, or an empty string.

    Numba recompiles a kernel if the kernel's own file has changed, but not if the only change is in another file that
    contains a function called by the kernel. The path therefore contains a digest of this file and of all
    `*_kernels.py` files in the families' folders. The directory is outside the package, because the package may be
    read-only.
    """
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*kernels.py"))]
    digest = hashlib.blake2b(b"".join(sources) + numba.__version__.encode(), digest_size=8).hexdigest()
    roots = []
    with suppress(FileNotFoundError):  # no temporary directory is writable
        roots.append(f"{tempfile.gettempdir()}/onebit-{os.getuid()}")
    if os.environ.get("NUMBA_CACHE_DIR"):
        roots = [os.environ["NUMBA_CACHE_DIR"]]
    elif os.environ.get("XDG_CACHE_HOME"):
        roots.insert(0, os.environ["XDG_CACHE_HOME"] + "/onebit")
    elif os.environ.get("HOME"):
        roots.insert(0, os.environ["HOME"] + "/.cache/onebit")
    for root in roots:
        directory = Path(root) / f"kernels-{digest}"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Machine code is loaded from this directory, so no other user may own it.
            if os.access(directory, os.W_OK) and directory.stat().st_uid == os.getuid():
                return str(directory)
        except OSError:
            continue
    return ""


CACHE_DIRECTORY = _cache_directory()
"""The directory for compiled machine code, or an empty string if no directory is writable."""

setattr(numba.config, "CACHE_DIR", CACHE_DIRECTORY)  # noqa: B010 (numba creates the attribute at run time)


_FunctionCache: Any = FunctionCache  # numba's caches have no type annotations


class _MachineCode(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of a kernel's machine code on disk. Without it, or if it is damaged, the kernel is compiled."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a kernel, or return None if it must be compiled; see numba."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle can raise any error
            try:
                self.flush()
            except OSError as error:
                self._give_up(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a kernel if possible; see numba."""
        try:
            super().save_overload(sig, data)
        except OSError as error:  # for example, the disk is full
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _warn_uncached(str(error))
        self.disable()


@cache
def _warn_uncached(reason: str) -> None:
    logging.getLogger("onebit").warning(
        "%s: cannot store compiled kernels, so each start compiles them again: %s. Free disk space, or set "
        "NUMBA_CACHE_DIR to another folder",
        CACHE_DIRECTORY, reason, extra={"limited": True, "fields": {}},
    )  # fmt: skip


_njit: Any = njit  # numba's type annotations lack `no_cfunc_wrapper`


def _kernel(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    dispatcher = _njit(no_cfunc_wrapper=True, **options)(function)
    if CACHE_DIRECTORY:
        try:
            dispatcher._cache = _MachineCode(function)
        except RuntimeError as error:  # the kernel's folder cannot be created, although the cache's folder exists
            _warn_uncached(str(error))
    return cast(Callable[P, R], dispatcher)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on its first call and cache the machine code on disk if possible.

    No function is used as a C callback. Omitting the callback wrapper reduces a small function's compile time by a
    fifth.
    """
    return _kernel(function)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a kernel. It is compiled as part of its entry point; see `stream.learners.entries`.

    If a kernel were a function of its own, it would be compiled once for itself and once for its entry point.
    """
    return cast(Callable[P, R], _njit(inline="always")(function))


def subroutine(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only compiled code calls. It has no wrapper for calls from Python."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "cache": bool(CACHE_DIRECTORY)}
    return cast(Callable[P, R], _njit(**options)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function and inline it into its callers.

    Without inlining, a call costs 0.01 µs per array, plus reference counting.
    """
    return _kernel(function, forceinline=True)


class Event(NamedTuple):
    """An event that a predict kernel decides."""

    x: Features
    u: float  # uniform draw in [0, 1)
    scores: FloatArray  # float64[K + L], uninitialised; the kernel writes the scores and the L logged values
    eligible: IndexArray  # int32[m] in increasing order, the classes that may be played


class Decided(NamedTuple):
    """A decided event. The last three fields have a meaning only for `update` and `retract`."""

    x: Features
    action: int
    greedy: int
    propensity: float
    scores: FloatArray  # float64[K + L], the scores and the logged values at prediction time
    reward: float  # the bit, int64, or a share from 0 to 1, float64; each type is compiled separately
    v: float  # uniform draw in [0, 1), for randomised updates
    label: int  # the true class, for full-information baselines; otherwise -1


Kernel = Callable[..., Any]


@kernel
def observe_nothing(event: Decided, model: object) -> None:
    """Do nothing, because decisions do not change the model."""


class Kernels(NamedTuple):
    """A learner's kernels. Learners that cannot retract, or that override `retract`, need no retract kernel."""

    predict: Kernel
    update: Kernel
    observe: Kernel = observe_nothing
    log: Kernel = observe_nothing
    retract: Kernel = observe_nothing


@compiled
def check_event(x: Features, n_features: int) -> None:
    """Raise ValueError unless the indices increase strictly within [0, d) and there is one value per index."""
    indices, values = x
    if indices.size != values.size:
        raise ValueError("x: expected as many values as indices")
    last = -1
    for j in range(indices.size):
        if indices[j] <= last:
            raise ValueError("x: expected strictly increasing indices from 0")
        last = indices[j]
    if last >= n_features:
        raise ValueError("x: expected indices below n_features")


@compiled
def check_decision(event: Decided, n_classes: int, n_features: int, logged_size: int = 0) -> None:
    """Raise ValueError if an event or its decision does not match a model of this size."""
    check_event(event.x, n_features)
    if event.scores.size != n_classes + logged_size or event.action < 0 or event.action >= n_classes:
        raise ValueError("decision: expected an action below n_classes and n_classes scores")


@compiled
def usable(event: Decided, n_classes: int, n_features: int) -> bool:
    """Return whether a model may learn from this event; False if float64 could overflow.

    Raises ValueError under the same conditions as `check_decision`.
    """
    check_decision(event, n_classes, n_features)
    if not event.propensity >= PROPENSITY_MIN:
        return False
    fits = True
    for value in event.x.values:
        fits = fits and abs(value) <= VALUE_MAX  # also False for NaN
    return fits


@compiled
def assign(target: FloatArray, source: FloatArray) -> None:
    """Copy an array entry by entry. Assigning it to a slice instead would take a second longer to compile."""
    for j in range(source.size):
        target[j] = source[j]


@compiled
def bounded(score: float) -> float:
    """Limit a score to ±SCORE_MAX. NaN becomes 0."""
    if abs(score) <= SCORE_MAX:
        return score
    if score > 0.0:
        return SCORE_MAX
    return -SCORE_MAX if score < 0.0 else 0.0


@compiled
def linear_scores(x: Features, W: FloatArray, scores: FloatArray) -> None:
    """Set scores[k] = ⟨W_k, x⟩, summed in the order of the indices.

    The function sums four classes at a time, which halves its run time. The result is bitwise identical.
    """
    indices, values = x
    K = W.shape[0]
    k = 0
    while k + 3 < K:
        s0 = s1 = s2 = s3 = 0.0
        for j in range(indices.size):
            i = indices[j]
            value = values[j]
            s0 += W[k, i] * value
            s1 += W[k + 1, i] * value
            s2 += W[k + 2, i] * value
            s3 += W[k + 3, i] * value
        scores[k] = bounded(s0)
        scores[k + 1] = bounded(s1)
        scores[k + 2] = bounded(s2)
        scores[k + 3] = bounded(s3)
        k += 4
    while k < K:
        s0 = 0.0
        for j in range(indices.size):
            s0 += W[k, indices[j]] * values[j]
        scores[k] = bounded(s0)
        k += 1


@compiled
def limit(scores: FloatArray, eligible: IndexArray) -> None:
    """Set the scores of the classes that are not eligible to `NOT_ELIGIBLE`."""
    if eligible.size < scores.size:
        place = 0
        for k in range(scores.size):
            if place < eligible.size and eligible[place] == k:
                place += 1
            else:
                scores[k] = NOT_ELIGIBLE


@compiled
def linear_greedy(event: Event, W: FloatArray) -> int:
    """Check an event, write its scores Wx, and return the greedy class."""
    check_event(event.x, W.shape[1])
    linear_scores(event.x, W, event.scores)
    limit(event.scores, event.eligible)
    return argmax(event.scores)


@compiled
def current_scores(event: Decided, W: FloatArray) -> FloatArray:
    """Return the scores of an event, already checked, under the current W. Ineligible classes keep `NOT_ELIGIBLE`."""
    current = np.empty(W.shape[0])
    linear_scores(event.x, W, current)
    for k in range(current.size):
        if event.scores[k] == NOT_ELIGIBLE:
            current[k] = NOT_ELIGIBLE
    return current


@compiled
def argmax(scores: FloatArray) -> int:
    """Return the class with the highest score. Ties go to the lowest index."""
    best = 0
    for k in range(1, scores.size):
        if scores[k] > scores[best]:
            best = k
    return best


@compiled
def argmax_except(scores: FloatArray, excluded: int) -> int:
    """Return the class with the highest score except `excluded`. Ties go to the lowest index."""
    best = 1 if excluded == 0 else 0
    for k in range(best + 1, scores.size):
        if k != excluded and scores[k] > scores[best]:
            best = k
    return best


@compiled
def sample_epsilon_greedy(greedy: int, scores: FloatArray, gamma: float, u: float) -> tuple[int, float]:
    """Sample p_i = (1-γ)[i = greedy] + γ/m among the m eligible classes.

    Returns the first class i with u < p_0 + ... + p_i, and its propensity. If there is no such class because of
    rounding, the last eligible class is returned.
    """
    m = 0
    for k in range(scores.size):
        m += scores[k] != NOT_ELIGIBLE
    uniform = gamma / m
    cumulative = 0.0
    action, propensity = greedy, 1.0
    for k in range(scores.size):
        if scores[k] != NOT_ELIGIBLE:
            action, propensity = k, uniform + (1.0 - gamma) if k == greedy else uniform
            cumulative += propensity
            if u < cumulative:
                break
    return action, propensity


@compiled
def sample_from(probabilities: FloatArray, u: float) -> int:
    """Return the first class i with u < p_0 + ... + p_i.

    If there is no such class because of rounding, the last one with p_i > 0 is returned.
    """
    cumulative, last = 0.0, 0
    for k in range(probabilities.size):
        cumulative += probabilities[k]
        if u < cumulative:
            return k
        if probabilities[k] > 0.0:
            last = k
    return last


@compiled
def sample_inverse_gap(values: FloatArray, eligible: IndexArray, gamma: float, u: float) -> tuple[int, int, float]:
    """Sample π_k = 1/(m + γ (q_b − q_k)) for the eligible classes k ≠ b = argmax q; π_b is the remainder.

    Returns the action, b, and the action's propensity. `values` are q; ineligible classes have the lowest values.
    """
    best = argmax(values)
    played = np.zeros(values.size)
    left = 1.0
    for k in eligible:
        if k != best:
            played[k] = 1.0 / (eligible.size + gamma * (values[best] - values[k]))
            left -= played[k]
    played[best] = left
    action = sample_from(played, u)
    return action, best, played[action]


@compiled
def descend(w: FloatArray, a: FloatArray, e: FloatArray, value: float, step: float, first: int, stop: int) -> None:
    """Apply AdaGrad's A += (e x_i)² and W −= step · e x_i/√A for a feature and the classes from `first` up to `stop`.

    With numpy's division, the compiler can vectorise the loop, because there is no branch for a zero divisor.
    """
    for k in range(first, stop):
        gradient = e[k] * value
        squares = a[k] + gradient * gradient
        a[k] = squares
        w[k] -= np.divide(step * gradient, sqrt(squares))


@compiled
def add_scaled(W: FloatArray, row: int, scale: float, x: Features) -> None:
    """Apply W_row += scale · x."""
    indices, values = x
    for j in range(indices.size):
        W[row, indices[j]] += scale * values[j]


@compiled
def norm_of(values: FloatArray) -> float:
    """Return ‖x‖, computed relative to the largest entry so that no square overflows."""
    m0 = m1 = m2 = m3 = 0.0  # independent maxima, for instruction-level parallelism
    j = 0
    while j + 3 < values.size:
        m0, m1 = max(m0, abs(values[j])), max(m1, abs(values[j + 1]))
        m2, m3 = max(m2, abs(values[j + 2])), max(m3, abs(values[j + 3]))
        j += 4
    while j < values.size:
        m0 = max(m0, abs(values[j]))
        j += 1
    largest = max(max(m0, m1), max(m2, m3))
    if largest == 0.0 or largest == inf:
        return largest
    total = 0.0
    for j in range(values.size):
        ratio = np.divide(values[j], largest)  # numpy's division has no branch for a zero divisor
        total += ratio * ratio
    return largest * sqrt(total)


@compiled
def unit(values: FloatArray) -> FloatArray:
    """Scale x to unit norm. Return zeros if x is zero, infinite or NaN."""
    norm = norm_of(values)
    direction = np.zeros(values.size)
    if 0.0 < norm < inf:
        for j in range(values.size):
            direction[j] = np.divide(values[j], norm)
    return direction


@compiled
def squared_length(x: FloatArray) -> float:
    """Return ‖x‖² for a dense x, summed in order."""
    total = 0.0
    for j in range(x.size):
        total += x[j] * x[j]
    return total


@compiled
def symmetric_product(inverse: FloatArray, x: Features) -> FloatArray:
    """Return inverse · x for a symmetric inverse."""
    indices, values = x
    z = np.zeros(inverse.shape[0])
    for a in range(indices.size):
        row = inverse[indices[a]]
        value = values[a]
        for j in range(z.size):
            z[j] += value * row[j]
    return z


@compiled
def squared_norm(inverse: FloatArray, x: Features) -> float:
    """Return the squared M⁻¹-norm of x, or 0 if rounding makes it negative."""
    indices, values = x
    total = 0.0
    for a in range(indices.size):
        row = inverse[indices[a]]
        inner = 0.0
        for b in range(indices.size):
            inner += row[indices[b]] * values[b]
        total += inner * values[a]
    return max(total, 0.0)


SIMILARITIES = ("linear", "rational", "polynomial", "rbf")
"""Names of the kernel functions k(x, x')."""


class Similarity(NamedTuple):
    """A kernel function k(x, x')."""

    kind: int  # an index into SIMILARITIES
    degree: int
    width: float


@compiled
def similarity(k: Similarity, dot: float, norm_sq: float, other_norm_sq: float) -> float:
    """Return k(x, x') from ⟨x, x'⟩, ‖x‖² and ‖x'‖². k is linear, rational (norms up to 1), polynomial or Gaussian."""
    if k.kind == 0:
        return dot
    if k.kind == 1:
        return 1.0 / (1.0 - 0.5 * dot)
    if k.kind == 2:
        return float((1.0 + dot) ** k.degree)
    distance_sq = max(norm_sq + other_norm_sq - 2.0 * dot, 0.0)  # negative only due to rounding
    return exp(-distance_sq / (2.0 * k.width * k.width))


@inlined
def sum_of_rows(M: FloatArray, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """Set z to Mᵀ x, using the rows of M at the indices of x, four per pass."""
    z[:] = 0.0
    a = 0
    while a + 3 < x.size:
        r0, r1, r2, r3 = M[places[a]], M[places[a + 1]], M[places[a + 2]], M[places[a + 3]]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(z.size):
            z[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < x.size:
        r0 = M[places[a]]
        for j in range(z.size):
            z[j] += x[a] * r0[j]
        a += 1


@compiled
def softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax of the scores."""
    p = np.empty(scores.size)
    top = scores[argmax(scores)]
    total = 0.0
    for k in range(p.size):
        p[k] = exp(scores[k] - top)
        total += p[k]
    for k in range(p.size):
        p[k] /= total
    return p


@compiled
def logistic(score: float) -> float:
    """Return σ(s) = 1/(1 + exp(-s))."""
    return 1.0 / (1.0 + exp(-score))


DRIFTS = ("off", "global", "class")
"""Options for resets after a drop in reward: no reset; a reset of all classes; or, in addition, a reset of one class
after a drop in that class's reward."""

DRIFT_SLACK = 0.2
DRIFT_GLOBAL = 15.0
DRIFT_CLASS = 10.0
DRIFT_MEMORY = 1000.0
"""Parameters of the drift detectors. A detector adds up the amounts by which rewards are below their mean, and raises
an alarm if the sum exceeds the threshold. The mean covers about DRIFT_MEMORY bits. A drop in the mean has no effect if
it is less than the slack. On a stationary stream, alarms are rare unless the learner itself is unstable."""

NO_ALARM, ALARM_OF_ALL, ALARM_OF_CLASS = range(3)


@compiled
def _falls(detectors: FloatArray, column: int, reward: float, threshold: float) -> bool:
    """Update a detector's count, mean and sum with a settled reward. Return whether the sum exceeds the threshold."""
    detectors[0, column] += 1.0
    short = detectors[1, column] - reward
    detectors[2, column] = max(0.0, detectors[2, column] + short - DRIFT_SLACK)
    detectors[1, column] -= short / min(detectors[0, column], DRIFT_MEMORY)
    return bool(detectors[2, column] > threshold)


@compiled
def watch(detectors: FloatArray, alarms: FloatArray, action: int, reward: float, drift: int) -> int:
    """Add a settled reward, and count any alarm. Return whether to reset all classes, the action's class, or none.

    Args:
        detectors: float64[3, K + 1], one column per class and a last column for all classes together.
        alarms: float64[K + 1], in the same order.
        action: The class that was played.
        reward: The bit or share.
        drift: The index in DRIFTS.
    """
    if drift == 0:
        return NO_ALARM
    last = alarms.size - 1
    of_all = _falls(detectors, last, reward, DRIFT_GLOBAL)
    of_class = drift == 2 and _falls(detectors, action, reward, DRIFT_CLASS)
    if of_all:
        detectors[:] = 0.0
        alarms[last] += 1.0
        return ALARM_OF_ALL
    if of_class:
        detectors[:, action] = 0.0
        alarms[action] += 1.0
        return ALARM_OF_CLASS
    return NO_ALARM


TILE = 16
"""Side length of the square tiles used to mirror a symmetric matrix. Two tiles fit in the L1 cache."""


@compiled
def subtract_outer(inverse: FloatArray, changes: FloatArray) -> None:
    """Apply A⁻¹ -= Σ_m z_m z_mᵀ on and above the diagonal, with eight changes and two rows per pass, then mirror A⁻¹.

    The speed is limited by reads of the changes, so each read is used for two rows.
    """
    d = inverse.shape[0]
    for m in range(0, changes.shape[0], 8):
        for i in range(0, d, 2):
            row = inverse[i, i:]
            next_row = inverse[
                min(i + 1, d - 1), i:
            ]  # for odd d, the last row appears twice, and its second pass subtracts 0
            z0, z1, z2, z3 = changes[m, i:], changes[m + 1, i:], changes[m + 2, i:], changes[m + 3, i:]
            z4, z5, z6, z7 = changes[m + 4, i:], changes[m + 5, i:], changes[m + 6, i:], changes[m + 7, i:]
            a0, a1, a2, a3, a4, a5, a6, a7 = z0[0], z1[0], z2[0], z3[0], z4[0], z5[0], z6[0], z7[0]
            b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = 0.0
            if i + 1 < d:
                b0, b1, b2, b3, b4, b5, b6, b7 = z0[1], z1[1], z2[1], z3[1], z4[1], z5[1], z6[1], z7[1]
            for j in range(row.size):
                c0, c1, c2, c3, c4, c5, c6, c7 = z0[j], z1[j], z2[j], z3[j], z4[j], z5[j], z6[j], z7[j]
                row[j] -= ((a0 * c0 + a1 * c1) + (a2 * c2 + a3 * c3)) + ((a4 * c4 + a5 * c5) + (a6 * c6 + a7 * c7))
                next_row[j] -= ((b0 * c0 + b1 * c1) + (b2 * c2 + b3 * c3)) + ((b4 * c4 + b5 * c5) + (b6 * c6 + b7 * c7))
    for top in range(0, d, TILE):
        for left in range(0, top + 1, TILE):
            for i in range(top, min(top + TILE, d)):
                row = inverse[i]
                for j in range(left, min(left + TILE, i)):
                    row[j] = inverse[j, i]
