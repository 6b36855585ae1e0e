"""The topics of a pipeline: created, described and deleted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from stream.app.connection import connect
from stream.app.setting_values import format_retention
from stream.app.settings import Settings
from stream.kafka.port import Broker, TopicSettingsError
from stream.wire.topics import TopicDescription, Topics


class Created(NamedTuple):
    """The topics that are there now."""

    topics: int
    partitions: int
    updates: str | None  # the log of a shared model, if there is one


def create_topics(settings: Settings) -> Created:
    """Create all topics; those that exist are checked.

    Raises:
        TopicSettingsError: a topic exists with other settings; its hint names a retention that fits.
    """
    shares_model = settings.model_of(settings.partitions) == "shared"
    with _connected(settings) as (broker, topics):
        specs = topics.specs(
            settings.partitions, settings.replication, settings.retention_ms, shares_model=shares_model
        )
        try:
            broker.create_topics(specs)
        except TopicSettingsError as error:
            error.hint = _retention_hint(topics, broker.describe_topics(list(topics)), settings.retention_ms)
            raise
    return Created(len(specs), settings.partitions, topics.updates if shares_model else None)


class Described(NamedTuple):
    """The topics as they are."""

    topics: Mapping[str, TopicDescription | None]  # by name; None: it is missing
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all topics are there."""
        return None not in self.topics.values()


def describe_topics(settings: Settings) -> Described:
    """Describe the topics, with a warning where records are deleted before a recovery is sure not to need them."""
    with _connected(settings) as (broker, topics):
        found = broker.describe_topics(topics.all_of(shares_model=True))
    names = topics.all_of(shares_model=topics.updates in found)
    warnings = topics.retention_warnings(found, settings.snapshot_interval_ms, settings.window_ms)
    return Described({name: found.get(name) for name in names}, tuple(warnings))


@contextmanager
def deletable_topics(settings: Settings) -> Iterator[tuple[list[str], Broker]]:
    """The names of the topics that are there, and the broker that deletes them."""
    with _connected(settings) as (broker, topics):
        yield list(broker.describe_topics(topics.all_of(shares_model=True))), broker


@contextmanager
def _connected(settings: Settings) -> Iterator[tuple[Broker, Topics]]:
    broker = connect(settings)
    try:
        yield broker, settings.topics
    finally:
        broker.close()


def _retention_hint(topics: Topics, found: Mapping[str, TopicDescription], asked_ms: int) -> str:
    """The retention that accepts existing topics, if it is what differs."""
    kept_ms = {found[name].retention_ms for name in topics.of_events() if name in found}
    if len(kept_ms) != 1 or kept_ms == {asked_ms}:
        return ""
    (retention_ms,) = kept_ms
    return f"--retention {format_retention(retention_ms)} accepts theirs"
