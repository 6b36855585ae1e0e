"""`onebit train`, and pipelines that start with its model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import onebit as api
import producers.datasets
from onebit.testing.embedded import EmbeddedPipeline
from producers.datasets import named
from producers.datasets.base import DatasetError
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import Broker
from stream.learners import FromLogs, registered
from stream.recovery.model_files import read_model
from stream.recovery.state import state_digest
from stream.task.settings import PolicyError
from stream.verifying.models import import_model
from tests.cli.conftest import CommandResult, Onebit
from tests.pipeline import TOPICS, Pipeline, small_task

OFFERS = Path(producers.datasets.__file__).parent / "files" / "offers.csv.gz"
MAP = "action=a,reward=r,propensity=p,numeric=x0+x1"


def rows(count: int = 60) -> list[dict[str, Any]]:
    """A log of uniform decisions among three classes, without a reward for every tenth."""
    return [
        {"a": number * 7 % 3, "p": 1 / 3, "r": None if number % 10 == 0 else int(number * 7 % 3 == number % 2),
         "x0": 1.0, "x1": number % 2 + 0.5}
        for number in range(count)
    ]  # fmt: skip


def log_at(path: Path, listed: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in listed))
    return path


@pytest.mark.parametrize("learner", ["late-ucb", "igw-logistic"])
def test_trained_model_is_that_of_a_pipeline_that_plays_the_log(learner: str, tmp_path: Path) -> None:
    log = log_at(tmp_path / "log.jsonl", rows())
    found = api.train(log, learner, map=MAP, reward="any")
    pipeline = EmbeddedPipeline(n_classes=3, n_features=2, learner=[learner], play="logged", reward="any")
    for number, row in enumerate(rows()):
        name = f"log-{number:06}"
        pipeline.context(name, [row["x0"], row["x1"]], logged={"action": row["a"], "propensity": row["p"]})
        pipeline.work()
        if row["r"] is not None:
            pipeline.feedback(name, row["r"])
            pipeline.work()
    assert found.model.meta["digest"] == state_digest([pipeline.learner.tasks[0].learner.state()])
    assert (found.learned, dict(found.skipped), found.from_labels) == (54, {"outcome-missing": 6}, False)
    pipeline.close()


def test_limit_selects_the_first_rows(tmp_path: Path) -> None:
    log, first = log_at(tmp_path / "log.jsonl", rows()), log_at(tmp_path / "first.jsonl", rows()[:25])
    found = [api.train(one, "banditron", map=MAP, epochs=2, limit=25).learned for one in (log, first)]
    assert found == [44, 44]


@pytest.mark.parametrize(("data", "rewards"), [("catalogue", "bit"), ("catalogue-graded", "graded")])
def test_data_set_with_the_rewards_of_all_actions_trains_a_model(data: str, rewards: str) -> None:
    found = api.train(data, "igw-log", parameters={"bits": 10}, rewards=rewards, limit=2_000)
    assert (found.learned, found.from_labels) == (2_000, False)
    assert found.model.meta["actions"] == {"context": 10, "features": None}
    dataset, learner, own, uniform = named.load(data), found.learner, [], []
    for row in range(2_000, 2_200):
        known = dataset.known_of(dataset.event_id(row)).rewards
        assert known is not None
        own.append(known[learner.predict(dataset.row(row).x, 0.5).greedy])
        uniform.append(known.mean())
    assert np.mean(own) > np.mean(uniform) + 0.1


def test_propensities_below_the_minimum_are_raised(tmp_path: Path) -> None:
    small = log_at(tmp_path / "small.jsonl", [{**row, "p": 1e-3} for row in rows()])
    raised = log_at(tmp_path / "raised.jsonl", [{**row, "p": 0.5} for row in rows()])
    first = api.train(small, "banditron", map=MAP, propensity_min=0.5)
    second = api.train(raised, "banditron", map=MAP)
    assert first.model.meta["digest"] == second.model.meta["digest"]


def test_log_without_usable_rows_is_an_error(tmp_path: Path) -> None:
    log = log_at(tmp_path / "log.jsonl", [{"a": "tea", "p": 1, "r": 1, "x": 1, "offer": []}])
    with pytest.raises(DatasetError):
        api.train(log, map="action=a,actions=offer,propensity=p,reward=r,numeric=x", on_bad_row="skip")


def test_labels_train_any_learner(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(300, 3))
    y = x.argmax(axis=1)
    found = [api.train((x, y), learner, epochs=2, seed=3) for learner in ("late-ucb", "perceptron", "banditron")]
    assert [(one.learned, one.from_labels) for one in found] == [(600, True)] * 3
    greedy = [found[1].learner.predict(row, 0.5).greedy for row in x]
    assert np.mean(np.array(greedy) == y) > 0.9
    again = api.train((x, y), "banditron", epochs=2, seed=3)
    assert again.model.meta["digest"] == found[2].model.meta["digest"]


def test_learner_of_own_actions_is_refused_for_logged_decisions(tmp_path: Path) -> None:
    log = log_at(tmp_path / "log.jsonl", rows())
    of_own_actions = [name for name, cls in registered().items() if cls.from_logs is FromLogs.UNSOUND]
    with pytest.raises(PolicyError):
        api.train(log, of_own_actions[0], map=MAP)


def test_log_without_what_the_learner_needs_is_refused(onebit: Onebit, tmp_path: Path) -> None:
    log = log_at(tmp_path / "log.jsonl", [{**row, "r": None} for row in rows()])
    out = str(tmp_path / "out.npz")
    assert onebit("train", "--data", str(log), "--map", MAP, "--out", out).code == ExitCode.USAGE
    with pytest.raises(OnebitError):
        api.train(log_at(tmp_path / "full.jsonl", rows()), "perceptron", map=MAP)
    assert not Path(out).exists()


def test_pipeline_starts_with_the_model_and_its_names(
    on_broker: Callable[[Broker], None], onebit: Onebit, learn_on: Callable[..., CommandResult], tmp_path: Path
) -> None:
    file = tmp_path / "start.npz"
    result = onebit("train", "--data", str(OFFERS), "--learner", "late-ucb", "--reward", "any", "--out", str(file))
    assert result.code == ExitCode.OK, result.err
    model = read_model(file)
    made = Pipeline(small_task())
    on_broker(made.broker)
    assert onebit("model", "import", str(file)).code == ExitCode.OK
    x = {"one": 1, "hours_away": 0.25, "device": "phone", "region": "east"}
    made.send(TOPICS.contexts, orjson.dumps({"id": "a", "x": x}), key=b"a")
    assert learn_on(made.broker, "--learner", "late-ucb").code == ExitCode.OK
    (decision,) = made.values(TOPICS.predictions)
    encoder = made.journal()[0].settings
    assert encoder is not None
    features = encoder.feature_encoder()
    assert features is not None
    expected = model.learner().predict(features.encode(x)[0], 0.5)
    assert decision["scores"] == expected.scores.tolist()
    assert decision["class"] == f"offer-{decision['action']:02}"
    assert learn_on(made.broker, "--learner", "stack-igw").code == ExitCode.USAGE


def test_exported_log_trains_a_model_without_names_and_with_a_running_scale(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    settings = {"n_classes": 3, "n_features": 2, "learner": ["late-ucb"], "topic_prefix": "test.", "scale": "standard"}
    first = EmbeddedPipeline(**settings)
    for number in range(40):
        first.context(f"visit-{number}", [1.0, 1_000.0 * (number % 2)])
        action = first.prediction(f"visit-{number}")["action"]
        first.feedback(f"visit-{number}", int(action == number % 2))
    first.work()
    on_broker(first.broker)
    log, file = tmp_path / "log.jsonl", tmp_path / "start.npz"
    assert onebit("export", "log", "--out", str(log)).code == ExitCode.OK
    flags = ("--scale", "standard", "--learner", "late-ucb")
    assert onebit("train", "--data", str(log), *flags, "--out", str(file)).code == ExitCode.OK
    model = read_model(file)
    assert (model.names, model.meta["scale"], model.meta["n_features"]) == ({}, "standard", 2)
    second = EmbeddedPipeline(**settings)
    import_model(second.broker, second.topics, 0, model, "import")
    second.context("visit", [1.0, 1_000.0])
    assert (
        second.prediction("visit")["scores"] == model.learner().predict(np.array([1.0, 1_000.0]), 0.5).scores.tolist()
    )
    first.close()
    second.close()


def test_model_for_open_classes_has_the_names_of_the_log(on_broker: Callable[[Broker], None], tmp_path: Path) -> None:
    listed = [{**row, "a": ("news", "help", "offers")[row["a"]]} for row in rows()]
    found = api.train(log_at(tmp_path / "log.jsonl", listed), "late-ucb", map=MAP, reward="any", classes_max=5)
    assert sorted(found.model.meta["classes"]) == ["help", "news", "offers"]
    second = EmbeddedPipeline(classes_max=5, n_features=2, learner=["late-ucb"], reward="any")
    import_model(
        second.broker, second.topics, 0, found.model._replace(meta={**found.model.meta, "settings": {}}), "import"
    )
    second.context("visit", [1.0, 0.5], eligible=["offers", "sale"])
    assert second.prediction("visit")["class"] in ("offers", "sale")
    second.close()
