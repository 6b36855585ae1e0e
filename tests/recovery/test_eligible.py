"""Eligible classes, open classes and a holdout in a complete pipeline with restarts."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import onebit
from onebit.testing.embedded import EmbeddedPipeline
from stream.kafka.reading import read_partition
from stream.recovery.model_files import read_model, write_model
from stream.verifying.models import export_model, import_model, import_shared_model
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.classes import Classes
from stream.wire.codec import HEADERS, TRACE_BYTES_MAX, LogReading, MalformedError, decode_context, trace_of
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED
from stream.wire.records import NOT_ELIGIBLE, Headers, Record, TopicPartition
from stream.wire.updates import decode_update
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task
from tests.verifying.tampering import change, tampered

K, D, EVENTS = 5, 4, 120
NAMES = ("a", "b", "c", "d", "e")


def context(eligible: object) -> bytes:
    return orjson.dumps({"id": "a", "x": {"i": [0]}, "eligible": eligible})


@pytest.mark.parametrize(
    "settings", [{}, {"model": "shared", "partitions": 2}, {"floor": 0.3, "holdout": 0.3}], ids=str
)
def test_decisions_are_among_the_eligible_classes_across_restarts(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    with onebit.embedded(n_classes=K, n_features=D, learner="late-ucb", **settings) as pipeline:
        for t in range(EVENTS):
            eligible = rng.choice(K, rng.integers(1, K + 1), replace=False).tolist()
            decision = pipeline.decide(f"event-{t}", rng.normal(size=D).tolist(), eligible=eligible)
            assert {decision.action, decision.greedy} <= set(eligible)
            assert (np.flatnonzero(decision.scores != NOT_ELIGIBLE) == sorted(eligible)).all()
            pipeline.feedback(f"event-{t}", int(decision.action == max(eligible)), after="20s")
            pipeline.advance("1s")
            if t in (50, 90):
                pipeline.restart()


@pytest.mark.parametrize("snapshot_interval", ["0s", "5s"])
@pytest.mark.parametrize("sharing", [{}, {"model": "shared", "partitions": 3}], ids=["own", "shared"])
def test_open_classes_keep_their_indices_and_names_across_restarts(
    sharing: dict[str, Any], snapshot_interval: str
) -> None:
    rng = np.random.default_rng(3)
    found: dict[str, int] = {}
    with onebit.embedded(
        classes_max=K, n_features=D, learner="late-ucb", snapshot_interval=snapshot_interval, **sharing
    ) as pipeline:
        for t in range(EVENTS):
            known = NAMES[: 1 + t // 20]
            decision = pipeline.decide(f"event-{t}", rng.normal(size=D).tolist(), eligible=known[::-1])
            assert decision.class_name in known
            assert found.setdefault(decision.class_name, decision.action) == decision.action
            pipeline.advance("1s")
            if t in (50, 90):
                pipeline.restart()
        assert sorted(found.values()) == list(range(K))


@pytest.mark.parametrize("sharing", [{}, {"model": "shared", "partitions": 2}], ids=["own", "shared"])
def test_context_with_too_many_class_names_is_a_dead_letter(sharing: dict[str, Any]) -> None:
    with onebit.embedded(classes_max=2, n_features=1, learner="banditron", **sharing) as pipeline:
        pipeline.decide("first", [1.0], eligible=["a", "b"])
        pipeline.test.context("full", [1.0], eligible=["c"])
        assert pipeline.decide("later", [1.0]).class_name in ("a", "b")
        assert pipeline.ledger.context_malformed == 1


@pytest.mark.parametrize("eligible", [[], [3], [1, 1], ["a"], [-1], [0.5], "0", {"a": 1}, [None]])
def test_invalid_eligible_classes_are_dead_letters(eligible: object) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.send(TOPICS.contexts, context(eligible))
    run_until_idle(learner)
    (letter,) = pipeline.records(TOPICS.dead_letter)
    assert dict(letter.headers)["onebit-kind"] == DEAD_LETTER_MALFORMED.encode()


def test_learners_without_support_for_eligible_classes_reject_the_setting_or_context() -> None:
    with pytest.raises(onebit.OnebitError), onebit.embedded(classes_max=3, n_features=2, learner="halving"):
        pass
    with onebit.embedded(n_classes=3, n_features=2, learner="exp4") as pipeline:
        pipeline.test.context("limited", [1.0, 0.0], eligible=[0, 1])
        assert pipeline.ledger.context_malformed == 1


def test_imported_model_contains_its_class_names(tmp_path: Path) -> None:
    with onebit.embedded(classes_max=3, n_features=1, learner="banditron") as first:
        first.decide("visit", [1.0], eligible=["news", "help"])
        model = export_model(first.test.broker, first.test.topics, 0)
    write_model(tmp_path / "model.npz", model)
    second = EmbeddedPipeline(classes_max=3, n_features=1, learner="banditron", holdout=0.2)
    import_model(second.broker, second.topics, 0, read_model(tmp_path / "model.npz"), "import")
    second.restart_learner()
    for n, eligible in enumerate((["help"], ["news"], None, ["offers"])):
        second.context(f"visit-{n}", [1.0], **({} if eligible is None else {"eligible": eligible}))
    assert [second.prediction(f"visit-{n}")["action"] for n in (0, 1, 3)] == [1, 0, 2]
    second.finish()
    second.close()


def shared_pipeline() -> EmbeddedPipeline:
    return EmbeddedPipeline(classes_max=K, n_features=1, learner="late-ucb", model="shared", partitions=2)


def test_open_classes_of_a_shared_model_are_replayed_exported_and_imported(tmp_path: Path) -> None:
    first = shared_pipeline()
    for n in range(20):
        first.context(f"visit-{n}", [1.0], eligible=NAMES[3 * (n // 10) : 3 + 2 * (n // 10)])
    first.finish()
    assert [replay_journal(first.broker, first.topics, partition).fault for partition in (0, 1)] == ["", ""]
    write_model(tmp_path / "model.npz", export_model(first.broker, first.topics, 0))
    second = shared_pipeline()
    import_shared_model(second.broker, second.topics, 2, read_model(tmp_path / "model.npz"), "import")
    second.restart_learner()
    second.context("visit", [1.0], eligible=["d"])
    assert second.prediction("visit")["action"] == 3
    second.finish()
    assert audit_log(second.broker, second.topics, 2).faults == ()


def test_context_that_is_too_large_for_the_log_adds_no_class_names() -> None:
    pipeline = EmbeddedPipeline(classes_max=2, n_features=80_000, learner="banditron", model="shared")
    pipeline.context("large", {"i": list(range(76_000))}, eligible=["x", "y"])
    pipeline.context("small", {"i": [1]}, eligible=["a", "b"])
    assert pipeline.prediction("small")["class"] in ("a", "b")
    assert pipeline.ledger().context_malformed == 1
    pipeline.close()


def test_many_new_class_names_are_added_in_several_steps() -> None:
    pipeline = EmbeddedPipeline(classes_max=500, n_features=1, learner="banditron", model="shared")
    names = [f"class {n}" for n in range(500)]
    pipeline.context("all", [1.0], eligible=names)
    assert pipeline.prediction("all")["class"] in names
    log = read_partition(pipeline.broker, TopicPartition(pipeline.topics.updates, 0))
    added = [len(update.names) for record in log if (update := decode_update(record)) is not None]
    assert sum(added) == 500
    assert len(added) > 2
    pipeline.close()


def test_malformed_context_adds_no_class_names() -> None:
    classes = Classes(2, is_open=True)
    with pytest.raises(MalformedError):
        decode_context(logged(["junk"], action=1), 1, LogReading(2), None, classes)
    assert decode_context(logged(["x", "y"], action=1), 1, LogReading(2), None, classes).eligible is not None
    assert classes.names == ["x", "y"]


def logged(eligible: list[str], action: int) -> Record:
    value = orjson.dumps({"id": "a", "x": [1.0], "eligible": eligible, "logged": {"action": action}})
    return Record("contexts", 0, 0, 0, None, value, HEADERS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            (("traceparent", b"1"), ("other", b"x"), ("tracestate", b"a=1")),
            (("traceparent", b"1"), ("tracestate", b"a=1")),
        ),
        ((("traceparent", b"1"), ("traceparent", b"2")), (("traceparent", b"1"),)),
        ((("traceparent", b""),) * 70_000, (("traceparent", b""),)),
        ((("traceparent", b"1"), ("tracestate", b"x" * TRACE_BYTES_MAX)), ()),
    ],
    ids=["both", "repeated", "many", "long"],
)
def test_at_most_one_trace_header_of_each_name_is_copied(given: Headers, expected: Headers) -> None:
    assert trace_of(Record("contexts", 0, 0, 0, None, b"", (*HEADERS, *given))) == expected


def test_trace_headers_are_copied_to_prediction_and_example_across_a_restart() -> None:
    trace = (("traceparent", b"00-1"), ("tracestate", b"a=1"))
    with onebit.embedded(n_classes=2, n_features=1, learner="banditron", snapshot_interval="1s") as pipeline:
        test = pipeline.test
        value = orjson.dumps({"id": "traced", "x": [1.0]})
        headers = (*HEADERS, ("other", b"x"), *trace)
        test.broker.producer().send(test.topics.contexts, 0, b"traced", value, headers)
        pipeline.decide("untraced", [1.0])
        pipeline.advance("5s")
        pipeline.restart()
        pipeline.feedback("traced", 1)
        pipeline.feedback("untraced", 1)
        for topic in (test.topics.predictions, test.topics.examples):
            found = {record.key: record.headers[2:] for record in test.records(topic, 0)}
            assert found == {b"traced": trace, b"untraced": ()}


@pytest.mark.parametrize(
    "edit",
    [change(0, action=2, greedy=2), change(0, scores=[0.0, 0.0, 0.0]), change(0, arm="holdout")],
    ids=["class", "scores", "arm"],
)
def test_audit_detects_an_ineligible_decision_or_a_wrong_arm(edit: Any) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.send(TOPICS.contexts, context([0, 1]))
    run_until_idle(learner)
    assert tampered(pipeline, TOPICS.predictions, list).ok
    finding = tampered(pipeline, TOPICS.predictions, edit)
    assert len(finding.faults) == 1


@pytest.mark.parametrize("settings", [{}, {"model": "shared", "partitions": 2}], ids=["own", "shared"])
def test_arm_depends_on_the_id_and_propensity_on_both_policies(settings: dict[str, Any]) -> None:
    arms = {}
    held: dict[str, Any] = {"learner": "late-ucb", "holdout": 0.3, "holdout_policy": "constant:1", **settings}
    with onebit.embedded(n_classes=3, n_features=1, **held) as pipeline:
        for t in range(100):
            decision = pipeline.decide(f"event-{t}", [1.0])
            pipeline.feedback(f"event-{t}", int(decision.action == 2))
            arms[f"event-{t}"] = pipeline.example(f"event-{t}").get("arm")
            assert round(decision.propensity, 9) in ({0.3, 1.0} if decision.action == 1 else {0.7})
            if arms[f"event-{t}"]:
                assert decision.action == 1
            if t == 50:
                pipeline.restart()
    assert 15 < sum(map(bool, arms.values())) < 45
    with onebit.embedded(n_classes=3, n_features=1, **held) as again:
        for event_id, arm in list(arms.items())[::-10]:
            again.decide(event_id, [1.0])
            again.feedback(event_id, 0)
            assert again.example(event_id).get("arm") == arm
