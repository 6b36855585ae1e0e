"""Requested changes take effect at the same step in the learner and in every program that reads the journal."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from consumers.learner.program import LearnerProgram
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.control import read_requests
from stream.recovery.recover import (
    InForce,
    pipeline_settings,
    reading_pipeline_settings,
    rebuild,
    recover,
    settings_in_force,
)
from stream.recovery.slices import Parts, finish
from stream.recovery.state import task_digest
from stream.recovery.steps import JournalError, MissingRecordsError, decode_step, encode_step
from stream.settings.task_fields import JoinSettings
from stream.task.carry import ChangeError
from stream.task.changes import Changed
from stream.task.settings import TaskSettings
from stream.task.stored_settings import SettingsDifferError, differences, stored_settings
from stream.task.task import Task
from stream.verifying.models import export_model, import_model
from stream.verifying.reapply import replay_journal
from stream.wire.control import Replaced, Request, encode_request
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import partition_for
from tests.pipeline import TOPICS, CrashError, Inputs, Pipeline, crash_at, run_until_idle, small_task

JOURNAL = TopicPartition(TOPICS.journal, 0)
LIMITS = JoinSettings(
    window_ms=1_000, orphan_window_ms=500, retain_ms=2_000, pending_max=40, orphans_max=20, retained_max=1_000
)
INITIAL = small_task("soba-diag", join=LIMITS)


def traffic(pipeline: Pipeline, program: LearnerProgram, numbers: range) -> None:
    """Send events with feedback that is early, in time, late, duplicate or missing."""
    for number in numbers:
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"event-{number}", number % 4)
        if number % 3:
            pipeline.answer(f"event-{number - 7 * (number % 11)}", number % 2)
        if number % 5 == 0:
            pipeline.answer(f"event-{number + 12}", 1)
        run_until_idle(program)


def wanted_by(settings: TaskSettings) -> dict[str, Any]:
    """Return the stored settings that differ from the initial ones, with their new values."""
    return {name: change.new for name, change in differences(INITIAL.resolved(), settings.resolved()).items()}


CHANGES: dict[str, TaskSettings] = {
    "shorter window": replace(INITIAL, join=replace(LIMITS, window_ms=300)),
    "longer window": replace(INITIAL, join=replace(LIMITS, window_ms=5_000)),
    "shorter orphan window": replace(INITIAL, join=replace(LIMITS, orphan_window_ms=100)),
    "shorter retention of settled IDs": replace(INITIAL, join=replace(LIMITS, retain_ms=100)),
    "fewer pending": replace(INITIAL, join=replace(LIMITS, pending_max=5)),
    "fewer retained": replace(INITIAL, join=replace(LIMITS, retained_max=3)),
    "negative feedback on expiry": replace(INITIAL, on_expiry="negative"),
    "all together": replace(
        INITIAL,
        join=JoinSettings(
            window_ms=250, orphan_window_ms=90, retain_ms=700, pending_max=6, orphans_max=2, retained_max=900
        ),
        on_expiry="negative",
    ),
}


def assert_agree_everywhere(pipeline: Pipeline, program: LearnerProgram) -> None:
    """Assert that recovery, replay and audit agree with the program's state and settings."""
    expected = task_digest(program.tasks[0])
    for snapshots in (True, False):
        found = rebuild(pipeline.broker, TOPICS, 0, snapshots=snapshots)
        assert task_digest(found.task) == expected
        assert found.task.settings == program.tasks[0].settings
    replayed = replay_journal(pipeline.broker, TOPICS, 0)
    assert replayed.ok, replayed
    (finding,) = pipeline.audits()
    assert finding.ok, finding


@pytest.mark.parametrize("claim", CHANGES)
def test_recovery_replay_and_audit_follow_a_change_of_settings(claim: str) -> None:
    pipeline, snapshot_interval_ms = Pipeline(INITIAL), 50
    program = pipeline.learner(snapshot_interval_ms=snapshot_interval_ms)
    traffic(pipeline, program, range(100))
    before = pipeline.journal()[-1]
    wanted = CHANGES[claim]
    pipeline.request(**wanted_by(wanted))
    traffic(pipeline, program, range(100, 200))
    assert program.tasks[0].settings == replace(wanted, parameters=program.tasks[0].settings.parameters)
    assert changes(pipeline) == {before.number + 1: program.tasks[0].settings}
    assert {step.settings_from for step in pipeline.journal()[: before.number]} == {1}
    assert {step.settings_from for step in pipeline.journal()[before.number :]} == {before.number + 1}
    assert_agree_everywhere(pipeline, program)
    # Change the settings back, then restart without any settings.
    pipeline.request(**{name: stored_settings(INITIAL)[name] for name in wanted_by(wanted)})
    traffic(pipeline, program, range(200, 260))
    program.close()
    program = pipeline.learner(settings=wanted, given=(), snapshot_interval_ms=snapshot_interval_ms)
    traffic(pipeline, program, range(260, 300))
    assert program.tasks[0].settings.join == LIMITS
    assert_agree_everywhere(pipeline, program)
    ledger = pipeline.ledger()
    assert min(ledger.matched, ledger.expired, ledger.late, ledger.orphans_dropped, ledger.conflicts) > 0


def changes(pipeline: Pipeline) -> dict[int, TaskSettings]:
    """Return the settings stored in the journal after the first step, keyed by step number."""
    return {step.number: step.settings for step in pipeline.journal()[1:] if step.settings is not None}


def started(**options: Any) -> tuple[Pipeline, LearnerProgram]:
    pipeline = Pipeline(INITIAL)
    program = pipeline.learner(**options)
    traffic(pipeline, program, range(60))
    program.close()
    return pipeline, program


SHORTER = CHANGES["shorter window"]


def test_different_setting_is_rejected_before_any_write() -> None:
    pipeline, _ = started()
    ends = pipeline.ends()
    program = pipeline.learner(settings=SHORTER)
    with pytest.raises(SettingsDifferError) as raised:
        run_until_idle(program)
    assert raised.value.differences == {"window_ms": Replaced(1_000, 300)}
    assert pipeline.ends() == ends


def test_unset_settings_do_not_change_and_require_no_step() -> None:
    pipeline, program = started()
    state = task_digest(program.tasks[0])
    others = small_task("banditron", seed=9, join=JoinSettings(), on_expiry="negative")
    again = pipeline.learner(settings=others, given=())
    run_until_idle(again)
    assert task_digest(again.tasks[0]) == state
    assert changes(pipeline) == {}


def test_change_without_effect_stores_no_settings() -> None:
    pipeline, _ = started()
    pipeline.request(window_ms=1_000)
    again = pipeline.learner()
    traffic(pipeline, again, range(60, 70))
    assert changes(pipeline) == {}
    assert pipeline.journal()[-1].control == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"window_ms": Replaced(1, 2)},  # other settings than the pipeline's
        {"window_ms": Replaced(1_000, -1)},
        {"window_ms": Replaced(1_000, "5m")},
        {"late": Replaced("ignore", "correct")},  # without --on-expiry negative
        {"champion": Replaced(None, "banditron")},  # no challengers
        {"seed": Replaced(0, 1)},
        {"speed": Replaced(None, 1)},
        {"window_ms": Replaced(1_000, 10**20)},  # not a JSON number of 64 bits
        {"parameters.gamma": Replaced(0.1, 10**20)},
        {"holdout_policy": Replaced("uniform", "constant:" + "x" * 950_000)},
    ],
    ids=lambda damage: str(damage)[:60],
)
def test_impossible_request_is_refused_with_a_reason(damage: dict[str, Replaced]) -> None:
    pipeline, _ = started()
    plain = {name: {"from": change.old, "to": change.new} for name, change in damage.items()}
    pipeline.send(TOPICS.control, json.dumps({"id": "a", "by": "tests", "changes": plain}).encode())
    program = pipeline.learner()
    traffic(pipeline, program, range(60, 70))
    ((offset, reason),) = (refused for step in pipeline.journal() for refused in step.refused)
    assert (offset, changes(pipeline)) == (0, {})
    assert any(name in reason for name in (*damage, "late", "settings"))
    assert_agree_everywhere(pipeline, program)


def test_request_is_applied_once_although_it_is_sent_twice() -> None:
    pipeline, _ = started()
    request = pipeline.request(window_ms=300)
    program = pipeline.learner(given=())
    traffic(pipeline, program, range(60, 70))
    pipeline.request(window_ms=1_000)
    pipeline.send(TOPICS.control, encode_request(request))
    traffic(pipeline, program, range(70, 80))
    assert program.tasks[0].settings.join.window_ms == 1_000
    assert [offset for step in pipeline.journal() for offset, _ in step.refused] == [2]


def test_record_that_is_not_a_request_is_refused() -> None:
    pipeline, _ = started()
    pipeline.send(TOPICS.control, b"{}")
    program = pipeline.learner()
    run_until_idle(program)
    assert [offset for offset, _ in pipeline.journal()[-1].refused] == [0]
    assert_agree_everywhere(pipeline, program)


def test_restart_with_the_requested_settings_is_accepted_and_with_the_earlier_ones_rejected() -> None:
    pipeline, _ = started()
    pipeline.request(window_ms=300)  # no learner is running
    with pytest.raises(SettingsDifferError):
        run_until_idle(pipeline.learner(settings=INITIAL))
    program = pipeline.learner(settings=SHORTER)
    run_until_idle(program)
    assert program.tasks[0].settings.join.window_ms == 300


def test_idle_task_applies_a_change_immediately_in_its_own_step() -> None:
    pipeline, _ = started()
    last = pipeline.journal()[-1]
    pipeline.request(window_ms=300)
    again = pipeline.learner(settings=SHORTER)
    assert again.step(0) == 2  # one recovery and one step
    step = pipeline.journal()[-1]
    assert (step.number, step.settings_from) == (last.number + 1, last.number + 1)
    assert (step.contexts, step.feedback) == ((last.contexts[1],) * 2, (last.feedback[1],) * 2)
    again.close()
    found = recover(pipeline.broker, TOPICS, 0, INITIAL, given=())
    assert found.task.settings.join.window_ms == 300


@pytest.mark.parametrize("number", COMMIT_STEPS)
@pytest.mark.parametrize("snapshot_interval_ms", [0, 1])
def test_change_is_atomic_if_the_learner_dies_during_its_commit(number: int, snapshot_interval_ms: int) -> None:
    pipeline, _ = started()
    steps = len(pipeline.journal())
    pipeline.context("next")
    pipeline.request(window_ms=300)
    options: dict[str, Any] = {"settings": SHORTER, "snapshot_interval_ms": snapshot_interval_ms}
    program = pipeline.learner(crash_point=crash_at(number), **options)
    with pytest.raises(CrashError):
        run_until_idle(program)
    pipeline.broker.transactional_producer("onebit-learner-learner-1")  # aborts the transaction, like a broker timeout
    found = rebuild(pipeline.broker, TOPICS, 0)
    is_committed = number == COMMIT_STEPS[-1]
    assert found.task.settings.join.window_ms == (300 if is_committed else 1_000)
    assert found.step.number == steps + is_committed
    again = pipeline.learner(**options)
    traffic(pipeline, again, range(60, 100))
    assert [*changes(pipeline)] == [steps + 1]
    assert_agree_everywhere(pipeline, again)


def test_state_at_every_step_has_the_settings_of_that_step_with_and_without_snapshots() -> None:
    pipeline, _ = started(snapshot_interval_ms=100)
    pipeline.request(window_ms=300)
    program = pipeline.learner(settings=SHORTER, snapshot_interval_ms=100)
    traffic(pipeline, program, range(60, 80))
    first = pipeline.journal()[-1].settings_from
    newest = [rebuild(pipeline.broker, TOPICS, 0, until=n).stored.newest for n in (first - 1, first + 15)]
    generations = [generation.number for generation in newest if generation]
    assert len(set(generations)) == 2, "one snapshot before the change and one after it"
    assert generations[0] < first <= generations[1]
    for number in range(first - 8, first + 20):
        one = rebuild(pipeline.broker, TOPICS, 0, until=number)
        other = rebuild(pipeline.broker, TOPICS, 0, until=number, snapshots=False)
        assert task_digest(one.task) == task_digest(other.task)
        assert one.task.settings.join.window_ms == (300 if number >= first else 1_000)
        assert one.step.settings_from == other.step.settings_from == (first if number >= first else 1)
        meta = export_model(pipeline.broker, TOPICS, 0, number=number).meta
        assert meta["settings"]["join"]["window_ms"] == one.task.settings.join.window_ms


def test_settings_are_known_after_retention_deleted_their_record() -> None:
    pipeline, _ = started(snapshot_interval_ms=50)
    pipeline.request(window_ms=300)
    program = pipeline.learner(settings=SHORTER, snapshot_interval_ms=50)
    traffic(pipeline, program, range(60, 80))
    newest = rebuild(pipeline.broker, TOPICS, 0).stored.newest
    assert newest is not None
    step = f'"number":{newest.number},'.encode()
    offset = next(record.offset for record in pipeline.records(TOPICS.journal) if step in (record.value or b""))
    pipeline.broker.delete_records(JOURNAL, offset)
    pulses: list[int] = []
    reading = reading_pipeline_settings(pipeline.broker, TOPICS, 1)
    found = finish(reading, lambda: pulses.append(1))
    assert (found.settings["window_ms"], found.control) == (300, 1)
    assert len(pulses) > len(pipeline.records(TOPICS.snapshots))  # the callback runs for each record and section
    program.close()
    again = pipeline.learner(settings=INITIAL, given=(), snapshot_interval_ms=50)
    traffic(pipeline, again, range(80, 90))
    assert again.tasks[0].settings.join.window_ms == 300
    assert task_digest(rebuild(pipeline.broker, TOPICS, 0).task) == task_digest(again.tasks[0])


def test_settings_are_unknown_if_a_change_outside_snapshots_was_deleted() -> None:
    pipeline, _ = started(snapshot_interval_ms=50)
    pipeline.request(window_ms=300)
    program = pipeline.learner(settings=SHORTER, snapshot_interval_ms=0)
    traffic(pipeline, program, range(60, 80))
    change = next(record.offset for record in pipeline.records(TOPICS.journal)[1:] if is_change(record))
    assert settings_in_force(pipeline.broker, TOPICS, 0).settings["window_ms"] == 300
    pipeline.broker.delete_records(JOURNAL, change + 1)
    assert settings_in_force(pipeline.broker, TOPICS, 0).settings == {}
    with pytest.raises(MissingRecordsError):
        recover(pipeline.broker, TOPICS, 0, INITIAL, given=())


def test_recovery_uses_the_recovered_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, _ = started()

    def unknown(*_: Any) -> Parts[InForce]:
        """Return no settings, as if the task had not started."""
        yield True
        return InForce({})

    monkeypatch.setattr("stream.recovery.recover.reading_settings", unknown)
    assert recover(pipeline.broker, TOPICS, 0, SHORTER, given=()).task.settings.join == LIMITS
    with pytest.raises(SettingsDifferError):
        recover(pipeline.broker, TOPICS, 0, SHORTER)


def edited(pipeline: Pipeline, edit: Callable[[list[Record]], list[Record]]) -> None:
    """Recreate the journal topic with edited records."""
    records = edit(pipeline.records(TOPICS.journal))
    pipeline.broker.delete_topics([TOPICS.journal])
    pipeline.broker.create_topics(TOPICS.specs(1))
    for record in records:
        pipeline.broker.producer().send(TOPICS.journal, 0, None, record.value, record.headers)


def is_change(record: Record) -> bool:
    step = decode_step(record)
    return step.settings is not None and step.number > 1


def other_seed(record: Record) -> Record:
    step = decode_step(record)
    assert step.settings is not None
    return record._replace(value=encode_step(step._replace(settings=replace(step.settings, seed=77))))


DAMAGE: dict[str, Callable[[list[Record]], list[Record]]] = {
    "the step is missing": lambda records: [record for record in records if not is_change(record)],
    "the step has other settings": lambda records: [
        other_seed(record) if is_change(record) else record for record in records
    ],
    "the first step is missing": lambda records: records[1:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_recovery_and_audit_detect_a_damaged_change_record(damage: str) -> None:
    # The change has no other effect, because no decision stays pending for as long as the shorter window.
    pipeline = Pipeline(INITIAL)
    program = pipeline.learner()
    for number in range(20):
        if number == 10:
            pipeline.request(window_ms=900)
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"event-{number}")
        run_until_idle(program)
        pipeline.answer(f"event-{number}", 1)
        run_until_idle(program)
    assert_agree_everywhere(pipeline, program)
    change = next(record for record in pipeline.records(TOPICS.journal)[1:] if is_change(record))
    number = decode_step(change).number
    edited(pipeline, DAMAGE[damage])
    with pytest.raises(JournalError) as raised:
        rebuild(pipeline.broker, TOPICS, 0)
    if damage == "the step has other settings":
        assert isinstance(raised.value.__cause__, ChangeError)
        assert (raised.value.__cause__.setting, raised.value.__cause__.got) == ("seed", 77)
    else:
        assert isinstance(raised.value, MissingRecordsError)
        assert raised.value.needed == (number if damage == "the step is missing" else 1)
    if damage == "the first step is missing":
        with pytest.raises(JournalError):
            pipeline.audits()
    else:
        assert pipeline.audits()[0].faults[0].startswith(f"test.journal/0 offset {number - 1}: ")


def test_new_task_uses_the_settings_of_the_pipeline() -> None:
    pipeline = Pipeline(INITIAL, partitions=2)
    assert pipeline_settings(pipeline.broker, TOPICS, 2).settings == {}
    pipeline.context("a")
    program = pipeline.learner()
    run_until_idle(program)
    program.close()
    assert pipeline_settings(pipeline.broker, TOPICS, 2) == (stored_settings(INITIAL), 0)
    pipeline.request(window_ms=300)
    program = pipeline.learner(settings=SHORTER, begin=Changed(INITIAL, 0))
    run_until_idle(program)
    known, other = (partition_for(b"a", 2), 1 - partition_for(b"a", 2))
    pipeline.context(next(name for name in "bcdef" if partition_for(name.encode(), 2) == other))
    run_until_idle(program)
    assert [program.tasks[one].settings.join.window_ms for one in (known, other)] == [300, 300]
    first, second = pipeline.journal(other)[:2]
    assert (first.number, first.control, first.settings) == (1, 0, INITIAL.resolved())
    assert (second.number, second.control, second.settings) == (2, 1, SHORTER.resolved())
    assert all(finding.ok for finding in pipeline.audits())


@pytest.mark.parametrize("imports", [False, True])
def test_task_that_begins_after_a_change_of_its_model_recovers_exactly(imports: bool) -> None:
    pipeline = Pipeline(small_task("late-ucb"))
    if imports:
        source = Pipeline(small_task("late-ucb"))
        source.context("a")
        run_until_idle(source.learner())
        import_model(pipeline.broker, TOPICS, 0, export_model(source.broker, TOPICS, 0), "import")
    n_features = pipeline.settings.n_features + 2
    grows = Request("grows", "test", {"n_features": Replaced(pipeline.settings.n_features, n_features)})
    pipeline.send(TOPICS.control, encode_request(grows))
    pipeline.context("a")
    program = pipeline.learner()
    run_until_idle(program)
    assert program.tasks[0].settings.n_features == n_features
    recovered = rebuild(pipeline.broker, TOPICS, 0, snapshots=False).task
    assert task_digest(recovered) == task_digest(program.tasks[0])


def test_changes_that_are_possible_only_one_after_the_other_can_wait_together() -> None:
    pipeline = Pipeline(small_task("banditron"))
    pipeline.context("a")
    learner = pipeline.learner()
    run_until_idle(learner)
    pipeline.request(challengers={"late-ucb:m=2": {"m": 2}})
    pipeline.request(champion="late-ucb:m=2")
    with_challenger = read_requests(pipeline.broker, TOPICS).after(pipeline.settings.resolved(), 0).settings
    parameters = dict(with_challenger.challengers["late-ucb:m=2"])
    only = replace(with_challenger, learner="late-ucb", parameters=parameters, challengers={}, champion="late-ucb")
    changes = {name: one.new for name, one in differences(with_challenger, only).items()}
    pipeline.request(**changes)
    run_until_idle(learner)
    assert learner.tasks[0].settings == only.resolved()
    assert task_digest(rebuild(pipeline.broker, TOPICS, 0).task) == task_digest(learner.tasks[0])


def test_policy_that_the_learner_does_not_support_is_refused() -> None:
    pipeline = Pipeline(small_task("perceptron"))
    program = pipeline.learner()
    pipeline.context("a")
    run_until_idle(program)
    pipeline.request(on_expiry="negative")
    run_until_idle(program)
    assert [offset for offset, _ in pipeline.journal()[-1].refused] == [0]
    assert program.tasks[0].settings.on_expiry == "drop"


# The following tests apply changes to existing decisions, orphans and settled IDs, without a broker.


def by_context(learner: str = "banditron", **changes: Any) -> TaskSettings:
    """Return settings for a task that dates decisions by the append times of their contexts."""
    return small_task(learner, dated_by="context", **changes)


def task_with(settings: TaskSettings, *event_ids: str, stream_ms: int = 0) -> tuple[Task, Inputs]:
    """Return a task and its inputs. The task makes decisions at 1,000, 1,010, ... ms. Stream time is `stream_ms`."""
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    contexts = [inputs.context(event_id, 1_000 + 10 * number) for number, event_id in enumerate(event_ids)]
    task.step([*contexts, inputs.tick(0, stream_ms)], 1)
    return task, inputs


def window(window_ms: int) -> TaskSettings:
    return by_context(join=replace(small_task().join, window_ms=window_ms))


def test_pending_decisions_expire_by_the_new_window_in_the_first_step_after_the_change() -> None:
    task, inputs = task_with(by_context(), "a", "b", "c", stream_ms=1_200)
    task.change_settings(window(195))
    assert task.join.next_deadline_ms() == 1_195
    # Both feedback records are appended at 1,200 ms, the current stream time. The deadline of decision a is earlier.
    effects = task.step([inputs.feedback("a", 1, 1_200), inputs.feedback("b", 1, 1_200)], 2)
    found = [(example.id, str(example.outcome), example.settled_at_ms) for example, _ in effects.examples]
    assert found == [("a", "expired", 1_200), ("b", "matched", 1_200)]
    assert task.join.ledger() == Ledger(contexts=3, decided=3, feedback=2, expired=1, late=1, matched=1, pending=1)


@pytest.mark.parametrize(("window_ms", "expired"), [(1_500, 0), (200, 0), (199, 1)])
def test_feedback_at_the_new_deadline_is_in_time(window_ms: int, expired: int) -> None:
    task, _ = task_with(by_context(), "a", stream_ms=1_200)
    task.change_settings(window(window_ms))
    assert len(task.step([], 2).examples) == expired


def test_entries_beyond_new_limits_are_settled_oldest_first() -> None:
    settings = by_context(on_expiry="negative")
    task, inputs = task_with(settings, *"abcde")
    orphans = [inputs.feedback(f"orphan-{number}", 1, 1_050 + number) for number in range(4)]
    task.step(orphans, 2)
    limits = replace(settings.join, pending_max=2, orphans_max=1, retained_max=1)
    task.change_settings(replace(settings, join=limits))
    effects = task.step([], 3)
    assert [example.id for example, _ in effects.examples] == ["a", "b", "c"]
    assert [record for record, *_ in effects.dead_letters] == orphans[:3]
    assert (list(task.join.pending), list(task.join.orphans), list(task.join.retained)) == (
        ["d", "e"], ["orphan-3"], ["c"],
    )  # fmt: skip
    ledger = task.join.ledger()
    assert (ledger.pending_evicted, ledger.orphans_evicted, ledger.retained_evicted) == (3, 3, 2)
    assert task.step([], 4).examples == []
    assert task.join.ledger().balances


def test_settled_ids_beyond_the_new_limit_are_forgotten() -> None:
    task, inputs = task_with(by_context(), *"abc")
    task.step([inputs.feedback(event_id, 1, 1_050) for event_id in "abc"], 2)
    task.change_settings(by_context(join=replace(small_task().join, retained_max=2)))
    task.step([], 3)
    assert list(task.join.retained) == ["b", "c"]
    assert task.join.ledger().retained_evicted == 1


def test_new_expiry_policy_applies_only_to_later_expiries() -> None:
    task, inputs = task_with(by_context(), "a", "b")
    first = task.step([inputs.tick(0, 2_005)], 2)
    task.change_settings(by_context(on_expiry="negative"))
    second = task.step([inputs.tick(0, 9_000)], 3)
    assert [(e.id, e.reward) for e, _ in first.examples + second.examples] == [("a", None), ("b", 0)]


def test_corrections_can_be_switched_on_for_decisions_that_expire_later() -> None:
    ignoring = by_context("soba-diag", on_expiry="negative")
    task, inputs = task_with(ignoring, "a", "b", stream_ms=2_005)  # a has expired
    task.change_settings(replace(ignoring, late="correct"))
    task.step([inputs.tick(0, 2_500)], 2)
    before = task.version
    task.step([inputs.feedback("a", 1, 2_600)], 3)
    assert task.version == before
    task.step([inputs.feedback("b", 1, 2_600)], 4)
    assert (task.version - before, task.join.ledger().late) == (1, 2)


@pytest.mark.parametrize(("late", "updates"), [("correct", 1), ("ignore", 0)])
def test_late_feedback_corrects_nothing_after_corrections_are_disabled(late: Any, updates: int) -> None:
    correcting = by_context("soba-diag", on_expiry="negative", late="correct")
    task, inputs = task_with(correcting, "a", stream_ms=2_500)
    before = task.version
    task.change_settings(replace(correcting, late=late))
    task.step([inputs.feedback("a", 1, 2_600)], 2)
    assert (task.join.ledger().late, task.version - before) == (1, updates)
