"""Mutations of the join's table. Either the table check rejects a changed rule, or the join differs from the oracle."""

from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from stream.settings.task_fields import JoinSettings
from stream.task.join import Join, Late
from stream.task.join_table import TRANSITIONS, Input, Move, Rule, State, TableError, check_table
from stream.task.task import Task
from stream.wire.records import Feedback
from stream.wire.rewards import FeedbackRule
from tests.oracles.join_oracle import JoinOracle
from tests.pipeline import TOPICS, Inputs, small_task
from tests.task.test_join import LIMITS, RECORD, ROWS, Driver

OFTEN, TIGHT = 1_000, 2

SETTINGS = (
    JoinSettings(
        window_ms=8,
        activation_window_ms=6,
        orphan_window_ms=5,
        retain_ms=13,
        pending_max=OFTEN,
        orphans_max=OFTEN,
        retained_max=OFTEN,
    ),
    JoinSettings(
        window_ms=4,
        activation_window_ms=10,
        orphan_window_ms=11,
        retain_ms=9,
        pending_max=TIGHT,
        orphans_max=OFTEN,
        retained_max=OFTEN,
    ),
    JoinSettings(
        window_ms=9, orphan_window_ms=6, retain_ms=20, pending_max=OFTEN, orphans_max=TIGHT, retained_max=OFTEN
    ),
    JoinSettings(
        window_ms=9, orphan_window_ms=12, retain_ms=20, pending_max=OFTEN, orphans_max=OFTEN, retained_max=TIGHT
    ),
)
"""All durations differ, and each limit has a low value in only one of these entries. A join that confuses two
settings therefore fails."""

RULES: tuple[FeedbackRule, ...] = ("first", "max", "sum")
SEEDS = 6
INPUTS = 120


def check_rows() -> None:
    """Assert that the join has the effects that `ROWS` lists."""
    for row in ROWS:
        driver = Driver(LIMITS, rule=row.rule)
        assert (driver.run(row.script), driver.join.ledger()) == (row.happens, row.ledger)


def check_against_the_oracle(limits: JoinSettings, seed: int) -> None:
    """Assert that the join agrees with the oracle after each input of a random run."""
    rng = Random(seed)
    assumes_negative = rng.random() < 0.5
    rule = RULES[seed % len(RULES)]
    driver = Driver(limits, negative=assumes_negative, rule=rule)
    oracle = JoinOracle(limits, 0 if assumes_negative else None, rule, highest=3, parts_max=3)
    now_ms = 0
    for _ in range(INPUTS):
        now_ms += rng.choice((0, 0, 0, 1, 2, limits.window_ms))
        event_id, action = rng.choice("abcdef"), rng.randrange(2)
        match rng.randrange(6):
            case 0 | 1:
                unmatched, deferred = rng.randrange(4) == 0, rng.randrange(2) == 0
                reported = driver.context(event_id, now_ms, action, unmatched=unmatched, deferred=deferred)
                assert reported == oracle.context(event_id, now_ms, action, unmatched=unmatched, deferred=deferred)
            case 2 | 3:
                reward, named = rng.randrange(2 if rule == "first" else 4), rng.choice((None, action))
                part, final = rng.choice("pqrs"), rng.randrange(8) == 0
                reported = driver.feedback(event_id, reward, now_ms, named, part, final=final)
                assert reported == oracle.feedback(event_id, reward, now_ms, named, part, final=final)
            case 4:
                assert driver.show(event_id, now_ms) == oracle.show(event_id, now_ms)
            case _:
                assert driver.time(now_ms) == oracle.time(now_ms)
        join = driver.join
        assert join.ledger() == oracle.ledger()
        assert join.ledger().balances


def check_all() -> None:
    check_rows()
    for limits in SETTINGS:
        for seed in range(SEEDS):
            check_against_the_oracle(limits, seed)


class Change(NamedTuple):
    """The join's table with one changed or missing rule."""

    name: str
    table: dict[tuple[State, Input], Rule]


def changes() -> list[Change]:
    found: list[Change] = []
    for row, rule in TRANSITIONS.items():
        name = f"{row[0].name} + {row[1].name}"
        others = [rule._replace(move=move) for move in Move] + [rule._replace(after=state) for state in State]
        others += [rule._replace(counts=other.counts) for other in TRANSITIONS.values()]
        others += TRANSITIONS.values()
        found += [
            Change(f"{name}: {number} {other}", {**TRANSITIONS, row: other})
            for number, other in enumerate(dict.fromkeys(others))
            if other != rule
        ]
        rest = {key: kept for key, kept in TRANSITIONS.items() if key != row}
        found.append(Change(f"{name}: removed", rest))
    return found


def test_join_agrees_with_the_oracle() -> None:
    check_all()


def test_every_changed_rule_is_rejected_or_detected() -> None:
    unnoticed = []
    for change in changes():
        try:
            check_table(change.table)
        except TableError:
            continue
        # Without this patch, each join would check the table again, which would take most of the time.
        with patch.dict(TRANSITIONS, change.table), patch("stream.task.join.check_table"):
            try:
                check_all()
            except (AssertionError, TableError):  # the result is wrong, or the join rejects the table
                continue
        unnoticed.append(change.name)
    assert unnoticed == []


REJECTED = {
    "match": Rule(Move.MATCH, State.MATCHED, ("matched",)),
    "take late": Rule(Move.TAKE_LATE, State.MATCHED, ("late",)),
    "refuse": Rule(Move.REFUSE, State.MATCHED, ("mismatched",)),
    "forget": Rule(Move.FORGET, State.UNSEEN, ("feedback_duplicates",)),
    "expired": Rule(Move.IGNORE_FEEDBACK, State.EXPIRED, ("feedback_duplicates",)),
}


@pytest.mark.parametrize("edit", REJECTED)
def test_join_rejects_a_table_with_a_contradictory_rule(edit: str) -> None:
    with (
        patch.dict(TRANSITIONS, {(State.MATCHED, Input.FEEDBACK): REJECTED[edit]}),
        pytest.raises(TableError, match=r"MATCHED \+ FEEDBACK"),
    ):
        Join(LIMITS)


def replacing(state: State) -> Any:
    rule = TRANSITIONS[state, Input.FEEDBACK]
    return patch.dict(TRANSITIONS, {(state, Input.FEEDBACK): rule._replace(move=Move.REPLACE)})


def test_changed_table_can_replace_the_reward_of_an_orphan() -> None:
    with replacing(State.ORPHAN):
        assert Driver(LIMITS).run("right a@0, wrong a@5, context a@10") == ["feedback conflict", "matched a 0"]


@pytest.mark.parametrize("corrects", [True, False])
def test_changed_table_can_replace_the_reward_of_a_matched_decision(corrects: bool) -> None:
    with replacing(State.MATCHED):
        driver = Driver(LIMITS, corrects=corrects)
        driver.run("context a@0, right a@5")
        first = driver.join.retained["a"]
        assert (first.pending is not None) is corrects
        assert driver.join.receive_feedback(Feedback("a", 0), RECORD) == (Late(Feedback("a", 0), first),)
    assert driver.join.retained["a"] == first._replace(reward=0)
    assert driver.join.ledger().balances


def weights_after(*bits: int, learner: str) -> Any:
    """Return the weights of a task that has received these bits for one decision, with `late=correct`."""
    settings = small_task(learner, dated_by="context", on_expiry="negative", late="correct")
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10), *(inputs.feedback("a", bit, 20) for bit in bits)], 1)
    return task.learner.weights()


@pytest.mark.parametrize(("learner", "learned"), [("banditron", 0), ("soba-diag", 1)])
def test_replaced_reward_corrects_the_model_if_the_learner_can_reverse_the_first(learner: str, learned: int) -> None:
    with replacing(State.MATCHED):
        found = weights_after(1, 0, learner=learner)
    np.testing.assert_allclose(found, weights_after(learned, learner=learner), atol=1e-12)
    assert not np.allclose(found, weights_after(1 - learned, learner=learner))
