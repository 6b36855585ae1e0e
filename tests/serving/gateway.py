"""A gateway and its HTTP server, connected to the embedded broker. A learner decides each context immediately."""

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.processes import wait_for
from producers.gateway.api import Gateway, make_app
from producers.gateway.decisions import Decisions, PipelineFacts
from producers.gateway.link import Access, Link
from producers.gateway.personalizer_api import PersonalizerApi
from producers.gateway.server import Counts, Guard, Limits, Server, listen
from stream.kafka.embedded import EmbeddedConsumer
from stream.kafka.port import BrokerError, BrokerUnavailableError, Ends, Producer
from stream.telemetry.heartbeat import Heartbeat
from stream.telemetry.tracing import Tracing
from stream.wire.records import Headers, Record, TopicPartition

HOST = "127.0.0.1"
WAIT_S = 20.0
NO_LIMITS = Limits()
FACTS = PipelineFacts(n_classes=3, n_features=2, seed=7, class_names=("news", "offers", "help"))


class Response(NamedTuple):
    """A response from the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LearningBroker:
    """A broker that runs the learner after every flush. A test can make the broker unavailable."""

    def __init__(self, pipeline: EmbeddedPipeline) -> None:
        self.pipeline = pipeline
        self.is_away = False
        self.learns = True
        self.responds = Event()  # flushes wait for this event
        self.responds.set()
        self.refusal: BrokerError | None = None  # every flush raises this error
        self.rejected = b""  # every flush of a record with this key raises BrokerError
        self.flushes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline.broker, name)

    def check(self) -> None:
        if self.is_away:
            raise BrokerUnavailableError("no answer from the broker")

    def producer(self) -> Producer:
        return _LearningProducer(self, self.pipeline.broker.producer())

    def reader(self, tps: list[TopicPartition], fetch_wait_ms: int = 0) -> EmbeddedConsumer:
        return _PatientConsumer(self.pipeline.broker, tps)  # type: ignore[arg-type]

    def ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, Ends]:
        self.check()
        return self.pipeline.broker.ends(tps)


class _LearningProducer:
    def __init__(self, broker: LearningBroker, producer: Producer) -> None:
        self._broker = broker
        self._producer = producer
        self._keys: set[bytes | None] = set()

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        self._keys.add(key)
        if key != self._broker.rejected:
            self._producer.send(topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        self._broker.flushes += 1
        self._broker.responds.wait(WAIT_S)
        self._broker.check()
        if self._broker.refusal is not None:
            raise self._broker.refusal
        keys, self._keys = self._keys, set()
        if self._broker.rejected in keys:
            raise BrokerError("the broker rejects a record")
        flushed = self._producer.flush()
        if self._broker.learns:
            self._broker.pipeline.work()
        return flushed

    def close(self) -> None:
        self._producer.close()


class _PatientConsumer(EmbeddedConsumer):
    """A consumer that waits for records, as a Kafka client does."""

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        records = super().poll(timeout_ms, records_max)
        if not records:
            time.sleep(min(timeout_ms, 2) / 1_000)
        return records


class GatewayClient:
    """An HTTP client for a gateway."""

    def __init__(self, broker: LearningBroker, link: Link, port: int) -> None:
        self.broker = broker
        self.pipeline = broker.pipeline
        self.link = link
        self.port = port
        self.messages: list[str] = []
        self.tls: ssl.SSLContext | None = None

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}, raw: bytes | None = None
    ) -> Response:
        """Send a request. The body is `body` as JSON, or the bytes `raw`."""
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        with closing(self._connection()) as connection:
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            got = connection.getresponse()
            return Response(got.status, dict(got.getheaders()), got.read())

    def _connection(self) -> HTTPConnection:
        if self.tls is None:
            return HTTPConnection(HOST, self.port, timeout=WAIT_S)
        return HTTPSConnection("localhost", self.port, timeout=WAIT_S, context=self.tls)

    def decide(self, event_id: str | None, x: object = (1.0, 0.5), **headers: str) -> Response:
        return self.ask("POST", "/v1/decide", {"x": x} if event_id is None else {"id": event_id, "x": x}, headers)

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.ask("GET", "/readyz").status == 200, "the gateway is ready", WAIT_S)

    def samples(self) -> dict[str, float]:
        """Return the gateway's metrics, keyed by name and labels."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def a_pipeline(**settings: Any) -> EmbeddedPipeline:
    return EmbeddedPipeline(**{"n_classes": 3, "n_features": 2, "learner": "banditron", "seed": 7, **settings})


@contextmanager
def served(
    pipeline: EmbeddedPipeline,
    *,
    timeout_s: float = WAIT_S,
    fallback: str | None = None,
    limits: Limits = NO_LIMITS,
    facts: PipelineFacts | None = FACTS,
    remember_ms: int = 60_000,
    learns: bool = True,
    tracing: Tracing | None = None,
    personalizer: bool = False,
    tls: tuple[Path | None, Path | None, ssl.SSLContext | None] = (None, None, None),
) -> Iterator[GatewayClient]:
    """Run a pipeline's gateway on a free port. Yield a client when the gateway is ready. Stop the gateway on exit."""
    broker, stopped, messages = LearningBroker(pipeline), Event(), list[str]()
    broker.learns = learns

    def connect(_stop: object) -> LearningBroker:
        broker.check()
        return broker

    access = Access(
        connect,  # type: ignore[arg-type]
        lambda _: lambda: None,
        lambda _: facts,
        lambda: pipeline.clock.now_ms,
        messages.append,
    )
    decisions, counts = Decisions(remember_ms), Counts()
    heartbeat = Heartbeat("serve", "1.2.3", lambda: time.monotonic_ns() // 1_000_000)
    link = Link(pipeline.topics, pipeline.partitions, access, decisions, heartbeat, tracing)
    gateway = Gateway(link, decisions, pipeline.topics, counts, timeout_s, fallback, tracing)
    more = PersonalizerApi(gateway).routes() if personalizer else ()
    app = Guard(make_app(gateway, "1.2.3", has_token=bool(limits.tokens), more=more), limits, counts, messages.append)
    listening = listen(HOST, 0)
    client = GatewayClient(broker, link, listening.getsockname()[1])
    certificate, key, client.tls = tls
    client.messages = messages
    server = Server(app, stopped.is_set, timeout_s, certificate, key)
    thread = Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        client.wait_until_ready()
        yield client
    finally:
        stopped.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
