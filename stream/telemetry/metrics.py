"""The metrics of Onebit's programs, and their one home.

The names follow Prometheus' conventions: base units (seconds, records, ratios from 0 to 1), the unit or `_total` last.
docs/metrics.md has the same table.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a metric does: a counter only grows, until its program begins anew."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Counts(NamedTuple):
    """A histogram as it stood at some moment."""

    buckets: tuple[int, ...]  # values up to each bound and above the one before; the last one: above all bounds
    total: float  # of all values


class Metric(NamedTuple):
    """What a metric is."""

    name: str
    kind: Kind
    programs: tuple[str, ...]  # that have it
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram's buckets, growing

    def at(self, value: "float | Counts", *labels: str) -> "Sample":
        """A value of this metric.

        Args:
            value: the value.
            labels: the values of its labels, in their order.
        """
        assert len(labels) == len(self.labels), f"{self.name}: expected labels {self.labels}, got {labels}"
        return Sample(self, labels, value)


class Sample(NamedTuple):
    """One value of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Counts


LEARNER, FEEDBACK, REPLAY, MONITOR = "learner", "feedback", "replay", "monitor"
_ALL = (LEARNER, FEEDBACK, REPLAY, MONITOR)
_PIPELINE = (LEARNER, MONITOR)  # the learner tells its own partitions, the monitor all of them, from the topics

BUILD_INFO = Metric(
    "onebit_build_info", Kind.GAUGE, _ALL, "1; which version of Onebit this is, and which program.",
    ("version", "program"),
)  # fmt: skip
READY = Metric("onebit_ready", Kind.GAUGE, _ALL, "1 while the program is ready for its work, else 0, as /readyz says.")
LOOP_AGE = Metric(
    "onebit_loop_age_seconds", Kind.GAUGE, _ALL,
    "How long ago the program's loop last came round; more than some seconds: it hangs, or waits for Kafka.",
)  # fmt: skip

CONTEXTS = Metric(
    "onebit_contexts_total", Kind.COUNTER, _PIPELINE, "Contexts read, by what became of them.", ("partition", "result")
)
DECISIONS = Metric("onebit_decisions_total", Kind.COUNTER, _PIPELINE, "Decisions made.", ("partition",))
SETTLED = Metric("onebit_settled_total", Kind.COUNTER, _PIPELINE, "Decisions settled.", ("partition", "outcome"))
PENDING = Metric(
    "onebit_pending_decisions", Kind.GAUGE, _PIPELINE, "Decisions that wait for their feedback.", ("partition",)
)
OLDEST_PENDING = Metric(
    "onebit_oldest_pending_seconds", Kind.GAUGE, _PIPELINE,
    "Age of the oldest pending decision, by append times; 0 when none is pending.", ("partition",),
)  # fmt: skip
FEEDBACK_RECORDS = Metric(
    "onebit_feedback_total", Kind.COUNTER, _PIPELINE,
    "Feedback read, by what became of it; what waits for its context is not among it.", ("partition", "result"),
)  # fmt: skip
WAITING_ORPHANS = Metric(
    "onebit_waiting_orphans", Kind.GAUGE, _PIPELINE, "Feedback that waits for its context.", ("partition",)
)
CONFLICTS = Metric(
    "onebit_conflicts_total", Kind.COUNTER, _PIPELINE, "Duplicate feedback whose bit differs from the first.",
    ("partition",),
)  # fmt: skip
MISPLACED = Metric(
    "onebit_misplaced_total", Kind.COUNTER, _PIPELINE,
    "Contexts and feedback that stand in another partition than their keys belong to.", ("partition", "input"),
)  # fmt: skip
DEAD_LETTERS = Metric(
    "onebit_dead_letters_total", Kind.COUNTER, _PIPELINE, "Records that went to the dead letters.",
    ("partition", "reason"),
)  # fmt: skip
LEDGER_BALANCED = Metric(
    "onebit_ledger_balanced", Kind.GAUGE, _PIPELINE, "1 while every record is accounted for exactly once, else 0.",
    ("partition",),
)  # fmt: skip
MODEL_VERSION = Metric(
    "onebit_model_version", Kind.GAUGE, _PIPELINE,
    "Updates that the model has learned from; of a shared one its version at the last step.", ("partition",),
)  # fmt: skip
MODEL_LAG = Metric(
    "onebit_model_lag_seconds", Kind.GAUGE, (LEARNER,),
    "How long an open transaction has held up what is read of a shared model's log; 0 while none does.",
)  # fmt: skip
DRIFT_ALARMS = Metric("onebit_drift_alarms_total", Kind.COUNTER, _PIPELINE, "Drift alarms.", ("partition",))
INPUT_LAG = Metric(
    "onebit_input_lag_records", Kind.GAUGE, _PIPELINE,
    "Records of an input that are not applied yet; for the learner without ticks that it has read.",
    ("topic", "partition"),
)  # fmt: skip
REWARDS = Metric(
    "onebit_rewards_total", Kind.COUNTER, (LEARNER,), "Bits that were 1, of the decisions matched since the start."
)
JUDGED = Metric("onebit_judged_total", Kind.COUNTER, (LEARNER,), "Decisions matched since the start.")
REWARD_RATIO = Metric(
    "onebit_reward_ratio", Kind.GAUGE, (LEARNER,),
    "The share of bits that were 1, of the last 1,000 matched since the start; not there before the first.",
)  # fmt: skip
FEEDBACK_DELAY = Metric(
    "onebit_feedback_delay_seconds", Kind.HISTOGRAM, _PIPELINE,
    "From a decision to its feedback, by append times; since the start, and the monitor's from the beginning.",
    bounds=(0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0),
)  # fmt: skip
DECISION_LATENCY = Metric(
    "onebit_decision_latency_seconds", Kind.HISTOGRAM, _PIPELINE,
    "From a context's append to that of the last record of the transaction with its prediction, or, as the monitor "
    "knows it, of the prediction; since the start, and the monitor's from the beginning.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0),
)  # fmt: skip

FEEDBACK_SENT = Metric("onebit_feedback_sent_total", Kind.COUNTER, (FEEDBACK,), "Feedback written since the start.")
FEEDBACK_WAITING = Metric(
    "onebit_feedback_waiting_records", Kind.GAUGE, (FEEDBACK,), "Feedback that is still to be written."
)
REPLAYED = Metric("onebit_replayed_total", Kind.COUNTER, (REPLAY,), "Contexts that are in their topic.")
REPLAY_EVENTS = Metric("onebit_replay_events", Kind.GAUGE, (REPLAY,), "Contexts that are to be in their topic.")
SLIPPED = Metric("onebit_replay_slipped_total", Kind.COUNTER, (REPLAY,), "Contexts written later than they were due.")
SLIP_WORST = Metric(
    "onebit_replay_slip_seconds", Kind.GAUGE, (REPLAY,), "How late the latest of them was; 0 while none was."
)

STUCK = Metric("onebit_stuck", Kind.GAUGE, (MONITOR,), "1 while something waits and no step is made for 2 s, else 0.")
MONITOR_BEHIND = Metric(
    "onebit_monitor_behind_records", Kind.GAUGE, (MONITOR,), "Offsets of a topic that the monitor has not read.",
    ("topic",),
)  # fmt: skip

METRICS: Sequence[Metric] = tuple(value for value in globals().values() if isinstance(value, Metric))
