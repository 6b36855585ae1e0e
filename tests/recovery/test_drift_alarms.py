"""Drift alarms are stored in the examples that raised them, counted in the journal, and raised again on recovery."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.status import status_lines
from consumers.tally import Tally, drift_warnings
from stream.learners import create
from stream.recovery.commit import Commit
from stream.recovery.recover import rebuild, recover
from stream.recovery.steps import UnrecoverableError
from stream.verifying.reapply import replay_journal
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, CrashError, Pipeline, edited_copy, run_until_idle, small_task

BEFORE = 63
AFTER = {"global": 42, "off": 42, "class": 21}
"""For each value of `drift`, the number of events without a right class. They follow the first BEFORE events, whose
right class is 0. This number is enough for each detector to raise one alarm. The class detector raises its alarm
earlier than the global detector."""


CASES = [
    ("late-ucb", "global"), ("late-ucb", "class"), ("igw-logistic", "global"), ("stack-igw", "global"),
]  # fmt: skip
"""Only late-ucb has a case with class detectors. Other learners stop choosing a class before the detector for that
class raises an alarm."""

PLAIN: dict[str, dict[str, Any]] = {"late-ucb": {"expand": "none"}, "igw-logistic": {}, "stack-igw": {"vectors": 0}}


def send(pipeline: Pipeline, right: list[int], program: LearnerProgram) -> None:
    """Send identical contexts in batches of seven. After each batch, send feedback on whether the actions were right.

    Args:
        pipeline: the pipeline to send to.
        right: the right class for each context, or -1 if no class is right.
        program: the learner program.
    """
    for start in range(0, len(right), 7):
        first = len(pipeline.values(TOPICS.predictions))
        for number in range(first, first + len(right[start : start + 7])):
            pipeline.context(f"event-{number}", 1, 3)
        run_until_idle(program)
        for decided, right_class in zip(pipeline.values(TOPICS.predictions)[first:], right[start:], strict=False):
            pipeline.answer(decided["id"], decided["action"] == right_class)
        pipeline.clock.advance_to(pipeline.now_ms() + 1)
        run_until_idle(program)


def drifting(learner: str = "late-ucb", drift: str = "global", **options: Any) -> tuple[Pipeline, LearnerProgram]:
    """A pipeline whose reward rate drops once and stays low, and its learner program."""
    pipeline = Pipeline(small_task(learner, parameters={"drift": drift} | PLAIN[learner]))
    program = pipeline.learner(**options)
    send(pipeline, [0] * BEFORE + [-1] * AFTER[drift], program)
    return pipeline, program


Alter = Callable[[str, dict[str, Any]], dict[str, Any]]


def rewritten(pipeline: Pipeline, alter: Alter) -> Pipeline:
    """Return a copy of the pipeline with altered journal records and examples."""

    def edit(records: list[Record]) -> list[Record]:
        return [one._replace(value=orjson.dumps(alter(one.topic, orjson.loads(one.value or b"")))) for one in records]

    return edited_copy(pipeline, {TopicPartition(topic, 0): edit for topic in (TOPICS.journal, TOPICS.examples)})


def test_learner_has_one_alarm_count_per_detector() -> None:
    assert create("banditron", 3, 4).alarms.tolist() == []
    for name in ("late-ucb", "igw-logistic", "stack-igw"):
        assert create(name, 3, 4).alarms.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("learner", "drift"), CASES)
def test_example_names_its_alarms_detector_and_the_journal_counts_it(learner: str, drift: str) -> None:
    pipeline, program = drifting(learner, drift)
    raised = [fields for fields in pipeline.values(TOPICS.examples) if "drift" in fields]
    assert [fields["drift"] for fields in raised] == ["global" if drift == "global" else 0]
    assert (raised[0]["reward"], raised[0]["outcome"]) == (0, "matched")
    at_step = {
        fields["id"]: dict(record.headers)["onebit-step"]
        for record, fields in zip(pipeline.records(TOPICS.examples), pipeline.values(TOPICS.examples), strict=True)
    }
    step = int(at_step[raised[0]["id"]])
    assert [entry.alarms for entry in pipeline.journal()] == [int(entry.number >= step) for entry in pipeline.journal()]
    for fields in pipeline.values(TOPICS.journal)[1:]:
        assert ("alarms" in fields) == (fields["number"] >= step)
    assert program.tasks[0].alarms == 1


def test_without_a_detector_no_alarm_is_reported() -> None:
    pipeline, _ = drifting(drift="off")
    assert not any("drift" in fields for fields in pipeline.values(TOPICS.examples))
    assert not any("alarms" in fields for fields in pipeline.values(TOPICS.journal))


@pytest.mark.parametrize(("learner", "drift"), CASES)
def test_recovery_replay_and_audit_see_the_same_alarms(learner: str, drift: str) -> None:
    pipeline, program = drifting(learner, drift, snapshot_interval_ms=5)
    assert program.tasks[0].alarms == 1
    from_snapshot, alone = (rebuild(pipeline.broker, TOPICS, 0, snapshots=snapshots) for snapshots in (True, False))
    assert from_snapshot.stored.newest is not None
    alarms = [task.learner.alarms.tolist() for task in (from_snapshot.task, alone.task, program.tasks[0])]
    assert alarms[0] == alarms[1] == alarms[2]
    assert replay_journal(pipeline.broker, TOPICS, 0).ok
    assert pipeline.audits()[0].ok


@pytest.mark.parametrize("number", [2, 4, 6])
def test_alarm_is_raised_once_if_the_learner_dies_during_the_commit(number: int) -> None:
    pipeline = Pipeline(small_task("late-ucb"))
    first = pipeline.learner()
    send(pipeline, [0] * BEFORE, first)

    def crash(reached: int) -> None:
        if reached == number and dying.tasks[0].alarms:
            raise CrashError

    dying = pipeline.learner(crash_point=crash)
    with pytest.raises(CrashError):
        send(pipeline, [-1] * AFTER["global"], dying)
    again = pipeline.learner()
    run_until_idle(again)
    assert sum("drift" in fields for fields in pipeline.values(TOPICS.examples)) == 1
    assert (again.tasks[0].alarms, pipeline.journal()[-1].alarms) == (1, 1)
    assert replay_journal(pipeline.broker, TOPICS, 0).ok
    assert pipeline.audits()[0].ok


def test_recovery_rejects_a_step_with_different_alarms() -> None:
    def one_more(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "alarms": 2} if "alarms" in fields else fields

    wrong = rewritten(drifting()[0], one_more)
    with pytest.raises(UnrecoverableError) as raised:
        recover(wrong.broker, TOPICS, 0, wrong.settings)
    first = next(fields["number"] for fields in wrong.values(TOPICS.journal) if "alarms" in fields)
    assert raised.value.place == f"step {first} of test.journal/0"


def test_change_of_settings_raises_no_alarm_and_hides_none_from_the_audit() -> None:
    pipeline, program = drifting()
    pipeline.request(window_ms=pipeline.settings.join.window_ms + 1, n_features=pipeline.settings.n_features + 1)
    run_until_idle(program)
    last = pipeline.journal()[-1]
    assert last.settings is not None
    assert last.alarms == pipeline.journal()[-2].alarms == 1
    assert pipeline.audits()[0].ok

    def one_more(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "alarms": 2} if fields.get("number") == last.number else fields

    assert not rewritten(pipeline, one_more).audits()[0].ok


def test_audit_detects_alarms_that_differ_between_journal_and_examples() -> None:
    twice, program = drifting()
    send(twice, [0] * BEFORE + [-1] * BEFORE, program)
    assert twice.audits()[0].ok

    def without_drift(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "drift"}

    def without_alarms(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "alarms"}

    def fallen(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        last = fields.get("number") == twice.journal()[-1].number
        return {**fields, "alarms": 1} if last else fields

    for alter, expected_message in (
        (without_drift, ["drift alarms: 1 in its journal record, 0 in its examples"] * 2),
        (without_alarms, ["drift alarms: 0 in its journal record, 1 in its examples"] * 2),
        (fallen, ["drift alarms: -1 in its journal record"]),
    ):
        faults = rewritten(twice, alter).audits()[0].faults
        assert [expected in fault for expected, fault in zip(expected_message, faults, strict=True)] == [True] * len(
            expected_message
        ), faults


@pytest.mark.parametrize(("drift", "anew"), [("global", "all classes are reset"), ("class", "class 0 is reset")])
def test_learner_logs_each_alarm_once_and_counts_it_in_its_status(drift: str, anew: str) -> None:
    pipeline, tally = Pipeline(small_task("late-ucb", parameters={"drift": drift} | PLAIN["late-ucb"])), Tally()
    reported: list[tuple[int, str]] = []

    def committed(commits: Sequence[Commit]) -> None:
        tally.add(commits)
        reported.extend((commits[0].step.number, message) for message in drift_warnings(commits))

    program = pipeline.learner(committed=committed)
    send(pipeline, [0] * BEFORE, program)
    assert "drift" not in "".join(status_lines(program, tally))
    send(pipeline, [-1] * AFTER[drift], program)
    (raised,) = [fields for fields in pipeline.values(TOPICS.examples) if "drift" in fields]
    ((step, message),) = reported
    assert message == (
        f"partition 0, step {step}, 1970-01-01T00:00:01.{raised['settled_at_ms'] - 1_000:03}Z: drift: the reward rate "
        f"has dropped (detected at example '{raised['id']}'); {anew}"
    )
    assert status_lines(program, tally)[0].endswith(" updates, 1 drift alarms")
