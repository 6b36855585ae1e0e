"""Moves a stopped pipeline to new topics: with other partitions, a different kind of model, or on another cluster.

Between any two of these stages, the process can die; the same move then starts again:

1. Join the learners' group in place of the learners. A learner that starts meanwhile causes a rebalance, which ends the
   move, because stage 5 commits offsets as a member of the group.
2. Recover the state of every task, and place it in the new tasks (`stream.recovery.moving`).
3. Create the new topics, and write the record of the move to their control topic. From now on, a learner with the new
   topics refuses to start, until stage 6.
4. Write the new tasks' opening snapshots.
5. Write the record of the move to the old control topic. From now on, learners with the old topics refuse to start.
6. Write the new tasks' opening steps to the new journal, in one transaction.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import NamedTuple

from consumers.learner.clock import STEP_MS
from onebit.changes import send, user
from stream.kafka.port import Broker, Member, StaleMemberError
from stream.kafka.reading import read_partition
from stream.recovery import steps as journal
from stream.recovery.chunks import IMPORT_SLOT, MODEL_KEYS, MODEL_PARTITION, OPENING_SLOT, ChunkWriter, read_snapshots
from stream.recovery.control import Requests, read_requests
from stream.recovery.moving import MoveError, NoStateError, Opening, Placement, Plan, Stopped
from stream.recovery.recover import Recovered, pipeline_settings, recover
from stream.recovery.state import ModelSnapshot, Snapshot, encode, take, take_model
from stream.recovery.steps import JournalStep, encode_step, last_steps
from stream.recovery.torn import check_log
from stream.task.changes import Changed
from stream.task.settings import TaskSettings
from stream.task.stored_settings import differences, restored_settings
from stream.verifying.models import replica_at
from stream.wire import codec
from stream.wire.codec import is_tick, tick_step
from stream.wire.control import Moved, Request, encode_request
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicDescription, Topics

MEMBER = "move"
"""The name under which a move joins the learners' group."""

JOIN_POLLS = 600
JOIN_POLL_MS = 100

BYTES_MAX = 4_000_000
"""Limit on the bytes that are queued before a flush."""


class Side(NamedTuple):
    """One of the two pipelines of a move."""

    broker: Broker
    topics: Topics
    bootstrap: str  # the address of a broker, for people

    @property
    def prefix(self) -> str:
        """The topics' prefix."""
        return self.topics.contexts.removesuffix("contexts")


class Desired(NamedTuple):
    """How the new pipeline differs from the old one; None means that it does not."""

    partitions: int | None = None
    model: str | None = None
    model_from: int | None = None
    seed: int | None = None
    replication: int | None = None


class MoveReport(NamedTuple):
    """The result of a move."""

    moved: Moved  # the new pipeline
    partitions: int  # of the old pipeline
    settings: TaskSettings  # of the new pipeline
    retained: int  # number of settled ids that are still remembered
    clock_shift_ms: int  # see `JournalStep`
    misplaced: int  # number of records in the old pipeline whose key belongs to a different partition


def move(
    old: Side,
    new: Side,
    group: str,
    desired: Desired,
    announce: Callable[[str], None] = lambda message: None,
) -> MoveReport | None:
    """Move a stopped pipeline; see the module. Return None if the move is already complete.

    Args:
        old: the pipeline to move.
        new: the new pipeline, whose topics are created if they do not exist.
        group: the old learners' consumer group.
        desired: how the new pipeline differs.
        announce: called with each progress message.

    Raises:
        MoveError: a learner runs, inputs are not applied, or the new topics are in use.
        ParameterError: the learner does not support the kind of model.
        JournalError: a task cannot be recovered.
        BrokerError: a broker is not available.
    """
    if (old.topics, old.bootstrap) == (new.topics, new.bootstrap):
        raise MoveError(f"--to-prefix {new.prefix}: expected another prefix or cluster; got those of the old pipeline")
    found = old.broker.describe_topics(old.topics.all_of(shares_model=True))
    partitions = found[old.topics.contexts].partitions
    requests = read_requests(old.broker, old.topics)
    other = requests.moved_to
    if other is not None and (other.prefix, other.bootstrap) != (new.prefix, new.bootstrap):
        raise MoveError(f"{old.topics.control}: the pipeline was moved to {other}; got a move to {new.prefix}*")
    if other is not None and _is_open(new):
        return None
    with _membership(old, group, partitions) as member:
        stopped, inputs, misplaced = _read(old, partitions, requests, group, announce, member.check)
        plan = Plan(
            desired.partitions or partitions,
            "shared" if (desired.model or stopped.settings.model) == "shared" else "own",
            stopped.settings.seed if desired.seed is None else desired.seed,
            desired.model_from,
        )
        placement = Placement(stopped, plan)
        moved = Moved(new.bootstrap, new.prefix, plan.partitions, stopped.balance)
        opening = _create(old, new, found, placement, plan, stopped, desired.replication)
        openings = _write_snapshots(new, placement, plan, opening, announce, member.check)
        if other is None:
            announce(f"stopping the pipeline {old.prefix}*")
            _end(old, member, inputs, moved, f"{group}-{MEMBER}", requests)
        _open(new, openings)
    if not _is_open(new):
        raise MoveError(f"{new.topics.journal}: the openings are missing; another program deleted them")
    retained = sum(len(ids) for task in stopped.tasks for ids in task.retained[:1])
    return MoveReport(moved, partitions, placement.settings, retained, opening.clock_shift_ms, misplaced)


class _Place:
    """The move's membership in the learners' group, as a listener. It ends if the group rebalances."""

    def __init__(self, old: Side, group: str, partitions: int) -> None:
        self._wanted = {
            TopicPartition(topic, partition)
            for topic in (old.topics.contexts, old.topics.feedback)
            for partition in range(partitions)
        }
        self._has_all = self._is_disturbed = False
        self._group = group
        topics = (old.topics.contexts, old.topics.feedback)
        self.member: Member = old.broker.group_consumer(group, MEMBER, topics, self, rejoins=False)
        for _ in range(JOIN_POLLS):
            self.member.poll(JOIN_POLL_MS, 1)
            if self._has_all:
                return
        raise MoveError(f"group {group}: expected all partitions; got {len(self.member.assignment())}. Run it again")

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener."""
        self.member.pause(tps)
        self._has_all = self._wanted <= tps

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener."""
        self._is_disturbed = self._has_all

    def check(self) -> None:
        """Keep the membership, and check that no other member has joined.

        Raises:
            MoveError: a learner has joined the group.
        """
        self.member.poll(0, 1)
        if self._is_disturbed:
            raise self.disturbed()

    def disturbed(self) -> MoveError:
        """Return the error for a learner that has joined the group."""
        return MoveError(f"group {self._group}: a learner has joined during the move. Stop it, and run the move again")


@contextmanager
def _membership(old: Side, group: str, partitions: int) -> Iterator[_Place]:
    """Join the learners' group, and leave it at the end.

    Raises:
        MoveError: a learner is a member of the group.
    """
    if learners := sorted(old.broker.members(group).keys() - {MEMBER}):
        raise MoveError(
            f"group {group}: expected no running learners; got {', '.join(learners)}. Stop them; a learner that was "
            "killed remains a member until its session times out"
        )
    place = _Place(old, group, partitions)
    with closing(place.member):
        yield place


def _read(
    old: Side,
    partitions: int,
    requests: Requests,
    group: str,
    announce: Callable[[str], None],
    check: Callable[[], None],
) -> tuple[Stopped, dict[TopicPartition, int], int]:
    """Return the pipeline's state, the offsets after its inputs, and the number of misplaced records."""
    broker, topics = old.broker, old.topics
    _check_ended(old, partitions)
    stored, control = pipeline_settings(broker, topics, partitions)
    if "seed" not in stored:
        raise NoStateError(f"{topics.journal}: expected a pipeline that has taken a step; found none")
    settings = requests.after(restored_settings(stored), control).settings.resolved()
    tasks: list[Snapshot] = []
    inputs: dict[TopicPartition, int] = {}
    misplaced = 0
    for partition in range(partitions):
        announce(f"reading the state of partition {partition} ({partition + 1} of {partitions})")
        begin = Changed(settings, requests.end)
        recovered = recover(
            broker, topics, partition, settings, lambda progress: check(), given=(), begin=begin, group=group
        )
        check()
        if waiting := differences(recovered.task.settings, settings):
            raise MoveError(
                f"partition {partition}: expected all requests in {topics.control} to be applied; got "
                f"{', '.join(waiting)} with an earlier value. Start a learner, and stop it when `onebit changes` "
                "reports the requests as applied"
            )
        _date(old, partition, recovered)
        inputs |= dict(zip(_inputs_of(topics, partition), recovered.step.read_to, strict=True))
        ledger = recovered.task.join.ledger()
        misplaced += ledger.contexts_misplaced + ledger.feedback_misplaced
        tasks.append(take(recovered.task, recovered.step))
    return Stopped(settings, tasks, _shared_model(old, settings, tasks)), inputs, misplaced


def _inputs_of(topics: Topics, partition: int) -> tuple[TopicPartition, TopicPartition]:
    return TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)


def _check_ended(old: Side, partitions: int) -> None:
    """Check that no transaction is open in the old topics: it could still be committed."""
    tps = [TopicPartition(topic, partition) for topic in old.topics for partition in range(partitions)]
    for tp, ends in old.broker.ends(tps).items():
        if ends.stable < ends.high_watermark:
            raise MoveError(
                f"{tp}: expected no open transaction; one begins at offset {ends.stable}. Run the move again when it "
                "has timed out"
            )


def _date(old: Side, partition: int, recovered: Recovered) -> None:
    """Set the decision times that a task's last ticks contain, and check that the task has applied all other records.

    Raises:
        MoveError: records are not applied.
    """
    task, step = recovered.task, recovered.step
    for tp, offset in zip(_inputs_of(old.topics, partition), step.read_to, strict=True):
        for record in read_partition(old.broker, tp, start=offset):
            if tp.topic == old.topics.contexts or not is_tick(record):
                raise MoveError(
                    f"{tp}: expected all records to be applied; got more from offset {record.offset} on. Let the "
                    "services use the new topics, and start a learner with the old ones until `onebit verify` reports "
                    "that none are left. The new topics can be created before the move: onebit topics create"
                )
            if (time := task.undated.pop(tick_step(record) or 0, None)) is not None:
                task.join.date(time, record.append_ms - step.clock_shift_ms)
    if task.undated:
        raise MoveError(f"{old.topics.feedback}/{partition}: the tick of step {min(task.undated)} is missing")


def _shared_model(old: Side, settings: TaskSettings, tasks: Sequence[Snapshot]) -> ModelSnapshot | None:
    """Return the shared model after all entries of its log, or None if each task has its own model."""
    if settings.model != "shared":
        return None
    replica = replica_at(old.broker, old.topics, settings)
    for partition, task in enumerate(tasks):
        logged = replica.place_of(partition).step
        check_log(old.broker, old.topics, partition, task.step, logged)
        if logged < task.step.wrote:
            raise MoveError(
                f"{old.topics.updates}: expected step {task.step.wrote} of partition {partition}; the last is {logged}"
            )
    return take_model(replica)


def _create(
    old: Side,
    new: Side,
    found: Mapping[str, TopicDescription],
    placement: Placement,
    plan: Plan,
    stopped: Stopped,
    replication: int | None,
) -> Opening:
    """Create the new topics and write the record of the move to them.

    Raises:
        MoveError: the topics contain another pipeline.
        TopicSettingsError: the topics exist with different settings.
    """
    broker, topics = new.broker, new.topics
    shares_model = placement.settings.model == "shared"
    copies = replication or found[old.topics.contexts].replication
    keep_ms = old.topics.keep_ms(found)
    broker.create_topics(topics.specs(plan.partitions, copies, keep_ms, shares_model=shares_model))
    _check_unused(new, plan.partitions, shares_model=shares_model)
    origin = Moved(old.bootstrap, old.prefix, len(stopped.tasks), stopped.balance)
    requests = read_requests(broker, topics)
    last = requests.moved_from
    if last is None or last.request is None or last.request.moved_from != origin:
        send(broker, topics, _record(requests, moved_from=origin))
        requests = read_requests(broker, topics)
        last = requests.moved_from
    assert last is not None
    behind_ms = last.append_ms - stopped.stream_ms
    shift_ms = behind_ms if behind_ms <= -STEP_MS else 0
    inputs = [_inputs_of(topics, partition) for partition in range(plan.partitions)]
    beginnings = broker.beginnings([tp for pair in inputs for tp in pair])
    waiting = {
        partition: first.append_ms - shift_ms
        for partition, (_, feedback) in enumerate(inputs)
        if (first := next(read_partition(broker, feedback, start=beginnings[feedback]), None)) is not None
    }
    offsets = [(beginnings[contexts], beginnings[feedback]) for contexts, feedback in inputs]
    return Opening(topics.feedback, offsets, requests.end, shift_ms, waiting)


def _check_unused(new: Side, partitions: int, *, shares_model: bool) -> None:
    """Check that the new topics contain no other pipeline's records. Contexts and feedback can wait in them."""
    broker, topics = new.broker, new.topics
    used = (topics.journal, topics.predictions, topics.examples, topics.dead_letter)
    tps = [TopicPartition(topic, partition) for topic in used for partition in range(partitions)]
    if shares_model:
        tps.append(TopicPartition(topics.updates, 0))
    beginnings = broker.beginnings(tps)
    for tp in tps:
        if next(read_partition(broker, tp, start=beginnings[tp]), None) is not None:
            raise MoveError(f"{tp}: expected no records; another pipeline uses these topics. Use a different prefix")
    for one in read_requests(broker, topics).all:
        if one.request is None or one.request.moved_from is None:
            raise MoveError(
                f"{topics.control}: expected no request; got one at offset {one.offset}. Use a different prefix"
            )


def _write_snapshots(
    new: Side,
    placement: Placement,
    plan: Plan,
    opening: Opening,
    announce: Callable[[str], None],
    check: Callable[[], None],
) -> list[JournalStep]:
    """Write the new tasks' opening snapshots, and the shared model. Return the opening steps."""
    if placement.settings.model == "shared":
        announce(f"writing the shared model to {new.topics.snapshots}")
        _write(new, None, MODEL_KEYS, IMPORT_SLOT, 0, placement.shared_model(opening), check)
    openings = []
    for partition in range(plan.partitions):
        announce(f"writing the state of partition {partition} ({partition + 1} of {plan.partitions})")
        snapshot = placement.task(partition, opening)
        _write(new, partition, str(partition), OPENING_SLOT, snapshot.step.number, snapshot, check)
        openings.append(snapshot.step)
    return openings


def _write(
    new: Side,
    partition: int | None,
    keys: str,
    slot: str,
    number: int,
    snapshot: Snapshot | ModelSnapshot,
    check: Callable[[], None],
) -> None:
    """Write a snapshot in one transaction, in place of that of an earlier attempt."""
    broker, topics = new.broker, new.topics
    before = read_snapshots(broker, topics, partition)
    writer = ChunkWriter(number, encode(snapshot), keys, slot, before.chunks_in(slot))
    with closing(broker.transactional_producer(f"{new.prefix}{MEMBER}")) as producer:
        producer.begin()
        while not writer.done:
            for key, value in writer.portion(BYTES_MAX):
                home = MODEL_PARTITION if partition is None else partition
                producer.send(topics.snapshots, home, key, value, codec.HEADERS)
            producer.flush()
            check()
        producer.commit()


def _end(
    old: Side,
    place: _Place,
    inputs: Mapping[TopicPartition, int],
    moved: Moved,
    transactional_id: str,
    requests: Requests,
) -> None:
    """Write the record of the move to the old control topic, if no learner has joined the group.

    Raises:
        MoveError: a learner has joined.
    """
    request = _record(requests, moved_to=moved)
    with closing(old.broker.transactional_producer(transactional_id)) as producer:
        place.check()
        producer.begin(place.member.check_place)
        producer.send(old.topics.control, 0, request.id.encode(), encode_request(request), codec.HEADERS)
        producer.flush()
        try:
            producer.send_offsets(inputs, place.member)
        except StaleMemberError as error:
            raise place.disturbed() from error
        producer.commit()


def _open(new: Side, openings: Sequence[JournalStep]) -> None:
    """Write all opening steps in one transaction."""
    with closing(new.broker.transactional_producer(f"{new.prefix}{MEMBER}")) as producer:
        producer.begin()
        for partition, step in enumerate(openings):
            producer.send(new.topics.journal, partition, None, encode_step(step), journal.HEADERS)
        producer.flush()
        producer.commit()


def _is_open(new: Side) -> bool:
    """Return whether the new pipeline's tasks have their opening steps, which one transaction has written."""
    found = new.broker.describe_topics([new.topics.journal])
    if new.topics.journal not in found:
        return False
    journals = [TopicPartition(new.topics.journal, each) for each in range(found[new.topics.journal].partitions)]
    return bool(last_steps(new.broker, journals))


def _record(requests: Requests, *, moved_to: Moved | None = None, moved_from: Moved | None = None) -> Request:
    """Return the record of a move. Its id differs from those of all requests before it."""
    unnamed = Request("", user(), {}, moved_to, moved_from)
    digest = sha256(encode_request(unnamed) + str(requests.end).encode()).hexdigest()
    return Request(digest[:16], unnamed.by, {}, moved_to, moved_from)
