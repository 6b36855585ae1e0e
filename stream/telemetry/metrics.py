"""Definitions of all metrics that Onebit's programs export.

Names follow the Prometheus conventions: base units (seconds, records, ratios from 0 to 1), with the unit or `_total`
last. The table in docs/metrics.md lists the same metrics.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class MetricKind(StrEnum):
    """The type of a metric. A counter never decreases while its program is running."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class HistogramCounts(NamedTuple):
    """A histogram's counts at one point in time."""

    buckets: tuple[int, ...]  # per bucket, not cumulative; the last bucket has no upper bound
    total: float  # sum of all values


class Metric(NamedTuple):
    """A metric's definition."""

    name: str
    kind: MetricKind
    programs: tuple[str, ...]  # programs that export it
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, in increasing order

    def at(self, value: "float | HistogramCounts", *labels: str) -> "Sample":
        """Return a sample of this metric.

        Args:
            value: The value.
            labels: The values of the labels, in order.
        """
        assert len(labels) == len(self.labels), f"{self.name}: expected labels {self.labels}, got {labels}"
        return Sample(self, labels, value)


class Sample(NamedTuple):
    """A metric's value."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | HistogramCounts


LEARNER, FEEDBACK, REPLAY, MONITOR, SERVE = "learner", "feedback", "replay", "monitor", "serve"
_ALL = (LEARNER, FEEDBACK, REPLAY, MONITOR, SERVE)
_PIPELINE = (LEARNER, MONITOR)  # the learner exports only its own partitions; the monitor exports all

BUILD_INFO = Metric(
    "onebit_build_info", MetricKind.GAUGE, _ALL, "Constant 1; the labels contain the version and the program.",
    ("version", "program"),
)  # fmt: skip
READY = Metric("onebit_ready", MetricKind.GAUGE, _ALL, "1 if the program is ready, else 0; same as /readyz.")
LOOP_AGE = Metric(
    "onebit_loop_age_seconds", MetricKind.GAUGE, _ALL,
    "Time since the last iteration of the main loop. Several seconds mean that the loop is hung or waiting for Kafka.",
)  # fmt: skip

CONTEXTS = Metric(
    "onebit_contexts_total", MetricKind.COUNTER, _PIPELINE, "Contexts read, by result.", ("partition", "result")
)
DECISIONS = Metric("onebit_decisions_total", MetricKind.COUNTER, _PIPELINE, "Decisions made.", ("partition",))
SETTLED = Metric("onebit_settled_total", MetricKind.COUNTER, _PIPELINE, "Decisions settled.", ("partition", "outcome"))
PENDING = Metric(
    "onebit_pending_decisions", MetricKind.GAUGE, _PIPELINE, "Decisions that wait for feedback.", ("partition",)
)
ANSWERED = Metric(
    "onebit_answered_decisions", MetricKind.GAUGE, _PIPELINE,
    "Pending decisions with feedback that other feedback can follow.", ("partition",),
)  # fmt: skip
DEFERRED = Metric(
    "onebit_deferred_decisions", MetricKind.GAUGE, _PIPELINE, "Deferred decisions not yet shown.", ("partition",)
)
OLDEST_PENDING = Metric(
    "onebit_oldest_pending_seconds", MetricKind.GAUGE, _PIPELINE,
    "Age of the oldest pending or deferred decision, based on append times; 0 if there is none.",
    ("partition",),
)  # fmt: skip
FEEDBACK_RECORDS = Metric(
    "onebit_feedback_total", MetricKind.COUNTER, _PIPELINE,
    "Feedback read, by result; excludes feedback that is waiting for its context.", ("partition", "result"),
)  # fmt: skip
WAITING_ORPHANS = Metric(
    "onebit_waiting_orphans", MetricKind.GAUGE, _PIPELINE, "Feedback that is waiting for its context.", ("partition",)
)
CONFLICTS = Metric(
    "onebit_conflicts_total", MetricKind.COUNTER, _PIPELINE,
    "Duplicate feedback whose reward differs from the first reward.", ("partition",),
)  # fmt: skip
MISPLACED = Metric(
    "onebit_misplaced_total", MetricKind.COUNTER, _PIPELINE,
    "Contexts and feedback in a partition that does not match their key.", ("partition", "input"),
)  # fmt: skip
DEAD_LETTERS = Metric(
    "onebit_dead_letters_total", MetricKind.COUNTER, _PIPELINE, "Records written to the dead-letter topic.",
    ("partition", "reason"),
)  # fmt: skip
UNKNOWN_VALUES = Metric(
    "onebit_unknown_values_total", MetricKind.COUNTER, (LEARNER,),
    "Categories and words found in named features but missing from the encoding, since the start.",
    ("feature",),
)  # fmt: skip
FRAMED = Metric(
    "onebit_framed_records_total", MetricKind.COUNTER, (LEARNER,),
    "Contexts and feedback with the prefix of a schema registry, since the start.",
)  # fmt: skip
OPEN_CLASSES = Metric(
    "onebit_open_classes", MetricKind.GAUGE, (LEARNER,), "Class names with an index, in a pipeline with open classes.",
    ("partition",),
)  # fmt: skip
OPEN_CLASSES_RATIO = Metric(
    "onebit_open_classes_ratio", MetricKind.GAUGE, (LEARNER,),
    "Class names with an index divided by their limit; at 1, contexts with new names are rejected.", ("partition",),
)  # fmt: skip
LEDGER_BALANCED = Metric(
    "onebit_ledger_balanced", MetricKind.GAUGE, _PIPELINE,
    "1 while every record is accounted for exactly once, otherwise 0.", ("partition",),
)  # fmt: skip
MODEL_VERSION = Metric(
    "onebit_model_version", MetricKind.GAUGE, _PIPELINE,
    "Version of the model at the last step: the number of updates or, for a shared model, log entries.",
    ("partition",),
)  # fmt: skip
MODEL_LAG = Metric(
    "onebit_model_lag_seconds", MetricKind.GAUGE, (LEARNER,),
    "Time for which an open transaction has blocked a shared model's log; 0 if no transaction blocks it.",
)  # fmt: skip
CLOCK_SHIFT = Metric(
    "onebit_clock_shift_seconds", MetricKind.GAUGE, (LEARNER,),
    "Time that the task subtracts from append times, because the broker's clock was set.", ("partition",),
)  # fmt: skip
CLOCK_STEPS = Metric(
    "onebit_clock_steps_total", MetricKind.COUNTER, (LEARNER,),
    "Steps of a broker's clock that this process has left out of stream time.",
)  # fmt: skip
DRIFT_ALARMS = Metric("onebit_drift_alarms_total", MetricKind.COUNTER, _PIPELINE, "Drift alarms.", ("partition",))
INPUT_LAG = Metric(
    "onebit_input_lag_records", MetricKind.GAUGE, _PIPELINE,
    "Input records that have not been applied yet. The learner's value excludes the ticks that it has read. The "
    "monitor's value excludes ticks if at most 10 offsets are waiting.",
    ("topic", "partition"),
)  # fmt: skip
REWARDS = Metric(
    "onebit_rewards_total",
    MetricKind.COUNTER,
    (LEARNER,),
    "Sum of the rewards of decisions matched since the start; graded: each minus the lowest reward.",
)
JUDGED = Metric("onebit_judged_total", MetricKind.COUNTER, (LEARNER,), "Decisions matched since the start.")
REWARD_RATIO = Metric(
    "onebit_reward_ratio", MetricKind.GAUGE, (LEARNER,),
    "Mean reward of the last 1,000 decisions matched since the start; absent before the first match.",
)  # fmt: skip
ARM_DECISIONS = Metric(
    "onebit_arm_decisions_total", MetricKind.COUNTER, (LEARNER,),
    "Decisions with a known reward in the comparison with the holdout, since the start.", ("arm",),
)  # fmt: skip
ARM_REWARDS = Metric(
    "onebit_arm_rewards_total", MetricKind.COUNTER, (LEARNER,),
    "Sum of the rewards in the comparison with the holdout since the start; graded: of each minus the lowest.",
    ("arm",),
)  # fmt: skip
HOLDOUT_DIFFERENCE = Metric(
    "onebit_holdout_difference_ratio", MetricKind.GAUGE, (LEARNER,),
    "The learner's mean reward minus the holdout's since the start; absent until both arms have a decision.",
)  # fmt: skip
HOLDOUT_DIFFERENCE_LOWER = Metric(
    "onebit_holdout_difference_lower_ratio", MetricKind.GAUGE, (LEARNER,),
    "Lower limit of the difference's 95% interval, which is valid at all times.",
)  # fmt: skip
HOLDOUT_DIFFERENCE_UPPER = Metric(
    "onebit_holdout_difference_upper_ratio", MetricKind.GAUGE, (LEARNER,),
    "Upper limit of the difference's 95% interval, which is valid at all times.",
)  # fmt: skip
HOLDOUT_MISMATCH = Metric(
    "onebit_holdout_mismatch", MetricKind.GAUGE, (LEARNER,),
    "1 if the holdout's share of the decisions with a reward contradicts the configured share, else 0.",
)  # fmt: skip
CHAMPION_REWARD = Metric(
    "onebit_champion_reward_ratio", MetricKind.GAUGE, (LEARNER,),
    "Mean reward of the current champion's decisions since the start.", ("champion",),
)  # fmt: skip
CHALLENGER_REWARD = Metric(
    "onebit_challenger_reward_ratio", MetricKind.GAUGE, (LEARNER,),
    "Estimate of the mean reward that a challenger would have earned on the champion's decisions.", ("challenger",),
)  # fmt: skip
CHALLENGER_DIFFERENCE_LOWER = Metric(
    "onebit_challenger_difference_lower_ratio", MetricKind.GAUGE, (LEARNER,),
    "Lower limit of the 95% interval for challenger minus champion, which is valid at all times.", ("challenger",),
)  # fmt: skip
CHALLENGER_DIFFERENCE_UPPER = Metric(
    "onebit_challenger_difference_upper_ratio", MetricKind.GAUGE, (LEARNER,),
    "Upper limit of the 95% interval for challenger minus champion, which is valid at all times.", ("challenger",),
)  # fmt: skip
FEEDBACK_DELAY = Metric(
    "onebit_feedback_delay_seconds", MetricKind.HISTOGRAM, _PIPELINE,
    "Append time of the feedback minus that of the decision or its shown record. Learner: since its start; "
    "monitor: all records.",
    bounds=(0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0),
)  # fmt: skip
DECISION_LATENCY = Metric(
    "onebit_decision_latency_seconds", MetricKind.HISTOGRAM, _PIPELINE,
    "Append time of the last record in the transaction (monitor: of the prediction) minus that of the context. "
    "Learner: since its start; monitor: all records.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0),
)  # fmt: skip

FEEDBACK_SENT = Metric(
    "onebit_feedback_sent_total", MetricKind.COUNTER, (FEEDBACK,), "Feedback written since the start."
)
FEEDBACK_WAITING = Metric(
    "onebit_feedback_waiting_records", MetricKind.GAUGE, (FEEDBACK,), "Feedback that has not been written yet."
)
REPLAYED = Metric("onebit_replayed_total", MetricKind.COUNTER, (REPLAY,), "Contexts in the topic.")
REPLAY_EVENTS = Metric(
    "onebit_replay_events", MetricKind.GAUGE, (REPLAY,), "Total number of contexts that the replay will write."
)
SLIPPED = Metric("onebit_replay_slipped_total", MetricKind.COUNTER, (REPLAY,), "Contexts written later than scheduled.")
SLIP_WORST = Metric(
    "onebit_replay_slip_seconds",
    MetricKind.GAUGE,
    (REPLAY,),
    "Longest delay of a context relative to its scheduled time.",
)

STUCK = Metric(
    "onebit_stuck", MetricKind.GAUGE, (MONITOR,), "1 if records are waiting and there has been no step for 2 s, else 0."
)
MONITOR_BEHIND = Metric(
    "onebit_monitor_behind_records", MetricKind.GAUGE, (MONITOR,),
    "Offsets in a topic that the monitor has not read yet.", ("topic",),
)  # fmt: skip

HTTP_REQUESTS = Metric("onebit_http_requests_total", MetricKind.COUNTER, (SERVE,), "HTTP responses.", ("path", "code"))
HTTP_DECIDE = Metric(
    "onebit_http_decide_seconds", MetricKind.HISTOGRAM, (SERVE,), "Time from a request for a decision to its response.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)  # fmt: skip
HTTP_WAITING = Metric(
    "onebit_http_waiting_requests",
    MetricKind.GAUGE,
    (SERVE,),
    "Requests for a decision that are waiting for a prediction.",
)
HTTP_FALLBACKS = Metric("onebit_http_fallbacks_total", MetricKind.COUNTER, (SERVE,), "Responses with the fallback.")
HTTP_REMEMBERED = Metric("onebit_http_remembered_decisions", MetricKind.GAUGE, (SERVE,), "Decisions in memory.")

METRICS: Sequence[Metric] = tuple(value for value in globals().values() if isinstance(value, Metric))
