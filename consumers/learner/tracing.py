"""Spans of a learner's steps, commits, decisions and feedback.

A step has spans only if one of its records has a sampled trace. The step's span is a child of the first such record's
trace, and links to those of the others. Each record has a span in its own trace, with a link to the step:

    trace of visit-1    gateway: decide ── append      learner: decide ──▶ step 7 ── commit
    trace of the bit    gateway: feedback ── append    learner: feedback ──▶ step 9, and visit-1's decision
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream.recovery.commit import Commit
from stream.task.task import Effects
from stream.wire.codec import sampled_trace
from stream.wire.records import Record

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing


class _Applied(NamedTuple):
    """A step that has been applied but not yet committed."""

    step: int
    began_ns: int
    ended_ns: int
    traced: list[tuple[Record, bytes]]  # the records with a sampled trace


class StepTracing:
    """Creates the spans of one learner program."""

    def __init__(self, tracing: "Tracing", now_ns: Callable[[], int], feedback_topic: str) -> None:
        self._tracing = tracing
        self.now_ns = now_ns
        self._feedback_topic = feedback_topic
        self._applied: dict[int, _Applied] = {}  # the last step of each partition, if it has spans

    def applied(self, partition: int, step: int, records: Sequence[Record], began_ns: int) -> None:
        """Note a step that was applied from `began_ns` until now."""
        traced = [(record, trace) for record in records if (trace := sampled_trace(record.headers)) is not None]
        self._applied.pop(partition, None)
        if traced:
            self._applied[partition] = _Applied(step, began_ns, self.now_ns(), traced)

    def committed(self, commits: Sequence[Commit], began_ns: int) -> None:
        """Create the spans of steps whose commit began at `began_ns` and has just been completed."""
        for commit in commits:
            applied = self._applied.pop(commit.partition, None)
            if applied is not None and applied.step == commit.step.number:
                self._emit(applied, commit, began_ns, self.now_ns())

    def _emit(self, applied: _Applied, commit: Commit, began_ns: int, ended_ns: int) -> None:
        number, (first, *others) = applied.step, [trace for _, trace in applied.traced]
        at = {"onebit.partition": commit.partition, "onebit.step": number}
        step = self._tracing.emit(
            "onebit.step", "consumer", first, applied.began_ns, ended_ns,
            {**at, "messaging.system": "kafka", "messaging.batch.message_count": commit.records}, others,
        )  # fmt: skip
        self._tracing.emit("onebit.commit", "producer", step, began_ns, ended_ns, {**at, "messaging.system": "kafka"})
        decided = _decisions(commit.effects) if any(map(self._is_feedback, applied.traced)) else {}
        for record, trace in applied.traced:
            is_feedback = self._is_feedback((record, trace))
            about = decided.get(record.offset) if is_feedback else None
            self._tracing.emit(
                "onebit.feedback" if is_feedback else "onebit.decide", "consumer", trace, applied.began_ns, ended_ns,
                {
                    **at, "messaging.system": "kafka", "messaging.destination.name": record.topic,
                    "messaging.destination.partition.id": str(record.partition),
                    "messaging.kafka.offset": record.offset,
                },
                (step,) if about is None else (step, about),
            )  # fmt: skip

    def _is_feedback(self, traced: tuple[Record, bytes]) -> bool:
        return traced[0].topic == self._feedback_topic


def _decisions(effects: Effects) -> dict[int, bytes]:
    """Return the sampled traces of the decisions that a step settled, by the offset of their feedback."""
    return {
        example.feedback_offset: trace
        for example, headers in effects.examples
        if example.feedback_offset is not None and (trace := sampled_trace(headers)) is not None
    }
