"""Learners over a finite sample of linear hypotheses: halving, biased halving, EXP4 and hypothesis exhaustion.

These learners serve as references for small problems, because an event costs hypotheses · K · nnz products.

The Notes use a grid of γ^(-Kd) matrices or the whole space. These learners instead use a sample of matrices W. The
parameter `hypotheses` is the number of matrices. The rows of W are uniformly distributed in a ball of the given radius.
They are drawn once with numpy's PCG64 and the given seed.
"""

import zlib
from collections.abc import Mapping
from math import exp
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, KernelLearner, Parameter, State
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    argmax,
    check_event,
    kernel,
    linear_scores,
    sample_epsilon_greedy,
    subroutine,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import Features, FloatArray


def draw_hypotheses(size: int, n_classes: int, n_features: int, radius: float, seed: int) -> FloatArray:
    """Draw matrices whose rows are uniform in a ball. Each row is a Gaussian direction times a random length."""
    generator = np.random.Generator(np.random.PCG64(seed))
    directions = generator.standard_normal((size, n_classes, n_features))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    lengths: FloatArray = radius * generator.random((size, n_classes, 1)) ** (1.0 / n_features)
    return directions * lengths


class Sampled(KernelLearner):
    """Base class for learners that use a sample of hypotheses, float64[n, K, d]."""

    common: ClassVar[tuple[Parameter, ...]] = (
        Parameter("hypotheses", 256, "number of matrices in the sample", low=1, high=10_000_000),
        Parameter("radius", 1.0, "bound on the norm of each row", low=1e-9, high=1e9),
        Parameter("seed", 0, "seed of the sample", low=0, high=2.0**63),
    )
    is_linear = False
    hypotheses: FloatArray

    def state(self) -> State:
        """Return a copy of the state. A checksum replaces the hypotheses, which depend only on the parameters."""
        return {**super().state(), "fingerprint": zlib.crc32(self.hypotheses.tobytes())}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`.

        Raises:
            ValueError: the state belongs to a different sample of hypotheses.
        """
        expected = zlib.crc32(self.hypotheses.tobytes())
        if int(state.get("fingerprint", -1)) != expected:
            raise ValueError(
                f"cannot load {self.name}: expected hypotheses with checksum {expected}, got "
                f"{state.get('fingerprint')}; use the stored state's seed, radius and number of hypotheses"
            )
        super().load(state)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing all hypotheses' scores, once for the prediction and once for the update."""
        products = int(parameters["hypotheses"]) * n_classes * nnz
        return Cost(
            flops_per_event=4 * products,
            bytes_per_event=16 * products,
            state_bytes=8 * int(parameters["hypotheses"]) * (n_classes * n_features + 1),
        )


class MajorityModel(NamedTuple):
    """The hypotheses that remain; see `BiasedHalving`."""

    H: FloatArray  # [n, K, d]
    alive: NDArray[np.int8]  # [n]
    alpha: float


class Exp4Model(NamedTuple):
    """The hypotheses and their losses; see `Exp4`."""

    H: FloatArray  # [n, K, d]
    losses: FloatArray  # [n]
    gamma: float
    alpha: float


class ExhaustionModel(NamedTuple):
    """The hypotheses, and the index of the current one; see `HypothesisExhaustion`."""

    H: FloatArray  # [n, K, d]
    current: NDArray[np.int64]  # [1]


@subroutine
def vote(hypothesis: FloatArray, x: Features, room: FloatArray) -> int:
    """Return the class that a hypothesis predicts for x. The scores are written to `room`."""
    linear_scores(x, hypothesis, room)
    return argmax(room)


@subroutine
def count_votes(event: Event, model: MajorityModel) -> None:
    """Set scores[i] = |S_t(i)|, the number of remaining hypotheses that predict class i."""
    H, alive, scores = model.H, model.alive, event.scores
    check_event(event.x, H.shape[2])
    room = np.empty(scores.size)
    scores[:] = 0.0
    for h in range(H.shape[0]):
        if alive[h]:
            scores[vote(H[h], event.x, room)] += 1.0


@subroutine
def eliminate(event: Decided, agreeing: bool, model: MajorityModel) -> bool:
    """Remove the hypotheses that predict the action (if `agreeing`) or those that do not, unless none would remain."""
    H, alive = model.H, model.alive
    room = np.empty(H.shape[1])
    goes = np.zeros(H.shape[0], np.int8)
    left = 0
    gone = 0
    for h in range(H.shape[0]):
        if alive[h]:
            if (vote(H[h], event.x, room) == event.action) == agreeing:
                goes[h] = 1
                gone += 1
            else:
                left += 1
    if left == 0 or gone == 0:
        return False
    for h in range(H.shape[0]):
        if goes[h]:
            alive[h] = 0
    return True


@subroutine
def clear_majority(scores: FloatArray, alpha: float) -> bool:
    """Return whether one class has a share of at least 1 - α of the hypotheses (Algorithm 8, line 7)."""
    return bool(scores[argmax(scores)] >= (1.0 - alpha) * scores.sum())


@kernel
def predict_majority(event: Event, model: MajorityModel) -> tuple[int, int, float]:
    """Play the class of a clear majority, or guess if there is none (Algorithm 8, lines 7-8 and 12)."""
    count_votes(event, model)
    greedy = argmax(event.scores)
    if clear_majority(event.scores, model.alpha):
        return greedy, greedy, 1.0
    action, propensity = sample_epsilon_greedy(greedy, event.scores, 1.0, event.u)
    return action, greedy, propensity


@kernel
def update_majority(event: Decided, model: MajorityModel) -> bool:
    """Remove the hypotheses refuted by a wrong majority or a right guess (Algorithm 8, lines 9-10 and 13-14)."""
    if not usable(event, model.H.shape[1], model.H.shape[2]):
        return False
    if clear_majority(event.scores, model.alpha):
        return event.reward == 0 and eliminate(event, True, model)
    return event.reward == 1 and eliminate(event, False, model)


@register
class Halving(Sampled):
    """Plays the majority class of the remaining hypotheses. After a mistake, removes the hypotheses that made it.

    "Bandit Multiclass Classification" (the Notes), Algorithm 2.

        S_t(y) = {W in S_t that predict y for x_t};  ỹ = argmax_y |S_t(y)|
        wrong: S_{t+1} = S_t without S_t(ỹ)

    This is Algorithm 8 (biased-halving) with α = 1: every majority is clear.

    Symbols: S_t the remaining hypotheses, flagged in `alive`; |S_t(y)| scores; ỹ the action.

    Assumes that some hypothesis in the sample is never wrong. A mistake removes at least 1/K of the remaining
    hypotheses. There are therefore at most ln|S| / -ln(1 - 1/K) ≤ K ln|S| mistakes.

    Delay: a wrong answer removes the remaining hypotheses that predict the action for x, regardless of the current
    majority. The bound no longer applies, because a majority may be wrong many times before the first bit arrives.

    Departures from the paper: a sample of hypotheses replaces the grid. A hypothesis with tied classes is counted only
    for the lowest class. If an answer would remove all remaining hypotheses, the assumption is violated and the answer
    is ignored.

    >>> from stream.learners import create
    >>> learner = create("halving", n_classes=3, n_features=2, hypotheses=30)
    >>> x = np.array([0.6, 0.8])
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.scores.tolist(), decision.action
    ([10.0, 9.0, 11.0], 2)
    >>> learner.update(x, decision, reward=0)
    True
    >>> learner.predict(x, u=0.5).scores.tolist()
    [10.0, 9.0, 0.0]
    """

    name: ClassVar[str] = "halving"
    summary: ClassVar[str] = "majority vote of sampled hypotheses; for small problems"
    paper: ClassVar[str] = "Notes, Alg. 2"
    parameters: ClassVar[tuple[Parameter, ...]] = Sampled.common
    kernels = Kernels(predict_majority, update_majority)

    def __init__(self, n_classes: int, n_features: int, hypotheses: int, radius: float, seed: int) -> None:
        self.hypotheses = draw_hypotheses(hypotheses, n_classes, n_features, radius, seed)
        alive = np.ones(hypotheses, dtype=np.int8)
        super().__init__(n_classes, n_features, {"alive": alive}, MajorityModel(self.hypotheses, alive, 1.0))


@register
class BiasedHalving(Sampled):
    """Plays the class of a clear majority; otherwise, guesses. Learns from wrong majorities and from right guesses.

    "Bandit Multiclass Classification" (the Notes), Algorithm 8.

        some class has |Ω_t(i|x)| ≥ (1-α)|Ω_t|:  ỹ = i;        wrong: Ω_{t+1} = Ω_t without Ω_t(ỹ|x)
        none:                                    ỹ uniform;    right: Ω_{t+1} = Ω_t(ỹ|x)

    Symbols: Ω_t the remaining hypotheses, flagged in `alive`; |Ω_t(i|x)| scores; α `alpha`, in (0, 1), below ½ for the
    paper's analysis; ỹ the action.

    Assumes that some hypothesis in the sample is never wrong. With N hypotheses, a majority is then wrong at most ln N
    / ln(1/α) times, and a guess is right at most ln N / ln(1/(1-α)) times. On average, at most K-1 guesses are wrong
    for each right guess.

    Delay: the scores at prediction time determine whether the action was a majority or a guess. The bit removes the
    remaining hypotheses that it refutes.

    Departures from the paper: a sample of hypotheses replaces the volume of Ω. A hypothesis with tied classes is
    counted only for the lowest class. An answer that would remove all remaining hypotheses is ignored.

    >>> from stream.learners import create
    >>> learner = create("biased-halving", n_classes=3, n_features=2, hypotheses=30)
    >>> x = np.array([0.6, 0.8])
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.action, decision.propensity
    (1, 0.3333333333333333)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.predict(x, u=0.5).scores.tolist()
    [0.0, 9.0, 0.0]
    """

    name: ClassVar[str] = "biased-halving"
    summary: ClassVar[str] = "clear majority of sampled hypotheses, or a guess if there is none; for small problems"
    paper: ClassVar[str] = "Notes, Alg. 8"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("alpha", 0.25, "maximum share of hypotheses outside a clear majority", 0.0, 1.0, True, True),
        *Sampled.common,
    )
    kernels = Kernels(predict_majority, update_majority)

    def __init__(
        self, n_classes: int, n_features: int, alpha: float, hypotheses: int, radius: float, seed: int
    ) -> None:
        self.hypotheses = draw_hypotheses(hypotheses, n_classes, n_features, radius, seed)
        alive = np.ones(hypotheses, dtype=np.int8)
        super().__init__(n_classes, n_features, {"alive": alive}, MajorityModel(self.hypotheses, alive, alpha))


@kernel
def predict_exp4(event: Event, model: Exp4Model) -> tuple[int, int, float]:
    """Using one draw, sample the action and then, given the action, the class of the sampled W (lines 5-7)."""
    H, losses = model.H, model.losses
    scores = event.scores
    check_event(event.x, H.shape[2])
    K = scores.size
    room = np.empty(K)
    least = losses.min()
    total = 0.0
    scores[:] = 0.0
    for h in range(H.shape[0]):
        q = exp(-model.alpha * (losses[h] - least))  # line 5
        scores[vote(H[h], event.x, room)] += q
        total += q
    scores /= total
    action = -1
    propensity = 0.0
    below = 0.0
    for i in range(K):
        p = (1.0 - model.gamma) * scores[i] + model.gamma / K
        if p > 0.0:  # the last such class is played if rounding leaves u above the sum
            action, propensity = i, p
        if event.u < below + p:
            break
        below += p
    rest = min(max((event.u - below) / propensity, 0.0), 1.0)  # uniform in [0, 1] again, given the action
    greedy = action
    cumulative = 0.0
    for j in range(K):
        joint = scores[j] * ((1.0 - model.gamma if j == action else 0.0) + model.gamma / K) / propensity
        cumulative += joint
        if joint > 0.0:
            greedy = j
        if rest < cumulative:
            break
    return action, greedy, propensity


@kernel
def update_exp4(event: Decided, model: Exp4Model) -> bool:
    """Add every hypothesis's estimated loss to its stored loss, then subtract the smallest loss from all losses."""
    H, losses = model.H, model.losses
    K = event.scores.size
    if not usable(event, H.shape[1], H.shape[2]):
        return False
    played = model.gamma / K + (1.0 - model.gamma if event.greedy == event.action else 0.0)
    if event.reward == 0 or not played > 0.0:
        return False
    room = np.empty(K)
    for h in range(H.shape[0]):
        highest = vote(H[h], event.x, room)
        losses[h] += max(1.0 - room[event.action] + room[highest], 0.0) / played
    losses -= losses.min()
    return True


@register
class Exp4(Sampled):
    """Exponential weights over hypotheses, based on estimates of the hinge loss, with uniform exploration.

    "Bandit Multiclass Classification" (the Notes), Algorithm 9.

        q(W) ∝ exp(-α Σ_s ℓ̂_s(W));  W_t ~ q;  ŷ = argmax_r (W_t x)_r;  ỹ = ŷ with probability 1-γ, else uniform
        ℓ_t(W) = [1 - (Wx)_y + max_r (Wx)_r]_+
        right: ℓ̂_t(W) = ℓ_t(W) / ((1-γ)[ŷ = ỹ] + γ/K);  wrong: 0

    Symbols: Σ ℓ̂ losses [n], minus their minimum; scores Q_i, the weight of the hypotheses that predict i; α
    `alpha`, the rate; γ `gamma`; ŷ greedy, the class of the sampled W; ỹ the action.

    One uniform u determines both draws, with the paper's distribution. ỹ is drawn from p_i = (1-γ) Q_i + γ/K, where p_ỹ
    is the propensity. The position of u within the interval of ỹ is again uniform, and determines ŷ given ỹ.

    The maximum in ℓ is over all classes, as in the Notes, so ℓ ≥ 1. With r ≠ y, ℓ would be the hinge loss of sect. 3.
    The Notes sketch a regret bound without a proof.

    Delay: ŷ and ỹ are the values at prediction time, because the estimate is unbiased only for their distribution
    (Lemma 19).

    Departures from the paper: a sample of hypotheses replaces the integral over Ω. `greedy` is the class of the sampled
    hypothesis, not the class with the highest score.

    >>> from stream.learners import create
    >>> learner = create("exp4", n_classes=2, n_features=2, hypotheses=20, gamma=0.5)
    >>> x = np.array([0.6, 0.8])
    >>> decision = learner.predict(x, u=0.2)
    >>> decision.scores.tolist(), decision.action, decision.greedy, round(decision.propensity, 3)
    ([0.4, 0.6], 0, 0, 0.45)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.predict(x, u=0.2).scores.round(3).tolist()
    [0.425, 0.575]
    """

    name: ClassVar[str] = "exp4"
    summary: ClassVar[str] = "exponential weights over sampled hypotheses; for small problems"
    paper: ClassVar[str] = "Notes, Alg. 9"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("gamma", 0.1, "share of uniform exploration", low=0.0, high=1.0),
        Parameter("alpha", 0.1, "rate of the exponential weights", low=0.0, high=1e6, can_change=True),
        *Sampled.common,
    )
    kernels = Kernels(predict_exp4, update_exp4)

    def __init__(
        self, n_classes: int, n_features: int, gamma: float, alpha: float, hypotheses: int, radius: float, seed: int
    ) -> None:
        self.hypotheses = draw_hypotheses(hypotheses, n_classes, n_features, radius, seed)
        losses = np.zeros(hypotheses)
        super().__init__(n_classes, n_features, {"losses": losses}, Exp4Model(self.hypotheses, losses, gamma, alpha))


@kernel
def predict_exhaustion(event: Event, model: ExhaustionModel) -> tuple[int, int, float]:
    """Play the class of the current hypothesis."""
    check_event(event.x, model.H.shape[2])
    action = vote(model.H[model.current[0]], event.x, event.scores)
    return action, action, 1.0


@kernel
def update_exhaustion(event: Decided, model: ExhaustionModel) -> bool:
    """After a wrong answer that the current hypothesis would also give, advance to the next hypothesis."""
    if not usable(event, model.H.shape[1], model.H.shape[2]):
        return False
    room = np.empty(model.H.shape[1])
    if event.reward == 1 or vote(model.H[model.current[0]], event.x, room) != event.action:
        return False
    model.current[0] = (model.current[0] + 1) % model.H.shape[0]
    return True


@register
class HypothesisExhaustion(Sampled):
    """Plays the class of one hypothesis until this hypothesis is wrong, then the class of the next hypothesis.

    "Bandit Multiclass Classification" (the Notes), sect. 2, second approach.

        ỹ = argmax_r (W_j x)_r;  wrong: j += 1

    Symbols: W_j the hypotheses in sample order; j in `current`; ỹ the action, which is the greedy class.

    Assumes that some hypothesis in the sample is never wrong. There are then at most |H| - 1 mistakes, one for each
    hypothesis before the one that is never wrong.

    Delay: a wrong answer refutes the current hypothesis only if this hypothesis also predicts the played class for x. A
    mistake by an earlier hypothesis does not refute the current one.

    Departures from the paper: a sample of hypotheses replaces the grid. After the last hypothesis, the first one is
    used again.

    >>> from stream.learners import create
    >>> learner = create("hypothesis-exhaustion", n_classes=2, n_features=2)
    >>> x = np.array([0.6, 0.8])
    >>> first = learner.weights()
    >>> learner.update(x, learner.predict(x, u=0.5), reward=0)
    True
    >>> bool((learner.weights() == first).any())
    False
    """

    name: ClassVar[str] = "hypothesis-exhaustion"
    summary: ClassVar[str] = "plays one sampled hypothesis until it is wrong, then the next; for small problems"
    paper: ClassVar[str] = "Notes, sect. 2"
    parameters: ClassVar[tuple[Parameter, ...]] = Sampled.common
    kernels = Kernels(predict_exhaustion, update_exhaustion)

    def __init__(self, n_classes: int, n_features: int, hypotheses: int, radius: float, seed: int) -> None:
        self.hypotheses = draw_hypotheses(hypotheses, n_classes, n_features, radius, seed)
        current = np.zeros(1, dtype=np.int64)
        super().__init__(n_classes, n_features, {"current": current}, ExhaustionModel(self.hypotheses, current))

    def weights(self) -> FloatArray:
        """Return a copy of the current hypothesis, float64[K, d]."""
        weights: FloatArray = self.hypotheses[self.arrays["current"][0]].copy()
        return weights

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing one hypothesis's scores, once for the prediction and once for the update."""
        return Cost(
            flops_per_event=4 * n_classes * nnz,
            bytes_per_event=16 * n_classes * nnz,
            state_bytes=8 * int(parameters["hypotheses"]) * n_classes * n_features + 8,
        )
