"""Bytes to events and back: the only owner of the wire format.

Values are JSON. Every field is checked; unknown fields are ignored. The version is in a record header; a
record without that header is of version 1, so that a plain producer can write contexts and feedback.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
from msgspec import UNSET

from stream.wire.events import (
    DRIFT_OF_ALL,
    Answer,
    Context,
    Decision,
    Drift,
    Example,
    Features,
    Feedback,
    FloatArray,
    Logged,
    Outcome,
    Prediction,
    Target,
)
from stream.wire.named_features import FeatureEncoder, NamedFeaturesError
from stream.wire.records import Headers, Record, make
from stream.wire.shown import repr_of
from stream.wire.typed_fields import (
    SparseFields,
    read_context,
    read_context_text,
    read_dense_context_text,
    read_feedback,
    read_prediction,
)

VERSION = 1
VERSION_HEADER = ("onebit-version", b"%d" % VERSION)
HEADERS: Headers = (VERSION_HEADER,)

_STEP_HEADER_NAME = "onebit-step"


def step_headers(step: int) -> Headers:
    """The headers of a record that a task's step publishes: a reader can tell which step it belongs to."""
    return (VERSION_HEADER, (_STEP_HEADER_NAME, b"%d" % step))


def step_of(record: Record) -> int | None:
    """The step of its task that published a record; 0 when another program of Onebit did, None when none did."""
    headers: dict[str, bytes | None] = dict(record.headers)
    if _STEP_HEADER_NAME not in headers:
        return 0 if VERSION_HEADER[0] in headers else None
    content = headers[_STEP_HEADER_NAME] or b""
    return int(content) if content.isdigit() and len(content) <= _STEP_DIGITS_MAX else None


_STEP_DIGITS_MAX = 18  # of a number that fits 64 bits


ID_BYTES_MAX = 256
"""Longer ids are malformed: an id is kept for every pending and retained event, and is every record's key."""

VALUE_BYTES_MAX = 1_000_000
"""Kafka's default limit of a record; what is larger is not even parsed."""

_NUMBERS = frozenset((int, float))
_INTEGERS = frozenset((int,))
_REWARD_TYPES = frozenset((int, float, bool))


class MalformedError(ValueError):
    """A record that cannot be read; the message says what was expected and what came."""


def encode_context(event_id: str, x: Features, logged: Logged | None = None) -> bytes:
    """A context's value; `v` is left out when all values are one, `logged` when there is nothing."""
    features: dict[str, Any] = {"i": x.indices}
    values = x.values.tobytes()
    if values != _ONES[: len(values)] and values != ones(x.values.size).tobytes():  # far sooner than numpy compares
        features["v"] = x.values
    fields: dict[str, Any] = {"id": event_id, "x": features}
    if logged is not None:
        fields["logged"] = logged._asdict()
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


class LogReading(NamedTuple):
    """How the decision of a log is read that a context carries: there must be one then."""

    n_classes: int
    needs_propensity: bool = False
    is_uniform: bool = False  # each class was played with the same probability, 1/K: any other is refused


UNIFORM_TOLERANCE = 1e-3
"""How far, relative to 1/K, a propensity may be from it: logs round, to .0125 for one of 80, or .0294 for one of 34."""


def decode_context(
    record: Record, n_features: int, log: LogReading | None = None, encoder: FeatureEncoder | None = None
) -> Context:
    """Read a context for a learner of n_features features.

    Args:
        record: the record.
        n_features: the learner's d.
        log: how the logged decision is read; None: it is not looked at, whatever stands there.
        encoder: which index each named feature has; None: there are no named ones.

    Raises:
        MalformedError: not a context, or its features or a logged decision that is needed do not fit.
    """
    value = _value(record)
    typed = read_context(value) if log is None else None
    if typed is not None:
        event_id = _checked_id(typed.id, record)
        _check_indices(typed.x.i, n_features)
        return make(Context, (event_id, _typed_features(typed.x), None))
    fields = _fields(value)
    event_id = _checked_id(fields.get("id"), record)
    x = fields.get("x")
    if type(x) is dict:
        # No value of a named feature is a list: so one that is called i cannot be taken for indices.
        features = _sparse(x, n_features) if encoder is None or type(x.get("i")) is list else _named(x, encoder)
    elif type(x) is list:
        if len(x) != n_features:
            raise MalformedError(f"x: expected {n_features} numbers, as the learner has features; got {len(x)}")
        features = sparse_of(_finite(x, "x"))
    else:
        expected = f'{{"i": [...], "v": [...]}} or a list of {n_features} numbers'
        raise MalformedError(f"x: expected {expected}; got {_shown(x)}")
    return make(Context, (event_id, features, None if log is None else _logged(fields, log)))


class OpenContext(NamedTuple):
    """A context whose numbers stand as they are written."""

    id: str
    indices_text: Any  # bytes-like; empty: x is dense
    values_text: Any  # bytes-like; empty: they are ones


def open_context(record: Record) -> OpenContext | None:
    """A context whose numbers are not read yet, so that those of many can be read together.

    None where that is not all there is, or something is wrong: such a one is for `decode_context`.
    """
    try:
        value = _value(record)
        sparse = read_context_text(value)
        if sparse is not None:
            i, v = sparse.x.i, sparse.x.v
            written = b'{"id":"","x":{"i":,"v":}}' if v else b'{"id":"","x":{"i":}}'
            opened = make(OpenContext, (_checked_id(sparse.id, record), i, v))
        else:
            dense = read_dense_context_text(value)
            if dense is None:
                return None
            written = b'{"id":"","x":}'
            opened = make(OpenContext, (_checked_id(dense.id, record), b"", dense.x))
    except MalformedError:
        return None
    return opened if _is_all(opened, value, written) else None


def _is_all(opened: OpenContext, value: bytes, written: bytes) -> bool:
    """Whether a context holds nothing but what was found in it, and how that is written without blanks.

    Of a name that stands there twice the first value is passed over, whatever it is; `decode_context` looks at both.
    There are as many colons as names then, and those of the id; where it has an escape, nobody knows.
    """
    event_id, i, v = opened
    if len(value) == len(written) + len(event_id) + len(i) + len(v):  # as Onebit writes it; in an id each byte counts
        return True
    return value.count(b":") == written.count(b":") + event_id.count(":") and value.find(b"\\") < 0


def sparse_of(values: FloatArray) -> Features:
    """The entries of a dense vector, float64[d], that are not zero."""
    indices = np.flatnonzero(values).astype(np.int32)
    return Features(indices, values[indices])


def _logged(fields: dict[str, Any], log: LogReading) -> Logged:
    """The decision of the log."""
    logged = fields.get("logged")
    if type(logged) is not dict:
        expected = '{"action": ..., "propensity": ...}, the decision of the log, which is to be played'
        raise MalformedError(f"logged: expected {expected}; got {_shown(logged)}")
    action = _integer(logged, "action", log.n_classes, within="logged.")
    if logged.get("propensity") is None:
        if log.needs_propensity:
            expected = "the probability with which the log's action was played, which is needed here"
            raise MalformedError(f"logged.propensity: expected {expected}; got nothing")
        return Logged(action)
    propensity = _number(logged, "propensity", within="logged.")
    if not 0.0 < propensity <= 1.0:
        raise MalformedError(f"logged.propensity: expected a probability above 0, and at most 1; got {propensity}")
    if log.is_uniform and abs(propensity * log.n_classes - 1.0) > UNIFORM_TOLERANCE:
        expected = f"{1.0 / log.n_classes:.4g}, each of {log.n_classes} classes alike, since no propensity_min is set"
        raise MalformedError(f"logged.propensity: expected {expected}; got {propensity}")
    return Logged(action, propensity)


def _named(x: dict[str, Any], encoder: FeatureEncoder) -> Features:
    try:
        return encoder.encode(x)
    except NamedFeaturesError as error:
        raise MalformedError(f"x: {error}") from error


def _sparse(x: dict[str, Any], n_features: int) -> Features:
    indices = x.get("i")
    if type(indices) is not list or not (set(map(type, indices)) <= _INTEGERS):
        raise MalformedError(f"x.i: expected a list of whole numbers; got {_shown(indices)}")
    _check_indices(indices, n_features)
    if "v" not in x:
        return Features(np.array(indices, dtype=np.int32), ones(len(indices)))
    values = x["v"]
    if type(values) is not list or len(values) != len(indices):
        got = f"{len(values)} values" if type(values) is list else _shown(values)
        raise MalformedError(f"x.v: expected as many numbers as x.i has, {len(indices)}; got {got}")
    return Features(np.array(indices, dtype=np.int32), _finite(values, "x.v"))


def _typed_features(x: SparseFields) -> Features:
    """Indices that were checked, and values that are numbers."""
    nnz = len(x.i)
    if x.v is UNSET:
        values = ones(nnz)
    elif len(x.v) == nnz:
        values = np.array(x.v, dtype=np.float64)
    else:
        raise MalformedError(f"x.v: expected as many numbers as x.i has, {nnz}; got {len(x.v)} values")
    return make(Features, (np.fromiter(x.i, np.int32, nnz), values))


def _check_indices(indices: list[int], n_features: int) -> None:
    if not indices:
        return
    before = indices[0] - 1
    for index in indices:
        if index <= before:
            raise MalformedError("x.i: expected strictly increasing indices")
        before = index
    if indices[0] < 0 or indices[-1] >= n_features:
        wrong = indices[0] if indices[0] < 0 else indices[-1]
        raise MalformedError(f"x.i: expected indices from 0 to {n_features - 1}; got {wrong}")


@lru_cache(maxsize=4_096)
def ones(n: int) -> FloatArray:
    """The ones, float64[n], a part of a vector that is shared: it is not to be written to, like all events' arrays."""
    global _shared_ones
    if n > _shared_ones.size:
        _shared_ones = np.ones(2 * n)
    return _shared_ones[:n]


_shared_ones: FloatArray = np.ones(1_024)
_ONES = _shared_ones.tobytes()


def _finite(values: list[Any], name: str) -> FloatArray:
    """A list of finite numbers as an array."""
    if not (set(map(type, values)) <= _NUMBERS):
        raise MalformedError(f"{name}: expected a list of numbers; got {_shown(values)}")
    try:
        # One sum is far cheaper than a test of each; it overflows for some lists of finite numbers, which the test
        # of each then lets through.
        if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
            raise MalformedError(f"{name}: expected finite numbers; got {_shown(values)}")
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise MalformedError(f"{name}: expected numbers that fit 64 bits; got {_shown(values)}") from None


def encode_prediction(prediction: Prediction, context_offset: int) -> bytes:
    """A prediction's value; the offset names the context record that it answers."""
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
        fields["target"] = prediction.target._asdict()
    if prediction.class_name is not None:
        fields["class"] = prediction.class_name
    if prediction.logged is not None:
        fields["logged"] = prediction.logged
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_prediction(record: Record) -> tuple[Prediction, int]:
    """Read a prediction, and the offset of the context record that it answers.

    Raises:
        MalformedError: not a prediction.
    """
    fields = _fields(_value(record))
    event_id = _checked_id(fields.get("id"), record)
    scores = fields.get("scores")
    if type(scores) is not list or len(scores) < 2:
        raise MalformedError(f"scores: expected a list of one number for each class; got {_shown(scores)}")
    target = _target(fields, len(scores))
    propensity = _propensity(fields, may_be_unknown=target is not None)
    decision = Decision(
        _integer(fields, "action", len(scores)),
        _integer(fields, "greedy", len(scores)),
        propensity,
        _finite(scores, "scores"),
    )
    model_version = _integer(fields, "model_version")
    class_name = fields.get("class")
    if class_name is not None and type(class_name) is not str:
        raise MalformedError(f"class: expected what the action is called; got {_shown(class_name)}")
    logged = _finite(fields["logged"], "logged") if type(fields.get("logged")) is list else None
    if logged is not None:
        decision = decision._replace(logged=logged)
    prediction = Prediction(event_id, decision, model_version, target, class_name, logged)
    return prediction, _integer(fields, "context_offset")


def _target(fields: dict[str, Any], n_classes: int) -> Target | None:
    """What a prediction says that the learner would have done."""
    target = fields.get("target")
    if target is None:
        return None
    if type(target) is not dict:
        raise MalformedError(f'target: expected {{"action": ..., "propensity": ...}}; got {_shown(target)}')
    action = _integer(target, "action", n_classes, within="target.")
    return Target(action, _propensity(target, within="target."))


def _propensity(fields: dict[str, Any], *, may_be_unknown: bool = False, within: str = "") -> float:
    """A propensity; NaN for null, where it may be unknown."""
    if may_be_unknown and "propensity" in fields and fields["propensity"] is None:
        return math.nan
    propensity = _number(fields, "propensity", within=within)
    if not 0.0 < propensity <= 1.0:
        raise MalformedError(f"{within}propensity: expected a probability above 0; got {propensity}")
    return propensity


def encode_feedback(feedback: Feedback) -> bytes:
    """A feedback's value."""
    fields: dict[str, Any] = {"id": feedback.id, "reward": feedback.reward}
    if feedback.label is not None:
        fields["label"] = feedback.label
    if feedback.action is not None:
        fields["action"] = feedback.action
    return orjson.dumps(fields)


def decode_feedback(record: Record, n_classes: int, *, needs_label: bool = False) -> Feedback:
    """Read a feedback for a learner of n_classes classes.

    A reward may be written as 0 or 1, as another number of that value (1.0, 1e0), or as a truth value. Labels and
    actions are whole numbers and written so; an action of null is none.

    Raises:
        MalformedError: not a feedback, or without the label that a full-information learner needs.
    """
    value = _value(record)
    typed = read_feedback(value)
    if typed is not None:
        label = None if typed.label is UNSET else typed.label
        fits = not needs_label if label is None else label < n_classes
        if fits and (typed.action is None or typed.action < n_classes):
            return make(Feedback, (_checked_id(typed.id, record), typed.reward, label, typed.action))
    fields = _fields(value)
    event_id = _checked_id(fields.get("id"), record)
    reward = _reward(fields)
    label = action = None
    if "label" in fields:
        label = _integer(fields, "label", n_classes)
    elif needs_label:
        raise MalformedError("label: expected the true class, which this learner needs; got none")
    if fields.get("action") is not None:
        action = _integer(fields, "action", n_classes)
    return make(Feedback, (event_id, reward, label, action))


def _reward(fields: dict[str, Any]) -> int:
    """The bit, in any of the ways in which JSON can write it."""
    value = fields.get("reward")
    if type(value) in _REWARD_TYPES and value in (0, 1):
        return int(value)
    raise MalformedError(f"reward: expected 0 or 1; got {_shown(value)}")


def encode_example(example: Example, feedback_offset: int | None) -> bytes:
    """An example's value; the offset names the feedback record that settled it."""
    fields = {
        "id": example.id,
        "outcome": example.outcome,
        "action": example.action,
        "propensity": example.propensity,
        "reward": example.reward,
        "delay_ms": example.delay_ms,
        "settled_at_ms": example.settled_at_ms,
        "feedback_offset": feedback_offset,
    }
    return orjson.dumps(fields if example.drift is None else {**fields, "drift": example.drift})


def decode_example(record: Record) -> tuple[Example, int | None]:
    """Read an example, and the offset of the feedback record that settled it.

    Raises:
        MalformedError: not an example.
    """
    fields = _fields(_value(record))
    event_id = _checked_id(fields.get("id"), record)
    if fields.get("outcome") not in tuple(Outcome):
        raise MalformedError(f"outcome: expected one of {', '.join(Outcome)}; got {_shown(fields.get('outcome'))}")
    example = Example(
        event_id,
        Outcome(fields["outcome"]),
        _integer(fields, "action"),
        math.nan if fields.get("propensity", 0) is None else _number(fields, "propensity"),
        None if fields.get("reward") is None else _integer(fields, "reward", 2),
        None if fields.get("delay_ms") is None else _integer(fields, "delay_ms"),
        _integer(fields, "settled_at_ms"),
        _drift(fields),
    )
    offset = None if fields.get("feedback_offset") is None else _integer(fields, "feedback_offset")
    return example, offset


def _drift(fields: dict[str, Any]) -> Drift | None:
    value = fields.get("drift")
    if value is None or value == DRIFT_OF_ALL:
        return value
    if type(value) is not int or value < 0:
        raise MalformedError(f'drift: expected "{DRIFT_OF_ALL}" or a class; got {_shown(value)}')
    return value


def decode_answer(record: Record) -> Answer:
    """Read the part of a prediction that a judge needs; it costs a fraction of `decode_prediction`.

    Raises:
        MalformedError: not a prediction.
    """
    value = _value(record)
    typed = read_prediction(value)
    if typed is not None:
        n_classes = len(typed.scores)
        if n_classes >= 2 and typed.action < n_classes and typed.greedy < n_classes:
            event_id = _checked_id(typed.id, record)
            return make(Answer, (event_id, typed.action, typed.greedy, typed.context_offset))
    fields = _fields(value)
    event_id = _checked_id(fields.get("id"), record)
    scores = fields.get("scores")
    if type(scores) is not list or len(scores) < 2:
        raise MalformedError(f"scores: expected a list of one number for each class; got {_shown(scores)}")
    action, greedy = _integer(fields, "action", len(scores)), _integer(fields, "greedy", len(scores))
    return make(Answer, (event_id, action, greedy, _integer(fields, "context_offset")))


def _value(record: Record) -> bytes:
    """The bytes of a record, which may be read as far as their number and their version go."""
    value = record.value
    if not value:
        raise MalformedError("value: expected a JSON object; got " + ("nothing" if value is None else "an empty value"))
    if len(value) > VALUE_BYTES_MAX:
        raise MalformedError(f"value: expected at most {VALUE_BYTES_MAX} bytes; got {len(value)}")
    if record.headers != HEADERS:
        for name, content in record.headers:
            if name == VERSION_HEADER[0] and content != VERSION_HEADER[1]:
                raise MalformedError(f"version: expected {VERSION}; got {_shown(content)}")
    return value


def _fields(value: bytes) -> dict[str, Any]:
    """The JSON object in a record's bytes."""
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"value: expected JSON; {error}") from error
    if type(fields) is not dict:
        raise MalformedError(f"value: expected a JSON object; got {_shown(fields)}")
    return fields


def _checked_id(event_id: object, record: Record) -> str:
    """The id that stands in a record, seen to be one and to be the record's key."""
    if type(event_id) is not str or not event_id:
        raise MalformedError(f"id: expected a text; got {_shown(event_id)}")
    key = event_id.encode()
    if len(key) > ID_BYTES_MAX:
        raise MalformedError(f"id: expected at most {ID_BYTES_MAX} bytes; got {len(key)}")
    if record.key is not None and record.key != key:
        raise MalformedError(f"id: expected the record's key, {_shown(record.key)}; got {_shown(event_id)}")
    return event_id


def _integer(fields: dict[str, Any], name: str, below: int | None = None, *, within: str = "") -> int:
    """A whole number from 0 on, and below a limit if there is one; true and 1.0 are none."""
    value = fields.get(name)
    if type(value) is not int or value < 0 or (below is not None and value >= below):
        expected = f"a whole number from 0 to {below - 1}" if below is not None else "a whole number from 0 on"
        raise MalformedError(f"{within}{name}: expected {expected}; got {_shown(value)}")
    return value


def _number(fields: dict[str, Any], name: str, *, within: str = "") -> float:
    value: Any = fields.get(name)
    if type(value) not in _NUMBERS or not math.isfinite(value):
        raise MalformedError(f"{within}{name}: expected a finite number; got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    """A value as it may stand in a message: short, whatever was sent."""
    if value is None:
        return "nothing"
    if isinstance(value, Sequence) and len(value) > 40:
        return f"{repr_of(value[:40], 80)}..."
    return repr_of(value, 80)
