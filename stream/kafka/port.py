"""The Broker port: all that Onebit asks of Apache Kafka.

The embedded broker and the adapters of Kafka clients pass the same contract tests (`tests/contract`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stream.errors import ExitCode, OnebitError
from stream.wire.records import Headers as Headers
from stream.wire.records import Record as Record
from stream.wire.records import TopicPartition as TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

RECORD_BYTES_MAX = 1_000_000  # of a record's value; a batch with its overhead may have 1 MiB in Kafka by default


class BrokerError(OnebitError):
    """The broker refused an operation or could not be reached."""


class BrokerUnavailableError(BrokerError):
    """No answer within the time allowed; the outcome of what was asked may be unknown."""

    exit_code = ExitCode.UNAVAILABLE


class FencedError(BrokerError):
    """This process is out for good: another has its transactional id or its place, or its group has thrown it out."""

    exit_code = ExitCode.FENCED


class StaleMemberError(BrokerError):
    """The consumer group has moved on: the partitions of this step now belong to a newer generation."""


class Acl(NamedTuple):
    """What a user may be allowed to do, in the words of Kafka's own tool `kafka-acls`."""

    kind: str  # topic, group, transactional-id
    name: str
    operation: str


class AccessError(BrokerError):
    """The broker does not let this client in, cannot be trusted, or does not allow what was asked.

    Trying again is in vain: somebody must change a password, a certificate or an ACL.
    """

    def __init__(self, message: str, missing: Sequence[Acl] = (), user: str | None = None) -> None:
        """Say what was refused.

        Args:
            message: what, where and why.
            missing: what must be allowed; empty when that is not what is wrong, or not known.
            user: to whom, if the client has a name.
        """
        super().__init__(message)
        self.missing = tuple(missing)
        self.user = user


class TopicSettingsError(BrokerError):
    """A topic exists with settings that Onebit cannot work with."""


class Producer(Protocol):
    """Writes records, each on its own, at least once."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record."""

    def flush(self) -> int:
        """Wait until all queued records are acknowledged; the latest append time among them, -1 when none was queued.

        Raises:
            BrokerUnavailableError: not all were acknowledged in time; they may or may not have been written.
            TopicSettingsError: an acknowledged record has no append time.
        """

    def close(self) -> None:
        """Flush and release."""


class TransactionalProducer(Protocol):
    """Writes records and consumed offsets in transactions. Making one fences all earlier ones of the same id."""

    def rest(self) -> None:
        """Wait until the broker is done with the last transaction, for some milliseconds: else it puts off the next.

        `begin` waits for it, too. Whoever rests before reading takes along what comes meanwhile.
        """

    def begin(self) -> None:
        """Open a transaction."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record in the open transaction."""

    def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until all queued records are in the log, where the transaction shows as an open one.

        Returns the latest append time of each partition written to since `begin` or the last flush. Every partition
        written to is in the mapping.

        Raises:
            BrokerUnavailableError: not all were acknowledged in time; abort the transaction.
            TopicSettingsError: an acknowledged record has no append time; abort the transaction.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: "Consumer") -> None:
        """Make the consumer's next offsets part of the transaction, under its group membership.

        Raises:
            StaleMemberError: the group has moved on without this member.
            FencedError: another producer has taken over.
        """

    def commit(self) -> int:
        """Commit; the latest append time among the transaction's records, -1 when it held none.

        Raises:
            FencedError: another producer has taken over; nothing of the transaction will be visible.
            BrokerUnavailableError: the outcome is unknown; what was written must be read to find out.
            TopicSettingsError: an acknowledged record has no append time; nothing was committed.
        """

    def abort(self) -> None:
        """Abort the open transaction; nothing happens when none is open."""

    def close(self) -> None:
        """Release; an open transaction is aborted."""


class Consumer(Protocol):
    """Reads records of committed transactions, and records written outside of any, in the order of their offsets."""

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """Records from the assigned partitions, in offset order within each; empty when none came in time.

        Rebalance callbacks run in here and nowhere else.

        Raises:
            TopicSettingsError: a topic was altered so that its records have their senders' times; the consumer must be
                closed.
        """

    def position(self, tp: TopicPartition) -> int:
        """The next offset to be read; past everything that will never be visible (markers, aborted records)."""

    def lag(self, tp: TopicPartition) -> int:
        """Offsets that the last fetch response said can be read beyond the position; asks the broker nothing.

        Counts records that the client has fetched and `poll` has not returned, and what `poll` will skip before them.
        0 at the last stable offset, whatever is open beyond it, and while nothing was fetched.
        """

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from here."""

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Leave these partitions out of the following polls."""

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Take paused partitions back in."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for the group outside of a transaction, for programs that may do things twice.

        Raises:
            StaleMemberError: the group has moved on without this member.
        """

    def check_place(self) -> None:
        """Hear from the group, if it can be reached, whether this member still has its place in it.

        Raises:
            FencedError: it has not; for a member that joins again after it was thrown out, only if another has it.
        """

    def close(self) -> None:
        """Leave the group and release."""


class RebalanceListener(Protocol):
    """Hears, inside `poll`, which partitions come and go."""

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """These partitions are about to be taken away; the last commit must have been made."""

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """These partitions are now read by this consumer."""


class Ends(NamedTuple):
    """Where a partition ends at the moment of asking."""

    high_watermark: int  # one past the last record, whether its transaction is open or not
    stable: int  # one past the last record that a read-committed consumer can be given


class Broker(Protocol):
    """Apache Kafka as Onebit sees it."""

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create the topics that do not exist, all with the broker's append time.

        Raises:
            TopicSettingsError: one exists with other settings; the message says which, and what they should be.
        """

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete the topics that exist, and wait until they are gone."""

    def producer(self) -> Producer:
        """A producer outside of transactions."""

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """A producer of transactions; an open transaction of an earlier one with this id is aborted."""

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> Consumer:
        """A member of a consumer group: equal partition numbers of all topics go to the same member.

        `member` names the member across restarts: a restarted one takes its place at once and fences the one before.
        Reading starts at the committed offset, else at the beginning.

        The group throws out a member that has given no sign of life for a session: one that was paused, or cut off.
        When it hears of that it joins again in its next poll; with `rejoins` False it is fenced.
        """

    def reader(self, tps: Sequence[TopicPartition]) -> Consumer:
        """A consumer without a group, at the beginning of these partitions."""

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """Where partitions end, asked of the broker now (not remembered from an earlier answer)."""

    def stable_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The stable ends alone, which cost one question and not two."""

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still kept in each partition."""

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group; partitions without one are left out."""

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """The members of a group by name, each with the partitions that it holds; empty while the group is dealt anew.

        A group that does not exist has none.
        """

    def close(self) -> None:
        """Release all connections."""
