"""A replay's number of events, order and rate."""

from dataclasses import dataclass
from math import inf

from producers.datasets.base import Dataset
from stream.parsing import parse_speed
from stream.settings.definitions import ReplaySettings, SettingsError


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The data to replay, and the rate."""

    events: int  # end of the replay: positions from `start` to events - 1 are sent
    rate_per_s: float = 1_000.0  # events per second; inf means as fast as the broker accepts events
    speed: float | None = None  # pace relative to the log; inf sends all events at once, None uses `rate_per_s`
    shuffle_seed: int | None = None  # seed of the shuffle; None means row order
    partitions: int = 1
    start: int = 0  # the first position to send
    batch_max: int = 1_000  # maximum number of events sent per check of the clock


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
