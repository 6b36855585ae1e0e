"""Which settings hold: those that the pipeline has, those that the user gave, and what may change in between."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from stream.journal.format import JournalError
from stream.journal.stored_settings import JOIN_SETTINGS, PARAMETER, by_name, task_settings
from stream.task.settings import TaskSettings

Given = Collection[str] | None
"""The names of the settings that the user gave, parameters as `parameters.NAME`; None: all of them."""

CHANGEABLE = frozenset((*JOIN_SETTINGS, "on_expiry", "late"))
"""The settings that may change in a running pipeline: windows, limits and policies.

The others decide what the model is made of: one that was trained under two of them could be explained by neither.
"""


class Difference(NamedTuple):
    """A setting of the pipeline that the user gave another value for."""

    name: str
    begun: Any
    given: Any

    @property
    def can_change(self) -> bool:
        """Whether it may change in a running pipeline.

        What was assumed and is to be corrected must have been kept since it was assumed: so corrections can end, and
        cannot begin.
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
    """The settings that hold from the next step on.

    Args:
        begun: what the pipeline has, by name: all settings, or those of an imported model, or none.
        wanted: what the user gave, and for the rest the defaults of today, which hold only where `begun` has nothing.
        given: the names of those that the user gave.
        change: whether a given setting that differs is to hold from now on, where it may change.
        place: where the pipeline's settings stand, for messages.

    Raises:
        SettingsDifferError: a given setting differs, and is not to change or cannot.
    """
    values = by_name(wanted)
    if begun and given is not None and "learner" not in given:
        values = {n: value for n, value in values.items() if not n.startswith(PARAMETER) or n in given or n in begun}
    named = given if given is not None else values.keys() - _parameters_left_out(wanted, values)
    taken = {name: value for name, value in values.items() if name in named}
    differing = [
        Difference(name, begun.get(name), value)
        for name, value in taken.items()
        if begun and begun.get(name) != value and (name in begun or name.startswith(PARAMETER))
    ]
    if any(difference.name == "learner" for difference in differing):
        differing = differing[:1]  # the parameters are then of another learner, too
    differences = tuple(differing)
    fixed = tuple(difference for difference in differences if not difference.can_change)
    if differences and not change:
        remedy = "start with the settings of before, or begin a new pipeline"
        raise SettingsDifferError(place, differences, remedy)
    if fixed:
        remedy = (
            "this cannot change in a running pipeline; start with the settings of before, or carry the model into a "
            "new one with `onebit model export` and `onebit model import`"
        )
        raise SettingsDifferError(place, fixed, remedy)
    return task_settings({**values, **begun, **taken})


def _shown(value: object) -> str:
    """A value in a message; vocabularies are long."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _parameters_left_out(wanted: TaskSettings, values: Mapping[str, Any]) -> set[str]:
    """The learner's parameters that settings do not name, by name."""
    return {name for name in values if name.startswith(PARAMETER) and name[len(PARAMETER) :] not in wanted.parameters}
