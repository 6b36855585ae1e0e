"""Measure a long run on a Kafka broker: CPU time per event and memory over time.

    python benchmarks/soak_on_kafka.py [--events 2000000] [--rate 4000] [--client confluent] [--results FILE.json]

Starts a single-node Kafka broker, and runs the replay, the learner and the feedback program as processes. Prints the
CPU time per event and the resident memory of each program for each tenth of the events. At the end, `onebit verify`
recomputes the ledger, which must show that every event was decided and settled.

The learner must keep up with the rate. Otherwise, all contexts in a backlog become pending at the same time, because
they all precede the first feedback for any of them. Settled ids are retained for a minute, up to a limit of 100,000, so
that memory use levels off early.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from onebit.testing.processes import Program, Programs
from stream.devkafka.local_kafka import local_kafka
from stream.kafka.connection import ADAPTERS, connect
from stream.kafka.port import Broker
from stream.reporting.runs import versions
from stream.settings.sources import load_settings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

SLICES = 10
LOOK_S = 1.0
PROGRAMS = ("learn", "feedback", "replay")
STREAM = {
    "data": "synsep", "learner": ["soba-diag"], "shuffle": True, "seed": 1, "instance": "soak",
    "delay": "exponential:500ms", "loss": 0.02, "duplicates": 0.01, "window": "10s", "retain": "1m",
    "retained_max": 100_000, "session_timeout": "60s",
}  # fmt: skip


class Look(NamedTuple):
    """A measurement of a program."""

    done: int  # number of processed events
    used_s: float  # CPU time
    resident_bytes: int


def look(program: Program, done: int) -> Look:
    """Measure a program that has processed `done` events."""
    process = psutil.Process(program.process.pid)
    with process.oneshot():
        times = process.cpu_times()
        return Look(done, times.user + times.system, process.memory_info().rss)


def watch(broker: Broker, topics: Topics, programs: Mapping[str, Program], events: int) -> dict[str, list[Look]]:
    """Measure the programs periodically, until all contexts are decided and the replay has ended."""
    # In a topic written without transactions, each offset is an event. In the other topics, only one or two of several
    # thousand offsets are transaction markers.
    written = {"replay": topics.contexts, "feedback": topics.feedback, "learn": topics.predictions}
    tps = {name: TopicPartition(topic, 0) for name, topic in written.items()}
    looks: dict[str, list[Look]] = {name: [] for name in programs}
    while not looks["learn"] or looks["learn"][-1].done < events or programs["replay"].process.poll() is None:
        time.sleep(LOOK_S)
        ends = broker.ends(list(tps.values()))
        for name, program in programs.items():
            if program.process.poll() is None:
                looks[name].append(look(program, ends[tps[name]].stable))
            elif program.process.returncode or name != "replay":
                sys.exit(f"{name} ended early:\n{program.said()}")
    return looks


def slices(looks: Sequence[Look]) -> list[dict[str, float]]:
    """Divide the events into equal slices and return each slice's CPU time per event and maximum memory."""
    done = np.array([one.done for one in looks], dtype=float)
    bounds = np.linspace(done[0], done[-1], SLICES + 1)
    used_s = np.interp(bounds, done, [one.used_s for one in looks])
    resident = np.array([one.resident_bytes for one in looks])
    return [
        {
            "events_to": round(after),
            "cpu_us": round(1e6 * (used_s[number + 1] - used_s[number]) / (after - before), 1),
            "resident_mb": round(resident[(done >= before) & (done <= after)].max(initial=0) / 1e6, 1),
        }
        for number, (before, after) in enumerate(pairwise(bounds))
    ]


def verify(programs: Programs, events: int) -> dict[str, Any]:
    """Return the result of `onebit verify` after all events are settled."""
    done = subprocess.run(
        [sys.executable, "-m", "onebit", "verify", "--json", "--wait-events", str(events), "--timeout", "30m"],
        cwd=programs.directory, env=programs.environment, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    if not found["ok"]:
        sys.exit(f"the ledger is wrong: {found}")
    return found


def soak(bootstrap: str, client: str, events: int, rate: float) -> dict[str, Any]:
    """Run the programs and return the measurements."""
    settings = load_settings({**STREAM, "bootstrap": bootstrap, "client": client, "events": events, "rate": rate})
    topics = Topics.with_prefix(settings.topic_prefix)
    broker = connect(bootstrap, client=client)
    broker.create_topics(topics.specs(1))
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), settings.environment())
        try:
            began_s = time.monotonic()
            looks = watch(broker, topics, {name: programs.start(name) for name in PROGRAMS}, events)
            wall_s = time.monotonic() - began_s
            print(f"{events:,} events decided after {wall_s:.0f} s", flush=True)
            found = verify(programs, events)
            for program in programs.started[:2]:
                program.stop()
        finally:
            programs.close()
    broker.close()
    (partition,) = found["partitions"]
    return {
        "client": client, "events": events, "rate": rate, "wall_s": round(wall_s), "ledger": partition["audited"],
        "slices": {name: slices(one) for name, one in looks.items()},
    }  # fmt: skip


def main() -> None:
    """Run the benchmark, print a line for each slice, and store the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=4_000.0)
    parser.add_argument("--client", choices=list(ADAPTERS), default="confluent")
    parser.add_argument("--results", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    with local_kafka() as kafka:
        found = soak(kafka.bootstrap, arguments.client, arguments.events, arguments.rate)
    for name, parts in found["slices"].items():
        for part in parts:
            print(name, *(f"{what} {value:,}" for what, value in part.items()))
        flat = [part["cpu_us"] for part in parts[1:]]  # without the slice that includes the program's startup
        print(f"{name}: last slice / second slice {flat[-1] / flat[0]:.2f}; max/min {max(flat) / min(flat):.2f}")
    print(json.dumps({name: value for name, value in found.items() if name != "slices"}))
    if arguments.results is not None:
        content = {
            "measured": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "versions": versions(), **found,
            "load_average": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        arguments.results.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
