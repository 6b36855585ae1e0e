"""Requested changes of a running pipeline's settings, as pure functions of the settings and the request.

All tasks of a pipeline apply the same requests in the same order. They therefore accept and refuse the same ones.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from stream.errors import OnebitError
from stream.learners import ParameterError
from stream.parsing import shown
from stream.settings.task_fields import JoinSettings
from stream.settings.values import setting_name, shown_value
from stream.task.carry import Models, StartModel, check_change, known_models, no_models
from stream.task.settings import TaskSettings
from stream.task.stored_settings import PARAMETER, STORED, restored_settings, stored_settings
from stream.wire.control import Replaced, Request, Requested, models_of
from stream.wire.named_features import NamedFeaturesError, from_plain


def _stored_type(hint: Any) -> TypeAdapter[Any]:
    """Return the type and range of a stored value, without the form in which users write it."""
    kind, *extras = get_args(hint)
    bounds = tuple(extra for extra in extras if isinstance(extra, FieldInfo))
    return TypeAdapter(Annotated[(kind, *bounds)] if bounds else kind)


_TYPES = {
    name: _stored_type(hint)
    for kind in (TaskSettings, JoinSettings)
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if name in STORED.keys() - {"parameters", "join"}  # their parts are stored under their own names
}


SETTINGS_BYTES_MAX = 900_000
"""Limit on the size of a task's settings. The rest of a journal record, and Kafka's overhead, take up to 100 kB."""


class ChangeRefusedError(OnebitError):
    """A change of the settings that a running pipeline cannot make."""


class Changed(NamedTuple):
    """Settings after the requests before an offset in the control topic."""

    settings: TaskSettings
    control: int  # the offset
    refused: tuple[tuple[int, str], ...] = ()  # offsets of refused requests, with the reasons


def shown_changes(changes: Mapping[str, Replaced]) -> list[str]:
    """Describe changes, each in one line. Parameters that only one of two learners has are omitted.

    >>> shown_changes({"learner": Replaced("soba", "perceptron"), "parameters.gamma": Replaced(0.1, None)})
    ['learner: soba -> perceptron']
    >>> shown_changes({"class_names": Replaced(["hats", "bags"], ["hats", "bags", "shoes"])})
    ['class_names: shoes added']
    """
    return [
        f"{setting_name(name)}: {_shown_change(name, one)}"
        for name, one in changes.items()
        if not (name.startswith(PARAMETER) and None in (one.old, one.new))
    ]


def _shown_change(name: str, change: Replaced) -> str:
    """Describe the names that a change adds to a list of names, or the old and new values."""
    old, new = _names(name, change.old), _names(name, change.new)
    if old and (added := [one for one in new if one not in set(old)]) and set(old) <= set(new):
        return f"{shown_value(name, ', '.join(added))} added"
    return f"{shown_value(name, change.old)} -> {shown_value(name, change.new)}"


def _names(name: str, value: Any) -> list[str]:
    """Return the names of classes, or of features and their values. Other settings and invalid values have none."""
    if name == "class_names" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    if name != "features" or not isinstance(value, dict):
        return []
    try:
        features = from_plain(value).names
    except NamedFeaturesError:
        return []
    return [
        f"{feature}={one}" if one else feature
        for feature, vocabulary in features.items()
        for one in (vocabulary.indices or [""])
    ]


def changed(settings: TaskSettings, request: Request, models: Models = no_models) -> TaskSettings:
    """Return the settings after a request.

    Args:
        settings: the settings before the request.
        request: the request.
        models: the models with which challengers start.

    Raises:
        ChangeRefusedError: the request does not start from these settings, or the change is impossible.
    """
    stored = stored_settings(settings)
    for name, change in request.changes.items():
        if name not in stored and not name.startswith(PARAMETER):
            raise ChangeRefusedError(
                f"{name}: expected one of the settings {', '.join(sorted(STORED))}; a newer version of Onebit may have "
                "sent the request. Upgrade the learners, and send it again"
            )
        if stored.get(name) != change.old:
            raise ChangeRefusedError(
                f"{name}: expected a change from {shown(stored.get(name))}; got one from {shown(change.old)}. Another "
                "request was applied first; send the change again"
            )
        check_value(name, change.new)
    after = stored | {name: change.new for name, change in request.changes.items()}
    gone = [name for name in after if name.startswith(PARAMETER) and after[name] is None]
    for name in gone:  # a parameter of another learner
        del after[name]
    found = _read_models(request, models)
    try:
        return _checked(settings, after, known_models(found))
    except (OnebitError, ValueError, TypeError) as error:
        raise ChangeRefusedError(str(error)) from error


def _read_models(request: Request, models: Models) -> dict[str, StartModel]:
    """Return the models that a request names. The errors of a broker do not refuse the request."""
    try:
        return {digest: models(digest) for digest in map(str, models_of(request))}
    except ParameterError as error:
        raise ChangeRefusedError(str(error)) from error


def _checked(settings: TaskSettings, after: Mapping[str, Any], models: Models) -> TaskSettings:
    new = restored_settings(after).resolved()
    check_change(settings, new, models)
    if (size := len(orjson.dumps(stored_settings(new)))) > SETTINGS_BYTES_MAX:
        raise ChangeRefusedError(
            f"settings: expected at most {SETTINGS_BYTES_MAX:,} bytes, to fit in a record of the journal; got "
            f"{size:,}. Use a smaller features file or a smaller holdout policy"
        )
    return new


def check_value(name: str, value: object) -> None:
    """Check the type and the range of a stored setting's value. Learners check their parameters.

    Raises:
        ChangeRefusedError: the value is invalid.
    """
    if name not in _TYPES:
        return
    try:
        _TYPES[name].validate_json(orjson.dumps(value), strict=True)
    except (TypeError, RecursionError) as error:  # not JSON, such as a number of more than 64 bits
        raise ChangeRefusedError(f"{name}: expected a JSON value; {error}") from error
    except ValidationError as error:
        raise ChangeRefusedError(f"{name}: {error.errors()[0]['msg']}; got {shown(value)}") from error


def fold(
    settings: TaskSettings,
    control: int,
    requests: Iterable[Requested],
    until: int | None = None,
    models: Models = no_models,
) -> Changed:
    """Apply requests in the order of their offsets.

    Args:
        settings: the settings after the requests before `control`.
        control: the offset in the control topic from which on requests are applied.
        requests: all requests, in order.
        until: the offset of the first request that is not applied; None for all.
        models: the models with which challengers start.
    """
    refused = []
    for offset, _, request, refusal in requests:
        if offset < control or (until is not None and offset >= until):
            continue
        control = offset + 1
        if request is None or refusal:
            refused.append((offset, refusal))
            continue
        try:
            settings = changed(settings, request, models)
        except ChangeRefusedError as error:
            refused.append((offset, str(error)))
    return Changed(settings, control, tuple(refused))
