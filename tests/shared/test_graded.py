"""A shared model with graded rewards: its log contains shares, and replicas are equal."""

import numpy as np
import pytest

from stream.shared.replica import Replica
from stream.wire.records import Features, Record
from stream.wire.updates import (
    CORRECTED,
    DECIDED,
    HEADERS,
    NO_BIT,
    SETTLED,
    Entry,
    UpdatesError,
    decode_update,
    encode_updates,
)
from tests.pipeline import small_task

TASK = small_task(
    "late-ucb", parameters={"expand": "none", "drift": "off"}, model="shared", rewards="graded", reward_range="0,5",
    on_expiry="negative", late="correct",
)  # fmt: skip


def written() -> tuple[list[Record], Replica]:
    """Steps with decisions, rewards and a correction, and a replica to which their entries were applied directly."""
    direct = Replica(TASK)
    learner = direct.learner
    records: list[Record] = []
    for step, (first, last) in enumerate([(0.7, None), (0.0, 0.25), (1.0, None)], 1):
        x = Features(np.array([0, step], np.int32), np.array([1.0, 0.5]))
        decision = learner.predict(x, 0.5)
        entries = [Entry(DECIDED, x, decision), Entry(SETTLED, x, decision, first, NO_BIT)]
        learner.observe(x, decision)
        learner.update(x, decision, first)
        if last is not None:
            entries.append(Entry(CORRECTED, x, decision, last, first))
            learner.retract(x, decision, first, last)
        for part in (entries[:1], entries[1:]):  # a record without rewards has the type of bits
            number = len(records) + 1
            (value,) = encode_updates(0, number, number - 1, part)
            records.append(Record("updates", 0, number - 1, 0, None, value, HEADERS))
    return records, direct


def test_replica_learns_the_shares_in_the_log() -> None:
    records, direct = written()
    replica = Replica(TASK)
    for record in records:
        replica.read([record])
    together = Replica(TASK)
    together.read(records)
    for name, array in direct.learner.state().items():
        assert np.array_equal(np.asarray(replica.learner.state()[name]), np.asarray(array))
        assert np.array_equal(np.asarray(together.learner.state()[name]), np.asarray(array))


def test_entries_without_a_share_have_the_bytes_of_bits() -> None:
    update = decode_update(written()[0][0])
    assert update is not None
    assert update.entries.rewards.dtype == np.int8


def test_share_in_the_log_of_bits_is_rejected() -> None:
    replica = Replica(small_task("late-ucb", model="shared"))
    with pytest.raises(UpdatesError):
        replica.read(written()[0])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_number_that_is_not_a_share_is_rejected(share: float) -> None:
    x = Features(np.array([0], np.int32), np.ones(1))
    decision = TASK.make_shareable_learner().predict(x, 0.5)
    (value,) = encode_updates(0, 1, 0, [Entry(SETTLED, x, decision, share, NO_BIT)])
    with pytest.raises(UpdatesError):
        Replica(TASK).read([Record("updates", 0, 0, 0, None, value, HEADERS)])
