"""A learner's status lines and warnings."""

from consumers.learner.program import LearnerProgram
from consumers.learner.shared_model import ENDED_BY, Hold, held_up
from consumers.live_estimates import LiveEstimating
from consumers.tally import Tally, ledger_line
from stream.parsing import format_duration
from stream.programs.process import Status, warn
from stream.reporting.live_results import result_lines
from stream.reporting.tables import percent
from stream.settings.definitions import Settings


class LearnerStatus:
    """A learner's status lines and warnings."""

    def __init__(self, settings: Settings, program: LearnerProgram, tally: Tally, estimating: LiveEstimating) -> None:
        self._program, self._tally, self._estimating = program, tally, estimating
        self._log = Status()
        self._lag_warnings = LagWarnings(
            settings.topics.updates, settings.bootstrap, settings.model_lag_max_ms, settings.transaction_timeout_ms
        )

    def show(self) -> None:
        """Log the lines that have changed, and new warnings."""
        program, tally = self._program, self._tally
        self._estimating.keep(program.assigned)
        results = result_lines(self._estimating.now(), since=" since this program started")
        self._log.show(status_lines(program, tally) + results)
        ledgers = {partition: task.join.ledger() for partition, task in program.tasks.items()}
        for warning in filter(None, (tally.warning(), tally.misplaced_warning(ledgers))):
            warn(warning)
        for warning in self._lag_warnings.of(program.model_hold):
            warn(warning)


def status_lines(program: LearnerProgram, tally: Tally) -> list[str]:
    """Return lines that describe every partition's state and the mean reward, for bits the fraction of ones."""
    replica = program.replica
    lines = [
        f"partition {partition}: {ledger_line(running.join.ledger())}"
        + (f", {running.version:,} updates" if replica is None else "")
        + (f", {running.alarms:,} drift alarms" if running.alarms else "")
        for partition, running in sorted(program.tasks.items())
    ]
    if replica is not None:
        lines.append(model_line(replica.version, replica.updates, program.model_hold))
    if tally.unknown_line:
        lines.append(tally.unknown_line)
    if (mean := tally.mean_reward) is not None:
        those = "the decisions matched since this program started"
        is_graded = any(task.settings.graded is not None for task in program.tasks.values())
        lines.append(f"mean reward {mean:.4g} for {those}" if is_graded else f"reward 1 for {percent(mean)} of {those}")
    return lines


REPORTED_AFTER_MS = 5_000
"""Age at which a blocking transaction is reported. A normal step's transaction ends sooner."""

OVERDUE_MS = 30_000
"""Time added to the transaction timeout, because the broker checks for expired transactions only about every ten
seconds."""


def model_line(version: int, updates: int, hold: Hold | None) -> str:
    """Format a status line with the version and update count of a process's replica.

    >>> model_line(12_000, 5_800, None)
    'shared model: version 12,000, 5,800 updates'
    >>> model_line(12_000, 5_800, Hold(512, 7_250, 40))
    'shared model: version 12,000, 5,800 updates, blocked for 7 s with 40 offsets in its log unread'
    """
    line = f"shared model: version {version:,}, {updates:,} updates"
    if hold is None:
        return line
    return f"{line}, blocked for {hold.for_ms // 1_000} s with {hold.waiting:,} offsets in its log unread"


class LagWarnings:
    """Warns about transactions that block the model's log. Each warning is logged once per transaction."""

    def __init__(self, topic: str, bootstrap: str, lag_max_ms: int, transaction_timeout_ms: int) -> None:
        """Set the thresholds for the warnings.

        Args:
            topic: The topic that contains the model's log.
            bootstrap: Address of a Kafka broker.
            lag_max_ms: See `ModelLag`.
            transaction_timeout_ms: The learner's transaction timeout.
        """
        self._topic = topic
        self._bootstrap = bootstrap
        self._lag_max_ms = lag_max_ms
        self._overdue_ms = transaction_timeout_ms + OVERDUE_MS
        self._reported: set[tuple[int, int]] = set()  # offset and age of each reported warning

    def of(self, hold: Hold | None) -> list[str]:
        """Return the new warnings."""
        if hold is None:
            self._reported.clear()
            return []
        due = [(after_ms, text) for after_ms, text in self._warnings(hold) if 0 <= after_ms <= hold.for_ms]
        fresh = [text for after_ms, text in due if (hold.offset, after_ms) not in self._reported]
        self._reported |= {(hold.offset, after_ms) for after_ms, _ in due}
        return fresh

    def _warnings(self, hold: Hold) -> list[tuple[int, str]]:
        """Return all warnings, each preceded by the transaction age at which it is logged; -1 means never."""
        place = held_up(f"{self._topic}/0", hold.offset)
        command = (
            f"kafka-transactions.sh --bootstrap-server {self._bootstrap} abort --topic {self._topic} --partition 0 "
            f"--start-offset {hold.offset}"
        )
        return [
            (REPORTED_AFTER_MS, f"{place}; decisions use the current model; {ENDED_BY}"),
            (
                self._lag_max_ms,
                f"{place}; no decisions until the transaction ends, because of --model-lag-max "
                f"{format_duration(max(0, self._lag_max_ms))}",
            ),
            (self._overdue_ms, f"{place}, longer than any learner's transaction can last. To abort it, run: {command}"),
        ]
