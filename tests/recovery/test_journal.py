"""The records of a journal: what is written is read, and anything else is refused."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from stream.journal import format as journal
from stream.journal.format import (
    Entry,
    JournalError,
    JournalStep,
    Opening,
    SettingsChange,
    decode_step,
    encode_entry,
)
from stream.journal.reading import last_step, settings_entry
from stream.journal.stored_settings import stored_settings
from stream.kafka.embedded import EmbeddedConsumer
from stream.kafka.port import BrokerUnavailableError
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
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
ENTRIES: list[Entry] = [
    Opening(SETTINGS, "c0ffee"),
    Opening(SETTINGS),
    STEP,
    SettingsChange(8, SETTINGS),
    STEP._replace(number=8, settings_from=8),
    STEP._replace(number=9, settings_from=8, alarms=2),
]


def read(value: bytes | None, headers: Headers = journal.HEADERS) -> Entry:
    return decode_step(Record("journal", 2, 7, 0, None, value, headers))


@pytest.mark.parametrize("entry", ENTRIES)
def test_record_is_read_as_it_was_written(entry: Entry) -> None:
    assert read(encode_entry(entry)) == entry


def test_every_count_of_a_ledger_is_read_as_it_was_written() -> None:
    step = STEP._replace(ledger=Ledger(*range(1, len(Ledger._fields) + 1)))
    assert read(encode_entry(step)) == step


def test_records_are_the_golden_ones_byte_for_byte() -> None:
    golden = (GOLDEN / "journal.format1").read_bytes().splitlines()
    assert [encode_entry(entry) for entry in ENTRIES] == golden
    assert dict(journal.HEADERS) == {"onebit-version": b"1"}


@pytest.mark.parametrize("headers", [(), *((("onebit-version", other),) for other in (b"0", b"2", b"", b"01"))])
def test_record_of_another_format_is_refused(headers: Headers) -> None:
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: .*onebit-version=1; got"):
        read(encode_entry(STEP), headers)


def test_counts_that_are_absent_are_0_and_unknown_ones_are_refused() -> None:
    fields = orjson.loads(encode_entry(STEP))
    assert fields["ledger"] == {"contexts": 150, "decided": 149, "context_malformed": 1}
    fields["ledger"]["newer"] = 3
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: .*newer"):
        read(orjson.dumps(fields))


@pytest.mark.parametrize("value", [b"", None, b"{", b"[]", b"3", b'{"n": 2}', b'{"n": 0}', b'{"settings": {}}'])
def test_record_that_cannot_be_read_is_refused_with_its_place(value: bytes | None) -> None:
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: expected a journal record"):
        read(value)


def changed(change: dict[str, Any], parameters: dict[str, Any] | None = None) -> bytes:
    fields = orjson.loads(encode_entry(Opening(SETTINGS)))
    fields["settings"].update(change)
    fields["settings"]["parameters"].update(parameters or {})
    return orjson.dumps(fields)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (changed({"newer": 3}), "newer"),
        (changed({}, {"newer": "x"}), "newer"),
        (changed({"learner": "newest"}), "newest"),
    ],
)
def test_unknown_settings_are_refused_and_named(value: bytes, name: str) -> None:
    with pytest.raises(JournalError, match=rf"^journal/2 offset 7: .*{name}"):
        read(value)


@pytest.mark.parametrize("name", stored_settings(SETTINGS))
def test_each_setting_is_needed(name: str) -> None:
    fields = orjson.loads(encode_entry(Opening(SETTINGS)))
    del fields["settings"][name]
    with pytest.raises(JournalError, match=r"^journal/2 offset 7: "):
        read(orjson.dumps(fields))


def write(pipeline: Pipeline, *entries: Entry) -> None:
    for entry in entries:
        pipeline.broker.producer().send(TOPICS.journal, 0, None, encode_entry(entry), journal.HEADERS)


JOURNAL = TopicPartition(TOPICS.journal, 0)


@pytest.mark.parametrize("steps", [1, 2, 99, 100, 101, 350])
def test_last_step_is_found_from_the_end(steps: int) -> None:
    pipeline = Pipeline(small_task())
    assert last_step(pipeline.broker, JOURNAL) is None
    write(pipeline, Opening(SETTINGS))
    assert last_step(pipeline.broker, JOURNAL) is None
    write(pipeline, *(STEP._replace(number=number) for number in range(1, steps + 1)))
    assert last_step(pipeline.broker, JOURNAL) == STEP._replace(number=steps)


@pytest.mark.parametrize("gaps", [0, 3])
def test_record_of_settings_is_found_by_its_step(gaps: int) -> None:
    pipeline = Pipeline(small_task())
    producer = pipeline.broker.transactional_producer("gaps")

    def aborted() -> None:
        for _ in range(gaps):
            producer.begin()
            producer.send(TOPICS.journal, 0, None, b"gap")
            producer.abort()

    changes = {number: SettingsChange(number, SETTINGS) for number in (1, 2, 9, 20)}
    write(pipeline, Opening(SETTINGS))
    for number in range(1, 21):
        aborted()
        if number in changes:
            write(pipeline, changes[number])
        write(pipeline, STEP._replace(number=number))
    aborted()
    assert settings_entry(pipeline.broker, JOURNAL, 0) == Opening(SETTINGS)
    for number in range(1, 22):
        assert settings_entry(pipeline.broker, JOURNAL, number) == changes.get(number)
    pipeline.broker.delete_records(JOURNAL, 1)
    assert settings_entry(pipeline.broker, JOURNAL, 0) is None
    assert settings_entry(pipeline.broker, JOURNAL, 20) == changes[20]


def test_settings_are_not_waited_for_without_an_end_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(SETTINGS)
    write(pipeline, Opening(SETTINGS))
    monkeypatch.setattr(EmbeddedConsumer, "poll", lambda consumer, timeout_ms, records_max: [])
    with pytest.raises(BrokerUnavailableError, match="nothing came for"):
        settings_entry(pipeline.broker, JOURNAL, 0)
