"""The model of a task, as a port: its own, a shared one, or the recall of stored decisions."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np

from stream.learners import Learner
from stream.wire.events import DRIFT_OF_ALL, Decision, Drift, Features, FloatArray
from stream.wire.updates import Entry


class Model(Protocol):
    """A task's model. `OwnModel`, `stream.shared.view.View` and `.Recall` implement it."""

    version: int  # own: updates that changed the model; shared: entries of its log at the last step

    @property
    def learner(self) -> Learner:
        """The learner behind it."""

    def step(self) -> AbstractContextManager[Sequence[Entry]]:
        """The context of all calls below; yields the step's entries for the log of a shared model."""

    def decide(self, event_id: str, x: Features, u: float) -> Decision:
        """Make a decision by the uniform draw u; nothing changes."""

    def observe(self, x: Features, decision: Decision) -> None:
        """Apply what a decision itself changes."""

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> Drift | None:
        """Learn a reward, and return the drift detector that it set off, if any."""

    def correct(self, x: Features, decision: Decision, assumed: int, reward: int, v: float) -> None:
        """Replace a learned reward by another one."""


class OwnModel:
    """A model of one task."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.version = 0

    @contextmanager
    def step(self) -> Iterator[Sequence[Entry]]:
        """See Model."""
        yield ()

    def decide(self, event_id: str, x: Features, u: float) -> Decision:
        """See Model."""
        return self.learner.predict(x, u)

    def observe(self, x: Features, decision: Decision) -> None:
        """See Model."""
        self.learner.observe(x, decision)

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> Drift | None:
        """See Model."""
        before = self.learner.alarms.tobytes()
        self.version += self.learner.update(x, decision, reward, v, label)
        return _triggered(before, self.learner.alarms) if before else None

    def correct(self, x: Features, decision: Decision, assumed: int, reward: int, v: float) -> None:
        """See Model."""
        self.version += self.learner.retract(x, decision, assumed, reward, v)


def _triggered(before: bytes, alarms: FloatArray) -> Drift | None:
    """The drift detector that an update set off, see `Learner.alarms`; one at most.

    Args:
        before: the bytes of the alarms before the update; comparing bytes costs less than reading numbers.
        alarms: the alarms after it.
    """
    if before == alarms.tobytes():
        return None
    detector = int(np.flatnonzero(alarms > np.frombuffer(before))[0])
    return detector if detector < alarms.size - 1 else DRIFT_OF_ALL
