"""A run's data set, its replay, and its feedback plan."""

from math import inf

import platformdirs

from producers.datasets.base import Dataset
from producers.datasets.catalogue import catalogue, is_log, load
from producers.datasets.log import LogDataset, log_dataset
from producers.datasets.logs.cache import cached_log
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.stored import remarks_of
from producers.datasets.scaling import standardised
from producers.replay.program import ReplayOptions
from stream.parsing import parse_speed
from stream.programs.process import announce, warn
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.settings.definitions import FeedbackSettings, ReplaySettings, SettingsError, SourceSettings
from stream.settings.pipeline import Sizes
from stream.settings.values import LOGGED, OnBadRow, parse_time
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


LAPS = 10**9
"""Number of epochs in a replay that repeats until stopped."""


def events_of(replay: ReplaySettings, dataset: Dataset) -> int:
    """Return the number of events to replay. If there are more events than rows, the replay starts another epoch."""
    if replay.loop:
        if replay.events is not None or replay.epochs is not None:
            raise SettingsError("--loop cannot be combined with --events or --epochs")
        return dataset.rows * LAPS
    if replay.events is None:
        return dataset.rows * (replay.epochs or 1)
    if replay.epochs is not None and replay.events > dataset.rows * replay.epochs:
        raise SettingsError(
            f"--events {replay.events}: {replay.epochs} epochs of {dataset.name} ({dataset.rows} rows) have fewer "
            f"events. Omit --epochs, or use --epochs {-(-replay.events // dataset.rows)}"
        )
    return replay.events


def replay_options(replay: ReplaySettings, dataset: Dataset, partitions: int, start: int = 0) -> ReplayOptions:
    """Return the replay's options."""
    return ReplayOptions(
        events=events_of(replay, dataset),
        rate_per_s=replay.rate_per_s,
        speed=speed_of(replay, dataset),
        shuffle_seed=replay.seed if replay.shuffle else None,
        partitions=partitions,
        start=start,
    )


def speed_of(replay: ReplaySettings, dataset: Dataset) -> float | None:
    """Return the speed factor for replaying a log, or None if the rate applies instead.

    Raises:
        SettingsError: the log has no times, or --shuffle is given.
    """
    if replay.speed is None:
        return None
    if replay.shuffle:
        raise SettingsError(f"--speed {replay.speed} cannot be combined with --shuffle")
    speed = parse_speed(replay.speed)
    if speed != inf and dataset.time_of(0) is None:
        raise SettingsError(f"--speed {replay.speed}: {dataset.name} has no decision times. Use --rate")
    return speed


def feedback_speed(feedback: FeedbackSettings) -> float:
    """Return the --speed factor, by which the logged delays are divided."""
    return 1.0 if feedback.speed is None else parse_speed(feedback.speed)


SHORT_DELAY_SHARE = 0.001
"""Fraction of the feedback whose delay may be shorter than the poll interval of an embedded learner."""


def shortest_delay_ms(feedback: FeedbackSettings, dataset: Dataset) -> int:
    """Return a lower bound for at least 99.9% of the feedback delays."""
    if feedback.delay == LOGGED:
        return int(min(dataset.logged_delays_ms(), default=0) / feedback_speed(feedback))
    return parse_delay(feedback.delay).quantile_ms(SHORT_DELAY_SHARE)


def feedback_plan(feedback: FeedbackSettings, dataset: Dataset) -> FeedbackPlan:
    """Return the plan for delays, losses and duplicates."""
    if feedback.delay == LOGGED:
        if not dataset.logged_delays_ms():
            raise SettingsError(
                f"--delay logged: {dataset.name} has no feedback times. Use a delay distribution, such as "
                "--delay exponential:10s"
            )
        if feedback_speed(feedback) == inf:
            raise SettingsError("--delay logged cannot be combined with --speed max. Use a factor, such as 60x")
        return FeedbackPlan(feedback.seed, None, feedback.loss, feedback.duplicates)
    delay = parse_delay(feedback.delay)
    delay.check_classes(dataset.n_classes)
    return FeedbackPlan(feedback.seed, delay, feedback.loss, feedback.duplicates)


ROWS_SAMPLED = 1_000


def mean_nnz_of(dataset: Dataset) -> float:
    """Return the mean number of non-zeros per row, computed from the first rows."""
    rows = min(dataset.rows, ROWS_SAMPLED)
    return int(dataset.block(0, rows).offsets[-1]) / rows


def nnz_of(dataset: Dataset) -> int:
    """Return the approximate number of non-zeros per row."""
    return int(mean_nnz_of(dataset))


def data_sizes(source: SourceSettings) -> Sizes:
    """Return the sizes of the data set that the settings select."""
    dataset = dataset_of(source)
    return Sizes(dataset.n_classes, dataset.n_features, mean_nnz_of(dataset), dataset.named_classes())
