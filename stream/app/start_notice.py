"""The first line of a program's log: version, program, and settings."""

import stream
from stream.app.connection import by_client
from stream.app.process import announce, quantity
from stream.app.setting_values import setting_name
from stream.app.settings import Program, Settings


def announce_start(program: Program, settings: Settings, partitions: int) -> None:
    """Log version, client, topics, and the settings that differ from their defaults."""
    differing = settings_that_differ(settings)
    shown = ", ".join(f"{name} {value}" for name, value in differing.items()) or "all defaults"
    announce(
        f"onebit {stream.__version__} {program}, {by_client(settings)}, topics {settings.topic_prefix}* with "
        f"{quantity(partitions, 'partition')}; settings: {shown}",
        version=stream.__version__, program=str(program), settings=differing,
    )  # fmt: skip


def settings_that_differ(settings: Settings) -> dict[str, str]:
    """Return the given settings that differ from their defaults, in text form; secrets are hidden."""
    shown, fields = settings.shown(), Settings.model_fields
    return {
        setting_name(field): ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for field in fields
        if field in settings.given and getattr(settings, field) != fields[field].default
        for value in (shown[setting_name(field)],)
    }
