"""A replica of a shared model: a function of the log of updates, and of nothing else.

    model at version n = the first n entries of the log, applied one by one in the order of their offsets

Replicas at equal versions are equal to the bit, in any process and with any number of records per read. The learner's
own kernels apply the entries, in one compiled loop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner
from stream.learners.loops import compile_loop
from stream.wire.records import Foreign, Record, place_of
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    NO_LABEL,
    SETTLED,
    Entries,
    Update,
    UpdatesError,
    decode_update,
    entry_at,
    joined,
)


class Place(NamedTuple):
    """The end of the known log of one task."""

    step: int = 0  # the last one that wrote to it; 0: none has
    parts: int = 0  # of that step, so far
    decided: int = 0  # how many of the task's decisions the model has observed


class Replica:
    """A shared model, and its position in the log."""

    def __init__(self, learner: KernelLearner) -> None:
        """Begin before the first entry of the log."""
        self.learner = learner
        self.version = 0  # entries applied
        self.updates = 0  # of these: bits and corrections that changed the model
        self.offset = 0  # of the first record that is not read
        self.places: dict[int, Place] = {}  # by partition
        self.foreign = Foreign()  # records of other programs, which are skipped
        self.is_overlaid = False  # a task's own decisions are on top of it, see `stream.shared.view`

    def place_of(self, partition: int) -> Place:
        """The end of the known log of a task."""
        return self.places.get(partition, Place())

    def read(self, records: Sequence[Record]) -> int:
        """Apply the next records, and return the number of their entries.

        Records of steps and parts that were read before are skipped, because a mirror may write one twice. So are
        records of other programs. After an error the replica is unusable.

        Args:
            records: of the log, in their order, from `offset` on; offsets without a record may be missing.

        Raises:
            UpdatesError: records are missing, or one cannot be read or does not fit the model.
        """
        assert not self.is_overlaid, "a task's decisions are on top of this model: they must be taken off first"
        taken: list[tuple[Record, Entries]] = []
        for record in records:
            if record.offset < self.offset:
                continue
            self.offset = record.offset + 1
            update = decode_update(record)
            if update is None:
                self.foreign = self.foreign.and_also(record)
            elif self._follows(record, update):
                taken.append((record, update.entries))
        if not taken:
            return 0
        try:
            entries = joined([part for _, part in taken])
            check(self.learner, entries)
        except ValueError:
            self._name_misfit(taken)
            raise
        self.updates += take_in(self.learner, entries)
        self.version += entries.kinds.size
        return entries.kinds.size

    def _follows(self, record: Record, update: Update) -> bool:
        """Whether a record is the next one of its task; then advance the task's place."""
        place = self.place_of(update.partition)
        is_next_part = (update.step, update.part) == (place.step, place.parts)
        is_next_step = update.step > place.step == update.follows and update.part == 0
        if not is_next_part and not is_next_step:
            if (update.step, update.part) < (place.step, place.parts):
                return False
            raise UpdatesError(
                f"{place_of(record)}: expected updates of partition {update.partition} after step {place.step}, part "
                f"{place.parts - 1}; got step {update.step}, part {update.part}, after step {update.follows}: records "
                "are missing; set the topic's retention.ms to -1"
            )
        decided = int(np.count_nonzero(update.entries.kinds == DECIDED))
        self.places[update.partition] = Place(update.step, update.part + 1, place.decided + decided)
        return True

    def _name_misfit(self, taken: Sequence[tuple[Record, Entries]]) -> None:
        for record, entries in taken:
            try:
                check(self.learner, entries)
            except ValueError as error:
                raise UpdatesError(
                    f"{place_of(record)}: the updates do not fit a model of {self.learner.name}, "
                    f"{self.learner.n_classes} classes and {self.learner.n_features} features: {error}: a learner with "
                    "other settings has written them; give this one topics of its own"
                ) from error


def check(learner: KernelLearner, entries: Entries) -> None:
    """Check that entries fit a model.

    Raises:
        ValueError: they do not.
    """
    K, d = learner.n_classes, learner.n_features
    width = K + learner.logged_size
    if entries.scores.shape[1] != width:
        raise ValueError(f"expected {width} scores and logged numbers; got {entries.scores.shape[1]}")
    bits = entries.rewards[entries.kinds != DECIDED]
    replaced = entries.assumed[entries.kinds == CORRECTED]
    labels = entries.labels[entries.kinds == SETTLED] if learner.needs_label else entries.labels[:0]
    for name, column, stop in (
        ("kind", entries.kinds, 3),
        ("action", entries.actions, K),
        ("greedy class", entries.greedy, K),
        ("reward", bits, 2),
        ("assumed reward", replaced, 2),
        ("label", labels, K),
        ("feature", entries.indices, d),
    ):
        if column.size and not 0 <= column.min() <= column.max() < stop:
            raise ValueError(f"{name}: expected 0 to {stop - 1}; got {column.min()} to {column.max()}")
    rises = np.diff(entries.indices) > 0
    ends = np.cumsum(entries.sizes)[:-1]
    rises[ends[(ends > 0) & (ends < entries.indices.size)] - 1] = True
    if not rises.all():
        raise ValueError("features: expected strictly increasing indices")


def take_in(learner: KernelLearner, entries: Entries) -> int:
    """Apply entries to a model that they fit; returns the number of bits and corrections that changed it.

    Corrections leave the compiled loop: about 10 µs each.
    """
    loop = compile_loop(learner, _loop, {"np": np, "DECIDED": DECIDED, "CORRECTED": CORRECTED, "NO_LABEL": NO_LABEL})
    ends = np.cumsum(entries.sizes, dtype=np.int64)
    done = updates = 0
    while True:
        done, changed = loop(done, entries, ends, learner.needs_label, learner.model)
        updates += changed
        if done == entries.kinds.size:
            return updates
        _, x, decision, reward, assumed, v, _ = entry_at(entries, done, int(ends[done]), learner.n_classes)
        updates += learner.retract(x, decision, assumed, reward, v)
        done += 1


def _loop(
    done: int, entries: Entries, ends: NDArray[np.int64], needs_label: bool, model: tuple[Any, ...]
) -> tuple[int, int]:
    """Apply entries from `done` on; the learner's kernels are globals, see `compile_loop`.

    Returns the number of entries applied, all or those before a correction, which the caller applies, and how many of
    them changed the model.
    """
    kinds, updates = entries.kinds, 0
    while done < kinds.size and kinds[done] != CORRECTED:
        x = slice(ends[done] - entries.sizes[done], ends[done])
        indices, values = entries.indices[x], entries.values[x]
        action, greedy = np.int64(entries.actions[done]), np.int64(entries.greedy[done])
        propensity, scores = entries.propensities[done], entries.scores[done]
        if kinds[done] == DECIDED:
            observe(indices, values, action, greedy, propensity, scores, *model)  # type: ignore[name-defined] # noqa: F821
        else:
            reward, v = np.int64(entries.rewards[done]), entries.v[done]
            label = np.int64(entries.labels[done]) if needs_label else NO_LABEL
            changed = update(  # type: ignore[name-defined] # noqa: F821
                indices, values, action, greedy, propensity, scores, reward, v, label, *model
            )
            updates += 1 if changed else 0
        done += 1
    return done, updates
