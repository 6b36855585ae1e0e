"""The `--since` option: the time from which records are read."""

import time

from stream.parsing import DurationError, parse_duration
from stream.settings.definitions import SettingsError
from stream.settings.values import parse_time


def parse_since(since: str) -> int:
    """Parse a time into milliseconds since 1970. A duration is relative to this host's clock.

    Raises:
        SettingsError: the text is neither a duration nor a time.
    """
    try:
        return time.time_ns() // 1_000_000 - parse_duration(since)
    except DurationError:
        pass
    try:
        return parse_time(since)
    except ValueError as error:
        raise SettingsError(f"--since: expected a duration such as 5m, or a time; {error}") from error
