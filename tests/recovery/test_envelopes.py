"""The envelope of events is a setting of the pipeline: recovery and the audit read the records as the learner did."""

from collections.abc import Sequence

from consumers.learner.metrics import LearnerCounts
from stream.recovery.commit import Commit
from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from stream.verifying.reapply import replay_journal
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, run_until_idle, small_task
from tests.wire.test_envelopes import PREFIX, STRUCTURED, cloud_event


def send(pipeline: Pipeline, topic: str, value: bytes) -> None:
    producer = pipeline.broker.producer()
    producer.send(topic, 0, None, value, STRUCTURED)
    producer.flush()


def test_changed_envelope_applies_from_its_step_on() -> None:
    pipeline = Pipeline(small_task())
    program = pipeline.learner(given=())
    for event_id, envelope in (("a", None), ("b", "cloudevents"), ("c", "none")):
        if envelope is not None:
            pipeline.request(envelope=envelope)
        send(pipeline, TOPICS.contexts, cloud_event(context_value(event_id)))
        run_until_idle(program)
        send(pipeline, TOPICS.feedback, cloud_event(feedback_value(event_id, 1)))
        run_until_idle(program)
    ledger = pipeline.ledger()
    assert (ledger.decided, ledger.matched, ledger.context_malformed, ledger.feedback_malformed) == (1, 1, 2, 2)
    assert task_digest(rebuild(pipeline.broker, TOPICS, 0).task) == task_digest(program.tasks[0])
    assert replay_journal(pipeline.broker, TOPICS, 0).ok
    assert all(finding.ok for finding in pipeline.audits())


def test_learner_counts_records_with_the_prefix_of_a_schema_registry() -> None:
    pipeline, counts = Pipeline(small_task()), LearnerCounts()

    def committed(commits: Sequence[Commit]) -> None:
        counts.add(commits, pipeline.now_ms())

    program = pipeline.learner(committed=committed)
    for value in (PREFIX + context_value("a"), PREFIX + b"\x02", context_value("b")):
        pipeline.send(TOPICS.contexts, value)
    pipeline.send(TOPICS.feedback, PREFIX + feedback_value("a", 1))
    run_until_idle(program)
    (framed,) = (one.value for one in counts.samples(program) if one.metric.name == "onebit_framed_records_total")
    assert (framed, pipeline.ledger().matched, pipeline.ledger().context_malformed) == (3, 1, 1)
