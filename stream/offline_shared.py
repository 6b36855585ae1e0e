"""One learner for many partitions, over examples: how a lag in reading a shared model raises its error.

Rounds, deadlines and bits are those of `stream.offline`. Event t is decided by the task of its partition. The model's
log holds round after round: the decision, if decisions move the model, and then what is settled in that round.
All tasks read the log every `lag` rounds, to its end. In between each decides on what it has read and on its own
decisions since, so that a decision lacks what `lag - 1` rounds brought at most, and half of that on average.

    round      0    1    2    3    4    5      lag 3, partitions 0, 1
    decides    a0   b1   a2   b3   b4   a5
    knows      -    -    a0   all of rounds 0 to 2, and of these: b4 knows b3, a5 nothing more

From the middle on the log may be held up for an `outage`: nobody reads it then, and then all read on as before.

With a lag of 1 that is `stream.offline.run`, to the bit. The tasks are those of the programs (`stream.shared`); their
steps are not compiled, and a decision takes some 20 µs.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner
from stream.offline import EXPIRED, FOR_EVER, LATE, Examples, Patience, Run, check_run, schedule_of
from stream.shared.replica import take_in
from stream.shared.view import Overlay
from stream.wire.events import Decision, FloatArray
from stream.wire.updates import CORRECTED, DECIDED, NO_BIT, NO_LABEL, SETTLED, Entry, columns_of


def run_shared(
    learner: KernelLearner,
    examples: Examples,
    u: FloatArray,
    v: FloatArray | None = None,
    delays: NDArray[np.int64] | None = None,
    patience: Patience = FOR_EVER,
    *,
    partitions: NDArray[np.int64],
    lag: int,
    outage: int = 0,
) -> Run:
    """Run tasks that share a learner over the examples; it holds all of the log afterwards.

    Args:
        learner: in any state.
        examples: the events, and as `stream.offline.run` takes them:
        u: for actions.
        v: for updates.
        delays: of the bits.
        patience: of the decisions.
        partitions: int64[n], that of each event.
        lag: the rounds from one reading of the log to the next.
        outage: the rounds from the middle on in which it cannot be read.

    Raises:
        ValueError: the arrays do not fit each other, or lag or outage are none.
        PolicyError: the learner cannot follow the policies for expired decisions and late bits.
    """
    size = examples.labels.size
    v = np.zeros(size) if v is None else v
    delays = np.zeros(size, dtype=np.int64) if delays is None else delays
    check_run(learner, examples, u, v, delays, patience)
    if partitions.shape != (size,):
        raise ValueError(f"offline run: partitions should have {size} entries; got shape {partitions.shape}")
    if lag < 1:
        raise ValueError(f"offline run: a lag is a number of rounds from 1 on; got {lag}")
    if outage < 0:
        raise ValueError(f"offline run: an outage is a number of rounds from 0 on; got {outage}")
    schedule = schedule_of(delays, patience)
    decided = _Decided(learner, examples, u, v)
    applied = updates = 0
    for start, stop in pairwise(_readings(size, lag, outage)):
        for partition in np.unique(partitions[start:stop]):
            decided.make((start + np.flatnonzero(partitions[start:stop] == partition)).tolist())
        # Up to the reading, or, with the last events, to the end of what is due.
        until = schedule.rounds.size if stop == size else int(np.searchsorted(schedule.rounds, stop))
        log: list[Entry] = []
        for t in range(start, stop):
            if learner.observed:
                log.append(decided.entry(t))
            while applied < until and (schedule.rounds[applied] <= t or t == size - 1):
                log.append(decided.settled(int(schedule.events[applied]), int(schedule.kinds[applied])))
                applied += 1
        if log:
            updates += take_in(learner, columns_of(log))
    figures = decided.actions, decided.greedy, decided.propensities
    return Run(*figures, updates, schedule.matched, schedule.expired, schedule.late)


def _readings(size: int, lag: int, outage: int) -> list[int]:
    """The rounds before which the log is read, and the end."""
    middle = size // 2
    return [*(t for t in range(0, size, lag) if not middle < t < middle + outage), size]


class _Decided:
    """The decisions, and what the log says of them."""

    def __init__(self, learner: KernelLearner, examples: Examples, u: FloatArray, v: FloatArray) -> None:
        size = examples.labels.size
        self.actions, self.greedy = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        self.propensities = np.empty(size)
        self._learner, self._examples, self._u, self._v = learner, examples, u, v
        self._waiting: dict[int, Decision] = {}

    def make(self, events: list[int]) -> None:
        """Decide these events of one task, each with those before it on top of the model."""
        overlay = Overlay(self._learner)
        for t in events:
            x = self._examples.features(t)
            decision = self._waiting[t] = self._learner.predict(x, float(self._u[t]))
            self.actions[t], self.greedy[t], self.propensities[t] = decision[:3]
            if t != events[-1]:
                overlay.observe(x, decision)
        overlay.take_off()

    def entry(self, t: int) -> Entry:
        """That the decision was made."""
        return Entry(DECIDED, self._examples.features(t), self._waiting[t])

    def settled(self, t: int, kind: int) -> Entry:
        """What became of it."""
        decision = self._waiting[t] if kind == EXPIRED else self._waiting.pop(t)
        x, label = self._examples.features(t), int(self._examples.labels[t])
        bit = int(kind != EXPIRED and decision.action == label)
        told = label if self._learner.needs_label else NO_LABEL
        if kind == LATE:
            return Entry(CORRECTED, x, decision, bit, 0, float(self._v[t]))
        return Entry(SETTLED, x, decision, bit, NO_BIT, float(self._v[t]), told)
