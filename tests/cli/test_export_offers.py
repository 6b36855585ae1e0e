"""`onebit export log` on a pipeline whose contexts offer actions with features, and the commands that read the log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import onebit as api
from onebit.pipelines import Pipeline
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import open_log
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.model_files import read_model
from stream.recovery.recover import rebuild
from stream.recovery.state import state_digest
from stream.task.carry import members_of
from stream.verifying.models import import_model
from stream.wire.codec import ActionReading, decode_context
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import Record
from tests.cli.conftest import CommandResult, Onebit
from tests.pipeline import TOPICS, small_task
from tests.pipeline import Pipeline as NewPipeline

PLACES, VISITS = 5, 60

CONTEXTS = build({"age": (Kind.NUMERIC, None), "city": (Kind.CATEGORICAL, ["rome", "oslo"])}, 3)
ACTIONS = build({"price": (Kind.NUMERIC, None), "topic": (Kind.TEXT, None), "new": (Kind.NUMERIC, None)}, 4)
HASHED = build({}, 5, unknown=True)

FILES = {
    "named": to_plain(CONTEXTS) | {"actions": to_plain(ACTIONS)},
    "hashed": to_plain(HASHED) | {"actions": to_plain(HASHED)},
}
"""Files of named features: with vocabularies and hashed values, or with hashed names and values."""


@contextmanager
def running(tmp_path: Path, features: str, **settings: Any) -> Iterator[Pipeline]:
    sizes: dict[str, Any] = {"n_features": 2, "action_features": 3}
    if features in FILES:
        file = tmp_path / "features" / "given.json"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(orjson.dumps(FILES[features]))
        encoder = CONTEXTS if features == "named" else HASHED
        sizes = {"features": file, "n_features": encoder.n_features}
    made = {"actions_max": PLACES, "learner": "igw-log", "param": ["bits=12"], "window": "5s", "retain": "10s"}
    with api.embedded(**{**made, **sizes, "topic_prefix": "test.", "snapshot_interval": "1h", **settings}) as pipeline:
        yield pipeline


def offer(number: int, features: str) -> dict[str, Any]:
    """Return a context with 2 to 4 actions."""
    ids = [f"item-{(number + step) % 9}" for step in range(2 + number % 3)]
    x: Any
    actions: list[dict[str, Any]]
    topics = ["hot tea", "cup", "tea cup", "pot"]
    if features == "indices":
        x = [1.0, number % 2]
        actions = [{"id": name, "x": {"i": [0, 2], "v": [1.5, (1 + int(name[-1])) / 9]}} for name in ids]
        actions[0]["x"] = [0.0, 1.0, 0.5]
    else:
        x = {"age": number, "city": ["rome", "oslo", "bern"][number % 3]}
        actions = [{"id": name, "x": {"price": int(name[-1]) / 9, "topic": topics[int(name[-1]) % 4]}} for name in ids]
        actions[0]["x"]["new"] = True
        del actions[1]["x"]
    eligible = ids[:2] if number % 4 == 3 else None
    return {"x": x, "actions": actions, "eligible": eligible, "baseline": ids[1]}


def visit(pipeline: Pipeline, number: int, features: str) -> None:
    """Decide. The reward depends on the id; every seventh decision receives no feedback."""
    decided = pipeline.decide(f"visit-{number}", **offer(number, features))
    if number % 7:
        pipeline.feedback(f"visit-{number}", int(int((decided.class_name or "")[-1]) % 3 == number % 3))
    pipeline.advance("100ms")


def contents(pipeline: Pipeline, topic: str) -> list[dict[str, Any]]:
    return [orjson.loads(record.value or b"") for record in records(pipeline, topic)]


def records(pipeline: Pipeline, topic: str) -> list[Record]:
    return pipeline.test.records(f"test.{topic}", 0)


def run_visits(pipeline: Pipeline, features: str) -> None:
    for number in range(VISITS):
        visit(pipeline, number, features)
    pipeline.advance("30s")


@pytest.mark.parametrize(
    ("features", "name"), [("named", "log.parquet"), ("hashed", "log.jsonl"), ("indices", "log.jsonl.gz")]
)
def test_exported_decisions_equal_those_of_the_pipeline(
    features: str, name: str, on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    path = tmp_path / name
    with running(tmp_path, features, on_expiry="negative") as pipeline:
        run_visits(pipeline, features)
        on_broker(pipeline.test.broker)
        assert onebit("export", "log", "--out", str(path)).code == ExitCode.OK
        examples, predictions = contents(pipeline, "examples"), contents(pipeline, "predictions")
        task = pipeline.test.learner.tasks[0].settings
        reading = task.action_reading()
        contexts = [
            decode_context(record, task.context_features, encoder=task.feature_encoder(), actions=reading)
            for record in records(pipeline, "contexts")
        ]
    log = open_log(path, read_mapping(tmp_path / "log.toml"))
    assert isinstance(reading, ActionReading)
    assert log.blocks == reading.blocks
    (batch,) = log.batches()
    assert batch.offered is not None
    assert batch.eligible is not None
    assert batch.baselines is not None
    for row, (context, made) in enumerate(zip(contexts, predictions, strict=True)):
        entries = slice(*batch.offsets[row : row + 2])
        assert batch.indices[entries].tolist() == context.x.indices.tolist()
        assert batch.values[entries].tolist() == context.x.values.tolist()
        assert (batch.offered.of(row), batch.actions[row]) == (context.actions, made["action"])
        assert batch.propensities[row] == made["propensity"]
        among = batch.eligible.of(row)
        assert among is not None
        assert context.eligible is not None
        assert among.tolist() == context.eligible.tolist()
        assert batch.baselines[row] == context.baseline
    (logged,) = api.estimate(path, policies=["logged"], reward="any").to_dict()["policies"]
    values = {one["estimator"]: one["value"] for one in logged["estimates"]}
    mean = np.mean([one["reward"] for one in examples])
    assert (values["ips"], values["dr"]) == (pytest.approx(mean, abs=1e-12), pytest.approx(mean, abs=1e-12))


@pytest.mark.parametrize("features", ["named", "hashed", "indices"])
def test_run_train_import_and_challenger_read_an_export(
    features: str,
    on_broker: Callable[[Broker], None],
    onebit: Onebit,
    learn_on: Callable[..., CommandResult],
    tmp_path: Path,
) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "start.npz"
    with running(tmp_path, features) as pipeline:
        run_visits(pipeline, features)
        on_broker(pipeline.test.broker)
        assert onebit("export", "log", "--out", str(path)).code == ExitCode.OK
        matched = sum(one["outcome"] == "matched" for one in contents(pipeline, "examples"))
        training = ("--learner", "igw-log", "--param", "bits=12", "--reward", "any", "--out", str(file))
        trained = onebit("train", "--data", str(path), *training)
        assert trained.code == ExitCode.OK, trained.err
        added = ("--challenger", "igw-log:bits=12", "--from", str(file), "--yes", "--no-wait")
        result = onebit("change", *added)
        assert result.code == ExitCode.OK, result.err
        pipeline.advance("1s")
        challenger = members_of(rebuild(pipeline.test.broker, pipeline.test.topics, 0).task.learner)[1]
    model = read_model(file)
    assert state_digest([challenger.state()]) == model.meta["digest"]
    rehearsed = api.run(path, learners="igw-log", play="logged", reward="any", delay="logged", window="5s")
    assert (rehearsed.ledger.matched, rehearsed.ok) == (matched, True)
    fresh = NewPipeline(small_task())
    on_broker(fresh.broker)
    assert onebit("model", "import", str(file)).code == ExitCode.OK
    fresh.send(TOPICS.contexts, orjson.dumps({"id": "a", **offer(1, features)}), key=b"a")
    started = learn_on(fresh.broker, "--learner", "igw-log", "--param", "bits=12", "--reward", "any")
    assert started.code == ExitCode.OK, started.err
    assert [one["class"][:5] for one in fresh.values(TOPICS.predictions)] == ["item-"]
    with running(tmp_path, features) as second:
        import_model(second.test.broker, second.test.topics, 0, model, "import")
        second.decide("first", **offer(2, features))
        task = second.test.learner.tasks[0]
        first = decode_context(
            records(second, "contexts")[0],
            task.settings.context_features,
            encoder=task.settings.feature_encoder(),
            actions=task.settings.action_reading(),
        )
        expected = model.learner().predict(first.x, 0.5, first.eligible).scores
        assert contents(second, "predictions")[0]["scores"] == expected.tolist()


def test_too_many_features_without_names_are_refused(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(tmp_path, "indices", n_features=2_000) as pipeline:
        pipeline.decide("first", {"i": [0]}, actions=[{"id": "tea"}, {"id": "cup"}])
        pipeline.feedback("first", 1)
        on_broker(pipeline.test.broker)
        assert onebit("export", "log", "--out", str(tmp_path / "log.jsonl")).code != ExitCode.OK
    assert not list(tmp_path.glob("log*"))
