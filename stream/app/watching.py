"""How a program is watched from outside: what it tells by `--metrics-port`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stream import __version__
from stream.app.process import monotonic_ms
from stream.app.setting_values import flag_of
from stream.app.settings import Settings, SettingsError
from stream.telemetry.metrics import Sample
from stream.telemetry.vital import Vital

if TYPE_CHECKING:
    from stream.telemetry.serving import Site


class Watched:
    """A program that others may watch; where nobody may, telling costs nothing."""

    def __init__(self, vital: Vital | None) -> None:
        self._vital = vital

    @property
    def tells(self) -> bool:
        """Whether anybody may watch: else nothing needs to be counted for it."""
        return self._vital is not None

    def beats(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """The same question, whether to stop, as a sign of life: whoever asks it is about to go on."""
        vital = self._vital
        if vital is None:
            return stop

        def ask() -> bool:
            vital.beat()
            return stop()

        return ask

    def waits(self, why: str) -> None:
        """See Vital."""
        if self._vital is not None:
            self._vital.waits(why)

    def show(self, unready: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """See Vital."""
        if self._vital is not None:
            self._vital.show(unready, samples)


@contextmanager
def watched(settings: Settings, program: str, site: "Site | None" = None) -> Iterator[Watched]:
    """A program, and whoever may watch it by these settings.

    Args:
        settings: they name the address.
        program: what it is called.
        site: its pages; a program that has some has a port for them.

    Raises:
        SettingsError: it cannot listen at that address.
    """
    field = "metrics_port" if site is None else "page_port"
    port: int = getattr(settings, field)
    if port == 0:
        yield Watched(None)
        return
    from stream.telemetry.serving import VitalServer  # here: most programs are not watched, and need no HTTP

    vital = Vital(program, __version__, monotonic_ms)
    try:
        server = VitalServer(vital, settings.metrics_host, port, site)
    except OSError as error:
        raise SettingsError(
            f"{flag_of(field)} {port}: cannot listen at {settings.metrics_host}: "
            f"{error.strerror or error}; give each program of this machine a port of its own"
        ) from error
    try:
        yield Watched(vital)
    finally:
        server.close()
