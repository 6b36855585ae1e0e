"""The settings that apply: the pipeline's, those that the user gave, and which of them may change."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from stream.journal.format import JournalError
from stream.journal.stored_settings import JOIN_SETTINGS, PARAMETER, stored_settings, task_settings
from stream.task.settings import TaskSettings

Given = Collection[str] | None
"""Names of the settings that the user gave, parameters as `parameters.NAME`; None: all of them."""

CHANGEABLE = frozenset((*JOIN_SETTINGS, "on_expiry", "late"))
"""The settings that may change in a running pipeline: windows, limits and policies.

The others decide what the model is made of: one that was trained under two of them could be explained by neither.
"""

_REMEDY = "start with the settings of before, or begin a new pipeline"
_REMEDY_OF_FIXED = (
    "this cannot change in a running pipeline; start with the settings of before, or carry the model into a new one "
    "with `onebit model export` and `onebit model import`"
)


class Difference(NamedTuple):
    """A setting that the user gave another value for than the pipeline has."""

    name: str
    begun: Any
    given: Any

    @property
    def can_change(self) -> bool:
        """Whether it may change in a running pipeline.

        Corrections can end and cannot begin, because they need decisions that were kept since they expired.
        """
        return self.name in CHANGEABLE and (self.name, self.given) != ("late", "correct")


class SettingsDifferError(JournalError):
    """The user gave settings that are not those of the pipeline."""

    def __init__(self, place: str, differences: tuple[Difference, ...], remedy: str) -> None:
        self.differences = differences
        shown = ", ".join(f"{name} = {_shown(begun)}; got {_shown(given)}" for name, begun, given in differences)
        super().__init__(f"{place} has {shown}: {remedy}")

    @property
    def can_change(self) -> bool:
        """Whether all of them may change in a running pipeline."""
        return all(difference.can_change for difference in self.differences)


def resolve(
    begun: Mapping[str, Any], wanted: TaskSettings, given: Given = None, *, change: bool = False, place: str
) -> TaskSettings:
    """The settings of the next step.

    Args:
        begun: the pipeline's, by name: all, or those of an imported model, or none.
        wanted: the user's, and for the rest the defaults of today, which apply only where `begun` has nothing.
        given: names of those that the user gave.
        change: whether a given setting that differs applies from now on, where it may change.
        place: where the pipeline's settings are, for messages.

    Raises:
        SettingsDifferError: a given setting differs and may not or cannot change.
    """
    values = stored_settings(wanted)
    parameters = {name for name in values if name.startswith(PARAMETER)}
    if given is None:
        given = values.keys() - parameters | {PARAMETER + name for name in wanted.parameters}
    elif begun and "learner" not in given:  # the pipeline's learner: of the defaults' parameters only its own
        for name in parameters - {*given, *begun}:
            del values[name]
    chosen = {name: value for name, value in values.items() if name in given}
    differences = tuple(
        Difference(name, begun.get(name), value)
        for name, value in chosen.items()
        if begun and begun.get(name) != value and (name in begun or name in parameters)
    )
    if learner := tuple(difference for difference in differences if difference.name == "learner"):
        differences = learner  # the parameters are then of another learner, too
    if differences and not change:
        raise SettingsDifferError(place, differences, _REMEDY)
    if fixed := tuple(difference for difference in differences if not difference.can_change):
        raise SettingsDifferError(place, fixed, _REMEDY_OF_FIXED)
    return task_settings({**values, **begun, **chosen})


def _shown(value: object) -> str:
    """A value in a message; vocabularies are long."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
