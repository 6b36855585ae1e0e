"""The state of the monitor's page as one JSON value, from all partitions' states and the topics' end offsets.

The counts and the condition come from the last steps in the journals. They are exact and current even if the monitor
lags behind in other topics. One thread adds records, a second thread adds steps and end offsets, and one thread per
browser reads the state. A lock protects the state.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import sub
from threading import RLock
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from consumers.monitor.comparisons import challenger_table, holdout_table
from consumers.monitor.pending import in_sample
from consumers.monitor.policies import Contexts, Policies
from consumers.monitor.state import PartitionState, decode, encode, hash_of
from consumers.monitor.verdict import Condition, Intake, Seen, Verdict, judge
from consumers.monitor.windows import RECENT_MS, SHOWN_MS, DecisionCounts, Share, total_windows
from stream.estimating.evaluation import WEIGHTS_OFF_ONE
from stream.estimating.live import live_weight_flags
from stream.estimating.running import RunningEstimate
from stream.kafka.clocks import EstimatedClock
from stream.kafka.port import Ends
from stream.recovery.steps import JournalStep
from stream.telemetry import metrics
from stream.telemetry.metrics import Sample
from stream.telemetry.samples import ledger_samples
from stream.telemetry.sketch import total_sketch
from stream.wire.codec import MalformedError, decode_prediction
from stream.wire.ledger import IDENTITIES, Ledger, total_ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

RATE_MS = 5_000
"""Time span over which rates are computed."""

CLASSES_SHOWN = 20
REASONS_SHOWN = 10
BEHIND_MAX = 20_000
"""Number of unread records above which the monitor samples decisions instead of processing all of them."""

CAUGHT_UP = 2_000
THINNER_MS, FULLER_MS = 2_000, 30_000
"""Minimum times between changes to the sampling rate. The first applies to lowering the rate, the second to raising
it."""

LEVEL_MAX = 10


ContextsAt = Callable[[Mapping[int, Sequence[int]]], Contexts]
"""A function that reads the contexts at the given offsets of each partition. It returns those that still exist."""


class Pipeline(NamedTuple):
    """Pipeline properties shown on the page."""

    learner: str
    window_ms: int
    instances: Mapping[str, Sequence[int]] | None  # partitions of each learner process; None if unknown


class _Moment(NamedTuple):
    at_ms: int
    ledger: Ledger


class Dashboard:
    """A pipeline's current state, as seen by the monitor. Times are from this host's monotonic clock."""

    def __init__(self, topics: Topics, partitions: int, now_ms: Callable[[], int]) -> None:
        self._lock = RLock()
        self._states: dict[int, PartitionState] = {}
        self._policies = Policies()
        self._contexts_at: ContextsAt = lambda wanted: {}
        self._topics = topics
        self._partitions = partitions
        self._now_ms = now_ms
        self._ends: Mapping[TopicPartition, Ends] = {}
        self._last: dict[int, JournalStep] = {}  # each task's last step
        self._answered_ms = self._stepped_ms = now_ms()
        self._steps = 0
        self._moments: deque[_Moment] = deque()  # counts for the last minute
        self._pipeline: Pipeline | None = None
        self._clock = EstimatedClock(now_ms)  # an estimate of the broker's time
        self._level = 0  # one in every 2**level decisions is processed
        self._paced_ms, self._was_behind, self._reads = now_ms(), 0, False
        self._waiting: Mapping[TopicPartition, int] = {}  # number of waiting records in each input

    def judge(self, policies: Policies, contexts_at: ContextsAt) -> None:
        """Set the policies to evaluate. Call this before adding records or restoring states."""
        self._policies, self._contexts_at = policies, contexts_at

    @property
    def policies(self) -> Policies:
        """The evaluated policies."""
        return self._policies

    def change_policies(self, policies: Policies) -> None:
        """Evaluate other policies from now on. Estimates for the same policies continue."""
        with self._lock:
            self._policies = policies
            self._states = {partition: decode(encode(state), policies) for partition, state in self._states.items()}

    def name(self, pipeline: Pipeline | None) -> None:
        """Set the properties that the page shows. `pipeline` is None before the first step."""
        self._pipeline = pipeline

    @property
    def active_partition(self) -> int | None:
        """Return the lowest partition whose task has completed a step, or None."""
        with self._lock:
            return min(self._last, default=None)

    def contexts_of(self, records: Sequence[Record]) -> Contexts:
        """Read and return the contexts that the policies require for the decisions in these records.

        This method may be slow, because it may read from Kafka.
        """
        return self._contexts_at(wanted) if (wanted := self._wanted(records)) else {}

    def take(self, records: Sequence[Record], contexts: Contexts = MappingProxyType({})) -> dict[int, bytes]:
        """Add committed records; return the changed states by partition, for storage.

        Args:
            records: The records.
            contexts: The result of `contexts_of`.
        """
        with self._lock:
            self._reads = True
            if records:
                self._clock.observe(max(record.append_ms for record in records))
            changed = {
                record.partition
                for record in records
                if self._state(record.partition).take(self._topics, record, self._level, contexts)
            }
            return {partition: encode(self._states[partition]) for partition in sorted(changed)}

    def _state(self, partition: int) -> PartitionState:
        if partition not in self._states:
            self._states[partition] = PartitionState(self._policies)
        return self._states[partition]

    def _wanted(self, records: Sequence[Record]) -> dict[int, list[int]]:
        """Return the offsets of the contexts that the policies require for the decisions in these records."""
        wanted: dict[int, list[int]] = {}
        if self._policies.look_at_x:
            for record in records:
                if record.topic == self._topics.predictions and in_sample(hash_of(record), self._level):
                    with suppress(MalformedError):
                        wanted.setdefault(record.partition, []).append(decode_prediction(record)[1])
        return wanted

    def restore(self, partition: int, state: bytes) -> None:
        """Restore a partition's stored state."""
        with self._lock:
            self._states[partition] = decode(state, self._policies)
            self._clock.observe(max(self._states[partition].windows.counts, default=0))

    def next_offset_of(self, topic: str, partition: int) -> int:
        """Return the offset at which to continue reading a partition."""
        with self._lock:
            state = self._states.get(partition)
            return 0 if state is None else state.next_offset.get(topic, 0)

    def update_ends(
        self,
        ends: Mapping[TopicPartition, Ends],
        last: Mapping[int, JournalStep],
        waiting: Mapping[TopicPartition, int],
    ) -> None:
        """Set the state reported by Kafka.

        Args:
            ends: End offsets of the topics.
            last: Each task's last step.
            waiting: Number of waiting records in each input, without ticks; see `WaitingRecords`.
        """
        with self._lock:
            self._ends, self._last, self._waiting = ends, dict(last), waiting
            self._answered_ms = self._now_ms()
            self._look()
            self._pace()

    def verdict(self) -> Verdict:
        """Return the pipeline's condition."""
        with self._lock:
            return self._verdict()

    def as_json(self) -> bytes:
        """Return the state for the page."""
        with self._lock:
            return orjson.dumps(self._shown(), default=list)  # orjson does not accept named tuples

    def _shown(self) -> dict[str, Any]:
        states = self._states.values()
        windows, ledger = total_windows(state.windows for state in states), self._ledger()
        delays = total_sketch(state.delays for state in states)
        now_ms = self._clock.now_ms()
        verdict, recent = self._verdict(), windows.since(now_ms - RECENT_MS)
        latencies = total_sketch(state.latencies.since(now_ms - RECENT_MS) for state in states)
        return {
            "topics": self._topics.contexts.removesuffix("contexts"),
            "condition": verdict.condition,
            "why": verdict.why,
            "pipeline": None if self._pipeline is None else self._pipeline._asdict(),
            "now_ms": now_ms,
            "behind": self._behind_in_all(),
            "sample": 2**self._level,
            "passed_over": sum(state.passed_over for state in states),
            "ledger": ledger._asdict(),
            "books": [_book(ledger, total, parts) for total, parts in IDENTITIES.items()],
            "balanced": all(step.ledger.balances for step in self._last.values()),
            "windows": [
                [start_ms, counts.decided, self._figure(counts.error), self._figure(counts.greedy_error)]
                for start_ms, counts in sorted(windows.counts.items())
                if start_ms >= now_ms - SHOWN_MS
            ],
            "reward_range": self._policies.graded,
            "error": self._figure(recent.error),
            "greedy_error": self._figure(recent.greedy_error),
            "exploration": recent.exploration,
            "classes": self._classes(),
            "delays": {
                "n": delays.size,
                "bins": delays.bins(),
                "quantiles_s": delays.quantiles_s(),
            },
            "latencies": {"n": latencies.size, "quantiles_s": latencies.quantiles_s()},
            "oldest_s": max((age for age in map(self._oldest_s, self._last) if age is not None), default=None),
            "waiting_sample": 2 ** max((state.pending.level for state in states), default=0),
            "estimates": self._estimates(),
            **self._comparisons(),
            "partitions": [self._partition(partition) for partition in range(self._partitions)],
            "letters": self._letters(),
            "letters_in_all": _dead_letters(ledger),
            "classes_in_all": len({action for state in states for action in state.classes}),
            "unreadable": sum(state.unreadable for state in states),
        }

    def samples(self) -> Sequence[Sample]:
        """Return the samples for Prometheus."""
        with self._lock:
            samples: list[Sample] = []
            for partition, step in sorted(self._last.items()):
                samples += ledger_samples(partition, step.ledger, step.updates, step.alarms)
            for partition in range(self._partitions):
                samples += [
                    metrics.INPUT_LAG.at(records, topic, str(partition))
                    for topic, records in self._lag(partition).items()
                ]
            for topic in self._outputs():
                samples.append(metrics.MONITOR_BEHIND.at(self._behind(topic), topic))
            for partition in self._last:
                if (oldest_s := self._oldest_s(partition)) is not None:
                    samples.append(metrics.OLDEST_PENDING.at(oldest_s, str(partition)))
            states = self._states.values()
            for metric, sketches in (
                (metrics.FEEDBACK_DELAY, [state.delays for state in states]),
                (metrics.DECISION_LATENCY, [state.latencies.all for state in states]),
            ):
                samples.append(total_sketch(sketches).sample_of(metric))
            samples.append(metrics.STUCK.at(float(self._verdict().condition is Condition.STUCK)))
            return samples

    def _look(self) -> None:
        """Record the current counts and the current time."""
        now_ms, ledger = self._now_ms(), self._ledger()
        steps = sum(step.number for step in self._last.values())
        if steps != self._steps:
            self._steps, self._stepped_ms = steps, now_ms
        self._moments.append(_Moment(now_ms, ledger))
        while now_ms - self._moments[0].at_ms > RECENT_MS and len(self._moments) > 2:
            self._moments.popleft()

    def _verdict(self) -> Verdict:
        now_ms, ledger = self._now_ms(), self._ledger()
        *earlier, last = self._moments or [_Moment(0, Ledger())]
        first = next((one for one in earlier if last.at_ms - one.at_ms <= RATE_MS), (earlier or [last])[-1])
        seconds = max(last.at_ms - first.at_ms, 1) / 1_000
        lags = [self._lag(partition) for partition in range(self._partitions)]
        return judge(
            Seen(
                answered_ms=now_ms - self._answered_ms,
                stepped_ms=now_ms - self._stepped_ms,
                steps=self._steps,
                contexts=sum(lag[self._topics.contexts] for lag in lags),
                feedback=sum(lag[self._topics.feedback] for lag in lags),
                pending=ledger.pending + ledger.deferred,
                decided_per_s=(last.ledger.decided - first.ledger.decided) / seconds,
                settled_per_s=(_settled(last.ledger) - _settled(first.ledger)) / seconds,
                last_minute=Intake(*map(sub, _intake(last.ledger), _intake((earlier or [last])[0].ledger))),
                in_all=_intake(ledger),
            )
        )

    def _ledger(self) -> Ledger:
        return total_ledger(step.ledger for step in self._last.values())

    def _lag(self, partition: int) -> dict[str, int]:
        """Return, for each input, the number of records that no step has applied yet."""
        inputs = (self._topics.contexts, self._topics.feedback)
        return {topic: self._waiting.get(TopicPartition(topic, partition), 0) for topic in inputs}

    def _pace(self) -> None:
        """Lower the sampling rate if the monitor falls behind, and raise it if the monitor keeps up."""
        behind, since_ms = self._behind_in_all(), self._now_ms() - self._paced_ms
        if behind > BEHIND_MAX and since_ms >= THINNER_MS:
            change = 1 if self._reads and behind > self._was_behind and self._level < LEVEL_MAX else 0
        elif behind < CAUGHT_UP and since_ms >= FULLER_MS:
            change = -1 if self._level else 0
        else:
            return
        self._level, self._paced_ms = self._level + change, self._now_ms()
        self._was_behind, self._reads = behind, False

    def _outputs(self) -> tuple[str, str]:
        return self._topics.predictions, self._topics.examples

    def _behind_in_all(self) -> int:
        return sum(map(self._behind, self._outputs()))

    def _oldest_s(self, partition: int) -> float | None:
        """Return the age, by the broker's clock, of a task's oldest unsettled decision, or None if it is unknown."""
        ledger = self._last[partition].ledger
        if not ledger.pending + ledger.deferred:
            return 0.0
        state = self._states.get(partition)
        if state is None or state.pending.oldest_ms is None:
            return None
        return max(0, self._clock.now_ms() - state.pending.oldest_ms) / 1_000

    def _estimates(self) -> list[dict[str, Any]]:
        found = []
        for place, policy in enumerate(self._policies.names):
            together = sum((state.pending.estimates()[place] for state in self._states.values()), RunningEstimate())
            if together.weights.n:
                found.append(
                    {
                        "policy": policy,
                        "n": together.weights.n,
                        "ess": together.weights.ess,
                        "played": self._policies.rewards.value(together.rewards.mean),
                        "estimates": together.estimates(self._policies.rewards),
                        "off": any(flag.name == WEIGHTS_OFF_ONE for flag in live_weight_flags(together.weights)),
                    }
                )
        return found

    def _comparisons(self) -> dict[str, Any]:
        states = sorted(self._states.values(), key=lambda state: max(state.windows.counts, default=0))
        partitions = [state.pending.comparisons() for state in states]  # the last partition has the latest record
        tables = {"holdout": holdout_table(partitions), "challengers": challenger_table(partitions)}
        return {name: table and table._asdict() for name, table in tables.items()}

    def _figure(self, error: Share | None) -> Share | None:
        """Return an error or, for graded rewards, the mean reward."""
        graded = self._policies.graded
        return error if error is None or graded is None else error.as_reward(graded)

    def _behind(self, topic: str) -> int:
        """Return the number of unread offsets in a topic, excluding the last transactions' markers."""
        behind = 0
        for partition in range(self._partitions):
            end = self._ends.get(TopicPartition(topic, partition))
            if end is not None:
                behind += max(0, end.stable - 1 - self.next_offset_of(topic, partition))
        return behind

    def _classes(self) -> list[dict[str, Any]]:
        together: dict[int | str, DecisionCounts] = {}
        for state in self._states.values():
            for action, counts in state.classes.items():
                together[action] = together.get(action, DecisionCounts()) + counts
        decided = sum(counts.decided for counts in together.values())

        def rank(item: tuple[int | str, DecisionCounts]) -> tuple[int, int, str]:
            action, counts = item
            return -counts.decided, action if isinstance(action, int) else 0, str(action)

        shown = sorted(together.items(), key=rank)[:CLASSES_SHOWN]
        return [
            {
                "action": action,
                "decided": counts.decided,
                "share": counts.decided / decided if decided else 0.0,
                "error": self._figure(counts.error),
            }
            for action, counts in shown
        ]

    def _partition(self, partition: int) -> dict[str, Any]:
        state, step = self._states.get(partition), self._last.get(partition)
        lag = self._lag(partition)
        recent = DecisionCounts() if state is None else state.windows.since(self._clock.now_ms() - RECENT_MS)
        ledger = Ledger() if step is None else step.ledger
        return {
            "partition": partition,
            "steps": 0 if step is None else step.number,
            "decided": ledger.decided,
            "pending": ledger.pending,
            "deferred": ledger.deferred,
            "oldest_s": None if step is None else self._oldest_s(partition),
            "contexts": lag[self._topics.contexts],
            "feedback": lag[self._topics.feedback],
            "version": 0 if step is None else step.updates,
            "alarms": 0 if step is None else step.alarms,
            "misplaced": ledger.contexts_misplaced + ledger.feedback_misplaced,
            "balanced": ledger.balances,
            "error": self._figure(recent.error),
        }

    def _letters(self) -> list[dict[str, Any]]:
        by_reason: dict[str, dict[str, Any]] = {}
        for partition, state in self._states.items():
            for group, letters in state.letters.items():
                other = by_reason.get(group, {"n": 0, "append_ms": -1})
                last = (
                    {"partition": partition, **letters._asdict()} if letters.append_ms > other["append_ms"] else other
                )
                by_reason[group] = last | {"n": other["n"] + letters.n}
        return sorted(by_reason.values(), key=lambda one: -one["n"])[:REASONS_SHOWN]


def _dead_letters(ledger: Ledger) -> int:
    malformed = ledger.context_malformed + ledger.feedback_malformed
    return malformed + ledger.mismatched + ledger.feedback_excess + ledger.orphans_dropped


def _settled(ledger: Ledger) -> int:
    return ledger.matched + ledger.expired + ledger.unmatched + ledger.unshown


def _intake(ledger: Ledger) -> Intake:
    return Intake(
        ledger.contexts + ledger.feedback,
        ledger.context_malformed + ledger.feedback_malformed,
        ledger.contexts_misplaced + ledger.feedback_misplaced,
    )


def _book(ledger: Ledger, total: str, parts: tuple[str, ...]) -> dict[str, Any]:
    counts = [(part, getattr(ledger, part)) for part in parts]
    value = getattr(ledger, total)
    return {"total": total, "value": value, "parts": counts, "holds": value == sum(count for _, count in counts)}
