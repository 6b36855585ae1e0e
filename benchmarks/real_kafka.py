"""Measure the three programs against a Kafka broker, using one partition: CPU per event, events per second and latency.

    python benchmarks/real_kafka.py [--events 20000] [--seconds 20] [--results FILE.json]
    python benchmarks/real_kafka.py --learners banditron --data synsep --turns 3 --results FILE.json
    python benchmarks/real_kafka.py --profile

Starts a single-node Kafka broker. Within one run, the following measurements alternate, `--turns` times each:

- The replay writes all contexts as fast as the broker accepts them. The learner and the feedback program then settle
  this backlog, so that both are always busy. The first `--warm-up` events are excluded.
- At 1,000 events/s with immediate feedback, two latencies are measured: from the append of a context to the append of
  its prediction, and to the prediction's delivery to a read_committed consumer. A bare transaction loop
  (benchmarks/rivals.py) is measured in the same way.
- A Faust agent that joins the same two topics in memory, with the same learner, replaces the learner program.
- With banditron, a Kafka Streams application with exactly-once processing (benchmarks/streams) replaces the learner
  program.
"""

import argparse
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import streams_rival

from producers.data import dataset_of
from stream.devkafka.local_kafka import local_kafka
from stream.kafka.connection import ADAPTERS, connect
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.learners import check_parameters
from stream.reporting.runs import versions
from stream.settings.definitions import Settings
from stream.settings.sources import load_settings
from stream.wire import codec
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

RIVALS = Path(__file__).with_name("rivals.py")
CASES = (("synsep", "soba-diag"), ("optdigits", "late-ucb"))
RATE = 1_000
PACED_WARM_UP = 5_000  # number of initial events whose latency is excluded
STREAMS = [(store, commit_ms) for store in ("memory", "rocksdb") for commit_ms in (100, 10)]

PARTS = (
    "kafka/net", "kafka/producer", "kafka/consumer", "kafka", "confluent_kafka", "stream/kafka", "stream/wire",
    "stream/task", "stream/learners", "stream/recovery", "stream", "producers", "consumers",
)  # fmt: skip

Row = dict[str, Any]


class Process:
    """A process that runs one of the pipeline's programs or a rival program."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        """Start the process."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self._process = psutil.Popen(command, env=os.environ | settings.environment(), stderr=self._errors)
        self.used_s = 0.0  # CPU time at the last measurement

    def look(self) -> float:
        """Return the CPU time used so far. If the process has failed, exit and print its error output."""
        code = self._process.poll()
        if code is None:
            times = self._process.cpu_times()
            self.used_s = float(times.user + times.system)
        elif code:
            self._errors.seek(0)
            sys.exit(f"{self._process.args} ended with exit code {code}: {self._errors.read().decode()[-2_000:]}")
        return self.used_s

    def runs(self) -> bool:
        """Return whether the process is running."""
        self.look()
        return self._process.poll() is None

    def stand_still(self, *, still: bool) -> None:
        """Suspend or resume the process."""
        (self._process.suspend if still else self._process.resume)()

    def stop(self) -> None:
        """Terminate the process if it is running."""
        if self.runs():
            self._process.terminate()
        self._process.wait(60)


def python(*arguments: str, profile: Path | None = None) -> list[str]:
    """Return a command that runs Python, under the profiler if requested."""
    return [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else []), *arguments]


def onebit(name: str, *flags: str, profile: Path | None = None) -> list[str]:
    """Return the command that runs one of the pipeline's programs."""
    return python("-m", "onebit", name, *flags, profile=profile)


@contextmanager
def running(settings: Settings, command: Sequence[str]) -> Iterator[Process]:
    """Run a process and terminate it at the end."""
    process = Process(settings, command)
    try:
        yield process
    finally:
        process.stop()


class Measured:
    """A pipeline with its own topics."""

    def __init__(self, broker: Broker, given: dict[str, Any]) -> None:
        self.broker = broker
        self.given = given
        self.settings = load_settings(given)
        self.topics = Topics.with_prefix(self.settings.topic_prefix)
        broker.create_topics(self.topics.specs(1))

    def end(self, topic: str) -> int:
        """Return a topic's end offset, which equals the number of records if they are written without transactions."""
        tp = TopicPartition(topic, 0)
        return self.broker.ends([tp])[tp].stable

    def replay(self, events: int, profile: Path | None = None) -> Row:
        """Write contexts as fast as the broker accepts them, until the topic contains `events` contexts."""
        settings = load_settings({**self.given, "events": events})
        with running(settings, onebit("replay", "--resume", profile=profile)) as replay:
            while not (first := self.end(self.topics.contexts)) and replay.runs():
                time.sleep(0.005)
            used_s, began_s = replay.look(), time.perf_counter()
            while (last := self.end(self.topics.contexts)) < events:
                time.sleep(0.005)
            return row("replay", last - first, time.perf_counter() - began_s, replay.look() - used_s)

    def settle(self, commands: Mapping[str, Sequence[str]], events: int, warm_up: int) -> list[Row]:
        """Measure a learner and the feedback program on a backlog of events, excluding the warm-up events."""
        examples = Examples(self)
        self.replay(warm_up)
        with ExitStack() as stack:
            programs = {n: stack.enter_context(running(self.settings, command)) for n, command in commands.items()}
            examples.read_until(warm_up, programs.values())
            for process in programs.values():
                process.stand_still(still=True)
            self.replay(warm_up + events)
            before_s = {n: p.look() for n, p in programs.items()}
            for process in programs.values():
                process.stand_still(still=False)
            began_s = time.perf_counter()
            examples.read_until(warm_up + events, programs.values())
            wall_s = time.perf_counter() - began_s
            return [row(n, events, wall_s, p.look() - before_s[n]) for n, p in programs.items()]

    def latencies(self, commands: Sequence[Sequence[str]], events: int, group: str, *, settles: bool) -> Row:
        """Measure the time until a context's prediction is in the log, and until a read_committed consumer reads it."""
        predictions = TopicPartition(self.topics.predictions, 0)
        reader = self.broker.reader([predictions])
        seen_ms: dict[bytes, tuple[int, float]] = {}  # append time and arrival time, from the same clock
        with ExitStack() as stack:
            processes = [stack.enter_context(running(self.settings, command)) for command in commands]
            while not any(self.broker.members(f"{self.settings.topic_prefix}{group}").values()):
                processes[0].look()
                time.sleep(0.1)
            stack.enter_context(running(self.settings, onebit("replay")))
            while len(seen_ms) < events:
                processes[0].look()
                for record in reader.poll(200, 10_000):
                    assert record.key is not None
                    seen_ms[record.key] = record.append_ms, 1_000 * time.time()
            row: Row = {}
            if settles:
                examples = Examples(self)
                examples.read_until(events, processes)
                row["error"] = round(examples.wrong / events, 4)
        reader.close()
        contexts = list(read_partition(self.broker, TopicPartition(self.topics.contexts, 0)))[PACED_WARM_UP:]
        for name, place in (("appended", 0), ("committed", 1)):
            taken_ms = [seen_ms[record.key or b""][place] - record.append_ms for record in contexts]
            row |= {f"{name}_p{percent}_ms": round(float(np.percentile(taken_ms, percent)), 1) for percent in (50, 99)}
        return row

    def faust(self, events: int) -> Row:
        """Measure a Faust agent that replaces the learner, on existing contexts and with the feedback program."""
        rival = Process(self.settings, python(str(RIVALS), "faust", str(events)))
        with running(self.settings, onebit("feedback")):
            while not (done := self.end(self.topics.feedback)) and rival.runs():
                time.sleep(0.02)
            used_s, began_s = rival.look(), time.perf_counter()
            while rival.runs():
                time.sleep(0.02)
        return row("faust", events - done, time.perf_counter() - began_s, rival.used_s - used_s)


class Examples:
    """Counts a pipeline's settled decisions, and how many of them were wrong."""

    def __init__(self, pipeline: Measured) -> None:
        self._reader = pipeline.broker.reader([TopicPartition(pipeline.topics.examples, 0)])
        self.settled = self.wrong = 0

    def read_until(self, settled: int, processes: Iterable[Process]) -> None:
        """Read until the given number of decisions are settled. Exit if a process fails."""
        while self.settled < settled:
            for process in processes:
                process.look()
            for record in self._reader.poll(100, 10_000):
                self.settled += 1
                self.wrong += codec.decode_example(record).reward == 0


def row(name: str, events: float, wall_s: float, used_s: float) -> Row:
    """Return a program's rate and CPU time per event."""
    return {"program": name, "events_per_s": round(events / wall_s), "cpu_us": round(1e6 * used_s / events, 1)}


def where(profile: Path) -> str:
    """Return the share of the profiled time spent in each part of the code."""
    stats = pstats.Stats(str(profile))
    shares: Counter[str] = Counter()
    for (file, _, name), (_, _, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        part = next((part for part in PARTS if f"/{part}" in file), f"{file if file == '~' else 'Python'} {name}"[:40])
        shares[part] += own_s
    total = sum(shares.values())
    return ", ".join(f"{part} {share / total:.0%}" for part, share in shares.most_common(14))


def measure(bootstrap: str, client: str, case: Row, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield all measurements for one client and one data set."""
    given = given_to(bootstrap, client, case)
    case = {**case, "client": client}
    at_once = {**given, "events": arguments.events, "rate": 1e9}
    broker = connect(bootstrap, client=client)
    prefix = given["topic_prefix"]
    with tempfile.TemporaryDirectory() as directory:
        names = ("replay", "learn", "feedback")
        profiles = {name: Path(directory) / name if arguments.profile else None for name in names}
        yield case | Measured(broker, {**at_once, "topic_prefix": f"{prefix}replay."}).replay(
            arguments.events, profiles["replay"]
        )
        busy = Measured(broker, {**at_once, "topic_prefix": f"{prefix}busy."})
        commands = {name: onebit(name, profile=profiles[name]) for name in ("learn", "feedback")}
        for found in busy.settle(commands, arguments.events, arguments.warm_up):
            yield case | found
        for name, profile in profiles.items():
            if profile is not None:
                print(f"{name}: {where(profile)}", flush=True)
    if arguments.seconds:
        events = PACED_WARM_UP + RATE * arguments.seconds
        paced = {**given, "events": events, "rate": RATE}
        pipeline = Measured(broker, {**paced, "topic_prefix": f"{prefix}learn."})
        learning = [onebit("learn"), onebit("feedback")]
        found = pipeline.latencies(learning, events, "learner", settles=True)
        yield case | {"program": f"learn at {RATE:,}/s"} | found
        pipeline = Measured(broker, {**paced, "topic_prefix": f"{prefix}bare."})
        found = pipeline.latencies([python(str(RIVALS), "bare", str(events))], events, "bare", settles=False)
        yield case | {"program": f"bare at {RATE:,}/s"} | found
    if client == "kafka-python" and not arguments.profile:  # Faust has its own client
        rival = Measured(broker, {**at_once, "topic_prefix": f"{prefix}faust."})
        rival.replay(arguments.events)
        yield case | rival.faust(arguments.events)
    broker.close()


def measure_streams(bootstrap: str, class_path: str, case: Row, arguments: argparse.Namespace) -> Iterator[Row]:
    """Measure Kafka Streams for each store and commit interval. Replay and feedback use confluent-kafka."""
    given = given_to(bootstrap, "confluent", case)
    broker = connect(bootstrap, client="confluent")
    dataset = dataset_of(load_settings(given))
    for store, commit_ms in STREAMS:
        found = {**case, "client": f"streams {store} {commit_ms} ms"}
        with tempfile.TemporaryDirectory() as directory:
            prefix = f"{given['topic_prefix']}{store}-{commit_ms}."
            rival = partial(
                streams_rival.command, class_path, bootstrap=bootstrap, state_dir=directory, store=store,
                commit_ms=commit_ms, window_ms=load_settings(given).window_ms, classes=dataset.n_classes,
                features=dataset.n_features, gamma=check_parameters(case["learner"], {})["gamma"], seed=given["seed"],
            )  # fmt: skip
            at_once = {**given, "rate": 1e9, "topic_prefix": f"{prefix}busy."}
            commands = {"learn": rival(prefix=at_once["topic_prefix"]), "feedback": onebit("feedback")}
            yield found | Measured(broker, at_once).settle(commands, arguments.events, arguments.warm_up)[0]
            if arguments.seconds:
                events = PACED_WARM_UP + RATE * arguments.seconds
                paced = {**given, "events": events, "rate": RATE, "topic_prefix": f"{prefix}paced."}
                learning = [rival(prefix=paced["topic_prefix"]), onebit("feedback")]
                latencies = Measured(broker, paced).latencies(learning, events, "learner", settles=True)
                yield found | {"program": f"learn at {RATE:,}/s"} | latencies
    broker.close()


def given_to(bootstrap: str, client: str, case: Row) -> dict[str, Any]:
    """Return a pipeline's settings for one case and client."""
    return {
        "bootstrap": bootstrap, "client": client, "data": case["data"], "learner": [case["learner"]], "delay": "none",
        "seed": 1, "shuffle": True, "instance": "bench", "session_timeout": "60s",
        "topic_prefix": f"{case['turn']}.{case['data']}.{case['learner']}.{client}.",
    }  # fmt: skip


def main() -> None:
    """Run the measurements, print a line for each result, and store the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument(
        "--warm-up", type=int, default=20_000, help="number of events to settle before measurement starts"
    )
    parser.add_argument("--seconds", type=int, default=20, help="time to run at 1,000 events/s; 0 skips this part")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--clients", nargs="+", default=list(ADAPTERS))
    parser.add_argument("--data", nargs="+", default=[data for data, _ in CASES])
    parser.add_argument(
        "--learners", nargs="+", help="learners to run on every data set; by default, one learner per data set"
    )
    parser.add_argument("--results", type=Path, help="write the rows as JSON")
    parser.add_argument("--profile", action="store_true", help="print a profile; slows the programs down")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with local_kafka() as kafka, tempfile.TemporaryDirectory() as classes:
        for found in everything(kafka.bootstrap, Path(classes), arguments):
            print(" ".join(f"{name} {value}" for name, value in found.items()), flush=True)
            rows.append(found | {"load_average": round(os.getloadavg()[0], 1)})
            if arguments.results is not None:
                keep(arguments.results, arguments, rows)


def everything(bootstrap: str, classes: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the results for all cases, turn by turn."""
    cases = [
        (data, own) for data, learner in CASES for own in arguments.learners or [learner] if data in arguments.data
    ]
    rivals = not arguments.profile and any(learner == "banditron" for _, learner in cases)
    class_path = streams_rival.class_path(classes) if rivals else ""
    for turn in range(1, arguments.turns + 1):
        for data, learner in cases:
            case = {"turn": turn, "data": data, "learner": learner}
            for client in arguments.clients:
                yield from measure(bootstrap, client, case, arguments)
            if rivals and learner == "banditron":
                yield from measure_streams(bootstrap, class_path, case, arguments)


def medians(rows: Sequence[Row]) -> list[Row]:
    """Return each measurement's median over the turns."""
    names = ("data", "learner", "client", "program")
    cases: dict[tuple[str, ...], list[Row]] = {}
    for found in rows:
        cases.setdefault(tuple(found[name] for name in names), []).append(found)
    return [
        dict(zip(names, case, strict=True))
        | {name: statistics.median(one[name] for one in turns) for name in turns[0] if name not in (*names, "turn")}
        for case, turns in cases.items()
    ]


def keep(path: Path, arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write the results so far."""
    content = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "versions": versions(),
        "events": arguments.events, "warm_up": arguments.warm_up, "medians": medians(rows), "rows": rows,
    }  # fmt: skip
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
