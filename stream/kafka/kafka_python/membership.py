"""Membership in a consumer group: rebalances, joins, and the loss of the member's place.

Workarounds for kafka-python:

- If the response to a heartbeat reports that another process has taken the member's place, the client stops its
  heartbeats but continues to read. `poll` checks for this case (`GroupConsumer._raise_if_out`).
- A static member (`group_instance_id`) does not leave its group when it is closed. `close` removes it.
- A member that was removed rejoins automatically, even if it must not (`_Joins`).
- A join that completes between two polls is discarded and repeated, and the whole group then joins again. If members
  poll rarely, the rebalance never ends. Here, the join is kept until a poll uses it (`_Joins`).
- If a partition stays with its member in a rebalance, the client continues at its current position. The Java
  client continues at the committed offset instead. `_take_over` seeks to the committed offset.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import ConsumerRebalanceListener
from kafka import errors as kafka_errors
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.connection import RETRY_S
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.kafka_python.connection import KafkaConnection
from stream.kafka.kafka_python.consumers import Reader
from stream.kafka.port import Acl
from stream.kafka.refusals import Subscription
from stream.wire.records import Record, TopicPartition

_JOIN_POLL_MS = 50
_VERDICT_S = 10.0  # limit on the wait for a heartbeat response, because the group may be unreachable


class _Joins:
    """Replaces the coordinator's join method and keeps a join's result until a poll uses it.

    A poll that times out leaves its join in progress, and the next poll waits for that join. If the join completes
    between the two polls, however, the client starts another join and loses the first result.

    This class also replaces the coordinator's method that resets the membership. A reset after an error response about
    an unknown member id normally shows that the group has removed the member. However, a member whose first join was
    interrupted by a broker restart receives the same error without having been removed. A completed join survives a
    broker restart. A member that is too busy to poll resets its own membership and joins again.
    """

    def __init__(self, coordinator: Any, *, rejoins: bool) -> None:
        self._coordinator = coordinator
        self._rejoins = rejoins
        self._join = coordinator._do_join_and_sync_async
        self._reset = coordinator.reset_generation
        self._generation: Any = None  # generation of the last join; None during a join or after a failed one
        self._assignment = b""
        self._member_id = ""  # member id at the last completed join
        self.is_out = False  # True if the member was removed from the group and may not rejoin
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
            # The client retries until the poll ends, and `poll` then raises FencedError.
            raise kafka_errors.CoordinatorNotAvailableError
        # The kept result is valid until a poll uses it (this ends the rebalance) or the group removes the member.
        if coordinator.rebalance_in_progress() and coordinator._generation is self._generation:
            return self._assignment
        self._generation = None
        self._assignment = await self._join()
        self._generation = coordinator._generation
        self._member_id = self._generation.member_id
        return self._assignment


class GroupConsumer(Reader, ConsumerRebalanceListener):  # type: ignore[misc]
    """A static group member; see Member.

    The client reports rebalances on its network thread, while the user's thread waits in `poll`. Revoked partitions
    must be released before the member joins again, so the user's listener is called on the network thread. Assigned
    partitions are only stored and paused, because a learner's recovery of a partition may take minutes and would block
    the heartbeats on this thread. `poll` then calls the user's listener.
    """

    def __init__(self, connection: KafkaConnection, admin: Admin, subscription: Subscription) -> None:
        client = connection.make_consumer(
            **subscription.properties(connection.settings.session_timeout_ms),
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        super().__init__(connection, admin, client)
        self._subscription = subscription
        self._assignment: frozenset[TopicPartition] = frozenset()
        self._is_new = False  # True if the user's listener has not received the assignment
        self._failure: Exception | None = None  # error in the user's listener, raised again by poll
        self._closing = False
        self._fenced = False
        self._joins = _Joins(client._coordinator, rejoins=subscription.rejoins)
        client.subscribe(list(subscription.topics), listener=self)
        # If the group leader has no metadata, it assigns no partitions, and all members must join a second time.
        try:
            with connection.translating(f"read the metadata of {', '.join(subscription.topics)}", self.needs()):
                update = client._cluster.request_update()
                client._net.run(client._manager.wait_for, update, connection.request_timeout_ms)
        except BaseException:
            super().close()
            raise

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return self._assignment

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """See ConsumerRebalanceListener. Lost partitions are also reported here."""
        if self._assignment and not self._is_new and not self._closing:
            try:
                self._subscription.listener.on_revoked(self._assignment)
            except Exception as error:
                self._failure = error
        self._assignment = frozenset()
        self._is_new = False

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """See ConsumerRebalanceListener."""
        self._client.pause(*assigned)
        for tp in assigned:
            self._client.seek(tp, 0)  # prevents an offset request; `_take_over` seeks to the committed offset
        self._assignment = frozenset(TopicPartition(*tp) for tp in assigned)
        self._is_new = True

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._raise_if_out()
        if not self._assignment:
            timeout_ms = min(timeout_ms, _JOIN_POLL_MS)  # newly assigned partitions are paused and return no records
        records = super().poll(timeout_ms, records_max)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._raise_if_out()
        if self._is_new:
            self._take_over()
        return records

    def membership(self) -> Any:
        """Return the member and the generation to use for committing offsets.

        Raises:
            FencedError: this member was replaced by another process, or was removed and cannot rejoin.
            StaleMemberError: this process is not currently a member.
        """
        self._raise_if_out()
        metadata = self._client.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            raise self._subscription.not_joined()
        return metadata

    def needs(self) -> list[Acl]:
        """See Reader."""
        return self._subscription.needs()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Member."""
        self.membership()
        with self._connection.translating(f"commit offsets for group {self._subscription.group}", self.needs()):
            self._client.commit(offsets_of(offsets), timeout_ms=self._connection.request_timeout_ms)

    def check_place(self) -> None:
        """See Member. The coordinator sends heartbeats automatically; this method waits for the next response."""
        coordinator = self._client._coordinator
        asked_s = time.monotonic()
        while coordinator.stable() and coordinator._heartbeat_enabled and coordinator.heartbeat.last_receive < asked_s:
            if time.monotonic() > asked_s + _VERDICT_S:
                break
            time.sleep(RETRY_S)
        self._raise_if_out()

    def on_unknown_member(self) -> None:
        """Record that the broker has reported an unknown member id."""
        self._client._coordinator.reset_generation()
        self._raise_if_out()

    def close(self) -> None:
        """See Consumer."""
        metadata = self._client.group_metadata()
        self._closing = True
        super().close()
        if metadata.member_id and not self._fenced:
            self._admin.leave(self._subscription, metadata.member_id)

    def _raise_if_out(self) -> None:
        """Raise FencedError if a heartbeat has reported that this member was replaced or removed.

        If another process has taken the member's place, the client only stops its heartbeats. The client starts
        heartbeats when a join completes. If a member has joined and is neither rejoining nor closed, stopped heartbeats
        therefore mean that another process has taken its place.
        """
        coordinator = self._client._coordinator
        is_joined = coordinator.stable() and not coordinator.rejoining
        if self._fenced or (is_joined and not coordinator._heartbeat_enabled):
            self._fenced = True
            raise self._subscription.replaced()
        if self._joins.is_out:
            raise self._subscription.removed()

    def _take_over(self) -> None:
        """On the user's thread, pass the new assignment to the user's listener and start reading these partitions."""
        self._is_new = False
        tps = self._assignment
        beginnings = self._admin.beginnings(sorted(tps))
        committed = self._admin.committed(self._subscription.group, sorted(tps), self._client)
        for tp, offset in (beginnings | committed).items():
            self.seek(tp, offset)
        self.resume(tps)
        self._subscription.listener.on_assigned(tps)
        reads = tps - {TopicPartition(*tp) for tp in self._client.paused()}
        self._subscription.check_kept({tp: self.position(tp) for tp in sorted(reads)}, beginnings)


def offsets_of(offsets: Mapping[TopicPartition, int]) -> dict[Any, Any]:
    """Convert offsets to the format that kafka-python expects."""
    return {KafkaTopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
