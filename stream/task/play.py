"""Replay of a logged decision: the learner's own is played, the log's is played, or both must agree.

*own*: the learner decides, and a log is not looked at. *logged*: the log's action is played, with the log's propensity,
and learned from; what the learner would have done is its *target*. *match*: the learner decides, and the decision
counts only where the log has the same action (Li, Chu, Langford, Wang, "Unbiased offline evaluation of
contextual-bandit-based news article recommendation algorithms", WSDM 2011): of a log whose actions were uniform, what
is left is distributed as if the learner had been there. Of another log, whose least propensity is at least m, a
decision of propensity p is taken with probability m/p first: in what is left of that, too, all actions are alike.
"""

from typing import Literal, NamedTuple

from stream.learners import Learner
from stream.wire.events import Decision, Features, Logged, Target

Play = Literal["own", "logged", "match"]

Reward = Literal["exclusive", "any"]
"""How many classes may be right for one context: exactly one, or any number, of which the bit tells one alone."""

UNKNOWN_PROPENSITY = float("nan")


class Played(NamedTuple):
    """A decision as it is published, and what there is to say about it."""

    decision: Decision
    target: Target
    counts: bool = True  # False: the log cannot tell its bit
    is_floored: bool = False  # the logged propensity is below the least that is allowed


def play_logged(learner: Learner, x: Features, own: Decision, logged: Logged, propensity_min: float) -> Played:
    """Play what the log says.

    Args:
        learner: who would have decided otherwise.
        x: for what.
        own: what it would have done.
        logged: what was done.
        propensity_min: the least propensity that is learned from; 0 where the learner weighs by none.
    """
    propensity = UNKNOWN_PROPENSITY if logged.propensity is None else logged.propensity
    decision = learner.as_played(x, own, logged.action, propensity)
    return Played(decision, Target(own.action, own.propensity), is_floored=propensity < propensity_min)


def play_match(own: Decision, logged: Logged, propensity_min: float, u: float) -> Played:
    """Play what the learner decides, and let it count where the log can tell its bit.

    Args:
        own: what the learner decides.
        logged: what was done; its propensity is known.
        propensity_min: the least propensity of the log; 0: the log is uniform, and every decision of it is taken.
        u: uniform in [0, 1), by which it is taken.
    """
    propensity = logged.propensity or 0.0
    is_taken = propensity_min == 0.0 or u * propensity < propensity_min
    counts = is_taken and own.action == logged.action
    target = Target(own.action, own.propensity)
    return Played(own, target, counts, is_floored=propensity < propensity_min)
