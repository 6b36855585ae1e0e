"""One model over many partitions, said as plainly as possible: every model is made anew from a list.

    log        the entries of all tasks, in the order in which their steps were published
    model(n)   a fresh learner that has seen log[:n]
    a task     decides on model(n) plus the early observes of its own decisions that are not in log[:n]

No model is kept, nothing is undone, nothing is applied in portions.
"""

from collections.abc import Callable
from typing import NamedTuple

from stream.learners import Learner
from stream.wire.records import Decision, Features


class Told(NamedTuple):
    """An entry of the log."""

    task: int
    kind: str  # decided, settled, corrected
    x: Features
    decision: Decision
    reward: int = -1
    assumed: int = -1
    v: float = 0.0
    label: int | None = None


class SharedModel:
    """The log, and what each task makes of it."""

    def __init__(self, fresh: Callable[[], Learner]) -> None:
        self.fresh = fresh
        self.log: list[Told] = []

    def model(self, n: int) -> Learner:
        learner = self.fresh()
        for told in self.log[:n]:
            if told.kind == "decided":
                learner.observe(told.x, told.decision)
            elif told.kind == "settled":
                learner.update(told.x, told.decision, told.reward, told.v, told.label)
            else:
                learner.retract(told.x, told.decision, told.assumed, told.reward, told.v)
        return learner

    def decide(self, task: int, n: int, of_this_step: list[Told], x: Features, u: float) -> Decision:
        learner = self.model(n)
        for told in self.log[n:] + of_this_step:
            if told.task == task and told.kind == "decided":
                learner.observe_early(told.x, told.decision)
        return learner.predict(x, u)
