"""A pipeline's condition (alive, degraded, idle, stuck or unknown), and the reason for it."""

from enum import StrEnum
from typing import NamedTuple

STUCK_MS = 2_000
"""A learner with waiting records is considered stuck if it completes no step for this long. Normally, it completes a
step every second."""

PENDING_MS = 3_000
"""A learner with pending decisions is considered stuck if it completes no step for this long. Normally, a tick is
written every second."""

ANSWERS_MS = 3_000
"""Time for which Kafka may fail to respond before the status is reported as unknown."""


FAULTY_SHARE = 0.05
"""A pipeline is degraded if at least this share of its records is malformed or misplaced."""


class Condition(StrEnum):
    """A pipeline's condition."""

    ALIVE = "alive"
    DEGRADED = "degraded"
    IDLE = "idle"
    STUCK = "stuck"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """A pipeline's condition, and the reason for it."""

    condition: Condition
    why: str


class Intake(NamedTuple):
    """The numbers of read, malformed and misplaced records, summed over the tasks."""

    read: int = 0
    malformed: int = 0
    misplaced: int = 0

    @property
    def is_faulty(self) -> bool:
        """Return whether too many records are malformed or misplaced."""
        return self.malformed + self.misplaced >= FAULTY_SHARE * self.read > 0


class Seen(NamedTuple):
    """The data from which the condition is determined."""

    answered_ms: int  # time since the last response from Kafka
    stepped_ms: int  # time since the last step, or since the monitor's start
    steps: int  # total number of steps in all tasks
    contexts: int  # number of waiting contexts
    feedback: int  # number of waiting feedback records
    pending: int
    decided_per_s: float
    settled_per_s: float
    last_minute: Intake = Intake()
    in_all: Intake = Intake()


def judge(seen: Seen) -> Verdict:
    """Return a pipeline's condition.

    >>> judge(Seen(100, 2_500, 7, 4_100, 0, 12, 0.0, 0.0)).why
    'no step for 2.5 s while 4,100 contexts wait'
    """
    if seen.answered_ms > ANSWERS_MS:
        return Verdict(Condition.UNKNOWN, f"no response from Kafka for {seen.answered_ms / 1_000:.0f} s")
    waits = _waiting(seen)
    if waits and seen.stepped_ms > (STUCK_MS if seen.contexts or seen.feedback else PENDING_MS):
        return Verdict(Condition.STUCK, f"no step for {seen.stepped_ms / 1_000:.1f} s while {waits}")
    intake, period = (seen.last_minute, "in the last minute") if seen.last_minute.read else (seen.in_all, "in total")
    if intake.is_faulty:
        counts = (
            f"{intake.malformed:,} malformed and {intake.misplaced:,} misplaced of {intake.read:,} records {period}"
        )
        return Verdict(Condition.DEGRADED, counts)
    if seen.decided_per_s or seen.settled_per_s:
        return Verdict(Condition.ALIVE, f"{seen.decided_per_s:,.1f} decisions/s, {seen.settled_per_s:,.1f} settled/s")
    if waits:
        return Verdict(Condition.ALIVE, f"{waits}; the learner is making progress")
    if not seen.steps:
        return Verdict(Condition.IDLE, "no learner has completed a step yet; no records are waiting")
    return Verdict(Condition.IDLE, "no records are waiting")


def _waiting(seen: Seen) -> str:
    parts = []
    if seen.contexts:
        parts.append(f"{seen.contexts:,} {'context' if seen.contexts == 1 else 'contexts'}")
    if seen.feedback:
        parts.append(f"{seen.feedback:,} feedback")
    if not parts and seen.pending:
        return f"{seen.pending:,} {'decision is' if seen.pending == 1 else 'decisions are'} pending"
    return f"{' and '.join(parts)} {'wait' if (seen.contexts + seen.feedback) > 1 else 'waits'}" if parts else ""
