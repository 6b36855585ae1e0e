"""Measure how many log entries per second a replica of a shared model decodes and applies.

    python benchmarks/replica.py [--events N] [--kafka HOST:PORT [--client kafka-python|confluent]]

Learners whose decisions change the model write two entries per event; other learners write one entry. Times are CPU
times. With --kafka, the log is written to and read from a topic with one partition, and wall times are also printed.
"""

import argparse
import time

import numpy as np

from producers.datasets.named import load
from stream.kafka.connection import connect
from stream.kafka.reading import read_partition
from stream.shared.replica import Replica
from stream.shared.view import View
from stream.task.settings import TaskSettings
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import TopicSpec
from stream.wire.updates import HEADERS, encode_updates

LEARNERS = ("soba-diag", "late-ucb", "stack-igw")
DATA = "optdigits"


def fresh(name: str, n_classes: int, n_features: int) -> Replica:
    return Replica(TaskSettings(name, n_classes, n_features, model="shared"))


def log_of(name: str, events: int, step: int) -> tuple[list[Record], int, int, float]:
    """Return a log of one task's steps, the number of classes, the number of features, and the decision time in s."""
    data = load(DATA)
    size = data.rows
    replica = fresh(name, data.n_classes, data.n_features)
    view = View(replica, 0)
    u = np.random.default_rng(1).random(events)
    log: list[Record] = []
    took_s = 0.0
    for number in range(1, events // step + 1):
        rows = [(number - 1) * step + place for place in range(step)]
        decided = []
        started_s = time.process_time()
        with view.step() as entries:
            for row in rows:
                x = data.row(row % size).x
                decision = view.learner.predict(x, float(u[row]))
                view.observe(x, decision)
                decided.append((row, x, decision))
        took_s += time.process_time() - started_s
        for row, x, decision in decided:
            view.settle(x, decision, int(decision.action == data.label(row % size)), 0.0, None)
        for value in encode_updates(0, number, number - 1, entries):
            log.append(Record("updates", 0, len(log), 0, None, value, HEADERS))
        replica.read(log[-1:])
    return log, data.n_classes, data.n_features, took_s


def through_kafka(bootstrap: str, client: str, log: list[Record], replica: Replica, at_once: int) -> str:
    """Write a log in transactions of `at_once` records and read it with a replica."""
    broker = connect(bootstrap, client=client)
    tp = TopicPartition(f"replica-{time.time_ns()}.updates", 0)
    broker.create_topics([TopicSpec(tp.topic, 1)])
    producer = broker.transactional_producer(tp.topic)
    began = time.perf_counter(), time.process_time()
    for start in range(0, len(log), at_once):
        producer.begin()
        for record in log[start : start + at_once]:
            producer.send(tp.topic, 0, None, record.value, record.headers)
        producer.commit()
    wrote = time.perf_counter(), time.process_time()
    batch: list[Record] = []
    for record in read_partition(broker, tp):
        batch.append(record)
        if len(batch) == at_once:
            replica.read(batch)
            batch.clear()
    replica.read(batch)
    read = time.perf_counter(), time.process_time()
    producer.close()
    broker.delete_topics([tp.topic])
    broker.close()
    entries = replica.version
    rates = [entries / (end - start) for one, other in ((began, wrote), (wrote, read))
             for start, end in zip(one, other, strict=True)]  # fmt: skip
    return (
        f"writing: {rates[0]:9,.0f} entries/s of wall time, {rates[1]:9,.0f} of CPU time; "
        f"reading: {rates[2]:9,.0f} and {rates[3]:9,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--kafka", metavar="HOST:PORT")
    parser.add_argument("--client", default="kafka-python")
    arguments = parser.parse_args()
    print(f"{DATA}, {arguments.events} events")
    for name in LEARNERS:
        for step, at_once in ((1, 500), (20, 50), (500, 10)):
            events = arguments.events if step > 1 else arguments.events // 10
            log, K, d, took_s = log_of(name, events, step)
            if arguments.kafka:
                speeds = through_kafka(arguments.kafka, arguments.client, log, fresh(name, K, d), at_once)
                print(f"{name:10} steps of {step:3}, {arguments.client}: {speeds}", flush=True)
                continue
            best_s = float("inf")
            for _ in range(3):
                replica = fresh(name, K, d)
                started_s = time.process_time()
                for start in range(0, len(log), at_once):
                    replica.read(log[start : start + at_once])
                best_s = min(best_s, time.process_time() - started_s)
            size = sum(len(record.value or b"") for record in log) / replica.version
            print(
                f"{name:10} steps of {step:3}, {at_once:3} records at once: {replica.version / best_s:9,.0f} "
                f"entries/s, {size:5.0f} bytes per entry; {1e6 * took_s / events:5.1f} us per decision"
            )


if __name__ == "__main__":
    main()
