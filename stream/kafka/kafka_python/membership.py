"""Being a member of a consumer group: rebalances, joins, and being told that one is out.

What kafka-python leaves to its caller:

- A member that hears from a heartbeat that another process has its place stops its heartbeats, and reads on as if
  nothing had happened. `poll` looks for that (`GroupConsumer._refuse_if_out`).
- A static member (`group_instance_id`) never leaves its group at close; `close` makes it leave.
- It joins again by itself when it was thrown out, which not every member shall (`_Joins`).
- A join that is done between two polls is forgotten and made anew, and then the whole group has to join again, over and
  over where members poll seldom. It is kept here until a poll takes it (`_Joins`).
- A partition that stays with its member in a rebalance goes on at the position reached, not at the committed offset
  (the Java client starts anew). `_take_over` seeks.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener
from kafka import errors as kafka_errors
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.kafka_python.admin import Admin
from stream.kafka.kafka_python.connection import RETRY_S, Connection
from stream.kafka.kafka_python.consumers import Reader, make_consumer
from stream.kafka.port import Acl, BrokerError, FencedError, RebalanceListener, StaleMemberError
from stream.kafka.refusals import no_longer_kept, replaced, thrown_out
from stream.wire.records import Record, TopicPartition

_JOIN_POLL_MS = 50
_HEARTBEAT_MS_MAX = 3_000
_VERDICT_S = 10.0  # how long the answer to a heartbeat is waited for, of a group that may be out of reach


def join_group(
    connection: Connection, admin: Admin, group: str, member: str, topics: Sequence[str], listener: RebalanceListener,
    *, session_timeout_ms: int, rejoins: bool,
) -> "GroupConsumer":  # fmt: skip
    """A member of a group."""
    client = make_consumer(
        connection,
        group_id=group,
        group_instance_id=member,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=min(_HEARTBEAT_MS_MAX, session_timeout_ms // 4),
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    try:
        return GroupConsumer(connection, admin, client, group, member, topics, listener, rejoins=rejoins)
    except BaseException:
        client.close(timeout_ms=0)
        raise


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hears of rebalances on the client's network thread, while the user's thread waits in `poll`.

    What is revoked must be given up before the group is joined again, so the user's listener is called right here. What
    is assigned is only noted, and paused: a learner that takes over a partition may read for minutes, and on this
    thread that would stop the heartbeats.
    """

    def __init__(self, client: Any, listener: RebalanceListener) -> None:
        self._client = client
        self._listener = listener
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.assigned = False  # there is a new assignment of which the user has not been told
        self.failure: Exception | None = None  # of the user's listener
        self.closing = False

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        if self.assignment and not self.assigned and not self.closing:
            try:
                self._listener.on_revoked(self.assignment)
            except Exception as error:  # raised again in poll, on the user's thread
                self.failure = error
        self.assignment = frozenset()
        self.assigned = False

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._client.pause(*assigned)
        for tp in assigned:
            self._client.seek(tp, 0)  # any position keeps the client from seeking one; `_take_over` seeks the right one
        self.assignment = frozenset(TopicPartition(*tp) for tp in assigned)
        self.assigned = True


class _Joins:
    """Stands for the coordinator's own way to join its group, and keeps what a join brought until a poll takes it.

    A poll that gives up leaves its join in flight. The next one waits on for it; but when it is done by then, it begins
    another one, and what the first has brought is lost.

    It also stands for the coordinator's way to forget its membership, to tell when the group has thrown it out: it is
    then told that its member id is unknown. So is one whose first join a restart of the broker has interrupted, which
    has lost nothing; a join that was completed outlives a restart. And a member that is too busy to poll forgets its
    membership by itself: it joins again.
    """

    def __init__(self, coordinator: Any, *, rejoins: bool) -> None:
        self._coordinator = coordinator
        self._rejoins = rejoins
        self._join = coordinator._do_join_and_sync_async
        self._reset = coordinator.reset_generation
        self._generation: Any = None  # which the last join brought; None: while one is under way, or when it failed
        self._assignment = b""
        self._member_id = ""  # of the last join that was completed
        self.is_out = False  # thrown out, and not to join again
        coordinator._do_join_and_sync_async = self
        coordinator.reset_generation = self._reset_generation

    def _reset_generation(self, member_id: str = "") -> None:
        coordinator = self._coordinator
        was_joined = self._member_id and coordinator._generation.member_id == self._member_id
        if not member_id and was_joined and not coordinator.heartbeat.poll_timeout_expired():
            self.is_out = not self._rejoins
        self._reset(member_id)

    async def __call__(self) -> bytes:
        coordinator = self._coordinator
        if self.is_out:
            raise kafka_errors.CoordinatorNotAvailableError  # is tried again until the poll ends, which says why
        # A join that was taken has left the state of rebalancing; a member that was thrown out has no generation.
        if coordinator.rebalance_in_progress() and coordinator._generation is self._generation:
            return self._assignment
        self._generation = None
        self._assignment = await self._join()
        self._generation = coordinator._generation
        self._member_id = self._generation.member_id
        return self._assignment


class GroupConsumer(Reader):
    """See Consumer; a static member of a group."""

    def __init__(
        self, connection: Connection, admin: Admin, client: Any, group: str, member: str, topics: Sequence[str],
        listener: RebalanceListener, *, rejoins: bool,
    ) -> None:  # fmt: skip
        super().__init__(connection, admin, client)
        self._group = group
        self._member = member
        self._topics = tuple(topics)
        self._listener = listener
        self._rebalances = _Rebalances(client, listener)
        self._paused: set[TopicPartition] = set()  # by the user
        self._fenced = False
        self._joins = _Joins(client._coordinator, rejoins=rejoins)
        client.subscribe(list(topics), listener=self._rebalances)
        # A leader of the group that has no metadata yet deals no partitions, and the group is joined a second time.
        with connection.translating(f"read about {', '.join(topics)}", self.needs()):
            client._net.run(client._manager.wait_for, client._cluster.request_update(), connection.request_timeout_ms)

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return self._rebalances.assignment

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._refuse_if_out()
        if not self._rebalances.assignment:
            timeout_ms = min(timeout_ms, _JOIN_POLL_MS)  # what is assigned is paused, and would be waited for in vain
        records = super().poll(timeout_ms, records_max)
        failure, self._rebalances.failure = self._rebalances.failure, None
        if failure is not None:
            raise failure
        self._refuse_if_out()
        if self._rebalances.assigned:
            self._take_over()
        return records

    def membership(self) -> Any:
        """The member and generation under which offsets are committed.

        Raises:
            FencedError: another process has this member's place, or it was thrown out and is not to join again.
            StaleMemberError: this is no member now.
        """
        self._refuse_if_out()
        metadata = self._client.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            raise StaleMemberError(f"{self._member} is not a member of group {self._group} now; poll to join it again")
        return metadata

    def needs(self) -> list[Acl]:
        """What must be allowed for reading in this group, and for committing its offsets."""
        return [Acl("group", self._group, "Read"), *(Acl("topic", topic, "Read") for topic in self._topics)]

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        tps = list(tps)
        self._paused.update(tps)
        super().pause(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        tps = list(tps)
        self._paused.difference_update(tps)
        super().resume(tps)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        self.membership()
        with self._connection.translating(f"commit offsets of group {self._group}", self.needs()):
            self._client.commit(offsets_of(offsets), timeout_ms=self._connection.request_timeout_ms)

    def check_place(self) -> None:
        """See Consumer. The coordinator sends heartbeats by itself; the answer to the next one tells."""
        coordinator = self._client._coordinator
        asked_s = time.monotonic()
        while coordinator.stable() and coordinator._heartbeat_enabled and coordinator.heartbeat.last_receive < asked_s:
            if time.monotonic() > asked_s + _VERDICT_S:
                break
            time.sleep(RETRY_S)
        self._refuse_if_out()

    def hear_thrown_out(self) -> None:
        """Take in that the broker does not know this member."""
        self._client._coordinator.reset_generation()
        self._refuse_if_out()

    def close(self) -> None:
        """See Consumer."""
        metadata = self._client.group_metadata()
        self._rebalances.closing = True
        super().close()
        if metadata.member_id and not self._fenced:
            self._admin.leave(self._group, metadata.member_id, self._member)

    def _refuse_if_out(self) -> None:
        """Raise when a heartbeat was told that another process has this member's place, or that it was thrown out.

        When another has it, the client only stops its heartbeats. A member that is joined, not about to join anew and
        not closed has them stopped for no other reason: they are started in the same step in which it becomes a joined
        one, within a poll.
        """
        coordinator = self._client._coordinator
        is_joined = coordinator.stable() and not coordinator.rejoining
        if self._fenced or (is_joined and not coordinator._heartbeat_enabled):
            self._fenced = True
            raise FencedError(replaced(self._member, self._group))
        if self._joins.is_out:
            raise FencedError(thrown_out(self._member, self._group))

    def _take_over(self) -> None:
        """Tell the user of the new assignment, on the user's thread, and let it be read from then on."""
        self._rebalances.assigned = False
        self._paused.clear()
        tps = self._rebalances.assignment
        committed = self._admin.committed_to(self._client, self._group, tps)
        beginnings = self._admin.beginnings(sorted(tps))
        for tp, first in beginnings.items():
            self.seek(tp, committed.get(tp, first))
        self._listener.on_assigned(tps)
        for tp in sorted(tps - self._paused):  # of what the user has paused, the user knows where to read on
            offset = self.position(tp)
            if offset < beginnings[tp]:
                raise BrokerError(no_longer_kept(tp, offset, self._group, beginnings[tp]))
        super().resume(tps - self._paused)


def offsets_of(offsets: Mapping[TopicPartition, int]) -> dict[Any, Any]:
    """Offsets as kafka-python takes them."""
    return {KafkaTopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
