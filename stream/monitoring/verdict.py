"""Whether a pipeline is alive, degraded, idle or stuck, in words, with the reason."""

from enum import StrEnum
from typing import NamedTuple

STUCK_MS = 2_000
"""Time without a step after which a learner is stuck if records wait: it makes one a second at least."""

PENDING_MS = 3_000
"""The same where decisions wait for their feedback alone: then it makes a step a second, to tell the time."""

ANSWERS_MS = 3_000
"""Time without an answer of Kafka after which the condition is unknown."""


FAULTY_SHARE = 0.05
"""From this share of malformed and misplaced records on, a pipeline is degraded."""


class Condition(StrEnum):
    """How a pipeline is."""

    ALIVE = "alive"
    DEGRADED = "degraded"
    IDLE = "idle"
    STUCK = "stuck"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """How a pipeline is, and why this is said."""

    condition: Condition
    why: str


class Intake(NamedTuple):
    """Records that the tasks have read, and those of them that do no good."""

    read: int = 0
    malformed: int = 0
    misplaced: int = 0

    @property
    def is_faulty(self) -> bool:
        """Whether too many are malformed or misplaced."""
        return self.malformed + self.misplaced >= FAULTY_SHARE * self.read > 0


class Seen(NamedTuple):
    """What a verdict is made from."""

    answered_ms: int  # how long ago Kafka answered
    stepped_ms: int  # how long ago the last step was seen, or, before the first one, when the monitor began
    steps: int  # of all tasks
    contexts: int  # that wait
    feedback: int  # likewise
    pending: int
    decided_per_s: float
    settled_per_s: float
    last_minute: Intake = Intake()
    in_all: Intake = Intake()


def judge(seen: Seen) -> Verdict:
    """How a pipeline is.

    >>> judge(Seen(100, 2_500, 7, 4_100, 0, 12, 0.0, 0.0)).why
    'no step for 2.5 s while 4,100 contexts wait'
    """
    if seen.answered_ms > ANSWERS_MS:
        return Verdict(Condition.UNKNOWN, f"Kafka has not answered the monitor for {seen.answered_ms / 1_000:.0f} s")
    waits = _waiting(seen)
    if waits and seen.stepped_ms > (STUCK_MS if seen.contexts or seen.feedback else PENDING_MS):
        return Verdict(Condition.STUCK, f"no step for {seen.stepped_ms / 1_000:.1f} s while {waits}")
    intake, period = (seen.last_minute, "in the last minute") if seen.last_minute.read else (seen.in_all, "in all")
    if intake.is_faulty:
        counts = (
            f"{intake.malformed:,} malformed and {intake.misplaced:,} misplaced of {intake.read:,} records {period}"
        )
        return Verdict(Condition.DEGRADED, counts)
    if seen.decided_per_s or seen.settled_per_s:
        return Verdict(Condition.ALIVE, f"{seen.decided_per_s:,.1f} decisions/s, {seen.settled_per_s:,.1f} settled/s")
    if waits:
        return Verdict(Condition.ALIVE, f"{waits}, and the learner makes steps")
    if not seen.steps:
        return Verdict(Condition.IDLE, "no learner has made a step yet, and nothing waits for one")
    return Verdict(Condition.IDLE, "nothing waits, and nothing comes")


def _waiting(seen: Seen) -> str:
    parts = []
    if seen.contexts:
        parts.append(f"{seen.contexts:,} {'context' if seen.contexts == 1 else 'contexts'}")
    if seen.feedback:
        parts.append(f"{seen.feedback:,} feedback")
    if not parts and seen.pending:
        return f"{seen.pending:,} {'decision is' if seen.pending == 1 else 'decisions are'} pending"
    return f"{' and '.join(parts)} {'wait' if (seen.contexts + seen.feedback) > 1 else 'waits'}" if parts else ""
