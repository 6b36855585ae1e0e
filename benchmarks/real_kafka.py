"""The three programs on a real Kafka, one partition: events per second, CPU per event, and where the time goes.

    python benchmarks/real_kafka.py [--events 20000] [--profile]

A single-node Kafka is started for it, and every client has its turn in the same run. The replay writes all contexts as
fast as they are taken; then learner and feedback work through them side by side, the feedback at once, so that both are
always busy.
"""

import argparse
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from stream.brokers.connecting import ADAPTERS, connect
from stream.brokers.local_kafka import local_kafka
from stream.cli.settings import Settings
from stream.cli.sources import load_settings
from stream.recovery.journal_reading import JournalFollower
from stream.wire.topics import Topics

PARTS = (
    "kafka/net",
    "kafka/producer",
    "kafka/consumer",
    "kafka",
    "stream/learners",
    "stream",
    "producers",
    "consumers",
)


def start(name: str, settings: Settings, profile: Path | None) -> psutil.Popen:
    """Start a program of the pipeline, under the profiler if asked for."""
    command = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else []), "-m", "stream.cli", name]
    return psutil.Popen(command, env=os.environ | settings.environment(), stderr=subprocess.DEVNULL)


def cpu_s(process: psutil.Popen) -> float:
    """CPU time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def where(profile: Path) -> str:
    """Share of the profiled time by part of the code."""
    stats = pstats.Stats(str(profile))
    shares: Counter[str] = Counter()
    for (file, _, _), (_, _, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        part = next((part for part in PARTS if f"/{part}" in file), "Python and libraries")
        if "poll" not in file and "select" not in file:
            shares[part] += own_s
    total = sum(shares.values())
    return ", ".join(f"{part} {share / total:.0%}" for part, share in shares.most_common(6))


def main() -> None:
    """Measure, and print one line for each program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true", help="say where the time goes; it costs time itself")
    arguments = parser.parse_args()
    events: int = arguments.events
    with local_kafka() as kafka:
        for client in ADAPTERS:
            print(client, flush=True)
            with tempfile.TemporaryDirectory() as directory:
                measure(kafka.bootstrap, client, events, Path(directory) if arguments.profile else None)


def measure(bootstrap: str, client: str, events: int, profiles_in: Path | None) -> None:
    """Run the three programs with one client."""
    given = {"data": "synsep", "events": events, "rate": 1e9, "delay": "none", "seed": 1, "instance": "bench"}
    settings = load_settings({**given, "bootstrap": bootstrap, "client": client, "topic_prefix": f"{client}."})
    topics = Topics.with_prefix(settings.topic_prefix)
    broker = connect(bootstrap, client=client)
    broker.create_topics(topics.specs(1))
    profiles = {name: profiles_in / name if profiles_in else None for name in ("replay", "learn", "feedback")}

    began_s = time.perf_counter()
    used_s = 0.0
    replay = start("replay", settings, profiles["replay"])
    while replay.poll() is None:
        used_s = cpu_s(replay)
        time.sleep(0.02)
    show("replay", events, time.perf_counter() - began_s, used_s)

    programs = {name: start(name, settings, profiles[name]) for name in ("learn", "feedback")}
    follower = JournalFollower(broker, topics, 1)
    while follower.read(100).decided == 0:
        pass
    ledger = follower.read(0)
    before_s, began_s, done = {name: cpu_s(p) for name, p in programs.items()}, time.perf_counter(), ledger.matched
    while ledger.matched < events:
        ledger = follower.read(20)
    wall_s = time.perf_counter() - began_s
    for name, process in programs.items():
        show(name, events - done, wall_s, cpu_s(process) - before_s[name])
    for process in programs.values():
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    for name, profile in profiles.items():
        if profile is not None:
            print(f"{name}: {where(profile)}")
    broker.close()


def show(name: str, events: int, wall_s: float, used_s: float) -> None:
    """Print one line."""
    print(
        f"{name:<9} {events / wall_s:>8,.0f} events/s wall  {1e6 * used_s / events:>6.0f} µs CPU per event", flush=True
    )


if __name__ == "__main__":
    main()
