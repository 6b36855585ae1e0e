"""Requested changes of a running pipeline's settings, as pure functions of the settings and the request.

All tasks of a pipeline apply the same requests in the same order. They therefore accept and refuse the same ones.
"""

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from stream.errors import OnebitError
from stream.learners import ParameterError
from stream.parsing import shown
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import CHANGEABLE, SettingDifference, restored_settings, stored_settings
from stream.wire.control import Replaced, Request, Requested


def _stored_type(hint: Any) -> TypeAdapter[Any]:
    """Return the type and range of a stored value, without the form in which users write it."""
    kind, *extras = get_args(hint)
    bounds = tuple(extra for extra in extras if isinstance(extra, FieldInfo))
    return TypeAdapter(Annotated[(kind, *bounds)] if bounds else kind)


_TYPES = {
    name: _stored_type(hint)
    for kind in (TaskSettings, JoinSettings)
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if name in CHANGEABLE
}


class ChangeRefusedError(OnebitError):
    """A change of the settings that a running pipeline cannot make."""


class Changed(NamedTuple):
    """Settings after the requests before an offset in the control topic."""

    settings: TaskSettings
    control: int  # the offset
    refused: tuple[tuple[int, str], ...] = ()  # offsets of refused requests, with the reasons


def differences(before: TaskSettings, after: TaskSettings) -> dict[str, Replaced]:
    """Return the stored settings that differ, by name."""
    old, new = stored_settings(before), stored_settings(after)
    return {name: Replaced(old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}


def check_change(before: TaskSettings, after: TaskSettings) -> None:
    """Check that the settings of a running task can change from `before` to `after`.

    Raises:
        ChangeRefusedError: a setting is fixed, or the new settings are invalid together.
    """
    for name, change in differences(before, after).items():
        if name not in CHANGEABLE:
            is_lost = SettingDifference(name, change.old, change.new).prevents_import
            remedy = (
                "" if is_lost else ", and move the model to it with `onebit model export` and `onebit model import`"
            )
            raise ChangeRefusedError(
                f"{name}: expected {shown(change.old)}, which is fixed for the pipeline's life; got "
                f"{shown(change.new)}. Start a new pipeline with a different topic prefix{remedy}"
            )
    try:
        after.check_policies(after.make_learner())
    except ParameterError as error:
        raise ChangeRefusedError(str(error)) from error


def changed(settings: TaskSettings, request: Request) -> TaskSettings:
    """Return the settings after a request.

    Raises:
        ChangeRefusedError: the request does not start from these settings, or the change is impossible.
    """
    stored = stored_settings(settings)
    for name, change in request.changes.items():
        if name not in stored:
            raise ChangeRefusedError(
                f"{name}: expected one of the settings {', '.join(sorted(CHANGEABLE))}; a newer version of Onebit may "
                "have sent the request. Upgrade the learners, and send it again"
            )
        if stored[name] != change.old:
            raise ChangeRefusedError(
                f"{name}: expected a change from {shown(stored[name])}; got one from {shown(change.old)}. Another "
                "request was applied first; send the change again"
            )
        if name in CHANGEABLE:
            _check_value(name, change.new)
    after = restored_settings({**stored, **{name: change.new for name, change in request.changes.items()}})
    check_change(settings, after)
    return after


def _check_value(name: str, value: object) -> None:
    try:
        _TYPES[name].validate_python(value, strict=True)
    except ValidationError as error:
        raise ChangeRefusedError(f"{name}: {error.errors()[0]['msg']}; got {shown(value)}") from error


def fold(settings: TaskSettings, control: int, requests: Iterable[Requested], until: int | None = None) -> Changed:
    """Apply requests in the order of their offsets.

    Args:
        settings: the settings after the requests before `control`.
        control: the offset in the control topic from which on requests are applied.
        requests: all requests, in order.
        until: the offset of the first request that is not applied; None for all.
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
            settings = changed(settings, request)
        except ChangeRefusedError as error:
            refused.append((offset, str(error)))
    return Changed(settings, control, tuple(refused))
