"""Runs learners in a compiled loop at millions of events per second, for sweeps and for reproducing published figures.

The loop calls the same kernels as `predict`, `observe` and `update`. Given the same draws, the results are therefore
bit-for-bit identical. Delays are whole numbers of rounds. Event t is decided in round t (predict, observe). Next,
decisions with a deadline in round t - 1 are settled, in event order. Finally, feedback that is due at t is applied,
ordered by due round, then by event. With a delay of 0, decisions and updates alternate. Feedback that is due after the
last event is applied at the end, in the same order.

    round     0    1    2    3        delays 2, 0, 1, 0
    decides   e0   e1   e2   e3
    applies        e1   e0   e3
                        e2            (test_feedback_is_applied_in_the_order_of_its_due_round_and_event)

A pipeline applies events in the same order if each round lasts one millisecond and the pipeline reads all feedback in
each round. The pipeline's limits on pending decisions, orphans and settled ids do not apply to these runs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner, Learner, all_classes
from stream.learners.entries import compile_with
from stream.settings.task_fields import LatePolicy, OnExpiry
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features, FloatArray, IndexArray

NEVER = -1
"""The delay for an event whose feedback is lost."""

MATCHED, EXPIRED, LATE = 0, 1, 2
"""Possible outcomes: feedback in time, no feedback in time, and late feedback that corrects the assumed reward."""


NO_REWARDS: NDArray[np.int64] = np.zeros((0, 0), np.int64)


class Examples(NamedTuple):
    """Events as compressed sparse rows, with labels or rewards. Event t's entries are offsets[t]:offsets[t + 1]."""

    offsets: NDArray[np.int64]  # int64[n + 1], starts at 0, non-decreasing
    indices: IndexArray  # int32[offsets[-1]], strictly increasing within an event
    values: FloatArray  # float64[offsets[-1]]
    labels: NDArray[np.int64]  # int64[n], in 0..K-1; not used with rewards
    rewards: NDArray[np.int64] = NO_REWARDS  # int64[n, K], the bit of each class; empty with labels

    def features(self, t: int) -> Features:
        """Return the features x of event t."""
        start, stop = self.offsets[t], self.offsets[t + 1]
        return Features(self.indices[start:stop], self.values[start:stop])


class Patience(NamedTuple):
    """A decision's window, and the policies for expired decisions and late feedback; see `stream.task.join`."""

    window: int | None = None  # length in rounds, inclusive; None if unlimited
    on_expiry: OnExpiry = "drop"  # see Settings.on_expiry
    late: LatePolicy = "ignore"  # see Settings.late


FOR_EVER = Patience()


class Run(NamedTuple):
    """The result of a run. Arrays have one entry per event."""

    actions: NDArray[np.int64]  # int64[n]
    greedy: NDArray[np.int64]  # int64[n]
    propensities: FloatArray  # float64[n]
    updates: int  # number of updates that changed the model
    matched: int  # number of decisions with feedback in time
    expired: int  # number of decisions past their deadline
    late: int  # number of feedback records after the deadline


class Schedule(NamedTuple):
    """The updates, in the order in which they are applied, and the number of decisions with each outcome."""

    rounds: NDArray[np.int64]  # int64[m], non-decreasing
    events: NDArray[np.int64]  # int64[m]
    kinds: NDArray[np.int8]  # int8[m]: MATCHED, EXPIRED or LATE
    matched: int  # this count and the next two are as in `Run`
    expired: int
    late: int


class Task(NamedTuple):
    """The input of a loop."""

    examples: Examples
    u: FloatArray  # float64[n]
    v: FloatArray  # float64[n]
    schedule: Schedule
    needs_label: bool
    classes: IndexArray  # int32[K], all classes


class Decisions(NamedTuple):
    """The decisions that a loop makes."""

    actions: NDArray[np.int64]  # int64[n]
    greedy: NDArray[np.int64]  # int64[n]
    propensities: FloatArray  # float64[n]
    scores: FloatArray  # float64[rows, K + L], with the scores and logged values of event t in row t % rows


def run(
    learner: Learner,
    examples: Examples,
    u: FloatArray,
    v: FloatArray | None = None,
    delays: NDArray[np.int64] | None = None,
    patience: Patience = FOR_EVER,
) -> Run:
    """Run a learner over examples, and update the learner in place.

    Args:
        learner: Any learner, in any state. A learner without kernels runs in a slower Python loop.
        examples: Events and labels.
        u: One uniform draw per event for the action, in [0, 1).
        v: One uniform draw per event for learners with random updates; zeros by default.
        delays: Delay of each event's feedback in rounds, or NEVER; 0 by default.
        patience: Window and policies. A correction runs outside the compiled loop and takes about 10 µs.

    Raises:
        ValueError: array sizes do not match, or a draw or a label is out of range.
        PolicyError: the learner does not support the policies for expired decisions and late feedback.
    """
    size = examples.labels.size
    v = np.zeros(size) if v is None else v
    delays = np.zeros(size, dtype=np.int64) if delays is None else delays
    check_run(learner, examples, u, v, delays, patience)
    schedule = schedule_of(delays, patience)
    # An event's scores are kept until its last update. Their row in the array is then reused for a later event.
    waits_max = int((schedule.rounds - schedule.events).max(initial=0))
    K = learner.n_classes
    logged_size = learner.logged_size if isinstance(learner, KernelLearner) else 0
    made = Decisions(
        actions=np.empty(size, dtype=np.int64),
        greedy=np.empty(size, dtype=np.int64),
        propensities=np.empty(size),
        scores=np.empty((max(1, min(size, waits_max + 1)), K + logged_size)),
    )
    task = Task(examples, u, v, schedule, learner.needs_label, all_classes(K))
    loop: Callable[..., tuple[int, int, int]] = _loop_in_python
    model: Any = (learner, {})
    if isinstance(learner, KernelLearner):
        loop, model = compile_with(learner.entries, _loop), learner.handle
    decided = applied = updates = 0
    while True:
        decided, applied, changed = loop(decided, applied, task, made, model)
        updates += changed
        if applied == schedule.events.size:
            break
        s = int(schedule.events[applied])
        row = made.scores[s % made.scores.shape[0]].copy()
        decision = Decision(int(made.actions[s]), int(made.greedy[s]), float(made.propensities[s]), row[:K], row[K:])
        real = reward_of(examples, s, int(made.actions[s]))
        updates += learner.retract(examples.features(s), decision, 0, real, float(v[s]))
        applied += 1
    actions, greedy, propensities, _ = made
    return Run(actions, greedy, propensities, updates, schedule.matched, schedule.expired, schedule.late)


def reward_of(examples: Examples, t: int, action: int) -> int:
    """Return the bit of an event's class."""
    return int(examples.rewards[t, action]) if examples.rewards.size else int(action == examples.labels[t])


def schedule_of(delays: NDArray[np.int64], patience: Patience) -> Schedule:
    """Return the schedule of updates. In each round, deadlines come before feedback, and both are in event order."""
    is_expired = (delays == NEVER) | (delays > (NEVER if patience.window is None else patience.window))
    if patience.window is None:
        is_expired[:] = False
    is_late = is_expired & (delays != NEVER)
    corrects = patience.late == "correct"
    applied = (delays != NEVER) & (~is_late | corrects)
    fed = np.flatnonzero(applied)
    settled = np.flatnonzero(is_expired & (patience.on_expiry == "negative"))
    events = np.concatenate((settled, fed))
    deadline_passed = settled + 1 + (patience.window or 0)
    rounds = np.concatenate((deadline_passed, fed + delays[fed]))
    kinds = np.concatenate((np.full(settled.size, EXPIRED), np.where(is_late[fed], LATE, MATCHED))).astype(np.int8)
    order = np.argsort(rounds, kind="stable")
    expired, late = int(np.count_nonzero(is_expired)), int(np.count_nonzero(is_late))
    matched = int(np.count_nonzero(delays != NEVER)) - late
    return Schedule(rounds[order], events[order], kinds[order], matched, expired, late)


def check_run(
    learner: Learner, examples: Examples, u: FloatArray, v: FloatArray, delays: NDArray[np.int64], patience: Patience
) -> None:
    """Check the arguments of `run` and raise the errors that `run` documents."""
    size = examples.labels.size
    for name, array, length in (
        ("u", u, size),
        ("v", v, size),
        ("delays", delays, size),
        ("offsets", examples.offsets, size + 1),
        ("values", examples.values, examples.indices.size),
    ):
        if array.shape != (length,):
            raise ValueError(f"offline run: expected {length} entries in {name}; got shape {array.shape}")
    for name, uniforms in (("u", u), ("v", v)):
        if not np.all((uniforms >= 0.0) & (uniforms < 1.0)):
            raise ValueError(f"offline run: expected {name} in [0, 1)")
    offsets = examples.offsets
    if offsets[0] != 0 or offsets[-1] != examples.indices.size or np.any(np.diff(offsets) < 0):
        raise ValueError(f"offline run: expected increasing offsets from 0 to {examples.indices.size}")
    if examples.rewards.size:
        if examples.rewards.shape != (size, learner.n_classes):
            raise ValueError(
                f"offline run: expected rewards of shape {(size, learner.n_classes)}; got {examples.rewards.shape}"
            )
        if learner.needs_label:
            raise ValueError(f"offline run: {learner.name} requires labels; got rewards")
    elif not np.all((examples.labels >= 0) & (examples.labels < learner.n_classes)):
        raise ValueError(f"offline run: expected labels in 0..{learner.n_classes - 1}")
    if np.any(delays < NEVER):
        raise ValueError(f"offline run: expected delays in rounds, or {NEVER} for never; got {delays.min()}")
    if patience.window is not None and patience.window < 0:
        raise ValueError(f"offline run: expected a window in rounds, or None; got {patience.window}")
    if patience.window is None and patience.on_expiry != "drop":
        raise ValueError(f"offline run: on_expiry {patience.on_expiry!r} requires a window")
    policies = TaskSettings(
        learner.name, learner.n_classes, learner.n_features, on_expiry=patience.on_expiry, late=patience.late
    )
    policies.check_policies(learner)


def _loop(decided: int, applied: int, task: Task, made: Decisions, handle: FloatArray) -> tuple[int, int, int]:
    """Apply due updates, then make the next event's decision. The kernels' entry points are globals (`compile_with`).

    Returns three counts: decided events, applied updates, and updates that changed the model. The loop ends after the
    last event, or before a correction for late feedback. The caller applies the correction.
    """
    (offsets, indices, values, labels, bits), u, v = task.examples, task.u, task.v
    rounds, events, kinds = task.schedule.rounds, task.schedule.events, task.schedule.kinds
    actions, greedy, propensities, scores = made
    size, rows = labels.size, scores.shape[0]
    updates = 0
    while True:
        while applied < events.size and (decided == size or rounds[applied] < decided):
            s = events[applied]
            if kinds[applied] == LATE:
                return decided, applied, updates
            x = slice(offsets[s], offsets[s + 1])
            reward = bits[s, actions[s]] if bits.size else 1 if actions[s] == labels[s] else 0
            if kinds[applied] != MATCHED:
                reward = 0
            label = labels[s] if task.needs_label else -1
            changed = update(  # type: ignore[name-defined] # noqa: F821
                indices[x], values[x], actions[s], greedy[s], propensities[s], scores[s % rows], reward, v[s], label,
                handle,
            )  # fmt: skip
            updates += 1 if changed else 0
            applied += 1
        if decided == size:
            return decided, applied, updates
        t = decided
        x, row = slice(offsets[t], offsets[t + 1]), scores[t % rows]
        actions[t], greedy[t], propensities[t] = predict(indices[x], values[x], u[t], row, task.classes, handle)  # type: ignore[name-defined] # noqa: F821
        observe(indices[x], values[x], actions[t], greedy[t], propensities[t], row, handle)  # type: ignore[name-defined] # noqa: F821
        decided += 1


def _loop_in_python(
    decided: int, applied: int, task: Task, made: Decisions, model: tuple[Learner, dict[int, Decision]]
) -> tuple[int, int, int]:
    """Do the same as `_loop`, for a learner without kernels."""
    learner, decisions = model
    examples, (rounds, events, kinds, *_) = task.examples, task.schedule
    labels = examples.labels
    updates = 0
    while True:
        while applied < events.size and (decided == labels.size or rounds[applied] < decided):
            s = int(events[applied])
            if kinds[applied] == LATE:
                return decided, applied, updates
            label = int(labels[s])
            reward = reward_of(examples, s, int(made.actions[s])) if kinds[applied] == MATCHED else 0
            updates += learner.update(
                examples.features(s), decisions[s], reward, float(task.v[s]), label if task.needs_label else None
            )
            applied += 1
        if decided == labels.size:
            return decided, applied, updates
        decision = decisions[decided] = learner.predict(examples.features(decided), float(task.u[decided]))
        learner.observe(examples.features(decided), decision)
        made.actions[decided], made.greedy[decided], made.propensities[decided] = decision[:3]
        made.scores[decided % made.scores.shape[0]] = np.concatenate((decision.scores, decision.logged))
        decided += 1
