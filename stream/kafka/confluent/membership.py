"""Being a member of a consumer group: rebalances, losses, and being told that one is out.

What librdkafka leaves to its caller:

- A member that was cut off for longer than its session may find that its client takes itself for fenced, although
  nobody else has its place. Here the group is asked; the program then makes all anew, as after any outage.
- When it has lost its partitions (the group does not know the member any more, or has not been heard of for a session)
  it joins again by itself, and takes the place of whoever has it by now. Here it is kept from that until the group has
  said who has the place (`_settle_loss`).
- It hands out metadata of a member that it is not, or not yet, and the broker accepts them: the generation, which
  stands in their bytes, tells (`membership`).
- A static member (`group.instance.id`) never leaves its group at close; `close` makes it leave.
- Nobody tells when a heartbeat was answered. The group is asked instead (`check_place`).
- A commit of offsets has no time-out, and waits for a broker that stands still for as long as that does (`commit`).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import confluent_kafka

from stream.kafka.confluent.admin import Admin
from stream.kafka.confluent.bounded import bounded
from stream.kafka.confluent.connection import FENCED, RAISED, RETRY_S, Connection
from stream.kafka.confluent.consumers import Reader, make_consumer
from stream.kafka.port import (
    Acl,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    RebalanceListener,
    StaleMemberError,
)
from stream.kafka.refusals import no_longer_kept, replaced, thrown_out
from stream.wire.records import Record, TopicPartition

_kafka: Any = confluent_kafka
_code: Any = confluent_kafka.KafkaError

_HEARTBEAT_MS_MAX = 3_000
_POLL_INTERVAL_MS = 300_000  # after so long without a poll a member gives up its place by itself

_VERDICT_S = 10.0  # how long the answer to a heartbeat is waited for

_NO_GENERATION = -1
_METADATA_TAG = b"CGMDv2:"


def join_group(
    connection: Connection, admin: Admin, group: str, member: str, topics: Sequence[str], listener: RebalanceListener,
    *, session_timeout_ms: int, rejoins: bool,
) -> "GroupConsumer":  # fmt: skip
    """A member of a group."""
    client = make_consumer(
        connection,
        group,
        group_instance_id=member,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=min(_HEARTBEAT_MS_MAX, session_timeout_ms // 4),
        max_poll_interval_ms=max(_POLL_INTERVAL_MS, session_timeout_ms),
        partition_assignment_strategy="range",
    )
    return GroupConsumer(connection, admin, client, group, member, topics, listener, rejoins=rejoins)


class GroupConsumer(Reader):
    """See Consumer; a static member of a group. The client's callbacks run within `poll`, on the caller's thread."""

    _of_others: ClassVar[frozenset[int]] = frozenset()

    def __init__(
        self, connection: Connection, admin: Admin, client: Any, group: str, member: str, topics: Sequence[str],
        listener: RebalanceListener, *, rejoins: bool,
    ) -> None:  # fmt: skip
        super().__init__(connection, admin, client, {})
        self.group = group
        self._member = member
        self._topics = list(topics)
        self._listener = listener
        self._rejoins = rejoins
        self._member_id = ""  # which the group gave at the last assignment
        self._generation = _NO_GENERATION  # of the group, since its assignment was taken over, until it is taken back
        self._known_s = time.monotonic()  # when the group gave this member partitions, or took its offsets, last
        self._lost = False  # the partitions, and the group has not said why
        self._is_broken = False  # the client, by an error that is final for it
        self._was_busy = False  # for too long to poll, so that the member gave up its place
        self._out: str | None = None  # why this member has no place in its group for good
        self._failure: Exception | None = None  # in a callback; raised again by poll
        self._closing = False
        self._subscribe()

    def _subscribe(self) -> None:
        with self._connection.translating(f"join group {self.group}", self.needs()):
            self._client.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._refuse_if_out()
        if self._lost:
            self._settle_loss()
        records = super().poll(timeout_ms, records_max)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if not records:
            self._refuse_if_out()
            if self._lost:
                self._settle_loss()
        return records

    def _begin(self) -> None:
        """Nothing: the group gives the partitions."""

    def _on_assign(self, client: Any, partitions: Iterable[Any]) -> None:
        if self._closing:  # and not given back, the client's close may never end
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
        """Read on where the group stands, or where the listener says."""
        self._known_s = time.monotonic()
        joined_as = self._client.memberid()
        if self._member_id not in ("", joined_as) and not self._rejoins:
            # Thrown out when it had no partitions to lose, in the middle of a rebalance, it joined again unasked.
            self._admin.leave(self.group, joined_as, self._member)
            self._out = thrown_out(self._member, self.group)
            self._refuse_if_out()
        self._member_id = joined_as
        self._generation = _generation_of(self._client.consumer_group_metadata())
        beginnings = self._admin.beginnings(sorted(tps))
        self._positions = beginnings | self._admin.committed(self.group, sorted(tps))
        self._is_assigned = False
        self._paused.clear()
        self._aside.clear()
        self._stopped.clear()
        self._listener.on_assigned(tps)
        for tp in sorted(tps - self._paused):  # of what the user has paused, the user knows where to read on
            if self._positions[tp] < beginnings[tp]:
                raise BrokerError(no_longer_kept(tp, self._positions[tp], self.group, beginnings[tp]))

    def _on_revoke(self, client: Any, partitions: Iterable[Any]) -> None:
        if self._positions and not self._closing:
            try:
                self._listener.on_revoked(self.assignment())
            except Exception as error:
                self._failure = error
        self._generation = _NO_GENERATION
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
            except RAISED:  # out of a callback the client would raise what is no exception, and nobody could catch it
                self._is_broken = True

    def _hear(self, tp: TopicPartition, event: Any, error: Any) -> None:
        if error.code() == _code._MAX_POLL_EXCEEDED:
            self._was_busy = True
        else:
            super()._hear(tp, event, error)

    def _refuse_if_told_to(self) -> None:
        if any(error.code() in FENCED for error in self._errors):
            self._errors = []
            self._lost = self._is_broken = True
            self._settle_loss()
        super()._refuse_if_told_to()

    def _settle_loss(self) -> None:
        """Ask the group who has the place of this member, and join again, or never again."""
        try:
            place = self._ask_place()
            may_be_out = place is None and not (self._rejoins or self._was_busy or self._was_cut_off())
        except BrokerUnavailableError:
            return  # the next poll asks again
        if place not in (None, self._member_id):
            self._out = replaced(self._member, self.group)
        elif may_be_out:
            self._out = thrown_out(self._member, self.group)
        self._refuse_if_out()
        if self._is_broken:
            raise BrokerUnavailableError(
                f"the client of {self._member} in group {self.group} is of no use any more, and nobody else has its "
                "place: it is to be made anew"
            )
        self._lost = self._was_busy = False
        self._member_id = ""
        self._subscribe()

    def _ask_place(self) -> str | None:
        """The id of the member that has the place of this one in the group."""
        return self._admin.member_ids(self.group).get(self._member)

    def _was_cut_off(self) -> bool:
        """Whether the broker was out of reach since the group last knew this one, and nobody else has partitions now.

        librdkafka gives up its place by itself when it cannot reach the broker for a session. A member that was paused
        finds the broker in reach. Records say nothing of the group: they may have come before the broker went away.
        """
        others = self._admin.members(self.group)
        self._connection.listen()
        return self._connection.cut_off_s > self._known_s and not any(others.values())

    def membership(self) -> bytes:
        """The member and generation under which offsets are committed, as the client takes them.

        Raises:
            FencedError: another process has this member's place, or it was thrown out and is not to join again.
            StaleMemberError: this is no member now.
        """
        self._refuse_if_out()
        metadata: bytes = self._client.consumer_group_metadata()
        is_joined = self._generation != _NO_GENERATION and self._client.memberid() == self._member_id
        if not is_joined or _generation_of(metadata) != self._generation:
            raise StaleMemberError(f"{self._member} is not a member of group {self.group} now; poll to join it again")
        return metadata

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        self.membership()
        positions = [_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        what = f"commit offsets of group {self.group}"
        with self._connection.translating(what, self.needs()):
            try:
                bounded(
                    partial(self._client.commit, offsets=positions, asynchronous=False), self._connection.patience_s
                )
            except TimeoutError as error:
                self._connection.cut_off_s = time.monotonic()  # nobody heard what the clients said meanwhile
                self._is_broken = True
                raise BrokerUnavailableError(
                    f"could not {what}: Kafka at {self._connection.bootstrap} has not answered within "
                    f"{self._connection.patience_s:g} s; see that it runs and is reachable"
                ) from error

    def check_place(self) -> None:
        """See Consumer."""
        self._refuse_if_out()
        if not self._member_id:
            return
        try:
            place = self._ask_place()
            may_be_out = place is None and not (self._rejoins or self._was_cut_off())
        except BrokerError:
            return
        if place not in (None, self._member_id):
            self._out = replaced(self._member, self.group)
        elif may_be_out:
            self._out = thrown_out(self._member, self.group)
        self._refuse_if_out()
        hears_by_s = time.monotonic() + _VERDICT_S
        while place is None and self._client.memberid() == self._member_id and time.monotonic() < hears_by_s:
            time.sleep(RETRY_S)  # until a heartbeat was told so, and the next poll joins again

    def needs(self) -> list[Acl]:
        """See Reader; its first is that of the group."""
        return [Acl("group", self.group, "Read"), *(Acl("topic", topic, "Read") for topic in self._topics)]

    def hear_offsets_taken(self) -> None:
        """Take in that the group has taken offsets from this member, which it knew then."""
        self._known_s = time.monotonic()

    def hear_thrown_out(self) -> None:
        """Take in that the broker does not know this member."""
        if not (self._rejoins or self._was_cut_off()):
            self._out = thrown_out(self._member, self.group)
        self._refuse_if_out()

    def close(self) -> None:
        """See Consumer."""
        self._closing = True
        # A client that is closed while it joins may never come to an end of it: see `_on_assign`, too.
        with suppress(*RAISED):
            self._client.unsubscribe()
            self._client.poll(0)
        super().close()
        if self._member_id and self._out is None:
            self._admin.leave(self.group, self._member_id, self._member)

    def _refuse_if_out(self) -> None:
        if self._out is not None:
            raise FencedError(self._out)


def _generation_of(metadata: bytes) -> int:
    """The generation in a group's metadata: it stands behind a tag, in four bytes, little end first.

    Raises:
        BrokerError: the metadata have another form.
    """
    begin = len(_METADATA_TAG)
    if not metadata.startswith(_METADATA_TAG) or len(metadata) < begin + 4:
        raise BrokerError(
            f"metadata of a consumer group: expected {_METADATA_TAG!r} and four bytes; got {metadata[:40]!r}: this "
            "version of confluent-kafka writes another form; install the one that Onebit requires"
        )
    return int.from_bytes(metadata[begin : begin + 4], "little", signed=True)
