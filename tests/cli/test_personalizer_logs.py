"""Azure Personalizer's logs: an estimate, and a model for a pipeline with Personalizer's interface."""

from pathlib import Path
from typing import Any

import orjson
import pytest

import onebit as api
from producers.gateway.personalizer import rank_request
from stream.errors import ExitCode
from stream.recovery.model_files import read_model
from stream.verifying.models import import_model
from stream.wire.codec import decode_context
from tests.cli.conftest import Onebit

FEATURES = Path(__file__).parents[2] / "docker" / "personalizer.json"
NAMES = ("tea", "cup", "pot")


def actions_of(number: int) -> list[list[dict[str, Any]]]:
    return [[{"kind": name, "tags": ["new", name]}, {"price": number % 5}] for name in NAMES]


def decision(number: int) -> dict[str, Any]:
    """A decision that played each action in turn. In the morning, tea has the highest reward."""
    k, morning = number % 3, number % 2 == 0
    listed = [
        {"_tag": name, "i": {"constant": 1, "id": name}, "j": features}
        for name, features in zip(NAMES, actions_of(number), strict=True)
    ]
    reward = 0.9 if morning == (k == 0) else 0.2
    others = [place + 1 for place in range(3) if place != k]
    context = {"FromUrl": [{"daytime": "morning" if morning else "evening"}], "_multi": listed}
    return {
        "_label_cost": -reward, "Timestamp": "2021-02-04T16:31:29.246Z", "EventId": f"e{number}",
        "a": [k + 1, *others], "p": [1 / 3] * 3, "c": context,
    }  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "export.json"
    path.write_bytes(b"".join(orjson.dumps(decision(number)) + b"\n" for number in range(300)))
    return path


def test_sizes_are_those_of_contexts_and_actions(log: Path, onebit: Onebit, tmp_path: Path) -> None:
    shown = onebit("data", "show", str(log), "--rewards", "graded").out
    assert "300 valid rows\ncontexts with 2 features, and up to 3 actions with 8" in shown
    made = onebit("train", "--data", str(log), "--rewards", "graded", "--out", str(tmp_path / "start.npz"))
    assert "after 300 decisions, 3 actions with 8 features, contexts with 2, digest" in made.out


def test_model_trained_on_a_log_decides_for_requests(log: Path, onebit: Onebit, tmp_path: Path) -> None:
    out = tmp_path / "start.npz"
    graded = ("--rewards", "graded", "--features", str(FEATURES), "--json")
    made = onebit("train", "--data", str(log), *graded, "--actions-max", "9", "--out", str(out))
    assert made.code == ExitCode.OK, made.err
    estimate = onebit(
        "estimate", "--data", str(log), *graded, "--policy", f"model:{out}", "--policy", "first", "--policy", "logged"
    )
    assert estimate.code == ExitCode.OK, estimate.err
    model, first, logged = (
        {one["estimator"]: one["value"] for one in policy["estimates"]}["snips"]
        for policy in orjson.loads(estimate.out)["policies"]
    )
    assert first == pytest.approx(0.55)
    assert model > 0.7 > logged
    settings: dict[str, Any] = {"actions_max": 9, "features": FEATURES, "n_features": 1 << 20, "rewards": "graded"}
    with api.embedded(**settings, learner="igw-log", window="5s", retain="10s", topic_prefix="test.") as pipeline:
        import_model(pipeline.test.broker, pipeline.test.topics, 0, read_model(out), "import")
        body = {
            "eventId": "visit", "contextFeatures": [{"daytime": "morning"}],
            "actions": [{"id": name, "features": one} for name, one in zip(NAMES, actions_of(1), strict=True)],
        }  # fmt: skip
        context = rank_request(body).context
        pipeline.decide("visit", context["x"], actions=context["actions"])
        task = pipeline.test.learner.tasks[0].settings
        (record,) = pipeline.test.records("test.contexts", 0)
        given = decode_context(
            record, task.context_features, encoder=task.feature_encoder(), actions=task.action_reading()
        )
        (published,) = pipeline.test.records("test.predictions", 0)
    scores = orjson.loads(published.value or b"")["scores"]
    assert scores == read_model(out).learner().predict(given.x, 0.5, given.eligible).scores.tolist()
    assert max(range(3), key=scores.__getitem__) == 0


def test_features_file_is_rejected_for_data_with_indices(onebit: Onebit, tmp_path: Path) -> None:
    out = str(tmp_path / "out.npz")
    assert onebit("train", "--data", "optdigits", "--features", str(FEATURES), "--out", out).code == ExitCode.USAGE
