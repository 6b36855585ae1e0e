"""The ledger, which counts every input record exactly once, under its outcome."""

from collections.abc import Iterable
from typing import NamedTuple

IDENTITIES = {
    "contexts": ("decided", "context_duplicates", "context_malformed"),
    "decided": ("pending", "deferred", "matched", "expired", "unshown", "unmatched"),
    "feedback": (
        "matched", "late", "feedback_duplicates", "mismatched", "orphans_waiting", "orphans_dropped",
        "feedback_malformed", "feedback_unmatched", "shown", "answered", "combined", "feedback_excess",
    ),
}  # fmt: skip
"""Equations between `Ledger` fields that are true at every commit. The keys are totals, the values their summands."""


class Ledger(NamedTuple):
    """Counts of all contexts and feedback records, by outcome."""

    contexts: int = 0  # records read from the contexts topic
    decided: int = 0
    context_duplicates: int = 0
    context_malformed: int = 0
    feedback: int = 0  # records read from the feedback topic
    matched: int = 0
    expired: int = 0
    pending: int = 0
    late: int = 0
    feedback_duplicates: int = 0
    conflicts: int = 0  # duplicates whose reward differs from the first reward
    orphans_waiting: int = 0
    orphans_dropped: int = 0
    feedback_malformed: int = 0
    mismatched: int = 0  # feedback for an action other than the decision's action
    contexts_misplaced: int = 0  # contexts whose key belongs to a different partition
    feedback_misplaced: int = 0
    unmatched: int = 0  # decisions without a bit, because the log has a different action
    feedback_unmatched: int = 0  # feedback for unmatched decisions
    propensities_floored: int = 0  # decisions whose logged propensity was raised to the minimum
    deferred: int = 0  # deferred decisions that are waiting to be shown
    unshown: int = 0  # deferred decisions that were not shown in time
    shown: int = 0  # shown records that were accepted
    pending_evicted: int = 0  # decisions that expired early, because `pending_max` was exceeded
    deferred_evicted: int = 0  # deferred decisions that were settled early, because `pending_max` was exceeded
    orphans_evicted: int = 0  # orphans that were dropped early, because `orphans_max` was exceeded
    retained_evicted: int = 0  # ids that were forgotten early, because `retained_max` was exceeded
    answered: int = 0  # pending decisions with a reward that later feedback can still change
    combined: int = 0  # feedback that was combined with earlier feedback for the same decision
    feedback_excess: int = 0  # feedback for decisions that already had the maximum number of parts

    @property
    def balances(self) -> bool:
        """Whether every record is counted exactly once."""
        return not self.imbalances()

    def imbalances(self) -> tuple[str, ...]:
        """Return the violated equations with the actual counts. The result is empty if all equations are true.

        >>> Ledger(contexts=3, decided=2, matched=2, feedback=2).imbalances()
        ('contexts 3 != 2 = decided 2 + context_duplicates 0 + context_malformed 0',)
        """
        failed = []
        counts = self._asdict()
        for total, parts in IDENTITIES.items():
            if counts[total] != (found := sum(counts[part] for part in parts)):
                terms = " + ".join(f"{part} {counts[part]}" for part in parts)
                failed.append(f"{total} {counts[total]} != {found} = {terms}")
        return tuple(failed)

    def __add__(self, other: object) -> "Ledger":  # adds the counts instead of concatenating them
        """Return the sum of two partitions' ledgers.

        >>> Ledger(contexts=3, decided=3) + Ledger(contexts=2, decided=1, context_duplicates=1)  # doctest: +ELLIPSIS
        Ledger(contexts=5, decided=4, context_duplicates=1, ...)
        """
        if not isinstance(other, Ledger):
            return NotImplemented
        return Ledger(*(mine + others for mine, others in zip(self, other, strict=True)))


def total_ledger(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum of all partitions' ledgers."""
    return sum(ledgers, start=Ledger())


MISPLACED_REMEDY = (
    "records whose key belongs to a different partition, because their producer uses a different partitioner; with "
    "librdkafka, whose default is CRC32, set partitioner=murmur2_random"
)
"""Explanation and remedy for `Ledger.contexts_misplaced` and `Ledger.feedback_misplaced`."""
