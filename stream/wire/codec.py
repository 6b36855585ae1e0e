"""Encodes and decodes events. Only this module depends on the wire format.

Values are JSON. Every field is checked; unknown fields are ignored. A record header contains the version. A record
without this header is read as version 1, so that any producer can write contexts and feedback.

A *tick* is a record that the learner appends to the feedback topic to advance stream time and to timestamp decisions. A
tick has no key and no value. Its `onebit-tick` header contains the number of the step that wrote the tick. Readers of
the topic recognise ticks by this header and skip them, and the ledger does not count them.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from msgspec import UNSET, DecodeError, ValidationError, convert
from msgspec.json import Encoder
from msgspec.structs import asdict

from stream.parsing import shown
from stream.wire.actions import ACTIONS_MAX, Action, ActionBlocks
from stream.wire.classes import BaselineError, Classes, ClassesError
from stream.wire.named_features import FeatureEncoder, NamedFeaturesError
from stream.wire.records import (
    ID_BYTES_MAX,
    NO_FEATURES,
    Context,
    Decision,
    Envelope,
    Example,
    Features,
    Feedback,
    FloatArray,
    Headers,
    IndexArray,
    Logged,
    Prediction,
    Record,
    Shown,
    make,
)
from stream.wire.rewards import FeedbackRule, RewardRange
from stream.wire.typed_fields import (
    CONTEXT_READERS,
    FEEDBACK_READERS,
    OFFER_READERS,
    ActionFields,
    EventFields,
    PartFields,
    PredictionFields,
    SparseFields,
    read_cloud_event,
    read_example,
    read_prediction,
)

VERSION = 1
VERSION_HEADER = ("onebit-version", b"%d" % VERSION)
HEADERS: Headers = (VERSION_HEADER,)

VALUE_BYTES_MAX = 1_000_000
"""Maximum size of a value, close to Kafka's default limit for a record. Larger values are not parsed."""

NUMBERS_MAX = (VALUE_BYTES_MAX - 16_384) // len("-2.2250738585072014e-308,")
"""Maximum number of scores and logged values in a prediction, which must fit in a record. The limit leaves 16 KiB for
the other fields: an id, a class name, and the challengers' names.
"""

FRAME_BYTES = 5
"""Size of the prefix that serializers for a Confluent schema registry write before a value: a zero byte and the
schema's 4-byte id. No JSON text begins with a zero byte."""

UNIFORM_TOLERANCE = 1e-3
"""Relative tolerance for a propensity of 1/K. Logs contain rounded values, such as .0125 for 1/80 and .0294 for
1/34."""

STRUCTURED = b"application/cloudevents+json"
"""The content type of a CloudEvent in structured mode, in a record's `content-type` header."""

TRACE_HEADERS = ("traceparent", "tracestate")
"""Headers that are copied from a context to its prediction and its example."""

TRACEPARENT_BYTES = 55
"""Size of a `traceparent` header of version 00: `00-TRACE-SPAN-FLAGS`, in lower-case hexadecimal digits."""

TRACE_BYTES_MAX = 4_096
"""Maximum total size of the trace headers. Larger headers are omitted, because a task stores the headers with each
pending decision."""

TICK_HEADER = "onebit-tick"
_STEP_HEADER = "onebit-step"
_HEADER_DIGITS_MAX = 18  # every 18-digit number fits in 64 bits

Fields = TypeVar("Fields", bound=EventFields | Example)


class MalformedError(ValueError):
    """Raised when a record cannot be read. The message contains the field, the expected value and the actual value."""


class ActionReading(NamedTuple):
    """How to read a context's actions."""

    blocks: ActionBlocks
    encoder: FeatureEncoder | None  # None if the features of actions have no names
    pairs_max: int | None = None  # limit on the pairs of a feature of the context and one of an action; None: no limit


class LogReading(NamedTuple):
    """A task's requirements for the logged decision that each context must contain."""

    n_classes: int
    needs_propensity: bool = False
    is_uniform: bool = False  # every propensity must be 1/K


def step_headers(step: int) -> Headers:
    """Return the headers for a step's output records."""
    return (VERSION_HEADER, (_STEP_HEADER, b"%d" % step))


def step_of(record: Record) -> int | None:
    """Return the number of the step that published a record, 0 for other Onebit programs, or None for other clients."""
    headers = dict(record.headers)
    if _STEP_HEADER in headers:
        return header_number(headers[_STEP_HEADER])
    return 0 if VERSION_HEADER[0] in headers else None


def trace_of(record: Record) -> Headers:
    """Return a record's trace headers (W3C Trace Context), or no headers if they are too long."""
    if record.headers == HEADERS:
        return ()
    found = {name: value for name, value in reversed(record.headers) if name in TRACE_HEADERS}  # first per name
    return tuple(sorted(found.items())) if sum(map(len, found.values())) <= TRACE_BYTES_MAX else ()


def sampled_trace(headers: Headers) -> bytes | None:
    """Return the content of a `traceparent` header if its trace is sampled, otherwise None."""
    for name, content in headers:
        if name == TRACE_HEADERS[0]:
            return content if len(content) == TRACEPARENT_BYTES and content[-1] in b"13579bdf" else None
    return None


def is_framed(record: Record) -> bool:
    """Return whether a record's value has the prefix of a schema registry; see `FRAME_BYTES`."""
    return record.value is not None and record.value[:1] == b"\0"


def header_number(content: bytes | None) -> int | None:
    """Return the number in a header, or None if the content is not a number of at most 64 bits."""
    return int(content) if content and content.isdigit() and len(content) <= _HEADER_DIGITS_MAX else None


def encode_context(
    event_id: str,
    x: Features,
    logged: Logged | None = None,
    eligible: Sequence[str | int] | None = None,
    *,
    deferred: bool = False,
    baseline: str | int | None = None,
    actions: Sequence[Action] | None = None,
) -> bytes:
    """Encode a context's value. Omit fields that are None or False, and the feature values if all are 1."""
    fields: dict[str, Any] = {"id": event_id, "x": _sparse_fields(x)}
    if actions is not None:
        fields["actions"] = [{"id": action.id, "x": _sparse_fields(action.x)} for action in actions]
    if logged is not None:
        fields["logged"] = asdict(logged)
    if eligible is not None:
        fields["eligible"] = eligible
    if deferred:
        fields["deferred"] = True
    if baseline is not None:
        fields["baseline"] = baseline
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def _sparse_fields(x: Features) -> dict[str, Any]:
    features: dict[str, Any] = {"i": x.indices}
    values = x.values.tobytes()
    if values != ones(x.values.size).tobytes():  # comparing arrays would be slower
        features["v"] = x.values
    return features


def decode_context(
    record: Record,
    n_features: int,
    log: LogReading | None = None,
    encoder: FeatureEncoder | None = None,
    classes: Classes | None = None,
    nnz_max: int | None = None,
    envelope: Envelope = "none",
    retired: IndexArray | None = None,
    actions: ActionReading | None = None,
    *,
    needs_baseline: bool = False,
) -> Context:
    """Decode a context.

    Args:
        record: the record.
        n_features: the number of features of a context. Without actions, this is the learner's dimension d.
        log: the requirements for the logged decision. None means that the logged decision is ignored.
        encoder: the encoder for named features, or None.
        classes: the pipeline's classes. New names are added if the classes are open. None means that eligible classes
            are ignored.
        nnz_max: limit on the number of features in x; None means no limit.
        envelope: the envelope of contexts from other programs; see `_event_of`.
        retired: the indices of features to ignore, or None.
        actions: how to read the actions, or None if the pipeline decides among classes.
        needs_baseline: whether a context must name the class that the service's own rule plays.

    Raises:
        MalformedError: the record is not a context, or its features, actions, eligible classes, baseline or required
            logged decision are invalid.
        NewClassesError: the context is valid, but some of its classes are not in the shared model's log yet.
    """
    if actions is None:
        reader = CONTEXT_READERS[encoder is not None, log is not None]
    else:
        reader = OFFER_READERS[encoder is not None, actions.encoder is not None]
    fields = _read(reader, record, envelope)
    features, unknown = _features_of(fields.x, n_features, encoder)
    if retired is not None:
        kept = ~np.isin(features.indices, retired)
        features = make(Features, (features.indices[kept], features.values[kept]))
    ids = None
    if actions is not None:
        in_context = features.indices.size
        ids, features, more = _with_actions(features, fields.actions, actions)
        unknown = [*unknown, *more]
        pairs = in_context * (features.indices.size - in_context - len(ids))
        if actions.pairs_max is not None and pairs > actions.pairs_max:
            raise MalformedError(
                f"actions: expected at most {actions.pairs_max:,} pairs of a non-zero feature of the context and one "
                f"of an action; got {pairs:,}. Send fewer features or actions, or use joint-ucb for dense features"
            )
        classes = Classes(len(ids), ids)
        baselines = () if fields.baseline is None else (fields.baseline,)
        for name, named in (("eligible", fields.eligible or ()), ("baseline", baselines)):
            if unnamed := [one for one in named if one not in ids]:
                raise MalformedError(f"{name}: expected ids of the context's actions; got {shown(unnamed[0])}")
        log = None if log is None else log._replace(n_classes=len(ids))
    nnz = features.indices.size
    if nnz_max is not None and nnz > nnz_max:
        raise MalformedError(
            f"x: expected at most {nnz_max} features, to fit in a record of the model's log; got {nnz}"
        )
    logged = None if log is None else _checked_logged(fields.logged, log)
    eligible = baseline = None
    if needs_baseline and fields.baseline is None:
        what = "class" if actions is None else "action"
        raise MalformedError(
            f"baseline: expected the {what} of the service's rule, which decides in the holdout; got none"
        )
    if classes is not None:
        try:
            eligible = classes.eligible(fields.eligible, None if logged is None else logged.action, fields.baseline)
            baseline = None if fields.baseline is None else classes.index_of(fields.baseline)
        except BaselineError as error:
            raise MalformedError(f"baseline: {error}") from error
        except ClassesError as error:
            raise MalformedError(f"eligible: {error}") from error
    if actions is not None and ids is not None and eligible is None and len(ids) < actions.blocks.places:
        eligible = all_places(len(ids))
    return make(Context, (fields.id, features, logged, unknown, eligible, fields.deferred, baseline, ids))


@lru_cache(maxsize=ACTIONS_MAX)
def all_places(n: int) -> IndexArray:
    """Return the places of n actions, int32[n]. The array must not be modified."""
    return np.arange(n, dtype=np.int32)


def _with_actions(
    context: Features, given: Sequence[ActionFields[Any]], reading: ActionReading
) -> tuple[list[str], Features, Sequence[str]]:
    """Check a context's actions, and add them to its features.

    Returns the ids by place, the combined features, and the names of features whose values are unknown.
    """
    blocks, encoder = reading.blocks, reading.encoder
    if not 0 < len(given) <= blocks.places:
        remedy = "" if not given else ". Offer fewer actions"
        if given and blocks.places < ACTIONS_MAX:
            remedy += ", or start a pipeline with a larger actions_max"
        raise MalformedError(f"actions: expected 1 to {blocks.places} actions; got {len(given) or 'none'}{remedy}")
    ids, offered, unknown = [one.id for one in given], list[Action](), list[str]()
    for place, name in enumerate(ids):
        if not 0 < len(name.encode()) <= ID_BYTES_MAX:
            raise MalformedError(f"actions[{place}].id: expected 1 to {ID_BYTES_MAX} bytes; got {len(name.encode())}")
    if len(set(ids)) < len(ids):
        repeated = next(name for place, name in enumerate(ids) if name in ids[:place])
        raise MalformedError(f"actions: expected different ids; got {shown(repeated)} twice")
    if all(type(one.x) is list and len(one.x) == blocks.features for one in given):
        return ids, blocks.joined_dense(context, ids, np.array([one.x for one in given], np.float64)), ()
    for place, one in enumerate(given):
        try:
            x, more = _features_of(one.x, blocks.features, encoder)
        except MalformedError as error:
            raise MalformedError(f"actions[{place}].{error}") from error
        offered.append(make(Action, (one.id, x)))
        unknown += more
    return ids, blocks.joined(context, offered), unknown


def _features_of(x: Any, n_features: int, encoder: FeatureEncoder | None) -> tuple[Features, Sequence[str]]:
    """Read features. Also return the names of features whose values are unknown."""
    if type(x) is list:
        if len(x) != n_features:
            raise MalformedError(f"x: expected {n_features} numbers, one per feature; got {len(x)}")
        dense = np.fromiter(x, np.float64, n_features)
        nonzero = dense.nonzero()[0]
        return make(Features, (nonzero.astype(np.int32), dense[nonzero])), ()
    if x is UNSET:
        return NO_FEATURES, ()
    if encoder is None:
        return _sparse(x, n_features), ()
    return _named(x, n_features, encoder)


def _sparse(x: SparseFields, n_features: int) -> Features:
    nnz = len(x.i)
    before = -1
    for index in x.i:
        if index <= before:
            raise MalformedError("x.i: expected strictly increasing indices")
        before = index
    if before >= n_features:
        raise MalformedError(f"x.i: expected indices from 0 to {n_features - 1}; got {before}")
    if x.v is UNSET:
        values = ones(nnz)
    elif len(x.v) == nnz:
        values = np.fromiter(x.v, np.float64, nnz)
    else:
        raise MalformedError(f"x.v: expected {nnz} numbers, as many as in x.i; got {len(x.v)}")
    return make(Features, (np.fromiter(x.i, np.int32, nnz), values))


def _named(x: dict[str, Any], n_features: int, encoder: FeatureEncoder) -> tuple[Features, Sequence[str]]:
    """Read named features or, if `i` is a list, indices and values. A named feature's value is never a list.

    Also returns the names of features whose values are unknown.
    """
    try:
        if type(x.get("i")) is list:
            return _sparse(convert(x, SparseFields), n_features), ()
        return encoder.encode(x)
    except (NamedFeaturesError, ValidationError) as error:
        raise MalformedError(f"x: {error}") from error


def _checked_logged(logged: Logged | None, log: LogReading) -> Logged:
    if logged is None:
        raise MalformedError("logged: expected the logged decision; got none")
    _check_class("logged.action", logged.action, log.n_classes)
    propensity = logged.propensity
    if propensity is None:
        if log.needs_propensity:
            raise MalformedError("logged.propensity: expected the probability of the logged action; got nothing")
    elif log.is_uniform and abs(propensity * log.n_classes - 1.0) > UNIFORM_TOLERANCE:
        expected = f"1/{log.n_classes} = {1.0 / log.n_classes:.4g}, because no propensity_min is set"
        raise MalformedError(f"logged.propensity: expected {expected}; got {propensity}")
    return logged


@lru_cache(maxsize=4_096)
def ones(n: int) -> FloatArray:
    """Return n ones as float64. The result is a view of a shared vector and must not be modified."""
    global _shared_ones
    found = _shared_ones  # another thread may replace it
    if n > found.size:
        found = _shared_ones = np.ones(2 * n)
    return found[:n]


_shared_ones: FloatArray = np.ones(1_024)


def encode_prediction(prediction: Prediction, context_offset: int) -> bytes:
    """Encode a prediction's value, which includes its context's offset."""
    decision = prediction.decision
    fields = {
        "id": prediction.id,
        "action": decision.action,
        "greedy": decision.greedy,
        "propensity": decision.propensity,  # orjson writes NaN as null
        "scores": decision.scores,
        "model_version": prediction.model_version,
        "context_offset": context_offset,
    }
    if prediction.target is not None:
        fields["target"] = asdict(prediction.target)
    if prediction.class_name is not None:
        fields["class"] = prediction.class_name
    if prediction.logged is not None:
        fields["logged"] = prediction.logged
    if prediction.arm is not None:
        fields["arm"] = prediction.arm
    if prediction.challenged is not None:
        fields["challenged"] = asdict(prediction.challenged)
    if prediction.baseline is not None:
        fields["baseline"] = prediction.baseline
    if prediction.actions is not None:
        fields["actions"] = prediction.actions
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_prediction(record: Record) -> tuple[Prediction, int]:
    """Decode a prediction and its context's offset.

    Raises:
        MalformedError: the record is not a prediction.
    """
    fields = decode_prediction_fields(record)
    logged, propensity = None, math.nan if fields.propensity is None else fields.propensity
    decision = Decision(fields.action, fields.greedy, propensity, np.array(fields.scores, np.float64))
    if fields.logged is not None:
        logged = np.array(fields.logged, np.float64)
        decision = decision._replace(logged=logged)
    prediction = Prediction(
        fields.id, decision, fields.model_version, fields.target, fields.class_name, logged, fields.arm,
        challenged=fields.challenged, baseline=fields.baseline, actions=fields.actions,
    )  # fmt: skip
    return prediction, fields.context_offset


def decode_prediction_fields(record: Record) -> PredictionFields:
    """Decode a prediction's fields, without creating arrays.

    Raises:
        MalformedError: the record is not a prediction.
    """
    fields = _read(read_prediction, record)
    n_classes = len(fields.scores)
    _check_class("action", fields.action, n_classes)
    _check_class("greedy", fields.greedy, n_classes)
    if fields.target is not None:
        _check_class("target.action", fields.target.action, n_classes)
    elif fields.propensity is None:
        raise MalformedError("propensity: expected a probability, because there is no target; got nothing")
    if fields.baseline is not None:
        _check_class("baseline", fields.baseline, n_classes)
    if fields.challenged is not None:
        for name, choice in fields.challenged.choices.items():
            _check_class(f"challenged.choices.{name}", choice, n_classes)
    return fields


def encode_feedback(feedback: Feedback | Shown) -> bytes:
    """Encode the value of a feedback record or a shown record."""
    if isinstance(feedback, Shown):
        return orjson.dumps({"id": feedback.id, "shown": True})
    fields: dict[str, Any] = {"id": feedback.id, "reward": feedback.reward}
    if feedback.label is not None:
        fields["label"] = feedback.label
    if feedback.action is not None:
        fields["action"] = feedback.action
    if feedback.part is not None:
        fields["part"] = feedback.part
    if feedback.is_final:
        fields["final"] = True
    return orjson.dumps(fields)


def decode_feedback(
    record: Record,
    n_classes: int,
    *,
    needs_label: bool = False,
    graded: RewardRange | None = None,
    rule: FeedbackRule = "first",
    envelope: Envelope = "none",
    has_actions: bool = False,
) -> Feedback | Shown:
    """Decode a feedback record or a shown record, for a learner with n_classes classes.

    A bit is 0 or 1 as an integer, a float or a boolean. A graded reward is a number in the range `graded` or, as a part
    of a sum, any number of moderate size. Labels and actions are integers; if contexts have actions (`has_actions`), an
    action is an id. A null action is treated as missing. A record with a reward is feedback, even if it has `shown`.
    `final` and `part` are ignored if the rule does not use them.

    Raises:
        MalformedError: the record is not feedback, or it lacks the label that a full-information learner needs.
    """
    fields = _read(FEEDBACK_READERS[rule], record, envelope)
    reward, action, label = fields.reward, fields.action, None
    if fields.shown is False:
        raise MalformedError("shown: expected true; got false")
    if reward is UNSET:
        if fields.shown is UNSET:
            raise MalformedError("reward: expected a value")
        return make(Shown, (fields.id,))
    if graded is not None:
        reward = _graded_reward(reward, graded if rule != "sum" else _ANY_PART)
    elif reward in (0, 1):
        reward = int(reward)
    else:
        raise MalformedError(f"reward: expected 0 or 1; got {reward}")
    if fields.label is not UNSET:
        label = fields.label
        _check_class("label", label, n_classes)
    elif needs_label:
        raise MalformedError("label: expected the true class, which this learner needs; got none")
    if action is not None:
        _check_action(action, n_classes, has_actions)
    if rule == "first":
        return make(Feedback, (fields.id, reward, label, action, None, False))
    part = _part_of(fields) if isinstance(fields, PartFields) else None
    return make(Feedback, (fields.id, reward, label, action, part, fields.final))


_ANY_PART = RewardRange(-1e300, 1e300)  # no sum of parts overflows


def _part_of(fields: PartFields) -> str:
    if fields.part is UNSET:
        raise MalformedError(
            "part: expected an id for this part of the reward, because the pipeline has feedback=sum; got none"
        )
    if not 0 < len(fields.part.encode()) <= ID_BYTES_MAX:
        raise MalformedError(f"part: expected 1 to {ID_BYTES_MAX} bytes; got {shown(fields.part)}")
    return fields.part


def _check_action(action: int | str, n_classes: int, has_actions: bool) -> None:
    if has_actions:
        if not isinstance(action, str):
            raise MalformedError(f"action: expected the id of the decided action, as a string; got {action}")
    elif isinstance(action, str):
        raise MalformedError(f"action: expected a whole number from 0 to {n_classes - 1}; got {shown(action)}")
    else:
        _check_class("action", action, n_classes)


def _graded_reward(reward: float | bool, graded: RewardRange) -> float:
    if isinstance(reward, bool) or not graded.low <= reward <= graded.high:
        raise MalformedError(f"reward: expected a number from {graded.low:g} to {graded.high:g}; got {shown(reward)}")
    return reward + 0.0  # -0.0 becomes 0.0


encode_example: Callable[[Example], bytes] = Encoder().encode
"""Encode an example's value."""


def decode_example(record: Record) -> Example:
    """Decode an example.

    Raises:
        MalformedError: the record is not an example.
    """
    return _read(read_example, record)


def _read(decode: Callable[[bytes], Fields], record: Record, envelope: Envelope | None = None) -> Fields:
    """Decode the fields in a record's value and check the rules that apply to all events.

    The envelope is None for events that only Onebit writes, which have neither a prefix nor an envelope.
    """
    value = record.value
    if not value:
        raise MalformedError("value: expected a JSON object; got " + ("nothing" if value is None else "an empty value"))
    if len(value) > VALUE_BYTES_MAX:
        raise MalformedError(f"value: expected at most {VALUE_BYTES_MAX} bytes; got {len(value)}")
    if record.headers != HEADERS:
        for name, content in record.headers:
            if name == VERSION_HEADER[0] and content != VERSION_HEADER[1]:
                raise MalformedError(f"version: expected {VERSION}; got {shown(content)}")
    if envelope is not None:
        value = _event_of(value, record.headers, envelope)
    try:
        fields = decode(value)
    except ValidationError as error:
        raise MalformedError(_reason(error, value)) from error
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        after = " after the prefix of a schema registry" if is_framed(record) else ""
        raise MalformedError(f"value: expected JSON{after}; {error}") from error
    key = fields.id.encode()
    if not 0 < len(key) <= ID_BYTES_MAX:
        raise MalformedError(f"id: expected 1 to {ID_BYTES_MAX} bytes; got {len(key)}")
    if record.key is not None and record.key != key:
        raise MalformedError(f"id: expected the record's key, {shown(record.key)}; got {shown(fields.id)}")
    return fields


def json_of(record: Record, envelope: Envelope) -> bytes:
    """Return the JSON object in a context's or feedback record's value; see `_event_of`.

    Raises:
        MalformedError: the value is empty, or its envelope cannot be read.
    """
    if not record.value:
        raise MalformedError("value: expected a JSON object; got nothing")
    return _event_of(record.value, record.headers, envelope)


def _event_of(value: bytes, headers: Headers, envelope: Envelope) -> bytes:
    """Return a value without the prefix of a schema registry and, if `envelope` names one, without its envelope.

    A CloudEvent in binary mode has no envelope, because its value is the data.
    """
    if value[0] == 0:
        value = value[FRAME_BYTES:]
    if envelope == "none" or not any(map(_is_structured, headers)):
        return value
    try:
        return bytes(read_cloud_event(value).data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"value: expected a CloudEvent with JSON in its data; {error}") from error


def _is_structured(header: tuple[str, bytes]) -> bool:
    name, content = header
    return name.lower() == "content-type" and content.partition(b";")[0].strip().lower() == STRUCTURED


def _check_class(name: str, value: int, n_classes: int) -> None:
    if value >= n_classes:
        raise MalformedError(f"{name}: expected a whole number from 0 to {n_classes - 1}; got {value}")


_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNNAMED = ". Send a list, or indices `i` and values `v`; names require a pipeline with the setting features"
_TYPES = re.compile(r"(?<=`)[\w. ]+ \| [\w. |]+(?=`)")  # a union of types; their order in msgspec's messages varies


def _reason(error: ValidationError, value: bytes) -> str:
    """Describe a failed validation: the field, the expected value and the actual value.

    >>> from stream.wire.typed_fields import FEEDBACK_READERS
    >>> try:
    ...     FEEDBACK_READERS["first"](b'{"id": "a", "reward": "1"}')
    ... except ValidationError as error:
    ...     _reason(error, b'{"id": "a", "reward": "1"}')
    "reward: expected `float`; got '1'"
    """
    expected, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`")
    remedy = ""
    if missing := _MISSING.match(expected):
        expected, path = "Expected a value", f"{path}.{missing[1]}"
        remedy = _UNNAMED if path.endswith(".x.i") else ""
    expected = _TYPES.sub(_sorted_types, expected)
    expected = f"{path[1:] or 'value'}: {expected[0].lower()}{expected[1:].partition(', got ')[0]}"
    try:
        actual = orjson.loads(value)
        for name, place in _PATH.findall(path):
            actual = actual[int(place)] if place else actual.get(name)
    except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError):
        return expected  # the actual value is unknown: orjson also rejects it, or a field occurs twice
    return f"{expected}; got {shown(actual)}{remedy}"


def _sorted_types(types: re.Match[str]) -> str:
    """Return a union's types in a fixed order. A boolean is only another form of a bit, so a number is asked for."""
    names = set(types[0].split(" | "))
    return " | ".join(sorted(names - {"bool"} if "float" in names else names))


def tick_headers(step: int) -> Headers:
    """Return the headers for a step's tick."""
    return (VERSION_HEADER, (TICK_HEADER, b"%d" % step))


def is_tick(record: Record) -> bool:
    """Return whether a record in the feedback topic is a tick."""
    return record.value is None and record.key is None and any(name == TICK_HEADER for name, _ in record.headers)


def tick_step(record: Record) -> int | None:
    """Return the number of the step that wrote a tick, or None if the record is not a valid tick."""
    return header_number(dict(record.headers)[TICK_HEADER]) if is_tick(record) else None
