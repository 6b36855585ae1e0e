"""An embedded pipeline behaves like a pipeline on Kafka, but runs in virtual time that the test controls."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.processes import Programs

Make = Callable[..., EmbeddedPipeline]
SIZES = {"n_classes": 2, "n_features": 2, "learner": "banditron"}


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
