"""The replay of a data set, and the plan of its feedback."""

from math import inf

from producers.datasets.base import Dataset
from producers.datasets.logged import has_times, logged_delays_ms
from producers.replay import ReplayOptions
from stream.app.setting_groups import Feedback, Replay
from stream.app.setting_values import LOGGED
from stream.app.settings import SettingsError
from stream.durations import parse_speed
from stream.randomness.delays import FeedbackPlan, parse_delay

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
