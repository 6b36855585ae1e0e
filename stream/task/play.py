"""Replay of logged decisions. The play setting selects one of three modes.

- *own*: the learner decides, and the log is ignored.
- *logged*: the log's action is played with the log's propensity, and the learner learns from it. The learner's own
  decision is the *target*.
- *match*: the learner decides, and the decision is used only if the log has the same action (Li, Chu, Langford, Wang,
  "Unbiased offline evaluation of contextual-bandit-based news article recommendation algorithms", WSDM 2011). If the
  log's actions are uniformly random, the matched events have the same distribution as if the learner had made the
  logged decisions. For a non-uniform log with a minimum propensity m, a logged decision with propensity p is first
  accepted with probability m/p. All actions are then equally likely among the accepted decisions.
"""

from math import nan
from typing import Literal, NamedTuple

from stream.learners import Learner
from stream.wire.records import Decision, Features, Logged, Target

Play = Literal["own", "logged", "match"]

Reward = Literal["exclusive", "any"]
"""The number of right classes per context: exactly one, or any number. The bit refers only to the played class."""


class Played(NamedTuple):
    """A decision to publish, and its relation to the logged decision."""

    decision: Decision
    target: Target
    counts: bool = True  # False if the log has no bit for this decision
    is_floored: bool = False  # True if the logged propensity is below the minimum


def play_logged(learner: Learner, x: Features, own: Decision, logged: Logged, propensity_min: float) -> Played:
    """Play the log's decision.

    Args:
        learner: the learner.
        x: the context's features.
        own: the learner's own decision.
        logged: the log's decision.
        propensity_min: minimum propensity for learning; 0 if the learner does not weight by propensities.
    """
    propensity = nan if logged.propensity is None else logged.propensity
    decision = learner.as_played(x, own, logged.action, propensity)
    return Played(decision, Target(own.action, own.propensity), is_floored=propensity < propensity_min)


def play_match(own: Decision, logged: Logged, propensity_min: float, u: float) -> Played:
    """Play the learner's decision, which is used only if the log has the same action.

    Args:
        own: the learner's decision.
        logged: the log's decision, with a known propensity.
        propensity_min: the log's minimum propensity. 0 means that the log is uniform; every logged decision is then
            accepted.
        u: uniform draw in [0, 1) that determines acceptance.
    """
    propensity = logged.propensity or 0.0
    is_taken = propensity_min == 0.0 or u * propensity < propensity_min
    counts = is_taken and own.action == logged.action
    target = Target(own.action, own.propensity)
    return Played(own, target, counts, is_floored=propensity < propensity_min)
