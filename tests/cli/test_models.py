"""`onebit model` and `onebit verify --replay` on embedded pipelines' topics."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from onebit.cli.model import learn_flags
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.model_files import model_of, read_model
from stream.settings.sources import given_settings
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.wire.named_features import build, to_plain
from tests.cli.conftest import Onebit
from tests.offers import CONTEXT, FEATURES, PLACES, actions_task
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


def imported_flags(settings: TaskSettings, onebit: Onebit, on_broker: Callable[[Broker], None]) -> list[str]:
    """Export a pipeline's model, import it, and return the flags of the command for the next learner."""
    pipelines = [Pipeline(settings) for _ in range(2)]
    pipelines[0].send(TOPICS.contexts, b'{"id": "a", "x": {"i": [0]}, "eligible": %b}' % eligible_of(settings))
    run_until_idle(pipelines[0].learner())
    on_broker(pipelines[0].broker)
    assert onebit("model", "export", "--out", "model.npz").code == ExitCode.OK
    on_broker(pipelines[1].broker)
    ended = onebit("model", "import", "model.npz")
    assert ended.code == ExitCode.OK
    words = shlex.split(ended.out)
    return words[words.index("--learner") :]


def eligible_of(settings: TaskSettings) -> bytes:
    return b'["hats"]' if settings.open_classes else b"[0, 1]"


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"open_classes": True}, ["--classes-max", "3"]),
        ({}, ["--n-classes", "3"]),
        ({"reward": "any"}, ["--reward", "any"]),
        ({"on_expiry": "negative"}, ["--on-expiry", "negative"]),
        ({"floor": 0.1}, ["--floor", "0.1"]),
        ({"join": JoinSettings(window_ms=90_000)}, ["--window", "90s"]),
        ({"join": JoinSettings(pending_max=70, orphan_window_ms=1_500)}, ["--pending-max", "70"]),
        ({"scale": "standard"}, ["--scale", "standard"]),
    ],
    ids=str,
)
def test_command_after_an_import_has_the_settings_of_the_model(
    changes: dict[str, Any], flags: list[str], onebit: Onebit, on_broker: Callable[[Broker], None]
) -> None:
    found = imported_flags(small_task("late-ucb", **changes), onebit, on_broker)
    assert flags[1] == found[found.index(flags[0]) + 1]
    given = dict(zip((one.removeprefix("--").replace("-", "_") for one in found[::2]), found[1::2], strict=True))
    parameters = [value for flag, value in zip(found[::2], found[1::2], strict=True) if flag == "--param"]
    settings, meta = given_settings(given | {"param": parameters}), read_model(Path("model.npz")).meta
    n_classes = settings.classes_max if meta["open_classes"] else settings.n_classes
    assert (settings.learner, n_classes, settings.n_features) == ([meta["learner"]], meta["n_classes"], 4)
    assert parameters == [f"{name}={value}" for name, value in meta["parameters"].items()]


@pytest.mark.parametrize("is_named", [True, False])
def test_command_after_an_import_has_the_settings_of_a_model_for_actions(is_named: bool) -> None:
    layout = {"context": CONTEXT, "features": to_plain(build({}, hash_bits=1, unknown=True)) if is_named else None}
    task = actions_task(actions=layout, rewards="graded", reward_range="-1,1", feedback="sum")
    flags = learn_flags(model_of(task.resolved(), task.make_learner(), None, {}, {}).meta)
    at = flags.index("--actions-max")
    assert flags[at : at + 6] == [
        "--actions-max", str(PLACES), "--n-features", str(CONTEXT), "--action-features", str(FEATURES),
    ]  # fmt: skip
    assert {"--rewards", "graded", "--reward-range=-1,1", "--feedback", "sum"} <= set(flags)
    assert ("--features" in flags, "--n-classes" in flags) == (is_named, False)
