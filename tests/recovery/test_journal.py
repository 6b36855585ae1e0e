"""The records of a journal: what is written is read, and anything else is refused."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from stream.journal import format as journal
from stream.journal.format import JournalError, JournalStep, LogStep, ReplicaDigest, decode_step, encode_step
from stream.journal.reading import JournalFollower, last_step, read_from_step
from stream.journal.recover import recover
from stream.journal.stored_settings import stored_settings
from stream.kafka.embedded import EmbeddedConsumer
from stream.kafka.port import BrokerUnavailableError
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.wire.ledger import Ledger
from stream.wire.records import Headers, Record, TopicPartition
from tests.pipeline import TOPICS, Pipeline, small_task

GOLDEN = Path(__file__).parents[1] / "golden"

SETTINGS = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    7,
    JoinSettings(window_ms=1_000, orphan_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70),
    "negative",
    "ignore",
)
STEP = JournalStep(7, (120, 150), (80, 95), 31, Ledger(contexts=150, decided=149, context_malformed=1))
FIRST = JournalStep(1, (0, 0), (0, 1), 0, Ledger(contexts=1, decided=1), settings=SETTINGS)
STEPS = [
    FIRST._replace(imported="c0ffee"),
    FIRST,
    STEP,
    STEP._replace(number=8, settings_from=8, settings=SETTINGS),
    STEP._replace(number=9, settings_from=8, alarms=2),
    STEP._replace(log=LogStep(6, 5, 40, 20, "5eb6"), replica=ReplicaDigest("learner-1", "9f86")),
]


def read(value: bytes | None, headers: Headers = journal.HEADERS) -> JournalStep:
    return decode_step(Record("journal", 2, 7, 0, None, value, headers))


@pytest.mark.parametrize("step", STEPS)
def test_record_is_read_as_it_was_written(step: JournalStep) -> None:
    assert read(encode_step(step)) == step


def test_every_count_of_a_ledger_is_read_as_it_was_written() -> None:
    step = STEP._replace(ledger=Ledger(*range(1, len(Ledger._fields) + 1)))
    assert read(encode_step(step)) == step


def test_records_are_the_golden_ones_byte_for_byte() -> None:
    golden = (GOLDEN / "journal.format1").read_bytes().splitlines()
    assert [encode_step(step) for step in STEPS] == golden
    assert dict(journal.HEADERS) == {"onebit-version": b"1"}


@pytest.mark.parametrize("headers", [(), *((("onebit-version", other),) for other in (b"0", b"2", b"", b"01"))])
def test_record_of_another_format_is_refused(headers: Headers) -> None:
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: .*onebit-version=1; got"):
        read(encode_step(STEP), headers)


def test_counts_that_are_absent_are_0_and_unknown_ones_are_refused() -> None:
    fields = orjson.loads(encode_step(STEP))
    assert fields["ledger"] == {"contexts": 150, "decided": 149, "context_malformed": 1}
    fields["ledger"]["newer"] = 3
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: .*newer"):
        read(orjson.dumps(fields))


@pytest.mark.parametrize("value", [b"", None, b"{", b"[]", b"3", b'{"number": 2}', b'{"settings": {}}'])
def test_record_that_cannot_be_read_is_refused_with_its_place(value: bytes | None) -> None:
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: expected a journal record"):
        read(value)


def changed(change: dict[str, Any]) -> bytes:
    fields = orjson.loads(encode_step(FIRST))
    fields["settings"].update(change)
    return orjson.dumps(fields)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (changed({"newer": 3}), "newer"),
        (changed({"parameters.newer": "x"}), "newer"),
        (changed({"learner": "newest"}), "newest"),
    ],
)
def test_unknown_settings_are_refused_and_named(value: bytes, name: str) -> None:
    with pytest.raises(JournalError, match=rf"^journal/2 offset 7: .*{name}"):
        read(value)


@pytest.mark.parametrize("name", stored_settings(SETTINGS))
def test_each_setting_is_needed(name: str) -> None:
    fields = orjson.loads(encode_step(FIRST))
    del fields["settings"][name]
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: "):
        read(orjson.dumps(fields))


def write(pipeline: Pipeline, *steps: JournalStep) -> None:
    for step in steps:
        pipeline.broker.producer().send(TOPICS.journal, 0, None, encode_step(step), journal.HEADERS)


JOURNAL = TopicPartition(TOPICS.journal, 0)


@pytest.mark.parametrize("steps", [1, 2, 99, 100, 101, 350])
def test_last_step_is_found_from_the_end(steps: int) -> None:
    pipeline = Pipeline(small_task())
    assert last_step(pipeline.broker, JOURNAL) is None
    write(pipeline, *(STEP._replace(number=number) for number in range(1, steps + 1)))
    assert last_step(pipeline.broker, JOURNAL) == STEP._replace(number=steps)


@pytest.mark.parametrize("gaps", [0, 3])
def test_steps_are_read_from_any_number(gaps: int) -> None:
    pipeline = Pipeline(small_task())
    producer = pipeline.broker.transactional_producer("gaps")

    def aborted() -> None:
        for _ in range(gaps):
            producer.begin()
            producer.send(TOPICS.journal, 0, None, b"gap")
            producer.abort()

    for number in range(1, 21):
        aborted()
        write(pipeline, STEP._replace(number=number))
    aborted()
    for kept_from in (1, 7):
        for number in range(1, 22):
            found = [step.number for _, step in read_from_step(pipeline.broker, JOURNAL, number)]
            assert found == [*range(max(number, kept_from), 21)]
        pipeline.broker.delete_records(JOURNAL, pipeline.records(TOPICS.journal)[6].offset)


def test_step_is_not_waited_for_without_an_end_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(SETTINGS)
    write(pipeline, FIRST)
    monkeypatch.setattr(EmbeddedConsumer, "poll", lambda consumer, timeout_ms, records_max: [])
    with pytest.raises(BrokerUnavailableError, match="up to offset 1"):
        next(read_from_step(pipeline.broker, JOURNAL, 1))


STRANGERS: list[tuple[bytes | None, Headers]] = [
    (None, ()),
    (b"not JSON", (("trace", b"1"),)),
    (b"[1, 2]", ()),
    (encode_step(FIRST), ()),
]


@pytest.mark.parametrize(("value", "headers"), STRANGERS)
def test_record_of_another_program_is_refused_with_its_place(value: bytes | None, headers: Headers) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    while learner.step(0):
        pass
    learner.close()
    pipeline.broker.producer().send(TOPICS.journal, 0, b"key", value, headers)
    place = rf"{TOPICS.journal}/0 offset {pipeline.records(TOPICS.journal)[-1].offset}"
    for read_it in (
        lambda: recover(pipeline.broker, TOPICS, 0, small_task()),
        lambda: audit_partition(pipeline.broker, TOPICS, 0),
        lambda: replay_journal(pipeline.broker, TOPICS, 0),
        lambda: JournalFollower(pipeline.broker, TOPICS, 1).read(0),
    ):
        with pytest.raises(JournalError, match=place):
            read_it()


def test_journal_with_a_foreign_first_record_is_not_restarted() -> None:
    pipeline = Pipeline(small_task())
    pipeline.broker.producer().send(TOPICS.journal, 0, None, b"hello", ())
    with pytest.raises(JournalError, match=f"{TOPICS.journal}/0 offset 0"):
        recover(pipeline.broker, TOPICS, 0, small_task())
