"""`onebit promote` on an embedded pipeline's topics."""

from contextlib import nullcontext
from typing import Any

import orjson
import pytest

from stream.app import promote
from stream.app.connection import Connected
from stream.errors import ExitCode
from stream.wire.codec import decode_prediction_fields, promotion_of
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def pipeline_of(monkeypatch: pytest.MonkeyPatch, **task: Any) -> Pipeline:
    """Run a pipeline in which class 2 is always right."""
    made = Pipeline(small_task("banditron", **task))
    learner = made.learner()
    for t in range(300):
        made.context(f"event-{t}", 1)
        run_until_idle(learner)
        action = decode_prediction_fields(made.records(TOPICS.predictions)[-1]).action
        made.answer(f"event-{t}", int(action == 2))
    run_until_idle(learner)
    learner.close()
    monkeypatch.setattr(promote, "connected", lambda settings: nullcontext(Connected(made.broker, TOPICS, 1)))
    return made


def promotions(pipeline: Pipeline) -> list[str]:
    return [name for record in pipeline.records(TOPICS.feedback) if (name := promotion_of(record)) is not None]


CHALLENGED: dict[str, Any] = {"parameters": {"gamma": 0.9}, "challengers": {"late-ucb": {"m": 2}}}


def test_named_learner_is_promoted_in_each_partition(monkeypatch: pytest.MonkeyPatch, onebit: Onebit) -> None:
    pipeline = pipeline_of(monkeypatch, **CHALLENGED)
    assert orjson.loads(onebit("promote", "late-ucb", "--json").out) == {"learner": "late-ucb", "partitions": 1}
    assert onebit("promote", "banditron").code == ExitCode.OK
    assert promotions(pipeline) == ["late-ucb", "banditron"]


def test_better_challenger_is_promoted(monkeypatch: pytest.MonkeyPatch, onebit: Onebit) -> None:
    pipeline = pipeline_of(monkeypatch, **CHALLENGED)
    assert onebit("promote", "--when-better").code == ExitCode.OK
    assert promotions(pipeline) == ["late-ucb"]


@pytest.mark.parametrize("task", [CHALLENGED, {}], ids=["unknown learner", "no challengers"])
def test_invalid_promotion_is_rejected(monkeypatch: pytest.MonkeyPatch, onebit: Onebit, task: dict[str, Any]) -> None:
    pipeline = pipeline_of(monkeypatch, **task)
    assert onebit("promote", "soba").code == ExitCode.USAGE
    assert promotions(pipeline) == []


@pytest.mark.parametrize("words", [[], ["late-ucb", "--when-better"]])
def test_either_a_name_or_a_condition_is_required(onebit: Onebit, words: list[str]) -> None:
    assert onebit("promote", *words).code == ExitCode.USAGE
