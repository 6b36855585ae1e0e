"""Measure the latency of decisions requested over HTTP, and directly through the topics of a Kafka broker.

    python benchmarks/serve.py [--rates 300 1000] [--seconds 10] [--turns 5] [--results FILE.json]

Starts a single-node Kafka broker, a learner and a gateway. In each turn and at each rate, decisions are requested at
random (Poisson) times in two ways, one after the other:

- pipeline: a client writes the contexts, and reads the predictions with read_committed.
- gateway: a client calls `POST /v1/decide` over keep-alive connections.

Both clients are asyncio programs that do nothing else. A latency is the time from a request's planned start to the
receipt of its decision. Prints the percentiles and the CPU time per request of each process in each turn, and the
medians over the turns.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from onebit.testing.processes import Programs
from stream.devkafka.local_kafka import HOST, local_kafka
from stream.kafka.connection import connect
from stream.reporting.runs import versions
from stream.wire.codec import HEADERS
from stream.wire.topics import Topics

PORT = 18_080
WARM_UP_S = 3.0  # excluded from the percentiles
DECIDED_S = 30.0  # time limit for the last decisions
RETRY_S = 0.1  # pause before a retry; a latency includes the retries
N_CLASSES, N_FEATURES = 10, 64
LEARNER = ("--learner", "late-ucb", "--n-classes", str(N_CLASSES), "--n-features", str(N_FEATURES), "--window", "10s")

WAYS = ("pipeline", "gateway")

Row = dict[str, Any]
Ask = Callable[[str, bytes], Awaitable[float]]
"""Requests a decision by id, and returns the time at which it is received."""


async def latencies_ms(ask: Ask, prefix: str, rate: float, seconds: float) -> list[float]:
    """Request decisions at random times, and return their latencies, excluding the warm-up."""
    draw = np.random.default_rng(1)
    planned_s = np.cumsum(draw.exponential(1 / rate, int(rate * (WARM_UP_S + seconds))))
    x = draw.normal(size=(100, N_FEATURES)).round(3).tolist()
    began_s = time.perf_counter()

    async def one(number: int) -> float:
        event_id = f"{prefix}{number}"
        received_s = await ask(event_id, json.dumps({"id": event_id, "x": x[number % len(x)]}).encode())
        return 1_000 * (received_s - began_s - float(planned_s[number]))

    asked = []
    for number, at_s in enumerate(planned_s):
        if (early_s := began_s + at_s - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
        asked.append(asyncio.create_task(one(number)))
    found = await asyncio.wait_for(asyncio.gather(*asked), DECIDED_S)
    return [took_ms for took_ms, at_s in zip(found, planned_s, strict=True) if at_s >= WARM_UP_S]


class Door:
    """A gateway client with one connection per concurrent request."""

    def __init__(self, port: int = PORT) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, _: str, body: bytes) -> float:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
        head = b""
        while not head.startswith(b"HTTP/1.1 200 "):
            if head:  # the request was refused, for example because there are too many requests
                await asyncio.sleep(RETRY_S)
            writer.write(
                b"POST /v1/decide HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        received_s = time.perf_counter()
        self._idle.append((reader, writer))
        return received_s


class Pipe:
    """A client that uses the topics directly, and reads predictions in a thread."""

    def __init__(self, bootstrap: str, topics: Topics, linger_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._topics = topics
        self._waiting: dict[bytes, asyncio.Future[float]] = {}
        self._ended = Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed",
             "enable.auto.commit": False}
        )  # fmt: skip
        tp = TopicPartition(topics.predictions, 0)
        self._consumer.assign([TopicPartition(tp.topic, 0, self._consumer.get_watermark_offsets(tp)[1])])
        self._thread = Thread(target=self._read)
        self._thread.start()

    async def ask(self, event_id: str, body: bytes) -> float:
        key = event_id.encode()
        self._waiting[key] = self._loop.create_future()
        self._producer.produce(self._topics.contexts, body, key, headers=list(HEADERS))
        self._producer.poll(0)
        return await self._waiting[key]

    def _read(self) -> None:
        while not self._ended.is_set():
            if (message := self._consumer.poll(0.1)) is not None and message.error() is None:
                received_s, waiting = time.perf_counter(), self._waiting.pop(message.key() or b"")
                self._loop.call_soon_threadsafe(waiting.set_result, received_s)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush()
        self._consumer.close()


@contextmanager
def measured(row: Row, programs: dict[str, psutil.Process], requests: float) -> Iterator[None]:
    """Add each process's CPU time per request to a row."""

    def used_s() -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in programs.items()}
        return {name: one.user + one.system for name, one in times.items()}

    before_s = used_s()
    yield
    row |= {f"{name}_cpu_us": round(1e6 * (now_s - before_s[name]) / requests) for name, now_s in used_s().items()}


def main() -> None:
    """Run the measurements, print a line for each result, and store the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[300, 1_000], help="requests per second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--linger-ms", type=float, default=0, help="linger.ms of the pipeline's client")
    parser.add_argument("--results", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    with local_kafka() as kafka, tempfile.TemporaryDirectory() as directory:
        settings = {"BOOTSTRAP": kafka.bootstrap, "CLIENT": "confluent", "TOPIC_PREFIX": "bench."}
        programs = Programs(Path(directory), {f"ONEBIT_{name}": value for name, value in settings.items()})
        with closing(programs):
            rows = run(kafka.bootstrap, programs, arguments)
    found = medians(rows)
    print(*found, sep="\n")
    if arguments.results is not None:
        content = {
            "measured": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "versions": versions(),
            "seconds": arguments.seconds, "linger_ms": arguments.linger_ms,
            "medians": found, "rows": rows,
        }  # fmt: skip
        arguments.results.write_text(json.dumps(content, indent=1) + "\n")


def run(bootstrap: str, programs: Programs, arguments: argparse.Namespace) -> list[Row]:
    """Start the programs and measure both ways of requesting decisions in each turn."""
    topics, broker = Topics.with_prefix("bench."), connect(bootstrap, client="confluent")
    broker.create_topics(topics.specs(1))
    broker.close()
    started = {
        "learner": programs.start("learn", *LEARNER),
        "gateway": programs.start("serve", "--serve-port", str(PORT)),
    }
    started["gateway"].wait_until(decides, "the gateway answers")
    processes = {name: psutil.Process(program.process.pid) for name, program in started.items()}
    processes["client"] = psutil.Process()
    rows = []
    for turn, rate, way in product(range(1, arguments.turns + 1), arguments.rates, WAYS):
        row: Row = {"turn": turn, "rate": rate, "way": way}
        with measured(row, processes, rate * (WARM_UP_S + arguments.seconds)):
            found = asyncio.run(measure(row, bootstrap, topics, arguments))
        row |= {f"p{percent}_ms": round(float(np.percentile(found, percent)), 2) for percent in (50, 99)}
        row["load_average"] = round(os.getloadavg()[0], 1)
        print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    return rows


def decides(port: int = PORT) -> bool:
    """Return whether the gateway answers with a decision."""
    body = json.dumps({"id": "first", "x": [0.0] * N_FEATURES}).encode()
    try:
        with urlopen(Request(f"http://{HOST}:{port}/v1/decide", body, {"Content-Type": "application/json"})) as got:
            return bool(got.status == 200)
    except URLError:  # the gateway is not ready, or the prediction is late
        return False


async def measure(row: Row, bootstrap: str, topics: Topics, arguments: argparse.Namespace) -> list[float]:
    """Return the latencies for the decisions requested in one of the two ways."""
    prefix = f"{row['way']}-{row['rate']:g}-{row['turn']}-"
    if row["way"] == "gateway":
        return await latencies_ms(Door().ask, prefix, row["rate"], arguments.seconds)
    with closing(Pipe(bootstrap, topics, arguments.linger_ms)) as pipe:
        return await latencies_ms(pipe.ask, prefix, row["rate"], arguments.seconds)


def medians(rows: Sequence[Row]) -> list[Row]:
    """For each rate, return the medians over the turns, for both ways and for the difference between them."""
    names = [name for name in rows[0] if name not in ("turn", "rate", "way")]
    found = []
    for rate in dict.fromkeys(row["rate"] for row in rows):
        pipeline, gateway = ([row for row in rows if (row["rate"], row["way"]) == (rate, way)] for way in WAYS)
        apart = [{name: two[name] - one[name] for name in names} for one, two in zip(pipeline, gateway, strict=True)]
        for way, own in (*zip(WAYS, (pipeline, gateway), strict=True), ("difference", apart)):
            figures = {name: round(statistics.median(row[name] for row in own), 2) for name in names}
            found.append({"rate": rate, "way": way, **figures})
    return found


if __name__ == "__main__":
    main()
