"""A replica of a shared model. Its state is a function of the update log and of the requests that the log names.

    model at version n = the first n entries in the log, applied one by one in offset order

Replicas at the same version are bit-identical, regardless of the process and the number of records per read. The
learner's kernels apply the entries in one compiled loop. At an entry with changed settings, the model carries over as
described in `stream.task.carry`.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import KernelLearner
from stream.learners.entries import compile_with
from stream.shared.history import History
from stream.task.carry import Carry, Models, carries, no_models
from stream.task.settings import TaskSettings, with_kernels
from stream.wire.records import FloatArray, Foreign, Record, place_of
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    NAMED,
    NO_LABEL,
    SETTLED,
    Entries,
    Update,
    UpdatesError,
    columns_of,
    decode_update,
    entry_at,
    joined,
)


class Place(NamedTuple):
    """A task's position in the part of the log that has been read."""

    step: int = 0  # number of the task's last step in the log; 0 if the log has no step from the task
    parts: int = 0  # number of that step's records read so far
    decided: int = 0  # number of the task's decisions that the model has observed


SettingsAfter = Callable[[TaskSettings, int, int], TaskSettings | None]
"""Returns the settings after the requests from one offset in the control topic to another, given the settings before
them. None means that the change cannot be applied yet."""


def unchanged(settings: TaskSettings, control: int, until: int) -> TaskSettings:
    """Return the same settings, for a control topic without accepted requests."""
    return settings


class Replica:
    """A shared model and its position in the log."""

    def __init__(
        self,
        settings: TaskSettings,
        settings_after: SettingsAfter = unchanged,
        history: History | None = None,
        models: Models = no_models,
    ) -> None:
        """Start before the first entry in the log, or with the settings in `history`.

        New challengers can start with `models`.
        """
        self.history = History(settings) if history is None else history
        self.settings_after = settings_after
        self.models = models
        self.learner = self.history.settings.make_shareable_learner()
        self.names: list[str] = []  # names of open classes, in index order
        self.version = 0  # number of entries applied
        self.updates = 0  # number of applied bits and corrections that changed the model
        self.offset = 0  # next offset to read
        self.places: dict[int, Place] = {}  # the tasks' positions, by partition
        self.foreign = Foreign()  # records from other programs, which are skipped
        self.is_overlaid = False  # whether the model includes a task's own decisions; see `stream.shared.view`

    @property
    def settings(self) -> TaskSettings:
        """The settings at this version."""
        return self.history.settings

    @property
    def control(self) -> int:
        """The offset in the control topic up to which requests are in force."""
        return self.history.control

    def place_of(self, partition: int) -> Place:
        """Return a task's position in the log."""
        return self.places.get(partition, Place())

    def read(self, records: Sequence[Record]) -> int:
        """Apply the next records and return the number of entries in them.

        Skips records whose step and part have already been read, because a mirror can write a record twice. Also skips
        records from other programs. Stops before a record with changed settings if `settings_after` returns None;
        `offset` is then the record's offset. After an error, the replica is unusable.

        Args:
            records: the log's records in order, starting at `offset`. Some offsets have no record.

        Raises:
            UpdatesError: records are missing, or a record cannot be decoded or does not fit the model.
        """
        assert not self.is_overlaid, "a task's own decisions are applied on top of this model; undo them first"
        before = self.version
        alike: list[tuple[Record, Update]] = []  # records with entries in the form of the current settings
        for record in records:
            if record.offset < self.offset:
                continue
            update, settings = decode_update(record), None
            if update is not None and update.change > self.control:
                self._apply(alike)
                settings = self.settings_after(self.settings, self.control, update.change)
                if settings is None:
                    return self.version - before
            self.offset = record.offset + 1
            if update is None:
                self.foreign = self.foreign.including(record)
            elif self._follows(record, update):
                if update.control != self.control:
                    self._apply(alike)
                    self._apply_earlier(record, update)
                else:
                    alike.append((record, update))
                if settings is not None:
                    self._apply(alike)
                    self._change(settings, update.change)
        self._apply(alike)
        return self.version - before

    def _apply(self, alike: list[tuple[Record, Update]]) -> None:
        """Apply records with entries in the form of the current settings, and clear the list."""
        if not alike:
            return
        try:
            entries = self._checked(joined([update.entries for _, update in alike]))
        except ValueError:
            self._name_misfit(alike)
            raise
        self.updates += apply_entries(self.learner, entries)
        self._count(*(update for _, update in alike))
        alike.clear()

    def _apply_earlier(self, record: Record, update: Update) -> None:
        """Apply a record from a task that did not have the current settings yet."""
        settings = self.history.settings_at(update.control)
        if settings is None:
            known = f"control: expected {self.control} or the offset of one of the last changes; got {update.control}"
            raise self._misfit(record, known)
        ends = accumulate(update.entries.sizes.tolist())
        earlier = [entry_at(update.entries, place, end, settings.n_classes) for place, end in enumerate(ends)]
        try:
            converted = [one for entry in earlier if (one := self.history.entry(entry, update.control)) is not None]
            if converted:
                self.updates += apply_entries(self.learner, self._checked(columns_of(converted)))
        except (ValueError, IndexError) as error:
            raise self._misfit(record, error) from error
        self._count(update)

    def _checked(self, entries: Entries) -> Entries:
        """Check that entries fit the model. With graded rewards, they contain shares instead of bits; see `check`."""
        is_graded = self.settings.graded is not None
        if is_graded:  # a record without rewards has the type of bits
            entries = entries._replace(rewards=entries.rewards.astype(np.float64))
        check(self.learner, entries, is_graded=is_graded)
        return entries

    def _count(self, *updates: Update) -> None:
        """Count applied entries, and add the classes that they name."""
        for name in chain.from_iterable(update.classes for update in updates):
            if name not in self.names and len(self.names) < self.learner.n_classes:
                self.names.append(name)
        self.version += sum(update.entries.kinds.size for update in updates)

    def _change(self, settings: TaskSettings, control: int) -> None:
        """Change the settings."""
        before, settings = self.settings, settings.resolved()
        if carries(before, settings):
            self.learner = with_kernels(Carry(before, settings, self.learner, self.models).learner, "model shared")
        if settings.champion != before.champion:
            self.learner.promote(settings.decides)
        self.history.change(settings, control)

    def _follows(self, record: Record, update: Update) -> bool:
        """Return whether a record is its task's next record. If so, advance the task's position."""
        place = self.place_of(update.partition)
        is_next_part = (update.step, update.part) == (place.step, place.parts)
        is_next_step = update.step > place.step == update.follows and update.part == 0
        if not is_next_part and not is_next_step:
            if (update.step, update.part) < (place.step, place.parts):
                return False
            raise UpdatesError(
                f"expected updates from partition {update.partition} after step {place.step}, part {place.parts - 1}; "
                f"got step {update.step}, part {update.part}, after step {update.follows}. Records are "
                "missing; another program deleted them, or they exceeded the topic's retention while no learner ran",
                place_of(record),
            )
        decided = int(np.count_nonzero(update.entries.kinds == DECIDED))
        self.places[update.partition] = Place(update.step, update.part + 1, place.decided + decided)
        return True

    def _name_misfit(self, alike: Sequence[tuple[Record, Update]]) -> None:
        for record, update in alike:
            try:
                self._checked(update.entries)
            except ValueError as error:
                raise self._misfit(record, error) from error

    def _misfit(self, record: Record, error: object) -> UpdatesError:
        return UpdatesError(
            f"the updates do not fit a {self.learner.name} model with {self.learner.n_classes} classes and "
            f"{self.learner.n_features} features: {error}. A learner with different settings wrote them; use a "
            "different topic prefix for this learner",
            place_of(record),
        )


def check(learner: KernelLearner, entries: Entries, *, is_graded: bool = False) -> None:
    """Check that entries fit a learner's model, and that their rewards are bits or, if graded, shares.

    Raises:
        ValueError: the entries do not fit.
    """
    K, d = learner.n_classes, learner.n_features
    width = K + learner.logged_size
    if entries.scores.shape[1] != width:
        raise ValueError(f"expected {width} scores and logged numbers; got {entries.scores.shape[1]}")
    if not is_graded and entries.rewards.dtype != np.int8:
        raise ValueError("reward: expected bits; got numbers")
    rewards = entries.rewards[(entries.kinds == SETTLED) | (entries.kinds == CORRECTED)]
    replaced = entries.assumed[entries.kinds == CORRECTED]
    labels = entries.labels[entries.kinds == SETTLED] if learner.needs_label else entries.labels[:0]
    for name, column, last in (
        ("kind", entries.kinds, NAMED),
        ("action", entries.actions, K - 1),
        ("greedy action", entries.greedy, K - 1),
        ("reward", rewards, 1),
        ("assumed reward", replaced, 1),
        ("label", labels, K - 1),
        ("feature", entries.indices, d - 1),
    ):
        if column.size and not 0 <= column.min() <= column.max() <= last:
            raise ValueError(f"{name}: expected 0 to {last}; got {column.min()} to {column.max()}")
    rises = np.diff(entries.indices) > 0
    ends = np.cumsum(entries.sizes)[:-1]
    rises[ends[(ends > 0) & (ends < entries.indices.size)] - 1] = True
    if not rises.all():
        raise ValueError("features: expected strictly increasing indices")


def apply_entries(learner: KernelLearner, entries: Entries) -> int:
    """Apply checked entries to a model. Return the number of bits and corrections that changed the model.

    The compiled loop handles only decisions and bits. Each of the other entries takes about 10 µs. Changed settings and
    class names do not change the model here.
    """
    loop = compile_with(learner.entries, _loop)
    ends = np.cumsum(entries.sizes, dtype=np.int64)
    done = updates = 0
    while True:
        done, changed = loop(done, entries, ends, learner.needs_label, learner.handle)
        updates += changed
        if done == entries.kinds.size:
            return updates
        kind, x, decision, reward, assumed, v, *_ = entry_at(entries, done, int(ends[done]), learner.n_classes)
        if kind == CORRECTED:
            updates += learner.retract(x, decision, assumed, reward, v)
        done += 1


def _loop(
    done: int, entries: Entries, ends: NDArray[np.int64], needs_label: bool, handle: FloatArray
) -> tuple[int, int]:
    """Apply entries, starting at index `done`. The kernels' entry points are globals; see `compile_with`.

    Returns the index of the first entry that was not applied, and the number of entries that changed the model. The
    loop stops at an entry that is neither a decision nor a bit. The caller must apply this entry.
    """
    kinds, updates = entries.kinds, 0
    while done < kinds.size and kinds[done] < CORRECTED:
        x = slice(ends[done] - entries.sizes[done], ends[done])
        indices, values = entries.indices[x], entries.values[x]
        action, greedy = np.int64(entries.actions[done]), np.int64(entries.greedy[done])
        propensity, scores = entries.propensities[done], entries.scores[done]
        if kinds[done] == DECIDED:
            observe(indices, values, action, greedy, propensity, scores, handle)  # type: ignore[name-defined] # noqa: F821
        else:
            reward, v = 1 * entries.rewards[done], entries.v[done]  # int64 for a bit, float64 for a share
            label = np.int64(entries.labels[done]) if needs_label else NO_LABEL
            changed = update(  # type: ignore[name-defined] # noqa: F821
                indices, values, action, greedy, propensity, scores, reward, v, label, handle
            )
            updates += 1 if changed else 0
        done += 1
    return done, updates
