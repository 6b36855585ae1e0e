"""The learners in one compiled loop: millions of events a second, for sweeps and the papers' figures.

The loop calls the very kernels that `predict`, `observe` and `update` call, so it gives the same bits on the same
draws. Feedback is late by whole rounds. Round t is: decide event t (predict, observe), then apply the feedback that is
due at t, in the order of due round, then of event. With delay 0 that is decide, update, decide, update; feedback due
after the last event is applied at the end, in the same order.

    round     0    1    2    3        delays 2, 0, 1, 0
    decides   e0   e1   e2   e3
    applies        e1   e0   e3
                        e2            (test_feedback_is_applied_in_the_order_of_due_round_then_of_event)
"""

import hashlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner, Kernels, Learner
from stream.learners.kernels import compiled
from stream.wire.events import Features, FloatArray, IndexArray

NEVER = -1
"""A delay: this event's feedback is lost."""


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


class Run(NamedTuple):
    """What the learner did, by event."""

    actions: NDArray[np.int64]  # int64[n]
    greedy: NDArray[np.int64]  # int64[n]
    propensities: FloatArray  # float64[n]
    updates: int  # feedbacks that changed the model


def run(
    learner: Learner,
    examples: Examples,
    u: FloatArray,
    v: FloatArray | None = None,
    delays: NDArray[np.int64] | None = None,
) -> Run:
    """Run a learner over the examples; it holds the final state afterwards.

    Args:
        learner: Any learner, in any state. One without kernels runs in a Python loop, to the same result.
        examples: The events and their labels.
        u: One uniform per event for the action, in [0, 1).
        v: One uniform per event for learners that randomise their update; zeros when left out.
        delays: The rounds by which each feedback is late, or NEVER; no delay when left out.

    Raises:
        ValueError: the arrays do not fit each other, or a draw or a label is out of range.
    """
    size = examples.labels.size
    v = np.zeros(size) if v is None else v
    delays = np.zeros(size, dtype=np.int64) if delays is None else delays
    _check(learner, examples, u, v, delays)
    due = np.arange(size) + delays
    order = np.argsort(due, kind="stable")  # by due round, then by event
    order = order[delays[order] != NEVER]
    actions, greedy = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    propensities = np.empty(size)
    # An event's scores are kept until its feedback: events share a row when they are further apart than any delay.
    waiting_max = min(size, int(delays.max(initial=0)) + 1)
    logged_size = learner.logged_size if isinstance(learner, KernelLearner) else 0
    scores = np.empty((max(1, waiting_max), learner.n_classes + logged_size))
    loop = _compiled_loop(learner) if isinstance(learner, KernelLearner) else _loop_in_python
    model = learner.model if isinstance(learner, KernelLearner) else (learner,)
    updates = loop(
        examples.offsets,
        examples.indices,
        examples.values,
        examples.labels,
        u,
        v,
        due,
        order,
        learner.needs_label,
        actions,
        greedy,
        propensities,
        scores,
        model,
    )
    return Run(actions, greedy, propensities, int(updates))


def _check(learner: Learner, examples: Examples, u: FloatArray, v: FloatArray, delays: NDArray[np.int64]) -> None:
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


def _loop(
    offsets: NDArray[np.int64],
    indices: IndexArray,
    values: FloatArray,
    labels: NDArray[np.int64],
    u: FloatArray,
    v: FloatArray,
    due: NDArray[np.int64],
    order: NDArray[np.int64],
    needs_label: bool,
    actions: NDArray[np.int64],
    greedy: NDArray[np.int64],
    propensities: FloatArray,
    scores: FloatArray,
    model: tuple[Any, ...],
) -> int:
    """Decide each event, then apply what is due; the learner's kernels are globals, see `_compiled_loop`."""
    size, rows = labels.size, scores.shape[0]
    applied, updates = 0, 0
    for t in range(size + 1):
        if t < size:
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
        while applied < order.size and (t == size or due[order[applied]] <= t):
            s = order[applied]
            start, stop = offsets[s], offsets[s + 1]
            changed = update(  # type: ignore[name-defined] # noqa: F821
                indices[start:stop],
                values[start:stop],
                actions[s],
                greedy[s],
                propensities[s],
                scores[s % rows],
                1 if actions[s] == labels[s] else 0,
                v[s],
                labels[s] if needs_label else -1,
                *model,
            )
            updates += 1 if changed else 0
            applied += 1
    return updates


_loops: dict[Kernels, Callable[..., int]] = {}


def _compiled_loop(learner: KernelLearner) -> Callable[..., int]:
    """The loop compiled with this learner's kernels.

    The kernels become globals of a copy of the loop: numba caches such a function on disk, but not one that takes
    compiled functions as arguments or from a closure. The copy's name has a digest of the learner's source, so that the
    cached code goes stale with it.
    """
    kernels = learner.kernels
    if kernels not in _loops:
        sources = [inspect.getsource(inspect.getmodule(kernel) or type(learner)) for kernel in kernels]
        names = "_".join(getattr(kernel, "__name__", "kernel") for kernel in kernels)
        digest = hashlib.blake2b("".join(sources).encode(), digest_size=8).hexdigest()
        template = _loop
        namespace = {**kernels._asdict(), "__name__": __name__}
        copy = FunctionType(template.__code__, namespace, f"loop_{names}_{digest}")
        copy.__qualname__, copy.__module__ = copy.__name__, __name__
        _loops[kernels] = compiled(copy)
    return _loops[kernels]


def _loop_in_python(
    offsets: NDArray[np.int64],
    indices: IndexArray,
    values: FloatArray,
    labels: NDArray[np.int64],
    u: FloatArray,
    v: FloatArray,
    due: NDArray[np.int64],
    order: NDArray[np.int64],
    needs_label: bool,
    actions: NDArray[np.int64],
    greedy: NDArray[np.int64],
    propensities: FloatArray,
    scores: FloatArray,
    model: tuple[Learner],
) -> int:
    """The same for a learner without kernels."""
    (learner,) = model
    examples = Examples(offsets, indices, values, labels)
    decisions = {}
    applied, updates = 0, 0
    for t in range(labels.size + 1):
        if t < labels.size:
            decisions[t] = learner.predict(examples.features(t), float(u[t]))
            learner.observe(examples.features(t), decisions[t])
            actions[t], greedy[t], propensities[t] = decisions[t][:3]
        while applied < order.size and (t == labels.size or due[order[applied]] <= t):
            s = int(order[applied])
            decision = decisions.pop(s)
            label = int(labels[s])
            reward = 1 if decision.action == label else 0
            updates += learner.update(
                examples.features(s), decision, reward, float(v[s]), label if needs_label else None
            )
            applied += 1
    return updates
