"""The gateway's connection to Kafka: one thread writes contexts and feedback, another reads predictions.

A `Broker` is not thread-safe, so each thread has its own. Both pass their results to the event loop, which owns all
other state. A thread that loses its connection tries to reconnect until the gateway stops.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from producers.gateway.decisions import Answer, Decisions, PipelineFacts, Rejection, Scores
from stream.errors import StoppedError
from stream.kafka.port import AccessError, Broker, BrokerError, BrokerUnavailableError, Producer, TopicSettingsError
from stream.kafka.reading import offset_at
from stream.telemetry.heartbeat import Heartbeat
from stream.wire.codec import MalformedError, decode_prediction, sampled_trace, step_of
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.records import NOT_ELIGIBLE, Headers, Prediction, Record, TopicPartition
from stream.wire.topics import Topics, partition_for

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing

POLL_MS = 100
RECORDS_MAX = 5_000

LINGER_S = 0.001
"""Pause before writing, so that more records share a request to the broker. Without the pause, broker and gateway need
more CPU time; if the processor is busy, this delays decisions by more than the pause."""

PROBE_S = 1.0
"""Interval between requests that check the connection. They are necessary because a client's poll does not report a
lost connection."""

FACTS_S = 10.0
"""Interval between reads of the pipeline's settings, which a request may have changed."""

RETRY_S = 1.0
"""Pause before reconnecting."""

WRITE_S = 5.0
"""Time to wait until feedback is acknowledged. It exceeds the timeout for requests to Kafka, so that an outage
is detected by that timeout first."""

CLOSE_S = 5.0

WRITER, READER = "writer", "reader"

SILENT = "the last decisions timed out, and the learner has written no prediction since. Check the learner"
"""Reason for not being ready although the broker responds. Requests are still accepted."""


class Access(NamedTuple):
    """The gateway's access to the pipeline. Each thread calls these functions with its own broker."""

    connect: Callable[[Callable[[], bool]], Broker]  # the argument is a function that returns whether to stop
    watch: Callable[[Broker], Callable[[], None]]  # returns a function that raises an error if the topics have changed
    facts: Callable[[Broker], PipelineFacts | None]
    now_ms: Callable[[], int]  # this host's time since 1970, used to find the oldest prediction to remember
    announce: Callable[[str], None]


class Outgoing(NamedTuple):
    """A record to write."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    request: asyncio.Future[Any]  # the request's result, or the error if the record could not be written
    is_answered: bool  # True if the acknowledgement is the request's result


class Link:
    """Writes records and reads predictions in threads, between `start` and `close`."""

    def __init__(
        self, topics: Topics, partitions: int, access: Access, decisions: Decisions, heartbeat: Heartbeat,
        tracing: "Tracing | None" = None,
    ) -> None:  # fmt: skip
        self.facts: PipelineFacts | None = None
        self.failure: Exception | None = None  # an error that ends the program
        self.heartbeat = heartbeat
        self._topics = topics
        self._partitions = partitions
        self._access = access
        self._decisions = decisions
        self._tracing = tracing
        self._unready = {WRITER: "connecting", READER: "connecting"}
        self._queue: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._ended = Event()
        self._threads = [
            Thread(target=self._keep, args=(role, work), name=f"serve-{role}", daemon=True)
            for role, work in ((WRITER, self._write), (READER, self._read))
        ]

    @property
    def unready(self) -> str:
        """The reason why the gateway is not ready; empty if it is ready."""
        return next((f"{role}: {why}" for role, why in self._unready.items() if why), "")

    def check_ready(self) -> None:
        """Raise BrokerUnavailableError if the gateway is not connected, or has not read the earlier predictions yet."""
        if unready := self.unready:
            raise BrokerUnavailableError(unready)

    def start(self) -> None:
        """Start the threads. Call this method in the event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Write the queued records and stop the threads."""
        self._ended.set()
        self._queue.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def put(
        self, topic: str, event_id: str, value: bytes, headers: Headers, request: asyncio.Future[Any],
        *, is_answered: bool = False,
    ) -> None:  # fmt: skip
        """Queue a record. It is not written if the request ends before, or if the connection is lost.

        Args:
            topic: the record's topic.
            event_id: the event's id.
            value: the record's value.
            headers: the record's headers.
            request: the request's result. A BrokerError is set if the record was rejected, or may not have been
                written.
            is_answered: if True, the result is set to None once the broker has acknowledged the record.

        Raises:
            BrokerUnavailableError: the gateway is not ready.
        """
        self.check_ready()
        self._queue.put(Outgoing(topic, event_id.encode(), value, headers, request, is_answered))

    async def write(self, topic: str, event_id: str, value: bytes, headers: Headers) -> None:
        """Write a record and wait for its acknowledgement.

        Raises:
            BrokerError: the gateway is not ready, or the record was rejected, or may not have been written.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self.put(topic, event_id, value, headers, written, is_answered=True)
        try:
            async with asyncio.timeout(WRITE_S):
                await written
        except TimeoutError as error:
            raise BrokerUnavailableError(f"{topic}: no acknowledgement within {WRITE_S:g} s") from error

    def _keep(self, role: str, work: Callable[[Broker], None]) -> None:
        """Run `work` with a connected broker, and reconnect after an error that a new connection may resolve."""
        while not self._ended.is_set():
            try:
                broker = self._access.connect(self._is_ended)
                try:
                    work(broker)
                finally:
                    broker.close()
            except StoppedError:
                return
            except (AccessError, TopicSettingsError) as error:
                self._fail(role, error)
            except BrokerError as error:
                self._lose(role, error)
                self._access.announce(f"{role}: broker unavailable, reconnecting: {error}")
                self._ended.wait(RETRY_S)
            except Exception as error:
                self._fail(role, error)

    def _is_ended(self) -> bool:
        self.heartbeat.beat()
        return self._ended.is_set()

    def _fail(self, role: str, error: Exception) -> None:
        self._lose(role, error)
        self.failure = error
        self._ended.set()

    def _lose(self, role: str, error: Exception) -> None:
        """Refuse new requests and, if the writer has failed, also the queued records."""
        self._unready[role] = str(error)
        self.heartbeat.set_unready(self.unready)
        if role == WRITER and (queued := [one for one in self._queued() if one is not None]):
            self._loop.call_soon_threadsafe(_refuse, queued, BrokerUnavailableError(self.unready))

    def _write(self, broker: Broker) -> None:
        producer = broker.producer()
        self._unready[WRITER] = ""
        for batch in self._batches():
            self._write_batch(producer, batch)

    def _write_batch(self, producer: Producer, batch: Sequence[Outgoing]) -> None:
        """Write records. If the broker refuses some of them, write each alone, so that only these are refused.

        A record that is then written twice has no effect, because the learner ignores duplicates.
        """
        began_ns = time_ns()
        try:
            for one in batch:
                producer.send(one.topic, partition_for(one.key, self._partitions), one.key, one.value, one.headers)
            producer.flush()
        except BrokerError as error:
            is_refusal = type(error) is BrokerError  # concerns only these records, not the connection
            if is_refusal and len(batch) > 1:
                for one in batch:
                    self._write_batch(producer, [one])
                return
            self._loop.call_soon_threadsafe(_refuse, batch, error)
            if not is_refusal:
                raise
        else:
            if self._tracing is not None:
                _emit(self._tracing, batch, began_ns)
            if answered := [one for one in batch if one.is_answered]:
                self._loop.call_soon_threadsafe(_acknowledge, answered)

    def _batches(self) -> Iterator[list[Outgoing]]:
        """Yield batches of queued records until the queue is closed, skipping records for requests that have ended."""
        is_open = True
        while is_open:
            first = self._queue.get()
            sleep(LINGER_S)
            queued = [first, *islice(self._queued(), RECORDS_MAX - 1)]
            is_open = None not in queued
            yield [one for one in queued if one is not None and not one.request.done()]

    def _queued(self) -> Iterator[Outgoing | None]:
        """Remove and yield the queued records, and None if the queue has been closed."""
        with suppress(Empty):
            while True:
                yield self._queue.get_nowait()

    def _read(self, broker: Broker) -> None:
        """Read the predictions from the last `remember_ms`, and then new ones and new dead letters."""
        watch = self._access.watch(broker)
        tps = [TopicPartition(self._topics.predictions, partition) for partition in range(self._partitions)]
        rejected = [TopicPartition(self._topics.dead_letter, partition) for partition in range(self._partitions)]
        self.facts = self._access.facts(broker)
        start_ms = self._access.now_ms() - self._decisions.remember_ms
        consumer, ends = broker.reader(tps + rejected), broker.ends(tps + rejected)
        for tp in tps:
            consumer.seek(tp, offset_at(broker, tp, start_ms))
        for tp in rejected:
            consumer.seek(tp, ends[tp].stable)
        behind, probed_s, known_s = tps, monotonic(), monotonic()
        self._unready[READER] = "reading predictions"
        while not self._ended.is_set():
            if records := consumer.poll(POLL_MS, RECORDS_MAX):
                if answers := list(_answers(records, self._topics)):
                    self._loop.call_soon_threadsafe(self._decisions.add, answers)
                if rejections := list(_rejections(records, self._topics)):
                    self._loop.call_soon_threadsafe(self._decisions.reject, rejections)
            if behind:
                behind = [tp for tp in behind if consumer.position(tp) < ends[tp].stable]
                self._unready[READER] = "reading predictions" if behind else ""
            if monotonic() - probed_s >= PROBE_S:
                broker.ends(tps)
                if self.facts is None or monotonic() - known_s >= FACTS_S:
                    self.facts, known_s = self._access.facts(broker) or self.facts, monotonic()
                probed_s = monotonic()
            watch()
            is_silent = not self.unready and self._decisions.is_learner_silent(monotonic())
            self.heartbeat.show(SILENT if is_silent else self.unready, tuple)


def _emit(tracing: "Tracing", batch: Sequence[Outgoing], began_ns: int) -> None:
    """Create the spans of records that were written from `began_ns` until now."""
    ended_ns = time_ns()
    for one in batch:
        if (trace := sampled_trace(one.headers)) is not None:
            attributes = {"messaging.system": "kafka", "messaging.destination.name": one.topic}
            tracing.emit("onebit.append", "producer", trace, began_ns, ended_ns, attributes)


def _acknowledge(batch: Sequence[Outgoing]) -> None:
    for one in batch:
        if not one.request.done():
            one.request.set_result(None)


def _refuse(batch: Sequence[Outgoing], error: BrokerError) -> None:
    for one in batch:
        if not one.request.done():
            one.request.set_exception(error)


def _answers(records: Sequence[Record], topics: Topics) -> Iterator[tuple[str, Answer, Scores]]:
    for record in records:
        # a record from another program, which `onebit verify` reports, has no step or is malformed
        if record.topic != topics.predictions or not step_of(record):
            continue
        with suppress(MalformedError):
            found, _ = decode_prediction(record)
            action, propensity = found.decision.action, found.decision.known_propensity
            trace = sampled_trace(record.headers)
            answer = Answer(action, propensity, found.class_name, found.model_version, record.append_ms, trace)
            yield found.id, answer, _scores_of(found)


def _scores_of(prediction: Prediction) -> Scores:
    """Return a prediction's scores. With actions, they are those of the eligible actions, by id."""
    scores = prediction.decision.scores
    if prediction.actions is None:
        return scores
    named = zip(prediction.actions, scores.tolist(), strict=False)  # there can be fewer actions than places
    return {name: score for name, score in named if score != NOT_ELIGIBLE}


def _rejections(records: Sequence[Record], topics: Topics) -> Iterator[Rejection]:
    for record in records:
        if record.topic != topics.dead_letter or not step_of(record):
            continue
        with suppress(MalformedError, UnicodeDecodeError):
            letter = decode_dead_letter(record)
            if letter.topic == topics.contexts and letter.key is not None and letter.value is not None:
                yield Rejection(letter.key.decode(), letter.value, letter.reason)
