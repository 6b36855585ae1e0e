"""A direct implementation of the exploration floor. Uses only the wrapped learner's public methods."""

from stream.learners import Learner
from stream.wire.records import Decision, Features


class FloorOracle:
    """A learner with an exploration floor. `is_sound` is True if the learner can learn from another policy."""

    def __init__(self, learner: Learner, floor: float, *, is_sound: bool) -> None:
        self.learner, self.floor, self.is_sound = learner, floor, is_sound

    def decide(self, x: Features, u: float) -> tuple[Decision, Decision | None]:
        """Return the decision, and the decision from which the wrapped learner learns (None if it does not learn)."""
        K, f = self.learner.n_classes, self.floor
        chance = f / K + (1.0 - f) * self.learner.distribution(x)
        if u < f:
            action = int(u / f * K)
            own = self.learner.predict(x, 0.0)
            made = self.learner.as_played(x, own, action, float(chance[action]))
            inner_decision = made if self.is_sound else None
        else:
            own = self.learner.predict(x, (u - f) / (1.0 - f))
            made = own._replace(propensity=float(chance[own.action]))
            inner_decision = made if self.is_sound else own
        if inner_decision is not None:
            self.learner.observe(x, inner_decision)
        return made, inner_decision
