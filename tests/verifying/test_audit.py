"""The audit can fail: whatever is changed in the topics of a good run, it finds, and says where."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest

from stream.journal.format import JournalError
from stream.reporting.run_report import Latency, quantiles
from stream.task.join import DroppedOrphan, Join, JoinSettings, Settled
from stream.task.play import Play
from stream.task.settings import DatedBy
from stream.telemetry.sketch import Sketch
from stream.verifying import audit
from stream.verifying.audit import FAULTS_SHOWN_MAX, Finding, audit_partition, latencies_of
from stream.wire.codec import decode_example
from stream.wire.dead_letters import DEAD_LETTER_ORPHAN, dead_letter_headers
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.ticks import tick_headers
from tests.pipeline import TOPICS, Pipeline, feedback_value, small_task

Edit = Callable[[list[Record]], list[Record]]


def made_by_hand(**changes: Any) -> Pipeline:
    """A run in which every row of the ledger counts something."""
    pipeline = Pipeline(small_task(**changes))
    learner = pipeline.learner()

    def at(now_ms: int) -> None:
        while learner.step(0):
            pass
        pipeline.clock.advance_to(now_ms)

    pipeline.answer("dropped", 1)  # feedback 0
    pipeline.answer("early", 1)  # 1
    at(1_100)
    for event_id in ("early", "matched", "expired", "matched"):  # contexts 0 to 3
        pipeline.context(event_id)
    pipeline.send(TOPICS.contexts, b"{")  # 4
    at(1_200)
    pipeline.answer("matched", 1)  # 3, after the tick
    pipeline.answer("matched", 1)  # 4, duplicate
    pipeline.answer("matched", 0)  # 5, conflict
    pipeline.send(TOPICS.feedback, b"{")  # 6
    at(3_000)
    pipeline.answer("expired", 1)  # 7, late
    at(3_100)
    pipeline.context("pending")  # context 5
    pipeline.answer("waiting", 1)  # 8
    at(3_200)
    while learner.step(0):
        pass
    return pipeline


GOOD = Ledger(
    contexts=6, decided=4, context_duplicates=1, context_malformed=1, feedback=8, matched=2, expired=1, pending=1,
    late=1, feedback_duplicates=2, conflicts=1, orphans_waiting=1, orphans_dropped=1, feedback_malformed=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def good() -> Pipeline:
    return made_by_hand()


def tampered(good: Pipeline, topic: str, edit: Edit) -> Finding:
    """The audit of the same topics, with the records of one of them edited."""
    other = Pipeline(good.settings)
    copies = [record for name in TOPICS for record in (edit if name == topic else list)(good.records(name))]
    for record in sorted(copies, key=lambda record: record.append_ms):
        other.clock.advance_to(record.append_ms)
        other.broker.producer().send(record.topic, 0, record.key, record.value, record.headers)
    return audit_partition(other.broker, TOPICS, 0)


def test_good_run_is_found_good(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.contexts, list)
    assert finding == Finding(0, GOOD, GOOD, (), 0, 0, latencies=Sketch.of([0] * 4))
    assert finding.ok


OTHER = (1, 2, 0)
"""For each action another one."""


@pytest.fixture(scope="module")
def mismatched() -> Pipeline:
    """A run in which feedback of another action comes to an id in every state."""
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()

    def at(now_ms: int) -> None:
        while learner.step(0):
            pass
        pipeline.clock.advance_to(now_ms)

    def action(event_id: str) -> int:
        (found,) = (value["action"] for value in pipeline.values(TOPICS.predictions) if value["id"] == event_id)
        return int(found)

    for event_id in ("pending", "matched", "expired"):
        pipeline.context(event_id)
    at(1_100)
    pipeline.answer("pending", 1, OTHER[action("pending")])  # feedback 1, after the tick: refused
    pipeline.answer("matched", 1, action("matched"))  # 2
    pipeline.answer("matched", 0, OTHER[action("matched")])  # 3: refused
    pipeline.answer("matched", 1, action("matched"))  # 4: duplicate
    pipeline.answer("pending", 1, action("pending"))  # 5: settles it
    at(3_000)
    pipeline.answer("expired", 1, action("expired"))  # 6: late
    pipeline.answer("expired", 1, OTHER[action("expired")])  # 7: refused
    for wrong in range(3):
        pipeline.answer(f"early{wrong}", 1, wrong)  # 8 to 10: of which two at least are refused when the context comes
    at(3_100)
    pipeline.answer("early0", 0, 0)  # 11: a duplicate, of what is refused later or not
    at(3_150)
    for number in range(3):
        pipeline.context(f"early{number}")
    at(3_200)
    while learner.step(0):
        pass
    return pipeline


def test_feedback_of_another_action_is_counted_in_every_state(mismatched: Pipeline) -> None:
    finding = audit_partition(mismatched.broker, TOPICS, 0)
    ledger = finding.audited
    assert finding == Finding(0, ledger, ledger, (), 0, 0, latencies=Sketch.of([0] * 6))
    early = [value["action"] for value in mismatched.values(TOPICS.predictions)][3:]
    refused = sum(action != number for number, action in enumerate(early))
    assert refused > 0
    assert (ledger.mismatched, ledger.matched, ledger.late) == (3 + refused, 2 + 3 - refused, 1)
    assert (ledger.feedback_duplicates, ledger.conflicts) == (2, 1)


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("names", ["another action", "no action"])
def test_feedback_whose_action_is_another_than_it_was_is_found(mismatched: Pipeline, offset: int, names: str) -> None:
    """Feedback that was refused names the decided action or none, or feedback that was not refused another one."""
    actions = {value["id"]: value["action"] for value in mismatched.values(TOPICS.predictions)}
    sent = orjson.loads(mismatched.records(TOPICS.feedback)[offset].value or b"")
    decided = actions[sent["id"]]
    was_refused = sent["action"] != decided
    named = None if names == "no action" else decided if was_refused else OTHER[decided]
    finding = tampered(mismatched, TOPICS.feedback, change(offset, action=named))
    assert finding.ok is (names == "no action" and not was_refused)
    refused = [fault for fault in finding.faults if fault.startswith(TOPICS.dead_letter)]
    assert len(refused) == (not finding.ok)


def test_records_that_are_not_applied_yet_are_behind_and_no_fault() -> None:
    pipeline = made_by_hand()
    pipeline.context("next")
    pipeline.answer("pending", 1)
    pipeline.answer("next", 1)
    assert audit_partition(pipeline.broker, TOPICS, 0) == Finding(0, GOOD, GOOD, (), 1, 2, latencies=Sketch.of([0] * 4))


def test_learner_that_goes_on_during_the_audit_is_audited_as_it_was_at_its_beginning() -> None:
    pipeline = made_by_hand()
    learner = pipeline.learner()

    decided: list[str] = []

    def go_on(message: str) -> None:
        decided.append(message)
        pipeline.context(f"during {message}")
        pipeline.answer("pending", 1)
        while learner.step(0):
            pass

    while learner.step(0):
        pass
    before = audit_partition(pipeline.broker, TOPICS, 0)
    during = audit_partition(pipeline.broker, TOPICS, 0, go_on)
    assert (during.audited, during.faults, during.ok) == (before.audited, (), True)
    assert audit_partition(pipeline.broker, TOPICS, 0).audited.decided == before.audited.decided + len(decided)


def test_step_that_has_published_and_is_not_in_the_journal_is_found(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.journal, lambda records: records[:-2])
    assert any("has published, and the journal ends with" in fault for fault in finding.faults)


def test_decision_that_waits_beyond_its_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(join: Join, stream_ms: int) -> Iterator[Settled | DroppedOrphan]:
        join.stream_ms = max(join.stream_ms, stream_ms)
        return iter(())

    monkeypatch.setattr(Join, "pass_time", never)
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("overdue")
    for _ in range(5):  # such a learner would go on for ever: what is due stays due
        learner.step(0)
    pipeline.clock.advance_to(pipeline.clock.now_ms + 2_000)
    pipeline.context("later")
    pipeline.answer("later", 1)
    for _ in range(5):  # such a learner would go on for ever: what is due stays due
        learner.step(0)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert any("expected expired 'overdue'; got" in fault for fault in finding.faults), finding


def test_feedback_of_a_decided_event_that_was_dropped_as_an_orphan_is_found(good: Pipeline) -> None:
    offsets = [offset for _, offset in map(decode_example, good.records(TOPICS.examples)) if offset is not None]
    feedback_offset = offsets[-1]
    headers = dead_letter_headers(TOPICS.feedback, 0, feedback_offset, DEAD_LETTER_ORPHAN, "")

    def drop_it(records: list[Record]) -> list[Record]:
        return [*records, records[-1]._replace(value=b"{}", headers=headers)]

    (fault,) = tampered(good, TOPICS.dead_letter, drop_it).faults
    assert fault.startswith(f"{TOPICS.dead_letter}/0 offset 3:")


@pytest.mark.parametrize("field", Ledger._fields)
def test_wrong_count_of_the_learner_is_found_in_every_row(good: Pipeline, field: str) -> None:
    def edit(records: list[Record]) -> list[Record]:
        fields = orjson.loads(records[-1].value or b"")
        fields["ledger"][field] = fields["ledger"].get(field, 0) + 1
        return [*records[:-1], records[-1]._replace(value=orjson.dumps(fields))]

    finding = tampered(good, TOPICS.journal, edit)
    assert not finding.ok
    assert finding.audited == GOOD
    assert finding.learner == GOOD._replace(**{field: getattr(GOOD, field) + 1})


def drop(offset: int) -> Edit:
    return lambda records: [record for record in records if record.offset != offset]


def again(offset: int) -> Edit:
    return lambda records: [*records, records[offset]._replace(append_ms=records[-1].append_ms)]


def change(offset: int, **fields: object) -> Edit:
    def edit(records: list[Record]) -> list[Record]:
        value = orjson.dumps({**orjson.loads(records[offset].value or b""), **fields})
        key = str(fields["id"]).encode() if "id" in fields else records[offset].key
        return [*records[:offset], records[offset]._replace(value=value, key=key), *records[offset + 1 :]]

    return edit


def garbage(records: list[Record]) -> list[Record]:
    return [*records, records[-1]._replace(value=b"{", key=None)]


def header(number: int, name: str, content: str) -> Edit:
    def edit(records: list[Record]) -> list[Record]:
        new = tuple((n, content.encode() if n == f"onebit-{name}" else old) for n, old in records[number].headers)
        return [*records[:number], records[number]._replace(headers=new), *records[number + 1 :]]

    return edit


def appended(offset: int, append_ms: int) -> Edit:
    return lambda records: [r._replace(append_ms=append_ms) if r.offset == offset else r for r in records]


class Tampering(NamedTuple):
    """A change to one topic, and what the audit says to it."""

    claim: str
    topic: str
    edit: Edit
    says: str


# The predictions are of early, matched, expired, pending; the examples of early, matched, expired; the dead letters of
# context 4, feedback 5 and feedback 0.
TAMPERINGS = [
    Tampering("prediction lost", TOPICS.predictions, drop(3), "contexts/0 offset 5: 'pending' has no prediction"),
    Tampering(
        "settled prediction lost", TOPICS.predictions, drop(1), "contexts/0 offset 1: 'matched' has no prediction"
    ),
    Tampering(
        "prediction twice",
        TOPICS.predictions,
        again(3),
        "predictions/0 offset 4: no step has published it",
    ),
    Tampering(
        "duplicate context decided",
        TOPICS.predictions,
        lambda records: change(4, context_offset=3)(again(1)(records)),
        "predictions/0 offset 4: no step has published it",
    ),
    Tampering(
        "prediction of another event",
        TOPICS.predictions,
        change(3, id="other"),
        "contexts/0 offset 5: the prediction of 'pending' is of 'other'",
    ),
    Tampering("prediction of no context", TOPICS.predictions, change(3, context_offset=9), "has no prediction"),
    Tampering("prediction of a malformed context", TOPICS.predictions, change(3, context_offset=4), "no prediction"),
    Tampering(
        "unreadable prediction",
        TOPICS.predictions,
        garbage,
        "predictions/0 offset 4 cannot be read: value: expected JSON",
    ),
    Tampering(
        "other action predicted",
        TOPICS.predictions,
        change(1, action=2),
        "examples/0 offset 1, step 3: expected action 2",
    ),
    Tampering(
        "other time of decision",
        TOPICS.feedback,
        appended(2, 1_099),
        "examples/0 offset 1, step 3: expected delay_ms 101",
    ),
    Tampering("tick lost", TOPICS.feedback, header(2, "tick", "9"), "step 2 has decided, and test.feedback has"),
    Tampering("matched example lost", TOPICS.examples, drop(1), "examples/0, step 3: expected matched 'matched'"),
    Tampering("expired example lost", TOPICS.examples, drop(2), "examples/0, step 4: expected expired 'expired'"),
    Tampering("matched example twice", TOPICS.examples, again(1), "examples/0 offset 3: no step has published it"),
    Tampering("expired example twice", TOPICS.examples, again(2), "examples/0 offset 3: no step has published it"),
    Tampering(
        "unreadable example", TOPICS.examples, garbage, "examples/0 offset 3 cannot be read: value: expected JSON"
    ),
    Tampering(
        "example of nobody",
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
        "matched told as expired",
        TOPICS.examples,
        change(1, outcome="expired"),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "matched made into expired",
        TOPICS.examples,
        change(1, outcome="expired", reward=None, delay_ms=None, feedback_offset=None),
        "examples/0 offset 1, step 3: expected matched 'matched'",
    ),
    Tampering(
        "expired told as matched",
        TOPICS.examples,
        change(2, outcome="matched"),
        "examples/0 offset 2, step 4: expected expired 'expired'",
    ),
    Tampering(
        "expired made into matched",
        TOPICS.examples,
        change(2, outcome="matched", reward=1, delay_ms=1_900, feedback_offset=7),
        "examples/0 offset 2, step 4: expected expired 'expired'",
    ),
    Tampering(
        "reward of an example", TOPICS.examples, change(1, reward=0), "examples/0 offset 1, step 3: expected reward 1"
    ),
    Tampering(
        "reward of an expired one",
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
        "matched by its duplicate",
        TOPICS.examples,
        change(1, feedback_offset=4),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering(
        "matched by what another used",
        TOPICS.examples,
        change(1, feedback_offset=1),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering(
        "matched by nothing",
        TOPICS.examples,
        change(1, feedback_offset=77),
        "examples/0 offset 1, step 3: expected feedback_offset 3",
    ),
    Tampering(
        "dead letter lost",
        TOPICS.dead_letter,
        drop(0),
        "dead-letter/0, step 2: expected a dead letter (malformed) of test.contexts/0 offset 4",
    ),
    Tampering(
        "feedback's dead letter lost",
        TOPICS.dead_letter,
        drop(1),
        "dead-letter/0, step 3: expected a dead letter (malformed) of test.feedback/0 offset 6",
    ),
    Tampering("dead letter twice", TOPICS.dead_letter, again(0), "dead-letter/0 offset 3: no step has published it"),
    Tampering(
        "dead letter of another",
        TOPICS.dead_letter,
        header(0, "offset", "0"),
        "dead-letter/0 offset 0, step 2: expected a dead letter (malformed) of test.contexts/0 offset 4",
    ),
    Tampering(
        "dead letter of another partition",
        TOPICS.dead_letter,
        header(0, "partition", "1"),
        "dead-letter/0 offset 0, step 2: expected a dead letter (malformed) of test.contexts/0 offset 4",
    ),
    Tampering(
        "dead letter of a good feedback",
        TOPICS.dead_letter,
        header(1, "offset", "3"),
        "dead-letter/0 offset 1, step 3: expected a dead letter (malformed) of test.feedback/0 offset 6",
    ),
    Tampering(
        "unreadable dead letter", TOPICS.dead_letter, header(0, "offset", "x"), "dead-letter/0 offset 0 cannot be read"
    ),
    Tampering("step twice", TOPICS.journal, again(-1), "does not follow on"),
    Tampering("step lost", TOPICS.journal, drop(2), "step 4 does not follow on 2"),
    Tampering(
        "context changed",
        TOPICS.contexts,
        change(1, id="other"),
        "contexts/0 offset 1: the prediction of 'other' is of 'matched'",
    ),
    Tampering(
        "context became malformed",
        TOPICS.contexts,
        change(5, x=None),
        "predictions/0 offset 3: step 5 has decided no context at offset 5",
    ),
    Tampering(
        "feedback changed", TOPICS.feedback, change(3, reward=0), "examples/0 offset 1, step 3: expected reward 0"
    ),
    Tampering(
        "feedback became malformed",
        TOPICS.feedback,
        change(8, reward=2),
        "dead-letter/0, step 5: expected a dead letter (malformed) of test.feedback/0 offset 8",
    ),
]


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda tampering: tampering.claim)
def test_audit_finds_what_was_changed_and_says_where(good: Pipeline, tampering: Tampering) -> None:
    finding = tampered(good, tampering.topic, tampering.edit)
    assert not finding.ok
    assert any(tampering.says in fault for fault in finding.faults), finding


# These change no record that names another: only the counts differ.
MISCOUNTS: dict[str, tuple[str, Edit, dict[str, int]]] = {
    "bit of a duplicate": (TOPICS.feedback, change(4, reward=0), {"conflicts": 2}),
    "bit of a conflict": (TOPICS.feedback, change(5, reward=1), {"conflicts": 0}),
    "late feedback of another": (TOPICS.feedback, change(7, id="other"), {"late": 0, "orphans_waiting": 2}),
    "waiting feedback of another": (
        TOPICS.feedback, change(8, id="matched"), {"orphans_waiting": 0, "feedback_duplicates": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", MISCOUNTS)
def test_audit_counts_for_itself(good: Pipeline, claim: str) -> None:
    topic, edit, counts = MISCOUNTS[claim]
    finding = tampered(good, topic, edit)
    assert not finding.ok
    assert finding.audited == GOOD._replace(**counts)


def test_feedback_is_late_although_an_earlier_one_was_dropped_to_make_room() -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=1_000, orphan_ms=500, pending_max=1, orphans_max=1)))
    learner = pipeline.learner()
    makes: list[Callable[[], None]] = [
        lambda: pipeline.answer("a", 1),  # kept
        lambda: pipeline.answer("b", 1),  # kept; that of a has to go
        lambda: pipeline.context("a"),
        lambda: pipeline.context("c"),  # a has to expire
        lambda: pipeline.answer("a", 1),  # within orphan_ms of the first: yet no duplicate of it
    ]
    for make in makes:
        make()
        while learner.step(0):
            pass
    ledger = pipeline.ledger()
    assert (ledger.late, ledger.feedback_duplicates, ledger.orphans_dropped, ledger.orphans_waiting) == (1, 0, 1, 1)
    assert pipeline.audits()[0].ok


def test_decision_that_expired_though_its_feedback_was_in_time_is_a_fault(good: Pipeline) -> None:
    finding = tampered(good, TOPICS.feedback, appended(7, 2_100))
    assert finding.faults[0].startswith(
        f"{TOPICS.examples}/0 offset 2, step 4: expected matched 'expired'; got expired 'expired'"
    )


def test_assumed_reward_of_the_negative_policy_is_expected() -> None:
    pipeline = made_by_hand(on_expiry="negative")
    assert audit_partition(pipeline.broker, TOPICS, 0).ok
    finding = tampered(pipeline, TOPICS.examples, change(2, reward=None))
    assert finding.faults == (f"{TOPICS.examples}/0 offset 2, step 4: expected reward 0; got None",)


def test_faults_are_shown_up_to_a_limit() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for number in range(3 * FAULTS_SHOWN_MAX):
        pipeline.context(f"event-{number}")
    while learner.step(0):
        pass
    finding = tampered(pipeline, TOPICS.predictions, lambda records: [])
    assert len(finding.faults) == FAULTS_SHOWN_MAX
    assert finding.audited.decided == 0


def test_id_that_was_forgotten_may_be_decided_again() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for start_ms in (1_000, 20_000, 40_000):
        pipeline.clock.advance_to(start_ms)
        pipeline.answer(f"other-{start_ms}", 1)  # the time passes
        pipeline.clock.advance_to(start_ms + 1)
        pipeline.context("a")
        while learner.step(0):
            pass
        pipeline.clock.advance_to(start_ms + 11)
        pipeline.answer("a", 1)
        while learner.step(0):
            pass
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.ok, finding
    assert (finding.audited.decided, finding.audited.matched) == (3, 3)


@pytest.mark.parametrize("seed", range(12))
def test_feedback_of_an_id_that_was_forgotten_to_make_room_waits_as_an_orphan_would(seed: int) -> None:
    luck = Random(seed)
    limits = JoinSettings(window_ms=1_000, orphan_ms=1_000, retain_ms=60_000, retained_max=luck.choice((1, 2, 5)))
    pipeline = Pipeline(small_task(join=limits))
    learner = pipeline.learner()
    for number in range(60):
        event = luck.randrange(max(1, number // 3), number + 2)
        if luck.random() < 0.4:
            pipeline.context(f"e{event}")
        for _ in range(luck.choice((0, 1, 2))):
            pipeline.answer(f"e{luck.randrange(event + 1)}", luck.randrange(2))
        if luck.random() < 0.5:
            pipeline.clock.advance_to(pipeline.clock.now_ms + luck.choice((0, 1, 400)))
        if luck.random() < 0.7:
            learner.step(0)
    while learner.step(0):
        pass
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.ok, finding
    assert finding.audited.orphans_waiting + finding.audited.orphans_dropped > 0


@pytest.mark.parametrize("dated_by", ["tick", "context"])
@pytest.mark.parametrize("seed", range(20))
def test_audit_agrees_with_the_learner_where_clocks_step_back_and_others_write_ticks(
    seed: int, dated_by: DatedBy
) -> None:
    luck = Random(seed)
    limits = JoinSettings(
        window_ms=luck.choice((20, 200)), orphan_ms=50, retain_ms=300, pending_max=luck.choice((3, 9))
    )
    pipeline = Pipeline(small_task(join=limits, dated_by=dated_by))
    learner = pipeline.learner(idle_ms=10)
    for number in range(120):
        for _ in range(luck.choice((0, 1, 2))):
            pipeline.context(f"e{luck.randrange(number, number + 3)}")
        for _ in range(luck.choice((0, 1, 2))):
            pipeline.answer(f"e{luck.randrange(max(0, number - 20), number + 3)}", luck.randrange(2))
        if luck.random() < 0.3:
            headers = tick_headers(luck.randrange(len(pipeline.journal()) + 3))
            pipeline.broker.producer().send(TOPICS.feedback, 0, None, None, headers)
        back = dated_by == "tick" and luck.random() < 0.1
        pipeline.clock.now_ms += -luck.choice((1, 15, 60)) if back else luck.choice((0, 0, 1, 8, 40))
        if luck.random() < 0.7:
            learner.step(0)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.faults == ()
    assert finding.ok, finding
    assert min(finding.audited.expired, finding.audited.matched) > 0


def replayed(play: Play) -> Pipeline:
    """Decisions of a uniform log, of which some have the log's action; one gets no feedback."""
    pipeline = Pipeline(small_task("late-ucb", play=play))
    learner = pipeline.learner()
    for number in range(9):
        value = {"id": f"e{number}", "x": [1, 0, 0, 0], "logged": {"action": number // 3, "propensity": 1 / 3}}
        pipeline.send(TOPICS.contexts, orjson.dumps(value))
    while learner.step(0):
        pass
    for number in range(8):
        pipeline.answer(f"e{number}", number % 2)
    pipeline.run((), learner)
    return pipeline


@pytest.mark.parametrize("claimed", ["unmatched", "expired"])
def test_decision_is_unmatched_where_the_log_has_another_action_and_nowhere_else(claimed: str) -> None:
    pipeline = replayed("match")
    (finding,) = pipeline.audits()
    assert finding.ok, finding
    assert min(finding.audited.unmatched, finding.audited.feedback_unmatched, finding.audited.matched) > 0
    examples = pipeline.values(TOPICS.examples)
    offset = next(n for n, one in enumerate(examples) if (one["outcome"] == "unmatched") != (claimed == "unmatched"))
    edit = change(offset, outcome=claimed, reward=None, delay_ms=None, feedback_offset=None)
    (fault,) = tampered(pipeline, TOPICS.examples, edit).faults
    assert fault.startswith(f"{TOPICS.examples}/0 offset {offset},")


@pytest.mark.parametrize(
    ("play", "changes"),
    [
        ("match", {"target": None}),
        ("match", {"target": {"action": 0, "propensity": 0.001}}),
        ("logged", {"target": None}),
        ("logged", {"propensity": 0.25}),
        ("own", {"target": {"action": 1, "propensity": 0.5}}),
    ],
)
def test_prediction_is_what_the_play_of_a_log_asks_for(play: Play, changes: dict[str, Any]) -> None:
    pipeline = replayed(play)
    assert pipeline.audits()[0].ok
    faults = tampered(pipeline, TOPICS.predictions, change(2, **changes)).faults
    assert faults[0].startswith(f"{TOPICS.predictions}/0 offset 2: ")


def test_partition_without_a_journal_is_good_only_when_nothing_was_written() -> None:
    pipeline = Pipeline(small_task())
    pipeline.context("a")
    pipeline.send(TOPICS.feedback, feedback_value("a", 1))
    assert audit_partition(pipeline.broker, TOPICS, 0) == Finding(0, Ledger(), Ledger(), (), 1, 1)
    finding = tampered(made_by_hand(), TOPICS.journal, lambda records: [])
    assert finding.faults == ("step 5 has published, and the journal ends with step 0",)


def test_journal_without_its_first_record_cannot_be_audited(good: Pipeline) -> None:
    with pytest.raises(JournalError, match="expected step 1"):
        tampered(good, TOPICS.journal, drop(0))


def test_dead_letters_of_other_programs_are_not_the_audits_business(good: Pipeline) -> None:
    def foreign(records: list[Record]) -> list[Record]:
        letter = header(0, "topic", TOPICS.predictions)(records)[0]
        return [*records, letter._replace(append_ms=records[-1].append_ms)]

    assert tampered(good, TOPICS.dead_letter, foreign).ok


FOREIGN_HEADERS: dict[str, Any] = {
    "no header": (),
    "a step that is no number": (("onebit-version", b"1"), ("onebit-step", b"x")),
    "a step of 5,000 digits": (("onebit-version", b"1"), ("onebit-step", b"1" * 5_000)),
    "a step without content": (("onebit-version", b"1"), ("onebit-step", None)),
}  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN_HEADERS)
@pytest.mark.parametrize("topic", [TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter])
def test_records_that_no_learner_wrote_are_named_and_counted_and_change_no_count(
    good: Pipeline, topic: str, headers: str
) -> None:
    def slip_in(records: list[Record]) -> list[Record]:
        foreign = records[0]._replace(headers=FOREIGN_HEADERS[headers], key=None, append_ms=records[-1].append_ms)
        return [*records, foreign, foreign._replace(value=None)]

    finding = tampered(good, topic, slip_in)
    assert (finding.audited, finding.faults, finding.ok) == (GOOD, (), True)
    assert finding.foreign_count == 2
    assert finding.foreign[0].startswith(f"{topic}/0 offset {len(good.records(topic))} is not of a learner")


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != TOPICS.snapshots])
def test_ledger_of_which_records_were_deleted_is_not_said_to_differ_but_to_be_gone(topic: str) -> None:
    pipeline = made_by_hand()
    pipeline.broker.delete_records(TopicPartition(topic, 0), 1)
    (finding,) = pipeline.audits()
    assert not finding.ok
    assert (finding.learner, finding.audited, finding.faults) == (Ledger(), Ledger(), ())
    (said,) = finding.gone
    assert said.startswith(f"{topic}/0 begins at offset 1, and the ledger is counted from offset 0 on")
    assert "set its retention.ms to -1" in said


def test_all_that_retention_has_deleted_is_told_at_once() -> None:
    pipeline = made_by_hand()
    for topic in TOPICS.of_events():
        pipeline.broker.delete_records(TopicPartition(topic, 0), 2)
    (finding,) = pipeline.audits()
    assert {said.split("/")[0] for said in finding.gone} == set(TOPICS.of_events())


def test_what_was_deleted_before_the_first_step_is_not_missed() -> None:
    pipeline = Pipeline(small_task())
    for event_id in "abcd":
        pipeline.context(event_id)
        pipeline.answer(event_id, 1)
    for topic in (TOPICS.contexts, TOPICS.feedback):
        pipeline.broker.delete_records(TopicPartition(topic, 0), 2)
    assert pipeline.audits()[0].gone == ()  # nothing was begun
    learner = pipeline.learner()
    while learner.step(0):
        pass
    (finding,) = pipeline.audits()
    assert finding.ok, finding
    assert finding.audited.contexts == 2
    pipeline.broker.delete_records(TopicPartition(TOPICS.contexts, 0), 3)
    assert "begins at offset 3, and the ledger is counted from offset 2 on" in pipeline.audits()[0].gone[0]


def test_decision_expired_before_its_time_is_a_fault_also_after_more_decisions_than_may_be_pending() -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=1_000, orphan_ms=500, pending_max=2)))
    learner = pipeline.learner()

    def step() -> None:
        pipeline.clock.advance_to(pipeline.now_ms() + 10)
        while learner.step(0):
            pass

    for event_id in "abcd":
        pipeline.context(event_id)
        step()
        pipeline.answer(event_id, 1)
        step()
    for event_id in "efg":  # e has to make room
        pipeline.context(event_id)
        step()
    assert [example["outcome"] for example in pipeline.values(TOPICS.examples)] == ["matched"] * 4 + ["expired"]
    assert tampered(pipeline, TOPICS.examples, list).ok
    edit = change(3, outcome="expired", reward=None, delay_ms=None, feedback_offset=None)
    (fault,) = tampered(pipeline, TOPICS.examples, edit).faults
    assert fault.startswith(f"{TOPICS.examples}/0 offset 3,")


def test_finding_as_plain_values_names_all_that_it_holds() -> None:
    ledger, audited = Ledger(contexts=1), Ledger(contexts=2)
    finding = Finding(3, ledger, audited, ("a fault",), 4, 5, ("gone",), ("foreign",), 6, Sketch.of([7]))
    assert finding.as_json() == {
        "partition": 3,
        "ok": False,
        "learner": ledger._asdict(),
        "audited": audited._asdict(),
        "faults": ("a fault",),
        "gone": ("gone",),
        "foreign": ("foreign",),
        "foreign_count": 6,
        "contexts_behind": 4,
        "feedback_behind": 5,
        "latency": {"median_ms": 7, "p90_ms": 7, "p99_ms": 7, "max_ms": 7},
    }


def test_foreign_records_are_shown_up_to_a_limit_and_all_counted(good: Pipeline) -> None:
    def slip_in(records: list[Record]) -> list[Record]:
        return [*records, *[records[-1]._replace(headers=(), key=None)] * (FAULTS_SHOWN_MAX + 1)]

    finding = tampered(good, TOPICS.examples, slip_in)
    assert (len(finding.foreign), finding.foreign_count) == (FAULTS_SHOWN_MAX, FAULTS_SHOWN_MAX + 1)


def test_progress_through_a_long_topic_is_told_after_so_many_records(
    good: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PROGRESS_RECORDS", 3)
    told: list[str] = []
    audit_partition(good.broker, TOPICS, 0, told.append)
    assert [message for message in told if message.startswith(TOPICS.feedback)] == [
        TOPICS.feedback, *(f"{TOPICS.feedback}: {number} records" for number in (3, 6, 9))
    ]  # fmt: skip


def test_decisions_are_timed_from_their_contexts_to_their_predictions() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for event_id, waits_ms in (("a", 5), ("b", 0), ("c", 40)):
        pipeline.context(event_id)
        pipeline.clock.advance_to(pipeline.now_ms() + waits_ms)
        while learner.step(0):
            pass
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.latencies == Sketch.of((0, 5, 40))
    assert quantiles(latencies_of([finding, finding])) == Latency(median_ms=5, p90_ms=41, p99_ms=41, max_ms=41)
