"""A direct implementation of a model that several partitions share. The oracle computes each model from the log.

    log        the entries of all tasks, in the order in which their steps were published
    model(n)   a new learner that has applied log[:n]

A task that has read n entries decides with model(n). If log[:n] lacks some of the task's own decisions, the task first
calls `observe_early` with these decisions. Unlike Onebit, the oracle does not store models or undo entries.
"""

from collections.abc import Callable
from typing import NamedTuple

from stream.learners import Learner
from stream.wire.records import Decision, Features


class LogEntry(NamedTuple):
    """An entry in the log."""

    task: int
    kind: str  # "decided", "settled" or "corrected"
    x: Features
    decision: Decision
    reward: int = -1
    assumed: int = -1
    v: float = 0.0
    label: int | None = None


class SharedModel:
    """The update log, and each task's decisions."""

    def __init__(self, fresh: Callable[[], Learner]) -> None:
        self.fresh = fresh
        self.log: list[LogEntry] = []

    def model(self, n: int) -> Learner:
        learner = self.fresh()
        for entry in self.log[:n]:
            if entry.kind == "decided":
                learner.observe(entry.x, entry.decision)
            elif entry.kind == "settled":
                learner.update(entry.x, entry.decision, entry.reward, entry.v, entry.label)
            else:
                learner.retract(entry.x, entry.decision, entry.assumed, entry.reward, entry.v)
        return learner

    def decide(self, task: int, n: int, of_this_step: list[LogEntry], x: Features, u: float) -> Decision:
        learner = self.model(n)
        for entry in self.log[n:] + of_this_step:
            if entry.task == task and entry.kind == "decided":
                learner.observe_early(entry.x, entry.decision)
        return learner.predict(x, u)
