"""Changes of the model and its learners under traffic: recovery, replay and audit agree with the running learner."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import orjson
import pytest

from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from stream.task.settings import TaskSettings
from stream.task.stored_settings import differences
from stream.verifying.reapply import replay_journal
from stream.wire.named_features import Kind, build, to_plain
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def dense(number: int) -> dict[str, list[float]]:
    return {"i": [0, 1 + number % 3], "v": [1.0, (number % 7) / 7]}


def named(number: int) -> dict[str, Any]:
    return {"price": number % 5, "country": ("de", "at", "fr")[number % 3]}


class Sequence(NamedTuple):
    """Settings of a pipeline, one after the other, and the features of its contexts."""

    settings: list[TaskSettings]
    x: Callable[[int], Any] = dense


LATER: dict[str, Any] = {"on_expiry": "negative", "late": "correct"}  # expired decisions wait for corrections
PLAIN = small_task("banditron", parameters={"gamma": 0.5}, **LATER)
UCB = {"m": 2, "drift": "off"}
WITH_UCB = replace(PLAIN, challengers={"late-ucb:m=2": UCB})
OWN = small_task("ova-perceptron")
CLASSES = replace(PLAIN, class_names=("a", "b", "c"))
NAMED = to_plain(build({"price": (Kind.NUMERIC, None), "country": (Kind.CATEGORICAL, ["de", "at"])}, None))
LONGER = NAMED | {"added": [{"name": "country", "kind": "categorical", "values": ["fr"]}]}
FEATURES = replace(PLAIN, n_features=3, features=NAMED)

SEQUENCES: Mapping[str, Sequence] = {
    "floor and holdout": Sequence(
        [PLAIN, replace(PLAIN, floor=0.2), replace(PLAIN, holdout=0.3, holdout_policy="constant:1"), PLAIN]
    ),
    "floor of a learner that learns only from its own decisions": Sequence(
        [OWN, replace(OWN, floor=0.4), replace(OWN, floor=0.1, holdout=0.2), replace(OWN, floor=0.1)]
    ),
    "rate": Sequence([PLAIN, replace(PLAIN, parameters={"gamma": 0.1})]),
    "another learner": Sequence(
        [
            PLAIN,
            WITH_UCB,
            replace(WITH_UCB, champion="late-ucb:m=2"),
            small_task("late-ucb", parameters=UCB, **LATER),
        ]
    ),
    "class": Sequence([CLASSES, replace(CLASSES, n_classes=4, class_names=("a", "b", "c", "d"))]),
    "retired class": Sequence([CLASSES, replace(CLASSES, retired_classes=("b",)), CLASSES]),
    "retired feature": Sequence([FEATURES, replace(FEATURES, retired_features=("country",))], named),
    "category": Sequence([FEATURES, replace(FEATURES, n_features=FEATURES.n_features + 1, features=LONGER)], named),
}


def traffic(pipeline: Pipeline, numbers: range, x: Callable[[int], Any]) -> None:
    """Send contexts, and feedback that is in time, late or missing. Kill and restart the learner several times."""
    program = pipeline.learner(given=(), snapshot_interval_ms=60)
    for number in numbers:
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.send(TOPICS.contexts, orjson.dumps({"id": f"event-{number}", "x": x(number)}))
        if number % 5:
            pipeline.answer(f"event-{max(0, number - (70 if number % 7 == 0 else 6))}", number % 2)
        run_until_idle(program)
        if number % 23 == 0:
            program.close()
            program = pipeline.learner(given=(), snapshot_interval_ms=60)
    run_until_idle(program)
    for snapshots in (True, False):
        found = rebuild(pipeline.broker, TOPICS, 0, snapshots=snapshots)
        assert task_digest(found.task) == task_digest(program.tasks[0])
    program.close()


@pytest.mark.parametrize("name", SEQUENCES)
def test_recovery_replay_and_audit_follow_changes_under_traffic(name: str) -> None:
    settings, x = SEQUENCES[name]
    pipeline = Pipeline(settings[0])
    traffic(pipeline, range(60), x)
    for number, (before, after) in enumerate(pairwise(settings), 1):
        pipeline.request(**{name: one.new for name, one in differences(before, after).items()})
        traffic(pipeline, range(60 * number, 60 * number + 60), x)
    changed = [step.settings for step in pipeline.journal() if step.settings is not None]
    assert changed == [one.resolved() for one in settings]
    ledger = pipeline.ledger()
    assert min(ledger.matched, ledger.expired, ledger.late) > 0
    replayed = replay_journal(pipeline.broker, TOPICS, 0)
    assert replayed.ok, replayed
    (finding,) = pipeline.audits()
    assert finding.ok, finding
