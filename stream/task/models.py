"""The models that a task can have: its own model, or the recall of a shared model's decisions during recovery.

`stream.shared.view` has the third one, a view of a shared model.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from stream.learners import Learner
from stream.learners.base import KernelLearner
from stream.task.carry import Carry, Conversion, Models, no_models
from stream.task.settings import TaskSettings
from stream.wire.records import DRIFT_OF_ALL, Decision, Drift, Features, IndexArray
from stream.wire.updates import FEATURE_BYTES, RECORD_BYTES_MAX, Entry, entry_bytes


class Model(Protocol):
    """The interface for a task's model. `OwnModel`, `Recall` and `View` in `stream.shared.view` implement it."""

    version: int  # own model: number of updates; shared model: number of log entries at the last step

    @property
    def learner(self) -> Learner:
        """The underlying learner."""

    def step(self) -> AbstractContextManager[Sequence[Entry]]:
        """Return a context manager for a step. It yields the entries that the step adds to a shared model's log."""

    def decide(self, event_id: str, x: Features, u: float, eligible: IndexArray | None) -> Decision:
        """Decide among the eligible classes with the uniform draw u, without side effects."""

    def observe(self, x: Features, decision: Decision) -> None:
        """Apply a decision to the model; see `Learner.observe`."""

    def settle(self, x: Features, decision: Decision, reward: float, v: float, label: int | None) -> Drift | None:
        """Learn from a reward, a bit or a share. Return the drift detector that raised an alarm, or None."""

    def correct(self, x: Features, decision: Decision, assumed: float, reward: float, v: float) -> None:
        """Replace a learned reward with a later reward."""

    def change(self, before: TaskSettings, settings: TaskSettings, models: Models = no_models) -> Conversion:
        """Change the learner. Return the conversion for earlier decisions.

        New challengers can start with `models`.
        """

    def promote(self, number: int) -> None:
        """Make a different learner the champion, which decides from now on; see `Learner.promote`."""

    def add_change(self, control: int) -> None:
        """Add changed settings to a shared model's log, for the requests before this offset in the control topic."""

    def add_class(self, name: str) -> None:
        """Add the name of an open class to a shared model's log."""


class OwnModel:
    """A model that belongs to one task."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.version = 0

    @contextmanager
    def step(self) -> Iterator[Sequence[Entry]]:
        """See Model."""
        yield ()

    def decide(self, event_id: str, x: Features, u: float, eligible: IndexArray | None) -> Decision:
        """See Model."""
        return self.learner.predict(x, u, eligible)

    def observe(self, x: Features, decision: Decision) -> None:
        """See Model."""
        self.learner.observe(x, decision)

    def settle(self, x: Features, decision: Decision, reward: float, v: float, label: int | None) -> Drift | None:
        """See Model and `Learner.alarms`."""
        before = self.learner.alarms.tobytes()  # comparing bytes is faster than comparing numbers
        self.version += self.learner.update(x, decision, reward, v, label)
        alarms = self.learner.alarms
        if not before or before == alarms.tobytes():
            return None
        detector = int(np.flatnonzero(alarms > np.frombuffer(before))[0])
        return detector if detector < alarms.size - 1 else DRIFT_OF_ALL

    def correct(self, x: Features, decision: Decision, assumed: float, reward: float, v: float) -> None:
        """See Model."""
        self.version += self.learner.retract(x, decision, assumed, reward, v)

    def change(self, before: TaskSettings, settings: TaskSettings, models: Models = no_models) -> Conversion:
        """See Model."""
        carry = Carry(before, settings, self.learner, models)
        self.learner = carry.learner
        return carry

    def promote(self, number: int) -> None:
        """See Model."""
        self.learner.promote(number)
        self.version += 1

    def add_change(self, control: int) -> None:
        """Do nothing. If the model is not shared, the task's settings change at once."""

    def add_class(self, name: str) -> None:
        """Do nothing. If the model is not shared, a name is added when a context that contains it is applied."""


class Recall:
    """A Model that returns the published decisions when the steps of a task with a shared model are reapplied.

    Recovery therefore does not need the model versions that made the decisions. This class writes no
    entries, because the log already contains them.
    """

    def __init__(self, learner: KernelLearner) -> None:
        """Create a Recall without decisions; only the learner's kind and sizes are used."""
        self.learner = learner
        self.version = 0
        self._decisions: deque[tuple[str, Decision]] = deque()

    def expect(self, version: int, decisions: Iterable[tuple[str, Decision]]) -> None:
        """Set the next step's model version and its decisions with their event ids.

        An id can occur twice if the join forgot it between the two decisions.
        """
        self.version = version
        self._decisions = deque(decisions)

    @contextmanager
    def step(self) -> Iterator[list[Entry]]:
        """Return a context manager for a reapplied step.

        Raises:
            RecallError: the step has not made all expected decisions.
        """
        yield []
        if self._decisions:
            raise RecallError(
                f"{self._decisions[0][0]!r} has a published decision, but the replayed step does not make one"
            )

    def decide(self, event_id: str, x: Features, u: float, eligible: IndexArray | None) -> Decision:
        """Return an event's published decision; u and the eligible classes are not used.

        Raises:
            RecallError: the event has no published decision.
        """
        if not self._decisions or self._decisions[0][0] != event_id:
            raise RecallError(f"{event_id!r} has no published decision, but the replayed step makes one")
        return self._decisions.popleft()[1]

    def _ignore(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the log already contains all effects of the step."""

    observe = settle = correct = promote = add_change = add_class = _ignore

    def change(self, before: TaskSettings, settings: TaskSettings, models: Models = no_models) -> Conversion:
        """See Model."""
        earlier, self.learner = self.learner, settings.make_shareable_learner()
        return Conversion(before, settings, earlier, self.learner, models)


class RecallError(Exception):
    """A reapplied step did not make the published decisions."""


def features_max(learner: Learner) -> int:
    """Return the largest number of features for which each of a context's entries fits in one log record."""
    assert isinstance(learner, KernelLearner)
    return (RECORD_BYTES_MAX - entry_bytes(0, learner.n_classes + learner.logged_size)) // FEATURE_BYTES
