"""The file by which a health check sees whether a learner is ready.

It exists while the learner is ready, and its time is renewed every second. A process that was killed or is frozen
leaves the file behind, so that a check must ask for its age too:

    test -n "$(find "$ONEBIT_READY_FILE" -newermt '10 seconds ago')"
"""

import os
from collections.abc import Callable
from pathlib import Path

from stream.app.process import announce, monotonic_ms
from stream.app.settings import SettingsError

RENEWAL_MS = 1_000
"""A tenth of the age that a check should accept: one slow step does not make a learner unready."""


class ReadyFile:
    """Tells readiness by a file; without a path nothing is told."""

    def __init__(self, path: Path | None, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Remove what an earlier process may have left.

        Raises:
            SettingsError: the file cannot be made or removed.
        """
        self._path = path
        self._now_ms = now_ms
        self._renewed_ms: int | None = None  # None: the file is not there
        self._told_error = False
        if path is None:
            return
        if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise SettingsError(f"--ready-file {path}: expected a file in a folder that can be written to")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"--ready-file {path}: what is there cannot be removed: {error}") from error

    def show(self, ready: bool) -> None:
        """Keep the file fresh while the learner is ready, and remove it when it is not; cheap enough for every step.

        A disk that is full does not stop the learner: it is told once, and the check finds no fresh file.
        """
        if self._path is None:
            return
        try:
            if not ready:
                if self._renewed_ms is not None:
                    self._path.unlink(missing_ok=True)
                    self._renewed_ms = None
            elif self._renewed_ms is None or self._now_ms() - self._renewed_ms >= RENEWAL_MS:
                self._path.touch()
                self._renewed_ms = self._now_ms()
        except OSError as error:
            if not self._told_error:
                announce(f"--ready-file {self._path}: health checks cannot be told: {error}")
            self._told_error = True
