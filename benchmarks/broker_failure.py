"""Measure decisions over HTTP while one of three brokers is dead.

    python benchmarks/broker_failure.py [leader] [coordinator] [controller]

Each run has a new cluster, one learner, and one gateway with the default timeout. Requests arrive at 20 per second and
are not retried. After a minute, one broker is killed with SIGKILL; after another minute, it is restarted. The broker is
the leader of all topics, the coordinator of all groups and transactions, or the active controller. These are three
different brokers. For each minute, the benchmark prints the number of responses per status, the longest time without a
decision, and percentiles of the latency.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient

from onebit.testing.processes import Programs, wait_for
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import HOST
from stream.kafka.kafka_python.admin import settings_of
from stream.wire.topics import Topics

NODES = (1, 2, 3)
ROLES = ("leader", "coordinator", "controller")
RATE, PHASE_S = 20, 60
HTTP_PORT, BROKER_PORT, CONTROLLER_PORT = 18_080, 18_090, 18_190
BOOTSTRAP = ",".join(f"{HOST}:{BROKER_PORT + node}" for node in NODES)
INTERNAL = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
BROKER = {
    "controller.quorum.voters": ",".join(f"{node}@{HOST}:{CONTROLLER_PORT + node}" for node in NODES),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # Kafka's defaults; `local_kafka` has shorter timeouts.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}

Response = tuple[int, float, float]
"""The status, and the times of a request and its response since the first request, in seconds."""


def start(home: Path, node: int) -> None:
    """Start a broker that is also a controller."""
    broker = f"PLAINTEXT://{HOST}:{BROKER_PORT + node}"
    listeners = {"listeners": f"{broker},CONTROLLER://{HOST}:{CONTROLLER_PORT + node}", "advertised.listeners": broker}
    settings = {**BROKER, **listeners, "node.id": str(node)}
    local_kafka.start(BROKER_PORT + node, home / str(node), settings=settings, timeout_s=180)


def kill(home: Path, node: int) -> None:
    """Kill a broker with SIGKILL."""
    running = local_kafka.status(home / str(node))
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)


@contextmanager
def cluster(home: Path) -> Iterator[None]:
    """Run three brokers. The first one formats its storage, and the others copy the files, which name the cluster."""
    first, *others = (home / str(node) / "storage" for node in NODES)
    with ThreadPoolExecutor() as pool:
        try:
            started = [pool.submit(start, home, NODES[0])]
            wait_for((first / "meta.properties").exists, "the storage is formatted")  # the last file
            formatted = (first / "meta.properties").read_text().splitlines()
            kept = [line for line in formatted if line.startswith(("version", "cluster.id"))]
            for node, storage in zip(NODES[1:], others, strict=True):
                storage.mkdir(parents=True)
                (storage / "bootstrap.checkpoint").write_bytes((first / "bootstrap.checkpoint").read_bytes())
                (storage / "meta.properties").write_text("\n".join([*kept, f"node.id={node}", ""]))
                started.append(pool.submit(start, home, node))
            for each in started:
                each.result()
            yield
        finally:
            for node in NODES:
                local_kafka.stop(home / str(node))


def place_roles() -> dict[str, int]:
    """Create all topics, and return the broker with each role."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    wait_for(lambda: len(admin.list_topics(timeout=30).brokers) == len(NODES), "all brokers have joined")
    with closing(KafkaAdminClient(bootstrap_servers=BOOTSTRAP)) as quorum:
        controller = quorum.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"]
    leader, coordinator = (node for node in NODES if node != controller)
    specs = Topics.with_prefix("bench.").specs(1, len(NODES))
    configs = {spec.name: (leader, settings_of(spec)) for spec in specs}
    configs |= dict.fromkeys(("__consumer_offsets", "__transaction_state"), (coordinator, INTERNAL))
    new = [
        NewTopic(name, 1, replica_assignment=[sorted(NODES, key=lambda node: node != first)], config=config)
        for name, (first, config) in configs.items()
    ]
    for created in admin.create_topics(new).values():
        created.result(30)
    return dict(zip(ROLES, (leader, coordinator, controller), strict=True))


def decide(number: int, began_s: float) -> Response:
    """Request a decision once. The status is 0 if there is no response."""
    body = json.dumps({"id": f"visit-{number}", "x": [float(number % 7 == n % 7) for n in range(64)]}).encode()
    asked_s = time.monotonic()
    status = 0
    try:
        url = f"http://{HOST}:{HTTP_PORT}/v1/decide"
        with urlopen(Request(url, body, {"Content-Type": "application/json"})) as got:
            got.read()
            status = got.status
    except URLError as error:
        status = error.code if isinstance(error, HTTPError) else 0
    return status, asked_s - began_s, time.monotonic() - began_s


def measure(role: str) -> list[Response]:
    """Kill and restart the broker with a role during steady requests, and return the responses."""
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)), ThreadPoolExecutor(300) as pool:
        node = place_roles()[role]
        settings = {"BOOTSTRAP": BOOTSTRAP, "CLIENT": "confluent", "TOPIC_PREFIX": "bench.", "SERVE_PORT": HTTP_PORT}
        environment = {f"ONEBIT_{name}": str(value) for name, value in settings.items()}
        with closing(Programs(Path(folder), environment)) as programs:
            learner = programs.start("learn", "--learner", "late-ucb", "--n-classes", "10", "--n-features", "64")
            gateway = programs.start("serve")
            gateway.wait_until(lambda: decide(-1, 0)[0] == 200, "the gateway responds with a decision")
            began_s = time.monotonic()
            actions = {PHASE_S * RATE: kill, 2 * PHASE_S * RATE: start}
            acted, asked = [], []
            for number in range(3 * PHASE_S * RATE):
                time.sleep(max(0.0, began_s + number / RATE - time.monotonic()))
                if number in actions:
                    acted.append(pool.submit(actions[number], Path(folder), node))
                asked.append(pool.submit(decide, number, began_s))
            assert [each.result() for each in acted] == [None, None]
            responses = [each.result() for each in asked]
            verified = programs.start("verify", "--timeout", "2m").wait()
            assert (learner.process.poll(), gateway.process.poll(), verified) == (None, None, 0), programs.said()
            return responses


def main() -> None:
    """Run the measurements."""
    for role in sys.argv[1:] or ROLES:
        responses = measure(role)
        times_s = sorted(response_s for status, _, response_s in responses if status == 200)
        gaps_s = [(after_s - before_s, after_s) for before_s, after_s in pairwise(times_s)]
        for phase, name in enumerate(("before", "dead", "restarted")):
            own = [each for each in responses if each[1] // PHASE_S == phase]
            took_ms = [1_000 * (response_s - asked_s) for status, asked_s, response_s in own if status == 200]
            longest_s = max(gap_s for gap_s, at_s in gaps_s if at_s // PHASE_S == phase)
            p50_ms, p99_ms = np.percentile(took_ms, [50, 99])
            statuses = dict(Counter(status for status, _, _ in own))
            print(f"{role} {name}: {statuses}, longest gap {longest_s:.1f} s, p50 {p50_ms:.0f}, p99 {p99_ms:.0f} ms")
        print(f"load average {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
