"""`onebit export log` on an embedded pipeline's topics, and the commands that read the log."""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

import onebit as api
from consumers import decision_log
from onebit.pipelines import Pipeline
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import LogFile, open_log
from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker
from stream.wire.codec import HEADERS
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import TopicPartition
from tests.cli.conftest import Onebit

FEATURES = to_plain(
    build(
        {"hours": (Kind.NUMERIC, None), "device": (Kind.CATEGORICAL, ["phone", "tablet"]), "action": (Kind.TEXT, None)},
        4,
    )
)
"""Three named features, one of which has the name of a column of the log."""


@contextmanager
def running(**settings: Any) -> Iterator[Pipeline]:
    made = {"n_classes": 3, "n_features": 4, "learner": "late-ucb", "window": "5s", "retain": "10s"}
    with api.embedded(**{**made, "topic_prefix": "test.", "snapshot_interval": "1h", **settings}) as pipeline:
        yield pipeline


def visit(pipeline: Pipeline, number: int, x: Any = None) -> None:
    """Decide, with a right class that depends on the number. Every fifth decision receives no feedback."""
    features = [1.0, number % 2, number % 3 / 2, 0.0] if x is None else x
    decided = pipeline.decide(f"visit-{number}", features)
    if number % 5:
        pipeline.feedback(f"visit-{number}", int(decided.action == number % 2), after=f"{number % 7 * 100}ms")
    pipeline.advance("100ms")


def examples_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    test = pipeline.test
    found = [record for partition in range(test.partitions) for record in test.records("test.examples", partition)]
    return [orjson.loads(record.value or b"") for record in found]


def exported(onebit: Onebit, path: Path, *flags: str) -> dict[str, Any]:
    result = onebit("export", "log", "--out", str(path), "--json", *flags)
    assert result.code == ExitCode.OK, result.err
    report: dict[str, Any] = orjson.loads(result.out)
    return report


def log_of(path: Path) -> LogFile:
    return open_log(path, read_mapping(path.with_suffix(".toml")))


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def test_estimate_of_the_played_policy_equals_the_mean_of_the_examples(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(holdout=0.3, partitions=2, on_expiry="negative") as pipeline:
        for number in range(120):
            visit(pipeline, number)
        pipeline.decide("unshown", [1.0, 0.0, 0.0, 0.0], deferred=True)
        pipeline.decide("visit-1~2", [1.0, 0.0, 0.0, 0.0])
        pipeline.advance("30s")
        visit(pipeline, 1)  # its id was forgotten, so this is another decision
        pipeline.advance("30s")
        examples = [one for one in examples_of(pipeline) if one["outcome"] in ("matched", "expired")]
        on_broker(pipeline.test.broker)
        report = exported(onebit, tmp_path / "all.parquet")
    rewards = [one["reward"] for one in examples]
    (logged,) = api.estimate(tmp_path / "all.parquet", policies=["logged"], reward="any").to_dict()["policies"]
    assert {one["estimator"]: one["value"] for one in logged["estimates"]}["ips"] == pytest.approx(
        sum(rewards) / len(rewards), abs=1e-12
    )
    assert (report["rows"], report["left_out"], report["repeated"]) == (len(examples), {"unshown": 1}, 1)
    rows = rows_of(tmp_path / "all.parquet")
    assert sum(row["arm"] == "holdout" for row in rows) == sum(one.get("arm") == "holdout" for one in examples) > 0
    assert sum(row["outcome"] == "expired" for row in rows) == sum(one["outcome"] == "expired" for one in examples) > 0
    assert {row["id"]: row["delay_ms"] for row in rows}["visit-1~3"] == 100


@pytest.mark.parametrize("name", ["week.parquet", "week.jsonl.gz"])
def test_run_and_estimate_read_an_export_without_a_mapping(
    name: str, on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running() as pipeline:
        for number in range(60):
            visit(pipeline, number)
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / name)
        examples = examples_of(pipeline)
    rehearsed = api.run(tmp_path / name, learners="late-ucb", play="logged", reward="any", delay="logged", window="5s")
    assert rehearsed.ledger.matched == sum(one["outcome"] == "matched" for one in examples)
    assert rehearsed.ledger.expired == sum(one["outcome"] == "expired" for one in examples)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "week.toml"])


def test_named_features_keep_their_indices(on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path) -> None:
    (tmp_path / "given.json").write_bytes(orjson.dumps(FEATURES))
    with running(n_features=19, features=tmp_path / "given.json", classes_max=None) as pipeline:
        visit(pipeline, 1, {"hours": 2.5, "device": "tablet", "action": "Hello hello"})
        visit(pipeline, 2, {"hours": None, "device": "fridge", "action": "hello 42"})
        visit(pipeline, 3, {"i": [0, 1], "v": [1.0, 2.0]})
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        report = exported(onebit, tmp_path / "named.parquet")
        encoder = pipeline.test.learner.tasks[0].settings.feature_encoder()
    assert encoder is not None
    (batch,) = log_of(tmp_path / "named.parquet").batches()
    contexts: list[dict[str, Any]] = [
        {"hours": 2.5, "device": "tablet", "action": "Hello hello"}, {"device": "fridge", "action": "hello 42"},
    ]  # fmt: skip
    for number, x in enumerate(contexts):
        place, expected = slice(*batch.offsets[number : number + 2]), encoder.encode(x)[0]
        assert batch.indices[place].tolist() == expected.indices.tolist()
        assert batch.values[place].tolist() == expected.values.tolist()
    assert report["left_out"] == {"features-without-names": 1}
    assert orjson.loads((tmp_path / "named.features.json").read_bytes()) == FEATURES
    mapping = tomllib.loads((tmp_path / "named.toml").read_text())
    assert (mapping["action"], mapping["encoding"]) == ("action_", "named.features.json")


def test_log_ends_before_the_oldest_pending_decision(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(partitions=2) as pipeline:
        for number in range(1, 30):
            visit(pipeline, number)  # the decision 25 is the oldest pending one: it receives no feedback
        on_broker(pipeline.test.broker)
        report = exported(onebit, tmp_path / "log.parquet")
        until = exported(onebit, tmp_path / "until.parquet", "--until", str(report["last_ms"]))
        since = exported(onebit, tmp_path / "since.parquet", "--since", str(report["last_ms"]))
        pipeline.advance("30s")
    pending = sum(report["left_out"].values())
    assert (report["rows"] + pending, set(report["left_out"])) == (29, {"pending", "made-after-oldest-pending"})
    assert report["last_ms"] < report["ends_at_ms"]
    assert (until["rows"], since["rows"]) == (report["rows"] - 1, 1)


def test_decisions_with_deleted_contexts_or_examples_are_left_out(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running() as pipeline:
        for number in range(40):
            visit(pipeline, number)
        pipeline.advance("30s")
        kept = [pipeline.test.records(topic)[10] for topic in ("test.contexts", "test.examples")]
    broker = pipeline.test.broker
    assert isinstance(broker, EmbeddedBroker)
    on_broker(broker)
    broker.delete_records(TopicPartition("test.contexts", 0), kept[0].offset)
    contexts = exported(onebit, tmp_path / "contexts.parquet")
    broker.delete_records(TopicPartition("test.examples", 0), kept[1].offset)
    examples = exported(onebit, tmp_path / "examples.parquet")
    assert (contexts["rows"], contexts["left_out"]) == (30, {"context-deleted": 10})
    assert (examples["rows"], sum(examples["left_out"].values())) == (examples["rows"], 40 - examples["rows"])
    assert examples["left_out"]["example-deleted"] == 10


def test_eligible_classes_are_those_of_the_decision(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(n_classes=None, classes_max=4) as pipeline:
        pipeline.decide("a", [1.0, 0.0, 0.0, 0.0], eligible=["news", "help"])
        pipeline.decide("b", [1.0, 0.0, 0.0, 0.0], eligible=["help", "offers"])
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / "open.parquet")
    assert [row["eligible"] for row in rows_of(tmp_path / "open.parquet")] == [["news", "help"], ["help", "offers"]]
    with running() as pipeline:
        pipeline.decide("a", [1.0, 0.0, 0.0, 0.0], eligible=[0, 2])
        pipeline.decide("b", [1.0, 0.0, 0.0, 0.0])
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / "fixed.parquet")
    assert [row["eligible"] for row in rows_of(tmp_path / "fixed.parquet")] == [["0", "2"], None]


def test_contexts_in_an_envelope_are_exported(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(envelope="cloudevents") as pipeline:
        visit(pipeline, 1)
        event = {"specversion": "1.0", "data": {"id": "b", "x": [1.0, 0.0, 0.5, 0.0]}}
        headers = (*HEADERS, ("content-type", b"application/cloudevents+json"))
        for key, value, own in ((b"b", orjson.dumps(event), headers), (b"c", b"\0abcd" + context_of("c"), HEADERS)):
            pipeline.test.broker.producer().send("test.contexts", 0, key, value, own)
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / "log.parquet")
    assert [(row["id"], row["x2"]) for row in rows_of(tmp_path / "log.parquet")] == [
        ("visit-1", 0.5), ("b", 0.5), ("c", 0.5),
    ]  # fmt: skip


def context_of(event_id: str) -> bytes:
    return orjson.dumps({"id": event_id, "x": [1.0, 0.0, 0.5, 0.0]})


def test_service_rule_is_estimated_from_an_export(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running(holdout=0.5, holdout_policy="baseline") as pipeline:
        for number in range(60):
            decided = pipeline.decide(f"visit-{number}", [1.0, number % 2, 0.0, 0.0], baseline=number % 3)
            pipeline.feedback(f"visit-{number}", int(decided.action == number % 2))
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / "log.parquet")
    rows = rows_of(tmp_path / "log.parquet")
    assert [row["baseline"] for row in rows] == [str(number % 3) for number in range(60)]
    weighted = [row["reward"] / row["propensity"] if row["baseline"] == row["action"] else 0.0 for row in rows]
    (rule,) = api.estimate(tmp_path / "log.parquet", policies=["baseline"], reward="any").to_dict()["policies"]
    assert {one["estimator"]: one["value"] for one in rule["estimates"]}["ips"] == pytest.approx(sum(weighted) / 60)
    with pytest.raises(api.OnebitError):
        api.estimate(tmp_path / "log.parquet", map=WITHOUT_BASELINE, policies=["baseline"])


WITHOUT_BASELINE = "action=action,reward=reward,propensity=propensity,numeric=x0+x1"


@pytest.mark.parametrize("names", [("0", "1", "2"), ("news", "help", "sale")])
def test_replay_of_a_log_lets_the_service_rule_decide(names: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"y": names[number % 3], "rule": names[number % 2], "x": 1.0 + number % 3} for number in range(30)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    found = api.run(
        log, map="label=y,baseline=rule,numeric=x", learners="late-ucb", delay="none", holdout=1.0,
        holdout_policy="baseline",
    )  # fmt: skip
    assert found["late-ucb"].error == sum(row["y"] != row["rule"] for row in rows) / 30
    assert found["late-ucb"].ok


def test_interrupted_export_leaves_the_earlier_files(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as pipeline:
        visit(pipeline, 1)
        pipeline.advance("30s")
        on_broker(pipeline.test.broker)
        exported(onebit, tmp_path / "log.jsonl")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def interrupt(self: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(decision_log.DecisionLog, "count_row", interrupt)
        assert onebit("export", "log", "--out", str(tmp_path / "log.jsonl")).code == ExitCode.INTERRUPTED
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_export_without_settled_decisions_or_to_an_unknown_format_is_refused(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    with running() as pipeline:
        on_broker(pipeline.test.broker)
        assert onebit("export", "log", "--out", str(tmp_path / "log.jsonl")).code == ExitCode.USAGE
        visit(pipeline, 5)
        assert onebit("export", "log", "--out", str(tmp_path / "log.jsonl")).code != ExitCode.OK
        assert onebit("export", "log", "--out", str(tmp_path / "log.csv")).code == ExitCode.USAGE
        pipeline.advance("30s")
    assert not list(tmp_path.iterdir())
