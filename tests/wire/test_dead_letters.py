"""Dead letters: the parts of a record that they preserve, their headers, and decoding."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.wire.codec import HEADERS, MalformedError, tick_headers
from stream.wire.dead_letters import DEAD_LETTER_MISMATCHED, dead_letter_headers, decode_dead_letter, encode_dead_letter
from stream.wire.records import Headers, Record

GOLDEN = Path(__file__).parents[1] / "golden"
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # lone surrogates cannot be encoded


def record(value: bytes | None, key: bytes | None = None, headers: Headers = HEADERS) -> Record:
    return Record("topic", 0, 7, 1_000, key, value, headers)


@given(TEXTS, COUNTS, COUNTS, TEXTS, TEXTS)
def test_dead_letter_identifies_its_record(topic: str, partition: int, offset: int, kind: str, reason: str) -> None:
    headers = dead_letter_headers(topic, partition, offset, kind, reason)
    assert decode_dead_letter(record(b"anything", headers=headers))[:4] == (topic, partition, offset, kind)


def letter_of(wrong: Record, kind: str = "malformed", reason: str = "why") -> Record:
    """Return a record's dead letter, in the form in which a consumer reads it."""
    key, value, headers = encode_dead_letter(wrong, kind, reason)
    return Record("dead-letter", wrong.partition, 0, 2_000, key, value, headers)


OUR_NAMES = ("onebit-version", "onebit-topic", "onebit-partition", "onebit-offset", "onebit-kind", "onebit-reason")
HEADER_NAMES = st.sampled_from(OUR_NAMES) | TEXTS | st.binary().map(lambda name: name.decode(errors="surrogateescape"))


@given(st.lists(st.tuples(HEADER_NAMES, st.binary()), max_size=8).map(tuple))
def test_dead_letter_keeps_the_original_headers_and_is_decoded(own: Headers) -> None:
    letter = letter_of(record(None, None, own))
    assert decode_dead_letter(letter)[:4] == ("topic", 0, 7, "malformed")
    assert (letter.key, letter.value) == (None, None)
    ours, kept = letter.headers[:6], letter.headers[6:]
    assert tuple(name for name, _ in ours) == OUR_NAMES
    assert tuple((name.removeprefix("original-"), content) for name, content in kept) == tuple(
        (name.removeprefix("original-"), content) for name, content in own
    )
    assert not {name for name, _ in kept} & set(OUR_NAMES)
    assert all(name == given for (name, _), (given, _) in zip(kept, own, strict=True) if not given.startswith("o"))


def test_dead_letter_size_is_limited_for_any_record_and_reason() -> None:
    wrong = record(b"x" * 1_000_000, b"k" * 1_000_000, (("name", b"h" * 1_000_000), *[("n" * 100, b"c" * 100)] * 9_000))
    key, value, headers = encode_dead_letter(wrong, "malformed", "é" * 1_000_000)
    assert key is not None
    assert value is not None
    overhead = 100  # bytes of the batch header and of length fields
    content = sum(len(name) + len(content) + 10 for name, content in headers)
    assert len(key) + len(value) + content + overhead < 2**20


def test_original_headers_with_onebit_names_are_prefixed() -> None:
    own = (("onebit-offset", b"5"), ("original-onebit-offset", b"6"), ("original-", b"7"), ("trace", b"8"))
    assert letter_of(record(b"", headers=own)).headers[6:] == (
        ("original-onebit-offset", b"5"), ("original-original-onebit-offset", b"6"), ("original-", b"7"),
        ("trace", b"8"),
    )  # fmt: skip


def test_dead_letter_of_an_earlier_version_is_decoded() -> None:
    lines = (GOLDEN / "dead-letter.headers").read_text().splitlines()
    headers = tuple((name, content.encode()) for name, content in (line.split(": ", 1) for line in lines))
    assert decode_dead_letter(record(b"", headers=headers))[:4] == ("onebit.contexts", 2, 41, "malformed")


@pytest.mark.parametrize(
    ("key_bytes", "value_bytes", "large_bytes"), [(0, 0, 5_000_000), (400_000, 5_000_000, 300_000), (10**6, 10**6, 1)]
)
def test_dead_letter_with_too_many_headers_keeps_the_headers_that_fit(
    key_bytes: int, value_bytes: int, large_bytes: int
) -> None:
    own = (("large", b"x" * large_bytes), *((f"small-{number}", b"y") for number in range(2_000)))
    letter = letter_of(record(b"v" * value_bytes, b"k" * key_bytes, own))
    size = len(letter.key or b"") + len(letter.value or b"")
    size += sum(len(name) + len(content) + 10 for name, content in letter.headers)
    assert size < 1_048_576 - 1_000
    kept = [header for header in own if header in letter.headers]
    assert ("small-0", b"y") in kept
    assert len(kept) < len(own)
    assert dict(letter.headers)["onebit-headers"] == b"2001"


def test_dead_letter_keeps_large_headers_that_fit() -> None:
    own = (("large", b"x" * 1_000_000),)
    headers = letter_of(record(b"", headers=own)).headers
    assert headers[6:] == own
    assert "onebit-headers" not in dict(headers)


@pytest.mark.parametrize("missing", ["onebit-topic", "onebit-partition", "onebit-offset", "onebit-kind"])
def test_dead_letter_without_a_required_header_is_rejected(missing: str) -> None:
    headers = tuple(header for header in dead_letter_headers("t", 0, 1, "malformed", "why") if header[0] != missing)
    with pytest.raises(MalformedError):
        decode_dead_letter(record(b"", headers=headers))


def lines_of(headers: Headers) -> str:
    """Format headers as in the golden files."""
    return "".join(f"{name}: {content.decode()}\n" for name, content in headers)


def cut_letter() -> Record:
    """Return the dead letter for a record whose key, value and headers exceed the limits."""
    own = (
        ("onebit-version", b"1"), ("large", b"x" * 10**6), ("onebit-offset", b"5"), ("original-onebit-offset", b"6"),
        ("original-x", b"7"), ("trace", b"8"),
    )  # fmt: skip
    wrong = Record("onebit.feedback", 2, 41, 1_000, b"k" * 500_001, b"v" * 500_002, own)
    reason = "feedback for 'a': expected action 2, as it was decided; got 1"
    return letter_of(wrong, DEAD_LETTER_MISMATCHED, reason)


GOLDEN_HEADERS = {
    "dead-letter.headers": dead_letter_headers("onebit.contexts", 2, 41, "malformed", "id: expected a text; got 1"),
    "dead-letter.own.headers": cut_letter().headers,
    "feedback.tick.headers": tick_headers(12),
}


@pytest.mark.parametrize("name", GOLDEN_HEADERS)
def test_headers_equal_the_golden_files_of_version_1(name: str) -> None:
    assert lines_of(GOLDEN_HEADERS[name]) == (GOLDEN / name).read_text()


def test_key_and_value_of_a_dead_letter_are_truncated() -> None:
    letter = cut_letter()
    assert (letter.key, letter.value) == (b"k" * 500_000, b"v" * 500_000)
