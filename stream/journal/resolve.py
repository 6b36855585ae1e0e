"""Combines the pipeline's settings with the user's, and checks which of them can change."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from stream.journal.format import JournalError
from stream.journal.stored_settings import JOIN_SETTINGS, PARAMETER, stored_settings, task_settings
from stream.task.settings import TaskSettings

Given = Collection[str] | None
"""Names of the settings that the user gave, with parameters as `parameters.NAME`; None: all."""

CHANGEABLE = frozenset((*JOIN_SETTINGS, "on_expiry", "late"))
"""The settings that can change in a running pipeline: windows, limits and policies.

The model depends on all other settings, and could not be reproduced if they changed.
"""

_REMEDY = "use the earlier settings, or start a new pipeline with another topic prefix"
_REMEDY_OF_FIXED = (
    "this cannot change in a running pipeline; use the earlier settings, or move the model to a new pipeline with "
    "`onebit model export` and `onebit model import`"
)


class Difference(NamedTuple):
    """A setting whose given value differs from the pipeline's."""

    name: str
    begun: Any
    given: Any

    @property
    def can_change(self) -> bool:
        """Whether the setting can change in a running pipeline.

        Corrections can be disabled but not enabled, because they need expired decisions that were kept.
        """
        return self.name in CHANGEABLE and (self.name, self.given) != ("late", "correct")


class SettingsDifferError(JournalError):
    """Given settings differ from the pipeline's."""

    def __init__(self, place: str, differences: tuple[Difference, ...], remedy: str) -> None:
        self.differences = differences
        shown = ", ".join(f"{name} = {_shown(begun)}; got {_shown(given)}" for name, begun, given in differences)
        super().__init__(f"{place} has {shown}: {remedy}")

    @property
    def can_change(self) -> bool:
        """Whether all of the settings can change in a running pipeline."""
        return all(difference.can_change for difference in self.differences)


def resolve(
    begun: Mapping[str, Any], wanted: TaskSettings, given: Given = None, *, change: bool = False, place: str
) -> TaskSettings:
    """The settings for the next step.

    Args:
        begun: the pipeline's settings by name: all, those of an imported model, or none.
        wanted: the user's settings and the current defaults; a default applies only to a setting missing in `begun`.
        given: names of the settings that the user gave.
        change: whether given settings that differ and can change apply from now on.
        place: the topic and partition of the pipeline's settings, for messages.

    Raises:
        SettingsDifferError: a given setting differs, and cannot change or `change` is False.
    """
    values = stored_settings(wanted)
    parameters = {name for name in values if name.startswith(PARAMETER)}
    if given is None:
        given = values.keys() - parameters | {PARAMETER + name for name in wanted.parameters}
    elif begun and "learner" not in given:  # keep the pipeline's learner, and only its own parameters
        for name in parameters - {*given, *begun}:
            del values[name]
    chosen = {name: value for name, value in values.items() if name in given}
    differences = tuple(
        Difference(name, begun.get(name), value)
        for name, value in chosen.items()
        if begun and begun.get(name) != value and (name in begun or name in parameters)
    )
    if learner := tuple(difference for difference in differences if difference.name == "learner"):
        differences = learner  # the parameters then also belong to another learner
    if differences and not change:
        raise SettingsDifferError(place, differences, _REMEDY)
    if fixed := tuple(difference for difference in differences if not difference.can_change):
        raise SettingsDifferError(place, fixed, _REMEDY_OF_FIXED)
    return task_settings({**values, **begun, **chosen})


def _shown(value: object) -> str:
    """A value in a message, shortened: vocabularies are long."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
