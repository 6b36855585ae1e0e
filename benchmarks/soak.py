"""Run ten million events through the embedded pipeline; measure time per event and memory, and check the ledger.

    python benchmarks/soak.py [--events 10000000] [--learner soba-diag] [--results FILE.json]

The data set is SynSep, at 1,000 events/s of virtual time. Feedback has a log-normal delay with a median of ten
seconds; some of it is lost or duplicated. The complete topics from such a run would need 20 GB of memory. Records that
all programs have read are therefore counted and then deleted, as a broker would delete them after the retention time.
At the end, the learner's ledger is compared with these counts.
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from onebit.runs.embedded import EmbeddedPrograms, prepare_embedded
from onebit.runs.plan import resolve_run
from producers.datasets.synthetic import synsep
from stream.kafka.reading import read_partition
from stream.reporting.runs import versions
from stream.settings.definitions import Settings
from stream.wire.codec import decode_example, is_tick
from stream.wire.ledger import Ledger
from stream.wire.records import Outcome, TopicPartition
from stream.wire.topics import Topics

SLICES = 100
KEPT = 10_000  # number of newest records to keep in each topic, because they may be unread
MEBIBYTE = 1 << 20
FRESH_EVENTS = 10_000


def fresh_us(learner: str) -> float:
    """Return the CPU time per event, in microseconds, for a short run in a new pipeline."""
    pipeline = prepare_embedded(resolve_run(soak_settings(FRESH_EVENTS), learner, synsep(1)))
    started_s = time.process_time()
    pipeline.run_to_end()
    return 1e6 * (time.process_time() - started_s) / FRESH_EVENTS


def soak_settings(events: int) -> Settings:
    """Return the settings for a run with late, lost and duplicate bits."""
    settings = Settings(data="synsep", events=events, delay="lognormal:10s,1.0", loss=0.02, duplicates=0.01, seed=1)
    return settings.model_copy(update={"rate_per_s": 1_000.0})


def last_tenth_to_first(of_slices: list[float]) -> float:
    """Return the ratio of the mean over the last tenth of the slices to the mean over the first tenth."""
    tenth = len(of_slices) // 10
    return round(mean(of_slices[-tenth:]) / mean(of_slices[:tenth]), 2)


@dataclass
class Soak:
    """A run that is measured slice by slice."""

    pipeline: EmbeddedPrograms
    slice_size: int
    beside: Pool  # a process that executes short control runs
    topics: Topics = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    started_s: float = 0.0  # CPU time at the start of the current slice

    def __post_init__(self) -> None:
        self.topics = self.pipeline.run.topics
        self.started_s = time.process_time()

    def look(self) -> None:
        """Take a measurement if a slice has ended. This method is called after each learner step."""
        decided = len(self.pipeline.judge.decided_ms)
        if decided >= self.slice_size * (len(self.rows) + 1):
            used_s = time.process_time() - self.started_s
            self.drop(KEPT)
            row = {
                "events": decided,
                "us_per_event": round(1e6 * used_s / self.slice_size, 2),
                "fresh_us_per_event": round(self.beside.apply(fresh_us, (self.pipeline.run.task.learner,)), 2),
                "resident_mb": round(psutil.Process().memory_info().rss / MEBIBYTE),
                "pending": self.pipeline.pending,
            }
            print(" ".join(f"{name} {value:,}" for name, value in row.items()), flush=True)
            self.rows.append(row)
            self.started_s = time.process_time()

    def drop(self, kept: int) -> None:
        """Count and delete all records in each topic except the newest `kept`."""
        broker = self.pipeline.broker
        for topic in (spec.name for spec in self.topics.specs(1)):
            tp = TopicPartition(topic, 0)
            first, end = broker.beginnings([tp])[tp], broker.ends([tp])[tp].stable
            before = end - kept
            if before <= first:
                continue
            for record in read_partition(broker, tp, start=first):
                if record.offset >= before:
                    break
                self.counts[topic] += not is_tick(record)
                if topic == self.topics.examples:
                    self.counts[decode_example(record).outcome] += 1
            broker.delete_records(tp, before)

    def differences(self, ledger: Ledger) -> list[str]:
        """Return the differences between the ledger and the record counts."""
        pairs = {
            "contexts": (ledger.contexts, self.counts[self.topics.contexts]),
            "feedback": (ledger.feedback, self.counts[self.topics.feedback]),
            "decided": (ledger.decided, self.counts[self.topics.predictions]),
            "matched": (ledger.matched, self.counts[Outcome.MATCHED]),
            "expired": (ledger.expired, self.counts[Outcome.EXPIRED]),
        }
        wrong = [
            f"{name}: {counted:,} in the ledger, {found:,} records"
            for name, (counted, found) in pairs.items()
            if counted != found
        ]
        return [*ledger.imbalances(), *wrong]


def main() -> None:
    """Run the benchmark. Exit with code 1 if the ledger does not balance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--learner", default="soba-diag")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    pipeline = prepare_embedded(resolve_run(soak_settings(arguments.events), arguments.learner, synsep(1)))
    with get_context("spawn").Pool(1) as beside:
        beside.apply(fresh_us, (arguments.learner,))  # the first run is a warm-up
        soak = Soak(pipeline, arguments.events // SLICES, beside)
        soak.pipeline.run_to_end(soak.look)
    soak.drop(0)
    ledger = next(iter(soak.pipeline.learner.tasks.values())).join.ledger()
    wrong = soak.differences(ledger)
    times_us = [row["us_per_event"] for row in soak.rows]
    to_fresh = [row["us_per_event"] / row["fresh_us_per_event"] for row in soak.rows]
    summary = {
        "events": arguments.events, "learner": arguments.learner, "versions": versions(), "slices": soak.rows,
        "last_tenth_to_first": last_tenth_to_first(times_us),
        "last_tenth_to_first_beside_fresh": last_tenth_to_first(to_fresh),
        "ledger": ledger._asdict(), "wrong": wrong,
    }  # fmt: skip
    print("\n".join(wrong) or f"the ledger adds up: {ledger}")
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
