"""`onebit promote` on an embedded pipeline's topics."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.wire.codec import decode_prediction_fields, promotion_of
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def pipeline_of(on_broker: Callable[[Broker], None], **task: Any) -> Pipeline:
    """Run a pipeline in which class 2 is always the right class."""
    made = Pipeline(small_task("banditron", **task))
    learner = made.learner()
    for t in range(300):
        made.context(f"event-{t}", 1)
        run_until_idle(learner)
        action = decode_prediction_fields(made.records(TOPICS.predictions)[-1]).action
        made.answer(f"event-{t}", int(action == 2))
    run_until_idle(learner)
    learner.close()
    on_broker(made.broker)
    return made


def promotions(pipeline: Pipeline) -> list[str]:
    return [name for record in pipeline.records(TOPICS.feedback) if (name := promotion_of(record)) is not None]


CHALLENGED: dict[str, Any] = {"parameters": {"gamma": 0.9}, "challengers": {"late-ucb": {"m": 2}}}


def test_named_learner_is_promoted_in_each_partition(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert orjson.loads(onebit("promote", "late-ucb", "--json").out) == {
        "learner": "late-ucb", "partitions": 1, "was_champion": False,
    }  # fmt: skip
    assert onebit("promote", "banditron").code == ExitCode.OK
    assert promotions(pipeline) == ["late-ucb", "banditron"]


def test_promotion_of_the_champion_is_reported_as_unchanged(
    on_broker: Callable[[Broker], None], onebit: Onebit
) -> None:
    pipeline_of(on_broker, **CHALLENGED)
    assert orjson.loads(onebit("promote", "banditron", "--json").out)["was_champion"] is True
    assert not onebit("promote", "banditron").out.startswith("promoted")


def test_better_challenger_is_promoted(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert onebit("promote", "--when-better").code == ExitCode.OK
    assert promotions(pipeline) == ["late-ucb"]


@pytest.mark.parametrize("task", [CHALLENGED, {}], ids=["unknown learner", "no challengers"])
def test_invalid_promotion_is_rejected(
    on_broker: Callable[[Broker], None], onebit: Onebit, task: dict[str, Any]
) -> None:
    pipeline = pipeline_of(on_broker, **task)
    assert onebit("promote", "soba").code == ExitCode.USAGE
    assert promotions(pipeline) == []


@pytest.mark.parametrize("words", [[], ["late-ucb", "--when-better"]])
def test_either_a_name_or_a_condition_is_required(onebit: Onebit, words: list[str]) -> None:
    assert onebit("promote", *words).code == ExitCode.USAGE
