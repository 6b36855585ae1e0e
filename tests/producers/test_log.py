"""Decision logs as data sets: event ids, parts, replay timing, and available feedback."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from producers.datasets.base import Dataset, DatasetError, Known, UnknownEventError
from producers.datasets.log import LoggedOutcome
from producers.feedback.program import FeedbackOptions, FeedbackProgram
from producers.replay.options import ReplayOptions
from producers.replay.program import ReplayProgram, Slip, resume_position
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.reading import read_partition
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.wire.codec import HEADERS
from stream.wire.records import ID_BYTES_MAX, Logged, Record, TopicPartition
from tests.pipeline import TOPICS
from tests.producers.memory_log import clicks, log_of

NOTHING = LoggedOutcome(None, None, None, None, None, None)


def at(*times_ms: int) -> Dataset:
    """Return a log of decisions at these times."""
    return log_of([NOTHING._replace(decided_at_ms=time_ms, action=1, propensity=0.5) for time_ms in times_ms])


class World:
    """An embedded broker with its virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = EmbeddedBroker(self.clock)
        self.broker.create_topics(TOPICS.specs(1))

    def now_ms(self) -> int:
        return self.clock.now_ms

    def records(self, topic: str) -> list[Record]:
        return list(read_partition(self.broker, TopicPartition(topic, 0)))

    def values(self, topic: str) -> list[dict[str, Any]]:
        return [orjson.loads(record.value or b"null") for record in self.records(topic)]

    def replay(self, dataset: Dataset, events: int, **options: Any) -> ReplayProgram:
        return ReplayProgram(self.broker, TOPICS, dataset, ReplayOptions(events, **options), self.now_ms)

    def replayed(self, dataset: Dataset, events: int, **options: Any) -> list[tuple[str, int]]:
        """Replay a log. Return each event's key, and its time since the start of the replay."""
        begun_ms, program = self.clock.now_ms, self.replay(dataset, events, **options)
        while (due_ms := program.next_due_ms()) is not None:
            self.clock.advance_to(max(due_ms, self.clock.now_ms))
            program.step(0)
        assert program.timetable.slip == Slip()
        return [((record.key or b"").decode(), record.append_ms - begun_ms) for record in self.records(TOPICS.contexts)]


AWKWARD = ["a", "a~1", "a~~7", "12", "0~~1", "x" * 255, "é" * 128, "b~", "~", "1~~~1", "0"]


@pytest.mark.parametrize("part", [False, True])
def test_ids_of_later_epochs_are_unique_and_short(part: bool) -> None:
    outcomes = [LoggedOutcome(k, None, 0, 0.5, 1, None) for k in range(len(AWKWARD))]
    data = log_of(outcomes, AWKWARD)
    if part:
        data = data.part(3, None, None)
    ids = [data.event_id(row, epoch) for epoch in range(13) for row in range(data.rows)]
    assert len({*ids, *AWKWARD}) == len(ids) + (3 if part else 0)
    assert max(len(one.encode()) for one in ids) <= ID_BYTES_MAX
    assert [data.parse_event_id(one) for one in ids] == [(e, row) for e in range(13) for row in range(data.rows)]


def test_ids_with_too_many_tildes_allow_one_epoch_only() -> None:
    data = log_of([LoggedOutcome(0, None, 0, 0.5, 1, None)] * 2, ["~" * 200, "a"])
    assert data.event_id(0) == "~" * 200
    with pytest.raises(DatasetError, match="got 200"):
        data.event_id(0, 1)


def test_optional_values_may_first_appear_late() -> None:
    empty = LoggedOutcome(0, None, None, None, None, None)
    full = LoggedOutcome(0, 1, 0, 0.5, 1, 5, np.array([0, 1], np.int32))
    data = log_of([*[empty] * 3_000, full])
    assert (data.has_labels(), data.has_logged(), data.has_eligible(), data.has_delays()) == (True,) * 4
    without = data.part(None, None, 3_000)
    assert (without.has_labels(), without.has_logged(), without.has_eligible(), without.has_delays()) == (False,) * 4


def test_event_id_of_a_log_has_the_epoch_as_suffix() -> None:
    data = at(1, 2, 3)
    assert [slot.event_id for slot in data.schedule(0, 5)] == [
        "visit-0", "visit-1", "visit-2", "visit-0~1", "visit-1~1",
    ]  # fmt: skip
    assert [data.parse_event_id(event_id) for event_id in ("visit-2", "visit-0~12")] == [(0, 2), (12, 0)]


@pytest.mark.parametrize("event_id", ["", "visit-3", "visit-3~1", "visit-0~0", "visit-0~01", "visit-0~", "~1", "x~1~1"])
def test_unknown_id_is_rejected(event_id: str) -> None:
    with pytest.raises(UnknownEventError, match="visits"):
        at(1, 2, 3).known_of(event_id)


def test_reward_of_an_action_comes_from_the_log_or_the_label_or_is_unknown() -> None:
    data = log_of([
        NOTHING._replace(action=1, reward=0), NOTHING._replace(action=2, label=2), NOTHING._replace(action=1, label=1,
        reward=1), NOTHING._replace(action=0),
    ])  # fmt: skip
    bits = [[data.known_of(f"visit-{row}").reward_of(action) for action in range(3)] for row in range(4)]
    assert bits == [[None, 0, None], [0, 0, 1], [0, 1, 0], [None, None, None]]


def test_part_of_a_log_is_limited_by_times_and_row_count() -> None:
    data = at(10, 20, 30, 40, 50)
    part = data.part(20, 50, 2)
    assert (part.rows, part.event_id(0), part.event_id(1)) == (2, "visit-1", "visit-2")
    assert part.block(0, 2).indices.tolist() == [1, 2]
    assert (part.row(1).x.indices.tolist(), part.logged(1)) == ([2], Logged(1, 0.5))
    assert part.parse_event_id("visit-2~1") == (1, 1)
    for outside in ("visit-0", "visit-3"):
        with pytest.raises(UnknownEventError):
            part.known_of(outside)
    assert [data.part(*limits).rows for limits in ((None, None, None), (21, None, None), (None, 50, 9))] == [
        5,
        3,
        4,
    ]


def test_empty_part_is_rejected() -> None:
    with pytest.raises(DatasetError, match="10 to 20 ms"):
        at(10, 20).part(21, None, None)
    with pytest.raises(DatasetError, match="row 0: "):
        log_of([NOTHING, NOTHING]).part(1, None, None)


@pytest.mark.parametrize(("speed", "at_ms"), [(1.0, [0, 1_000, 1_500, 9_000]), (10.0, [0, 100, 150, 900])])
def test_speed_scales_the_times_of_a_log(speed: float, at_ms: list[int]) -> None:
    data = at(5_000, 6_000, 6_500, 14_000)
    assert World().replayed(data, 4, speed=speed) == [(f"visit-{row}", at_ms[row]) for row in range(4)]


def test_log_is_replayed_at_once_or_at_a_rate() -> None:
    data = at(5_000, 6_000, 6_500, 14_000)
    assert [at_ms for _, at_ms in World().replayed(data, 4, speed=float("inf"))] == [0] * 4
    assert [at_ms for _, at_ms in World().replayed(data, 4, rate_per_s=4.0)] == [0, 250, 500, 750]


def test_decreasing_time_in_a_log_does_not_delay_the_replay() -> None:
    assert [at_ms for _, at_ms in World().replayed(at(0, 900, 300, 1_000), 4, speed=1.0)] == [0, 900, 900, 1_000]


def test_next_epoch_starts_one_mean_gap_after_the_last_event() -> None:
    laps = World().replayed(at(100, 200, 700), 7, speed=1.0)
    assert laps == [
        ("visit-0", 0), ("visit-1", 100), ("visit-2", 600), ("visit-0~1", 900), ("visit-1~1", 1_000),
        ("visit-2~1", 1_500), ("visit-0~2", 1_800),
    ]  # fmt: skip


def test_resumed_replay_starts_its_schedule_at_its_first_event() -> None:
    world, data = World(), at(0, 1_000, 9_000, 10_000)
    world.replayed(data, 2, speed=1.0)
    options = ReplayOptions(4, speed=1.0)
    assert resume_position(world.broker, TOPICS, data, options) == 2
    program, begun_ms = world.replay(data, 4, speed=1.0, start=2), world.clock.now_ms
    assert program.next_due_ms() == begun_ms
    program.step(0)
    assert program.next_due_ms() == begun_ms + 1_000


def test_delayed_replay_keeps_its_schedule_and_counts_late_events() -> None:
    world = World()
    program, begun_ms = world.replay(at(0, 1_000, 1_200, 4_000), 4, speed=1.0), world.clock.now_ms
    program.step(0)
    world.clock.advance_to(begun_ms + 3_000)  # the program or the broker was unavailable
    assert program.step(0) == 2
    assert program.next_due_ms() == begun_ms + 4_000
    world.clock.advance_to(begun_ms + 4_100)
    program.step(0)
    assert program.timetable.slip == Slip(events=2, worst_ms=2_000), "a delay of 100 ms is normal, not a slip"


def test_recreated_replay_keeps_its_schedule() -> None:
    world, data = World(), at(0, 1_000, 1_200, 4_000)
    first, begun_ms = world.replay(data, 4, speed=1.0), world.clock.now_ms
    first.step(0)
    world.clock.advance_to(begun_ms + 3_000)  # the broker was unavailable
    options = ReplayOptions(4, speed=1.0, start=1)
    again = ReplayProgram(world.broker, TOPICS, data, options, world.now_ms, first.timetable)
    assert (again.next_due_ms(), again.step(0)) == (begun_ms + 1_000, 2)
    assert again.next_due_ms() == begun_ms + 4_000
    assert first.timetable.slip == Slip(events=2, worst_ms=2_000)


def test_row_without_a_time_is_due_with_the_previous_row() -> None:
    data = log_of([NOTHING._replace(decided_at_ms=at_ms) for at_ms in (100, 700, None, 900)])
    assert [at_ms for _, at_ms in World().replayed(data, 4, speed=1.0)] == [0, 600, 600, 800]


def test_context_of_a_log_contains_the_logged_action() -> None:
    world = World()
    world.replayed(log_of([NOTHING._replace(action=2, propensity=0.25), NOTHING._replace(action=1), NOTHING]), 3)
    assert [value.get("logged") for value in world.values(TOPICS.contexts)] == [
        {"action": 2, "propensity": 0.25}, {"action": 1, "propensity": None}, None,
    ]  # fmt: skip


def answered(
    data: Dataset, played: list[int], plan: FeedbackPlan, announce: Callable[[str], None] = print, **options: Any
) -> list[tuple[str, int, int]]:
    """Return the event id, reward and delay (ms) of each feedback record for these actions."""
    world = World()
    program = FeedbackProgram(
        world.broker, TOPICS, data.known_of, plan, FeedbackOptions(**options), world.now_ms, announce=announce
    )
    begun_ms = world.clock.now_ms
    for row, action in enumerate(played):
        prediction = {
            "id": f"visit-{row}",
            "action": action,
            "greedy": 0,
            "scores": [0, 0, 0],
            "propensity": 1.0,
            "model_version": 0,
            "context_offset": row,
        }
        key = f"visit-{row}".encode()
        world.broker.producer().send(TOPICS.predictions, 0, key, orjson.dumps(prediction), HEADERS)
    program.step(0)
    while (due_ms := program.next_due_ms()) is not None:
        world.clock.advance_to(due_ms)
        program.step(0)
    return [
        (value["id"], value["reward"], record.append_ms - begun_ms)
        for record, value in zip(world.records(TOPICS.feedback), world.values(TOPICS.feedback), strict=True)
    ]


OUTCOMES = [
    LoggedOutcome(1, None, 1, 0.5, 1, 3_000),
    LoggedOutcome(2, None, 1, 0.5, 1, 600),
    LoggedOutcome(3, 2, 1, 0.5, None, 900),
    LoggedOutcome(4, None, 0, 0.5, None, None),
    LoggedOutcome(5, None, 0, 0.5, 0, None),
]


def test_feedback_of_a_log_comes_from_the_logged_reward_or_the_label() -> None:
    plan = FeedbackPlan(1, parse_delay("fixed:50ms"))
    assert answered(log_of(OUTCOMES), [1, 2, 2, 0, 0], plan) == [
        ("visit-0", 1, 50),
        ("visit-2", 1, 50),
        ("visit-4", 0, 50),
    ]


@pytest.mark.parametrize(("speed", "at_ms"), [(1.0, [900, 3_000]), (60.0, [15, 50])])
def test_feedback_delay_of_a_log_is_scaled_by_speed(speed: float, at_ms: list[int]) -> None:
    plan = FeedbackPlan(1, None)
    assert answered(log_of(OUTCOMES), [1, 2, 2, 0, 0], plan, speed=speed) == [
        ("visit-2", 1, at_ms[0]), ("visit-0", 1, at_ms[1]),
    ]  # fmt: skip


def test_outcome_without_a_time_is_reported_once() -> None:
    messages: list[str] = []
    untimed = [LoggedOutcome(1, None, 1, 0.5, 1, None)] * 3
    assert answered(log_of([OUTCOMES[0], *untimed]), [1, 1, 1, 1], FeedbackPlan(1, None), messages.append) == [
        ("visit-0", 1, 3_000)
    ]
    assert messages == [
        "the log has an outcome without a time for visit-1; such decisions receive no feedback and expire. "
        "Set a delay, for example fixed:10s"
    ]
    answered(log_of(untimed), [1, 1, 1], FeedbackPlan(1), messages.append)
    assert len(messages) == 1, "with a delay model, no warning is expected"


def test_loss_and_duplicates_apply_to_feedback_of_a_log() -> None:
    data = clicks(200)
    actions = [data.known_of(f"visit-{row}").action or 0 for row in range(200)]
    assert len(answered(data, actions, FeedbackPlan(1, None))) == 180
    assert 120 < len(answered(data, actions, FeedbackPlan(1, None, loss=0.2))) < 170
    assert 190 < len(answered(data, actions, FeedbackPlan(1, None, duplicates=0.2))) < 240


def test_logged_delays_are_taken_from_the_first_rows_with_an_outcome() -> None:
    assert log_of(OUTCOMES).logged_delays_ms() == [3_000, 600, 900]
    assert at(1, 2).logged_delays_ms() == []


def test_unknown_label_uses_the_default_delay() -> None:
    plan = FeedbackPlan(1, parse_delay("0=fixed:1s;*=fixed:2s"))
    assert (plan("a", None), plan("a", 0), Known().reward_of(0)) == ([2_000], [1_000], None)
