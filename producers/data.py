"""Loads the data set or log that the settings select, and its sizes."""

import platformdirs

from producers.datasets.base import Dataset
from producers.datasets.catalogue import catalogue, is_log, load
from producers.datasets.log import LogDataset, log_dataset
from producers.datasets.logs.cache import cached_log
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.stored import remarks_of
from producers.datasets.scaling import standardised
from stream.programs.process import announce, warn
from stream.settings.data_sizes import DataSizes
from stream.settings.definitions import SettingsError, SourceSettings
from stream.settings.values import OnBadRow, parse_time
from stream.wire.named_features import Scaling


def dataset_of(source: SourceSettings) -> Dataset:
    """Load a data set, or the selected part of a log."""
    if is_log(source.data, is_mapped=source.map is not None):
        return _part(source, log_of(source.data, source.map, source.on_bad_row, source.reward_above, source.scale))
    return _part(source, load_scaled(source.data, source.n_features, source.seed, source.scale))


def load_scaled(name_or_file: str, n_features: int | None, seed: int, scale: Scaling) -> Dataset:
    """Load a data set by name or from a file, and scale its columns as requested."""
    dataset = load(name_or_file, n_features, seed)
    return dataset if scale == "none" else standardised(dataset)


def dataset_of_seed(source: SourceSettings, seed: int, dataset: Dataset) -> Dataset:
    """Return the data set for a different seed. Only synthetic data depends on the seed."""
    if seed == source.seed or not any(entry.is_generated for entry in catalogue() if entry.name == source.data):
        return dataset
    return dataset_of(source.model_copy(update={"seed": seed}))


def uneven_warning(uneven: str) -> str:
    """Add a remedy to a warning about a column that varies much more than the others."""
    return f"{uneven}. Use --scale standard" if uneven else ""


def log_of(
    path: str, mapping: str | None, on_bad_row: OnBadRow, reward_above: float | None, scale: Scaling = "none"
) -> LogDataset:
    """Read a log as a data set. Log its format as a notice, and skipped rows and unusual columns as warnings."""
    log = cached_log(
        path,
        None if mapping is None else read_mapping(mapping),
        platformdirs.user_cache_path("onebit", appauthor=False) / "logs",
        on_bad_row=on_bad_row,
        reward_above=reward_above,
        scale=scale,
        announce=announce,
    )
    for line in remarks_of(log):
        warn(line)
    return log_dataset(log, log.rows, log.n_features, log.class_names, log.name, uneven=log.uneven)


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
    if play == "own" and not dataset.has_labels():
        raise SettingsError(
            f"--play own: {dataset.name} has no true classes, only rewards of the logged actions. Use --play logged to "
            "learn from the logged actions, or --play match to skip events with other actions"
        )
    if play != "own" and not dataset.has_logged():
        raise SettingsError(f"--play {play}: {dataset.name} has no logged actions; use a log, or --play own")


ROWS_SAMPLED = 1_000


def mean_nnz_of(dataset: Dataset) -> float:
    """Return the mean number of non-zeros per row, computed from the first rows."""
    rows = min(dataset.rows, ROWS_SAMPLED)
    return int(dataset.block(0, rows).offsets[-1]) / rows


def nnz_of(dataset: Dataset) -> int:
    """Return the approximate number of non-zeros per row."""
    return int(mean_nnz_of(dataset))


def data_sizes(source: SourceSettings) -> DataSizes:
    """Return the sizes of the data set that the settings select."""
    dataset = dataset_of(source)
    return DataSizes(dataset.n_classes, dataset.n_features, mean_nnz_of(dataset), dataset.named_classes())
