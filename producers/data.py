"""Loads the data set or log that the settings select, or converts data in memory; and returns its sizes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import platformdirs
from numpy.typing import ArrayLike

from producers.datasets.base import Dataset, DatasetError, dense_dataset
from producers.datasets.log import LogDataset, log_dataset
from producers.datasets.logs.cache import cached_log
from producers.datasets.logs.mapping import mapping_for, read_mapping
from producers.datasets.logs.reading import source_of_table
from producers.datasets.logs.stored import remarks_of
from producers.datasets.logs.streams import Source
from producers.datasets.named import entries, is_log, load
from producers.datasets.scaling import standardised
from stream.programs.process import announce, quantity, warn
from stream.settings.data_sizes import DataSizes
from stream.settings.definitions import SettingsError, SourceSettings
from stream.settings.values import OnBadRow, parse_time
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import Scaling
from stream.wire.records import IndexArray
from stream.wire.rewards import RewardRange, format_range


class ArrowTable(Protocol):
    """A table with Arrow's C stream interface, such as a pandas or polars DataFrame or a pyarrow table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with the columns; see Arrow's PyCapsule interface."""
        ...


Data: TypeAlias = str | Path | Dataset | tuple[ArrayLike, Iterable[object]] | ArrowTable
"""The name of a data set, a file, or data in memory; a tuple contains features x and classes y."""

InMemory: TypeAlias = Dataset | Source
"""Data in memory: a data set, or a table to be read as a log."""


def in_memory(data: Data) -> tuple[str, InMemory | None]:
    """Return the name of the data for the setting `data`, and the data unless they are named by a string or a path.

    Args:
        data: The name of a data set, a file, arrays (x, y), a `Dataset`, or a table such as a DataFrame.

    Raises:
        DatasetError: the data have another type, or cannot be converted.
    """
    if isinstance(data, str | Path):
        return str(data), None
    if isinstance(data, Dataset):
        return data.name, data
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DatasetError(f"data: expected arrays (x, y); got a tuple of {len(data)}")
        dataset = dense_dataset("arrays", *data)
        return f"arrays ({quantity(dataset.rows, 'row')})", dataset
    source = source_of_table(data)
    return source.name, source


def dataset_of(source: SourceSettings, memory: InMemory | None = None) -> Dataset:
    """Load a data set, or the selected part of a log. Data in memory replace those that the settings name.

    Raises:
        DatasetError: the data cannot be loaded, or settings do not apply to them.
    """
    if isinstance(memory, Dataset):
        if source.map is not None:
            raise DatasetError(f"{source.data}: a mapping applies to tables only; got map={source.map!r}. Remove map")
        if source.n_features not in (None, memory.n_features):
            raise DatasetError(
                f"{source.data}: expected n_features={memory.n_features}, as in x; got {source.n_features}. Remove it"
            )
        return _part(source, _scaled(memory, source.scale))
    if memory is not None or is_log(source.data, is_mapped=source.map is not None):
        log = log_of(
            memory or source.data, source.map, source.on_bad_row, source.reward_above, source.scale, source.graded
        )
        return _part(source, log)
    return _part(source, load_scaled(source.data, source.n_features, source.seed, source.scale))


def load_scaled(name_or_file: str, n_features: int | None, seed: int, scale: Scaling) -> Dataset:
    """Load a data set by name or from a file, and scale its columns as requested."""
    return _scaled(load(name_or_file, n_features, seed), scale)


def _scaled(dataset: Dataset, scale: Scaling) -> Dataset:
    return dataset if scale == "none" else standardised(dataset)


def dataset_of_seed(source: SourceSettings, seed: int, dataset: Dataset) -> Dataset:
    """Return the data set for a different seed. Only synthetic data depends on the seed."""
    if seed == source.seed or not any(entry.is_generated for entry in entries() if entry.name == source.data):
        return dataset
    return dataset_of(source.model_copy(update={"seed": seed}))


def uneven_warning(uneven: str) -> str:
    """Add a remedy to a warning about a column that varies much more than the others."""
    return f"{uneven}. Use --scale standard" if uneven else ""


def log_of(
    data: str | Source,
    mapping: str | None,
    on_bad_row: OnBadRow,
    reward_above: float | None,
    scale: Scaling = "none",
    graded: RewardRange | None = None,
) -> LogDataset:
    """Read a log as a data set. Log its format as a notice, and skipped rows and unusual columns as warnings."""
    log = cached_log(
        data,
        mapping_for(data, mapping) if isinstance(data, str) else None if mapping is None else read_mapping(mapping),
        platformdirs.user_cache_path("onebit", appauthor=False) / "logs",
        on_bad_row=on_bad_row,
        reward_above=reward_above,
        graded=graded,
        scale=scale,
        announce=announce,
    )
    for line in remarks_of(log):
        warn(line)
    return log_dataset(log, log.rows, log.n_features, log.class_names, log.name, uneven=log.uneven, blocks=log.blocks)


def _part(source: SourceSettings, dataset: Dataset) -> Dataset:
    from_ms, to_ms = (None if time is None else parse_time(time) for time in (source.from_time, source.to_time))
    if from_ms is None and to_ms is None and source.limit is None:
        return dataset
    return dataset.part(from_ms, to_ms, source.limit)


def check_play(play: str, dataset: Dataset) -> None:
    """Check that the data contain feedback for the played actions.

    Raises:
        SettingsError: the learner plays its own actions, but the log has rewards for logged actions only; or the
            learner plays logged actions, but the data contain none.
    """
    if play == "own" and not dataset.has_labels() and not dataset.has_rewards():
        raise SettingsError(
            f"--play own: {dataset.name} has no true classes, only rewards of the logged actions. Use --play logged to "
            "learn from the logged actions, or --play match to skip events with other actions"
        )
    if play != "own" and not dataset.has_logged():
        raise SettingsError(f"--play {play}: {dataset.name} has no logged actions; use a log, or --play own")


def check_rewards(settings: SourceSettings, dataset: Dataset) -> None:
    """Check that the data have the kind of rewards that the settings select.

    Raises:
        SettingsError: the data set has graded rewards, but the rewards are bits or have another range; or the data set
            has true classes, and the range does not contain 0 and 1.
    """
    own, graded = dataset.reward_range(), settings.graded
    if own is not None and graded != own:
        raise SettingsError(
            f"--rewards {settings.rewards}: {dataset.name} has rewards from {own.low:g} to {own.high:g}. Use --rewards "
            f"graded --reward-range {format_range(own)}"
        )
    has_bits = dataset.has_labels() or dataset.has_rewards()
    if own is None and graded is not None and has_bits and not graded.low <= 0.0 < 1.0 <= graded.high:
        raise SettingsError(
            f"--reward-range {settings.reward_range}: the rewards of {dataset.name} are 0 and 1. Use --rewards bit, or "
            "--reward-range 0,1"
        )


ROWS_SAMPLED = 1_000


def mean_nnz_of(dataset: Dataset) -> float:
    """Return the mean number of non-zeros per row, computed from the first rows.

    With actions, it is an estimate for rows in which every place has an action.
    """
    rows = min(dataset.rows, ROWS_SAMPLED)
    return mean_nnz(dataset.block(0, rows).indices, rows, dataset.blocks)


def mean_nnz(indices: IndexArray, rows: int, blocks: ActionBlocks | None) -> float:
    """Return the mean number of non-zeros per row from the indices of all entries; see `mean_nnz_of`."""
    if blocks is None:
        return indices.size / rows
    after = indices - blocks.context
    of_actions = int(np.count_nonzero(after >= 0))
    offered = int(np.count_nonzero((after >= 0) & (after % blocks.width == 0)))  # each block begins with a key
    return (indices.size - of_actions + of_actions / max(1, offered) * blocks.places * rows) / rows


def nnz_of(dataset: Dataset) -> int:
    """Return the approximate number of non-zeros per row."""
    return int(mean_nnz_of(dataset))


def data_sizes(source: SourceSettings) -> DataSizes:
    """Return the sizes of the data set that the settings select."""
    dataset = dataset_of(source)
    return DataSizes(
        dataset.n_classes, dataset.n_features, mean_nnz_of(dataset), dataset.named_classes(), dataset.blocks
    )
