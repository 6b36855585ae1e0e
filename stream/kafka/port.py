"""The Broker interface between Onebit and Apache Kafka.

The embedded broker and the adapters for Kafka clients pass the same contract tests (`tests/contract`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stream.errors import ExitCode, OnebitError
from stream.wire.records import Headers, Record, TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

FETCH_WAIT_MS = 100
"""Maximum time for which the broker delays its response to a fetch at the end of a partition. A consumer's lag can be
out of date by this much."""

SHORT_FETCH_WAIT_MS = 10
"""The same limit, for reads up to a known offset. If only a transaction's marker remains before that offset, a client
needs one more fetch to notice the marker."""

RECORD_BYTES_MAX = 1_000_000  # limit on a record's value; Kafka's default batch limit, including overhead, is 1 MiB


class BrokerError(OnebitError):
    """The broker rejected an operation or could not be reached."""


class BrokerUnavailableError(BrokerError):
    """The broker did not respond in time. The outcome of the operation may be unknown."""

    exit_code = ExitCode.UNAVAILABLE


class FencedError(BrokerError):
    """Another process has replaced this producer or group member, or the group has removed the member."""

    exit_code = ExitCode.FENCED


class StaleMemberError(BrokerError):
    """The consumer group has rebalanced, and this step's partitions belong to a newer generation."""


class Acl(NamedTuple):
    """A user's permission, in the terms that Kafka's `kafka-acls` tool uses."""

    kind: str  # topic, group or transactional-id
    name: str
    operation: str


class AccessError(BrokerError):
    """The broker rejects this client, cannot be trusted, or does not allow an operation.

    A retry cannot succeed until a password, a certificate or an ACL is changed.
    """

    def __init__(self, message: str, missing: Sequence[Acl] = (), user: str | None = None) -> None:
        """Describe the refusal.

        Args:
            message: the refused operation, its target and the reason.
            missing: the ACLs to add; empty if no ACL is missing or if the missing ACLs are unknown.
            user: the name of the user that needs these ACLs; None if it is unknown.
        """
        super().__init__(message)
        self.missing = tuple(missing)
        self.user = user


class TransactionTimeoutError(BrokerError):
    """The broker does not allow transactions that take as long as this client's transaction timeout."""


class TopicSettingsError(BrokerError):
    """A topic exists with settings that Onebit does not support."""


class Producer(Protocol):
    """Writes records at least once, without transactions."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record."""

    def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until all queued records are in the log.

        Returns the latest append time in each partition that was written to since the last flush.

        Raises:
            BrokerUnavailableError: some records were not acknowledged in time. They may or may not have been written.
            TopicSettingsError: an acknowledged record has no append time.
        """

    def close(self) -> None:
        """Flush and release the connection."""


class TransactionalProducer(Producer, Protocol):
    """Writes records and consumed offsets in transactions.

    A new producer fences all earlier producers with the same id. `send` and `flush` require an open transaction; after
    a failed flush, abort the transaction. `close` aborts an open transaction.
    """

    def begin(self, check_place: Callable[[], None] = lambda: None) -> None:
        """Open a transaction. This may take a few milliseconds, until the previous one's markers are written.

        If a request of the previous commit or abort was repeated, the producer first gets a new epoch. This would fence
        a process that has taken this one's place; `check_place` raises FencedError if there is one.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: "Member") -> None:
        """Add the member's next offsets to the transaction.

        Raises:
            StaleMemberError: the group has rebalanced without this member.
            FencedError: another process has taken over.
        """

    def commit(self) -> None:
        """Flush and commit.

        Raises:
            FencedError: another producer has taken over, and the transaction is aborted.
            BrokerUnavailableError: the outcome is unknown; read the topics to see whether the records were committed.
            TopicSettingsError: an acknowledged record has no append time; nothing was committed.
        """

    def abort(self) -> None:
        """Abort the open transaction, if there is one."""


class Consumer(Protocol):
    """Reads records from committed transactions and records written without a transaction, in offset order."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer currently reads."""

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """Return records from the assigned partitions, or an empty list if no record arrives in time.

        Records from the same partition are in offset order.

        Rebalance callbacks run only within this method.

        Raises:
            TopicSettingsError: a topic's timestamp type was changed to CreateTime. The caller must close the
                consumer.
        """

    def position(self, tp: TopicPartition) -> int:
        """Return the next offset to read. This offset is after any markers and aborted records that `poll` skips."""

    def lag(self, tp: TopicPartition) -> int:
        """Return the number of offsets from the position to the last known stable offset, without sending a request.

        The number includes fetched records that `poll` has not returned, and offsets that `poll` will skip. The number
        is 0 before the first fetch. It is also 0 at the last stable offset, even if records follow this offset.
        """

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue reading at this offset."""

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Exclude these partitions from later polls."""

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Read paused partitions again."""

    def close(self) -> None:
        """Leave the group and release the connection."""


class Member(Consumer, Protocol):
    """A consumer in a group."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets outside a transaction, for programs with at-least-once processing.

        Raises:
            StaleMemberError: the group has rebalanced without this member.
        """

    def check_place(self) -> None:
        """If the group can be reached, check whether this process is still a member.

        Raises:
            FencedError: another process has taken the member's place, or the member was removed and cannot rejoin.
        """


class RebalanceListener(Protocol):
    """Callbacks for assigned and revoked partitions. They are called by `poll`."""

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Called before these partitions are revoked. The last commit must be complete when this method returns."""

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """Called when this consumer starts reading these partitions."""


class Ends(NamedTuple):
    """A partition's two end offsets."""

    high_watermark: int  # the offset after the last replicated record, committed or not
    stable: int  # the offset after the last record that a read-committed consumer can read


class Broker(Protocol):
    """The Apache Kafka operations that Onebit uses."""

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create the topics that do not exist yet. All of them use LogAppendTime.

        Raises:
            TopicSettingsError: a topic exists with different settings. The message contains the expected settings.
        """

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of the named topics that exist, keyed by name."""

    def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Change the retention of existing topics to that in their specifications."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete the named topics that exist and wait until they are gone."""

    def producer(self) -> Producer:
        """Return a producer that writes without transactions."""

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """Return a transactional producer. Any open transaction from an earlier producer with this id is aborted."""

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> Member:
        """Return a member of a consumer group. The group assigns partition n of every topic to the same member.

        `member` is the member's name across restarts (static membership). A restarted member immediately gets its
        previous partitions and fences its predecessor. Reading starts at the committed offset, or at the beginning if
        no offset is committed.

        The group removes a member that sends no heartbeats within the session timeout, for example because the process
        is paused or disconnected. The member then joins again at its next poll or, if `rejoins` is False, is fenced.
        """

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> Consumer:
        """Return a consumer without a group that starts at the beginning of these partitions.

        Args:
            tps: the partitions.
            fetch_wait_ms: maximum time for which the broker delays its response to a fetch at the end of a partition.
                With a short delay, the position passes the last transaction's marker sooner; with a long delay, a
                consumer that follows a partition sends fewer requests.
        """

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """Request the partitions' current ends from the broker and return them."""

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first retained record in each partition."""

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return a group's committed offsets. Partitions without a committed offset are omitted."""

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """Return a group's members by name, each with its partitions. During a rebalance, the result is empty.

        A group that does not exist has no members.
        """

    def close(self) -> None:
        """Release all connections."""
