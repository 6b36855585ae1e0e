"""`onebit.train`: train a model from a log of decisions or from labelled data, for a pipeline to start with."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from producers.data import Data, InMemory, check_rewards, dataset_of, in_memory, mean_nnz
from producers.datasets.base import Dataset
from producers.datasets.logs.mapping import mapping_for, read_mapping
from producers.datasets.logs.parsed import no_usable_rows
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.stored import remarks_of
from producers.datasets.logs.streams import Source
from producers.datasets.named import is_log
from stream.estimating.rows import ROWS_MAX, LogBatch
from stream.estimating.training import Skipped, Trainer
from stream.learners import Learner, registered
from stream.programs.pass_progress import announced_passes
from stream.programs.process import announce, warn
from stream.programs.task_settings import encoding_of, parameters_of, with_chosen
from stream.randomness.draws import Draws, Purpose
from stream.recovery.model_files import Model, model_of, write_model
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import given_settings
from stream.task.settings import TaskSettings
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import FeatureEncoder, Kind, to_plain
from stream.wire.records import IndexArray


@dataclass(frozen=True, slots=True)
class TrainReport:
    """The result of a training: a model, and the number of rows from which it learned."""

    model: Model
    learned: int  # number of rows of all passes from which the learner learned
    skipped: Mapping[Skipped, int]  # number of other rows, by reason
    from_labels: bool

    @property
    def learner(self) -> Learner:
        """A learner with the model's state."""
        return self.model.learner()

    def save(self, path: str | Path) -> Path:
        """Write the model to a file for `onebit model import`.

        Raises:
            ModelError: the file cannot be written.
        """
        write_model(Path(path), self.model)
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, as in the JSON output of `onebit train`."""
        skipped = {str(reason): count for reason, count in sorted(self.skipped.items())}
        return {
            "learned": self.learned,
            "skipped": skipped,
            "from": "labels" if self.from_labels else "decisions",
            **self.model.meta,
        }


def train(
    data: Data,
    learner: str = "auto",
    *,
    map: str | Path | None = None,  # noqa: A002 - name of the setting
    parameters: Mapping[str, object] | None = None,
    labels: bool = False,
    epochs: int = 1,
    seed: int = 0,
    **settings: Any,
) -> TrainReport:
    """Train a learner from logged decisions or from true classes.

    A data set with the reward of every action, such as `catalogue`, is a log of uniformly random decisions.

    Args:
        data: A log of decisions, such as one from `onebit export log`; or labelled data: a data set from `onebit data
            list`, an svmlight file, a log with labels, or arrays. Tables in memory require `map` and pyarrow.
        learner: The learner; `auto` chooses based on the data.
        map: Column mapping for a table; by default, the file beside the log with the extension .toml.
        parameters: The learner's parameters by name.
        labels: Whether to learn from a log's true classes, if it also has decisions. Learners that need labels always
            do.
        epochs: Number of passes over the rows.
        seed: Seed for all random draws.
        settings: Other settings from docs/settings.md, by name: `scale`, `reward`, `rewards`, `reward_range`,
            `propensity_min`, `classes_max`, `actions_max`, `features`, `limit`, `on_bad_row` and `reward_above`.

    Raises:
        OnebitError: a setting is invalid, the data cannot be read, or the learner cannot learn from them.
    """
    name, memory = in_memory(data)
    own = [f"{key}={value}" for key, value in (parameters or {}).items()]
    values = {"data": name, "map": None if map is None else str(map), "learner": [learner], "param": own}
    return trained(given_settings({**values, "epochs": epochs, "seed": seed, **settings}), labels=labels, memory=memory)


def trained(settings: Settings, *, labels: bool = False, memory: InMemory | None = None) -> TrainReport:
    """Train a learner; see `train`. `memory` replaces the data that the settings name.

    Raises:
        SettingsError: no or several learners are selected, or the data do not contain what the learner needs.
        PolicyError: the learner cannot learn from logged decisions.
    """
    if len(settings.learner) != 1:
        raise SettingsError(f"--learner: expected one learner; got {', '.join(settings.learner)}")
    rows = _rows_of(settings, memory)
    settings, why = with_chosen(settings, len(rows.class_names), rows.n_features, rows.mean_nnz(), rows.blocks)
    if why:
        announce(why)
    (name,) = settings.learner
    from_labels = labels or not rows.has_decisions or (name in registered() and registered()[name].needs_label)
    task = _task_of(settings, name, rows)
    learner = replace(task, play="own" if from_labels else "logged").make_learner()
    progress = announced_passes("training", "training", "rows")
    trainer = Trainer(
        learner,
        settings.seed,
        from_labels=from_labels,
        propensity_min=settings.propensity_min,
        classes=_every(task, rows),
        graded=task.graded,
        progress=lambda rows: progress(rows, 0),
    )
    epochs = settings.epochs or 1
    for epoch in range(epochs):
        trainer.learn(_checked(rows.batches(), task), epoch, settings.limit)
    for line in rows.remarks():
        warn(line)
    if not trainer.learned:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(trainer.skipped.items()))
        raise SettingsError(f"{rows.name}: {name} could not learn from any row ({reasons})")
    position = {"log": rows.name, "decisions": trainer.learned, "epochs": epochs, "seed": settings.seed}
    names = None if rows.names is None else list(rows.names)
    model = model_of(task, learner, names, position, {"updates": trainer.updates})
    return TrainReport(model, trainer.learned, dict(trainer.skipped), from_labels)


class _Rows(NamedTuple):
    """The rows to learn from, which can be read repeatedly."""

    name: str
    class_names: tuple[str, ...]
    n_features: int
    encoder: FeatureEncoder | None  # None if the features have no names
    batches: Callable[[], Iterable[LogBatch]]
    remarks: Callable[[], Iterable[str]]
    has_decisions: bool
    blocks: ActionBlocks | None = None  # the layout of x; None if the decisions are among classes
    action_encoder: FeatureEncoder | None = None  # as `encoder`, for the features of actions

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes, or None if the names are their indices."""
        return None if self.class_names == tuple(map(str, range(len(self.class_names)))) else self.class_names

    def mean_nnz(self) -> float:
        """Return the mean number of non-zeros per row, from the first batch."""
        first = next(iter(self.batches()))
        return mean_nnz(first.indices, len(first.ids), self.blocks)


def _rows_of(settings: Settings, memory: InMemory | None) -> _Rows:
    if isinstance(memory, Dataset) or (
        memory is None and not is_log(settings.data, is_mapped=settings.map is not None)
    ):
        dataset = dataset_of(settings.model_copy(update={"scale": "none", "limit": None}), memory)
        if settings.features is not None:
            raise SettingsError(f"--features: expected a log with named features; {dataset.name} has indices")
        if dataset.has_rewards():
            check_rewards(settings, dataset)
        return _rows_of_dataset(dataset, settings.seed)
    if isinstance(memory, Source):
        source, mapping = memory, None if settings.map is None else read_mapping(settings.map)
    else:
        source, mapping = Source(settings.data), mapping_for(settings.data, settings.map)
    log = open_log(
        source, mapping, on_bad_row=settings.on_bad_row, reward_above=settings.reward_above, graded=settings.graded,
        encoding=encoding_of(settings),
    )  # fmt: skip
    first = next(iter(log.batches()), None)
    if first is None:
        raise no_usable_rows(log.name, log.skipped)
    has_decisions = bool(((first.actions >= 0) & ~np.isnan(first.rewards)).any())
    return _Rows(
        log.name, log.class_names, log.n_features, _named(log.encoder), log.batches, lambda: remarks_of(log),
        has_decisions, log.blocks, None if log.action_encoder is None else _named(log.action_encoder),
    )  # fmt: skip


def _every(task: TaskSettings, rows: _Rows) -> IndexArray | None:
    """Return the eligible classes of rows that list none, if the pipeline can have more classes than the log."""
    is_larger = task.open_classes or task.n_classes > len(rows.class_names)
    return np.arange(len(rows.class_names), dtype=np.int32) if is_larger else None


def _checked(batches: Iterable[LogBatch], task: TaskSettings) -> Iterator[LogBatch]:
    """Yield the batches. Raise PolicyError if they list eligible classes, which the learner does not support."""
    for batch in batches:
        if batch.eligible is not None and batch.eligible.classes.size:
            task.check_eligible()
        yield batch


def _named(encoder: FeatureEncoder) -> FeatureEncoder | None:
    """Return the encoder, or None if the features are named x0, x1, ..., as those of an exported log without names."""
    names = [f"x{index}" for index in range(len(encoder.names))]
    are_indices = list(encoder.names) == names and all(
        one.kind is Kind.NUMERIC and one.scale is None for one in encoder.names.values()
    )
    return None if are_indices and len(names) == encoder.n_features else encoder


def _rows_of_dataset(dataset: Dataset, seed: int) -> _Rows:
    has_rewards, draws = dataset.has_rewards(), Draws(seed, Purpose.TRAIN)

    def batches() -> Iterator[LogBatch]:
        for start in range(0, dataset.rows, ROWS_MAX):
            stop = min(start + ROWS_MAX, dataset.rows)
            ids = [dataset.event_id(row) for row in range(start, stop)]
            block, nothing = dataset.block(start, stop), np.full(stop - start, -1, np.int64)
            actions, propensities, rewards = nothing, np.full(stop - start, np.nan), np.full(stop - start, np.nan)
            if has_rewards:
                drawn = [int(dataset.n_classes * draws(event_id)) for event_id in ids]
                known = [dataset.known_of(event_id).reward_of(a) for event_id, a in zip(ids, drawn, strict=True)]
                actions, rewards = np.array(drawn), np.array(known, np.float64)
                propensities = np.full(stop - start, 1.0 / dataset.n_classes)
            yield LogBatch(
                ids, block.offsets, block.indices, block.values, nothing, block.labels, actions, propensities, rewards,
                nothing,
            )  # fmt: skip

    return _Rows(
        dataset.name, dataset.class_names, dataset.n_features, None, batches, tuple, has_rewards, dataset.blocks
    )


def _task_of(settings: Settings, learner: str, rows: _Rows) -> TaskSettings:
    """Return the settings of a pipeline that starts with the model.

    Raises:
        SettingsError: features are scaled twice, or the log has more classes than the pipeline.
    """
    if settings.scale == "standard" and rows.encoder is not None:
        scaled = [name for name, one in rows.encoder.names.items() if one.scale is not None]
        if scaled:
            raise SettingsError(f"--scale: the log's encoding already scales {scaled[0]}. Remove --scale")
    n_classes, names = len(rows.class_names), rows.names
    if settings.classes_max is not None:
        if n_classes > settings.classes_max or names is None:
            raise SettingsError(
                f"--classes-max: expected a log with names of at most {settings.classes_max} classes; got {n_classes}"
                + (" classes without names" if names is None else "")
            )
        n_classes, names = settings.classes_max, None
    blocks = _layout(settings, rows)
    if blocks is not None:
        n_classes, names = blocks.places, None
    return TaskSettings(
        learner,
        n_classes,
        rows.n_features if blocks is None else blocks.n_features,
        parameters_of(settings, learner, blocks),
        features=None if rows.encoder is None else to_plain(rows.encoder),
        class_names=names,
        open_classes=settings.classes_max is not None,
        scale=settings.scale,
        reward=settings.reward,
        rewards=settings.rewards,
        reward_range=settings.reward_range,
        seed=settings.seed,
        actions=None
        if blocks is None
        else {
            "context": blocks.context,
            "features": None if rows.action_encoder is None else to_plain(rows.action_encoder),
        },
    ).resolved()


def _layout(settings: Settings, rows: _Rows) -> ActionBlocks | None:
    """Return the pipeline's layout of x. It begins with that of the log, and may have more places.

    Raises:
        SettingsError: the log has decisions among classes, or more actions than the pipeline.
    """
    blocks, places = rows.blocks, settings.actions_max
    if places is None:
        return blocks
    if blocks is None:
        raise SettingsError(f"--actions-max: expected a log with actions that have features; {rows.name} has classes")
    if places < blocks.places:
        raise SettingsError(f"--actions-max {places}: expected at least {blocks.places}, as in {rows.name}")
    return blocks._replace(places=places)
