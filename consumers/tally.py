"""Status and warnings for a running learner: counts, mean reward, dead letters and drift alarms."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from stream.recovery.commit import Commit
from stream.task.task import DeadLetter
from stream.wire.ledger import MISPLACED_REMEDY, Ledger
from stream.wire.records import DRIFT_OF_ALL, Outcome

DEAD_SHARE_MAX = 0.01
"""Share of dead letters above which a warning is logged, because the configuration is probably wrong."""

_ALWAYS = ("decided", "matched", "pending")
_ORDER = ("decided", "matched", "expired", "pending", "late", "context_duplicates", "feedback_duplicates")
_TOTALS = ("contexts", "feedback")


class Tally:
    """Counts of committed records since the program started, and since the last report."""

    def __init__(self) -> None:
        self._matched = 0
        self._rewards: float = 0
        self._unknown: Counter[str] = Counter()
        self._records = 0  # this count and the next two are since the last report
        self._dead = 0
        self._last_dead: DeadLetter | None = None
        self._misplaced: dict[int, int] = {}  # number of misplaced records by partition at the last report

    def add(self, commits: Sequence[Commit]) -> None:
        """Add the records from committed transactions."""
        for commit in commits:
            effects = commit.effects
            matched = [example for example, _ in effects.examples if example.outcome is Outcome.MATCHED]
            self._matched += len(matched)
            self._rewards += sum(example.reward or 0 for example in matched)
            self._unknown.update(effects.unknown)
            self._records += commit.records
            self._dead += len(effects.dead_letters)
            if effects.dead_letters:
                self._last_dead = effects.dead_letters[-1]

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of the decisions matched since the program started."""
        return self._rewards / self._matched if self._matched else None

    @property
    def unknown_line(self) -> str:
        """The number of unknown values per named feature since the program started; empty if there are none."""
        if not self._unknown:
            return ""
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self._unknown.items()))
        return f"unknown values ignored since this program started: {counts}"

    def warning(self) -> str:
        """Return a warning if there have been many dead letters since the last report, otherwise an empty string."""
        records, dead, last = self._records, self._dead, self._last_dead
        self._records, self._dead, self._last_dead = 0, 0, None
        if last is None or dead <= DEAD_SHARE_MAX * records:
            return ""
        place = f"{last.record.topic}/{last.record.partition}, offset {last.record.offset}"
        # A percentage would be misleading, because an orphan is received one orphan window before it becomes a dead
        # letter.
        return f"dead letters: {dead:,}, records received: {records:,}; last dead letter, {place}: {last.reason}"

    def misplaced_warning(self, ledgers: Mapping[int, Ledger]) -> str:
        """Return a warning if a partition has new misplaced records, otherwise an empty string."""
        counts = {partition: misplaced(ledger) for partition, ledger in ledgers.items()}
        if all(count <= self._misplaced.get(partition, 0) for partition, count in counts.items()):
            return ""
        self._misplaced |= counts
        return f"{sum(counts.values()):,} {MISPLACED_REMEDY}"


def drift_warnings(commits: Sequence[Commit]) -> list[str]:
    """Return a warning for each drift alarm in committed transactions, with partition, step, time and reset classes."""
    return [
        f"partition {partition}, step {step.number}, {_utc(example.settled_at_ms)}: drift: the reward rate has "
        f"dropped (detected at example {example.id!r}); "
        + ("all classes are reset" if example.drift == DRIFT_OF_ALL else f"class {example.drift} is reset")
        for partition, step, effects, *_ in commits
        for example, _ in effects.examples
        if example.drift is not None
    ]


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def misplaced(ledger: Ledger) -> int:
    """Return the number of contexts and feedback records whose key belongs to a different partition."""
    return ledger.contexts_misplaced + ledger.feedback_misplaced


def ledger_line(ledger: Ledger) -> str:
    """Format a ledger on one line, with the main counts and all other counts that are not zero.

    >>> ledger_line(Ledger(contexts=5, decided=3, matched=2, pending=1, context_malformed=2, feedback=2))
    'decided 3, matched 2, pending 1, context malformed 2'
    """
    others = [name for name in Ledger._fields if name not in (*_ORDER, *_TOTALS)]
    counts = {name: getattr(ledger, name) for name in (*_ORDER, *others)}
    parts = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count or name in _ALWAYS]
    return ", ".join(parts)
