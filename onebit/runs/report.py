"""A run's report, from its topics and the evaluated predictions."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from consumers.live_estimates import results_from_topics
from onebit.runs.plan import Run
from producers.datasets.base import Known
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.learners import registered
from stream.measures.errors import ErrorCurve, LossCurve, Settlements, constant_error_rate, exploration
from stream.measures.latencies import LatencyCounts, ReplicaReport, quantiles, summarise_delays
from stream.programs.process import announce
from stream.reporting import tables
from stream.reporting.runs import LearnerRun, versions
from stream.telemetry.sketch import Sketch
from stream.verifying.audit import Finding, audit_partition, latencies_of
from stream.verifying.shared_log import LogFinding, audit_log
from stream.wire.codec import decode_example
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Example, FloatArray, TopicPartition
from stream.wire.rewards import RewardRange
from stream.wire.typed_fields import PredictionFields


class RunEnd(NamedTuple):
    """The results of a run that are not stored in its topics."""

    updates: int
    drift_alarms: int
    state_sha256: str
    virtual_s: float
    wall_s: float
    latency_counts: LatencyCounts | None
    model: str = "own"
    replicas: tuple[ReplicaReport, ...] = ()


class NoDecisionsError(OnebitError, ValueError):
    """A run made no decision, because all contexts were malformed. The message contains the first reason."""

    exit_code = ExitCode.USAGE


def _malformed_warnings(broker: Broker, run: Run, ledger: Ledger) -> tuple[str, ...]:
    """Return a warning if some contexts were malformed.

    Raises:
        NoDecisionsError: all contexts were malformed.
    """
    malformed, seen = ledger.context_malformed, ledger.contexts
    if not malformed:
        return ()
    letters = (
        decode_dead_letter(record)
        for partition in range(run.partitions)
        for record in read_partition(broker, TopicPartition(run.topics.dead_letter, partition))
    )
    reason = next((letter.reason for letter in letters if letter.topic == run.topics.contexts), "unknown reason")
    least = "; set --propensity-min to the smallest propensity in the log" if "propensity_min" in reason else ""
    if malformed == seen:
        raise NoDecisionsError(f"{run.dataset.name}: all {seen:,} contexts are malformed: {reason}{least}")
    return (f"{malformed:,} of {seen:,} contexts are malformed, and have no decision; the first: {reason}{least}",)


def report_of(broker: Broker, run: Run, judge: "Judge", end: RunEnd, *, in_real_time: bool = False) -> LearnerRun:
    """Create the report: read the ledger and the delays from the topics, and audit the learner's counts."""
    task, topics, partitions = run.task, run.topics, run.partitions
    findings = [audit_partition(broker, topics, partition) for partition in range(partitions)]
    log = audit_log(broker, topics, partitions) if end.model == "shared" else None
    _announce_faults(findings, log)
    ledger = total_ledger(finding.learner for finding in findings)
    malformed = _malformed_warnings(broker, run, ledger)
    latencies = latencies_of(findings) if in_real_time else Sketch()
    measured = {"latency": quantiles(latencies)} | (
        {"latency_counts": LatencyCounts("decision", latencies)} if latencies.size else {}
    )
    return LearnerRun(
        data=run.dataset.name,
        learner=task.learner,
        parameters=task.parameters,
        seed=task.seed,
        events=run.events,
        classes=task.n_classes,
        features=task.n_features,
        reward_range=None if run.shown_range is None else (run.shown_range.low, run.shown_range.high),
        full_information=registered()[task.learner].needs_label,
        settings=dict(run.settings),
        changed=run.given.changed(),
        versions=versions(),
        ledger=ledger,
        audit_ok=all(finding.ok for finding in findings) and (log is None or log.ok),
        model_behind=None if log is None else log.behind,
        **judge.figures(),
        **_feedback_figures(broker, run, judge.decided_ms, malformed),
        **results_from_topics(broker, topics, partitions, task, is_estimated=run.given.estimate)._asdict(),
        **end._asdict() | measured,
    )


def _announce_faults(findings: Sequence[Finding], log: LogFinding | None) -> None:
    for finding in findings:
        for fault in finding.faults:
            announce(f"ledger of partition {finding.partition}: {fault}", limited=False)
    for fault in () if log is None else log.faults:
        announce(f"log of the shared model: {fault}", limited=False)


def _feedback_figures(broker: Broker, run: Run, decided_ms: Sequence[int], warnings: tuple[str, ...]) -> dict[str, Any]:
    """Return the report's figures about feedback, from the run's examples, and its warnings."""
    settlements = Settlements(run.shown_range)
    found = answers(
        settlements.take(
            decode_example(record)
            for partition in range(run.partitions)
            for record in read_partition(broker, TopicPartition(run.topics.examples, partition))
        )
    )
    rate_per_s = None if run.replay.speed else run.replay.rate_per_s
    return {
        "delays": summarise_delays(found.delays_ms),
        "delay_counts": Sketch.of(found.delays_ms) if found.delays_ms else None,
        "first_feedback": settlements.first_feedback(decided_ms),
        "feedback_after_end": found.after_end,
        "delayed": settlements.curve(decided_ms),
        "warnings": (
            *warnings,
            *feedback_warnings(found, run.events, rate_per_s),
        ),
    }


AFTER_END_MAX = 1 / 3
"""A warning is logged if more than this fraction of the feedback arrives after the last decision, too late to affect
any decision."""

DELAYS_PER_RUN = 10
"""Recommended ratio of a run's duration to the mean delay. At this ratio, at most a tenth of the feedback arrives after
the last decision."""


class Answers(NamedTuple):
    """The delays and timing of a run's matched feedback."""

    delays_ms: list[int]
    lasted_ms: int  # time from the first to the last decision
    after_end: float  # fraction of the feedback that arrived after the last decision; nan without feedback


def answers(examples: Iterable[Example]) -> Answers:
    """Summarise a run's settled decisions.

    >>> from stream.wire.records import Outcome
    >>> settled = [Example(id, Outcome.MATCHED, 0, 1.0, 1, *times, 0) for id, *times in (("a", 5, 15), ("b", 2, 22))]
    >>> answers(settled)  # decided at 10 and at 20
    Answers(delays_ms=[5, 2], lasted_ms=10, after_end=0.5)
    """
    matched = [(one.settled_at_ms, one.delay_ms) for one in examples if one.delay_ms is not None]
    if not matched:
        return Answers([], 0, math.nan)
    decided_ms = [settled_at_ms - delay_ms for settled_at_ms, delay_ms in matched]
    last_ms = max(decided_ms)
    late = sum(settled_at_ms > last_ms for settled_at_ms, _ in matched)
    return Answers([delay_ms for _, delay_ms in matched], last_ms - min(decided_ms), late / len(matched))


def feedback_warnings(found: Answers, events: int, rate_per_s: float | None) -> tuple[str, ...]:
    """Return a warning that suggests a better pace if much of the feedback arrived after the last decision.

    Args:
        found: The feedback.
        events: Number of events in the run.
        rate_per_s: The replay's rate; None if the replay follows the log's times.
    """
    if not found.after_end > AFTER_END_MAX:
        return ()
    mean_s = sum(found.delays_ms) / len(found.delays_ms) / 1_000
    pace = "a lower --speed"
    if rate_per_s is not None:
        better_per_s = _rounded_down(min(events / (DELAYS_PER_RUN * mean_s), rate_per_s / 2))
        pace = f"--rate {better_per_s:g} (duration {tables.duration(events / better_per_s)})"
    return (
        f"{tables.percent(found.after_end)} of the feedback arrived after the last event, too late to affect any "
        f"decision. All decisions were made within {tables.duration(found.lasted_ms / 1_000)}, and the mean delay is "
        f"{tables.duration(mean_s)}. Use {pace}, a shorter --delay, or more --epochs",
    )


def _rounded_down(value: float) -> float:
    """Round down to one significant digit.

    >>> [_rounded_down(value) for value in (56.2, 9.99, 0.0123)]
    [50.0, 9.0, 0.01]
    """
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.floor(value / unit) * unit:.1g}")


@dataclass(slots=True)
class Judge:
    """Evaluates each prediction against the true class, or against the logged or drawn reward of its action."""

    n_classes: int
    graded: RewardRange | None = None
    are_places: bool = False  # whether the classes are places in lists of actions, so that none of them is the best
    curve: ErrorCurve | LossCurve = field(init=False)
    labels: list[int] = field(init=False)
    rewards: FloatArray = field(init=False)  # sum of the rewards of each class, if known
    decided_ms: "array[int]" = field(default_factory=lambda: array("q"))
    explored: bytearray = field(default_factory=bytearray)  # 1 if the action was not the greedy class

    def __post_init__(self) -> None:
        self.curve = ErrorCurve() if self.graded is None else LossCurve()
        self.labels = [0] * self.n_classes
        self.rewards = np.full(self.n_classes, np.nan)

    def observe(self, prediction: PredictionFields, known: Known, decided_ms: int) -> None:
        """Add a prediction and its outcome. The error excludes predictions without a known outcome."""
        self.decided_ms.append(decided_ms)
        action, greedy = prediction.action, prediction.greedy
        self.explored.append(action != greedy)
        reward = known.reward_of(action)
        greedy_reward = reward if greedy == action else known.reward_of(greedy)
        if isinstance(self.curve, LossCurve):
            self._add_loss(self.curve, reward, greedy_reward, known)
        elif reward is not None:
            self.curve.add(reward == 0, None if greedy_reward is None else greedy_reward == 0)
        if known.label is not None:
            self.labels[known.label] += 1

    def _add_loss(self, curve: LossCurve, reward: float | None, greedy_reward: float | None, known: Known) -> None:
        assert self.graded is not None
        if reward is not None:
            greedy_loss = None if greedy_reward is None else 1.0 - self.graded.share(greedy_reward)
            curve.add(1.0 - self.graded.share(reward), greedy_loss)
        if known.rewards is not None and not self.are_places:
            self.rewards = np.nan_to_num(self.rewards) + known.rewards

    def _constant_error_rate(self) -> float:
        """Return the error, or the mean loss, of always choosing the best single class; nan if unknown."""
        if self.graded is None or np.isnan(self.rewards).all():
            return constant_error_rate(self.labels)
        return 1.0 - self.graded.share(float(self.rewards.max()) / len(self.decided_ms))

    @property
    def figure(self) -> str:
        """The error or the mean reward so far, as text; empty if it is unknown."""
        error = self.curve.error_rate
        if math.isnan(error):
            return ""
        if self.graded is not None:
            return f"mean reward {tables.number_text(self.graded.value(1.0 - error))}"
        return f"error {tables.percent(error)}"

    def figures(self) -> dict[str, Any]:
        """Return the report's figures about the predictions."""
        return {
            "errors": self.curve.summary(),
            "exploration": exploration(self.explored),
            "constant_error_rate": self._constant_error_rate(),
        }
