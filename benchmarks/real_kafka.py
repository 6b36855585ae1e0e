"""The three programs on a real Kafka, one partition, by each client: CPU per event, events per second, and latency.

    python benchmarks/real_kafka.py [--events 20000] [--seconds 20] [--results FILE.json]
    python benchmarks/real_kafka.py --profile

A single-node Kafka is started for it, and all that is compared has its turn in the same run:

- The replay writes all contexts as fast as they are taken. Then learner and feedback work through them side by side,
  the feedback at once, so that both are always busy. What the processes use until the first event is left out.
- At 1,000 events/s, feedback at once: from the append time of a context to that of its prediction, and until a reader
  of committed records has it; and the same of a bare transaction loop (benchmarks/rivals.py).
- An agent of Faust that joins the same two topics in memory, with the same learner, in the learner's place.
"""

import argparse
import json
import os
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from stream.brokers.connecting import ADAPTERS, connect
from stream.brokers.local_kafka import local_kafka
from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.cli.settings import Settings
from stream.cli.sources import load_settings
from stream.recovery.journal_reading import JournalFollower
from stream.reporting.versions import versions
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

RIVALS = Path(__file__).with_name("rivals.py")
CASES = (("synsep", "soba-diag"), ("optdigits", "late-ucb"))
RATE = 1_000
WARM_UP = 2_000  # events whose latency is left out

PARTS = (
    "kafka/net", "kafka/producer", "kafka/consumer", "kafka", "confluent_kafka", "stream/brokers", "stream/wire",
    "stream/joining", "stream/learners", "stream/recovery", "stream", "producers", "consumers",
)  # fmt: skip

Row = dict[str, Any]


class Process:
    """A program of the pipeline, or a rival of it."""

    def __init__(self, settings: Settings, *arguments: str, profile: Path | None = None) -> None:
        """Start it, under the profiler if asked for."""
        command = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else []), *arguments]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = psutil.Popen(command, env=os.environ | settings.environment(), stderr=self._errors)
        self.used_s = 0.0  # as it was looked at last

    def look(self) -> float:
        """The CPU time that it has used; what it says is shown when it has failed."""
        code = self._process.poll()
        if code is None:
            times = self._process.cpu_times()
            self.used_s = float(times.user + times.system)
        elif code:
            self._errors.seek(0)
            sys.exit(f"{self._process.args} ended with {code}: {self._errors.read().decode()[-2_000:]}")
        return self.used_s

    def runs(self) -> bool:
        """Whether it has not come to its end."""
        self.look()
        return self._process.poll() is None

    def stand_still(self, *, still: bool) -> None:
        """Stop it for a while, or let it go on."""
        (self._process.suspend if still else self._process.resume)()

    def stop(self) -> None:
        """End it, if it has not come to its end."""
        if self.runs():
            self._process.terminate()
        self._process.wait(60)


@contextmanager
def program(settings: Settings, name: str, profile: Path | None = None) -> Iterator[Process]:
    """A program that is ended afterwards."""
    process = Process(settings, "-m", "stream.cli", name, profile=profile)
    try:
        yield process
    finally:
        process.stop()


class Measured:
    """A pipeline with topics of its own."""

    def __init__(self, broker: Broker, given: dict[str, Any]) -> None:
        self.broker = broker
        self.settings = load_settings(given)
        self.topics = Topics.with_prefix(self.settings.topic_prefix)
        broker.create_topics(self.topics.specs(1))

    def end(self, topic: str) -> int:
        """Where a topic ends; every event that was written outside of transactions is one offset."""
        tp = TopicPartition(topic, 0)
        return self.broker.ends([tp])[tp].stable

    def replay(self, events: int, profile: Path | None = None) -> Row:
        """Write all contexts, as fast as they are taken."""
        with ExitStack() as stack:
            replay = stack.enter_context(program(self.settings, "replay", profile))
            while not (first := self.end(self.topics.contexts)) and replay.runs():
                time.sleep(0.005)
            used_s, began_s = replay.look(), time.perf_counter()
            while (last := self.end(self.topics.contexts)) < events:
                time.sleep(0.005)
            return row("replay", last - first, time.perf_counter() - began_s, replay.look() - used_s)

    def learn(self, events: int, profiles: dict[str, Path | None]) -> list[Row]:
        """Let learner and feedback work through what the replay has written."""
        follower = JournalFollower(self.broker, self.topics, 1)
        with ExitStack() as stack:
            names = ("learn", "feedback")
            programs = {n: stack.enter_context(program(self.settings, n, profiles[n])) for n in names}
            while follower.read(100).decided == 0:
                for process in programs.values():
                    process.look()
            # They stand still while it is read how far they have come: all but a step that is under way is counted.
            for process in programs.values():
                process.stand_still(still=True)
            ledger, before_s = follower.read(500), {n: p.look() for n, p in programs.items()}
            while (more := follower.read(500)) != ledger:
                ledger = more
            # Contexts were written before all feedback, so they are decided first; an event is half done by then.
            done = {"learn": (ledger.decided + ledger.matched) / 2, "feedback": self.end(self.topics.feedback)}
            for process in programs.values():
                process.stand_still(still=False)
            began_s = time.perf_counter()
            while ledger.matched < events:
                ledger = follower.read(20)
                for process in programs.values():
                    process.look()
            wall_s = time.perf_counter() - began_s
            return [row(n, events - done[n], wall_s, p.look() - before_s[n]) for n, p in programs.items()]

    def latencies(self, starts: Sequence[Sequence[str]], events: int) -> Row:
        """How long after its context a prediction is in the log, and can be read by whoever reads committed records."""
        predictions = TopicPartition(self.topics.predictions, 0)
        reader = self.broker.reader([predictions])
        seen_ms: dict[bytes, tuple[int, float]] = {}  # append time, and by this host's clock, which is the broker's too
        with ExitStack() as stack:
            for arguments in starts:
                stack.callback(Process(self.settings, *arguments).stop)
            while not self._is_up(starts):
                time.sleep(0.1)
            stack.enter_context(program(self.settings, "replay"))
            while len(seen_ms) < events:
                for record in reader.poll(200, 10_000):
                    assert record.key is not None
                    seen_ms[record.key] = record.append_ms, 1_000 * time.time()
        reader.close()
        contexts = list(read_partition(self.broker, TopicPartition(self.topics.contexts, 0)))[WARM_UP:]
        told: Row = {}
        for name, place in (("appended", 0), ("committed", 1)):
            taken_ms = [seen_ms[record.key or b""][place] - record.append_ms for record in contexts]
            told |= {f"{name}_p{percent}_ms": round(float(np.percentile(taken_ms, percent)), 1) for percent in (50, 99)}
        return told

    def _is_up(self, starts: Sequence[Sequence[str]]) -> bool:
        group = "bare" if "bare" in starts[0] else f"{self.settings.topic_prefix}learner"
        return any(self.broker.members(group).values())

    def faust(self, events: int) -> Row:
        """Let an agent of Faust do the learner's work, on contexts that are there, and the feedback program answer."""
        rival = Process(self.settings, str(RIVALS), "faust", str(events))
        with program(self.settings, "feedback"):
            while not (done := self.end(self.topics.feedback)) and rival.runs():
                time.sleep(0.02)
            used_s, began_s = rival.look(), time.perf_counter()
            while rival.runs():
                time.sleep(0.02)
        return row("faust", events - done, time.perf_counter() - began_s, rival.used_s - used_s)


def row(name: str, events: float, wall_s: float, used_s: float) -> Row:
    """One program's figures."""
    return {"program": name, "events_per_s": round(events / wall_s), "cpu_us": round(1e6 * used_s / events, 1)}


def where(profile: Path) -> str:
    """Share of the profiled time by part of the code."""
    stats = pstats.Stats(str(profile))
    shares: Counter[str] = Counter()
    for (file, _, name), (_, _, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        part = next((part for part in PARTS if f"/{part}" in file), f"{file if file == '~' else 'Python'} {name}"[:40])
        shares[part] += own_s
    total = sum(shares.values())
    return ", ".join(f"{part} {share / total:.0%}" for part, share in shares.most_common(14))


def measure(bootstrap: str, client: str, data: str, learner: str, arguments: argparse.Namespace) -> Iterator[Row]:
    """All that is measured of one client, with one data set."""
    given = {
        "bootstrap": bootstrap, "client": client, "data": data, "learner": [learner], "delay": "none", "seed": 1,
        "shuffle": True, "instance": "bench", "session_timeout": "60s",
    }  # fmt: skip
    case = {"data": data, "learner": learner, "client": client}
    at_once = {**given, "events": arguments.events, "rate": 1e9}
    broker = connect(bootstrap, client=client)
    with tempfile.TemporaryDirectory() as directory:
        names = ("replay", "learn", "feedback")
        profiles = {name: Path(directory) / name if arguments.profile else None for name in names}
        busy = Measured(broker, {**at_once, "topic_prefix": f"{client}.{data}.busy."})
        yield case | busy.replay(arguments.events, profiles["replay"])
        for found in busy.learn(arguments.events, profiles):
            yield case | found
        for name, profile in profiles.items():
            if profile is not None:
                print(f"{name}: {where(profile)}", flush=True)
    if arguments.seconds:
        paced = {**given, "events": WARM_UP + RATE * arguments.seconds, "rate": RATE}
        learning = [["-m", "stream.cli", name] for name in ("learn", "feedback")]
        for name, starts in (("learn", learning), ("bare", [[str(RIVALS), "bare", str(paced["events"])]])):
            pipeline = Measured(broker, {**paced, "topic_prefix": f"{client}.{data}.{name}."})
            yield case | {"program": f"{name} at {RATE:,}/s"} | pipeline.latencies(starts, paced["events"])
    if client == "kafka-python" and not arguments.profile:  # Faust has a client of its own
        rival = Measured(broker, {**at_once, "topic_prefix": f"{client}.{data}.faust."})
        rival.replay(arguments.events)
        yield case | rival.faust(arguments.events)
    broker.close()


def main() -> None:
    """Measure, print a line for each, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=20, help="at 1,000 events/s; 0: no latency")
    parser.add_argument("--clients", nargs="+", default=list(ADAPTERS))
    parser.add_argument("--data", nargs="+", default=[data for data, _ in CASES])
    parser.add_argument("--results", type=Path, help="write the rows as JSON")
    parser.add_argument("--profile", action="store_true", help="say where the time goes; it costs time itself")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with local_kafka() as kafka:
        for data, learner in CASES:
            for client in arguments.clients if data in arguments.data else ():
                for found in measure(kafka.bootstrap, client, data, learner, arguments):
                    print(" ".join(f"{name} {value}" for name, value in found.items()), flush=True)
                    rows.append(found | {"load_average": round(os.getloadavg()[0], 1)})
                    if arguments.results is not None:
                        keep(arguments.results, arguments.events, rows)


def keep(path: Path, events: int, rows: Sequence[Row]) -> None:
    """Write what has been measured so far."""
    told = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "versions": versions(), "events": events,
        "rows": rows,
    }  # fmt: skip
    path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
