"""Metrics of the learner."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stream.estimating.live_results import LiveResults
from stream.telemetry import metrics
from stream.telemetry.metrics import Sample
from stream.telemetry.samples import RewardCounts, ledger_samples
from stream.telemetry.sketch import Sketch
from stream.wire.records import HOLDOUT
from stream.wire.rewards import BITS, RewardRange

if TYPE_CHECKING:  # not imported at run time, because other programs do not need the compiler
    from consumers.learner.program import LearnerProgram
    from stream.recovery.commit import Commit


class LearnerCounts:
    """Counts of the records that a learner has committed since it started, in addition to the counts in the ledgers."""

    def __init__(self) -> None:
        self._rewards = RewardCounts()
        self._latencies = Sketch()
        self._unknown: Counter[str] = Counter()
        self._clock_steps = self._framed = 0

    def add(self, commits: "Sequence[Commit]", append_ms: int) -> None:
        """Add the records from transactions that were committed at `append_ms`."""
        for part in commits:
            self._rewards.add(example for example, _ in part.effects.examples)
            self._unknown.update(part.effects.unknown)
            self._clock_steps += part.steps_clock
            self._framed += part.framed
            for context_ms in part.contexts_ms:
                self._latencies.add(append_ms - context_ms)

    def samples(self, program: "LearnerProgram") -> Iterator[Sample]:
        """Return the learner's metric samples."""
        for partition, task in sorted(program.tasks.items()):
            yield from ledger_samples(partition, task.join.ledger(), task.version, task.alarms)
            join = task.join
            waits = (join.pending, join.deferred, join.shown)
            oldest = [next(iter(decisions.values())) for decisions in waits if decisions]
            now_ms = program.broker_ms - program.clock_shifts_ms[partition]
            waited_ms = [now_ms - pending.time.ms for pending in oldest if pending.time.ms is not None]
            yield metrics.OLDEST_PENDING.at(max([0, *waited_ms]) / 1_000, str(partition))
            yield metrics.CLOCK_SHIFT.at(program.clock_shifts_ms[partition] / 1_000, str(partition))
            if task.settings.open_classes:
                n_named = len(task.classes.names or ())
                yield metrics.OPEN_CLASSES.at(n_named, str(partition))
                yield metrics.OPEN_CLASSES_RATIO.at(n_named / task.classes.n_classes, str(partition))
        for tp, records in sorted(program.lag().items()):
            yield metrics.INPUT_LAG.at(records, tp.topic, str(tp.partition))
        yield metrics.MODEL_LAG.at(0.0 if program.model_hold is None else program.model_hold.for_ms / 1_000)
        for feature, count in sorted(self._unknown.items()):
            yield metrics.UNKNOWN_VALUES.at(count, feature)
        yield metrics.CLOCK_STEPS.at(self._clock_steps)
        yield metrics.FRAMED.at(self._framed)
        yield from self._rewards.samples(range_of(program))
        yield self._latencies.sample_of(metrics.DECISION_LATENCY)


def range_of(program: "LearnerProgram") -> RewardRange:
    """Return the range of the pipeline's rewards; that of bits if the program has no task."""
    return next((task.settings.range_of_rewards for task in program.tasks.values()), BITS)


def result_samples(found: LiveResults, rewards: RewardRange = BITS) -> Iterator[Sample]:
    """Return the metric samples for the comparisons with the holdout and with the challengers, if there are any."""
    if (compared := found.holdout) is not None:
        for name, arm in ((metrics.LEARNER, compared.learner), (HOLDOUT, compared.holdout)):
            yield metrics.ARM_DECISIONS.at(arm.n, name)
            yield metrics.ARM_REWARDS.at(arm.rewards - arm.n * rewards.low, name)
        if compared.mean_difference is not None:
            yield metrics.HOLDOUT_DIFFERENCE.at(compared.mean_difference)
            yield metrics.HOLDOUT_DIFFERENCE_LOWER.at(compared.difference.low)
            yield metrics.HOLDOUT_DIFFERENCE_UPPER.at(compared.difference.high)
        yield metrics.HOLDOUT_MISMATCH.at(float(compared.shares_differ))
    if (challenged := found.challengers) is not None and challenged.mean is not None:
        yield metrics.CHAMPION_REWARD.at(challenged.mean, challenged.champion or "")
        for one in challenged.challengers:
            yield metrics.CHALLENGER_REWARD.at(one.ips, one.name)
            yield metrics.CHALLENGER_DIFFERENCE_LOWER.at(one.difference.low, one.name)
            yield metrics.CHALLENGER_DIFFERENCE_UPPER.at(one.difference.high, one.name)


def learner_unready(program: "LearnerProgram") -> str:
    """Return the reason why a learner is not ready, or an empty string if the learner is ready."""
    if not program.assigned:
        return "no partition assigned"
    recovering = sorted(program.assigned - program.tasks.keys())
    return f"partitions in recovery: {', '.join(map(str, recovering))}" if recovering else ""
