"""A year of daily traffic with a retention of seven days, with kills, idle weeks and changes, in virtual time."""

from random import Random
from typing import Any

import pytest

from consumers.learner.program import LearnerProgram
from stream.parsing import UNITS_MS
from stream.recovery.control import read_requests
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task

DAY_MS = UNITS_MS["d"]
KEEP_MS = 7 * DAY_MS
EVENTS_PER_DAY = 12
LIMITS = JoinSettings(window_ms=UNITS_MS["h"], orphan_window_ms=UNITS_MS["h"], retain_ms=8 * UNITS_MS["h"])
MODELS: dict[str, tuple[TaskSettings, int]] = {
    "own": (small_task(join=LIMITS), 1),
    "shared": (small_task("late-ucb", join=LIMITS, model="shared"), 2),
}
CHALLENGER = "late-ucb:m=2"
CHANGES: dict[str, list[dict[str, Any]]] = {
    "own": [
        {"challengers": {CHALLENGER: {"m": 2}}}, {"n_classes": 4}, {"champion": CHALLENGER}, {"n_features": 6},
        {"window_ms": 2 * LIMITS.window_ms}, {"champion": "banditron"}, {"challengers": {}}, {"floor": 0.1},
        {"n_classes": 5, "n_features": 7}, {"parameters.gamma": 0.2}, {"floor": 0.0}, {"window_ms": LIMITS.window_ms},
        {"on_expiry": "negative"},
    ],
    "shared": [{"window_ms": LIMITS.window_ms * (1 + month % 2)} for month in range(1, 14)],
}  # fmt: skip
"""The settings that change, month by month."""


def learner(pipeline: Pipeline) -> LearnerProgram:
    return pipeline.learner(given=(), keep_ms=KEEP_MS, snapshot_interval_ms=UNITS_MS["h"], idle_ms=UNITS_MS["h"] // 10)


def delete_and_compact(pipeline: Pipeline) -> None:
    """Delete old records, and the chunks before the first one that is the newest with its key."""
    pipeline.broker.delete_expired()
    for partition in range(pipeline.partitions):
        newest = {record.key: record.offset for record in pipeline.records(TOPICS.snapshots, partition)}
        if newest:
            pipeline.broker.delete_records(TopicPartition(TOPICS.snapshots, partition), min(newest.values()))


def size_of(pipeline: Pipeline) -> int:
    """The bytes in all topics."""
    shares_model = pipeline.settings.model == "shared"
    return sum(
        len(record.key or b"") + len(record.value or b"")
        for topic in TOPICS.all_of(shares_model=shares_model)
        for partition in range(1 if topic in (TOPICS.updates, TOPICS.control) else pipeline.partitions)
        for record in pipeline.records(topic, partition)
    )


def a_day(pipeline: Pipeline, program: LearnerProgram, day: int, rng: Random, *, is_idle: bool) -> LearnerProgram:
    """Send a day's events. Sometimes kill the learner, or stop it and start it again."""
    for number in range(EVENTS_PER_DAY):
        event_id = f"{day}-{number}"
        if not is_idle:
            pipeline.context(event_id, rng.randrange(4))
        run_until_idle(program)
        for _ in range(10):
            pipeline.wait(DAY_MS // EVENTS_PER_DAY // 10)
            run_until_idle(program)
            if not is_idle and rng.random() < 0.1:
                pipeline.answer(event_id, rng.randrange(2))
        if rng.random() < 0.02:
            program = learner(pipeline)
        elif rng.random() < 0.02:
            program.finish(1_000)
            program.close()
            program = learner(pipeline)
    return program


@pytest.mark.parametrize("name", MODELS)
def test_year_with_a_retention_of_a_week_stays_small_and_correct(name: str) -> None:
    pipeline, rng = Pipeline(*MODELS[name], keep_ms=KEEP_MS), Random(1)
    program, sizes = learner(pipeline), list[int]()
    for day in range(364):
        is_idle = day // 7 % 5 == 4  # every fifth week, and a whole month
        program = a_day(pipeline, program, day, rng, is_idle=is_idle or 200 <= day < 230)
        if rng.random() < 0.03:  # the pipeline is stopped for longer than its topics keep records
            program.finish(1_000)
            program.close()
            pipeline.wait(2 * KEEP_MS)
            delete_and_compact(pipeline)
            program = learner(pipeline)
            run_until_idle(program)
        delete_and_compact(pipeline)
        sizes.append(size_of(pipeline))
        if day % 28 == 13:
            pipeline.request(**CHANGES[name][day // 28])
        if day % 28 == 27:
            for partition in range(pipeline.partitions):
                finding = audit_partition(pipeline.broker, TOPICS, partition)
                assert (finding.ok, finding.exact_from > 1) == (True, True), finding
                assert replay_journal(pipeline.broker, TOPICS, partition).ok
            if name == "shared":
                assert audit_log(pipeline.broker, TOPICS, pipeline.partitions).ok
    run_until_idle(program)
    requests = read_requests(pipeline.broker, TOPICS)
    expected = requests.after(pipeline.settings.resolved(), 0)
    assert expected.refused == ()
    assert [task.settings for task in program.tasks.values()] == [expected.settings] * pipeline.partitions
    assert max(sizes[90:]) < 1.5 * max(sizes[:90])
    assert pipeline.ledger().decided > 200 * EVENTS_PER_DAY
