"""The task: the merge order of its inputs, decision times, and results that do not depend on batch sizes."""

from collections import deque
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.learners import ParameterError, create
from stream.learners.first_order import banditron
from stream.learners.second_order import soba
from stream.recovery.state import state_digest
from stream.settings.task_fields import JoinSettings
from stream.task import placement
from stream.task.settings import PolicyError, TaskSettings, Unsuitable
from stream.task.task import Effects, StepFailedError, Task, merge
from stream.wire.codec import NUMBERS_MAX, VERSION_HEADER
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED, DEAD_LETTER_MISMATCHED, DEAD_LETTER_ORPHAN
from stream.wire.ledger import Ledger
from stream.wire.records import NO_CLASS, Example, Outcome, Record
from tests.pipeline import N_CLASSES, N_FEATURES, TOPICS, Inputs, small_task


def timeline(topic: str, times: list[int]) -> deque[Record]:
    return deque(Record(topic, 0, offset, at_ms, None, b"", ()) for offset, at_ms in enumerate(times))


@pytest.mark.parametrize(
    ("contexts", "feedback", "more", "taken"),
    [
        ([], [], "", ""),
        ([10, 30], [20, 25], "", "c10 f20 f25 c30"),
        ([10, 30], [20, 25], "feedback", "c10 f20 f25"),  # unread feedback can have a time before 30
        ([10], [20, 25], "contexts", "c10"),  # unread contexts can have a time before 20
        ([10], [20, 25], "feedback", "c10 f20 f25"),
        ([10], [], "feedback", ""),
        ([], [10], "contexts", ""),
        ([], [10], "feedback", "f10"),
        ([10, 10, 11], [10, 10], "", "c10 c10 f10 f10 c11"),  # contexts come before feedback with the same time
        ([30, 20], [25], "", "f25 c30 c20"),  # contexts stay in offset order even if append times decrease
    ],
)
def test_merge_waits_for_an_input_only_while_this_input_has_lag(
    contexts: list[int], feedback: list[int], more: str, taken: str
) -> None:
    left = timeline("contexts", contexts), timeline("feedback", feedback)
    merged = merge(*left, contexts_lag=3 * (more == "contexts"), feedback_lag=3 * (more == "feedback"), records_max=100)
    assert " ".join(f"{record.topic[0]}{record.append_ms}" for record in merged) == taken
    assert len(merged) + len(left[0]) + len(left[1]) == len(contexts) + len(feedback)


@pytest.mark.parametrize(("records_max", "taken"), [(2, [10, 20]), (3, [10, 20, 25]), (4, [10, 20, 25, 30])])
def test_merge_returns_at_most_the_given_number_of_records_in_order(records_max: int, taken: list[int]) -> None:
    contexts, feedback = timeline("contexts", [10, 30]), timeline("feedback", [20, 25, 40])
    merged = merge(contexts, feedback, contexts_lag=0, feedback_lag=0, records_max=records_max)
    assert [record.append_ms for record in merged] == taken
    assert sorted(record.append_ms for record in (*contexts, *feedback)) == [10, 20, 25, 30, 40][records_max:]


def by_context(learner: str = "banditron", **changes: Any) -> TaskSettings:
    """Return settings with `dated_by="context"`: a decision's time is the append time of its context."""
    return small_task(learner, dated_by="context", **changes)


def run(task: Task, records: list[Record], end_ms: int = -1) -> Effects:
    """Run a step with these records. If `end_ms` is not negative, a tick at this time follows the records."""
    return task.step([*records, *([Inputs().tick(0, end_ms)] if end_ms >= 0 else [])], 1)


def test_tick_sets_only_the_decision_times_of_its_step() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10), inputs.context("b", 11)], 1)
    task.step([inputs.context("c", 12)], 2)
    task.step([inputs.tick(1, 15), inputs.tick(7, 16)], 3)
    times = [pending.time.ms for pending in task.join.pending.values()]
    assert (times, list(task.undated), task.join.stream_ms) == ([15, 15, None], [2], 16)


def test_decision_times_never_decrease_despite_leader_clock_skew() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10)], 1)
    task.step([inputs.tick(1, 500), inputs.context("b", 11)], 2)
    task.step([inputs.tick(2, 400)], 3)
    assert [pending.time.ms for pending in task.join.pending.values()] == [500, 500]


def test_decision_without_a_tick_never_expires() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10)], 1)
    assert task.step([inputs.tick(0, 10**9)], 2).examples == []
    effects = task.step([inputs.tick(1, 10**9), inputs.tick(0, 10**9 + 1_001)], 3)
    assert [example.outcome for example, _ in effects.examples] == [Outcome.EXPIRED]


def test_feedback_before_the_tick_of_its_decision_has_no_delay() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10)], 1)
    effects = task.step([inputs.feedback("a", 1, 900), inputs.tick(1, 901)], 2)
    assert [(example.outcome, example.delay_ms) for example, _ in effects.examples] == [(Outcome.MATCHED, 0)]
    assert task.undated == {}


def test_ledger_does_not_count_ticks() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.tick(1, 10), inputs.tick(2, 11)], 3)
    assert task.join.ledger() == Ledger()


def test_task_rejects_steps_after_a_failed_step() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    with pytest.raises(AttributeError):
        task.step([inputs.context("a", 10), None], 1)  # type: ignore[list-item]
    with pytest.raises(StepFailedError):
        task.step([], 1)


@pytest.mark.parametrize("late", ["ignore", "correct"])
def test_decision_that_cannot_teach_is_settled_without_an_update(late: Any) -> None:
    task, inputs = Task(by_context(on_expiry="negative", late=late), TOPICS.contexts), Inputs()
    run(task, [inputs.context("a", 10), inputs.context("b", 10)])
    for event_id, pending in list(task.join.pending.items()):
        task.join.pending[event_id] = pending._replace(decision=pending.decision._replace(greedy=NO_CLASS))
    effects = run(task, [inputs.feedback("a", 1, 20)], end_ms=1_021)
    run(task, [inputs.feedback("b", 1, 1_030)])
    assert [(example.id, example.reward) for example, _ in effects.examples] == [("a", 1), ("b", 0)]
    assert task.version == 0


def test_example_contains_the_outcome_of_the_decision() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    effects = run(task, [inputs.context("a", 10), inputs.context("b", 20), inputs.feedback("a", 1, 40)], end_ms=1_021)
    decided = {prediction.id: prediction.decision for prediction, _ in effects.predictions}
    assert effects.examples == [
        (Example("a", Outcome.MATCHED, decided["a"].action, decided["a"].propensity, 1, 30, 40, 0), ()),
        (Example("b", Outcome.EXPIRED, decided["b"].action, decided["b"].propensity, None, None, 1_021, None), ()),
    ]


def test_feedback_before_its_context_is_applied_with_delay_0() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    effects = run(task, [inputs.feedback("a", 1, 10), inputs.context("a", 40)])
    assert [(example.outcome, example.delay_ms, example.feedback_offset) for example, _ in effects.examples] == [
        (Outcome.MATCHED, 0, 0)
    ]
    assert task.version == 1


def test_prediction_contains_the_model_version() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    records = [
        inputs.context("a", 10), inputs.feedback("a", 0, 11), inputs.context("b", 12), inputs.context("b", 13),
        inputs.feedback("b", 0, 14), inputs.context("c", 15),
    ]  # fmt: skip
    effects = run(task, records)
    assert [(p.id, p.model_version, offset) for p, offset in effects.predictions] == [
        ("a", 0, 0),
        ("b", 1, 1),
        ("c", 2, 3),
    ]


def test_update_depends_only_on_the_context_the_decision_and_the_bit() -> None:
    chosen = by_context(seed=9, parameters={"gamma": 0.5})
    task, inputs = Task(chosen, TOPICS.contexts), Inputs()
    effects = run(task, [inputs.context("a", 10, 1, 3), inputs.feedback("a", 1, 20)])
    decision = effects.predictions[0][0].decision
    alone = create("banditron", N_CLASSES, N_FEATURES, gamma=0.5)
    x = np.array([0.0, 1.0, 0.0, 1.0])
    alone.predict(x, 0.5)
    alone.update(x, decision, 1)
    assert state_digest([alone.state()]) == state_digest([task.learner.state()])


def test_decision_is_observed_once_before_its_update() -> None:
    task, inputs = Task(by_context("late-ucb"), TOPICS.contexts), Inputs()
    run(
        task,
        [inputs.feedback("b", 1, 9), inputs.context("a", 10, 1, 3), inputs.context("a", 11), inputs.context("b", 12)],
    )
    alone = create("late-ucb", N_CLASSES, N_FEATURES)
    first, second = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    alone.observe(first, alone.predict(first, 0.5))
    decision = alone.predict(second, 0.5)
    alone.observe(second, decision)
    alone.update(second, decision, 1)
    assert state_digest([alone.state()]) == state_digest([task.learner.state()])


@pytest.mark.parametrize(("on_expiry", "reward", "updates"), [("drop", None, 0), ("negative", 0, 1)])
def test_expired_decision_is_applied_according_to_the_policy(on_expiry: Any, reward: int | None, updates: int) -> None:
    task = Task(by_context(on_expiry=on_expiry), TOPICS.contexts)
    effects = run(task, [Inputs().context("a", 10)], end_ms=1_011)
    assert [(example.outcome, example.reward) for example, _ in effects.examples] == [(Outcome.EXPIRED, reward)]
    assert task.version == updates


def test_late_feedback_does_not_change_the_model_without_corrections() -> None:
    task, inputs = Task(by_context(on_expiry="negative"), TOPICS.contexts), Inputs()
    run(task, [inputs.context("a", 10)], end_ms=1_011)
    before = state_digest([task.learner.state()])
    effects = run(task, [inputs.feedback("a", 1, 1_012)])
    assert (effects.examples, effects.dead_letters) == ([], [])
    assert (state_digest([task.learner.state()]), task.join.ledger().late) == (before, 1)


def test_late_feedback_corrects_the_assumed_reward_once() -> None:
    corrected, inputs = Task(by_context(on_expiry="negative", late="correct"), TOPICS.contexts), Inputs()
    run(corrected, [inputs.context("a", 10)], end_ms=1_011)
    run(corrected, [inputs.feedback("a", 1, 1_012), inputs.feedback("a", 1, 1_013), inputs.feedback("a", 0, 1_014)])
    prompt, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    run(prompt, [inputs.context("a", 10), inputs.feedback("a", 1, 20)])
    np.testing.assert_allclose(corrected.learner.weights(), prompt.learner.weights(), atol=1e-12)
    assert corrected.join.ledger().late == 3


def test_correction_reverts_the_update_with_its_original_draw() -> None:
    parameters = {"alpha": 0.5, "covariance": "full"}  # a reward of 0 subtracts x only if v < (1+α)/2
    ids = [f"e{number}" for number in range(20)]
    late = Task(by_context("confidit", parameters=parameters, on_expiry="negative", late="correct"), TOPICS.contexts)
    inputs = Inputs()
    run(late, [inputs.context(event_id, 10) for event_id in ids], end_ms=1_011)
    run(late, [inputs.feedback(event_id, 1, 1_012) for event_id in ids])
    prompt, inputs = Task(by_context("confidit", parameters=parameters), TOPICS.contexts), Inputs()
    contexts = [inputs.context(event_id, 10) for event_id in ids]
    run(prompt, [*contexts, *(inputs.feedback(event_id, 1, 20) for event_id in ids)])
    np.testing.assert_allclose(late.learner.weights(), prompt.learner.weights(), atol=1e-9)


MALFORMED: list[bytes | None] = [
    None, b"", b"{", b"[]", b'{"id":""}', b'{"id":1}', orjson.dumps({"id": "a" * 10_000}), b'{"id":"a"}',
    b'{"id":"a","x":{"i":[-1]},"reward":2}', b'{"id":"a","x":{"i":[4]},"reward":null}',
    b'{"id":"a","x":[1],"reward":1.5}', b'{"id":"a","x":[1],"reward":"1"}', b'{"id":"a","x":1,"reward":1,"action":3}',
    b'{"id":"a","x":1,"reward":1,"action":1.0}', b'{"id":"a","x":1,"reward":1,"action":"no"}',
    b'{"id":"a","x":[NaN,1,1,1]}', b'{"id":"a","x":{"i":[10000000]},"label":0}',
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("topic", [TOPICS.contexts, TOPICS.feedback])
def test_malformed_record_becomes_a_dead_letter_and_changes_nothing_else(topic: str, value: bytes | None) -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    before = state_digest([task.learner.state()])
    record = inputs.add(topic, 10, value)
    effects = run(task, [record])
    assert [(letter.record, letter.kind) for letter in effects.dead_letters] == [(record, DEAD_LETTER_MALFORMED)]
    assert ": expected" in effects.dead_letters[0].reason
    assert (effects.predictions, effects.examples) == ([], [])
    assert state_digest([task.learner.state()]) == before
    counted = Ledger(contexts=1, context_malformed=1), Ledger(feedback=1, feedback_malformed=1)
    assert task.join.ledger() == counted[topic == TOPICS.feedback]


def test_malformed_feedback_advances_stream_time() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    run(task, [inputs.context("a", 10), inputs.add(TOPICS.feedback, 1_011, b"{")])
    assert task.join.ledger().expired == 1


def test_record_of_a_later_version_is_malformed() -> None:
    task = Task(by_context(), TOPICS.contexts)
    later = Inputs().context("a", 10)._replace(headers=((VERSION_HEADER[0], b"2"),))
    assert run(task, [later]).dead_letters[0].reason == "version: expected 1; got b'2'"


@pytest.mark.parametrize("policy", [{}, {"on_expiry": "negative"}, {"on_expiry": "negative", "late": "correct"}])
def test_unshown_decision_never_causes_an_update(policy: dict[str, Any]) -> None:
    task, inputs = Task(by_context(**policy), TOPICS.contexts), Inputs()
    effects = run(task, [inputs.context("a", 10, deferred=True)], end_ms=1_011)
    before = state_digest([task.learner.state()])
    run(task, [inputs.feedback("a", 1, 1_012), inputs.shown("a", 1_013)])
    assert [(example.outcome, example.reward) for example, _ in effects.examples] == [(Outcome.UNSHOWN, None)]
    assert (state_digest([task.learner.state()]), task.version, task.join.ledger().late) == (before, 0, 2)


def test_window_of_a_deferred_decision_starts_when_it_is_shown() -> None:
    task, inputs = Task(by_context(on_expiry="negative"), TOPICS.contexts), Inputs()
    records = [inputs.context("a", 10, deferred=True), inputs.context("b", 10, deferred=True)]
    records += [inputs.shown("a", 900), inputs.shown("b", 900), inputs.feedback("a", 1, 1_900)]
    effects = run(task, records, end_ms=1_901)
    assert [(example.id, example.outcome, example.reward, example.delay_ms) for example, _ in effects.examples] == [
        ("a", Outcome.MATCHED, 1, 1_000), ("b", Outcome.EXPIRED, 0, None),
    ]  # fmt: skip


def test_decision_without_a_time_does_not_extend_the_window_of_a_shown_decision() -> None:
    task, inputs = Task(small_task(), TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10, deferred=True)], 1)
    task.step([inputs.tick(1, 15), inputs.context("b", 20)], 2)
    task.step([inputs.shown("a", 30), inputs.tick(2, 900)], 3)
    effects = task.step([inputs.tick(3, 1_031)], 4)
    assert [example.id for example, _ in effects.examples] == ["a"]


def test_shown_record_without_a_context_becomes_a_dead_letter() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    shown = inputs.shown("a", 10)
    effects = run(task, [shown], end_ms=511)
    assert [(letter.record, letter.kind) for letter in effects.dead_letters] == [(shown, DEAD_LETTER_ORPHAN)]


def test_shorter_activation_window_settles_overdue_decisions_at_the_next_step() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    run(task, [inputs.context("a", 10, deferred=True)], end_ms=300)
    task.change_settings(by_context(join=replace(small_task().join, activation_window_ms=200)))
    assert [example.outcome for example, _ in task.step([], 2).examples] == [Outcome.UNSHOWN]


def test_dropped_orphan_becomes_a_dead_letter_with_its_reason() -> None:
    limits = JoinSettings(orphan_window_ms=500, orphans_max=1)
    task, inputs = Task(by_context(join=limits), TOPICS.contexts), Inputs()
    first, second = inputs.feedback("a", 1, 10), inputs.feedback("b", 1, 20)
    effects = run(task, [first, second], end_ms=521)
    assert [(letter.record, letter.kind) for letter in effects.dead_letters] == [
        (first, DEAD_LETTER_ORPHAN), (second, DEAD_LETTER_ORPHAN),
    ]  # fmt: skip
    assert [letter.reason for letter in effects.dead_letters] == [
        "feedback for 'a': the limit of 1 orphans was exceeded",
        "feedback for 'b': expected its context within 500 ms; got none",
    ]


def test_feedback_without_a_label_is_malformed_for_a_full_information_learner() -> None:
    task, inputs = Task(by_context("perceptron"), TOPICS.contexts), Inputs()
    effects = run(task, [inputs.context("a", 10), inputs.feedback("a", 0, 20), inputs.feedback("a", 0, 21, label=2)])
    assert [letter.reason for letter in effects.dead_letters] == [
        "label: expected the true class, which this learner needs; got none"
    ]
    assert task.join.ledger() == Ledger(contexts=1, decided=1, feedback=2, feedback_malformed=1, matched=1)
    assert task.learner.weights()[2].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "unheard-of"}, "unknown learner 'unheard-of'"),
        ({"parameters": {"delta": 1}}, "banditron: unknown parameter 'delta'"),
        ({"parameters": {"gamma": 2.0}}, "parameter gamma"),
        ({"n_classes": 1}, "n_classes"),
        ({"n_classes": NUMBERS_MAX + 1}, "n_classes"),
        (
            {"n_classes": NUMBERS_MAX, "learner": "late-ucb", "parameters": {"expand": "none"}, "model": "shared"},
            "n_classes",
        ),
        ({"n_classes": NUMBERS_MAX + 1, "learner": "igw-logistic", "open_classes": True}, "classes_max"),
        ({"n_features": 0}, "n_features"),
    ],
)
def test_task_with_invalid_settings_is_rejected(changes: dict[str, Any], message: str) -> None:
    given = {"learner": "banditron", "n_classes": N_CLASSES, "n_features": N_FEATURES, **changes}
    with pytest.raises(ParameterError, match=message):
        Task(TaskSettings(**given), TOPICS.contexts)


@pytest.mark.parametrize(
    ("learner", "policies", "reason"),
    [
        ("perceptron", {"on_expiry": "negative"}, Unsuitable.NO_LABEL),
        ("banditron", {"late": "correct"}, Unsuitable.NOTHING_ASSUMED),
        ("soba", {"on_expiry": "negative", "late": "correct"}, Unsuitable.NOT_RETRACTABLE),
    ],
)
def test_error_for_a_policy_that_a_learner_does_not_support_has_the_reason(
    learner: str, policies: dict[str, Any], reason: Unsuitable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(create("soba", 2, 1)), "retractable", False)
    with pytest.raises(PolicyError) as raised:
        small_task(learner, **policies).make_learner()
    assert (raised.value.reason, raised.value.learner) == (reason, learner)
    assert "--" not in str(raised.value)


def test_feedback_that_names_another_action_becomes_a_dead_letter() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    decided = run(task, [inputs.context("a", 10)]).predictions[0][0].decision.action
    before = state_digest([task.learner.state()])
    wrong = inputs.feedback("a", 1, 20, action=(decided + 1) % N_CLASSES)
    effects = run(task, [wrong])
    assert [(letter.record, letter.kind) for letter in effects.dead_letters] == [(wrong, DEAD_LETTER_MISMATCHED)]
    assert effects.dead_letters[0].reason == (
        f"feedback for 'a': expected the decided action {decided}; got {(decided + 1) % N_CLASSES}"
    )
    assert (effects.examples, state_digest([task.learner.state()])) == ([], before)
    effects = run(task, [inputs.feedback("a", 1, 30, action=decided)])
    assert [(example.outcome, example.delay_ms, example.feedback_offset) for example, _ in effects.examples] == [
        (Outcome.MATCHED, 20, 1)
    ]
    assert task.join.ledger() == Ledger(contexts=1, decided=1, feedback=2, matched=1, mismatched=1)


def decided_action() -> int:
    """Return the action that the task chooses for event a."""
    return run(Task(by_context(), TOPICS.contexts), [Inputs().context("a", 10)]).predictions[0][0].decision.action


def test_orphan_that_names_another_action_becomes_a_dead_letter_when_its_context_arrives() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    wrong = inputs.feedback("a", 1, 10, action=(decided_action() + 1) % N_CLASSES)
    effects = run(task, [wrong, inputs.context("a", 40)])
    assert [(letter.record, letter.kind) for letter in effects.dead_letters] == [(wrong, DEAD_LETTER_MISMATCHED)]
    assert effects.examples == []
    assert task.join.ledger() == Ledger(contexts=1, decided=1, pending=1, feedback=1, mismatched=1)


def test_late_feedback_that_names_another_action_does_not_correct_the_model() -> None:
    task, inputs = Task(by_context(on_expiry="negative", late="correct"), TOPICS.contexts), Inputs()
    run(task, [inputs.context("a", 10)], end_ms=1_011)
    before = state_digest([task.learner.state()])
    effects = run(task, [inputs.feedback("a", 1, 1_012, action=(decided_action() + 1) % N_CLASSES)])
    assert [letter.kind for letter in effects.dead_letters] == [DEAD_LETTER_MISMATCHED]
    assert state_digest([task.learner.state()]) == before
    run(task, [inputs.feedback("a", 1, 1_013, action=decided_action())])
    assert state_digest([task.learner.state()]) != before
    assert (task.join.ledger().late, task.join.ledger().mismatched) == (1, 1)


def placed(record: Record, partition: int, key: bytes | None) -> Record:
    return record._replace(partition=partition, key=key)


@pytest.mark.parametrize("with_key", [True, False])
def test_misplaced_records_are_counted_and_applied(with_key: bool) -> None:
    # Kafka's partitioner assigns keys d and f to partition 1 of 2, and key a to partition 0.
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    records = [
        placed(record, 0, event_id.encode() if with_key else None)
        for event_id in "adf"
        for record in (inputs.context(event_id, 10), inputs.feedback(event_id, 1, 20), inputs.feedback(event_id, 1, 21))
    ]
    task.step(records, 1, 2)
    assert task.join.ledger() == Ledger(
        contexts=3, decided=3, feedback=6, matched=3, feedback_duplicates=3, contexts_misplaced=2, feedback_misplaced=4
    )
    assert task.join.ledger().balances


def test_malformed_record_is_misplaced_if_its_key_belongs_to_another_partition() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    bad = [inputs.add(TOPICS.contexts, 10, b"{"), inputs.add(TOPICS.feedback, 11, None)]
    task.step([placed(record, 0, None) for record in bad], 1, 2)
    assert task.join.ledger() == Ledger(contexts=1, context_malformed=1, feedback=1, feedback_malformed=1)
    task.step([placed(record, 0, b"d") for record in bad], 1, 2)
    task.step([placed(record, 0, b"a") for record in bad], 1, 2)
    assert (task.join.ledger().contexts_misplaced, task.join.ledger().feedback_misplaced) == (1, 1)


def test_no_record_is_misplaced_with_one_partition() -> None:
    task, inputs = Task(by_context(), TOPICS.contexts), Inputs()
    run(task, [placed(inputs.context(event_id, 10), 0, event_id.encode()) for event_id in "adf"])
    assert task.join.ledger().contexts_misplaced == 0


@st.composite
def streams(draw: st.DrawFn) -> list[Record]:
    """Generate records in the order of their append times. If times are equal, contexts come before feedback."""
    ids = st.sampled_from("abcdefgh")
    inputs = Inputs()
    at_ms = 0
    for _ in range(draw(st.integers(1, 40))):
        at_ms += draw(st.sampled_from([0, 1, 40, 300, 700]))
        kind = draw(st.sampled_from(["context", "context", "feedback", "feedback", "bad"]))
        if kind == "context":
            inputs.context(draw(ids), at_ms, *sorted(draw(st.sets(st.integers(0, N_FEATURES - 1), min_size=1))))
        elif kind == "feedback":
            inputs.feedback(draw(ids), draw(st.integers(0, 1)), at_ms)
        else:
            inputs.add(draw(st.sampled_from([TOPICS.contexts, TOPICS.feedback])), at_ms, b"{}")
    return sorted(inputs.records, key=lambda record: (record.append_ms, record.topic != TOPICS.contexts, record.offset))


def reported(task: Task, steps: list[Effects]) -> tuple[object, ...]:
    """Return the output and the final state as values that support `==`."""
    predictions = [
        (p.id, *p.decision[:3], p.decision.scores.tobytes(), p.model_version, offset)
        for step in steps
        for p, offset in step.predictions
    ]
    examples = [entry for step in steps for entry in step.examples]
    letters = [letter for step in steps for letter in step.dead_letters]
    return predictions, examples, letters, state_digest([task.learner.state()]), task.join.ledger(), task.version


@settings(max_examples=60, deadline=None)
@given(
    records=streams(),
    cuts=st.sets(st.integers(0, 40)),
    learner=st.sampled_from(["banditron", "soba-diag"]),
    negative=st.booleans(),
)
def test_results_do_not_depend_on_the_division_of_records_into_steps(
    records: list[Record], cuts: set[int], learner: str, negative: bool
) -> None:
    chosen = by_context(learner, on_expiry="negative" if negative else "drop")
    at_once, in_steps = Task(chosen, TOPICS.contexts), Task(chosen, TOPICS.contexts)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    steps = [run(in_steps, records[start:stop]) for start, stop in pairwise(bounds)]
    assert reported(in_steps, steps) == reported(at_once, [run(at_once, records)])
    assert in_steps.join.ledger().balances


@settings(max_examples=60, deadline=None)
@given(records=streams(), portions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_merge_order_does_not_depend_on_read_sizes(records: list[Record], portions: list[tuple[int, int]]) -> None:
    contexts = deque(record for record in records if record.topic == TOPICS.contexts)
    feedback = deque(record for record in records if record.topic == TOPICS.feedback)
    read: tuple[deque[Record], deque[Record]] = (deque(), deque())
    merged: list[Record] = []
    for more_contexts, more_feedback in (*portions, (100, 100)):
        for source, target, more in ((contexts, read[0], more_contexts), (feedback, read[1], more_feedback)):
            target.extend(source.popleft() for _ in range(min(more, len(source))))
        merged += merge(*read, contexts_lag=len(contexts), feedback_lag=len(feedback), records_max=1_000)
    assert merged == records


@pytest.mark.parametrize("learner", ["banditron", "soba-diag"])
def test_first_step_compiles_nothing_after_warm_up(learner: str) -> None:
    """After the warm-up, the first step must not compile a kernel for a new signature."""
    small_task(learner).warm_up()
    before = _compiled()
    inputs = Inputs()
    task = Task(by_context(learner), TOPICS.contexts)
    task.step([inputs.context("a", 5), inputs.feedback("a", 1, 6)], 1, 3)
    assert task.version == 1
    assert before[placement, "_partitions_of"] > 0
    assert _compiled() == before


def _compiled() -> dict[tuple[ModuleType, str], int]:
    """Return the number of compiled signatures for each kernel in these modules."""
    return {
        (module, name): len(found.signatures)
        for module in (placement, banditron, soba)
        for name, found in vars(module).items()
        if hasattr(found, "signatures")
    }
