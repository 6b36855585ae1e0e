"""The records in the update log that a replica applies, skips or rejects."""

import numpy as np
import pytest

from stream.learners import create
from stream.recovery.state import state_digest
from stream.shared.replica import Place, Replica
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features, Foreign, Headers, Record
from stream.wire.sections import Section, encode_section
from stream.wire.updates import DECIDED, HEADERS, SETTLED, Entry, UpdatesError, encode_updates

X = Features(np.array([0, 2], np.int32), np.array([1.0, -0.5]))
WRONG = Decision(1, 0, 0.25, np.array([0.5, 0.25, 0.0]))


def replica(name: str = "banditron") -> Replica:
    return Replica(TaskSettings(name, 3, 4, model="shared"))


def settled(action: int = 1, x: Features = X, reward: int = 1, label: int = -1) -> Entry:
    return Entry(SETTLED, x, WRONG._replace(action=action), reward, label=label)


def record(offset: int, value: bytes, headers: Headers = HEADERS) -> Record:
    return Record("onebit.updates", 0, offset, 1_000, None, value, headers)


def step(offset: int, number: int, follows: int, *entries: Entry, partition: int = 0) -> Record:
    (value,) = encode_updates(partition, number, follows, entries or (settled(),))
    return record(offset, value)


def test_replica_accepts_gaps_between_the_step_numbers_of_a_task() -> None:
    one = replica()
    records = [step(0, 3, 0), step(2, 1, 0, partition=1), step(5, 7, 3), step(6, 2, 1, partition=1)]
    assert one.read(records[:3]) == 3
    assert one.read(records) == 1
    assert (one.version, one.offset, one.updates) == (4, 7, 4)
    assert one.places == {0: Place(7, 1, 0), 1: Place(2, 1, 0)}


def test_replica_applies_the_parts_of_a_step_one_after_another() -> None:
    entries = [settled(), settled(0), settled(2)]
    whole, cut = replica(), replica()
    whole.read([step(0, 1, 0, *entries)])
    values = encode_updates(0, 1, 0, entries, bytes_max=1)
    assert len(values) == 3
    for offset, value in enumerate(values):
        assert cut.read([record(offset, value)]) == 1
    assert cut.places == {0: Place(1, 3, 0)}
    assert state_digest([cut.learner.state()]) == state_digest([whole.learner.state()])


def test_replica_counts_the_decisions_of_each_task() -> None:
    one = replica("late-ucb")
    logged = np.zeros(create("late-ucb", 3, 4).predict(X, 0.5).logged.size)
    decision = WRONG._replace(logged=logged)
    decided = Entry(DECIDED, X, decision)
    one.read([step(0, 1, 0, decided, decided, Entry(SETTLED, X, decision, 1)), step(1, 2, 1, decided)])
    assert (one.place_of(0).decided, one.place_of(1).decided) == (3, 0)


def test_duplicate_record_is_skipped() -> None:
    one, other = replica(), replica()
    one.read([step(0, 1, 0), step(1, 2, 1), step(2, 1, 0), step(3, 2, 1)])
    other.read([step(0, 1, 0), step(1, 2, 1)])
    assert one.version == 2
    assert state_digest([one.learner.state()]) == state_digest([other.learner.state()])


def test_records_of_other_programs_are_skipped_and_reported() -> None:
    one = replica()
    assert one.read([record(0, b"{}", ()), step(1, 1, 0), record(2, b"{}")]) == 1
    assert (one.foreign, one.offset) == (Foreign(2, "onebit.updates/0 offset 0"), 3)


@pytest.mark.parametrize(
    ("records", "offset"),
    [
        ([step(0, 1, 0), step(1, 4, 3)], 1),
        ([step(0, 4, 3)], 0),
        ([record(0, encode_updates(0, 1, 0, [settled()] * 2, bytes_max=1)[1])], 0),
        ([record(0, b"".join(encode_section(Section("updates"))))], 0),
        ([step(0, 1, 0)._replace(headers=((HEADERS[0][0], b"2"),))], 0),
    ],
    ids=["gap", "no beginning", "first part missing", "not an update", "another version"],
)
def test_missing_and_unreadable_records_are_rejected(records: list[Record], offset: int) -> None:
    with pytest.raises(UpdatesError) as raised:
        replica().read(records)
    assert raised.value.place.endswith(f" offset {offset}")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("banditron", settled(3)),
        ("banditron", settled(reward=2)),
        ("banditron", settled(x=Features(np.array([0, 4], np.int32), np.ones(2)))),
        ("banditron", settled(x=Features(np.array([2, 1], np.int32), np.ones(2)))),
        ("late-ucb", settled()),
        ("perceptron", settled()),
    ],
    ids=["action", "reward", "feature", "order of features", "number of scores", "label"],
)
def test_error_for_an_update_that_does_not_fit_the_model_names_the_offset(name: str, entry: Entry) -> None:
    fits = () if name == "late-ucb" else (step(0, 1, 0, settled(label=1)),)
    one = replica(name)
    before = state_digest([one.learner.state()])
    with pytest.raises(UpdatesError) as raised:
        one.read([*fits, step(1, 2, len(fits), settled(label=1) if name == "banditron" else entry, entry)])
    assert raised.value.place.endswith(" offset 1")
    assert state_digest([one.learner.state()]) == before


def test_replica_accepts_lower_feature_indices_in_a_later_event() -> None:
    empty = Features(np.zeros(0, np.int32), np.zeros(0))
    entries = [settled(x=empty), settled(), settled(x=empty), settled(), settled(x=empty)]
    assert replica().read([step(0, 1, 0, *entries)]) == 5
