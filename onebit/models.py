"""Export current and past models, and import models."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from stream.programs.connection import connected
from stream.programs.replay_progress import replay_progress
from stream.recovery.model_files import Model, read_model
from stream.settings.definitions import Settings, SettingsError
from stream.settings.values import parse_time
from stream.verifying.models import TooEarlyError, export_model, import_model, import_shared_model


class Moment(NamedTuple):
    """The point in time for which a model is exported; by default, the present."""

    at: str | None = None  # broker time
    journal: int | None = None  # number of the last journal step to include
    version: int | None = None  # version of a shared model


NOW = Moment()


def exported(settings: Settings, moment: Moment = NOW, partition: int = 0) -> Model:
    """Rebuild a partition's model as of a given moment, from the latest earlier snapshot and the journal.

    Raises:
        SettingsError: more than one moment is given, the partition does not exist, or no step precedes that moment.
    """
    given = {f"--{name}": value for name, value in moment._asdict().items() if value is not None}
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)}: expected only one of them; got {len(given)}")
    with connected(settings) as (broker, topics, partitions):
        _check_partition(partition, partitions)
        at_ms = None if moment.at is None else time_ms(moment.at)
        progress = replay_progress(f"partition {partition}")
        try:
            return export_model(
                broker, topics, partition, number=moment.journal, at_ms=at_ms, version=moment.version, progress=progress
            )
        except TooEarlyError as error:
            raise SettingsError(
                f"--at {moment.at}: {error.place} has no step at that time; expected "
                f"{_like(moment.at or '', error.first_ms)} (the first step) or later"
            ) from error


class Imported(NamedTuple):
    """The result of an import: a new pipeline's initial model."""

    model: Model
    partitions: int  # number of partitions with this model
    is_shared: bool


def imported(settings: Settings, path: Path, partition: int | None = None) -> Imported:
    """Write a model to the topics as the state before the first step.

    Args:
        settings: Connection settings.
        path: The model's file.
        partition: The partition whose task starts with the model; None means all partitions.

    Raises:
        ModelError: the file cannot be read, or a learner has already started.
        SettingsError: the partition does not exist.
    """
    model = read_model(path)
    with connected(settings) as (broker, topics, partitions):
        if partition is not None:
            _check_partition(partition, partitions)
        chosen = range(partitions) if partition is None else [partition]
        is_shared = partition is None and topics.updates in broker.describe_topics([topics.updates])
        if is_shared:
            import_shared_model(broker, topics, partitions, model, f"{settings.topic_prefix}import-0")
        else:
            for number in chosen:
                import_model(broker, topics, number, model, f"{settings.topic_prefix}import-{number}")
    return Imported(model, len(chosen), is_shared)


def _check_partition(partition: int, partitions: int) -> None:
    if partition >= partitions:
        raise SettingsError(f"--partition: expected 0 to {partitions - 1}; got {partition}")


def time_ms(text: str) -> int:
    """Convert a time to milliseconds since 1970. A time without a zone is in UTC."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise SettingsError(f"--at {text}: {error}") from error


def _like(text: str, ms: int) -> str:
    """Format a time in the style of the given text: as milliseconds, or as a date in the same time zone."""
    if text.isdecimal():
        return str(ms)
    zone = datetime.fromisoformat(text).tzinfo or UTC
    return datetime.fromtimestamp(ms / 1_000, zone).isoformat(timespec="milliseconds")
