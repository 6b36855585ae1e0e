"""Membership in a consumer group: rebalances, lost partitions, and the loss of the member's place.

Workarounds for librdkafka:

- After a disconnection that lasts longer than the session timeout, the client may report that it is fenced, although no
  other process has taken the member's place. If the group confirms this, the program creates a new client, as it
  does after any outage.
- A member loses its partitions if the group removes it, or if the group does not respond within the session timeout.
  The client then joins again automatically and replaces any process that has taken the member's place. Here, the client
  first waits until the group has reported which process has that place (`_settle_loss`).
- The client may return metadata from an earlier or later membership, and the broker accepts it. The generation in the
  metadata shows which membership it belongs to (`membership`).
- A static member (`group.instance.id`) does not leave its group when it is closed. `close` removes it.
- The client does not report the responses to heartbeats. Instead, `check_place` sends a request to the group.
- An offset commit has no timeout. It waits until the broker responds (`commit`).
- A client that is closed during a rebalance may report an assignment or a revocation after it has left the group. If
  this callback returned, the client would wait forever while holding Python's global lock (`_block_if_client_left`).
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any, ClassVar

import confluent_kafka

from stream.kafka.confluent.connection import FENCED, RAISED, ConfluentConnection
from stream.kafka.confluent.consumers import ASIDE_RECORDS_MAX, Reader
from stream.kafka.connection import RETRY_S
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, FencedError
from stream.kafka.refusals import Subscription
from stream.wire.records import Record, TopicPartition

_kafka: Any = confluent_kafka
_code: Any = confluent_kafka.KafkaError

_POLL_INTERVAL_MS = 300_000  # a member that does not poll for this long leaves the group automatically
_VERDICT_S = 10.0  # limit on waiting for the response to a heartbeat
_METADATA_TAG = b"CGMDv2:"


class GroupConsumer(Reader):
    """A static group member; see Member. The client's callbacks run within `poll`, on the caller's thread."""

    _ignored: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, connection: ConfluentConnection, admin: Admin, subscription: Subscription) -> None:
        session_timeout_ms = connection.settings.session_timeout_ms
        super().__init__(
            connection,
            admin,
            {},
            **subscription.properties(session_timeout_ms),
            max_poll_interval_ms=max(_POLL_INTERVAL_MS, session_timeout_ms),
            partition_assignment_strategy="range",
        )
        self._is_assigned = True  # the group assigns the partitions
        self.subscription = subscription
        self._member_id = ""  # member id at the last assignment
        self._generation: int | None = None  # the generation of the current assignment; None without an assignment
        self._known_s = time.monotonic()  # time when the group last assigned partitions or accepted offsets
        self._lost = False  # True if partitions were lost for an unknown reason
        self._is_broken = False  # True if the client had a fatal error
        self._was_busy = False  # True if the member left because it did not poll in time
        self._out: FencedError | None = None  # the error to raise if this member has permanently lost its place
        self._failure: Exception | None = None  # error in a callback, raised again by poll
        self._closing = False
        self._client_is_closing = False
        self._subscribe()

    def _subscribe(self) -> None:
        with self._connection.translating(f"join group {self.subscription.group}", self.needs()):
            self._client.subscribe(
                list(self.subscription.topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._settle_loss()
        records = super().poll(timeout_ms, records_max)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if not records:
            self._settle_loss()
        return records

    def _on_assign(self, client: Any, partitions: Iterable[Any]) -> None:
        self._block_if_client_left()
        if self._closing:  # without this call, closing the client may block forever
            client.unassign()
            return
        tps = frozenset(TopicPartition(tp.topic, tp.partition) for tp in partitions)
        try:
            self._take_over(tps)
        except Exception as error:
            self._failure = error
            self._positions = {}
        self._has_moved = True
        self._assign()

    def _take_over(self, tps: frozenset[TopicPartition]) -> None:
        """Start reading from the committed offsets, or from the offsets to which the listener seeks."""
        joined_as = self._client.memberid()
        may_continue = self._member_id in ("", joined_as) or self.subscription.rejoins or self._was_cut_off()
        self._known_s = time.monotonic()
        if not may_continue:
            # The group removed this member while it had no partitions, so no loss was reported. The client then
            # rejoined automatically.
            self._admin.leave(self.subscription, joined_as)
            self._out = self.subscription.removed()
            self._raise_if_out()
        self._member_id = joined_as
        self._generation = _generation_of(self._client.consumer_group_metadata())
        beginnings = self._admin.beginnings(sorted(tps))
        self._positions = beginnings | self._admin.committed(self.subscription.group, sorted(tps))
        self._is_assigned = False
        self._paused.clear()
        self._aside.clear()
        self._stopped.clear()
        self.subscription.listener.on_assigned(tps)
        self.subscription.check_kept({tp: self._positions[tp] for tp in sorted(tps - self._paused)}, beginnings)

    def _on_revoke(self, client: Any, partitions: Iterable[Any]) -> None:
        self._block_if_client_left()
        if self._positions and not self._closing:
            try:
                self.subscription.listener.on_revoked(self.assignment())
            except Exception as error:
                self._failure = error
        self._generation = None
        self._positions = {}
        self._has_moved = True
        self._aside.clear()
        self._stopped.clear()
        self._unreadable.clear()

    def _on_lost(self, client: Any, partitions: Iterable[Any]) -> None:
        self._on_revoke(client, partitions)
        if not self._closing:
            self._lost = True
            try:
                self._client.unsubscribe()
            except RAISED:  # an exception that escapes a callback cannot be caught
                self._is_broken = True

    def _on_error(self, tp: TopicPartition, event: Any, error: Any) -> None:
        if error.code() == _code._MAX_POLL_EXCEEDED:
            self._was_busy = True
        else:
            super()._on_error(tp, event, error)

    def _raise_errors(self) -> None:
        if any(error.code() in FENCED for error in self._errors):
            self._errors = []
            self._lost = self._is_broken = True
            self._settle_loss()
        super()._raise_errors()

    def _settle_loss(self) -> None:
        """After a loss, ask the group which process has this member's place. Then join again or raise an error."""
        self._raise_if_out()
        if not self._lost:
            return
        try:
            self._ask_place()
        except BrokerUnavailableError:
            return  # the next poll repeats the request
        if self._is_broken:
            raise BrokerUnavailableError(
                f"the client for {self.subscription.member} in group {self.subscription.group} has failed, and no "
                "other process has taken its place; create a new client"
            )
        self._lost = self._was_busy = False
        self._member_id = ""
        self._subscribe()

    def _ask_place(self) -> bool:
        """Return whether the group knows this member. Raise FencedError if it was replaced or removed."""
        member_id = self._member_id
        place = self._admin.member_ids(self.subscription.group).get(self.subscription.member)
        if place not in (None, member_id):
            self._out = self.subscription.replaced()
        elif place is None and not (self.subscription.rejoins or self._was_busy):
            self._listen()
            if self._member_id != member_id:  # the client has rejoined
                place = self._member_id
            elif not self._was_cut_off():
                self._out = self.subscription.removed()
        self._raise_if_out()
        return place is not None

    def _was_cut_off(self) -> bool:
        """Return True if an outage occurred after the group's last response and no other member has partitions.

        librdkafka leaves the group if it cannot reach the broker within the session timeout. If this process was only
        paused, the broker remained reachable. Received records do not prove that the broker was reachable, because they
        may have arrived before an outage.
        """
        members = self._admin.members(self.subscription.group)
        for producer in self._connection.producers:  # they report errors only when they are polled
            with suppress(*RAISED):
                producer.poll(0)
        others = [tps for name, tps in members.items() if name != self.subscription.member]
        return self._connection.cut_off_s > self._known_s and not any(others)

    def membership(self) -> bytes:
        """Return the member and the generation to use for committing offsets.

        Raises:
            FencedError: this member was replaced by another process, or was removed and cannot rejoin.
            StaleMemberError: this process is not currently a member.
        """
        self._raise_if_out()
        metadata: bytes = self._client.consumer_group_metadata()
        if self._client.memberid() != self._member_id or _generation_of(metadata) != self._generation:
            raise self.subscription.not_joined()
        return metadata

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Member."""
        self.membership()
        positions = [_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        what = f"commit offsets for group {self.subscription.group}"
        commit = partial(self._client.commit, offsets=positions, asynchronous=False)
        with self._connection.translating(what, self.needs()):
            try:
                self._connection.call(what, commit)
            except BrokerUnavailableError:
                self._is_broken = True
                raise

    def check_place(self) -> None:
        """See Member."""
        self._raise_if_out()
        if not self._member_id:
            return
        try:
            is_known = self._ask_place()
        except FencedError:
            raise
        except BrokerError:
            return
        ends_s = time.monotonic() + _VERDICT_S
        while not is_known and self._client.memberid() == self._member_id and time.monotonic() < ends_s:
            time.sleep(RETRY_S)  # wait until a heartbeat fails; the next poll then joins again

    def _listen(self) -> None:
        """Poll the client so that it reports its errors. Its events are set aside for the next poll.

        The producer does not report every outage, because it connects again only to send requests. Call this method
        only after an outage has ended. Before then, a broker that is shutting down may still have open connections.
        """
        for event in self._receive(0.0, ASIDE_RECORDS_MAX):
            self._set_aside(event)

    def needs(self) -> list[Acl]:
        """See Reader."""
        return self.subscription.needs()

    def on_offsets_accepted(self) -> None:
        """Record that the group has accepted offsets from this member."""
        self._known_s = time.monotonic()

    def on_unknown_member(self) -> None:
        """Record that the broker has reported an unknown member id."""
        if not (self.subscription.rejoins or self._was_cut_off()):
            self._out = self.subscription.removed()
        self._raise_if_out()

    def close(self) -> None:
        """See Consumer."""
        self._closing = True
        with suppress(*RAISED):
            self._client.unsubscribe()
            while self._client.consume(ASIDE_RECORDS_MAX, 0):  # until the client has reported the revocation
                pass
        self._client_is_closing = True
        super().close()
        if self._member_id and self._out is None:
            self._admin.leave(self.subscription, self._member_id)

    def _block_if_client_left(self) -> None:
        """Block the calling thread if the client is being closed and no partitions are assigned.

        Called in callbacks. While a client without assigned partitions is being closed, it does not wait for its
        callbacks. It may already have left the group, and the call that follows the callback would then never return. A
        client with assigned partitions does wait for its callbacks. The blocked thread is the one in which `bounded`
        closes the client.
        """
        if self._client_is_closing and not self._positions:
            Event().wait()

    def _raise_if_out(self) -> None:
        if self._out is not None:
            raise self._out


def _generation_of(metadata: bytes) -> int:
    """Return the generation in a group's metadata: four little-endian bytes after a tag.

    Raises:
        BrokerError: the metadata is in a different format.
    """
    begin = len(_METADATA_TAG)
    if not metadata.startswith(_METADATA_TAG) or len(metadata) < begin + 4:
        raise BrokerError(
            f"consumer group metadata: expected {_METADATA_TAG!r} and four bytes; got {metadata[:40]!r}: this "
            "version of confluent-kafka uses a different format; install the version that Onebit requires"
        )
    return int.from_bytes(metadata[begin : begin + 4], "little", signed=True)
