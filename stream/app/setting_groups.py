"""Settings that belong together, as small models: what a function needs of all settings, and no more.

A field has the name and the meaning of the field of `Settings` that it comes from.
"""

from dataclasses import dataclass

from producers.datasets.log import OnBadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The data set."""

    data: str  # a name, or a file
    map: str | None
    on_bad_row: OnBadRow
    reward_above: float | None
    n_features: int | None
    from_time: str | None
    to_time: str | None
    limit: int | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The replay of a data set."""

    events: int | None
    epochs: int | None
    shuffle: bool
    rate_per_s: float
    speed: str | None
    loop: bool
    seed: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The feedback of the simulated environment."""

    delay: str
    loss: float
    duplicates: float
    with_label: bool
    speed: str | None
    seed: int
