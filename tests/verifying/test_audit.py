"""The audit detects every change to a valid run's topics, and reports where the change is."""

from typing import NamedTuple

import orjson
import pytest

from stream.settings.task_fields import JoinSettings
from stream.telemetry.sketch import Sketch
from stream.verifying.audit import FAULTS_SHOWN_MAX, Finding, audit_partition
from stream.wire.codec import decode_example
from stream.wire.dead_letters import DEAD_LETTER_ORPHAN, dead_letter_headers
from stream.wire.ledger import Ledger
from stream.wire.records import Record
from tests.pipeline import TOPICS, Edit, Pipeline, run_until_idle, small_task
from tests.verifying.tampering import (
    GOOD,
    appended,
    change,
    drop,
    duplicate,
    garbage,
    hand_made_run,
    header,
    tampered,
)


def test_audit_of_a_valid_run_passes(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.contexts, list)
    assert finding == Finding(0, GOOD, GOOD, (), 0, 0, latencies=Sketch.of([0] * 4))
    assert finding.ok


OTHER = (1, 2, 0)
"""Maps each action to a different action."""


@pytest.fixture(scope="module")
def mismatched() -> Pipeline:
    """A run in which some feedback names an action other than the decided one, for event ids in every state."""
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()

    def at(now_ms: int) -> None:
        run_until_idle(learner)
        pipeline.clock.advance_to(now_ms)

    def action(event_id: str) -> int:
        (found,) = (value["action"] for value in pipeline.values(TOPICS.predictions) if value["id"] == event_id)
        return int(found)

    for event_id in ("pending", "matched", "expired"):
        pipeline.context(event_id)
    at(1_100)
    pipeline.answer("pending", 1, OTHER[action("pending")])  # feedback 1, after the tick: rejected
    pipeline.answer("matched", 1, action("matched"))  # feedback 2
    pipeline.answer("matched", 0, OTHER[action("matched")])  # feedback 3: rejected
    pipeline.answer("matched", 1, action("matched"))  # feedback 4: duplicate
    pipeline.answer("pending", 1, action("pending"))  # feedback 5: settles the decision
    at(3_000)
    pipeline.answer("expired", 1, action("expired"))  # feedback 6: late
    pipeline.answer("expired", 1, OTHER[action("expired")])  # feedback 7: rejected
    for wrong in range(3):
        pipeline.answer(f"early{wrong}", 1, wrong)  # feedback 8 to 10: rejected if the decision has another action
    at(3_100)
    pipeline.answer("early0", 0, 0)  # feedback 11: duplicate of feedback 8
    at(3_150)
    for number in range(3):
        pipeline.context(f"early{number}")
    at(3_200)
    run_until_idle(learner)
    return pipeline


def test_feedback_that_names_another_action_is_counted_in_every_state(mismatched: Pipeline) -> None:
    finding = audit_partition(mismatched.broker, TOPICS, 0)
    ledger = finding.audited
    assert finding == Finding(0, ledger, ledger, (), 0, 0, latencies=Sketch.of([0] * 6))
    early = [value["action"] for value in mismatched.values(TOPICS.predictions)][3:]
    raised = sum(action != number for number, action in enumerate(early))
    assert raised > 0
    assert (ledger.mismatched, ledger.matched, ledger.late) == (3 + raised, 2 + 3 - raised, 1)
    assert (ledger.feedback_duplicates, ledger.conflicts) == (2, 1)


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("names", ["another action", "no action"])
def test_audit_detects_a_changed_action_in_feedback(mismatched: Pipeline, offset: int, names: str) -> None:
    """Change or remove the action in feedback. Accepted feedback without an action remains valid."""
    actions = {value["id"]: value["action"] for value in mismatched.values(TOPICS.predictions)}
    sent = orjson.loads(mismatched.records(TOPICS.feedback)[offset].value or b"")
    decided = actions[sent["id"]]
    was_refused = sent["action"] != decided
    named = None if names == "no action" else decided if was_refused else OTHER[decided]
    finding = tampered(mismatched, TOPICS.feedback, change(offset, action=named))
    assert finding.ok is (names == "no action" and not was_refused)
    raised = [fault for fault in finding.faults if fault.startswith(TOPICS.dead_letter)]
    assert len(raised) == (not finding.ok)


def test_audit_detects_a_step_that_the_journal_does_not_contain(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.journal, lambda records: records[:-2])
    assert not finding.ok
    assert finding.faults


def test_audit_detects_a_decision_pending_beyond_its_deadline() -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=5_000, orphan_window_ms=500, retain_ms=10_000)))
    learner = pipeline.learner()
    pipeline.context("overdue")
    run_until_idle(learner)
    pipeline.clock.advance_to(pipeline.clock.now_ms + 2_000)
    pipeline.context("later")
    run_until_idle(learner)
    pipeline.answer("later", 1)
    run_until_idle(learner)
    assert tampered(pipeline, TOPICS.journal, list).ok
    shorter = {**pipeline.values(TOPICS.journal)[0]["settings"], "window_ms": 1_000}
    finding = tampered(pipeline, TOPICS.journal, change(0, settings=shorter))
    assert any("expected expired 'overdue'; got" in fault for fault in finding.faults), finding


def test_audit_detects_that_applied_feedback_was_also_dropped_as_an_orphan(good: Pipeline) -> None:
    offsets = [decode_example(record).feedback_offset for record in good.records(TOPICS.examples)]
    feedback_offset = next(offset for offset in reversed(offsets) if offset is not None)
    headers = dead_letter_headers(TOPICS.feedback, 0, feedback_offset, DEAD_LETTER_ORPHAN, "")

    def drop_it(records: list[Record]) -> list[Record]:
        return [*records, records[-1]._replace(value=b"{}", headers=headers)]

    (fault,) = tampered(good, TOPICS.dead_letter, drop_it).faults
    assert fault.startswith(f"{TOPICS.dead_letter}/0 offset 3:")


WHOLE_AND_RANGE = pytest.mark.parametrize("start", [None, 1], ids=["whole", "range"])
"""Audits all steps, or those after the first one, whose orphans are in a snapshot."""


@WHOLE_AND_RANGE
@pytest.mark.parametrize("field", Ledger._fields)
def test_audit_detects_a_wrong_value_of_every_count(good: Pipeline, field: str, start: int | None) -> None:
    def edit(records: list[Record]) -> list[Record]:
        fields = orjson.loads(records[-1].value or b"")
        fields["ledger"][field] = fields["ledger"].get(field, 0) + 1
        return [*records[:-1], records[-1]._replace(value=orjson.dumps(fields))]

    finding = tampered(good, TOPICS.journal, edit, start)
    assert not finding.ok
    assert finding.audited == GOOD
    assert finding.learner == GOOD._replace(**{field: getattr(GOOD, field) + 1})


class Tampering(NamedTuple):
    """An edit to one topic, and the location that the audit must report."""

    claim: str
    topic: str
    edit: Edit
    place: str


# In offset order, the predictions are for "early", "matched", "expired" and "pending"; the examples are for "early",
# "matched" and "expired"; the dead letters are for context 4, feedback 6 and feedback 0.
TAMPERINGS = [
    Tampering("prediction lost", TOPICS.predictions, drop(3), "contexts/0 offset 5"),
    Tampering("settled prediction lost", TOPICS.predictions, drop(1), "contexts/0 offset 1"),
    Tampering("duplicate prediction", TOPICS.predictions, duplicate(3), "predictions/0 offset 4"),
    Tampering(
        "duplicate context decided",
        TOPICS.predictions,
        lambda records: change(4, context_offset=3)(duplicate(1)(records)),
        "predictions/0 offset 4",
    ),
    Tampering("prediction of another event", TOPICS.predictions, change(3, id="other"), "contexts/0 offset 5"),
    Tampering("prediction without a context", TOPICS.predictions, change(3, context_offset=9), "contexts/0 offset 5"),
    Tampering(
        "prediction of a malformed context", TOPICS.predictions, change(3, context_offset=4), "contexts/0 offset 5"
    ),
    Tampering("unreadable prediction", TOPICS.predictions, garbage, "predictions/0 offset 4"),
    Tampering(
        "different action predicted",
        TOPICS.predictions,
        change(1, action=2),
        "examples/0 offset 1, step 3: expected action 2",
    ),
    Tampering(
        "different decision time",
        TOPICS.feedback,
        appended(2, 1_099),
        "examples/0 offset 1, step 3: expected delay_ms 101",
    ),
    Tampering("tick lost", TOPICS.feedback, header(2, "tick", "9"), "step 2"),
    Tampering("matched example lost", TOPICS.examples, drop(1), "examples/0, step 3: expected matched 'matched'"),
    Tampering("expired example lost", TOPICS.examples, drop(2), "examples/0, step 4: expected expired 'expired'"),
    Tampering("duplicate matched example", TOPICS.examples, duplicate(1), "examples/0 offset 3"),
    Tampering("duplicate expired example", TOPICS.examples, duplicate(2), "examples/0 offset 3"),
    Tampering("unreadable example", TOPICS.examples, garbage, "examples/0 offset 3"),
    Tampering(
        "example of an unknown event",
        TOPICS.examples,
        change(1, id="nobody"),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "example of another event",
        TOPICS.examples,
        change(1, id="pending"),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "matched example marked as expired",
        TOPICS.examples,
        change(1, outcome="expired"),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "matched example rewritten as expired",
        TOPICS.examples,
        change(1, outcome="expired", reward=None, delay_ms=None, feedback_offset=None),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "expired example marked as matched",
        TOPICS.examples,
        change(2, outcome="matched"),
        "examples/0 offset 2, step 4: expected expired 'expired'",
    ),
    Tampering(
        "expired example rewritten as matched",
        TOPICS.examples,
        change(2, outcome="matched", reward=1, delay_ms=1_900, feedback_offset=7),
        "examples/0 offset 2, step 4: expected expired 'expired'",
    ),
    Tampering(
        "reward of an example", TOPICS.examples, change(1, reward=0), "examples/0 offset 1, step 3: expected reward 1"
    ),
    Tampering(
        "reward of an expired example",
        TOPICS.examples,
        change(2, reward=0),
        "examples/0 offset 2, step 4: expected reward None",
    ),
    Tampering(
        "action of an example", TOPICS.examples, change(1, action=7), "examples/0 offset 1, step 3: expected action 1"
    ),
    Tampering(
        "propensity of an example",
        TOPICS.examples,
        change(1, propensity=0.5),
        "examples/0 offset 1, step 3: expected propensity 0.9166666666666666",
    ),
    Tampering(
        "delay of an example",
        TOPICS.examples,
        change(1, delay_ms=99),
        "examples/0 offset 1, step 3: expected delay_ms 100",
    ),
    Tampering(
        "stream time of a matched example",
        TOPICS.examples,
        change(1, settled_at_ms=1_150),
        "examples/0 offset 1, step 3: expected settled_at_ms 1200",
    ),
    Tampering(
        "stream time of an expired example",
        TOPICS.examples,
        change(2, settled_at_ms=2_999),
        "examples/0 offset 2, step 4: expected settled_at_ms 3000",
    ),
    Tampering(
        "stream time of an orphan's example",
        TOPICS.examples,
        change(0, settled_at_ms=1_001),
        "examples/0 offset 0, step 2: expected settled_at_ms 1000",
    ),
    Tampering(
        "example matched by a duplicate",
        TOPICS.examples,
        change(1, feedback_offset=4),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering(
        "example matched by another event's feedback",
        TOPICS.examples,
        change(1, feedback_offset=1),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering(
        "example matched by nonexistent feedback",
        TOPICS.examples,
        change(1, feedback_offset=77),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering("dead letter lost", TOPICS.dead_letter, drop(0), "dead-letter/0, step 2"),
    Tampering("feedback's dead letter lost", TOPICS.dead_letter, drop(1), "dead-letter/0, step 3"),
    Tampering("duplicate dead letter", TOPICS.dead_letter, duplicate(0), "dead-letter/0 offset 3"),
    Tampering(
        "dead letter of another record", TOPICS.dead_letter, header(0, "offset", "0"), "dead-letter/0 offset 0, step 2"
    ),
    Tampering(
        "dead letter of another partition",
        TOPICS.dead_letter,
        header(0, "partition", "1"),
        "dead-letter/0 offset 0, step 2",
    ),
    Tampering(
        "dead letter of valid feedback", TOPICS.dead_letter, header(1, "offset", "3"), "dead-letter/0 offset 1, step 3"
    ),
    Tampering("unreadable dead letter", TOPICS.dead_letter, header(0, "offset", "x"), "dead-letter/0 offset 0"),
    Tampering("duplicate step", TOPICS.journal, duplicate(-1), "does not follow step"),
    Tampering("step lost", TOPICS.journal, drop(2), "step 4"),
    Tampering("context changed", TOPICS.contexts, change(1, id="other"), "contexts/0 offset 1"),
    Tampering("context became malformed", TOPICS.contexts, change(5, x=None), "predictions/0 offset 3"),
    Tampering(
        "feedback changed", TOPICS.feedback, change(3, reward=0), "examples/0 offset 1, step 3: expected reward 0"
    ),
    Tampering("feedback became malformed", TOPICS.feedback, change(8, reward=2), "dead-letter/0, step 5"),
]


@WHOLE_AND_RANGE
@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda tampering: tampering.claim)
def test_audit_detects_an_edit_and_names_its_location(good: Pipeline, tampering: Tampering, start: int | None) -> None:
    finding = tampered(good, tampering.topic, tampering.edit, start)
    assert not finding.ok
    assert any(tampering.place in fault for fault in finding.faults), finding


# No other record refers to the records that these edits change, so only the counts differ.
MISCOUNTS: dict[str, tuple[str, Edit, dict[str, int]]] = {
    "reward of a duplicate": (TOPICS.feedback, change(4, reward=0), {"conflicts": 2}),
    "reward of a conflict": (TOPICS.feedback, change(5, reward=1), {"conflicts": 0}),
    "ID of late feedback": (TOPICS.feedback, change(7, id="other"), {"late": 0, "orphans_waiting": 2}),
    "ID of waiting feedback": (
        TOPICS.feedback, change(8, id="matched"), {"orphans_waiting": 0, "feedback_duplicates": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("start", [None, 1, 2])
@pytest.mark.parametrize("claim", MISCOUNTS)
def test_audit_computes_counts_from_the_topics_alone(good: Pipeline, claim: str, start: int | None) -> None:
    topic, edit, counts = MISCOUNTS[claim]
    finding = tampered(good, topic, edit, start)
    assert not finding.ok
    assert finding.audited == GOOD._replace(**counts)


def test_expired_decision_with_feedback_in_time_is_a_fault(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.feedback, appended(7, 2_100))
    assert finding.faults[0].startswith(
        f"{TOPICS.examples}/0 offset 2, step 4: expected matched 'expired'; got expired 'expired'"
    )


def test_audit_expects_the_assumed_reward_of_the_negative_policy() -> None:
    pipeline = hand_made_run(on_expiry="negative")
    assert audit_partition(pipeline.broker, TOPICS, 0).ok
    finding = tampered(pipeline, TOPICS.examples, change(2, reward=None))
    assert finding.faults == (f"{TOPICS.examples}/0 offset 2, step 4: expected reward 0; got None",)


def test_number_of_reported_faults_is_limited() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for number in range(3 * FAULTS_SHOWN_MAX):
        pipeline.context(f"event-{number}")
    run_until_idle(learner)
    finding = tampered(pipeline, TOPICS.predictions, lambda records: [])
    assert len(finding.faults) == FAULTS_SHOWN_MAX
    assert finding.audited.decided == 0


def test_expiry_before_the_deadline_is_a_fault_even_if_the_pending_limit_was_exceeded() -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=1_000, orphan_window_ms=500, pending_max=2)))
    learner = pipeline.learner()

    def step() -> None:
        pipeline.clock.advance_to(pipeline.now_ms() + 10)
        run_until_idle(learner)

    for event_id in "abcd":
        pipeline.context(event_id)
        step()
        pipeline.answer(event_id, 1)
        step()
    for event_id in "efg":  # decision e expires because of the pending limit
        pipeline.context(event_id)
        step()
    assert [example["outcome"] for example in pipeline.values(TOPICS.examples)] == ["matched"] * 4 + ["expired"]
    assert tampered(pipeline, TOPICS.examples, list).ok
    edit = change(3, outcome="expired", reward=None, delay_ms=None, feedback_offset=None)
    (fault,) = tampered(pipeline, TOPICS.examples, edit).faults
    assert fault.startswith(f"{TOPICS.examples}/0 offset 3,")
