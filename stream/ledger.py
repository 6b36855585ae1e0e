"""The ledger: every record that came in is accounted for, exactly once, under one of these names."""

from typing import NamedTuple


class Ledger(NamedTuple):
    """Counts of one task at a commit, or their sum over several tasks."""

    contexts: int = 0  # context records applied
    decided: int = 0  # contexts answered with a prediction
    context_duplicates: int = 0  # contexts whose id had a decision already
    context_malformed: int = 0
    feedback: int = 0  # feedback records applied
    matched: int = 0  # decisions settled by feedback in time
    expired: int = 0  # decisions whose deadline passed
    pending: int = 0  # decisions that still wait
    late: int = 0  # feedback whose decision had expired
    feedback_duplicates: int = 0  # feedback whose decision had its feedback already
    conflicts: int = 0  # those among the duplicates that carry the other bit
    orphans_waiting: int = 0  # feedback that waits for its context
    orphans_dropped: int = 0  # feedback whose context did not come in time
    feedback_malformed: int = 0

    def plus(self, other: "Ledger") -> "Ledger":
        """The sum, field by field."""
        return Ledger(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def imbalances(self) -> list[str]:
        """The identities that do not hold, each with its figures; empty for a ledger that adds up."""
        identities = (
            (
                "contexts = decided + duplicate + malformed",
                self.contexts,
                (self.decided, self.context_duplicates, self.context_malformed),
            ),
            (
                "decided = pending + matched + expired",
                self.decided,
                (self.pending, self.matched, self.expired),
            ),
            (
                "feedback = matched + late + duplicate + orphan_waiting + orphan_dropped + malformed",
                self.feedback,
                (
                    self.matched,
                    self.late,
                    self.feedback_duplicates,
                    self.orphans_waiting,
                    self.orphans_dropped,
                    self.feedback_malformed,
                ),
            ),
        )
        return [
            f"{name}: {total} = {' + '.join(map(str, parts))} does not hold"
            for name, total, parts in identities
            if total != sum(parts)
        ]

    @property
    def balances(self) -> bool:
        """Whether all identities hold."""
        return not self.imbalances()
