"""The monitor's Faust application: committed records into the states of partitions; alone imports Faust.

A partition's state holds its counts and the offsets at which reading goes on, as one value of a table. It is written to
the table before the records of a batch are acknowledged, and Faust flushes the table's changelog before it commits
offsets. So after a crash records are read again, never left out, and the state knows which it has.

Faust's driver reads uncommitted records unless it works in transactions itself, in which it loses sends. Here it reads
committed ones (`_CommittedThread`), at least once. And it hands over what was fetched of a partition as one message
(`_Batch`): a message costs Faust some 150 µs, a record within one a tenth of that.

While Faust recovers its table it may fetch records of any topic and throw them away, and it hands over what comes after
them before it goes back to the committed offset, if there is one. A state would take what was thrown away for read. So
here it goes back to where the states stand (`_PlacedConsumer`), and hands over nothing that was fetched before.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from stream.kafka.client_config import BY_TOKEN, ClientConfig
from stream.kafka.tls import context_of
from stream.kafka.token_command import TokenCommand
from stream.monitoring.dashboard import Dashboard
from stream.monitoring.state import FORMAT
from stream.wire.records import Record
from stream.wire.topics import Topics

FETCHED_MAX = 2_000
"""Records in a message."""

MESSAGES_MAX = 8
BATCH_S = 0.2
"""Limits on number and age of a batch of messages; the page is not much older than that."""

BUFFERED_MAX = 16
"""Messages that wait to be taken in."""

_ROUND_S = 0.1


class MonitorEndedError(Exception):
    """The application broke off; it is to be made anew, and reads on where it stood."""


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """How the monitor runs."""

    group: str  # each monitor reads all partitions, under a name of its own
    bootstrap: str
    directory: str  # for Faust, which wants one and writes nothing there
    session_timeout_ms: int = 10_000


class MonitorProgram:
    """One monitor."""

    def __init__(
        self,
        topics: Topics,
        partitions: int,
        options: MonitorOptions,
        config: ClientConfig,
        dashboard: Dashboard,
        goes_on: Callable[[str], bool],
    ) -> None:
        """Make the application; nothing is read before it runs.

        Args:
            topics: the pipeline's topics.
            partitions: of each of them.
            options: how it runs.
            config: how it comes in at Kafka.
            dashboard: takes in what is read.
            goes_on: called several times a second with why the program is not ready, or ""; returns False to stop.
        """
        self._dashboard = dashboard
        self._goes_on = goes_on
        self._app = faust.App(
            options.group,
            version=FORMAT,
            broker=[f"kafka://{address.strip()}" for address in options.bootstrap.split(",")],
            broker_credentials=_credentials(config),
            broker_session_timeout=options.session_timeout_ms / 1_000,
            broker_heartbeat_interval=options.session_timeout_ms / 4_000,
            broker_commit_interval=1.0,
            broker_max_poll_records=FETCHED_MAX,
            stream_buffer_maxsize=BUFFERED_MAX,
            stream_wait_empty=False,  # at the end: what is not taken in yet is read again
            consumer_auto_offset_reset="earliest",
            consumer_group_instance_id=options.group,  # one that is started again takes its place at once
            processing_guarantee="at_least_once",
            key_serializer="raw",
            value_serializer="raw",
            store="memory://",
            datadir=options.directory,
            topic_partitions=partitions,
            topic_disable_leader=True,
            web_enabled=False,
        )
        read = (topics.contexts, topics.predictions, topics.examples, topics.dead_letter)
        self._app.transport = _PlacedTransport(self._app.conf.broker_consumer, self._app, frozenset(read), dashboard)
        self._table = self._app.Table(
            "partitions", partitions=partitions, key_type=bytes, value_type=bytes,
            on_recover=self._recovered,
        )  # fmt: skip
        self._app.agent(self._app.topic(*read), name="distributions")(self._take)

    def run(self) -> None:
        """Read until it is to stop.

        Raises:
            MonitorEndedError: the application broke off.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        app = self._app
        app.finalize()
        await app.start()
        try:
            while self._goes_on("" if self._reads() else "it is about to read"):
                if app.should_stop:
                    raise MonitorEndedError(repr(app.crash_reason))
                await asyncio.sleep(_ROUND_S)
        finally:
            await app.stop()

    def _reads(self) -> bool:
        return self._app.tables.actives_ready and not self._app.rebalancing

    async def _take(self, stream: Any) -> None:
        """Take in batches, and write what each has changed to the table; the batch is acknowledged after that."""
        consumer: Any = self._app.consumer
        try:
            async for events in stream.take_events(MESSAGES_MAX, within=BATCH_S):
                batches = [event.message.value for event in events]
                read = [(batch.seeks, [_record(one) for one in batch.records]) for batch in batches]
                # Reading contexts again blocks; in this thread it would hold up the heartbeats of the group.
                contexts = await asyncio.to_thread(
                    self._dashboard.contexts_of, [one for _, part in read for one in part]
                )
                records = [one for seeks, part in read if seeks == consumer.seeks for one in part]
                for partition, state in self._dashboard.take(records, contexts).items():
                    # In the partition of its records, so that the next owner of the partition gets the state.
                    self._table.send_changelog(partition, b"%d" % partition, state)
        except Exception as error:  # Faust would go on with the next batch
            await self._app.crash(error)
            raise

    async def _recovered(self) -> None:
        """Begin with what the table holds."""
        for key, value in self._table.items():
            self._dashboard.restore(int(key), value)


def _record(read: Any) -> Record:
    headers = tuple((name, value or b"") for name, value in read.headers or ())
    return Record(read.topic, read.partition, read.offset, read.timestamp, read.key, read.value, headers)


class _Batch(bytes):
    """An empty value, which Faust hands on as it is, with the records that were fetched."""

    records: Iterable[Any]
    seeks: int  # how often the consumer had been placed


def _batch(records: list[Any], seeks: int) -> Any:
    """Records of a partition as one, at the offset of the last."""
    value = _Batch()
    value.records, value.seeks = records, seeks
    return replace(records[-1], key=None, value=value, headers=())


class _CommittedThread(AIOKafkaConsumerThread):
    consumer: "_PlacedConsumer"

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        return consumer

    async def place(self, offsets: Mapping[TP, int]) -> None:
        """Read on at these offsets; where the topic begins later, there."""
        await self.call_thread(self._place, offsets)

    async def _place(self, offsets: Mapping[TP, int]) -> None:
        consumer = self._ensure_consumer()
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)

    async def _fetch_records(
        self, consumer: Any, active_partitions: set[TP], timeout: float | None = None, max_records: int | None = None
    ) -> Any:
        seeks, in_batches = self.consumer.seeks, self.consumer.transport.in_batches
        # A copy: Faust changes the set meanwhile, and for an empty one records of all partitions come.
        wanted = {tp for tp in frozenset(active_partitions) if self.consumer.is_placed or tp.topic not in in_batches}
        if not wanted:
            await asyncio.sleep(_ROUND_S)
            return {}
        fetched = await super()._fetch_records(consumer, wanted, timeout, max_records)
        return {
            tp: [_batch(records, seeks)] if records and tp.topic in in_batches else records
            for tp, records in fetched.items()
        }


class _PlacedConsumer(Consumer):
    """Reads the topics of a dashboard from where its states stand, which know what they have."""

    transport: "_PlacedTransport"
    _thread: _CommittedThread
    seeks = 0
    is_placed = False

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Hand over nothing before it is placed again."""
        self.is_placed = False
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Go to where the states stand. What was fetched before that, and is still on its way, is not to be taken."""
        self.is_placed, self.seeks = False, self.seeks + 1
        await super().perform_seek()
        self.is_placed = True

    async def seek_to_committed(self) -> Mapping[TP, Any]:
        """Go to where the states stand, not to what is committed, which may be less; see Consumer."""
        assigned = self.assignment()
        offsets = {tp: self.transport.next_offset_of(tp) for tp in assigned if tp.topic in self.transport.in_batches}
        await self._thread.place(offsets)
        return dict.fromkeys(assigned) | offsets


class _PlacedTransport(Transport):
    Consumer = _PlacedConsumer

    def __init__(self, url: Any, app: Any, in_batches: frozenset[str], dashboard: Dashboard) -> None:
        super().__init__(url, app)
        self.in_batches = in_batches  # topics whose records are passed on many at once
        self._dashboard = dashboard

    def next_offset_of(self, tp: TP) -> int:
        """The offset at which reading goes on."""
        return self._dashboard.next_offset_of(tp.topic, tp.partition)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """Tokens by a command, which is run beside the application."""

    def __init__(self, command: TokenCommand) -> None:
        self._command = command

    async def token(self) -> str:
        """See AbstractTokenProvider."""
        token = await asyncio.get_running_loop().run_in_executor(None, self._command.token)
        return token.value


def _credentials(config: ClientConfig) -> Credentials | None:
    """The same way in as that of the other programs, in Faust's words."""
    tls = context_of(config) if config.uses_tls else None
    if not config.uses_sasl:
        return SSLCredentials(tls) if tls is not None else None
    if config.sasl_mechanism == BY_TOKEN:
        assert config.sasl_oauthbearer_token_command is not None
        return OAuthCredentials(oauth_cb=_Tokens(TokenCommand(config.sasl_oauthbearer_token_command)), ssl_context=tls)
    password = config.sasl_password
    return SASLCredentials(
        username=config.sasl_username,
        password=None if password is None else password.get_secret_value(),
        mechanism=config.sasl_mechanism,
        ssl_context=tls,
    )
