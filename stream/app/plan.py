"""The data set of a run, its replay, and the plan of its feedback."""

from dataclasses import replace
from math import inf

import platformdirs

from producers.datasets.base import Dataset
from producers.datasets.catalogue import catalogue, is_log, load
from producers.datasets.log import OnBadRow, rows_left_out
from producers.datasets.logged import LogDataset, has_labels, has_times, log_dataset, logged_delays_ms, part_of
from producers.replay import ReplayOptions
from stream.app.process import announce, warn
from stream.app.setting_values import LOGGED, Feedback, Replay, Source, parse_time
from stream.app.settings import SettingsError
from stream.durations import parse_speed
from stream.randomness.delays import FeedbackPlan, parse_delay


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


LAPS = 10**9
"""Of a replay that begins again until it is stopped."""


def events_of(replay: Replay, dataset: Dataset) -> int:
    """How many events are replayed; more than there are rows go on into further epochs."""
    if replay.loop:
        if replay.events is not None or replay.epochs is not None:
            raise SettingsError("--loop goes on until it is stopped; leave --events and --epochs out")
        return dataset.rows * LAPS
    if replay.events is None:
        return dataset.rows * (replay.epochs or 1)
    if replay.epochs is not None and replay.events > dataset.rows * replay.epochs:
        raise SettingsError(
            f"--events {replay.events}: {replay.epochs} epochs of the {dataset.rows} rows of {dataset.name} have "
            f"fewer; leave --epochs out, or give {-(-replay.events // dataset.rows)}"
        )
    return replay.events


def replay_options(replay: Replay, dataset: Dataset, start: int = 0) -> ReplayOptions:
    """How the data set is replayed."""
    return ReplayOptions(
        events=events_of(replay, dataset),
        rate_per_s=replay.rate_per_s,
        speed=speed_of(replay, dataset),
        shuffle_seed=replay.seed if replay.shuffle else None,
        partitions=replay.partitions,
        start=start,
    )


def speed_of(replay: Replay, dataset: Dataset) -> float | None:
    """How many times faster than it was a log is replayed; None: by the rate.

    Raises:
        SettingsError: the log has no times, or another setting asks for another order.
    """
    if replay.speed is None:
        return None
    if replay.shuffle:
        raise SettingsError(f"--speed {replay.speed} replays a log in its order; leave --shuffle out")
    speed = parse_speed(replay.speed)
    if speed != inf and not has_times(dataset):
        raise SettingsError(f"--speed {replay.speed}: {dataset.name} has no times of its decisions; give a --rate")
    return speed


def feedback_speed(feedback: Feedback) -> float:
    """By how much the delays of a log are shorter: as its times are."""
    return 1.0 if feedback.speed is None else parse_speed(feedback.speed)


SHORT_DELAY_SHARE = 0.001
"""This share of the feedback may come sooner than an embedded learner polls again, and then waits for it."""


def shortest_delay_ms(feedback: Feedback, dataset: Dataset) -> int:
    """The delay of all feedback but a thousandth is at least this."""
    if feedback.delay == LOGGED:
        return int(min(logged_delays_ms(dataset), default=0) / feedback_speed(feedback))
    return parse_delay(feedback.delay).quantile_ms(SHORT_DELAY_SHARE)


def feedback_plan(feedback: Feedback, dataset: Dataset) -> FeedbackPlan:
    """How often and how late feedback comes."""
    if feedback.delay == LOGGED:
        if not logged_delays_ms(dataset):
            raise SettingsError(
                f"--delay logged: {dataset.name} has no times of its feedback; give a model of the delay, such as "
                "--delay exponential:10s"
            )
        if feedback_speed(feedback) == inf:
            raise SettingsError("--delay logged: --speed max leaves no time for it; give a factor, such as 60x")
        return FeedbackPlan(feedback.seed, None, feedback.loss, feedback.duplicates)
    delay = parse_delay(feedback.delay)
    delay.check_classes(dataset.n_classes)
    return FeedbackPlan(feedback.seed, delay, feedback.loss, feedback.duplicates)
