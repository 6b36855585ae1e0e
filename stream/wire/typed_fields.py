"""The JSON fields in events as msgspec types, and their decoders. msgspec checks types and ranges during parsing."""

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from stream.wire.records import Arm, Challenged, Example, Logged, Probability, Target, Whole

X = TypeVar("X")

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class EventFields(Struct, gc=False):
    """The field that all events have. Unknown fields are ignored."""

    id: str


class SparseFields(Struct, gc=False):
    """Features x as indices and values. If the values are omitted, all of them are 1."""

    i: list[Index]
    v: list[float] | UnsetType = UNSET  # always finite: JSON has no NaN, and numbers too large for float64 are rejected


class ContextFields(EventFields, Generic[X], gc=False):
    """The fields of a context, without a logged decision."""

    x: X
    eligible: list[str | Index] | None = None
    deferred: bool = False
    baseline: str | Index | None = None


class LoggedContextFields(ContextFields[X], Generic[X], gc=False, kw_only=True):
    """The fields of a context with a logged decision."""

    logged: Logged


class FeedbackFields(EventFields, gc=False):
    """The fields of a feedback record or, without a reward, of a shown record."""

    reward: float | bool | UnsetType = UNSET
    shown: bool | UnsetType = UNSET
    label: Whole | UnsetType = UNSET
    action: Whole | None = None


class PredictionFields(EventFields, gc=False):
    """The fields of a prediction."""

    action: Whole
    greedy: Whole
    propensity: Probability | None
    scores: Annotated[list[float], Meta(min_length=2)]
    model_version: Whole
    context_offset: Whole
    target: Target | None = None
    class_name: str | None = field(name="class", default=None)
    logged: list[float] | None = None
    arm: Arm | None = None
    challenged: Challenged | None = None
    baseline: Whole | None = None


class CloudEvent(Struct, gc=False):
    """The members of a CloudEvent in structured mode that Onebit reads."""

    specversion: str
    data: Raw


Indexed = SparseFields | list[float]
Named = dict[str, Any] | list[float]

CONTEXT_READERS: dict[tuple[bool, bool], Callable[[bytes], Any]] = {
    (False, False): Decoder(ContextFields[Indexed]).decode,
    (False, True): Decoder(LoggedContextFields[Indexed]).decode,
    (True, False): Decoder(ContextFields[Named]).decode,
    (True, True): Decoder(LoggedContextFields[Named]).decode,
}
"""Decoders for contexts, keyed by whether features are named and whether a logged decision is required."""

read_feedback = Decoder(FeedbackFields).decode
read_prediction = Decoder(PredictionFields).decode
read_cloud_event = Decoder(CloudEvent).decode
read_example = Decoder(Example).decode
