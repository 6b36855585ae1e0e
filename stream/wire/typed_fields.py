"""The JSON fields in events as msgspec types, and their decoders. msgspec checks types and ranges during parsing.

The JSON Schemas are generated from these types; see `stream.wire.schemas`. Limits in `extra_json_schema` are only in
the schemas: the codec checks them, with a message of its own.
"""

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from stream.wire.records import (
    ID_LIMITS,
    NOT_ELIGIBLE,
    Challenged,
    DecidedBy,
    EventId,
    Example,
    Logged,
    Probability,
    Target,
    Whole,
)
from stream.wire.rewards import FeedbackRule

X = TypeVar("X")
A = TypeVar("A")

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class EventFields(Struct, gc=False):
    """The field that all events have. Unknown fields are ignored."""

    id: EventId


class SparseFields(Struct, gc=False):
    """The non-zero features."""

    i: Annotated[
        list[Index],
        Meta(description="Indices of the features, starting at 0.", extra_json_schema={"uniqueItems": True}),
    ]
    # The values are finite: JSON has no NaN, and numbers too large for float64 are rejected.
    v: Annotated[list[float] | UnsetType, Meta(description="Values of the features. If omitted, all are 1.")] = UNSET


class ContextFields(EventFields, Generic[X], gc=False):
    """The data on which the learner bases its decision about an event, without a logged decision."""

    x: Annotated[X, Meta(description="The features.")]
    eligible: Annotated[
        list[str | Index] | None,
        Meta(
            description="The classes to decide among, by name, or by index if the classes have no names. By default, "
            "all classes."
        ),
    ] = None
    deferred: Annotated[
        bool, Meta(description="Whether the decision's window begins only when the decision is shown.")
    ] = False
    baseline: Annotated[
        str | Index | None,
        Meta(
            description="The class that the service's own rule plays, by name, or by index if the classes have no "
            "names. It must be eligible. Required if the holdout plays it."
        ),
    ] = None


class ActionFields(Struct, Generic[A], gc=False):
    """An action that a context offers."""

    id: Annotated[
        str,
        Meta(
            description="The action's id. Any id is accepted, once in a context.",
            extra_json_schema=ID_LIMITS,
        ),
    ]
    x: Annotated[A | UnsetType, Meta(description="The action's features. If omitted, all are 0.")] = UNSET


class OfferFields(EventFields, Generic[X, A], gc=False):
    """A context with actions. The place of an action in the list is its number in the prediction."""

    actions: list[ActionFields[A]]
    x: X | UnsetType = UNSET
    eligible: list[str] | None = None
    deferred: bool = False
    baseline: str | None = None
    logged: Logged | None = None


class LoggedContextFields(ContextFields[X], Generic[X], gc=False, kw_only=True):
    """The fields of a context with a logged decision."""

    logged: Logged


class FeedbackFields(EventFields, gc=False):
    """A decision's reward. A record without a reward reports that a deferred decision was shown."""

    reward: Annotated[
        float | bool | UnsetType,
        Meta(
            description="A bit, 1 or true if the action was right, 0 or false if it was wrong; or a number in the "
            "range of graded rewards."
        ),
    ] = UNSET
    shown: Annotated[
        bool | UnsetType,
        Meta(description="true: the deferred decision was shown.", extra_json_schema={"const": True}),
    ] = UNSET
    label: Annotated[Whole | UnsetType, Meta(description="The true class, for learners that need it.")] = UNSET
    action: Annotated[
        Whole | str | None,
        Meta(
            description="The action to which the reward applies: a class as a number, or the id of an action with "
            "features. Feedback for another action than the prediction's does not settle the decision."
        ),
    ] = None


class CombinedFeedbackFields(FeedbackFields, gc=False):
    """The fields of a feedback record, if the reward of a decision can depend on several records."""

    final: Annotated[
        bool,
        Meta(
            description="true: the decision is settled at once, although other feedback could change its reward. "
            "Ignored if the first reward of a decision counts."
        ),
    ] = False


class PartFields(CombinedFeedbackFields, gc=False):
    """The fields of a feedback record, if the rewards of a decision are summed."""

    part: Annotated[
        str | UnsetType,
        Meta(
            description="The id of this part of the decision's reward. Required if the rewards of a decision are "
            "summed, otherwise ignored.",
            extra_json_schema=ID_LIMITS,
        ),
    ] = UNSET


class PredictionFields(EventFields, gc=False):
    """The learner's decision."""

    action: Annotated[Whole, Meta(description="The class that was played.")]
    greedy: Annotated[Whole, Meta(description="The class with the highest score.")]
    propensity: Annotated[
        Probability | None,
        Meta(
            description="The probability with which the action was played. Null only if the action is from a log that "
            "does not contain its propensity; target is then present."
        ),
    ]
    scores: Annotated[
        list[float],
        Meta(
            min_length=2,
            description=f"One score for each class; {NOT_ELIGIBLE:g} for a class that was not eligible.",
        ),
    ]
    model_version: Annotated[
        Whole,
        Meta(
            description="The version of the model: the number of updates applied to it or, if the model is shared, the "
            "number of log entries."
        ),
    ]
    context_offset: Annotated[Whole, Meta(description="The offset of the context, in the same partition.")]
    target: Annotated[
        Target | None, Meta(description="The learner's own decision, if the played action is from a log.")
    ] = None
    class_name: Annotated[
        str | None,
        Meta(description="The name of the action, if the classes have names, or the id of an action with features."),
    ] = field(name="class", default=None)
    logged: Annotated[
        list[float] | None,
        Meta(description="Numbers that the learner stores to restore the decision, if the model is shared."),
    ] = None
    arm: DecidedBy = None
    challenged: Annotated[
        Challenged | None,
        Meta(description="Which learner decided and what the others chose, if the pipeline has challengers."),
    ] = None
    baseline: Annotated[
        Whole | None,
        Meta(description="The index of the class that the service's own rule plays, if the context names it."),
    ] = None
    actions: Annotated[
        list[str] | None, Meta(description="The ids of the context's actions by place, if they have features.")
    ] = None


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

OFFER_READERS: dict[tuple[bool, bool], Callable[[bytes], Any]] = {
    (False, False): Decoder(OfferFields[Indexed, Indexed]).decode,
    (False, True): Decoder(OfferFields[Indexed, Named]).decode,
    (True, False): Decoder(OfferFields[Named, Indexed]).decode,
    (True, True): Decoder(OfferFields[Named, Named]).decode,
}
"""Decoders for contexts with actions, keyed by whether features of the context and of the actions are named."""

FEEDBACK_READERS: dict[FeedbackRule, Callable[[bytes], Any]] = {
    "first": Decoder(FeedbackFields).decode,
    "max": Decoder(CombinedFeedbackFields).decode,
    "sum": Decoder(PartFields).decode,
}
"""Decoders for feedback, keyed by the rule for a decision's reward."""

read_prediction = Decoder(PredictionFields).decode
read_cloud_event = Decoder(CloudEvent).decode
read_example = Decoder(Example).decode
