"""Checks that a pipeline's topics keep their records long enough."""

from stream.parsing import format_duration
from stream.settings.definitions import SettingsError
from stream.settings.task_fields import JoinSettings
from stream.settings.values import flag_of, setting_name

MARGIN = 4
"""Factor between the smallest retention and the time that a decision can be remembered. An idle task renews its
snapshot after this fraction of the retention, and an event is then forgotten by the next snapshot."""


def check_keep(keep_ms: int, join: JoinSettings, snapshot_interval_ms: int) -> None:
    """Check the retention of a pipeline's topics; -1 means unlimited.

    Raises:
        SettingsError: the retention is too short for the windows, or there are no snapshots.
    """
    if keep_ms < 0:
        return
    if not snapshot_interval_ms:
        raise SettingsError(
            f"--snapshot-interval 0s: expected snapshots, because the topics keep records for "
            f"{format_duration(keep_ms)}. Set --snapshot-interval, or use onebit topics alter --keep unlimited"
        )
    parts_ms = {
        "window_ms": join.window_ms,
        "activation_window_ms": join.activation_limit_ms,
        "orphan_window_ms": join.orphan_window_ms,
        "retain_ms": join.retain_ms,
        "snapshot_interval_ms": snapshot_interval_ms,
    }
    needed_ms = MARGIN * sum(parts_ms.values())
    if keep_ms < needed_ms:
        named = ", ".join(
            f"{flag_of(setting_name(name))} {format_duration(value_ms)}" for name, value_ms in parts_ms.items()
        )
        raise SettingsError(
            f"--keep: expected at least {format_duration(needed_ms)}, {MARGIN} times the sum of {named}; got "
            f"{format_duration(keep_ms)}. Reduce these settings, or use onebit topics alter --keep"
        )
