"""The port for a task's model: its own model, a view of a shared model, or stored decisions."""

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
        """The underlying learner."""

    def step(self) -> AbstractContextManager[Sequence[Entry]]:
        """The context manager for the calls below; yields the step's entries for the shared model's log."""

    def decide(self, event_id: str, x: Features, u: float) -> Decision:
        """Make a decision with the uniform draw u; the state does not change."""

    def observe(self, x: Features, decision: Decision) -> None:
        """Apply a decision's own effect on the model."""

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> Drift | None:
        """Learn a reward, and return the drift detector that it triggered, if any."""

    def correct(self, x: Features, decision: Decision, assumed: int, reward: int, v: float) -> None:
        """Replace a learned reward with another one."""


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
    """The drift detector triggered by an update, at most one; see `Learner.alarms`.

    Args:
        before: the bytes of the alarms before the update, because comparing bytes is faster than comparing numbers.
        alarms: the alarms after the update.
    """
    if before == alarms.tobytes():
        return None
    detector = int(np.flatnonzero(alarms > np.frombuffer(before))[0])
    return detector if detector < alarms.size - 1 else DRIFT_OF_ALL
