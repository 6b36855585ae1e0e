"""Records as read from Kafka, and the events that they contain, as Python objects.

These objects are created for every event, so most classes are NamedTuples: creating a NamedTuple takes 0.3 µs, and
creating a frozen dataclass takes 1 µs. Examples, and objects within an event's JSON value, are msgspec structs, which
the decoder creates and checks. All objects are immutable; do not write to their arrays.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import isnan
from typing import Annotated, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

Headers = tuple[tuple[str, bytes], ...]
"""Header names and values. Bytes in a name that are not valid UTF-8 become lone surrogates (`surrogateescape`). A null
value is read as an empty value."""


make = tuple.__new__
"""`make(Record, (topic, ...))` is equivalent to `Record(topic, ...)` with all fields, but takes 0.08 µs instead of 0.21
µs. Onebit creates about twenty NamedTuples per event. Calling their constructors would take an eighth of an event's
processing time.
"""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Record(NamedTuple):
    """A record read from a topic."""

    topic: str
    partition: int
    offset: int
    append_ms: int  # the broker's time at which the record was appended
    key: bytes | None
    value: bytes | None
    headers: Headers


def place_of(record: Record) -> str:
    """Return a record's topic, partition and offset, for messages."""
    return f"{record.topic}/{record.partition} offset {record.offset}"


class Foreign(NamedTuple):
    """Counts records that other programs wrote to Onebit's topics. Readers skip these records."""

    records: int = 0
    first: str = ""  # position of the first such record

    def including(self, record: Record) -> "Foreign":
        """Return these counts with one more record included."""
        return Foreign(self.records + 1, self.first or place_of(record))

    def describe(self, where: str) -> str:
        """Return a warning about these records."""
        return (
            f"skipped {self.records:,} records in {where} that Onebit did not write; the first is {self.first}. "
            "Find out which program wrote them"
        )


FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int32]


class Features(NamedTuple):
    """A sparse feature vector x with nnz entries, in a space with d features."""

    indices: IndexArray  # int32[nnz], 0-based, strictly increasing, each < d
    values: FloatArray  # float64[nnz], finite


NO_FEATURES = Features(np.zeros(0, np.int32), np.zeros(0))
"""A vector without entries."""


ID_BYTES_MAX = 256
"""Maximum size of an id. Ids are record keys, and a task stores the ids of all pending and retained events."""

ID_LIMITS = {"minLength": 1, "maxLength": ID_BYTES_MAX}  # JSON Schema counts characters, and the codec counts bytes
EventId = Annotated[
    str,
    Meta(
        description="The event's id, which its context, prediction, feedback and example share.",
        extra_json_schema=ID_LIMITS,
    ),
]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Bit = Annotated[int, Meta(ge=0, le=1)]
Probability = Annotated[float, Meta(gt=0, le=1)]


class Logged(Struct, frozen=True, gc=False):
    """The logged decision for a context replayed from a log."""

    action: Annotated[Whole, Meta(description="The class that was played.")]
    propensity: Annotated[
        Probability | None,
        Meta(description="The probability with which it was played. Null if the log does not contain it."),
    ] = None


Envelope = Literal["none", "cloudevents"]
"""The envelope of contexts and feedback from other programs: none, or CloudEvents in structured mode."""


class Context(NamedTuple):
    """An event's features, and other information that the learner needs for the decision."""

    id: str
    x: Features
    logged: Logged | None = None  # None if the context is not from a log, or the log is ignored
    unknown: Sequence[str] = ()  # feature names, one for each unknown category or word
    eligible: IndexArray | None = None  # int32[m] in increasing order, the classes to decide among; None means all
    is_deferred: bool = False  # True if the window begins only when the decision is shown
    baseline: int | None = None  # the class that the service's own rule plays; None if the context does not name it
    actions: Sequence[str] | None = None  # the actions' ids by place; None if the pipeline decides among classes


NOTHING_LOGGED: FloatArray = np.zeros(0)

NOT_ELIGIBLE = -1e305
"""The score of a class that was not eligible. All other scores are larger; see `stream.learners.kernels.SCORE_MAX`."""


NO_CLASS = -1


class Decision(NamedTuple):
    """A learner's decision for a context, with all values that a later update needs."""

    action: int  # the class that was played, drawn from p
    greedy: int  # the class with the highest score; NO_CLASS if no learner can learn from the decision
    propensity: float  # p[action], the probability with which it was played; NaN if the log has no propensities
    scores: FloatArray  # float64[K]; `NOT_ELIGIBLE` for classes that were not eligible
    logged: FloatArray = NOTHING_LOGGED  # float64[L], other numbers that the learner stores; empty for most learners

    @property
    def can_teach(self) -> bool:
        """Whether a learner can learn from the decision's bit.

        It cannot if the decision was made before the first of the pipeline's learners was added; see
        `stream.task.carry`.
        """
        return self.greedy != NO_CLASS

    @property
    def known_propensity(self) -> float | None:
        """The propensity, or None if it is NaN."""
        return None if isnan(self.propensity) else self.propensity


class DecisionTime:
    """The time of a step's decisions, in ms since 1970. All decisions in the step share one object.

    The time is unknown until the task applies the step's tick.
    """

    __slots__ = ("ms", "step")

    def __init__(self, step: int, ms: int | None = None) -> None:
        self.step = step  # not used after the time is known
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecisionTime) or self.ms != other.ms:
            return False
        return self.ms is not None or self.step == other.step

    __hash__ = None  # type: ignore[assignment]  # not hashable, because the time changes once

    def __repr__(self) -> str:
        return f"DecisionTime({self.step}, {self.ms})"


class Target(Struct, frozen=True, gc=False):
    """The learner's own decision for a context whose logged decision was played."""

    action: Whole
    propensity: Probability


Arm = Literal["holdout"]
"""The arm of decisions that are made by a fixed policy, for comparison."""

HOLDOUT: Arm = "holdout"

DecidedBy = Annotated[Arm | None, Meta(description='"holdout" if the holdout policy decided, otherwise absent.')]


class Challenged(Struct, frozen=True, gc=False):
    """The learner that made a decision, and the class that each of the other learners chose."""

    champion: Annotated[str, Meta(description="The name of the learner that decided.")]
    choices: Annotated[
        dict[str, Whole],
        Meta(description="The class that each of the other learners chose, by the learner's name."),
    ]


class Prediction(NamedTuple):
    """A published decision."""

    id: str
    decision: Decision
    model_version: int  # own model: number of applied updates; shared model: number of log entries
    target: Target | None = None  # None if the published decision is not from a log
    class_name: str | None = None  # the action's name or id; None if the classes have no names
    logged: FloatArray | None = None  # the decision's logged values; only with a shared model
    arm: Arm | None = None  # None if the learner made the decision
    trace: Headers = ()  # the context's trace headers
    challenged: Challenged | None = None  # None without challengers
    baseline: int | None = None  # as in the context
    actions: Sequence[str] | None = None  # as in the context


class Feedback(NamedTuple):
    """A decision's reward: a bit, which states whether the action was right, or a number."""

    id: str
    reward: int | float  # a bit as an int (1 right, 0 wrong), or a graded reward as a float, in the pipeline's units
    label: int | None = None  # the true class, only for full-information baselines
    action: int | str | None = None  # the class or the action's id to which the bit applies, if given
    part: str | None = None  # the id of this part of a sum; None unless rewards are summed
    is_final: bool = False  # whether the decision is settled at once, although other feedback could change its reward


class Shown(NamedTuple):
    """A shown record, which reports that a deferred decision was shown. The decision's window begins at this record."""

    id: str


class Outcome(StrEnum):
    """The outcome of a settled decision."""

    MATCHED = "matched"
    EXPIRED = "expired"
    UNMATCHED = "unmatched"  # the replayed log has a different action, and therefore no bit for this action
    UNSHOWN = "unshown"  # the decision was deferred, and was not shown in time


Drift = Literal["global"] | Whole
"""A drift detector: the index of a class, or "global" for all classes together."""

DRIFT_OF_ALL: Drift = "global"


class Example(Struct, frozen=True, gc=False, omit_defaults=True):
    """A settled decision."""

    id: EventId
    outcome: Annotated[
        Outcome,
        Meta(
            description="matched: feedback arrived in time; expired: no feedback arrived in time; unmatched: the "
            "replayed log has no reward for this action; unshown: the deferred decision was not shown in time."
        ),
    ]
    action: Annotated[Whole, Meta(description="The prediction's action.")]
    propensity: Annotated[float | None, Meta(description="The prediction's propensity.")]
    reward: Annotated[
        Bit | float | None,
        Meta(
            description="The bit, 0 or 1, or the graded reward, in the same units as in the feedback. For an expired "
            "decision, the lowest reward if the learner assumes it, otherwise null. For an unmatched or unshown "
            "decision, null."
        ),
    ]
    delay_ms: Annotated[
        Whole | None,
        Meta(
            description="Time from the decision, or from its shown record, to the append time of its feedback, in ms; "
            "0 if the feedback arrived first, null if no feedback arrived."
        ),
    ]
    settled_at_ms: Annotated[
        Whole, Meta(description="The task's stream time at which the decision was settled, in ms since 1970.")
    ]
    feedback_offset: Annotated[
        Whole | None,
        Meta(description="The offset of the feedback, in the same partition; null if no feedback arrived."),
    ]
    drift: Annotated[
        Drift | None,
        Meta(
            description="Present only if this reward raised a drift alarm: global if all classes were reset, otherwise "
            "the class that was reset."
        ),
    ] = None
    arm: DecidedBy = None
    class_name: Annotated[
        str | None, Meta(description="The action's id, if actions have features, otherwise absent.")
    ] = field(name="class", default=None)

    def __str__(self) -> str:
        return f"{self.outcome} {self.id!r}"
