"""The delays, losses and duplicates of simulated feedback."""

from math import inf

from producers.datasets.base import Dataset
from stream.parsing import parse_speed
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.settings.definitions import FeedbackSettings, SettingsError
from stream.settings.values import LOGGED


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
        if not dataset.has_delays():
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
