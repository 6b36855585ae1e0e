"""Each record is printed as one readable line without control characters."""

import json

import pytest

from stream.reporting.record_lines import event_id_of, record_json, record_line
from stream.wire.codec import HEADERS, step_headers
from stream.wire.dead_letters import encode_dead_letter
from stream.wire.records import Headers, Record
from tests.pipeline import TOPICS, context_value, feedback_value

AT_MS = 1_700_000_000_250
TIME = "2023-11-14T22:13:20.250Z"


def line(topic: str, value: bytes | None, key: bytes | None = b"a", headers: Headers = HEADERS) -> str:
    found = record_line(Record(topic, 0, 7, AT_MS, key, value, headers), TOPICS)
    assert found.isprintable()
    return found


@pytest.mark.parametrize(
    ("topic", "value", "message"),
    [
        (TOPICS.contexts, context_value("a", 0, 2), 'contexts/0@7 a x={"i":[0,2]}'),
        (TOPICS.feedback, feedback_value("a", 1, action=2), "feedback/0@7 a reward=1 action=2"),
        (TOPICS.feedback, b"\xff\x1b[2J", r"feedback/0@7 a \xff\x1b[2J"),
        (TOPICS.feedback, None, "feedback/0@7 a -"),
        (TOPICS.feedback, b"[1]", "feedback/0@7 a [1]"),
        (TOPICS.feedback, b'{"id":"a","is":%s1%s}' % (b"[" * 999, b"]" * 999), f"feedback/0@7 a is={'[' * 120}"),
        (TOPICS.journal, b'{"n":3,"contexts":[0,2]}', "journal/0@7 n=3 contexts=[0,2]"),
        (TOPICS.snapshots, b"123", "snapshots/0@7 a 3 bytes"),
        (TOPICS.snapshots, None, "snapshots/0@7 a deleted"),
        (TOPICS.dead_letter, b"x", "dead-letter/0@7 a not written by Onebit: x"),
    ],
)
def test_record_line_has_time_offset_id_and_content(topic: str, value: bytes | None, message: str) -> None:
    assert line(topic, value) == f"{TIME} {message}"


def test_dead_letter_line_has_reason_and_original_offset() -> None:
    wrong = Record(TOPICS.feedback, 1, 5, 0, b"a", b'{"id":"a","reward":2}', HEADERS)
    key, value, headers = encode_dead_letter(wrong, "malformed", "reward: expected 0 or 1; got 2\x1b")
    assert line(TOPICS.dead_letter, value, key, headers) == (
        rf'{TIME} dead-letter/0@7 a malformed feedback/1@5: reward: expected 0 or 1; got 2\x1b: {{"id":"a","reward":2}}'
    )


def test_record_line_has_step_and_truncates_long_fields() -> None:
    value = b'{"id":"a","scores":[%s0]}' % (b"0," * 100)
    assert line(TOPICS.predictions, value, headers=step_headers(12)) == (
        f"{TIME} predictions/0@7 a scores=[{'0,' * 59}0… step=12"
    )


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [(b"a", b'{"id":"b"}', "b"), (b"a", b"?", "a"), (None, b"[]", None), (b"\xff", b'{"id":1}', "\\xff")],
)
def test_event_id_is_read_from_the_value_or_else_from_the_key(
    key: bytes | None, value: bytes, found: str | None
) -> None:
    assert event_id_of(Record("t", 0, 7, AT_MS, key, value, ())) == found


def test_record_json_contains_the_complete_record() -> None:
    headers = (("h\udcff", b"1"), ("i", b"\xff"))
    assert json.loads(record_json(Record("t", 1, 7, AT_MS, None, b"\xff", headers))) == {
        "topic": "t", "partition": 1, "offset": 7, "append_ms": AT_MS, "key": None, "value": {"base64": "/w=="},
        "headers": [["h\\xff", "1"], ["i", {"base64": "/w=="}]],
    }  # fmt: skip
