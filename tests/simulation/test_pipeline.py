"""The complete pipeline on the embedded broker in virtual time. The ledger adds up after every kind of fault."""

from collections import Counter

import pytest

from producers.replay.options import ReplayOptions
from producers.replay.program import ReplayProgram, resume_position
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from tests.pipeline import (
    TOPICS,
    Pipeline,
    context_value,
    digest,
    feedback_value,
    plan,
    run_until_idle,
    small_synsep,
    small_task,
    synsep_task,
)

EVENTS = 300
DATASET = small_synsep()


def assert_ledger_balances(pipeline: Pipeline) -> Ledger:
    """Assert that nothing is pending, missing or duplicated, and that the audit agrees."""
    findings = pipeline.audits()
    assert all(finding.ok for finding in findings), findings
    assert all(finding.contexts_behind == finding.feedback_behind == 0 for finding in findings)
    ledger = pipeline.ledger()
    assert (ledger.pending, ledger.orphans_waiting) == (0, 0)
    answered = Counter(
        value["context_offset"]
        for p in range(pipeline.partitions)
        for value in [*pipeline.values(TOPICS.predictions, p)]
    )
    assert ledger.decided == sum(answered.values())
    settled = Counter(value["id"] for value in pipeline.all_values(TOPICS.examples))
    assert set(settled.values()) <= {1}
    return ledger


@pytest.mark.parametrize(("learner", "partitions"), [("soba-diag", 1), ("soba-diag", 3), ("perceptron", 3)])
def test_every_decision_is_settled_with_late_lost_and_duplicate_feedback(learner: str, partitions: int) -> None:
    def run() -> tuple[str, Ledger]:
        pipeline = Pipeline(synsep_task(learner), partitions)
        program = pipeline.learner()
        feedback = pipeline.feedback(
            DATASET, plan("lognormal:100ms,1.2", loss=0.05, duplicates=0.1), with_label=learner == "perceptron"
        )
        pipeline.run((pipeline.replay(DATASET, EVENTS), feedback), program)
        return digest(program), assert_ledger_balances(pipeline)

    state, ledger = run()
    assert (ledger.contexts, ledger.decided) == (EVENTS, EVENTS)
    assert ledger.matched > 0.8 * EVENTS
    assert ledger.late > 0
    assert ledger.feedback_duplicates > 0
    assert run() == (state, ledger)  # runs with the same seed are identical, bit for bit


def test_different_seeds_give_different_states() -> None:
    states = set()
    for seed in (1, 2):
        pipeline = Pipeline(synsep_task("banditron", seed=seed, parameters={"gamma": 0.5}))
        program = pipeline.learner()
        pipeline.run((pipeline.replay(DATASET, 50), pipeline.feedback(DATASET, plan())), program)
        states.add(digest(program))
    assert len(states) == 2


def test_immediate_feedback_is_applied_before_the_next_context() -> None:
    pipeline = Pipeline(synsep_task())
    pipeline.run((pipeline.replay(DATASET, 100), pipeline.feedback(DATASET, plan())), pipeline.learner())
    predictions = pipeline.values(TOPICS.predictions)
    examples = pipeline.values(TOPICS.examples)
    assert {example["delay_ms"] for example in examples} == {0}
    versions = [prediction["model_version"] for prediction in predictions]
    assert versions == sorted(versions)
    assert versions[-1] > 0
    assert assert_ledger_balances(pipeline).matched == 100


def test_fixed_delay_applies_to_every_example() -> None:
    pipeline = Pipeline(synsep_task())
    pipeline.run((pipeline.replay(DATASET, 100), pipeline.feedback(DATASET, plan("fixed:70ms"))), pipeline.learner())
    assert {example["delay_ms"] for example in pipeline.values(TOPICS.examples)} == {70}


def test_decision_without_feedback_expires_exactly_at_its_deadline() -> None:
    pipeline = Pipeline(synsep_task())
    pipeline.run((pipeline.replay(DATASET, 50), pipeline.feedback(DATASET, plan(loss=1.0))), pipeline.learner())
    ledger = assert_ledger_balances(pipeline)
    assert (ledger.expired, ledger.feedback) == (50, 0)
    decided = {(record.key or b"").decode(): record.append_ms for record in pipeline.records(TOPICS.predictions)}
    waited = [value["settled_at_ms"] - decided[value["id"]] for value in pipeline.values(TOPICS.examples)]
    assert min(waited) > 500


def test_decision_expires_while_only_malformed_contexts_arrive() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    for at_ms in range(1_000, 3_000, 50):
        pipeline.clock.advance_to(at_ms)
        pipeline.send(TOPICS.contexts, b"{")
        run_until_idle(learner)
    assert pipeline.ledger().expired == 1


def test_negative_policy_learns_from_expired_decisions() -> None:
    pipeline = Pipeline(synsep_task("banditron", on_expiry="negative"))
    pipeline.run((pipeline.replay(DATASET, 50), pipeline.feedback(DATASET, plan(loss=1.0))), pipeline.learner())
    assert {value["reward"] for value in pipeline.values(TOPICS.examples)} == {0}
    assert pipeline.journal()[-1].updates == 50


def test_feedback_may_arrive_before_its_context() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for number in range(10):
        pipeline.answer(f"event-{number}", number % 2)
    run_until_idle(learner)
    assert pipeline.ledger().orphans_waiting == 10
    pipeline.clock.advance_to(1_400)
    for number in range(8):
        pipeline.context(f"event-{number}")
    pipeline.run((), learner)
    ledger = assert_ledger_balances(pipeline)
    assert (ledger.matched, ledger.orphans_dropped) == (8, 2)
    assert {value["delay_ms"] for value in pipeline.values(TOPICS.examples)} == {0}
    assert [dict(r.headers)["onebit-kind"] for r in pipeline.records(TOPICS.dead_letter)] == [b"orphan"] * 2


def test_every_valid_and_invalid_record_is_counted_once() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()

    def at(now_ms: int) -> None:
        run_until_idle(learner)
        pipeline.clock.advance_to(now_ms)

    bad_contexts = [None, b"", b"{", b"[]", b'{"id":"a","x":[NaN]}', b'{"id":"bad","x":{"i":[-1]}}', b'{"id":"bad"}']
    bad_feedback = [None, b"", b"no", b'{"id":"a"}', feedback_value("a", 2), b'{"id":"a","reward":1.5}']
    early = feedback_value("early", 1)
    pipeline.send(TOPICS.feedback, early)
    pipeline.send(TOPICS.feedback, early)  # duplicate
    pipeline.send(TOPICS.feedback, feedback_value("early", 0))  # conflict
    for value in bad_contexts:
        pipeline.send(TOPICS.contexts, value)
    at(1_100)
    for event_id in ("early", "a", "b", "c", "a"):  # the second context "a" is a duplicate
        pipeline.send(TOPICS.contexts, context_value(event_id))
    pipeline.send(TOPICS.contexts, context_value("d"), key=b"another key")  # malformed
    at(1_200)
    for value in bad_feedback:
        pipeline.send(TOPICS.feedback, value)
    pipeline.send(TOPICS.feedback, feedback_value("a", 0))
    pipeline.send(TOPICS.feedback, feedback_value("a", 0))  # duplicate
    pipeline.send(TOPICS.feedback, feedback_value("a", 1))  # conflict
    at(2_100)
    pipeline.send(TOPICS.feedback, feedback_value("b", 1))  # at the deadline
    at(2_101)
    pipeline.send(TOPICS.feedback, feedback_value("c", 1))  # late
    pipeline.send(TOPICS.feedback, feedback_value("nobody", 1))  # orphan
    pipeline.run((), learner)
    assert assert_ledger_balances(pipeline) == Ledger(
        contexts=13, decided=4, context_duplicates=1, context_malformed=8,
        feedback=15, matched=3, expired=1, late=1, feedback_duplicates=4, conflicts=2, orphans_dropped=1,
        feedback_malformed=6,
    )  # fmt: skip
    letters = pipeline.records(TOPICS.dead_letter)
    assert Counter(dict(letter.headers)["onebit-kind"] for letter in letters) == {b"malformed": 14, b"orphan": 1}
    assert [letter.value for letter in letters][: len(bad_contexts)] == bad_contexts


def test_records_of_an_aborted_transaction_are_ignored() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    producer = pipeline.broker.transactional_producer("service")
    for event_id, commits in (("aborted", False), ("committed", True)):
        producer.begin()
        producer.send(TOPICS.contexts, 0, None, context_value(event_id))
        run_until_idle(learner)
        assert pipeline.values(TOPICS.predictions) == []
        if commits:
            producer.commit()
        else:
            producer.abort()
    pipeline.answer("committed", 1)
    pipeline.run((), learner)
    assert [value["id"] for value in pipeline.values(TOPICS.predictions)] == ["committed"]
    # The learner skips the record of the aborted transaction and does not count it as a context.
    assert pipeline.ledger() == Ledger(contexts=1, decided=1, feedback=1, matched=1)
    assert pipeline.audits()[0].ok


def test_no_decision_expires_while_a_transaction_of_feedback_is_open() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    run_until_idle(learner)
    service = pipeline.broker.transactional_producer("service")
    service.begin()
    pipeline.clock.advance_to(1_500)
    service.send(TOPICS.feedback, 0, None, feedback_value("a", 1))
    for at_ms in (3_000, 5_000, 7_000):
        pipeline.clock.advance_to(at_ms)
        learner.step(0)
    assert pipeline.ledger().expired == 0
    service.commit()
    pipeline.run((), learner)
    assert assert_ledger_balances(pipeline).matched == 1
    assert pipeline.values(TOPICS.examples)[0]["delay_ms"] == 500


def test_resumed_replay_neither_omits_nor_repeats_an_event() -> None:
    pipeline = Pipeline(synsep_task(), partitions=3)
    options = ReplayOptions(EVENTS, partitions=3, shuffle_seed=4)
    first = ReplayProgram(pipeline.broker, TOPICS, DATASET, options, pipeline.now_ms)
    pipeline.clock.advance_to(1_123)
    first.step(0)
    start = resume_position(pipeline.broker, TOPICS, DATASET, options)
    assert start == 124
    second = ReplayOptions(EVENTS, partitions=3, shuffle_seed=4, start=start)
    replay = ReplayProgram(pipeline.broker, TOPICS, DATASET, second, pipeline.now_ms)
    pipeline.run((replay, pipeline.feedback(DATASET, plan())), pipeline.learner())
    ledger = assert_ledger_balances(pipeline)
    assert (ledger.contexts, ledger.context_duplicates) == (EVENTS, 0)
    assert resume_position(pipeline.broker, TOPICS, DATASET, options) == EVENTS


def test_feedback_program_continues_after_deleted_predictions_and_reports_them() -> None:
    pipeline = Pipeline(synsep_task())
    predictions = TopicPartition(TOPICS.predictions, 0)
    feedback = pipeline.feedback(DATASET, plan())
    pipeline.run((pipeline.replay(DATASET, 50), feedback), pipeline.learner())
    feedback.close()
    pipeline.run((pipeline.replay(DATASET, 80, start=50),), pipeline.learner())  # these predictions get no feedback
    pipeline.broker.delete_records(predictions, 60)
    reported: list[str] = []
    feedback = pipeline.feedback(DATASET, plan(), announce=reported.append)
    feedback.step(0)
    pipeline.clock.advance_to(pipeline.now_ms() + 1_000)
    feedback.step(0)
    assert ["offsets 50 to 59 " in message for message in reported] == [True]
    ids = [value["id"] for value in pipeline.values(TOPICS.feedback) if value is not None]  # None: a tick
    assert ids[-20:] == [DATASET.event_id(row) for row in range(60, 80)]
