"""The monitor's Faust application, which builds partition states from committed records. No other module imports Faust.

A partition's state consists of its counts and next offsets. It is stored as one value in a table. The state is written
to the table before the records in a batch are acknowledged, and Faust flushes the table's changelog before it commits
offsets. After a crash, records are therefore read again and never skipped. The offsets in the state show which records
have already been counted.

Without transactions, Faust's driver reads uncommitted records. With transactions, the driver loses messages that it
sends. The driver therefore uses no transactions here, but it is configured to read only committed records
(`_CommittedThread`). All records fetched together from a partition are delivered as one message (`_Batch`). Faust needs
about 150 µs for each message, but only a tenth of that for each record in a batch.

While Faust recovers its table, it may fetch and discard records from any topic. Afterwards, it may deliver later
records before it seeks to the committed offset. The discarded records would then be missing from the states.
`_PlacedConsumer` therefore seeks to the offsets in the states and discards records that were fetched before the seek.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from consumers.monitor.dashboard import Dashboard
from consumers.monitor.state import FORMAT
from stream.kafka.client_config import BY_TOKEN, ClientConfig
from stream.kafka.tls import context_of
from stream.kafka.token_command import TokenCommand
from stream.wire.records import Record
from stream.wire.topics import Topics

FETCHED_MAX = 2_000
"""Maximum number of records in a message."""

MESSAGES_MAX = 8
BATCH_S = 0.2
"""Maximum number and age of the messages in a batch. These limits also bound the delay of the monitor's page."""

BUFFERED_MAX = 16
"""Maximum number of messages waiting to be processed."""

SESSION_TIMEOUT_S = 10.0

_ROUND_S = 0.1


class MonitorEndedError(Exception):
    """The application failed. A new application continues from the same offsets."""


class MonitorProgram:
    """One monitor process."""

    def __init__(
        self,
        topics: Topics,
        partitions: int,
        group: str,
        bootstrap: str,
        directory: str,
        config: ClientConfig,
        dashboard: Dashboard,
        keep_running: Callable[[str], bool],
    ) -> None:
        """Create the application. Reading starts with `run`.

        Args:
            topics: the pipeline's topics.
            partitions: number of partitions in each topic.
            group: the consumer group. Each monitor needs its own group, because every monitor reads all partitions.
            bootstrap: addresses of the brokers.
            directory: a directory that Faust requires, although it writes no files there.
            config: the client configuration for Kafka.
            dashboard: receives the records.
            keep_running: called several times per second with the reason why the program is not ready, or
                with "" if it is ready. Returns False to stop the program.
        """
        self._dashboard = dashboard
        self._keep_running = keep_running
        self._app = faust.App(
            group,
            version=FORMAT,
            broker=[f"kafka://{address.strip()}" for address in bootstrap.split(",")],
            broker_credentials=_credentials(config),
            broker_session_timeout=SESSION_TIMEOUT_S,
            broker_heartbeat_interval=SESSION_TIMEOUT_S / 4,
            broker_commit_interval=1.0,
            broker_max_poll_records=FETCHED_MAX,
            stream_buffer_maxsize=BUFFERED_MAX,
            stream_wait_empty=False,  # unprocessed messages are dropped at shutdown and read again later
            consumer_auto_offset_reset="earliest",
            consumer_group_instance_id=group,  # a restarted monitor rejoins at once
            processing_guarantee="at_least_once",
            key_serializer="raw",
            value_serializer="raw",
            store="memory://",
            datadir=directory,
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
        """Read until `keep_running` returns False.

        Raises:
            MonitorEndedError: the application failed.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        app = self._app
        app.finalize()
        await app.start()
        try:
            while self._keep_running("" if self._reads() else "the monitor has not started reading yet"):
                if app.should_stop:
                    raise MonitorEndedError(repr(app.crash_reason))
                await asyncio.sleep(_ROUND_S)
        finally:
            await app.stop()

    def _reads(self) -> bool:
        return self._app.tables.actives_ready and not self._app.rebalancing

    async def _take(self, stream: Any) -> None:
        """Process batches. Write the changed states to the table before each batch is acknowledged."""
        consumer: Any = self._app.consumer
        try:
            async for events in stream.take_events(MESSAGES_MAX, within=BATCH_S):
                batches = [event.message.value for event in events]
                read = [(batch.seeks, [_record(one) for one in batch.records]) for batch in batches]
                # Contexts are reread with blocking calls, which would delay the heartbeats if they ran on this thread.
                contexts = await asyncio.to_thread(
                    self._dashboard.contexts_of, [one for _, part in read for one in part]
                )
                records = [one for seeks, part in read if seeks == consumer.seeks for one in part]
                for partition, state in self._dashboard.take(records, contexts).items():
                    # Write the state to the partition that its records come from, so that the next owner receives it.
                    self._table.send_changelog(partition, b"%d" % partition, state)
        except Exception as error:  # an exception alone would not stop Faust, which would continue with the next batch
            await self._app.crash(error)
            raise

    async def _recovered(self) -> None:
        """Restore the dashboard from the states in the table."""
        for key, value in self._table.items():
            self._dashboard.restore(int(key), value)


def _record(read: Any) -> Record:
    headers = tuple((name, value or b"") for name, value in read.headers or ())
    return Record(read.topic, read.partition, read.offset, read.timestamp, read.key, read.value, headers)


class _Batch(bytes):
    """An empty value that Faust delivers unchanged. Its attributes contain the fetched records."""

    records: Iterable[Any]
    seeks: int  # number of seeks that the consumer had made before it fetched the records


def _batch(records: list[Any], seeks: int) -> Any:
    """Combine records from a partition into one message with the last record's offset."""
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
        """Seek to these offsets. An offset that is out of range is replaced with the first available offset."""
        await self.call_thread(self._place, offsets)

    async def _place(self, offsets: Mapping[TP, int]) -> None:
        consumer = self._ensure_consumer()
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)

    async def _fetch_records(
        self, consumer: Any, active_partitions: set[TP], timeout: float | None = None, max_records: int | None = None
    ) -> Any:
        seeks, in_batches = self.consumer.seeks, self.consumer.transport.in_batches
        # Copy the set, because Faust changes it during the call. With an empty set, all partitions would be fetched.
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
    """A consumer that reads the dashboard's topics from the offsets in the dashboard's states."""

    transport: "_PlacedTransport"
    _thread: _CommittedThread
    seeks = 0
    is_placed = False

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop delivering records until the next seek."""
        self.is_placed = False
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Seek to the offsets in the states. Batches fetched before the seek are discarded."""
        self.is_placed, self.seeks = False, self.seeks + 1
        await super().perform_seek()
        self.is_placed = True

    async def seek_to_committed(self) -> Mapping[TP, Any]:
        """See Consumer. Seeks to the offsets in the states, because the committed offsets can be lower."""
        assigned, transport = self.assignment(), self.transport
        offsets = {tp: transport.dashboard.next_offset_of(*tp) for tp in assigned if tp.topic in transport.in_batches}
        await self._thread.place(offsets)
        return dict.fromkeys(assigned) | offsets


class _PlacedTransport(Transport):
    Consumer = _PlacedConsumer

    def __init__(self, url: Any, app: Any, in_batches: frozenset[str], dashboard: Dashboard) -> None:
        super().__init__(url, app)
        self.in_batches = in_batches  # topics whose records are delivered in batches
        self.dashboard = dashboard


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """Provides tokens from a command that runs in a worker thread."""

    def __init__(self, command: TokenCommand) -> None:
        self._command = command

    async def token(self) -> str:
        """See AbstractTokenProvider."""
        token = await asyncio.get_running_loop().run_in_executor(None, self._command.token)
        return token.value


def _credentials(config: ClientConfig) -> Credentials | None:
    """Convert the client configuration to Faust's credentials."""
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
