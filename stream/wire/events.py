"""The events of the pipeline: what crosses a topic, in memory.

NamedTuples rather than dataclasses: a frozen dataclass costs 1 µs to make, a NamedTuple 0.3 µs, and one is made for
every event. All are immutable; the arrays they carry are not written to once an event is made.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int32]


class Features(NamedTuple):
    """A sparse feature vector x with nnz entries, of a space with d features."""

    indices: IndexArray  # int32[nnz], 0-based, strictly increasing, each < d
    values: FloatArray  # float64[nnz], finite


class Logged(NamedTuple):
    """What was done long ago for a context that is replayed from a log of decisions."""

    action: int  # the class that was played
    propensity: float | None = None  # the probability with which it was played; None: the log does not say


class Context(NamedTuple):
    """What the learner sees of an event."""

    id: str
    x: Features
    logged: Logged | None = None  # None: it is of no log, or what the log says is not looked at


NOTHING_LOGGED: FloatArray = np.zeros(0)


class Decision(NamedTuple):
    """A learner's answer to a context, with all that its update will need from prediction time."""

    action: int  # the class that was played, sampled from p
    greedy: int  # the class with the highest score
    propensity: float  # p[action], the probability with which it was played; NaN: a log that does not say played it
    scores: FloatArray  # float64[K]
    logged: FloatArray = NOTHING_LOGGED  # float64[L], the learner's own; most have none


class DecisionTime:
    """When the decisions of a step were made, in ms since 1970: one object, shared by all of them.

    The time is unknown until the task reads the step's tick in its feedback partition.
    """

    __slots__ = ("ms", "step")

    def __init__(self, step: int, ms: int | None = None) -> None:
        self.step = step  # of no meaning once the time is known
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecisionTime) or self.ms != other.ms:
            return False
        return self.ms is not None or self.step == other.step

    __hash__ = None  # type: ignore[assignment]  # the time changes once

    def __repr__(self) -> str:
        return f"DecisionTime({self.step}, {self.ms})"


class Target(NamedTuple):
    """What the learner would have done by itself, where a log says what was done."""

    action: int
    propensity: float


class Prediction(NamedTuple):
    """A decision as it is published."""

    id: str
    decision: Decision
    model_version: int  # updates the model had seen
    target: Target | None = None  # None: it was no decision of a log
    class_name: str | None = None  # what the action is called; None: by its number alone
    logged: FloatArray | None = None  # what the decision logs, where it is read back: with a shared model; else None


class Answer(NamedTuple):
    """The part of a prediction that a program needs to judge it: to give feedback, or to count errors."""

    id: str
    action: int
    greedy: int
    context_offset: int  # of the context that it answers, in the partition of the same number


class Feedback(NamedTuple):
    """The one bit: was the action right."""

    id: str
    reward: int  # 1 right, 0 wrong
    label: int | None = None  # the true class, only for full-information baselines
    action: int | None = None  # the class that the sender judged, checked against the decision; None: it does not say


class Outcome(StrEnum):
    """How a decision was settled."""

    MATCHED = "matched"
    EXPIRED = "expired"
    UNMATCHED = "unmatched"  # the log that is replayed holds another action: nobody will tell the bit of this one


Drift = Literal["global"] | int
"""A detector of drift: the one of all classes together, or a class's own."""

DRIFT_OF_ALL: Drift = "global"


class Example(NamedTuple):
    """A settled decision."""

    id: str
    outcome: Outcome
    action: int
    propensity: float
    reward: int | None  # None: expired without an assumed reward, or unmatched
    delay_ms: int | None  # from the decision to its feedback; 0 if that came first, None if none came
    settled_at_ms: int  # stream time when the decision was settled
    drift: Drift | None = None  # the detector that went off by this reward; None: none did
