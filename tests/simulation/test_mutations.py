"""The checker can fail: every one of these mistakes is caught within 2,000 seeds.

Each mutation breaks one thing that the pipeline rests on, in the code that runs; the simulation must notice. What it
says then need not name the mistake, but some claim must no longer hold.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from consumers import learner as learner_module
from consumers import snapshots as snapshots_module
from consumers import starting as starting_module
from consumers.input_ends import InputEnds
from consumers.learner import LearnerProgram
from consumers.starting import Starting
from stream.brokers.embedded import EmbeddedBroker
from stream.brokers.port import Ends
from stream.cli.simulate import make_learner
from stream.joining import decoding, plain_rows
from stream.joining import task as task_module
from stream.joining.join import COUNTED, TRANSITIONS, Input, Join, Move, State
from stream.joining.play import Played, play_match
from stream.joining.task import Task
from stream.joining.task_settings import Sharing
from stream.recovery import commit as commit_module
from stream.recovery import recover as recover_module
from stream.recovery import snapshot as snapshot_module
from stream.recovery.broker_time import BrokerTime
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.journal import JournalStep
from stream.sharing import replica as replica_module
from stream.sharing.replica import Replica
from stream.sharing.view import Overlay, View
from stream.simulation.campaign import run_seed
from stream.simulation.faulty_broker import FaultyBroker
from stream.simulation.schedule import Kind, Schedule, draw_schedule
from stream.wire import codec
from stream.wire.events import Decision, Logged, Target
from stream.wire.records import TopicPartition
from stream.wire.updates import DECIDED, Entry, decode_update, joined

SEEDS_MAX = 2_000


class Mutation(NamedTuple):
    """A mistake, and how it is put into the code for a while."""

    name: str
    make: Callable[[], AbstractContextManager[Any]]
    shows_in: Callable[[Schedule], bool] | None = None  # runs that may notice it, and come first; None: all alike
    model: Sharing = "own"


def replaced(
    name: str, owner: Any, attribute: str, change: Any, shows_in: Callable[[Schedule], bool] | None = None
) -> Mutation:
    return Mutation(name, lambda: patch.object(owner, attribute, change), shows_in)


def table(name: str, row: tuple[State, Input], outcome: tuple[Move, State]) -> Mutation:
    return Mutation(name, lambda: patch.dict(TRANSITIONS, {row: outcome}))


class Skipping:
    """A producer that leaves out the work of one commit step."""

    def __init__(self, producer: Any, topics: Any, step: int) -> None:
        self._producer, self._topics, self._step = producer, topics, step

    def begin(self) -> None:
        if self._step != 1:
            self._producer.begin()

    def send(self, topic: str, *rest: Any) -> None:
        topics = self._topics
        left_out = {2: (topics.predictions, topics.examples, topics.dead_letter), 3: (topics.journal,)}
        if topic not in left_out.get(self._step, ()):
            self._producer.send(topic, *rest)

    def flush(self) -> Any:
        return {} if self._step == 4 else self._producer.flush()

    def send_offsets(self, *arguments: Any) -> None:
        if self._step != 6:
            self._producer.send_offsets(*arguments)

    def abort(self) -> None:
        self._producer.abort()

    def commit(self) -> int:
        if self._step == 7:
            self._producer.abort()
            return 1_000
        return int(self._producer.commit())


def commit_without_step(step: int) -> Mutation:
    def commit(producer: Any, consumer: Any, topics: Any, commits: Any, *rest: Any) -> int:
        skipping: Any = Skipping(producer, topics, step)
        return commit_module.commit(skipping, consumer, topics, commits, *rest)

    return replaced(f"commit step {step} is skipped", learner_module, "commit", commit)


def sends_offsets_first(producer: Any, consumer: Any, topics: Any, commits: Any, *rest: Any) -> int:
    """Commit steps 6 and 2 to 4 in the wrong order."""

    class Early(Skipping):
        def begin(self) -> None:
            self._producer.begin()
            offsets = {}
            for part in commits:
                offsets[TopicPartition(topics.contexts, part.partition)] = part.step.contexts[1]
                offsets[TopicPartition(topics.feedback, part.partition)] = part.step.feedback[1]
            self._producer.send_offsets(offsets, consumer)

    early: Any = Early(producer, topics, 6)
    return commit_module.commit(early, consumer, topics, commits, *rest)


def predictions_outside(producer: Any, consumer: Any, topics: Any, commits: Any, *rest: Any) -> int:
    """Predictions are sent by a producer of their own, not in the transaction."""
    plain = consumer._broker.broker.producer()

    class Outside(Skipping):
        def send(self, topic: str, *rest: Any) -> None:
            (plain if topic == topics.predictions else self._producer).send(topic, *rest)

    outside: Any = Outside(producer, topics, 0)
    return commit_module.commit(outside, consumer, topics, commits, *rest)


def ignores_actions(record: Any, *arguments: Any, **named: Any) -> Any:
    return _decode_feedback(record, *arguments, **named)._replace(action=None)


def counted(name: str, move: Move, counts: tuple[str, ...]) -> Mutation:
    return Mutation(name, lambda: patch.dict(COUNTED, {move: counts}))


def learns_twice(self: Task, settled: Any, effects: Any, *rest: Any, original: Any = Task._learn) -> None:
    original(self, settled, effects, *rest)
    if settled.feedback is not None:
        self.updates += self.learner.update(
            settled.pending.x, settled.pending.decision, settled.feedback.reward, 0.0, settled.feedback.label
        )


def unfenced() -> Any:
    """Every producer has an id of its own."""
    numbers = count()
    original = FaultyBroker.transactional_producer

    def unique(self: FaultyBroker, transactional_id: str) -> Any:
        return original(self, f"{transactional_id}-{next(numbers)}")

    return unique


@contextmanager
def no_fences() -> Iterator[None]:
    """Every producer has an id of its own, and any member may commit."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(FaultyBroker, "transactional_producer", unfenced()))
        stack.enter_context(patch.object(EmbeddedBroker, "check_member", lambda self, consumer: consumer.group))
        yield


@contextmanager
def dates_by_the_last_commit() -> Iterator[None]:
    """It neither asks nor looks at the append times: what was known last is taken for the time."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(BrokerTime, "accepts", lambda self, *rest: True))
        stack.enter_context(patch.object(BrokerTime, "may_be_old", lambda self: not self.is_known))
        yield


def passes_time_at_contexts(self: Task, record: Any, context: Any, now_ms: int, effects: Any) -> str | None:
    self._pass_time(record.append_ms, effects)
    return _apply_context(self, record, context, now_ms, effects)


def reads_the_row_of_the_next(texts: Any, n_features: int) -> Any:
    rows = _read_indices(texts, n_features)
    return rows[1:] + rows[:1]


_apply_context = Task._apply_context
_read_indices = plain_rows.read_indices
_merge = task_module.merge
_decode_feedback = codec.decode_feedback


def expires_by_the_host(self: Join, watermark_ms: int, original: Any = Join.pass_time) -> Any:
    """The watermark runs ahead: as a clock of the learner's host that is 5 ms ahead of the broker's."""
    return original(self, watermark_ms + 5)


def takes_what_is_there(contexts: Any, feedback: Any, **arguments: Any) -> Any:
    return _merge(contexts, feedback, **(arguments | {"contexts_ended": lambda: True, "feedback_ended": lambda: True}))


def feedback_is_always_read_to_its_end(
    self: InputEnds, tp: TopicPartition, original: Any = InputEnds.is_all_read
) -> bool:
    return tp.topic.endswith("feedback") or original(self, tp)


def ends_without_open_transactions(
    self: FaultyBroker, tps: Sequence[Any], original: Any = FaultyBroker.ends
) -> dict[Any, Ends]:
    return {tp: Ends(end.stable, end.stable) for tp, end in original(self, tps).items()}


def starts_as_if_it_knew_the_time(self: LearnerProgram, *arguments: Any, original: Any = LearnerProgram._start) -> None:
    original(self, *arguments)
    self._time.is_known = True


def recovers_without(attribute: str) -> Mutation:
    original = recover_module.recover

    def recover(*arguments: Any, **named: Any) -> Any:
        recovered = original(*arguments, **named)
        getattr(recovered.task.join, attribute).clear()
        return recovered

    return replaced(f"recovery forgets the {attribute}", starting_module, "recover", recover)


def recovers_from_the_end(*arguments: Any, original: Any = recover_module.recover, **named: Any) -> Any:
    """The offsets of before the last record are taken."""
    recovered = original(*arguments, **named)
    return recovered._replace(contexts_offset=max(0, recovered.contexts_offset - 1))


def snapshot_without(attribute: str) -> Mutation:
    def take(*arguments: Any) -> Any:
        changes: dict[str, Any] = {attribute: ([], [])}
        return snapshot_module.take(*arguments)._replace(**changes)

    return replaced(f"snapshots leave out the {attribute}", snapshots_module, "take", take)


def snapshot_of_the_next_step(*arguments: Any) -> Any:
    taken = snapshot_module.take(*arguments)
    return taken._replace(position=taken.position._replace(number=taken.position.number + 1))


def snapshot_that_shares_the_model(task: Task, position: Any, spare: Any = None) -> Any:
    """What is written later is the model as it is then."""
    return snapshot_module.take(task, position)._replace(learner=vars(task.learner)["arrays"])


def writes_snapshots_bit_by_bit(schedule: Schedule) -> bool:
    """So that the model goes on while its snapshot is written."""
    return (
        schedule.snapshot_interval_ms > 0 and schedule.snapshot_bytes_max == 1 and schedule.snapshot_chunk_bytes < 1_000
    )


def plays_its_own(learner: Any, x: Any, own: Decision, logged: Logged, propensity_min: float) -> Played:
    return Played(own, Target(own.action, own.propensity))


def matches_whatever_was_drawn(own: Decision, logged: Logged, propensity_min: float, u: float) -> Played:
    return play_match(own, logged, propensity_min, 0.0)


def shared(
    name: str, owner: Any, attribute: str, change: Any, shows_in: Callable[[Schedule], bool] | None = None
) -> Mutation:
    return Mutation(name, lambda: patch.object(owner, attribute, change), shows_in, "shared")


def has_a_log_that_lags(schedule: Schedule) -> bool:
    return any(item.kind is Kind.LAG or item.call == "updates" for item in schedule.items)


def keeps_those_in_the_log(self: View) -> None:
    """What the model has observed is observed once more, on top of it."""
    self._first = self._replica.place_of(self._partition).decided


def forgets_its_own(self: View) -> None:
    """A step knows of its own decisions, and not of those of the steps before."""
    self._own.clear()


def observes_for_all_alone(self: View, x: Any, decision: Decision) -> None:
    """A decision goes to the log, and the task itself hears of it only from there."""
    if self._observes:
        self._entries.append(Entry(DECIDED, x, decision))


def passes_over_one_task(self: Replica, records: Sequence[Any], original: Any = Replica.read) -> int:
    """What task 0 wrote is passed over."""
    ours = [record for record in records if (update := decode_update(record)) is None or update.partition != 0]
    return int(original(self, ours))


def joins_as_it_comes(parts: Sequence[Any]) -> Any:
    """What comes last of what is read at once is taken in first."""
    return joined(parts[::-1])


def goes_on_with_what_is_read(
    self: Starting, partition: int, recovered: Any, recovering: Any, original: Any = Starting._has_read_its_log
) -> bool:
    original(self, partition, recovered, recovering)
    return True


def journal_without_version(*arguments: Any) -> JournalStep:
    return JournalStep(*arguments)._replace(updates=0)


def journal_without_offset(*arguments: Any, original: Any = learner_module._log_step) -> Any:
    step = original(*arguments)
    return None if step is None else step._replace(offset=0)


MUTATIONS = [
    *(commit_without_step(step) for step in COMMIT_STEPS if step != 5),
    replaced("commit step 5 is skipped", BrokerTime, "accepts", lambda self, *rest: True),
    replaced("decides without asking for the time", BrokerTime, "may_be_old", lambda self: not self.is_known),
    Mutation("dates by the last commit, whatever passed since", dates_by_the_last_commit),
    replaced("offsets are sent before the records", learner_module, "commit", sends_offsets_first),
    replaced("predictions outside of the transaction", learner_module, "commit", predictions_outside),
    table("dedup of contexts forgotten: pending", (State.PENDING, Input.CONTEXT), (Move.DECIDE, State.PENDING)),
    table("dedup of contexts forgotten: matched", (State.MATCHED, Input.CONTEXT), (Move.DECIDE, State.PENDING)),
    table("dedup of contexts forgotten: expired", (State.EXPIRED, Input.CONTEXT), (Move.DECIDE, State.PENDING)),
    table("dedup of feedback forgotten", (State.MATCHED, Input.FEEDBACK), (Move.KEEP_ORPHAN, State.ORPHAN)),
    table(
        "late feedback taken for a duplicate",
        (State.EXPIRED, Input.FEEDBACK),
        (Move.IGNORE_FEEDBACK, State.EXPIRED),
    ),
    table("feedback of another action matched", (State.PENDING, Input.MISMATCH), (Move.MATCH, State.MATCHED)),
    table("orphan of another action matched", (State.ORPHAN, Input.MISMATCH), (Move.DECIDE_AND_MATCH, State.MATCHED)),
    table("unmatched decisions wait", (State.UNSEEN, Input.ASIDE), (Move.DECIDE, State.PENDING)),
    table("feedback of unmatched refused", (State.UNMATCHED, Input.MISMATCH), (Move.REFUSE, State.UNMATCHED)),
    replaced("contexts decoded together get each other's rows", decoding, "read_indices", reads_the_row_of_the_next),
    replaced("logged actions are not played", task_module, "play_logged", plays_its_own),
    replaced("logs that were not uniform taken for uniform", task_module, "play_match", matches_whatever_was_drawn),
    replaced("propensities without a floor", Task, "_taught", lambda self, decision: decision),
    replaced("actions of feedback ignored", task_module, "decode_feedback", ignores_actions),
    counted("duplicate contexts counted twice", Move.IGNORE_CONTEXT, ("context_duplicates",) * 2),
    counted("matches counted twice", Move.MATCH, ("matched", "matched")),
    replaced("feedback learned twice", Task, "_learn", learns_twice),
    Mutation("fences dropped", no_fences),
    replaced("open transactions not waited for", Starting, "is_held_up", lambda self, partition: False),
    replaced("expiry by the contexts' clock", Task, "_apply_context", passes_time_at_contexts),
    replaced("expiry by a host's clock", Join, "pass_time", expires_by_the_host),
    replaced("expiry before feedback is read", InputEnds, "is_all_read", feedback_is_always_read_to_its_end),
    replaced("expiry while a transaction is open", FaultyBroker, "ends", ends_without_open_transactions),
    replaced("inputs merged as they come", learner_module, "merge", takes_what_is_there),
    replaced("decides before it knows the time", LearnerProgram, "_start", starts_as_if_it_knew_the_time),
    recovers_without("pending"),
    recovers_without("orphans"),
    recovers_without("retained"),
    replaced("recovery one context too early", starting_module, "recover", recovers_from_the_end),
    snapshot_without("pending"),
    snapshot_without("orphans"),
    snapshot_without("retained"),
    replaced("snapshots share the model", snapshots_module, "take", snapshot_that_shares_the_model,
             shows_in=writes_snapshots_bit_by_bit),
    replaced("snapshots named by the next step", snapshots_module, "take", snapshot_of_the_next_step),
    replaced("members commit whatever the group says", EmbeddedBroker, "check_member", lambda self, who: who.group),
    Mutation(
        "zombies not fenced by their transactional id",
        lambda: patch.object(FaultyBroker, "transactional_producer", unfenced()),
    ),
    shared("own entries applied twice", View, "_forget_those_in_the_log", keeps_those_in_the_log),
    shared("own entries not applied", View, "_forget_those_in_the_log", forgets_its_own),
    shared("entries of a task not applied", Replica, "read", passes_over_one_task),
    shared("overlay forgotten", View, "observe", observes_for_all_alone),
    shared("overlay left on the model", Overlay, "take_off", lambda self: None),
    shared("order by arrival", replica_module, "joined", joins_as_it_comes),
    shared("version not journaled", learner_module, "JournalStep", journal_without_version),
    shared("offset of the log not journaled", learner_module, "_log_step", journal_without_offset),
    shared("goes on before its log is read", Starting, "_has_read_its_log", goes_on_with_what_is_read,
           shows_in=has_a_log_that_lags),
]  # fmt: skip


def caught_by(mutation: Mutation, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """The first seed that catches a mutation, and what it says."""
    seeds: Sequence[int] = range(seeds_max)
    if (shows_in := mutation.shows_in) is not None:
        seeds = sorted(seeds, key=lambda seed: not shows_in(draw_schedule(seed, model=mutation.model)))
    with mutation.make():
        for seed in seeds:
            wrong = run_seed(make_learner, seed, model=mutation.model).wrong
            if wrong:
                return seed, wrong[0]
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mistake_is_caught(mutation: Mutation) -> None:
    caught = caught_by(mutation)
    assert caught is not None
    assert not caught[1].startswith(("TypeError", "AttributeError", "NameError"))  # of the mutation itself
