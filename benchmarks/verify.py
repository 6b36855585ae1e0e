"""Measure the time and memory used by an audit.

    python benchmarks/verify.py [EVENTS]

The topics' records are generated as they are read. They describe a pipeline with one partition, which decides 1,000
events per step and receives their feedback one step later. One in fifty decisions expires. At the end, only ticks
advance time.
"""

import argparse
import resource
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from stream.kafka.port import Ends
from stream.recovery import steps as journal
from stream.recovery.steps import JournalStep, encode_step
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.wire import codec
from stream.wire.codec import tick_headers
from stream.wire.ledger import Ledger
from stream.wire.records import (
    Decision,
    Example,
    Features,
    Feedback,
    Headers,
    Outcome,
    Prediction,
    Record,
    TopicPartition,
)
from stream.wire.topics import Topics

TOPICS = Topics.with_prefix("bench.")
PER_STEP = 1_000
STEP_MS = 100
LOST = 50  # one in LOST decisions receives no feedback
SETTINGS = TaskSettings("soba-diag", 9, 400, {"gamma": 0.1, "a": 1.0})
X = Features(np.arange(0, 400, 16, dtype=np.int32), np.ones(25))
SCORES = np.linspace(0.0, 1.0, 9)


class MadeTopics:
    """A broker that generates each record from its offset."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.steps = events // PER_STEP
        self.fed = [n for n in range(PER_STEP) if n % LOST]  # the decisions in each step that receive feedback
        self.window_steps = SETTINGS.join.window_ms // STEP_MS + 1

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        return {tp: Ends(self._count(tp.topic), self._count(tp.topic)) for tp in tps}

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = 0) -> "MadeReader":
        return MadeReader(self, tps[0].topic)

    def _count(self, topic: str) -> int:
        if topic == TOPICS.journal:
            return self.steps + self.window_steps + 2
        matched = (self.steps - 1) * len(self.fed)
        return {
            TOPICS.contexts: self.events, TOPICS.predictions: self.events,
            TOPICS.feedback: self.feedback_end(self.steps + self.window_steps + 1),
            TOPICS.examples: matched + self.expired(self.steps + self.window_steps),
        }.get(topic, 0)  # fmt: skip

    def expired(self, step: int) -> int:
        """Return the number of decisions that have expired by the end of a step."""
        of_last = len(self.fed) if step > self.steps + self.window_steps - 1 else 0
        return max(0, min(self.steps, step - self.window_steps)) * (PER_STEP - len(self.fed)) + of_last

    def feedback_end(self, step: int) -> int:
        """Return the feedback end offset after a step, which includes the bits and tick from the previous step."""
        answered = min(step, self.steps) - 1
        return answered * (len(self.fed) + 1) + (step > self.steps) * (1 + step - self.steps)

    def records(self, topic: str) -> Iterator[Record]:
        source = {TOPICS.journal: self._journal, TOPICS.contexts: self._contexts, TOPICS.feedback: self._feedback,
                  TOPICS.predictions: self._predictions, TOPICS.examples: self._examples}[topic]  # fmt: skip
        for offset, (append_ms, key, value, headers) in enumerate(source()):
            yield Record(topic, 0, offset, append_ms, key, value, headers)

    def _contexts(self) -> Iterator[tuple[int, bytes, bytes, Headers]]:
        for n in range(self.events):
            yield self._ms(n), b"event-%09d" % n, codec.encode_context(f"event-{n:09}", X), codec.HEADERS

    def _predictions(self) -> Iterator[tuple[int, bytes, bytes, Headers]]:
        decision = Decision(8, 8, 0.9, SCORES)
        for n in range(self.events):
            prediction = Prediction(f"event-{n:09}", decision, 0)
            headers = codec.step_headers(n // PER_STEP + 1)
            yield self._ms(n), b"event-%09d" % n, codec.encode_prediction(prediction, n), headers

    def _fed_in(self, step: int) -> range:
        return range((step - 1) * PER_STEP, step * PER_STEP)

    def _feedback(self) -> Iterator[tuple[int, bytes | None, bytes | None, Headers]]:
        for step in range(1, self.steps + 1):
            yield step * STEP_MS, None, None, tick_headers(step)
            for n in self._fed_in(step) if step < self.steps else ():
                if n % LOST:
                    value = codec.encode_feedback(Feedback(f"event-{n:09}", n % 2))
                    yield self._ms(n) + STEP_MS, b"event-%09d" % n, value, codec.HEADERS
        for step in range(self.steps + 1, self.steps + self.window_steps + 2):
            yield step * STEP_MS, None, None, tick_headers(step)

    def _examples(self) -> Iterator[tuple[int, bytes, bytes, Headers]]:
        for step in range(1, self.steps + self.window_steps + 1):
            headers, now_ms = codec.step_headers(step), step * STEP_MS
            if step > self.window_steps:
                for n in self._fed_in(step - self.window_steps):
                    if n % LOST == 0 or step == self.steps + self.window_steps:
                        example = Example(f"event-{n:09}", Outcome.EXPIRED, 8, 0.9, None, None, now_ms, None)
                        yield now_ms, b"event-%09d" % n, codec.encode_example(example), headers
            if 1 < step <= self.steps:
                offset = self.feedback_end(step - 1)
                for n in self._fed_in(step - 1):
                    if n % LOST:
                        offset += 1
                        example = Example(f"event-{n:09}", Outcome.MATCHED, 8, 0.9, n % 2, STEP_MS, now_ms, offset)
                        yield now_ms, b"event-%09d" % n, codec.encode_example(example), headers

    def _journal(self) -> Iterator[tuple[int, None, bytes, Headers]]:
        contexts = feedback_end = 0
        for step in range(1, self.steps + self.window_steps + 2):
            before = contexts, feedback_end
            contexts, feedback_end = min(self.events, step * PER_STEP), self.feedback_end(step)
            matched = (min(self.steps, step) - 1) * len(self.fed)
            expired = self.expired(step)
            ledger = Ledger(
                contexts=contexts, decided=contexts, feedback=matched, matched=matched, expired=expired,
                pending=contexts - matched - expired,
            )  # fmt: skip
            entry = JournalStep(
                step, (before[0], contexts), (before[1], feedback_end), matched, ledger,
                settings=SETTINGS if step == 1 else None,
            )  # fmt: skip
            yield step * STEP_MS, None, encode_step(entry), journal.HEADERS

    @staticmethod
    def _ms(n: int) -> int:
        return (n // PER_STEP + 1) * STEP_MS


class MadeReader:
    """Reads one of the generated topics from its start."""

    def __init__(self, topics: MadeTopics, topic: str) -> None:
        self._topics, self._topic = topics, topic
        self.seek(TopicPartition(topic, 0), 0)

    def position(self, tp: TopicPartition) -> int:
        return self._read

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        found = list(islice(self._records, records_max))
        self._read += len(found)
        return found

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._records = islice(self._topics.records(self._topic), offset, None)
        self._read = offset

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=int, nargs="?", default=2_500_000)
    events = parser.parse_args().events
    broker: Any = MadeTopics(events)
    records = sum(broker.ends([TopicPartition(name, 0)])[TopicPartition(name, 0)].stable for name in
                  (TOPICS.contexts, TOPICS.predictions, TOPICS.feedback, TOPICS.examples))  # fmt: skip
    for _ in zip(broker.records(TOPICS.predictions), range(10_000), strict=False):
        pass  # warm-up; the time to generate the records is measured below and subtracted
    started_s = time.perf_counter()
    generated = sum(1 for topic in (TOPICS.contexts, TOPICS.predictions, TOPICS.feedback, TOPICS.examples)
                    for _ in broker.records(topic))  # fmt: skip
    making_s = time.perf_counter() - started_s
    assert generated == records, (generated, records)
    started_s = time.perf_counter()
    finding = audit_partition(broker, TOPICS, 0)
    took_s = time.perf_counter() - started_s - making_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000
    print(f"{records:,} records: {took_s:.0f} s, {1e6 * took_s / records:.1f} us each; peak memory {peak_mb:,.0f} MB")
    print("ok" if finding.ok else finding)


if __name__ == "__main__":
    main()
