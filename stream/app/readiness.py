"""The file that reports to health checks whether a learner is ready.

It exists while the learner is ready, and is touched every second. A killed or frozen process leaves the file behind, so
a check must also test its age:

    test -n "$(find "$ONEBIT_READY_FILE" -newermt '10 seconds ago')"
"""

import os
from collections.abc import Callable
from pathlib import Path

from stream.app.process import announce, monotonic_ms
from stream.app.settings import SettingsError

RENEWAL_MS = 1_000
"""A tenth of the age that a check should accept, so that one slow step does not make a learner unready."""


class ReadyFile:
    """Maintains the file; does nothing without a path."""

    def __init__(self, path: Path | None, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Remove the file of an earlier process.

        Raises:
            SettingsError: the file cannot be created or removed.
        """
        self._path = path
        self._now_ms = now_ms
        self._renewed_ms: int | None = None  # None: the file does not exist
        self._told_error = False
        if path is None:
            return
        if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise SettingsError(f"--ready-file {path}: expected a file in a writable folder")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"--ready-file {path}: cannot remove the existing file: {error}") from error

    def show(self, ready: bool) -> None:
        """Touch the file if the learner is ready, otherwise remove it; cheap enough for every step.

        A full disk does not stop the learner: the error is logged once, and the file becomes outdated.
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
                announce(f"--ready-file {self._path}: cannot update the file for health checks: {error}")
            self._told_error = True
