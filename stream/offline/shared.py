"""Offline runs of a shared model: one learner for several partitions, with a replication lag.

Rounds, deadlines and feedback are as in `stream.offline`. Each event is decided by its partition's task. For each
round, the model's log contains the decision (if decisions change the model), and then the updates. All tasks read to
the end of the log every `lag` rounds. Between two reads, a task's decisions use the model from the last read and the
decisions that the task itself has made since then. A decision therefore lacks the updates from at most `lag - 1`
rounds, and from half as many rounds on average.

    round      0    1    2    3    4    5      lag 3, partitions 0, 1
    decides    a0   b1   a2   b3   b4   a5
    uses       -    -    a0   rounds 0 to 2; b4 also uses b3

During an outage, no task reads the log. The outage starts in the middle of the run and lasts `outage` rounds.

With a lag of 1, the result is bit-for-bit identical to that of `stream.offline.run`. The tasks use the same code as the
programs (`stream.shared`). This code is not compiled, so a decision takes about 20 µs.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner
from stream.offline.loop import EXPIRED, FOR_EVER, LATE, Examples, Patience, Run, check_run, reward_of, schedule_of
from stream.shared.replica import apply_entries
from stream.shared.view import Overlay
from stream.wire.records import Decision, FloatArray
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
    """Run a shared learner's tasks over examples, and update the learner in place.

    Args:
        learner: Any learner, in any state.
        examples: Events and labels.
        u: See `stream.offline.run`.
        v: See `stream.offline.run`.
        delays: See `stream.offline.run`.
        patience: See `stream.offline.run`.
        partitions: int64[n], the partition of each event.
        lag: Number of rounds between reads of the log.
        outage: Number of rounds, starting in the middle of the run, during which the log cannot be read.

    Raises:
        ValueError: array sizes do not match, or lag or outage is out of range.
        PolicyError: the learner does not support the policies for expired decisions and late feedback.
    """
    size = examples.labels.size
    v = np.zeros(size) if v is None else v
    delays = np.zeros(size, dtype=np.int64) if delays is None else delays
    check_run(learner, examples, u, v, delays, patience)
    if partitions.shape != (size,):
        raise ValueError(f"offline run: expected {size} entries in partitions; got shape {partitions.shape}")
    if lag < 1:
        raise ValueError(f"offline run: expected a lag of at least 1 round; got {lag}")
    if outage < 0:
        raise ValueError(f"offline run: expected an outage of at least 0 rounds; got {outage}")
    schedule = schedule_of(delays, patience)
    decided = _Decided(learner, examples, u, v)
    applied = updates = 0
    for start, stop in pairwise(_readings(size, lag, outage)):
        for partition in np.unique(partitions[start:stop]):
            decided.make((start + np.flatnonzero(partitions[start:stop] == partition)).tolist())
        # Apply updates up to the next read or, after the last events, to the end of the schedule.
        until = schedule.rounds.size if stop == size else int(np.searchsorted(schedule.rounds, stop))
        log: list[Entry] = []
        for t in range(start, stop):
            if learner.observed:
                log.append(decided.entry(t))
            while applied < until and (schedule.rounds[applied] <= t or t == size - 1):
                log.append(decided.settled(int(schedule.events[applied]), int(schedule.kinds[applied])))
                applied += 1
        if log:
            updates += apply_entries(learner, columns_of(log))
    figures = decided.actions, decided.greedy, decided.propensities
    return Run(*figures, updates, schedule.matched, schedule.expired, schedule.late)


def _readings(size: int, lag: int, outage: int) -> list[int]:
    """Return the rounds that start with a read of the log, followed by the total number of rounds."""
    middle = size // 2
    return [*(t for t in range(0, size, lag) if not middle < t < middle + outage), size]


class _Decided:
    """A run's decisions and their log entries."""

    def __init__(self, learner: KernelLearner, examples: Examples, u: FloatArray, v: FloatArray) -> None:
        size = examples.labels.size
        self.actions, self.greedy = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        self.propensities = np.empty(size)
        self._learner, self._examples, self._u, self._v = learner, examples, u, v
        self._waiting: dict[int, Decision] = {}

    def make(self, events: list[int]) -> None:
        """Make one task's decisions for these events. Each decision uses the model and the task's earlier decisions."""
        overlay = Overlay(self._learner)
        for t in events:
            x = self._examples.features(t)
            decision = self._waiting[t] = self._learner.predict(x, float(self._u[t]))
            self.actions[t], self.greedy[t], self.propensities[t] = decision[:3]
            if t != events[-1]:
                overlay.observe(x, decision)
        overlay.restore()

    def entry(self, t: int) -> Entry:
        """Return the log entry for the decision about event t."""
        return Entry(DECIDED, self._examples.features(t), self._waiting[t])

    def settled(self, t: int, kind: int) -> Entry:
        """Return the log entry for an outcome of event t."""
        decision = self._waiting[t] if kind == EXPIRED else self._waiting.pop(t)
        x, label = self._examples.features(t), int(self._examples.labels[t])
        bit = 0 if kind == EXPIRED else reward_of(self._examples, t, decision.action)
        reported = label if self._learner.needs_label else NO_LABEL
        if kind == LATE:
            return Entry(CORRECTED, x, decision, bit, 0, float(self._v[t]))
        return Entry(SETTLED, x, decision, bit, NO_BIT, float(self._v[t]), reported)
