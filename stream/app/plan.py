"""The replay of a data set, and the plan of its feedback."""

from math import inf

from producers.datasets.base import Dataset
from producers.datasets.logged import has_times, logged_delays_ms
from producers.replay import ReplayOptions
from stream.app.setting_values import LOGGED
from stream.app.settings import Settings, SettingsError
from stream.durations import parse_speed
from stream.randomness.delays import FeedbackPlan, parse_delay

LAPS = 10**9
"""Of a replay that begins again until it is stopped."""


def events_of(settings: Settings, dataset: Dataset) -> int:
    """How many events are replayed; more than there are rows go on into further epochs."""
    if settings.loop:
        if settings.events is not None or settings.epochs is not None:
            raise SettingsError("--loop goes on until it is stopped; leave --events and --epochs out")
        return dataset.rows * LAPS
    if settings.events is None:
        return dataset.rows * (settings.epochs or 1)
    if settings.epochs is not None and settings.events > dataset.rows * settings.epochs:
        raise SettingsError(
            f"--events {settings.events}: {settings.epochs} epochs of the {dataset.rows} rows of {dataset.name} have "
            f"fewer; leave --epochs out, or give {-(-settings.events // dataset.rows)}"
        )
    return settings.events


def replay_options(settings: Settings, dataset: Dataset, start: int = 0) -> ReplayOptions:
    """How the data set is replayed."""
    return ReplayOptions(
        events=events_of(settings, dataset),
        rate_per_s=settings.rate_per_s,
        speed=speed_of(settings, dataset),
        shuffle_seed=settings.seed if settings.shuffle else None,
        partitions=settings.partitions,
        start=start,
    )


def speed_of(settings: Settings, dataset: Dataset) -> float | None:
    """How many times faster than it was a log is replayed; None: by the rate.

    Raises:
        SettingsError: the log has no times, or another setting asks for another order.
    """
    if settings.speed is None:
        return None
    if settings.shuffle:
        raise SettingsError(f"--speed {settings.speed} replays a log in its order; leave --shuffle out")
    speed = parse_speed(settings.speed)
    if speed != inf and not has_times(dataset):
        raise SettingsError(f"--speed {settings.speed}: {dataset.name} has no times of its decisions; give a --rate")
    return speed


def feedback_speed(settings: Settings) -> float:
    """By how much the delays of a log are shorter: as its times are."""
    return 1.0 if settings.speed is None else parse_speed(settings.speed)


SHORT_DELAY_SHARE = 0.001
"""This share of the feedback may come sooner than an embedded learner polls again, and then waits for it."""


def shortest_delay_ms(settings: Settings, dataset: Dataset) -> int:
    """The delay of all feedback but a thousandth is at least this."""
    if settings.delay == LOGGED:
        return int(min(logged_delays_ms(dataset), default=0) / feedback_speed(settings))
    return parse_delay(settings.delay).quantile_ms(SHORT_DELAY_SHARE)


def feedback_plan(settings: Settings, dataset: Dataset) -> FeedbackPlan:
    """How often and how late feedback comes."""
    if settings.delay == LOGGED:
        if not logged_delays_ms(dataset):
            raise SettingsError(
                f"--delay logged: {dataset.name} has no times of its feedback; give a model of the delay, such as "
                "--delay exponential:10s"
            )
        if feedback_speed(settings) == inf:
            raise SettingsError("--delay logged: --speed max leaves no time for it; give a factor, such as 60x")
        return FeedbackPlan(settings.seed, None, settings.loss, settings.duplicates)
    delay = parse_delay(settings.delay)
    delay.check_classes(dataset.n_classes)
    return FeedbackPlan(settings.seed, delay, settings.loss, settings.duplicates)
