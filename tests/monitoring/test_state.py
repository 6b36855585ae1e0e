"""The monitor's state for a partition counts each record once, even after restarts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consumers.monitor.state import CLASSES_MAX, REASONS_MAX, Letters, PartitionState, decode, encode
from consumers.monitor.windows import WINDOW_MS, WINDOWS_MAX, DecisionCounts, Windows, share, total_windows
from stream.telemetry.sketch import Bin, Sketch, total_sketch
from stream.wire import codec
from stream.wire.codec import encode_example, encode_prediction
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED, encode_dead_letter
from stream.wire.records import Decision, Example, Outcome, Prediction, Record
from tests.pipeline import TOPICS


def prediction(offset: int, action: int = 1, greedy: int = 1, append_ms: int = 0, **fields: Any) -> Record:
    decision = Decision(action, greedy, 0.5, np.zeros(max(3, action + 1)))
    value = encode_prediction(Prediction(f"event-{offset}", decision, 0, **fields), offset)
    return Record(TOPICS.predictions, 0, offset, append_ms, b"event-%d" % offset, value, codec.HEADERS)


def example(
    offset: int, reward: int | None = 1, outcome: Outcome = Outcome.MATCHED, delay_ms: int | None = 200
) -> Record:
    value = encode_example(Example(f"event-{offset}", outcome, 1, 0.5, reward, delay_ms, 0, None))
    return Record(TOPICS.examples, 0, offset, 0, b"event-%d" % offset, value, codec.HEADERS)


def letter(offset: int, reason: str = "x: expected numbers") -> Record:
    raised = Record(TOPICS.contexts, 0, 40 + offset, 5, None, b"?", ())
    key, value, headers = encode_dead_letter(raised, DEAD_LETTER_MALFORMED, reason)
    return Record(TOPICS.dead_letter, 0, offset, 7, key, value, headers)


RECORDS = [
    prediction(0), prediction(1, action=2), example(0), prediction(3, append_ms=WINDOW_MS), letter(0),
    example(2, reward=0, delay_ms=0), example(3, None, Outcome.EXPIRED, None),
    example(4, None, Outcome.UNMATCHED, None),
]  # fmt: skip


def test_records_are_counted_by_window_and_class() -> None:
    state = PartitionState()
    assert all(state.take(TOPICS, record) for record in RECORDS)
    assert state.windows.counts == {0: DecisionCounts(2, 1, 2, 1, 1, 1, 2.0, 4.0, 2.0), WINDOW_MS: DecisionCounts(1)}
    assert state.classes == {1: DecisionCounts(2, 0, 2, 1, 1), 2: DecisionCounts(1, 1)}
    assert state.delays.size == 2
    letters = Letters(1, 7, 0, "test.contexts/0 offset 40", "malformed", "x: expected numbers")
    assert state.letters == {"malformed x: expected numbers": letters}
    assert state.next_offset == {TOPICS.predictions: 4, TOPICS.examples: 5, TOPICS.dead_letter: 1}


def test_dead_letters_are_grouped_by_reason_without_values() -> None:
    state = PartitionState()
    for number, reason in enumerate(
        ("x: expected 3 numbers; got 2", "id: expected a text", "x: expected 3 numbers; got 4")
    ):
        state.take(TOPICS, letter(number, reason))
    assert [(one.n, one.offset) for one in state.letters.values()] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("killed_after", range(len(RECORDS) + 1))
def test_records_reread_after_a_restart_are_not_counted_again(killed_after: int) -> None:
    whole, state = PartitionState(), PartitionState()
    for record in RECORDS:
        whole.take(TOPICS, record)
    for record in RECORDS[:killed_after]:
        state.take(TOPICS, record)
    state = decode(encode(state))
    assert [state.take(TOPICS, record) for record in RECORDS] == [at >= killed_after for at in range(len(RECORDS))]
    assert encode(state) == encode(whole)


@pytest.mark.parametrize("make", [prediction, example])
def test_unreadable_record_is_counted_and_skipped(make: Callable[[int], Record]) -> None:
    state = PartitionState()
    state.take(TOPICS, make(0)._replace(value=b"hello"))
    state.take(TOPICS, make(1))
    assert state.unreadable == 1
    assert sum(state.windows.since(0)) == len([count for count in state.windows.since(0) if count])


def test_state_size_is_bounded() -> None:
    state = PartitionState()
    for number in range(CLASSES_MAX + 10):
        state.take(TOPICS, prediction(number, action=number % 3, append_ms=number * WINDOW_MS))
    for number in range(REASONS_MAX + 2):
        state.take(TOPICS, letter(number, reason=f"{number} " + "long " * 1_000))
    state.classes = {number: DecisionCounts(1) for number in range(CLASSES_MAX)}
    state.take(TOPICS, prediction(9_000, action=CLASSES_MAX + 1))
    assert len(state.classes) == CLASSES_MAX
    assert len(state.windows.counts) == WINDOWS_MAX
    assert [kept.offset for kept in state.letters.values()] == list(range(2, REASONS_MAX + 2))
    assert len(encode(state)) < 100_000


def test_windows_of_different_partitions_are_added_by_time() -> None:
    first, second = (
        Windows({0: DecisionCounts(1), WINDOW_MS: DecisionCounts(2)}),
        Windows({WINDOW_MS: DecisionCounts(3), 2 * WINDOW_MS: DecisionCounts(4)}),
    )
    both = total_windows([first, second])
    assert both.counts == {0: DecisionCounts(1), WINDOW_MS: DecisionCounts(5), 2 * WINDOW_MS: DecisionCounts(4)}
    assert (both.since(0), both.since(2 * WINDOW_MS)) == (DecisionCounts(10), DecisionCounts(4))


def test_share_of_0_records_is_none_and_intervals_stay_between_0_and_1() -> None:
    assert share(0, 0) is None
    assert [found and (found.low, found.value, found.high) for found in (share(0, 10), share(10, 10))] == [
        (0.0, 0.0, 0.2775),
        (0.7225, 1.0, 1.0),
    ]


def test_delay_quantiles_are_within_the_documented_error() -> None:
    delays_ms = np.random.Generator(np.random.PCG64(3)).lognormal(7.0, 1.5, 5_000).astype(int)
    halves = Sketch(), Sketch()
    for number, delay_ms in enumerate(delays_ms):
        halves[number % 2].add(int(delay_ms))
    both = total_sketch(halves)
    for share_below in (0.01, 0.5, 0.9, 0.99):
        found = both.quantile_s(share_below)
        assert found == pytest.approx(np.quantile(delays_ms, share_below) / 1_000, rel=0.03)
    assert sum(count for _, _, count in both.bins()) == both.size == 5_000


def test_feedback_before_its_decision_has_delay_0() -> None:
    sketch = Sketch()
    sketch.add(-40)
    assert (sketch.quantile_s(0.5), sketch.bins()) == (0.0, [Bin(0.0, 0.001, 1)])
    assert Sketch().quantile_s(0.5) is None
    assert Sketch().bins() == []


def test_actions_are_counted_by_id_and_the_least_recent_id_is_removed() -> None:
    state = PartitionState()
    for number in range(CLASSES_MAX + 2):
        name = "often" if number % 2 else f"item-{number}"
        record = prediction(2 * number, actions=[name, "other"], class_name=name)
        state.take(TOPICS, record)
    matched = Example("event-0", Outcome.MATCHED, 0, 0.5, 1, 0, 0, None, class_name="often")
    state.take(TOPICS, example(0)._replace(value=encode_example(matched)))
    counts = state.classes["often"]
    assert (counts.decided, counts.matched, counts.rewards) == (CLASSES_MAX // 2 + 1, 1, 1)
    for number in range(CLASSES_MAX + 2, 2 * CLASSES_MAX):
        state.take(TOPICS, prediction(2 * number, actions=["a", "b"], class_name=f"item-{number}"))
    assert (len(state.classes), "item-0" in state.classes, "often" in state.classes) == (CLASSES_MAX, False, True)
    assert list(decode(encode(state)).classes.items()) == list(state.classes.items())
