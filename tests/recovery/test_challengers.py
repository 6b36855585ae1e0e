"""Challengers and changes of the champion in a complete pipeline."""

from typing import Any

import numpy as np
import pytest

import onebit
from stream.task.changes import ChangeRefusedError
from stream.task.settings import PolicyError, Unsuitable
from stream.task.stored_settings import SettingsDifferError, resolve, stored_settings
from stream.verifying.reapply import replay_journal
from stream.wire.codec import decode_prediction
from stream.wire.records import Challenged, TopicPartition
from tests.pipeline import small_task

K, D = 3, 4
SETTINGS: dict[str, Any] = {
    "n_classes": K, "n_features": D, "learner": "igw-logistic", "challenger": ["late-ucb:m=2,drift=off", "banditron"],
    "floor": 0.2, "snapshot_interval": "5s",
}  # fmt: skip
NAMES = ("igw-logistic", "late-ucb:m=2,drift=off", "banditron")


@pytest.mark.parametrize("shared", [{}, {"model": "shared", "partitions": 2}], ids=["own", "shared"])
def test_new_champion_decides_from_the_next_event_on_across_restarts(shared: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    with onebit.embedded(**SETTINGS, **shared) as pipeline:
        for t in range(120):
            decision = pipeline.decide(f"event-{t}", rng.normal(size=D).tolist())
            pipeline.feedback(f"event-{t}", int(decision.action == t % K), after="7s")
            pipeline.advance("1s")
            if t in (30, 80):
                pipeline.restart()
            if t in (40, 90):
                pipeline.change(champion={40: NAMES[2], 90: NAMES[1]}[t])
        with pytest.raises(ChangeRefusedError):
            pipeline.change(champion="nobody")
        test = pipeline.test
        found: dict[str, Challenged] = {}
        for partition in range(test.partitions):
            records = test.broker.reader([TopicPartition(test.topics.predictions, partition)]).poll(0, 1_000)
            assert replay_journal(test.broker, test.topics, partition).ok
            predictions = [decode_prediction(record)[0] for record in records]
            found |= {one.id: one.challenged for one in predictions if one.challenged is not None}
        champions = [found[f"event-{t}"].champion for t in range(120)]
        assert champions == [NAMES[0]] * 41 + [NAMES[2]] * 50 + [NAMES[1]] * 29
        assert all({one.champion, *one.choices} == set(NAMES) and len(one.choices) == 2 for one in found.values())


def test_order_of_challengers_does_not_matter() -> None:
    orders: list[dict[str, dict[str, Any]]] = [{"late-ucb": {}, "banditron": {}}, {"banditron": {}, "late-ucb": {}}]
    one, other = (small_task("igw-logistic", challengers=order) for order in orders)
    assert one.members == other.members == ("igw-logistic", "banditron", "late-ucb")
    states = [task.make_learner().state() for task in (one, other)]
    assert list(map(np.shape, states[0].values())) == list(map(np.shape, states[1].values()))
    assert states[0].keys() == states[1].keys()


def test_error_for_an_unsupported_policy_names_the_challenger() -> None:
    task = small_task("igw-logistic", reward="any", parameters={"others": 0.0}, challengers={"soba": {}})
    with pytest.raises(PolicyError) as raised:
        task.make_learner()
    assert raised.value.learner == "soba"


def test_challenger_that_cannot_decide_among_eligible_classes_is_named() -> None:
    task = small_task("banditron", challengers={"rdue": {}})
    assert task.unsupported == "rdue"
    with pytest.raises(PolicyError) as raised:
        task.check_eligible()
    assert (raised.value.reason, raised.value.learner) == (Unsuitable.NO_ELIGIBLE, "rdue")
    assert small_task("banditron", challengers={"late-ucb": {}}).unsupported is None


def test_confidit_with_projection_cannot_be_a_challenger_or_have_challengers() -> None:
    projected = {"projection": 1}
    for task in (
        small_task("igw-logistic", challengers={"confidit:projection=1": projected}),
        small_task("confidit", parameters=projected, challengers={"igw-logistic": {}}),
    ):
        with pytest.raises(PolicyError) as refused:
            task.make_learner()
        assert (refused.value.reason, refused.value.learner) == (Unsuitable.NO_CHALLENGE, "confidit")
    small_task("confidit", challengers={"confidit:eta=2": {"eta": 2}}).make_learner()


def test_challengers_of_the_user_must_be_those_of_the_pipeline() -> None:
    stored = small_task("banditron", challengers={"late-ucb": {}})
    other = small_task("banditron", challengers={"late-ucb": {"m": 2}})
    with pytest.raises(SettingsDifferError):
        resolve(stored_settings(stored), other, {"challengers"}, place="the journal")
