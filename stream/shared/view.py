"""One task's view of a shared model: a replica that also contains the task's own later decisions.

A task makes a decision with the model at version n, after an `observe_early` call for each of the task's earlier
decisions that are not among the n entries. Without these calls, a learner that relies on `observe` would play the same
class repeatedly until its decisions arrive through the log. Other tasks' decisions arrive only through the log.

A decision can therefore be reproduced from the log, n and the task's earlier decisions.

The replica changes its settings at an entry of the log. The task changes its settings in its next step, so it decides
with the settings of version n. Its earlier decisions are converted as the replica converts them in the log.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.learners import Learner
from stream.learners.base import KernelLearner
from stream.shared.replica import Replica
from stream.task.carry import Conversion, Models, Stage, no_models
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Drift, Features, IndexArray
from stream.wire.updates import (
    CHANGED,
    CORRECTED,
    DECIDED,
    NAMED,
    NO_BIT,
    NO_LABEL,
    RECORD_BYTES_MAX,
    SETTLED,
    Entry,
    entry_bytes,
    entry_without_decision,
)


class Overlay:
    """The effects of a task's own decisions on a model. These effects can be undone exactly.

    Each part of the state that `observe_early` changes is copied before its first change. The learner's
    `observed_parts` returns these parts. For an array with a row per class, the part is the action's row. For an array
    with an entry per feature, the part consists of the entries for x. For other arrays, the part is the whole array.
    """

    def __init__(self, learner: KernelLearner) -> None:
        self._learner = learner
        self._was: list[tuple[NDArray[Any], Any, NDArray[Any]]] = []  # (array, index, content before the change)
        self._kept: set[tuple[str, Any]] = set()  # parts that were copied: actions' rows, or whole arrays

    def observe(self, x: Features, decision: Decision) -> None:
        """Save the parts of the model that a decision changes. Then apply the decision."""
        for name, index in self._learner.observed_parts(x, decision):
            array = self._learner.arrays[name]
            if isinstance(index, np.ndarray):
                self._keep(array, index)
            elif (name, index) not in self._kept:
                self._kept.add((name, index))
                self._keep(array, index)
        self._learner.observe_early(x, decision)

    def restore(self) -> None:
        """Restore the state that the model had before the first observed decision."""
        for array, index, was in reversed(self._was):
            array[index] = was
        self._was.clear()
        self._kept.clear()

    def _keep(self, array: NDArray[Any], index: Any) -> None:
        self._was.append((array, index, array[index].copy()))


def names_max(learner: Learner) -> int:
    """Return the number of class names that a step can add to the log with a single record."""
    assert isinstance(learner, KernelLearner)
    return max(1, RECORD_BYTES_MAX // entry_bytes(0, learner.n_classes + learner.logged_size))


class View:
    """The Model of a task that uses a shared model: the replica and the task's entries for the log."""

    def __init__(self, replica: Replica, partition: int) -> None:
        """Create a view without decisions. The replica must have read all of the task's earlier decisions."""
        self._replica = replica
        self._partition = partition
        self._own: deque[tuple[Features, Decision]] = deque()  # the task's own decisions, starting with number `_first`
        self._first = replica.place_of(partition).decided
        self._control = replica.control  # offset in the control topic of the settings of the own decisions
        self.version = replica.version  # model version at the last step
        self._overlay = Overlay(replica.learner)
        self._entries: list[Entry] = []  # the current step's entries

    @property
    def learner(self) -> KernelLearner:
        """The learner. Within `step`, its model includes the task's own decisions."""
        return self._replica.learner

    @contextmanager
    def step(self) -> Iterator[list[Entry]]:
        """Return a context manager for a step. It yields the list that collects the step's entries for the log.

        Do not read the log with the replica within this context. If the step is not committed, the view is unusable.
        """
        self._drop_observed()
        self._convert()
        self._entries = []
        self.version = self._replica.version
        self._overlay = Overlay(self.learner)
        self._replica.is_overlaid = True
        decided = len(self._own)
        try:
            for x, decision in self._own:
                if decision.can_teach:
                    self._overlay.observe(x, decision)
            yield self._entries
        except BaseException:
            while len(self._own) > decided:
                self._own.pop()
            raise
        finally:
            self._overlay.restore()
            self._replica.is_overlaid = False

    def decide(self, event_id: str, x: Features, u: float, eligible: IndexArray | None) -> Decision:
        """See Model."""
        return self.learner.predict(x, u, eligible)

    def observe(self, x: Features, decision: Decision) -> None:
        """Observe a decision in this view at once; other tasks observe it through the log."""
        if self._replica.learner.observed:
            self._overlay.observe(x, decision)
            self._own.append((x, decision))
            self._entries.append(Entry(DECIDED, x, decision))

    def settle(self, x: Features, decision: Decision, reward: float, v: float, label: int | None) -> Drift | None:
        """Add a bit to the entries for the log."""
        known = NO_LABEL if label is None else label
        self._entries.append(Entry(SETTLED, x, decision, reward, NO_BIT, v, known))
        return None  # drift alarms arrive through the log

    def correct(self, x: Features, decision: Decision, assumed: float, reward: float, v: float) -> None:
        """Add a correction to the entries for the log."""
        self._entries.append(Entry(CORRECTED, x, decision, reward, assumed, v))

    def change(self, before: TaskSettings, settings: TaskSettings, models: Models = no_models) -> Conversion:
        """See Model. The replica has changed its learner at an entry of the log."""
        return Conversion(before, settings, models=models)

    def promote(self, number: int) -> None:
        """Do nothing, because the replica has done this at an entry of the log."""

    def add_change(self, control: int) -> None:
        """Add changed settings to the entries for the log."""
        self._add_without_decision(CHANGED, str(control))

    def add_class(self, name: str) -> None:
        """Add a class name to the entries for the log."""
        self._add_without_decision(NAMED, name)

    def _add_without_decision(self, kind: int, name: str) -> None:
        learner = self.learner
        self._entries.append(entry_without_decision(kind, learner.n_classes, learner.logged_size, name))

    @property
    def ahead(self) -> int:
        """The number of the task's decisions that the model has not observed yet."""
        self._drop_observed()
        return len(self._own)

    @property
    def offset(self) -> int:
        """The offset up to which the log has been read."""
        return self._replica.offset

    def _convert(self) -> None:
        """Convert the task's own decisions after changes of the replica's settings."""
        control, self._control = self._control, self._replica.control
        if control < self._control and self._own:
            convert = self._replica.history.decision
            self._own = deque((x, convert(x, one, control, Stage.SETTLING)) for x, one in self._own)

    def _drop_observed(self) -> None:
        """Remove the task's own decisions that the model has observed.

        If another process has taken over the task and this process has not noticed yet, the model may have observed
        more decisions than were made in this view. Committing this step will then fail.
        """
        decided = self._replica.place_of(self._partition).decided
        for _ in range(min(decided - self._first, len(self._own))):
            self._own.popleft()
        self._first = max(self._first, decided)
