"""Replays logged decisions. The `play` setting selects one of three modes.

- *own*: the learner decides, and the log is ignored.
- *logged*: the log's action is played with its logged propensity, and the learner learns from the result. The learner's
  own decision is the *target*.
- *match*: the learner decides, and its decision is used only if the log has the same action (Li, Chu, Langford, Wang,
  "Unbiased offline evaluation of contextual-bandit-based news article recommendation algorithms", WSDM 2011). If the
  log's actions are uniformly random, the matched events have the same distribution as if the learner had made the
  logged decisions. If the log is not uniform and has a minimum propensity m, a logged decision with propensity p is
  first accepted with probability m/p, which makes all actions equally likely among the accepted decisions.
"""

from math import nan

from stream.learners import Learner
from stream.wire.records import Decision, Features, Logged


def play_logged(learner: Learner, x: Features, own: Decision, logged: Logged) -> Decision:
    """Return the log's decision for x as if the learner had made it. The learner's own decision is not played."""
    return learner.as_played(x, own, logged.action, nan if logged.propensity is None else logged.propensity)


def is_matched(own: Decision, logged: Logged, propensity_min: float, u: float) -> bool:
    """Return whether the learner's decision matches the log: the logged decision is accepted and has the same action.

    Args:
        own: the learner's decision.
        logged: the log's decision, with a known propensity.
        propensity_min: the log's minimum propensity. 0 means that the log is uniform, so every logged decision is
            accepted.
        u: uniform draw in [0, 1) that determines whether the logged decision is accepted.
    """
    is_accepted = propensity_min == 0.0 or u * (logged.propensity or 0.0) < propensity_min
    return is_accepted and own.action == logged.action


def floored(decision: Decision, propensity_min: float) -> Decision:
    """Return the decision for a learner's update, with a logged propensity raised to the minimum if it is lower.

    The minimum is 0 for a learner that does not use propensities to compute weights. For such a learner, 1 is used if
    the log has no propensity.
    """
    propensity = decision.propensity
    if propensity >= propensity_min:
        return decision
    return decision._replace(propensity=propensity_min if propensity < propensity_min else 1.0)
