"""Audits of pipelines that replay a decision log."""

from typing import Any

import orjson
import pytest

from stream.settings.task_fields import Play
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task
from tests.verifying.tampering import change, tampered


def replayed(play: Play) -> Pipeline:
    """A pipeline that has replayed a uniform log. Some decisions have the logged action; one gets no feedback."""
    pipeline = Pipeline(small_task("late-ucb", play=play))
    learner = pipeline.learner()
    for number in range(9):
        value = {"id": f"e{number}", "x": [1, 0, 0, 0], "logged": {"action": number // 3, "propensity": 1 / 3}}
        pipeline.send(TOPICS.contexts, orjson.dumps(value))
    run_until_idle(learner)
    for number in range(8):
        pipeline.answer(f"e{number}", number % 2)
    pipeline.run((), learner)
    return pipeline


@pytest.mark.parametrize("claimed", ["unmatched", "expired"])
def test_audit_detects_a_wrong_unmatched_outcome(claimed: str) -> None:
    pipeline = replayed("match")
    (finding,) = pipeline.audits()
    assert finding.ok, finding
    assert min(finding.audited.unmatched, finding.audited.feedback_unmatched, finding.audited.matched) > 0
    examples = pipeline.values(TOPICS.examples)
    offset = next(n for n, one in enumerate(examples) if (one["outcome"] == "unmatched") != (claimed == "unmatched"))
    edit = change(offset, outcome=claimed, reward=None, delay_ms=None, feedback_offset=None)
    (fault,) = tampered(pipeline, TOPICS.examples, edit).faults
    assert fault.startswith(f"{TOPICS.examples}/0 offset {offset},")


@pytest.mark.parametrize(
    ("play", "changes"),
    [
        ("match", {"target": None}),
        ("match", {"target": {"action": 0, "propensity": 0.001}}),
        ("logged", {"target": None}),
        ("logged", {"propensity": 0.25}),
        ("own", {"target": {"action": 1, "propensity": 0.5}}),
    ],
)
def test_audit_detects_a_prediction_that_contradicts_the_play_setting(play: Play, changes: dict[str, Any]) -> None:
    pipeline = replayed(play)
    assert pipeline.audits()[0].ok
    faults = tampered(pipeline, TOPICS.predictions, change(2, **changes)).faults
    assert faults[0].startswith(f"{TOPICS.predictions}/0 offset 2: ")
