"""Each dead letter is requeued once, as the original record. The pipeline processes it like any other record."""

from collections import Counter
from collections.abc import Iterable

from onebit.requeueing import REQUEUED_HEADER, Fate, Requeued, requeue
from stream.wire.codec import HEADERS
from stream.wire.dead_letters import DeadLetter, dead_letter_headers, encode_dead_letter
from stream.wire.records import Record
from tests.pipeline import TOPICS, Pipeline, feedback_value, run_until_idle, small_task

OWN = (*HEADERS, ("onebit-trace", b"\xff"), ("trace", b"8"))
BAD = b'{"id":"bad","x":{"i":[99]}}'


def run_learner(pipeline: Pipeline) -> None:
    """Run a learner until it has applied all records."""
    learner = pipeline.learner()
    run_until_idle(learner)
    learner.close()


def pipeline_with_dead_letters() -> Pipeline:
    """Return a pipeline with two dead letters: the dropped orphan for event `late`, and the invalid context `bad`."""
    pipeline = Pipeline(small_task())
    pipeline.send(TOPICS.contexts, BAD, key=b"bad")
    pipeline.answer("late", 1)
    pipeline.run([], pipeline.learner())  # until the orphan is dropped
    pipeline.context("late", 1)
    run_learner(pipeline)
    return pipeline


def fates(requeued: Iterable[Requeued]) -> Counter[Fate]:
    return Counter(one.fate for one in requeued)


def test_requeued_orphan_is_matched_and_the_audit_passes() -> None:
    pipeline = pipeline_with_dead_letters()
    requeued = requeue(pipeline.broker, TOPICS, 1, lambda letter: letter.kind == "orphan")
    run_learner(pipeline)
    assert fates(requeued) == {Fate.REQUEUED: 1}
    ledger = pipeline.ledger()
    assert (ledger.feedback, ledger.orphans_dropped, ledger.matched) == (2, 1, 1)
    assert [found.ok for found in pipeline.audits()] == [True]


def test_requeued_record_is_identical_except_for_an_additional_header() -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    broken = Record(TOPICS.feedback, 1, 7, 0, b"visit-1", feedback_value("other", 1), OWN)
    key, value, headers = encode_dead_letter(broken, "malformed", "why")
    pipeline.broker.producer().send(TOPICS.dead_letter, 1, key, value, headers)
    requeued = requeue(pipeline.broker, TOPICS, 2)
    [again] = [record for number in (0, 1) for record in pipeline.records(TOPICS.feedback, number)]
    assert (again.key, again.value) == (broken.key, broken.value)
    assert again.headers == (*OWN, (REQUEUED_HEADER, b"1@0"))
    letter = DeadLetter(TOPICS.feedback, 1, 7, "malformed", "why", broken.key, broken.value, OWN, True)
    assert requeued == [Requeued(letter, 1, 0, Fate.REQUEUED)]


def test_dead_letter_is_requeued_once() -> None:
    pipeline = pipeline_with_dead_letters()
    assert fates(requeue(pipeline.broker, TOPICS, 1)) == {Fate.REQUEUED: 2}
    assert fates(requeue(pipeline.broker, TOPICS, 1)) == {Fate.BEFORE: 2}
    run_learner(pipeline)
    assert fates(requeue(pipeline.broker, TOPICS, 1)) == {Fate.BEFORE: 2, Fate.REQUEUED: 1}
    marks = [dict(record.headers).get(REQUEUED_HEADER) for record in pipeline.records(TOPICS.contexts)]
    letters = len(pipeline.records(TOPICS.dead_letter))
    assert marks == [None, None, b"0@0", b"0@%d" % (letters - 1)]
    run_learner(pipeline)
    assert [found.ok for found in pipeline.audits()] == [True]


def test_dry_run_writes_nothing() -> None:
    pipeline = pipeline_with_dead_letters()
    before = pipeline.ends()
    requeued = requeue(pipeline.broker, TOPICS, 1, dry_run=True)
    assert [(one.letter.key, one.fate) for one in requeued] == [(b"bad", Fate.REQUEUED), (b"late", Fate.REQUEUED)]
    assert pipeline.ends() == before


def test_truncated_and_foreign_dead_letters_are_skipped() -> None:
    pipeline = Pipeline(small_task())
    send = pipeline.broker.producer().send
    large = Record(TOPICS.contexts, 0, 7, 0, b"a", b"x" * 600_000, ())
    send(TOPICS.dead_letter, 0, *encode_dead_letter(large, "malformed", "why"))
    send(TOPICS.dead_letter, 0, b"a", b"b", dead_letter_headers(TOPICS.predictions, 0, 3, "malformed", "why"))
    send(TOPICS.dead_letter, 0, b"a", b"b", dead_letter_headers("other.contexts", 0, 3, "malformed", "why"))
    send(TOPICS.dead_letter, 0, b"a", b"b", HEADERS)
    assert fates(requeue(pipeline.broker, TOPICS, 1)) == {Fate.CUT: 1, Fate.NO_INPUT: 2}
    assert pipeline.records(TOPICS.contexts) == []
