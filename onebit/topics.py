"""Create, alter, describe and delete a pipeline's topics."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

from stream.kafka.port import Broker, TopicSettingsError
from stream.programs.connection import command_hint, connect, require_topics
from stream.programs.keep import check_keep
from stream.settings.definitions import Settings, SettingsError
from stream.settings.task_fields import JoinSettings
from stream.settings.values import format_retention
from stream.wire.topics import TopicDescription, TopicSpec


class Created(NamedTuple):
    """The result of creating topics."""

    topics: int
    partitions: int
    updates: str | None  # the log of a shared model, if it exists


def create_topics(settings: Settings) -> Created:
    """Create missing topics and check existing topics.

    Raises:
        SettingsError: the retention is too short for the windows.
        TopicSettingsError: a topic exists with a different configuration. The hint contains its retention.
    """
    check_keep(settings.keep_ms, settings.join, settings.snapshot_interval_ms)
    topics, shares_model = settings.topics, settings.model_of(settings.partitions) == "shared"
    specs = topics.specs(settings.partitions, settings.replication, settings.keep_ms, shares_model=shares_model)
    with closing(connect(settings)) as broker:
        try:
            broker.create_topics(specs)
        except TopicSettingsError as error:
            error.hint = _keep_hint(broker.describe_topics(list(topics)), settings)
            raise
    return Created(len(specs), settings.partitions, topics.updates if shares_model else None)


def alter_topics(settings: Settings) -> list[str]:
    """Change the retention of a pipeline's topics. Return their names.

    Raises:
        SettingsError: the retention is too short for the windows, or a topic is missing.
    """
    with closing(connect(settings)) as broker:
        join = _join_of(broker, settings, require_topics(broker, settings))
        check_keep(settings.keep_ms, join, settings.snapshot_interval_ms)
        found = settings.topics.limited(broker.describe_topics(settings.topics.all_of(shares_model=True)))
        broker.alter_topics([
            TopicSpec(name, topic.partitions, topic.compacted, settings.keep_ms, topic.replication)
            for name, topic in found.items()
        ])  # fmt: skip
    return list(found)


def _join_of(broker: Broker, settings: Settings, partitions: int) -> JoinSettings:
    """Return a pipeline's windows or, before its first step, the user's."""
    from stream.recovery.recover import pipeline_settings  # deferred: loads numba
    from stream.task.stored_settings import restored_settings

    stored = pipeline_settings(broker, settings.topics, partitions).settings
    return restored_settings(stored).join if "seed" in stored else settings.join


class Described(NamedTuple):
    """Descriptions of the topics."""

    topics: Mapping[str, TopicDescription | None]  # by name; None if the topic is missing
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all topics exist."""
        return None not in self.topics.values()


def describe_topics(settings: Settings) -> Described:
    """Describe the topics. Warn if their retention is too short, or differs between topics."""
    topics = settings.topics
    with closing(connect(settings)) as broker:
        found = broker.describe_topics(topics.all_of(shares_model=True))
    names = topics.all_of(shares_model=topics.updates in found)
    return Described({name: found.get(name) for name in names}, tuple(_warnings(found, settings)))


def _warnings(found: Mapping[str, TopicDescription], settings: Settings) -> Iterator[str]:
    keep_ms = settings.topics.keep_ms(found)
    try:
        check_keep(keep_ms, settings.join, settings.snapshot_interval_ms)
    except SettingsError as error:
        yield str(error)
    if longer := [name for name, topic in settings.topics.limited(found).items() if topic.retention_ms != keep_ms]:
        yield (
            f"{', '.join(longer)}: expected retention {format_retention(keep_ms)}, as for the other topics; got "
            f"{', '.join(format_retention(found[name].retention_ms) for name in longer)}. Run: "
            f"{command_hint(settings, 'topics alter')} --keep {format_retention(keep_ms)}"
        )


@contextmanager
def deletable_topics(settings: Settings) -> Iterator[tuple[list[str], Broker]]:
    """Yield the names of the existing topics, and the `Broker` through which to delete them."""
    with closing(connect(settings)) as broker:
        yield list(broker.describe_topics(settings.topics.all_of(shares_model=True))), broker


def _keep_hint(found: Mapping[str, TopicDescription], settings: Settings) -> str:
    """Return a hint with the existing topics' retention if the requested retention differs."""
    kept_ms = {topic.retention_ms for topic in settings.topics.limited(found).values()}
    if kept_ms == {settings.keep_ms}:
        return ""
    alter = f"{command_hint(settings, 'topics alter')} --keep {format_retention(settings.keep_ms)}"
    keeps = f"use --keep {format_retention(kept_ms.pop())} to keep the existing value, or " if len(kept_ms) == 1 else ""
    return f"{keeps}change it: {alter}"
