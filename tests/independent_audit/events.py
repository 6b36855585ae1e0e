"""The contexts and the feedback, as docs/formats.md describes them: sections "Records and topics" and "Events"."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from stream.wire.records import Record

ID_BYTES_MAX = 256
VALUE_BYTES_MAX = 1_000_000
UNIFORM_TOLERANCE = 1e-3


class MalformedError(ValueError):
    """A record that belongs to the dead-letter topic."""


class Context(NamedTuple):
    """A context's members that matter to the join."""

    id: str
    deferred: bool
    eligible: list[int] | None
    new_names: list[str]
    logged: Mapping[str, Any] | None
    baseline: int | None = None
    actions: list[str] | None = None  # the ids by place, if contexts have actions


class Feedback(NamedTuple):
    """A bit, or a shown record if `reward` is None."""

    id: str
    reward: float | None
    action: int | str | None
    part: str | None = None
    final: bool = False


def header(record: Record, name: str) -> bytes | None:
    """The value of a header, or None."""
    return dict(record.headers).get(name)


def is_tick(record: Record) -> bool:
    """Whether a record from the feedback topic is a tick."""
    return record.key is None and record.value is None and header(record, "onebit-tick") is not None


def request(record: Record) -> Mapping[str, Any] | None:
    """Decode a request from the control topic. Returns None if it is not one."""
    try:
        value = json.loads(record.value or b"")
        assert header(record, "onebit-version") == b"1"
        assert 0 < len(value["id"].encode()) <= ID_BYTES_MAX
        assert isinstance(value["by"], str)
        assert all({"from", "to"} <= change.keys() for change in value["changes"].values())
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return dict(value)


def context(record: Record, settings: Mapping[str, Any], names: Sequence[str]) -> Context:
    """Decode a context. `names` are the names of the classes, if they have names."""
    value = _event(record)
    deferred = value.get("deferred", False)
    _require(isinstance(deferred, bool))
    actions = None
    if settings.get("actions") is None:
        _check_features(value.get("x"), settings["n_features"], settings["features"])
    else:
        actions = names = _actions(value, settings)
    logged = None if settings["play"] == "own" else value.get("logged")
    if settings["play"] != "own":
        _check_logged(logged, settings)
    if actions is not None:
        places, rule = _offered(value, settings, actions)
        return Context(value["id"], deferred, places, [], logged, rule, actions)
    eligible, new = _eligible(value.get("eligible"), settings, names)
    _require(logged is None or eligible is None or logged["action"] in eligible)
    baseline = _baseline(value, settings, names, eligible, new)
    return Context(value["id"], deferred, eligible, new, logged, baseline)


def feedback(record: Record, settings: Mapping[str, Any]) -> Feedback:
    """Decode feedback or a shown record."""
    value = _event(record)
    action = value.get("action")
    kind = int if settings.get("actions") is None else str
    _require(type(value.get("label", 0)) is int and (action is None or type(action) is kind))
    _require(value.get("shown", True) is True and ("reward" in value or "shown" in value))
    if "reward" not in value:
        return Feedback(value["id"], None, None)
    reward, rule = value["reward"], settings["feedback"]
    final, part = value.get("final", False), value.get("part")
    _require(rule == "first" or isinstance(final, bool))
    if rule == "sum":
        _require(isinstance(part, str) and 0 < len(part.encode()) <= ID_BYTES_MAX)
    if settings["rewards"] == "graded":
        low, high = (-1e300, 1e300) if rule == "sum" else reward_range(settings)
        _require(isinstance(reward, int | float) and not isinstance(reward, bool) and low <= reward <= high)
        reward = float(reward)
    else:
        _require(isinstance(reward, int | float) and reward in (0, 1))
        reward = int(reward)
    _require(_is_class(value.get("label", 0), settings))
    _require(kind is str or action is None or _is_class(action, settings))
    return Feedback(value["id"], reward, action, part if rule == "sum" else None, rule != "first" and final)


def reward_range(settings: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest graded reward."""
    low, high = map(float, settings["reward_range"].split(","))
    return low, high


def share(reward: float, settings: Mapping[str, Any]) -> float:
    """A reward as a shared model learns it: a bit, or a share of the range."""
    if settings["rewards"] == "bit":
        return reward
    low, high = reward_range(settings)
    return (reward - low) / (high - low)


def is_misplaced(record: Record, event_id: str | None, partitions: int) -> bool:
    """Whether a record's partition does not match its key or, without a key, its id, which is None if malformed."""
    key = record.key if record.key is not None or event_id is None else event_id.encode()
    return key is not None and partition_of(key, partitions) != record.partition


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner selects: murmur2."""
    mix, mask = 0x5BD1E995, 0xFFFFFFFF
    whole = len(key) // 4 * 4
    code = 0x9747B28C ^ len(key)
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * mix & mask
        code = (code * mix & mask) ^ ((word ^ word >> 24) * mix & mask)
    if key[whole:]:
        code = (code ^ int.from_bytes(key[whole:], "little")) * mix & mask
    code = (code ^ code >> 13) * mix & mask
    return ((code ^ code >> 15) & 0x7FFFFFFF) % partitions


def _event(record: Record) -> dict[str, Any]:
    _require(len(record.value or b"") <= VALUE_BYTES_MAX)
    _require(all(content == b"1" for name, content in record.headers if name == "onebit-version"))
    value = _object(record)
    event_id: Any = value.get("id")
    _require(isinstance(event_id, str))
    try:
        id_bytes = event_id.encode()
    except UnicodeEncodeError as error:
        raise MalformedError("the id is not valid UTF-8") from error
    _require(0 < len(id_bytes) <= ID_BYTES_MAX and record.key in (None, id_bytes))
    return value


def _object(record: Record) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise MalformedError(constant)

    try:
        value = json.loads((record.value or b"").decode(), parse_constant=refuse)
    except ValueError as error:
        raise MalformedError("not JSON") from error
    _require(isinstance(value, dict))
    return dict(value)


def _actions(value: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The ids of a context's actions, by place."""
    K, layout, given = settings["n_classes"], settings["actions"], value.get("actions")
    size = (settings["n_features"] - layout["context"]) // K - 1
    if "x" in value:
        _check_features(value["x"], layout["context"], settings["features"])
    _require(isinstance(given, list) and 0 < len(given) <= K)
    ids: list[str] = []
    for action in given or ():
        _require(isinstance(action, dict) and isinstance(action.get("id"), str))
        _require(0 < len(action["id"].encode()) <= ID_BYTES_MAX)
        if "x" in action:
            _check_features(action["x"], size, layout["features"])
        ids.append(action["id"])
    _require(len(set(ids)) == len(ids))
    return ids


def _offered(value: Mapping[str, Any], settings: Mapping[str, Any], actions: list[str]) -> tuple[list[int], int | None]:
    """The eligible places, and the place of the action that the service's own rule plays."""
    listed, rule = value.get("eligible"), value.get("baseline")
    listed = actions if listed is None else listed
    _require(isinstance(listed, list) and len(listed) > 0)
    _require(all(one in actions for one in listed) and len(set(listed)) == len(listed))
    needs_rule = settings["holdout"] > 0 and settings["holdout_policy"] == "baseline"
    _require(rule in listed or (rule is None and not needs_rule))
    return [actions.index(one) for one in listed], None if rule is None else actions.index(rule)


def _check_features(x: Any, size: int, names: Mapping[str, Any] | None) -> None:
    if isinstance(x, list):
        _require(len(x) == size and all(map(_is_finite, x)))
    elif isinstance(x, dict) and (isinstance(x.get("i"), list) or names is None):
        indices: Any = x.get("i")
        _require(isinstance(indices, list) and all(type(index) is int for index in indices))
        _require(indices == sorted(set(indices)) and all(0 <= index < size for index in indices))
        values = x.get("v", [1] * len(indices))
        _require(isinstance(values, list) and len(values) == len(indices) and all(map(_is_finite, values)))
    else:
        _require(isinstance(x, dict))
        known = {one["name"] for one in (names or {})["names"]}
        _require(not known or x.keys() <= known)


def _check_logged(logged: Any, settings: Mapping[str, Any]) -> None:
    _require(isinstance(logged, dict) and _is_class(logged.get("action"), settings))
    propensity = logged.get("propensity")
    _require(propensity is None or (_is_finite(propensity) and 0 < propensity <= 1))
    if settings["play"] == "match":
        uniform = settings["propensity_min"] == 0
        _require(propensity is not None)
        _require(not uniform or abs(propensity * settings["n_classes"] - 1) <= UNIFORM_TOLERANCE)


def _eligible(eligible: Any, settings: Mapping[str, Any], names: Sequence[str]) -> tuple[list[int] | None, list[str]]:
    retired = settings["retired_classes"]
    if eligible is None:
        _require(not settings["open_classes"] or len(names) > 0)
        if not retired:
            return None, []
        eligible = list(names) or list(range(settings["n_classes"]))
    _require(isinstance(eligible, list))
    eligible = [one for one in eligible if one not in retired]
    _require(len(eligible) > 0 and len(set(map(repr, eligible))) == len(eligible))
    if settings["class_names"] is None and not settings["open_classes"]:
        _require(all(_is_class(one, settings) for one in eligible))
        return eligible, []
    _require(all(isinstance(one, str) for one in eligible))
    new = [one for one in eligible if one not in names]
    _require(not new or (settings["open_classes"] and len(names) + len(new) <= settings["n_classes"]))
    return [[*names, *new].index(one) for one in eligible], new


def _baseline(
    value: Mapping[str, Any],
    settings: Mapping[str, Any],
    names: Sequence[str],
    eligible: list[int] | None,
    new: list[str],
) -> int | None:
    """The index of the class that the service's own rule plays."""
    given, listed = value.get("baseline"), value.get("eligible")
    if given is None:
        _require(settings["holdout"] == 0 or settings["holdout_policy"] != "baseline")
        return None
    if settings["class_names"] is None and not settings["open_classes"]:
        _require(_is_class(given, settings))
        index: int = given
    else:
        _require(given in [*names, *new])
        index = [*names, *new].index(given)
    is_named = settings["class_names"] is not None or settings["open_classes"]
    is_retired = given in settings["retired_classes"] and (not is_named or given in names)
    _require((is_retired and (listed is None or given in listed)) or eligible is None or index in eligible)
    return index


def _is_class(value: Any, settings: Mapping[str, Any]) -> bool:
    return type(value) is int and 0 <= value < settings["n_classes"]


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _require(holds: bool) -> None:
    if not holds:
        raise MalformedError("unexpected value")
