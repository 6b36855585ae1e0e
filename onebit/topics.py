"""Create, describe and delete a pipeline's topics."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

from stream.kafka.port import Broker, TopicSettingsError
from stream.programs.connection import connect
from stream.settings.definitions import Settings
from stream.settings.values import format_retention
from stream.wire.topics import TopicDescription, Topics


class Created(NamedTuple):
    """The result of creating topics."""

    topics: int
    partitions: int
    updates: str | None  # the log of a shared model, if it exists


def create_topics(settings: Settings) -> Created:
    """Create missing topics and check existing topics.

    Raises:
        TopicSettingsError: a topic exists with a different configuration. The hint contains its retention.
    """
    topics, shares_model = settings.topics, settings.model_of(settings.partitions) == "shared"
    specs = topics.specs(settings.partitions, settings.replication, settings.retention_ms, shares_model=shares_model)
    with closing(connect(settings)) as broker:
        try:
            broker.create_topics(specs)
        except TopicSettingsError as error:
            error.hint = _retention_hint(topics, broker.describe_topics(list(topics)), settings.retention_ms)
            raise
    return Created(len(specs), settings.partitions, topics.updates if shares_model else None)


class Described(NamedTuple):
    """Descriptions of the topics."""

    topics: Mapping[str, TopicDescription | None]  # by name; None if the topic is missing
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all topics exist."""
        return None not in self.topics.values()


def describe_topics(settings: Settings) -> Described:
    """Describe the topics. Warn if retention may delete records that a recovery needs."""
    topics = settings.topics
    with closing(connect(settings)) as broker:
        found = broker.describe_topics(topics.all_of(shares_model=True))
    names = topics.all_of(shares_model=topics.updates in found)
    warnings = topics.retention_warnings(found, settings.snapshot_interval_ms, settings.window_ms)
    return Described({name: found.get(name) for name in names}, tuple(warnings))


@contextmanager
def deletable_topics(settings: Settings) -> Iterator[tuple[list[str], Broker]]:
    """Yield the names of the existing topics, and the `Broker` through which to delete them."""
    with closing(connect(settings)) as broker:
        yield list(broker.describe_topics(settings.topics.all_of(shares_model=True))), broker


def _retention_hint(topics: Topics, found: Mapping[str, TopicDescription], asked_ms: int) -> str:
    """Return a hint with the existing topics' retention if the requested retention differs."""
    kept_ms = {found[name].retention_ms for name in topics.of_events() if name in found}
    if len(kept_ms) != 1 or kept_ms == {asked_ms}:
        return ""
    (retention_ms,) = kept_ms
    return f"use --retention {format_retention(retention_ms)} to keep the existing value"
