"""Export current and past models, import models, and replay journals."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from stream.app.connection import connected
from stream.app.process import announce, every, monotonic_ms
from stream.app.setting_values import parse_time
from stream.app.settings import Settings, SettingsError
from stream.journal.recover import Progress
from stream.verifying.model_files import Model, read_model
from stream.verifying.models import TooEarlyError, export_model, import_model, import_shared_model
from stream.verifying.reapply import Replay, replay_journal

PROGRESS_INTERVAL_MS = 5_000


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
        progress = announced_progress(f"partition {partition}")
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


def replayed(settings: Settings) -> list[Replay]:
    """Replay every partition's whole journal."""
    with connected(settings) as (broker, topics, partitions):
        return [
            replay_journal(broker, topics, partition, announced_progress(f"replaying partition {partition}"))
            for partition in range(partitions)
        ]


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


def announced_progress(label: str) -> Callable[[Progress], None]:
    """Return a function that logs the progress of a replay at intervals."""
    started_ms = monotonic_ms()
    latest: list[Progress] = []

    def report() -> None:
        number, _, last, records = latest[-1]
        rate = 1_000 * records / max(monotonic_ms() - started_ms, 1)
        announce(f"{label}: step {number:,} of {last:,}, {rate:,.0f} records/s")

    show = every(PROGRESS_INTERVAL_MS, report)

    def update(progress: Progress) -> None:
        latest[:] = [progress]
        show()

    return update
