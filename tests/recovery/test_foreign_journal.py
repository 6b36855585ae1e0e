"""Records that other programs write into a journal: they are passed over, named and counted, and hide no step."""

from itertools import pairwise

import orjson
import pytest

from consumers.learner import LearnerProgram
from stream.journal import format as journal
from stream.journal.digests import task_digest
from stream.journal.format import JournalError, JournalStep, Opening, is_foreign
from stream.journal.reading import JournalFollower, last_step, settings_entry
from stream.journal.recover import rebuild, recover
from stream.verifying.audit import audit_partition
from stream.verifying.models import export_model
from stream.verifying.reapply import replay_journal
from stream.wire.records import Foreign, Headers, Record, TopicPartition
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, small_task

JOURNAL = TopicPartition(TOPICS.journal, 0)
STRANGERS: list[tuple[bytes | None, bytes | None, Headers]] = [
    (None, None, ()),
    (b"key", b"not JSON", (("trace", b"1"),)),
    (b"event-1", context_value("event-1"), ()),
    (None, feedback_value("event-1", 1), ()),
    (None, b"[1, 2]", ()),
    (None, b"7", ()),
    (None, b"\xff\x00", ()),
]


def stranger(pipeline: Pipeline, number: int) -> None:
    key, value, headers = STRANGERS[number % len(STRANGERS)]
    pipeline.broker.producer().send(TOPICS.journal, 0, key, value, headers)


def idle(learner: LearnerProgram) -> None:
    while learner.step(0):
        pass


def traffic(pipeline: Pipeline, learner: LearnerProgram, numbers: range, strangers: int) -> None:
    """Events one by one, with some records of others in the journal after each."""
    for number in numbers:
        pipeline.context(f"event-{number}")
        idle(learner)
        for _ in range(strangers):
            stranger(pipeline, number)
        pipeline.answer(f"event-{number}", number % 2)
        idle(learner)
        pipeline.clock.advance_to(pipeline.now_ms() + 30)


def disturbed(strangers: int = 1, snapshot_interval_ms: int = 0) -> tuple[Pipeline, LearnerProgram]:
    """A journal that begins with a record of another program, and has more of them between its steps."""
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=snapshot_interval_ms)
    learner.step(0)
    stranger(pipeline, 0)  # between the recovery of nothing and the first step
    traffic(pipeline, learner, range(20), strangers)
    return pipeline, learner


def journal_of(pipeline: Pipeline) -> list[tuple[Record, journal.Entry]]:
    """What is Onebit's, with its records."""
    records = [record for record in pipeline.records(TOPICS.journal) if not is_foreign(record)]
    return [(record, journal.decode_step(record)) for record in records]


@pytest.mark.parametrize("snapshot_interval_ms", [0, 100])
def test_learner_goes_on_past_records_of_others_and_says_how_many(snapshot_interval_ms: int) -> None:
    pipeline, learner = disturbed(snapshot_interval_ms=snapshot_interval_ms)
    before = task_digest(learner.tasks[0])
    learner.close()
    again = pipeline.learner(snapshot_interval_ms=snapshot_interval_ms)
    said: list[str] = []
    again._announce = said.append
    again.step(0)
    assert task_digest(again.tasks[0]) == before
    recovered = rebuild(pipeline.broker, TOPICS, 0, None)
    strangers = [record.offset for record in pipeline.records(TOPICS.journal) if is_foreign(record)]
    assert len(strangers) == 21
    read = recovered.foreign.records
    assert read == 20 if snapshot_interval_ms == 0 else 0 < read < 20  # all after the opening, or the snapshot
    first = f"{TOPICS.journal}/0 offset {strangers[-read]}"
    assert recovered.foreign.first == first
    assert said[-1] == (
        f"partition 0: records in its journal that are not Onebit's are passed over: {read}, the first is {first}; see "
        "who else writes there"
    )
    traffic(pipeline, again, range(20, 30), 1)
    numbers = [step.number for _, step in journal_of(pipeline) if isinstance(step, JournalStep)]
    assert all(then == before + 1 for before, then in pairwise(numbers))
    assert [finding.ok for finding in pipeline.audits()] == [True]


def test_audit_replay_and_export_read_past_records_of_others() -> None:
    pipeline, learner = disturbed()
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert (finding.ok, finding.faults, finding.foreign_count) == (True, (), 21)
    assert finding.foreign[0].startswith(f"{TOPICS.journal}/0 offset 0 is not of a learner: ")
    assert replay_journal(pipeline.broker, TOPICS, 0).ok
    now = export_model(pipeline.broker, TOPICS, 0)
    assert now.meta["position"]["journal"] == learner._running[0].number
    steps = [(record.append_ms, step.number) for record, step in journal_of(pipeline) if isinstance(step, JournalStep)]
    for at_ms, _ in steps:
        at = export_model(pipeline.broker, TOPICS, 0, at_ms=at_ms)
        assert at.meta["position"]["journal"] == max(number for append_ms, number in steps if append_ms <= at_ms)
    follower = JournalFollower(pipeline.broker, TOPICS, 1)
    assert follower.read(0) == finding.learner
    follower.close()


def test_last_step_and_settings_are_found_among_many_records_of_others() -> None:
    pipeline, learner = disturbed(strangers=30)
    for number in range(250):
        stranger(pipeline, number)
    last = last_step(pipeline.broker, JOURNAL)
    assert last is not None
    assert last.number == learner._running[0].number
    assert settings_entry(pipeline.broker, JOURNAL, 0) == Opening(small_task().resolved())


def test_record_of_another_program_hides_no_step_that_is_gone() -> None:
    pipeline, learner = disturbed()
    learner.close()
    records = pipeline.records(TOPICS.journal)
    lost = journal_of(pipeline)[10][0].offset
    pipeline.broker.delete_topics([TOPICS.journal])
    pipeline.broker.create_topics(TOPICS.specs(1))
    for record in records:
        if record.offset == lost:
            stranger(pipeline, 0)
        else:
            pipeline.broker.producer().send(TOPICS.journal, 0, record.key, record.value, record.headers)
    with pytest.raises(JournalError, match=r"expected step \d+; got \d+: another program has written to it"):
        recover(pipeline.broker, TOPICS, 0, small_task())
    assert not audit_partition(pipeline.broker, TOPICS, 0).ok


def test_step_that_has_lost_its_headers_is_not_passed_over() -> None:
    pipeline, learner = disturbed()
    learner.close()
    value = journal_of(pipeline)[-1][0].value
    pipeline.broker.producer().send(TOPICS.journal, 0, None, value, ())
    with pytest.raises(JournalError, match="onebit-version=1; got no such header"):
        recover(pipeline.broker, TOPICS, 0, small_task())


def test_journal_in_which_nothing_is_onebits_is_not_begun_anew() -> None:
    pipeline = Pipeline(small_task())
    for number in range(3):
        stranger(pipeline, number)
    with pytest.raises(JournalError, match=r"got 3 records of which none is Onebit's, the first is .*/0 offset 0"):
        recover(pipeline.broker, TOPICS, 0, small_task())


@pytest.mark.parametrize(("key", "value", "headers"), STRANGERS)
def test_record_of_another_program_is_known(key: bytes | None, value: bytes | None, headers: Headers) -> None:
    assert is_foreign(Record(TOPICS.journal, 0, 0, 0, key, value, headers))
    assert not is_foreign(Record(TOPICS.journal, 0, 0, 0, key, value, journal.HEADERS))
    assert not is_foreign(Record(TOPICS.journal, 0, 0, 0, key, orjson.dumps({"n": 1}), headers))


def test_nothing_foreign_is_found_in_a_journal_of_ones_own() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    traffic(pipeline, learner, range(3), 0)
    assert rebuild(pipeline.broker, TOPICS, 0, None).foreign == Foreign()
