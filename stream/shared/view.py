"""A shared model as one task sees it: a replica, and on top of it what the task itself has decided since.

A task decides on the model at version n, *plus the observes of its own decisions that are not among those n entries*,
in their order. Without these a learner that relies on `observe` plays the same class again and again until its
decisions have come back by the log. What the decisions of other tasks would change comes by the log alone.

So a decision is a function of the log, of n and of what the task decided before, and can be made again.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner
from stream.shared.replica import Replica
from stream.wire.codec import MalformedError
from stream.wire.events import Decision, Drift, Features
from stream.wire.updates import CORRECTED, DECIDED, NO_BIT, NO_LABEL, RECORD_BYTES_MAX, SETTLED, Entry, entry_bytes


class Overlay:
    """Observes on top of a model, to be taken off again to the bit.

    What an observe changes is copied before it does so for the first time, as the learner says in `observed_parts`: of
    a part of the state that has classes, the action's; of one that has features, those of x; or all of it.
    """

    def __init__(self, learner: KernelLearner) -> None:
        self._learner = learner
        self._was: list[tuple[NDArray[Any], Any, NDArray[Any]]] = []  # an array, an index into it, what stood there
        self._kept: set[tuple[str, Any]] = set()  # the parts that are kept: of an action, or the whole

    def observe(self, x: Features, decision: Decision) -> None:
        """Take note of a decision."""
        for name, index in self._learner.observed_parts(x, decision):
            array = self._learner.arrays[name]
            if isinstance(index, np.ndarray):
                self._keep(array, index)
            elif (name, index) not in self._kept:
                self._kept.add((name, index))
                self._keep(array, index)
        self._learner.observe(x, decision)

    def take_off(self) -> None:
        """Leave the model as it was before the first observe."""
        for array, index, was in reversed(self._was):
            array[index] = was
        self._was.clear()
        self._kept.clear()

    def _keep(self, array: NDArray[Any], index: Any) -> None:
        self._was.append((array, index, array[index].copy()))


def room_error(learner: KernelLearner, x: Features) -> MalformedError | None:
    """What is wrong with a context where what becomes of it does not fit a record of the log; None: it does."""
    width = learner.n_classes + learner.logged_size
    if (needed := entry_bytes(x.indices.size, width)) > RECORD_BYTES_MAX:
        return MalformedError(
            f"x: with a shared model an entry of its log has at most {RECORD_BYTES_MAX} bytes; got {needed}, for "
            f"{x.indices.size} features and {width} numbers of a decision"
        )
    return None


class View:
    """The Model of a task that shares one: the replica, and what the task has for its log."""

    def __init__(self, replica: Replica, partition: int) -> None:
        """See nothing but the log: all that the task has decided must be in it, and be read."""
        self._replica = replica
        self._partition = partition
        self._own: deque[tuple[Features, Decision]] = deque()  # decisions from number `_first` on
        self._first = replica.place_of(partition).decided
        self.version = replica.version  # at the last step
        self._overlay = Overlay(replica.learner)
        self._entries: list[Entry] = []  # of the step that is being made

    @property
    def learner(self) -> KernelLearner:
        """The model, within `step` with the task's own decisions on top of it."""
        return self._replica.learner

    @contextmanager
    def step(self) -> Iterator[list[Entry]]:
        """Decide within this; what the step has for the log is in the list afterwards.

        The replica can read on only after it. A step that is not committed leaves a view that is of no use.
        """
        self._forget_those_in_the_log()
        self._entries = []
        self.version = self._replica.version
        self._replica.is_overlaid = True
        decided = len(self._own)
        try:
            for x, decision in self._own:
                self._overlay.observe(x, decision)
            yield self._entries
        except BaseException:
            while len(self._own) > decided:
                self._own.pop()
            raise
        finally:
            self._overlay.take_off()
            self._replica.is_overlaid = False

    def refusal(self, x: Features) -> MalformedError | None:
        """See Model: what becomes of a context must fit a record of the log."""
        return room_error(self.learner, x)

    def decide(self, event_id: str, x: Features, u: float) -> Decision:
        """See Model."""
        return self.learner.predict(x, u)

    def observe(self, x: Features, decision: Decision) -> None:
        """Take note of a decision of the step, here at once, and for all by the log."""
        if self._replica.learner.observed:
            self._overlay.observe(x, decision)
            self._own.append((x, decision))
            self._entries.append(Entry(DECIDED, x, decision))

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> Drift | None:
        """Have the log teach what became of a decision."""
        known = NO_LABEL if label is None else label
        self._entries.append(Entry(SETTLED, x, decision, reward, NO_BIT, v, known))
        return None  # the log tells whether it set off a detector

    def correct(self, x: Features, decision: Decision, assumed: int, reward: int, v: float) -> None:
        """Have the log replace an assumed bit by the real one."""
        self._entries.append(Entry(CORRECTED, x, decision, reward, assumed, v))

    @property
    def ahead(self) -> int:
        """How many decisions of the task the model has not observed yet."""
        self._forget_those_in_the_log()
        return len(self._own)

    @property
    def offset(self) -> int:
        """Up to here the log is read."""
        return self._replica.offset

    def _forget_those_in_the_log(self) -> None:
        """Let go of the decisions that the model has observed.

        It may have observed more than were made here: another process has gone on with the task, which this one does
        not know yet. The commit of its step will be refused.
        """
        decided = self._replica.place_of(self._partition).decided
        for _ in range(min(decided - self._first, len(self._own))):
            self._own.popleft()
        self._first = max(self._first, decided)


class Recall:
    """The Model of a task on a shared one whose steps are applied again: its decisions are those that were published.

    So a task is recovered without the model that it decided on, and what it had for the log is there already.
    """

    def __init__(self, learner: KernelLearner) -> None:
        """Recall nothing yet; of the learner only its kind matters."""
        self.learner = learner
        self.version = 0
        self._decisions: deque[tuple[str, Decision]] = deque()

    def expect(self, version: int, decisions: Iterable[tuple[str, Decision]]) -> None:
        """Have the decisions of the next step, which was made on this version of the model, with their event ids.

        An id may be among them twice: when it was forgotten in between.
        """
        self.version = version
        self._decisions = deque(decisions)

    @contextmanager
    def step(self) -> Iterator[list[Entry]]:
        """Apply a step again within this.

        Raises:
            RecallError: it has not decided all that is expected.
        """
        yield []
        if self._decisions:
            raise RecallError(f"{self._decisions[0][0]!r} was decided, and is not any more")

    def refusal(self, x: Features) -> MalformedError | None:
        """See Model."""
        return room_error(self.learner, x)

    def decide(self, event_id: str, x: Features, u: float) -> Decision:
        """The decision that was published for an event; u is not used.

        Raises:
            RecallError: there was none.
        """
        if not self._decisions or self._decisions[0][0] != event_id:
            raise RecallError(f"{event_id!r} is decided, and was not")
        return self._decisions.popleft()[1]

    def observe(self, x: Features, decision: Decision) -> None:
        """The log has it."""

    def settle(self, x: Features, decision: Decision, reward: int, v: float, label: int | None) -> Drift | None:
        """The log has it."""

    def correct(self, x: Features, decision: Decision, assumed: int, reward: int, v: float) -> None:
        """The log has it."""


class RecallError(Exception):
    """A step that is applied again does not decide what it decided."""
