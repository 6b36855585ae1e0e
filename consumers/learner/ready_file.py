"""The learner's file for health checks."""

import os
from collections.abc import Callable
from pathlib import Path

from stream.programs.process import announce, monotonic_ms
from stream.settings.definitions import SettingsError

RENEWAL_MS = 1_000
"""Interval between updates to the ready file. Health checks should accept a file whose age is up to ten times this
interval, because a step may be slow."""


class ReadyFile:
    """Maintains the file for health checks (`--ready-file`). Does nothing if no path is set."""

    def __init__(self, path: Path | None, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Remove the file left by an earlier process.

        Raises:
            SettingsError: the file cannot be created or removed.
        """
        self._path = path
        self._now_ms = now_ms
        self._renewed_ms: int | None = None  # None if the file does not exist
        self._has_logged_error = False
        if path is None:
            return
        if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise SettingsError(f"--ready-file {path}: expected a file in a writable folder")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"--ready-file {path}: cannot remove the existing file: {error}") from error

    def show(self, ready: bool) -> None:
        """Touch the file if the learner is ready; otherwise, remove it. A call is cheap enough for every step.

        A full disk does not stop the learner: the error is logged once, and the file becomes stale.
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
            if not self._has_logged_error:
                announce(f"--ready-file {self._path}: cannot update the file for health checks: {error}")
            self._has_logged_error = True
