"""A program's health checks and metrics (`--metrics-port`)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stream import __version__
from stream.programs.process import monotonic_ms
from stream.settings.definitions import SettingsError, WatchSettings
from stream.settings.values import flag_of
from stream.telemetry.heartbeat import Heartbeat, Heartbeats
from stream.telemetry.metrics import Sample

if TYPE_CHECKING:
    from stream.telemetry.serving import Site


class Watched:
    """Publishes a program's health and metrics. Does nothing if no port is set."""

    def __init__(self, heartbeat: Heartbeat | None) -> None:
        self._heartbeat = heartbeat

    @property
    def is_enabled(self) -> bool:
        """Whether metrics are served. If not, the program does not need to count anything."""
        return self._heartbeat is not None

    def with_heartbeat(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Return the callback `stop`, wrapped so that each call records a heartbeat."""
        heartbeat = self._heartbeat
        if heartbeat is None:
            return stop

        def ask() -> bool:
            heartbeat.beat()
            return stop()

        return ask

    def set_unready(self, why: str) -> None:
        """Record that the program is not ready, and why; see `Heartbeat`."""
        if self._heartbeat is not None:
            self._heartbeat.set_unready(why)

    def show(self, unready: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """Record an iteration of the main loop; see `Heartbeat`."""
        if self._heartbeat is not None:
            self._heartbeat.show(unready, samples)


@contextmanager
def watched(settings: WatchSettings, program: str, site: "Site | None" = None) -> Iterator[Watched]:
    """Serve a program's health and metrics while the context is open.

    Args:
        settings: Settings that contain the host and the port.
        program: The program's name.
        site: The program's pages; if given, the server uses the page port instead of the metrics port.

    Raises:
        SettingsError: the address cannot be used.
    """
    field = "metrics_port" if site is None else "page_port"
    if getattr(settings, field) == 0:
        yield Watched(None)
        return
    heartbeat = Heartbeat(program, __version__, monotonic_ms)
    with _served(settings, field, heartbeat, site):
        yield Watched(heartbeat)


@contextmanager
def watched_pipelines(settings: WatchSettings, program: str, names: Iterable[str]) -> Iterator[dict[str, Watched]]:
    """Serve the health and metrics of several pipelines on one port; see `watched`.

    Args:
        settings: Settings that contain the host and the port.
        program: The program's name.
        names: The pipelines' names.
    """
    if settings.metrics_port == 0:
        yield {name: Watched(None) for name in names}
        return
    heartbeats = {name: Heartbeat(program, __version__, monotonic_ms) for name in names}
    with _served(settings, "metrics_port", Heartbeats(heartbeats)):
        yield {name: Watched(heartbeat) for name, heartbeat in heartbeats.items()}


@contextmanager
def _served(
    settings: WatchSettings, field: str, heartbeat: Heartbeat | Heartbeats, site: "Site | None" = None
) -> Iterator[None]:
    from stream.telemetry.serving import HealthServer  # deferred: most programs do not need HTTP

    port: int = getattr(settings, field)
    try:
        server = HealthServer(heartbeat, settings.metrics_host, port, site)
    except OSError as error:
        raise SettingsError(
            f"{flag_of(field)} {port}: cannot listen on {settings.metrics_host}: "
            f"{error.strerror or error}. Use a different port for each program"
        ) from error
    try:
        yield
    finally:
        server.close()
