"""Measure the memory and CPU time of a learner process with several pipelines.

    python benchmarks/pipelines.py [--counts 1,2,4,8,16] [--learner banditron] [--client confluent]

For each number of pipelines, a process on a single-node Kafka broker decides and learns from 1,000 events in each. The
benchmark then reads the process's memory, and its CPU time while no records arrive. The memory of one more pipeline is
the slope of a line through the points. Private memory excludes the pages of libraries that other processes map.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka
import numpy as np

from onebit.testing.processes import Program, Programs, wait_for
from stream.devkafka.local_kafka import local_kafka
from stream.kafka.connection import ADAPTERS, connect
from stream.kafka.port import Broker
from stream.recovery.steps import JournalFollower
from stream.wire.topics import Topics

EVENTS = 1_000
N_CLASSES, N_FEATURES = 10, 64
IDLE_S = 10.0


def send(bootstrap: str, topics: list[Topics]) -> None:
    """Write contexts and feedback to every pipeline."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    rng = np.random.default_rng(1)
    for number in range(EVENTS):
        x, event_id = rng.normal(size=N_FEATURES).round(3).tolist(), f"visit-{number}"
        for one in topics:
            producer.produce(one.contexts, json.dumps({"id": event_id, "x": x}), event_id)
            producer.produce(one.feedback, json.dumps({"id": event_id, "reward": number % 2}), event_id)
        producer.poll(0)
    producer.flush()


def matched(broker: Broker, topics: Topics) -> int:
    follower = JournalFollower(broker, topics, 1)
    try:
        return follower.read(0).matched
    finally:
        follower.close()


def memory_mb(pid: int) -> dict[str, float]:
    """Return a process's resident and private memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {"rss_mb": kb["Rss"] / 1_024, "private_mb": (kb["Private_Clean"] + kb["Private_Dirty"]) / 1_024}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(bootstrap: str, directory: Path, count: int, learner: str, client: str) -> dict[str, float]:
    prefixes = [f"n{count}p{number}." for number in range(count)]
    topics = [Topics.with_prefix(prefix) for prefix in prefixes]
    broker = connect(bootstrap)
    for one in topics:
        broker.create_topics(one.specs(1))
    programs = Programs(directory, {"ONEBIT_BOOTSTRAP": bootstrap, "ONEBIT_CLIENT": client})
    flags = [flag for prefix in prefixes for flag in ("--topic-prefix", prefix)]
    sizes = ["--n-classes", str(N_CLASSES), "--n-features", str(N_FEATURES), "--learner", learner]
    program: Program = programs.start("learn", *flags, *sizes)
    try:
        wait_for(
            lambda: program.said().count("started as instance") == count, "the learners run", otherwise=program.said
        )
        send(bootstrap, topics)
        wait_for(lambda: all(matched(broker, one) == EVENTS for one in topics), "all events are learned")
        found, began_s = memory_mb(program.process.pid), cpu_s(program.process.pid)
        time.sleep(IDLE_S)
        found["idle_cpu_percent"] = 100 * (cpu_s(program.process.pid) - began_s) / IDLE_S
        assert program.stop() == 0, program.said()
    finally:
        programs.close()
        broker.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="1,2,4,8,16")
    parser.add_argument("--learner", default="banditron")
    parser.add_argument("--client", choices=ADAPTERS, default="confluent")
    asked = parser.parse_args()
    counts, rows = [int(count) for count in asked.counts.split(",")], []
    with tempfile.TemporaryDirectory() as directory, local_kafka() as kafka:
        for count in counts:
            rows.append(measure(kafka.bootstrap, Path(directory), count, asked.learner, asked.client))
            sys.stdout.write(
                json.dumps({"pipelines": count, **{name: round(n, 1) for name, n in rows[-1].items()}}) + "\n"
            )
            sys.stdout.flush()
    slopes = {name: np.polyfit(counts, [row[name] for row in rows], 1)[0] for name in rows[0]}
    sys.stdout.write(json.dumps({"per_pipeline": {name: round(float(n), 2) for name, n in slopes.items()}}) + "\n")


if __name__ == "__main__":
    main()
