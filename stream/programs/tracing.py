"""A program's OpenTelemetry spans (`--traces`)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stream.programs.process import warn
from stream.settings.definitions import SettingsError, WatchSettings

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing


SDK_LOGGER = "opentelemetry"


class _Warnings(logging.Handler):
    """Logs the SDK's warnings, for example about an unavailable collector, as the program's own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record; see `logging.Handler`."""
        warn(f"traces: {record.getMessage()}")


@contextmanager
def traced(settings: WatchSettings, program: str) -> Iterator["Tracing | None"]:
    """Export a program's spans while the context is open. Yield None, and import nothing, if the setting is off.

    Args:
        settings: Settings that contain `traces`.
        program: The program's name.

    Raises:
        SettingsError: OpenTelemetry or the exporter is not installed.
    """
    if not settings.traces:
        yield None
        return
    try:
        from stream.telemetry.tracing import ExporterError, Tracing
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--traces requires {error.name}, which is not installed. Run: pip install 'onebit[otel]'"
        ) from error
    try:
        tracing = Tracing.from_environment(f"onebit-{program}")
    except ExporterError as error:
        raise SettingsError(f"--traces: {error}") from error
    sdk, warnings = logging.getLogger(SDK_LOGGER), _Warnings(logging.WARNING)
    sdk.addHandler(warnings)
    sdk.propagate = False
    try:
        yield tracing
    finally:
        tracing.close()
        sdk.removeHandler(warnings)
        sdk.propagate = True
