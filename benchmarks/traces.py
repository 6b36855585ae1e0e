"""Measure the CPU time that OpenTelemetry spans cost at 1,000 decisions/s.

    python benchmarks/traces.py [--rate 1000] [--ratio 0.01] [--seconds 10] [--turns 5]

Starts a single-node Kafka broker, and two pipelines with a learner and a gateway each: one exports spans (`--traces`,
OTLP over HTTP to a sink in this process, with this ratio of sampled requests), and one does not. In each turn, clients
request decisions from one and then from the other. Prints the CPU time per request of each program, the ratio between
the totals, and the CPU time of single spans.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import process_time
from timeit import repeat

import psutil
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from serve import LEARNER, WARM_UP_S, Door, Row, decides, latencies_ms, measured

from onebit.testing.processes import Programs
from stream.devkafka.local_kafka import HOST, local_kafka
from stream.kafka.connection import connect
from stream.telemetry.tracing import Tracing
from stream.wire.codec import HEADERS
from stream.wire.topics import Topics

PORTS = {"off": 18_081, "on": 18_082}
PROGRAMS = ("learner", "gateway")


class Sink(BaseHTTPRequestHandler):
    """Accepts spans and discards them."""

    requests = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Sink.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name required by the base class
        """Log nothing."""


def run(bootstrap: str, directory: Path, endpoint: str, arguments: argparse.Namespace) -> list[Row]:
    broker, processes = connect(bootstrap), dict[str, dict[str, psutil.Process]]()
    otel = {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(arguments.ratio),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }  # fmt: skip
    started = []
    try:
        for name, port in PORTS.items():
            broker.create_topics(Topics.with_prefix(f"{name}.").specs(1))
            settings = {"ONEBIT_BOOTSTRAP": bootstrap, "ONEBIT_CLIENT": "confluent", "ONEBIT_TOPIC_PREFIX": f"{name}."}
            (own := directory / name).mkdir()
            programs = Programs(own, settings | otel)
            started.append(programs)
            traces = ["--traces"] if name == "on" else []
            learner = programs.start("learn", *LEARNER, *traces)
            gateway = programs.start("serve", "--port", str(port), *traces)
            gateway.wait_until(partial(decides, port), "the gateway answers")
            processes[name] = {
                "learner": psutil.Process(learner.process.pid), "gateway": psutil.Process(gateway.process.pid)
            }  # fmt: skip
        rows, requests = list[Row](), arguments.rate * (WARM_UP_S + arguments.seconds)
        for turn in range(arguments.turns):
            for name in PORTS if turn % 2 else reversed(PORTS):
                row: Row = {"turn": turn + 1, "traces": name}
                with measured(row, processes[name], requests):
                    ask = Door(PORTS[name]).ask
                    asyncio.run(latencies_ms(ask, f"visit-{turn}-", arguments.rate, arguments.seconds))
                print(json.dumps(row), flush=True)
                rows.append(row)
        return rows
    finally:
        for programs in started:
            programs.close()
        broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    sink = ThreadingHTTPServer((HOST, 0), Sink)
    Thread(target=sink.serve_forever, daemon=True).start()
    with closing(sink.socket), tempfile.TemporaryDirectory() as directory, local_kafka() as kafka:
        rows = run(kafka.bootstrap, Path(directory), f"http://{HOST}:{sink.server_port}", arguments)
    totals = {
        name: sum(sum(row[f"{one}_cpu_us"] for one in PROGRAMS) for row in rows if row["traces"] == name)
        for name in PORTS
    }
    found = {"on_divided_by_off": round(totals["on"] / totals["off"], 3), "exports": Sink.requests}
    print(json.dumps(found | own_cost_us(arguments.ratio)))


def own_cost_us(ratio: float) -> dict[str, float]:
    """Return the CPU time of a request's span without its export, and of a span for completed work, each alone."""
    sampled = b"00-%032x-%016x-01" % (1, 1)
    tracing = Tracing(TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio))))
    tasks: dict[str, Callable[[], object]] = {
        "request_us": lambda: tracing.request("onebit.decide", HEADERS, None).end(200),
        "emit_us": lambda: tracing.emit("onebit.decide", "consumer", sampled, 1, 2, {"onebit.step": 7}, (sampled,)),
    }
    return {
        name: round(min(repeat(task, number=1_000, repeat=50, timer=process_time)) * 1_000, 1)
        for name, task in tasks.items()
    }


if __name__ == "__main__":
    main()
