"""`onebit model` and `onebit verify --replay` on embedded pipelines' topics."""

import shlex
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.recover import pipeline_settings
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.wire.named_features import build, to_plain
from tests.cli.conftest import CommandResult, Onebit
from tests.offers import CONTEXT, actions_task
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def work_on(pipeline: Pipeline, name: str, events: int) -> None:
    """Run a learner that writes snapshots while events and their feedback arrive."""
    learner = pipeline.learner(snapshot_interval_ms=100)
    for number in range(events):
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"{name}-{number}", number % 4)
        pipeline.answer(f"{name}-{number}", number % 2)
        run_until_idle(learner)
    learner.close()


def test_models_are_exported_compared_and_imported(onebit: Onebit, on_broker: Callable[[Broker], None]) -> None:
    first, second = (Pipeline(small_task("soba-diag")) for _ in range(2))
    work_on(first, "first", 30)
    on_broker(first.broker)
    (replay,) = orjson.loads(onebit("verify", "--replay", "--json").out)["replay"]
    assert (replay["ok"], replay["snapshot"] > 0) == (True, True)
    assert onebit("model", "export", "--journal", "3", "--out", "early.npz").code == ExitCode.OK
    assert onebit("model", "export", "--out", "late.npz").code == ExitCode.OK
    at_a_time = onebit("model", "export", "--at", "2999-01-01T00:00Z", "--out", "again.npz", "--json")
    exported = orjson.loads(at_a_time.out)
    assert exported["digest"] == replay["state"]
    assert onebit("model", "diff", "late.npz", "again.npz").code == ExitCode.OK
    assert onebit("model", "diff", "early.npz", "late.npz").code == ExitCode.DIFFERS
    rejected = onebit("model", "import", "late.npz")
    assert rejected.code == ExitCode.USAGE
    assert "expected an empty journal" in rejected.err

    on_broker(second.broker)
    assert onebit("model", "import", "late.npz").code == ExitCode.OK
    work_on(second, "second", 10)
    assert onebit("verify", "--replay").code == ExitCode.OK
    assert second.journal()[0].updates >= exported["updates"] > 0


HASHED = to_plain(build({}, hash_bits=1, unknown=True))


@pytest.mark.parametrize(
    ("context", "exported"),
    [
        ({"x": [1] * 4}, small_task("late-ucb")),
        ({"x": [1] * 4}, small_task("late-ucb", parameters={"m": 8}, reward="any", floor=0.1, scale="standard")),
        ({"x": [1] * 4}, small_task("late-ucb", join=JoinSettings(window_ms=90_000, pending_max=70))),
        ({"x": [1] * 4, "eligible": ["hats"]}, small_task("late-ucb", open_classes=True, on_expiry="negative")),
        (
            {"actions": [{"id": "hat"}]},
            actions_task(
                actions={"context": CONTEXT, "features": HASHED},
                rewards="graded", reward_range="-1,1", feedback="sum",
            ),
        ),
    ],
    ids=["defaults", "policies", "limits", "open-classes", "actions"],
)  # fmt: skip
def test_command_after_an_import_starts_a_learner_with_the_settings_of_the_model(
    context: dict[str, Any],
    exported: TaskSettings,
    onebit: Onebit,
    on_broker: Callable[[Broker], None],
    learn_on: Callable[..., CommandResult],
) -> None:
    first, second = Pipeline(exported), Pipeline(exported)
    first.send(TOPICS.contexts, orjson.dumps({"id": "a", **context}))
    run_until_idle(first.learner())
    on_broker(first.broker)
    assert onebit("model", "export", "--out", "model.npz").code == ExitCode.OK
    on_broker(second.broker)
    ended = onebit("model", "import", "model.npz")
    assert ended.code == ExitCode.OK
    second.send(TOPICS.contexts, orjson.dumps({"id": "b", **context}))
    assert learn_on(second.broker, *shlex.split(ended.out.partition("--topic-prefix test.")[2])).code == ExitCode.OK
    assert pipeline_settings(second.broker, TOPICS, 1).settings == stored_settings(exported)
