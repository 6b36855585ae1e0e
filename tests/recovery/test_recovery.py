"""Recovery with snapshots gives exactly the same state as recovery without them, no matter when a learner dies."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.recovery import SLICE_MS
from stream.kafka.embedded import VirtualClock
from stream.kafka.port import FencedError
from stream.recovery.chunks import Stored
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.recover import Callbacks, ReplayProgress, rebuild, recover
from stream.recovery.state import task_digest
from stream.recovery.steps import JournalStep, MissingRecordsError, UnrecoverableError, decode_step
from stream.task.settings import TaskSettings
from stream.task.task import Task
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import partition_for
from tests.pipeline import (
    TOPICS,
    CrashError,
    CrashingLearner,
    Pipeline,
    context_value,
    plan,
    run_until_idle,
    small_synsep,
    small_task,
    synsep_task,
)

EVENTS = 120
CONTEXTS, FEEDBACK, JOURNAL, SNAPSHOTS = (
    TopicPartition(topic, 0) for topic in (TOPICS.contexts, TOPICS.feedback, TOPICS.journal, TOPICS.snapshots)
)


def with_frequent_snapshots(pipeline: Pipeline, **options: Any) -> Callable[[Callable[[int], None]], LearnerProgram]:
    """Return a factory for learners that write a snapshot every 20 ms, one chunk at a time."""
    options = {"snapshot_interval_ms": 20, "snapshot_bytes_max": 1, **options}
    return lambda crash_point: pipeline.learner(crash_point=crash_point, **options)


def whole_run(pipeline: Pipeline, crashes: set[tuple[int, int]], **options: Any) -> CrashingLearner:
    dataset = small_synsep()
    learner = CrashingLearner(with_frequent_snapshots(pipeline, **options), crashes)
    sources = (
        pipeline.replay(dataset, EVENTS),
        pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1, duplicates=0.1)),
    )
    pipeline.run(sources, learner)
    return learner


def digests(task: Task) -> tuple[str, Ledger]:
    return task_digest(task), task.join.ledger()


@pytest.fixture(scope="module")
def faultless() -> tuple[str, Ledger]:
    pipeline = Pipeline(synsep_task())
    learner = whole_run(pipeline, set(), snapshot_interval_ms=0)
    assert pipeline.records(TOPICS.snapshots) == []
    assert pipeline.ledger().late > 0
    assert pipeline.ledger().feedback_duplicates > 0
    return digests(learner.program.tasks[0])


@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("learner", ["soba", "kwik-banditron", "halving", "stack-igw"])
def test_recovery_with_and_without_snapshots_is_identical_bit_for_bit(learner: str, scale: str) -> None:
    pipeline = Pipeline(small_task(learner, scale=scale))
    program = pipeline.learner(snapshot_interval_ms=50, snapshot_bytes_max=1)
    for number in range(60):
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"event-{number}", number % 4)
        if number % 6:
            pipeline.answer(f"event-{number - 2}", number % 2)
        pipeline.answer(f"event-{number + 4}", 1)
        run_until_idle(program)
    last = pipeline.journal()[-1]
    assert len(pipeline.generations()) > 5
    before = pipeline.ends()
    recovered = recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    alone = rebuild(pipeline.broker, TOPICS, 0, snapshots=False)
    assert digests(recovered.task) == digests(alone.task) == digests(program.tasks[0])
    assert recovered.step == alone.step == last
    assert pipeline.ends() == before


CHUNKS = 7


def large_task() -> TaskSettings:
    """Full SOBA with 600 weights. The learner's state is 3.2 MB in size, and is split into seven chunks."""
    return TaskSettings("soba", 3, 200)


def test_large_snapshot_is_written_over_many_steps_and_completed_while_idle() -> None:
    pipeline = Pipeline(large_task())
    program = pipeline.learner(snapshot_interval_ms=50, snapshot_bytes_max=1)
    shares = []
    for number in range(12):
        pipeline.context(f"event-{number}", number, 50 + number)
        pipeline.answer(f"event-{number}", 1)
        pipeline.clock.advance_to(pipeline.now_ms() + 30)
        program.step(0)
        shares.append(len(pipeline.records(TOPICS.snapshots)))
    assert max(after - before for before, after in pairwise(shares)) == 1
    assert pipeline.generations() != []
    run_until_idle(program)
    written = len(pipeline.records(TOPICS.snapshots))
    pipeline.clock.advance_to(pipeline.now_ms() + 1_000)
    run_until_idle(program)
    last = pipeline.generations()[-1]
    assert (written - shares[-1], len(pipeline.records(TOPICS.snapshots))) != (0, 0)
    steps: list[ReplayProgress] = []
    recovered = rebuild(pipeline.broker, TOPICS, 0, callbacks=Callbacks(steps.append))
    assert steps[0].first == last + 1
    assert digests(recovered.task) == digests(program.tasks[0])


@pytest.mark.parametrize("number", COMMIT_STEPS)
@pytest.mark.parametrize("nth", [1, 2, 41, 42])  # the first commit precedes any snapshot
def test_learner_that_dies_in_a_commit_with_a_snapshot_recovers_exactly(
    nth: int, number: int, faultless: tuple[str, Ledger]
) -> None:
    pipeline = Pipeline(synsep_task())
    learner = whole_run(pipeline, {(nth, number)})
    assert learner.crashed == 1
    assert len(pipeline.generations()) > 3
    assert digests(learner.program.tasks[0]) == faultless
    assert digests(rebuild(pipeline.broker, TOPICS, 0, snapshots=False).task) == faultless
    (audited,) = pipeline.audits()
    assert audited.ok, audited
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)] == [c["id"] for c in pipeline.values(TOPICS.contexts)]


@pytest.mark.parametrize("snapshot_interval_ms", [0, 20])
def test_repeatedly_dying_learner_recovers_with_and_without_snapshots(
    snapshot_interval_ms: int, faultless: tuple[str, Ledger]
) -> None:
    pipeline = Pipeline(synsep_task())
    crashes = {(nth, 1 + nth % len(COMMIT_STEPS)) for nth in range(1, 100, 7)}
    learner = whole_run(pipeline, crashes, snapshot_interval_ms=snapshot_interval_ms)
    assert learner.crashed > 10
    assert digests(learner.program.tasks[0]) == faultless
    assert pipeline.audits()[0].ok


@pytest.mark.parametrize("number", COMMIT_STEPS)
@pytest.mark.parametrize("chunk", [0, 3, CHUNKS - 1])
def test_learner_that_dies_after_each_step_of_writing_a_large_snapshot_recovers(chunk: int, number: int) -> None:
    pipeline = Pipeline(large_task())
    is_committed = number == COMMIT_STEPS[-1]
    chunks_after = chunk + is_committed

    def crash(reached: int) -> None:
        is_writing = pipeline.now_ms() > 1_000
        if is_writing and reached == number and len(pipeline.records(TOPICS.snapshots)) == chunks_after:
            raise CrashError

    program = pipeline.learner(crash_point=crash, snapshot_interval_ms=50, snapshot_bytes_max=1)
    pipeline.context("first", 1, 70)
    run_until_idle(program)
    pipeline.clock.advance_to(pipeline.now_ms() + 60)
    pipeline.context("second", 2, 80)
    pipeline.answer("first", 1)
    with pytest.raises(CrashError):
        run_until_idle(program)
    assert len(pipeline.generations()) == (1 if chunks_after == CHUNKS else 0)
    again = pipeline.learner(snapshot_interval_ms=50)
    run_until_idle(again)
    pipeline.answer("second", 1)
    run_until_idle(again)
    alone = rebuild(pipeline.broker, TOPICS, 0, snapshots=False)
    assert digests(alone.task) == digests(again.tasks[0])
    assert again.tasks[0].join.ledger() == Ledger(contexts=2, decided=2, feedback=2, matched=2)


def many_snapshots() -> tuple[Pipeline, LearnerProgram]:
    pipeline = Pipeline(synsep_task())
    learner = whole_run(pipeline, set())
    return pipeline, learner.program


def corrupt(pipeline: Pipeline, *numbers: int) -> None:
    """Change a byte in each chunk of the given generations."""
    log = pipeline.broker.log(SNAPSHOTS)
    for index, record in enumerate(log.records):
        if any(b'"generation":%d,' % number in (record.value or b"")[:100] for number in numbers):
            value = bytearray(record.value or b"")
            value[-10] ^= 1
            log.records[index] = record._replace(value=bytes(value))


def test_recovery_uses_the_previous_snapshot_if_the_newest_is_incomplete() -> None:
    pipeline, program = many_snapshots()
    before = pipeline.generations()
    corrupt(pipeline, before[-1])
    assert pipeline.generations() == before[:-1]
    steps: list[ReplayProgress] = []
    recovered = rebuild(pipeline.broker, TOPICS, 0, callbacks=Callbacks(steps.append))
    assert steps[0].first == before[-2] + 1
    assert digests(recovered.task) == digests(program.tasks[0])


def keep_only_the_first_snapshot(pipeline: Pipeline) -> None:
    corrupt(pipeline, *pipeline.generations()[1:])


def delete_to_the_last_record(topic: str) -> Callable[[Pipeline], None]:
    """Return a fault that deletes a topic's records up to the last one, and all snapshots except the first."""
    tp = TopicPartition(topic, 0)

    def delete(pipeline: Pipeline) -> None:
        keep_only_the_first_snapshot(pipeline)
        pipeline.broker.delete_records(tp, pipeline.ends()[tp] - 1)

    return delete


def delete_unapplied_contexts(pipeline: Pipeline) -> None:
    for number in range(5):
        pipeline.send(TOPICS.contexts, context_value(f"new-{number}"))
    pipeline.broker.delete_records(CONTEXTS, EVENTS + 2)


def recreate_the_journal(pipeline: Pipeline, steps: int = 0) -> None:
    records = pipeline.records(TOPICS.journal)[:steps]
    pipeline.broker.delete_topics([TOPICS.journal])
    pipeline.broker.create_topics(TOPICS.specs(1))
    for record in records:
        pipeline.broker.producer().send(TOPICS.journal, 0, None, record.value, record.headers)


def needed_after(nth: int, topic: str) -> Callable[[Pipeline], int]:
    """Return a function that computes the first record or step that is needed after the nth snapshot."""

    def needed(pipeline: Pipeline) -> int:
        number = pipeline.generations()[nth]
        return number + 1 if topic == TOPICS.journal else pipeline.journal()[number - 1].feedback[1]

    return needed


@pytest.mark.parametrize(
    ("damage", "tp", "needed", "is_deleted"),
    [
        (delete_to_the_last_record(TOPICS.journal), JOURNAL, needed_after(0, TOPICS.journal), True),
        (delete_to_the_last_record(TOPICS.feedback), FEEDBACK, needed_after(0, TOPICS.feedback), True),
        (delete_unapplied_contexts, CONTEXTS, lambda pipeline: EVENTS, True),
        (recreate_the_journal, JOURNAL, needed_after(-1, TOPICS.journal), False),
    ],
    ids=["journal", "feedback", "unapplied contexts", "recreated journal"],
)  # fmt: skip
def test_recovery_is_rejected_if_records_after_the_snapshot_are_deleted(
    damage: Callable[[Pipeline], None], tp: TopicPartition, needed: Callable[[Pipeline], int], is_deleted: bool
) -> None:
    pipeline, program = many_snapshots()
    program.close()
    expected = needed(pipeline)
    damage(pipeline)
    ends = pipeline.ends()
    with pytest.raises(MissingRecordsError) as raised:
        run_until_idle(pipeline.learner())
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (tp, expected, is_deleted)
    assert pipeline.ends() == ends


def test_state_at_an_earlier_step_equals_a_run_that_stopped_there() -> None:
    pipeline, _ = many_snapshots()
    last = pipeline.journal()[-1].number
    stored = pipeline.generations()
    task, alone = None, rebuild(pipeline.broker, TOPICS, 0, until=1, snapshots=False)
    assert alone.step.number == 1
    for number in (1, stored[0], stored[2] - 1, stored[2], stored[2] + 1, last):
        task = rebuild(pipeline.broker, TOPICS, 0, until=number)
        alone = rebuild(pipeline.broker, TOPICS, 0, until=number, snapshots=False)
        assert task.step == alone.step
        assert digests(task.task) == digests(alone.task)
        assert task.task.join.ledger() == pipeline.journal()[number - 1].ledger


def test_moved_tasks_recover_from_their_snapshots() -> None:
    pipeline = Pipeline(small_task("soba-diag"), partitions=3)
    options: dict[str, Any] = {"snapshot_interval_ms": 20, "snapshot_bytes_max": 1}
    first = pipeline.learner("learner-1", **options)
    moved = 0
    for number in range(60):
        if number == 15:
            second = pipeline.learner("learner-2", **options)
        if number == 30:
            pipeline.broker.expel("onebit-learner", "learner-1")
            with pytest.raises(FencedError):
                first.step(0)
            first = pipeline.learner("learner-1", **options)
        if number == 45:
            second.close()
            moved = len(first.tasks)
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"event-{number}", number % 4)
        pipeline.answer(f"event-{number}", number % 2)
        run_until_idle(*((first, second) if 15 <= number < 45 else (first,)))
    assert moved < 3
    assert sorted(first.tasks) == [0, 1, 2]
    for partition, task in first.tasks.items():
        assert len(pipeline.generations(partition)) > 3
        assert digests(rebuild(pipeline.broker, TOPICS, partition, snapshots=False).task) == digests(task)
    assert all(finding.ok for finding in pipeline.audits())
    assert pipeline.ledger().matched == 60


def test_applied_records_can_be_deleted_after_the_snapshot_of_an_idle_task() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=60_000)
    for number in range(6):
        pipeline.context(f"event-{number}")
        pipeline.answer(f"event-{number}", 1)
    run_until_idle(learner)
    for _ in range(3):
        pipeline.clock.advance_to(pipeline.now_ms() + 60_000)
        run_until_idle(learner)
    state, ends = digests(learner.tasks[0]), pipeline.ends()
    for _ in range(3):  # without any new records
        pipeline.clock.advance_to(pipeline.now_ms() + 60_000)
        run_until_idle(learner)
    assert pipeline.ends() == ends, "an idle task writes one snapshot"
    learner.close()
    for topic in TOPICS.of_events():
        tp = TopicPartition(topic, 0)
        pipeline.broker.delete_records(tp, pipeline.broker.ends([tp])[tp].stable)
    number, journal_offset = snapshot_position(pipeline)
    assert number == pipeline.journal()[-1].number
    pipeline.broker.delete_records(JOURNAL, journal_offset)
    again = pipeline.learner(snapshot_interval_ms=60_000)
    run_until_idle(again)
    assert digests(again.tasks[0]) == state


def test_old_generations_are_overwritten_and_surplus_chunks_deleted() -> None:
    pipeline, _ = many_snapshots()
    records = pipeline.records(TOPICS.snapshots)
    kept = {record.key: record for record in records}  # simulates compaction
    assert len(kept) <= 4 < len(pipeline.generations()) // 2
    found = Stored("0")
    for record in sorted(kept.values(), key=lambda record: record.offset):
        found.add(record)
    assert found.newest is not None
    assert found.newest.number == pipeline.generations()[-1]


def test_recovery_reports_its_progress() -> None:
    pipeline, program = many_snapshots()
    program.close()
    reported: list[str] = []
    pipeline.learner(announce=reported.append).step(0)
    newest = pipeline.generations()[-1]
    last = pipeline.journal()[-1].number
    assert reported[0] == f"recovering partition 0: step {newest:,} (steps {newest + 1:,} to {last:,})"
    assert reported[-1] == f"recovering partition 0: step {last:,} (steps {newest + 1:,} to {last:,})"


@pytest.mark.parametrize("comes_back", [True, False])
def test_task_revoked_during_recovery_is_recovered_only_if_reassigned(comes_back: bool) -> None:
    pipeline, program = many_snapshots()
    program.close()
    keep_only_the_first_snapshot(pipeline)
    learner = recover_slowly(pipeline, "learner-2", snapshot_interval_ms=0)
    other = pipeline.learner("learner-1", snapshot_interval_ms=0)
    learner.step(0)
    pipeline.context("meanwhile", 1)
    run_until_idle(other)
    if comes_back:
        other.close()
    run_until_idle(learner)
    assert pipeline.values(TOPICS.contexts)[-1]["id"] == "meanwhile"
    assert pipeline.values(TOPICS.predictions)[-1]["id"] == "meanwhile"
    assert list(learner.tasks) == ([0] if comes_back else [])
    running = learner if comes_back else other
    assert digests(rebuild(pipeline.broker, TOPICS, 0).task) == digests(running.tasks[0])
    assert pipeline.audits()[0].ok


def recover_slowly(pipeline: Pipeline, instance: str, **options: Any) -> LearnerProgram:
    """Return a learner that has begun to reapply steps. Each of its steps executes only one part of a recovery."""
    messages: list[str] = []
    learners: list[LearnerProgram] = []
    clock = VirtualClock(pipeline.now_ms())

    def host_ms() -> int:
        if not all(learner.ready for learner in learners):
            clock.advance_to(clock.now_ms + SLICE_MS)  # every part of a recovery takes a whole time slice
        return clock.now_ms

    learner = pipeline.learner(instance, host_ms=host_ms, announce=messages.append, **options)
    learners.append(learner)
    while not any("recovering" in line for line in messages):
        learner.step(0)
    assert list(learner.tasks) == []
    return learner


def test_task_revoked_during_another_recovery_is_not_recovered() -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    names = {partition_for(f"event-{number}".encode(), 2): f"event-{number}" for number in range(20)}
    learner = pipeline.learner()
    for name in names.values():
        pipeline.context(name)
    run_until_idle(learner)
    learner.close()
    again = recover_slowly(pipeline, "learner-1")
    other = pipeline.learner("learner-2")
    again.step(0)
    pipeline.answer(names[1], 1)
    run_until_idle(other)
    run_until_idle(again)
    assert (list(again.tasks), list(other.tasks)) == ([0], [1])
    assert all(audit.ok for audit in pipeline.audits())


def snapshot_position(pipeline: Pipeline) -> tuple[int, int]:
    """Return the newest snapshot's step and that step's journal offset."""
    found = rebuild(pipeline.broker, TOPICS, 0).stored.newest
    assert found is not None
    records = pipeline.records(TOPICS.journal)
    return found.number, next(record.offset for record in records if decode_step(record).number == found.number)


def test_journal_before_the_snapshot_is_searched_but_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, program = many_snapshots()
    state, (_, unread) = digests(program.tasks[0]), snapshot_position(pipeline)
    read: list[int] = []

    def counted(record: Record) -> JournalStep:
        read.append(record.offset)
        return decode_step(record)

    monkeypatch.setattr("stream.recovery.steps.decode_step", counted)
    assert digests(rebuild(pipeline.broker, TOPICS, 0).task) == state
    last = pipeline.records(TOPICS.journal)[-1].offset  # the search for the last step starts with the last 100 offsets
    probed = [offset for offset in read if offset < min(unread, last - 100)]
    assert len(probed) <= last.bit_length()


def test_recovery_needs_no_records_up_to_the_snapshot() -> None:
    pipeline, program = many_snapshots()
    number, journal_offset = snapshot_position(pipeline)
    following = pipeline.journal()[number]
    pipeline.broker.delete_records(JOURNAL, journal_offset + 1)
    pipeline.broker.delete_records(CONTEXTS, following.contexts[0])
    pipeline.broker.delete_records(FEEDBACK, following.feedback[0])
    assert digests(recover(pipeline.broker, TOPICS, 0, pipeline.settings).task) == digests(program.tasks[0])


def test_journal_that_ends_before_the_snapshot_is_rejected() -> None:
    pipeline, _ = many_snapshots()
    number, _ = snapshot_position(pipeline)
    recreate_the_journal(pipeline, steps=number)
    assert rebuild(pipeline.broker, TOPICS, 0).step.number == number
    recreate_the_journal(pipeline, steps=number - 1)
    with pytest.raises(MissingRecordsError) as raised:
        rebuild(pipeline.broker, TOPICS, 0)
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (JOURNAL, number + 1, False)


@pytest.mark.parametrize("change", [{"updates": 1_000}, {"ledger": {"conflicts": 77}}])
def test_step_whose_state_differs_from_the_journal_is_rejected(change: dict[str, Any]) -> None:
    pipeline, _ = many_snapshots()
    log = pipeline.broker.log(JOURNAL)
    fields = orjson.loads(log.records[9].value or b"")
    value = {**fields, **change, "ledger": {**fields["ledger"], **change.get("ledger", {})}}
    log.records[9] = log.records[9]._replace(value=orjson.dumps(value))
    with pytest.raises(UnrecoverableError) as raised:
        rebuild(pipeline.broker, TOPICS, 0, snapshots=False)
    assert raised.value.place == f"step {fields['number']} of test.journal/0"


def test_inputs_are_checked_before_a_learner_continues_after_its_first_step() -> None:
    pipeline = Pipeline(small_task())
    program = pipeline.learner(snapshot_interval_ms=0)
    pipeline.answer("a", 1)
    while not pipeline.journal():
        program.step(0)
    program.close()
    assert len(pipeline.journal()) == 1
    applied = pipeline.journal()[0].contexts[1]
    for number in range(3):
        pipeline.context(f"new-{number}")
    pipeline.broker.delete_records(CONTEXTS, applied + 2)
    assert rebuild(pipeline.broker, TOPICS, 0, until=0, snapshots=False).step.number == 0
    with pytest.raises(MissingRecordsError) as raised:
        recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (CONTEXTS, applied, True)


def test_progress_of_a_recovery_to_an_earlier_step_ends_at_this_step() -> None:
    pipeline, _ = many_snapshots()
    reported: list[ReplayProgress] = []
    rebuild(pipeline.broker, TOPICS, 0, callbacks=Callbacks(reported.append), until=20, snapshots=False)
    assert [progress.number for progress in reported] == list(range(21))
    assert {(progress.first, progress.last) for progress in reported} == {(1, 20)}
    assert reported[-1].records == sum(
        b - a for step in pipeline.journal()[:20] for a, b in (step.contexts, step.feedback)
    )
