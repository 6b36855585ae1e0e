"""The learners in one compiled loop: millions of events a second, for sweeps and the papers' figures.

The loop calls the very kernels that `predict`, `observe` and `update` call, so it gives the same bits on the same
draws. Feedback is late by whole rounds. Round t is: decide event t (predict, observe), then settle the decisions whose
deadline passed with round t - 1, in the order of the events, then apply the feedback that is due at t, in the order of
due round, then of event. With delay 0 that is decide, update, decide, update; what is due after the last event is
applied at the end, in the same order.

    round     0    1    2    3        delays 2, 0, 1, 0
    decides   e0   e1   e2   e3
    applies        e1   e0   e3
                        e2            (test_feedback_is_applied_in_the_order_of_due_round_then_of_event)

That is the order of the pipeline in which a round takes a millisecond, and which reads its feedback to the end in each.
What the pipeline bounds by number (pending, orphans, settled ids) is not bounded here.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner, Learner
from stream.learners.loops import compile_loop
from stream.task.settings import LatePolicy, OnExpiry, TaskSettings
from stream.wire.events import Decision, Features, FloatArray, IndexArray

NEVER = -1
"""A delay: this event's feedback is lost."""

MATCHED, EXPIRED, LATE = 0, 1, 2
"""What happens to a decision: its bit comes in time, its deadline passes, its bit corrects what was assumed then."""


class Examples(NamedTuple):
    """Labelled events in rows, compressed: event t has the entries from offsets[t] to offsets[t + 1]."""

    offsets: NDArray[np.int64]  # int64[n + 1], from 0, not decreasing
    indices: IndexArray  # int32[offsets[-1]], strictly increasing within an event
    values: FloatArray  # float64[offsets[-1]]
    labels: NDArray[np.int64]  # int64[n], in 0..K-1

    def features(self, t: int) -> Features:
        """The x of event t."""
        start, stop = self.offsets[t], self.offsets[t + 1]
        return Features(self.indices[start:stop], self.values[start:stop])


class Patience(NamedTuple):
    """How long a decision waits for its bit, and what becomes of it then; see `stream.task.join`."""

    window: int | None = None  # in rounds; a bit that is late by just so many is in time. None: for ever
    on_expiry: OnExpiry = "drop"  # what an expired decision teaches: nothing, or that it was wrong
    late: LatePolicy = "ignore"  # what a late bit does to what was assumed


FOR_EVER = Patience()


class Run(NamedTuple):
    """What the learner did, by event."""

    actions: NDArray[np.int64]  # int64[n]
    greedy: NDArray[np.int64]  # int64[n]
    propensities: FloatArray  # float64[n]
    updates: int  # feedbacks that changed the model
    matched: int  # decisions whose bit came in time
    expired: int  # decisions whose deadline passed
    late: int  # bits that came after it


class Schedule(NamedTuple):
    """What is applied to the model, in its order, and what becomes of the decisions."""

    rounds: NDArray[np.int64]  # int64[m], not decreasing
    events: NDArray[np.int64]  # int64[m]
    kinds: NDArray[np.int8]  # int8[m]: MATCHED, EXPIRED or LATE
    matched: int  # as a Run has them
    expired: int
    late: int


def run(
    learner: Learner,
    examples: Examples,
    u: FloatArray,
    v: FloatArray | None = None,
    delays: NDArray[np.int64] | None = None,
    patience: Patience = FOR_EVER,
) -> Run:
    """Run a learner over the examples; it holds the final state afterwards.

    Args:
        learner: Any learner, in any state. One without kernels runs in a Python loop, to the same result.
        examples: The events and their labels.
        u: One uniform per event for the action, in [0, 1).
        v: One uniform per event for learners that randomise their update; zeros when left out.
        delays: The rounds by which each feedback is late, or NEVER; no delay when left out.
        patience: How long decisions wait. Corrections of what was assumed leave the compiled loop: some 10 µs each.

    Raises:
        ValueError: the arrays do not fit each other, or a draw or a label is out of range.
        PolicyError: the learner cannot follow the policies for expired decisions and late bits.
    """
    size = examples.labels.size
    v = np.zeros(size) if v is None else v
    delays = np.zeros(size, dtype=np.int64) if delays is None else delays
    check_run(learner, examples, u, v, delays, patience)
    schedule = schedule_of(delays, patience)
    actions, greedy = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    propensities = np.empty(size)
    # An event's scores are kept until they are used last: events share a row when they are further apart than that.
    waits_max = int((schedule.rounds - schedule.events).max(initial=0))
    K = learner.n_classes
    logged_size = learner.logged_size if isinstance(learner, KernelLearner) else 0
    scores = np.empty((max(1, min(size, waits_max + 1)), K + logged_size))
    loop = _loop_in_python
    if isinstance(learner, KernelLearner):
        loop = compile_loop(learner, _loop, {"LATE": LATE, "MATCHED": MATCHED})
    model = learner.model if isinstance(learner, KernelLearner) else (learner, {})
    decided = applied = updates = 0
    while True:
        decided, applied, changed = loop(
            decided,
            applied,
            *examples,
            u,
            v,
            schedule.rounds,
            schedule.events,
            schedule.kinds,
            learner.needs_label,
            actions,
            greedy,
            propensities,
            scores,
            model,
        )
        updates += changed
        if applied == schedule.events.size:
            break
        s = int(schedule.events[applied])
        row = scores[s % scores.shape[0]].copy()
        decision = Decision(int(actions[s]), int(greedy[s]), float(propensities[s]), row[:K], row[K:])
        real = int(actions[s] == examples.labels[s])
        updates += learner.retract(examples.features(s), decision, 0, real, float(v[s]))
        applied += 1
    return Run(actions, greedy, propensities, updates, schedule.matched, schedule.expired, schedule.late)


def schedule_of(delays: NDArray[np.int64], patience: Patience) -> Schedule:
    """What is applied when: in a round deadlines first, then feedback, each in the order of the events."""
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
    """See that a run can be made; see `run` for what is raised."""
    size = examples.labels.size
    for name, array, length in (
        ("u", u, size),
        ("v", v, size),
        ("delays", delays, size),
        ("offsets", examples.offsets, size + 1),
        ("values", examples.values, examples.indices.size),
    ):
        if array.shape != (length,):
            raise ValueError(f"offline run: {name} should have {length} entries; got shape {array.shape}")
    for name, uniforms in (("u", u), ("v", v)):
        if not np.all((uniforms >= 0.0) & (uniforms < 1.0)):
            raise ValueError(f"offline run: {name} should be in [0, 1)")
    offsets = examples.offsets
    if offsets[0] != 0 or offsets[-1] != examples.indices.size or np.any(np.diff(offsets) < 0):
        raise ValueError(f"offline run: offsets should rise from 0 to the {examples.indices.size} indices")
    if not np.all((examples.labels >= 0) & (examples.labels < learner.n_classes)):
        raise ValueError(f"offline run: labels should be in 0..{learner.n_classes - 1}")
    if np.any(delays < NEVER):
        raise ValueError(f"offline run: a delay is a number of rounds, or {NEVER} for never; got {delays.min()}")
    if patience.window is not None and patience.window < 0:
        raise ValueError(f"offline run: a window is a number of rounds, or None; got {patience.window}")
    if patience.window is None and patience.on_expiry != "drop":
        raise ValueError(f"offline run: without a window nothing expires; got on_expiry {patience.on_expiry!r}")
    policies = TaskSettings(
        learner.name, learner.n_classes, learner.n_features, on_expiry=patience.on_expiry, late=patience.late
    )
    policies.check_policies(learner)


def _loop(
    decided: int,
    applied: int,
    offsets: NDArray[np.int64],
    indices: IndexArray,
    values: FloatArray,
    labels: NDArray[np.int64],
    u: FloatArray,
    v: FloatArray,
    rounds: NDArray[np.int64],
    events: NDArray[np.int64],
    kinds: NDArray[np.int8],
    needs_label: bool,
    actions: NDArray[np.int64],
    greedy: NDArray[np.int64],
    propensities: FloatArray,
    scores: FloatArray,
    model: tuple[Any, ...],
) -> tuple[int, int, int]:
    """Apply what is due, then decide the next event; the learner's kernels are globals, see `compile_loop`.

    Returns how many are decided and applied, and how many updates changed the model: at the end, or before a late bit,
    which is for the caller to apply.
    """
    size, rows = labels.size, scores.shape[0]
    updates = 0
    while True:
        while applied < events.size and (decided == size or rounds[applied] < decided):
            s = events[applied]
            if kinds[applied] == LATE:
                return decided, applied, updates
            start, stop = offsets[s], offsets[s + 1]
            changed = update(  # type: ignore[name-defined] # noqa: F821
                indices[start:stop],
                values[start:stop],
                actions[s],
                greedy[s],
                propensities[s],
                scores[s % rows],
                1 if kinds[applied] == MATCHED and actions[s] == labels[s] else 0,
                v[s],
                labels[s] if needs_label else -1,
                *model,
            )
            updates += 1 if changed else 0
            applied += 1
        if decided == size:
            return decided, applied, updates
        t = decided
        start, stop = offsets[t], offsets[t + 1]
        actions[t], greedy[t], propensities[t] = predict(  # type: ignore[name-defined] # noqa: F821
            indices[start:stop], values[start:stop], u[t], scores[t % rows], *model
        )
        observe(  # type: ignore[name-defined] # noqa: F821
            indices[start:stop],
            values[start:stop],
            actions[t],
            greedy[t],
            propensities[t],
            scores[t % rows],
            *model,
        )
        decided += 1


def _loop_in_python(
    decided: int,
    applied: int,
    offsets: NDArray[np.int64],
    indices: IndexArray,
    values: FloatArray,
    labels: NDArray[np.int64],
    u: FloatArray,
    v: FloatArray,
    rounds: NDArray[np.int64],
    events: NDArray[np.int64],
    kinds: NDArray[np.int8],
    needs_label: bool,
    actions: NDArray[np.int64],
    greedy: NDArray[np.int64],
    propensities: FloatArray,
    scores: FloatArray,
    model: tuple[Learner, dict[int, Decision]],
) -> tuple[int, int, int]:
    """The same for a learner without kernels; its decisions are kept beside it."""
    learner, decisions = model
    examples = Examples(offsets, indices, values, labels)
    updates = 0
    while True:
        while applied < events.size and (decided == labels.size or rounds[applied] < decided):
            s = int(events[applied])
            if kinds[applied] == LATE:
                return decided, applied, updates
            label = int(labels[s])
            reward = int(kinds[applied] == MATCHED and actions[s] == label)
            updates += learner.update(
                examples.features(s), decisions[s], reward, float(v[s]), label if needs_label else None
            )
            applied += 1
        if decided == labels.size:
            return decided, applied, updates
        decisions[decided] = learner.predict(examples.features(decided), float(u[decided]))
        learner.observe(examples.features(decided), decisions[decided])
        actions[decided], greedy[decided], propensities[decided] = decisions[decided][:3]
        scores[decided % scores.shape[0]] = np.concatenate((decisions[decided].scores, decisions[decided].logged))
        decided += 1
