"""The data set of a run: named, an svmlight file, or the part of a log that the settings select."""

from dataclasses import replace

import platformdirs

from producers.datasets.base import Dataset
from producers.datasets.catalogue import catalogue, is_log, load
from producers.datasets.log import OnBadRow, rows_left_out
from producers.datasets.logged import LogDataset, has_labels, log_dataset, part_of
from stream.app.notices import announce, warn
from stream.app.setting_groups import Source
from stream.app.setting_values import parse_time
from stream.app.settings import SettingsError


def dataset_of(source: Source) -> Dataset:
    """Load a data set; of a log only the part that is asked for."""
    if source.map is not None or is_log(source.data):
        return _part(source, log_of(source.data, source.map, source.on_bad_row, source.reward_above))
    return _part(source, load(source.data, source.n_features, source.seed))


def dataset_of_seed(source: Source, seed: int, dataset: Dataset) -> Dataset:
    """The data set of the same source with another seed: the same one, unless its rows follow from the seed."""
    if seed == source.seed or not any(entry.is_generated for entry in catalogue() if entry.name == source.data):
        return dataset
    return dataset_of(replace(source, seed=seed))


def log_of(path: str, mapping: str | None, on_bad_row: OnBadRow, reward_above: float | None) -> LogDataset:
    """Read a log as a data set; notices report its format and the rows that are left out."""
    from producers.datasets.logs.cache import cached_log  # here: other data sets need no library of tables
    from producers.datasets.logs.mapping import read_mapping

    log = cached_log(
        path,
        None if mapping is None else read_mapping(mapping),
        platformdirs.user_cache_path("onebit", appauthor=False) / "logs",
        on_bad_row=on_bad_row,
        reward_above=reward_above,
        announce=announce,
    )
    for line in rows_left_out(log, of=log.name):
        warn(line)
    return log_dataset(log, log.rows, log.n_features, log.class_names, log.name)


def _part(source: Source, dataset: Dataset) -> Dataset:
    from_ms, to_ms = (None if time is None else parse_time(time) for time in (source.from_time, source.to_time))
    return part_of(dataset, from_ms, to_ms, source.limit)


def class_names_of(dataset: Dataset) -> tuple[str, ...] | None:
    """What the classes are called, for predictions to say; None: nothing but their numbers, or it is no log."""
    names = dataset.class_names
    return names if isinstance(dataset, LogDataset) and names != tuple(map(str, range(len(names)))) else None


def check_play(play: str, dataset: Dataset) -> None:
    """See that there is a bit for what is played.

    Raises:
        SettingsError: the learner is to play its own actions, and the log tells of its own alone.
    """
    if play == "own" and not has_labels(dataset):
        raise SettingsError(
            f"--play own: {dataset.name} has no true classes, and tells of the actions alone that it played; --play "
            "logged learns from these, and with --play match those of the learner count that are the same"
        )
