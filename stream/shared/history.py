"""The settings at each version of a shared model, and the conversion of entries from tasks that were still behind.

    log      ── task 0, control 0 ── changed to control 1 ── task 1, control 0 ── task 0, control 1 ──
    model      control 0             control 1               control 1            control 1

A replica changes its settings at an entry of kind *changed*. Another task can have made a step with the earlier
settings whose record follows this entry. The record's entries are converted, change by change, before they are applied.
They teach only the learners that the task had. A new learner learns only from bits that a task with this learner has
received.
"""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from stream.task.carry import Conversion, Stage
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features
from stream.wire.updates import CORRECTED, DECIDED, SETTLED, Entry

CHANGES_MAX = 100
"""Number of changes for which earlier settings are kept. A task is behind the log by the changes during one of its
steps, which is at most one change unless changes are requested many times per second."""

_STAGES = {DECIDED: Stage.SETTLING, SETTLED: Stage.SETTLING, CORRECTED: Stage.SETTLED}
"""Which learners an entry teaches, by kind."""


class Earlier(NamedTuple):
    """Settings that were replaced."""

    control: int  # offset in the control topic up to which requests were in force
    settings: TaskSettings


class History:
    """The settings of a model's current version, and the earlier settings, oldest first."""

    def __init__(self, settings: TaskSettings, control: int = 0, earlier: Iterable[Earlier] = ()) -> None:
        self.settings = settings.resolved()
        self.control = control
        self.earlier = deque(earlier, CHANGES_MAX)
        self._conversions: dict[int, Conversion] = {}  # by the offset of the settings before the change

    def change(self, settings: TaskSettings, control: int) -> None:
        """Add a change."""
        if len(self.earlier) == CHANGES_MAX:
            self._conversions.pop(self.earlier[0].control, None)
        self.earlier.append(Earlier(self.control, self.settings))
        self.settings, self.control = settings, control

    def settings_at(self, control: int) -> TaskSettings | None:
        """Return the settings after the requests before an offset, or None if they are not kept."""
        return next((one.settings for one in self._from(control) if one.control == control), None)

    def next_control(self, control: int) -> int:
        """Return the offset of the first change after an offset, or the same offset if there is none."""
        return next((one.control for one in self._from(control + 1)), control)

    def decision(self, x: Features, decision: Decision, control: int, stage: Stage) -> Decision:
        """Convert a decision that was made with the settings at an offset, which are kept.

        Raises:
            ValueError, IndexError: the decision does not have the form of these settings.
        """
        for before, after in pairwise(self._from(control)):
            if not decision.can_teach:
                break
            decision = self._conversion(before, after).decision(x, decision, stage)
        return decision

    def entry(self, entry: Entry, control: int) -> Entry | None:
        """Convert an entry; see `decision`. Return None for an entry from which no learner can learn."""
        if entry.kind not in _STAGES:
            return None
        decision = self.decision(entry.x, entry.decision, control, _STAGES[entry.kind])
        return entry._replace(decision=decision) if decision.can_teach else None

    def _conversion(self, before: Earlier, after: Earlier) -> Conversion:
        if before.control not in self._conversions:
            self._conversions[before.control] = Conversion(before.settings, after.settings)
        return self._conversions[before.control]

    def _from(self, control: int) -> Iterable[Earlier]:
        """Yield the settings from an offset on, ending with the current ones."""
        yield from (one for one in self.earlier if one.control >= control)
        yield Earlier(self.control, self.settings)
