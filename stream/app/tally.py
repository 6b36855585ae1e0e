"""What a running learner tells people: its counts, how often it was right, and when it cannot read what it gets."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from stream.journal.commit import Commit
from stream.reporting.remedies import MISPLACED_REMEDY
from stream.task.task import DeadLetter
from stream.wire.events import DRIFT_OF_ALL, Outcome
from stream.wire.ledger import Ledger

DEAD_SHARE_MAX = 0.01
"""More dead letters than this among the records of an interval, and something is set up wrongly."""

_ALWAYS = ("decided", "matched", "pending")
_ORDER = ("decided", "matched", "expired", "pending", "late", "context_duplicates", "feedback_duplicates")
_TOTALS = ("contexts", "feedback")


class Tally:
    """What was published since the program started, and since people were told last."""

    def __init__(self) -> None:
        self._matched = 0
        self._rewards = 0
        self._records = 0  # since people were told last, as are those below
        self._dead = 0
        self._last_dead: DeadLetter | None = None
        self._misplaced: dict[int, int] = {}  # by partition, as people were told last

    def add(self, commits: Sequence[Commit]) -> None:
        """Take in what a transaction has published."""
        for commit in commits:
            effects = commit.effects
            matched = [example for example, _ in effects.examples if example.outcome is Outcome.MATCHED]
            self._matched += len(matched)
            self._rewards += sum(example.reward == 1 for example in matched)
            self._records += commit.records
            self._dead += len(effects.dead_letters)
            if effects.dead_letters:
                self._last_dead = effects.dead_letters[-1]

    @property
    def reward_rate(self) -> float | None:
        """Of the decisions that were matched since the program started, the share that got reward 1."""
        return self._rewards / self._matched if self._matched else None

    def warning(self) -> str:
        """What to tell of the dead letters since the last time; nothing when they are few."""
        records, dead, last = self._records, self._dead, self._last_dead
        self._records, self._dead, self._last_dead = 0, 0, None
        if last is None or dead <= DEAD_SHARE_MAX * records:
            return ""
        place = f"{last.record.topic}/{last.record.partition}, offset {last.record.offset}"
        # Not "of the last": what becomes a dead letter for want of its context came an orphan window before.
        return f"records gone to the dead letters: {dead:,}, while {records:,} came; the last, {place}: {last.reason}"

    def misplaced_warning(self, ledgers: Mapping[int, Ledger]) -> str:
        """What to tell of misplaced records, by partition; nothing when there are no more than the last time."""
        counts = {partition: misplaced(ledger) for partition, ledger in ledgers.items()}
        if all(count <= self._misplaced.get(partition, 0) for partition, count in counts.items()):
            return ""
        self._misplaced |= counts
        return f"{sum(counts.values()):,} {MISPLACED_REMEDY}"


def drift_warnings(commits: Sequence[Commit]) -> list[str]:
    """What to tell of the drift alarms that a transaction has published: where, when, and what begins anew."""
    return [
        f"partition {partition}, step {step.number}, {_utc(example.settled_at_ms)}: drift: the reward has fallen for "
        f"good, by example {example.id!r}; "
        + ("all classes begin anew" if example.drift == DRIFT_OF_ALL else f"class {example.drift} begins anew")
        for partition, step, effects, *_ in commits
        for example, _ in effects.examples
        if example.drift is not None
    ]


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def misplaced(ledger: Ledger) -> int:
    """How many contexts and how much feedback stood in another partition than their keys belong to."""
    return ledger.contexts_misplaced + ledger.feedback_misplaced


def ledger_line(ledger: Ledger) -> str:
    """The counts of a ledger in one line: the main ones, and all others that are not zero.

    >>> ledger_line(Ledger(contexts=5, decided=3, matched=2, pending=1, context_malformed=2, feedback=2))
    'decided 3, matched 2, pending 1, context malformed 2'
    """
    others = [name for name in Ledger._fields if name not in (*_ORDER, *_TOTALS)]
    counts = {name: getattr(ledger, name) for name in (*_ORDER, *others)}
    told = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count or name in _ALWAYS]
    return ", ".join(told)
