"""An embedded pipeline behaves like a pipeline on Kafka, but runs in virtual time that the test controls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import onebit
from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.pipeline import feedback_of
from onebit.testing.processes import Programs
from stream.task.changes import ChangeRefusedError
from stream.wire.codec import encode_feedback

Make = Callable[..., EmbeddedPipeline]
SIZES: dict[str, Any] = {"n_classes": 2, "n_features": 2, "learner": "banditron"}


def test_feedback_is_matched_within_the_window_and_late_after_it(onebit_embedded: Make) -> None:
    pipeline = onebit_embedded(**SIZES, window="10s", partitions=3)
    for name in ("in-time", "too-late"):
        pipeline.context(name, [1.0, 0.5])
        assert pipeline.prediction(name)["model_version"] == 0
    pipeline.advance("10s")
    pipeline.feedback("in-time", 1)
    pipeline.wait_until(lambda ledger: ledger.matched == 1, "one decision is matched")
    pipeline.advance("2s")
    pipeline.feedback("too-late", 1)
    found = {name: pipeline.example(name) for name in ("in-time", "too-late")}
    assert {name: (one["outcome"], one["delay_ms"]) for name, one in found.items()} == {
        "in-time": ("matched", 10_000), "too-late": ("expired", None),
    }  # fmt: skip
    pipeline.wait_until(lambda ledger: ledger.late == 1, "one feedback record is late")


def test_killed_learner_resumes(onebit_embedded: Make) -> None:
    pipeline = onebit_embedded(**SIZES)
    pipeline.context("a", {"i": [0]})
    before = pipeline.prediction("a")
    pipeline.restart_learner()
    pipeline.feedback("a", 1, action=before["action"])
    assert pipeline.example("a")["action"] == before["action"]
    assert [line.split(" ")[1].split("/")[0] for line in pipeline.life("a")] == [
        "contexts", "predictions", "feedback", "examples",
    ]  # fmt: skip


def test_embedded_pipeline_ignores_environment_variables(
    onebit_embedded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEBIT_N_CLASSES", "7")
    pipeline = onebit_embedded(n_features=2, n_classes=2, learner="banditron")
    pipeline.context("a", [1.0, 0.5])
    assert len(pipeline.prediction("a")["scores"]) == 2


def test_description_of_a_pipeline_contains_the_ledger_of_the_last_step() -> None:
    pipeline = EmbeddedPipeline(n_classes=2, n_features=2, learner="banditron")
    for number in range(3):
        pipeline.context(f"visit-{number}", [1.0, 0.5])
        pipeline.work()
    assert "Ledger(contexts=3, decided=3" in pipeline.story()


def test_programs_resolve_paths_in_the_given_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.svm").write_text("a 1:1\nb 2:1\n")
    (tmp_path / "logs").mkdir()
    program = Programs(tmp_path / "logs", {}, tmp_path).start("data", "show", "mine.svm")
    assert program.wait() == 0, program.said()


@pytest.mark.parametrize("reward", [True, 1.0, np.int64(1), np.bool_(True), np.float32(1), np.uint8(1)])
@pytest.mark.parametrize("delay", ["0ms", "3s"])
def test_values_may_be_numpy_scalars_and_arrays(reward: Any, delay: str) -> None:
    matrix = np.arange(8.0).reshape(4, 2)
    with onebit.embedded(n_classes=3, n_features=4, learner="banditron") as pipeline:
        action: Any = np.int64(pipeline.decide("a", matrix[:, 1], eligible=np.array([0, 2])).action)  # type: ignore[arg-type]
        numbers: Any = [np.float32(value) for value in matrix[:, 0]]
        pipeline.decide("b", numbers)
        pipeline.feedback("a", reward, action=action, after=delay)
        pipeline.settle()
        assert (pipeline.example("a")["outcome"], pipeline.ledger.matched) == ("matched", 1)


@pytest.mark.parametrize("reward", [0.5, np.float64(0.5), "1", None, float("nan"), float("inf"), np.array([1, 2])])
def test_reward_that_is_no_bit_is_refused_at_the_call(reward: Any) -> None:
    with onebit.embedded(n_classes=3, n_features=1, learner="banditron") as pipeline:
        pipeline.decide("a", [1.0])
        with pytest.raises(onebit.OnebitError, match="reward: expected"):
            pipeline.feedback("a", reward, after="5s")


@pytest.mark.parametrize("field", [{"reward": 10**400}, {"part": 5}, {"final": "no"}, {"final": None}])
def test_field_with_a_wrong_type_is_refused_at_the_call(field: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"reward": 1, "part": "click", **field}
    with pytest.raises(onebit.OnebitError, match=f"{next(iter(field))}: expected"):
        feedback_of("a", **fields)


@pytest.mark.parametrize("reward", [1e20, -(2.0**63), 10**20])
def test_large_whole_reward_is_sent(reward: float) -> None:
    assert orjson.loads(encode_feedback(feedback_of("a", reward)))["reward"] == reward


@pytest.mark.parametrize("event_id", [7, None, b"a", np.int64(7)])
def test_id_that_is_no_string_is_refused_at_the_call(event_id: Any) -> None:
    with onebit.embedded(n_classes=3, n_features=1, learner="banditron") as pipeline:
        for call in (
            lambda: pipeline.decide(event_id, [1.0]),
            lambda: pipeline.feedback(event_id, 1, after="1s"),
            lambda: pipeline.shown(event_id, after="1s"),
        ):
            with pytest.raises(onebit.OnebitError, match="event id: expected a string"):
                call()


@pytest.mark.parametrize("partitions", [1, 3])
def test_restarted_pipeline_keeps_its_changed_settings(partitions: int) -> None:
    with onebit.embedded(**SIZES, window="10s", partitions=partitions) as pipeline:
        pipeline.decide("a", [1.0, 0.5])
        pipeline.change(window_ms=60_000, n_classes=3)
        pipeline.restart()
        pipeline.decide("b", [1.0, 0.5])
        pipeline.feedback("b", 1, after="1m", label=2)
        pipeline.settle()
        assert (pipeline.example("b")["outcome"], pipeline.ledger.matched) == ("matched", 1)


def test_removed_learner_is_replaced_by_the_champion() -> None:
    with onebit.embedded(**SIZES) as pipeline:
        pipeline.decide("a", [1.0, 0.5])
        pipeline.change(challengers={"late-ucb:m=2": {"m": 2}})
        pipeline.change(champion="late-ucb:m=2")
        pipeline.change(learner="late-ucb", champion=None, challengers={})
        pipeline.restart()
        assert pipeline.test.learner.tasks[0].settings.learner == "late-ucb"


@pytest.mark.parametrize(
    "values",
    [{"learner": "late-ucb"}, {"learner": "nobody"}, {"learner": ["banditron"]}, {"window": "1m"}, {"window_ms": "1m"},
     {"challengers": 3}, {"retired_classes": 7}, {"features": set()}, {"n_features": 1}, {"seed": 5}],
    ids=str,
)  # fmt: skip
def test_impossible_change_is_refused_with_the_settings_name(values: dict[str, Any]) -> None:
    with onebit.embedded(**SIZES) as pipeline:
        pipeline.decide("a", [1.0, 0.5])
        with pytest.raises(ChangeRefusedError, match=f"^{next(iter(values))}: "):
            pipeline.change(**values)


def test_several_sizes_are_refused_as_by_the_command() -> None:
    with (
        pytest.raises(onebit.OnebitError, match="--n-classes 3 and --actions-max 3"),
        onebit.embedded(n_classes=3, n_features=2, actions_max=3, action_features=2),
    ):
        pass
