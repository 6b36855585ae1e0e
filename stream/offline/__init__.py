"""Offline runs of learners, without the pipeline: one learner, or one model that several partitions share."""

from stream.offline.loop import (
    EXPIRED,
    FOR_EVER,
    LATE,
    MATCHED,
    NEVER,
    Examples,
    Patience,
    Run,
    Schedule,
    check_run,
    run,
    schedule_of,
)

__all__ = [
    "EXPIRED",
    "FOR_EVER",
    "LATE",
    "MATCHED",
    "NEVER",
    "Examples",
    "Patience",
    "Run",
    "Schedule",
    "check_run",
    "run",
    "schedule_of",
]
