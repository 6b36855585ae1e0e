"""`onebit change` and `onebit changes` on an embedded pipeline's topics."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from onebit.changes import DesiredChange, with_changes
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.control import read_requests
from stream.settings.definitions import Settings, SettingsError
from stream.wire.codec import decode_prediction_fields
from stream.wire.control import Replaced
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


def requested(pipeline: Pipeline) -> list[dict[str, Replaced]]:
    found = [each.request for each in read_requests(pipeline.broker, TOPICS).all]
    return [request.changes for request in found if request is not None]


CHALLENGED: dict[str, Any] = {"parameters": {"gamma": 0.9}, "challengers": {"late-ucb": {"m": 2}}}
NOW = ("--yes", "--no-wait")
NOTHING = DesiredChange(Settings(), frozenset())


def test_change_requests_the_given_settings(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert onebit("change", "--window", "2m", "--champion", "late-ucb", *NOW).code == ExitCode.OK
    assert requested(pipeline) == [
        {"window_ms": Replaced(1_000, 120_000), "champion": Replaced("banditron", "late-ucb")},
    ]


def test_only_flags_change_a_pipeline(
    on_broker: Callable[[Broker], None], onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(on_broker)
    monkeypatch.setenv("ONEBIT_RETAIN", "3h")
    assert onebit("change", *NOW).code == ExitCode.USAGE
    assert onebit("change", "--window", "2m", *NOW).code == ExitCode.OK
    assert [*requested(pipeline)[0]] == ["window_ms"]


def test_change_is_reported_with_the_step_that_applies_it(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker)
    assert onebit("change", "--window", "2m", *NOW).code == ExitCode.OK
    assert [(one["steps"], one["waiting"]) for one in listed(onebit)] == [({}, [0])]
    last = pipeline.journal()[-1].number
    run_until_idle(pipeline.learner(given=()))
    (found,) = listed(onebit)
    assert (found["steps"], found["waiting"], found["refusal"]) == ({"0": last + 1}, [], None)
    assert found["changes"] == {"window_ms": {"from": 1_000, "to": 120_000}}
    unchanged = orjson.loads(onebit("change", "--window", "2m", "--yes", "--json").out)  # waits for the tasks
    assert unchanged == {"id": None, "changes": {}, "steps": {}}
    assert len(listed(onebit)) == 1


def listed(onebit: Onebit) -> list[dict[str, Any]]:
    result = onebit("changes", "--json")
    assert result.code == ExitCode.OK, result.err
    found: list[dict[str, Any]] = orjson.loads(result.out)
    return found


def test_refused_request_is_listed_with_its_reason(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker)
    pipeline.send(TOPICS.control, b"{")
    pipeline.request(seed=5)
    run_until_idle(pipeline.learner(given=()))
    assert [bool(one["refusal"]) for one in listed(onebit)] == [True, True]
    assert onebit("changes").code == ExitCode.OK


def test_change_that_is_sent_again_before_it_is_applied_has_no_further_effect(
    on_broker: Callable[[Broker], None], onebit: Onebit
) -> None:
    pipeline = pipeline_of(on_broker)
    for _ in range(2):
        assert onebit("change", "--window", "2m", *NOW).code == ExitCode.OK
    assert len(requested(pipeline)) == 1


def test_better_challenger_becomes_the_champion(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert onebit("change", "--champion-when-better", "--no-wait").code == ExitCode.OK
    assert requested(pipeline) == [{"champion": Replaced("banditron", "late-ucb")}]


@pytest.mark.parametrize(
    "flags",
    [
        ["--champion", "soba"],
        ["--late", "correct"],  # nothing is assumed when a decision expires
        ["--champion", "late-ucb", "--champion-when-better"],
        ["--remove-learner", "banditron"],  # it decides
        ["--classes-max", "9"],  # the classes are fixed
        ["--add-class", "d"],  # the classes have no names
        ["--n-features", "2"],  # features cannot be removed
        ["--retire-class", "a"],  # the classes have no names
        ["--restore-class", "1"],  # it is not retired
        ["--param", "late-ucb.m=9"],  # the model depends on it
        [],
    ],
    ids=str,
)
def test_impossible_change_is_rejected_before_it_is_requested(
    on_broker: Callable[[Broker], None], onebit: Onebit, flags: list[str]
) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert onebit("change", *flags, *NOW).code == ExitCode.USAGE
    assert requested(pipeline) == []


@pytest.mark.parametrize(
    "desired", [NOTHING._replace(classes=["tea"]), NOTHING._replace(retired_classes=["tea"])], ids=["add", "retire"]
)
def test_pipeline_with_actions_has_no_classes_to_change(desired: DesiredChange) -> None:
    with pytest.raises(SettingsError, match=r"^--[a-z]+-class tea: "):
        with_changes(small_task("igw-log"), desired)


def test_change_without_a_terminal_requires_consent(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker)
    assert onebit("change", "--window", "2m").code == ExitCode.USAGE
    assert requested(pipeline) == []


STRUCTURE: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "floor": ({}, ["--floor", "5%", "--holdout", "10%", "--holdout-policy", "constant:1"],
              {"floor": 0.05, "holdout": 0.1, "holdout_policy": "constant:1"}),
    "envelope": ({}, ["--envelope", "cloudevents"], {"envelope": "cloudevents"}),
    "rate": ({}, ["--param", "gamma=0.25"], {"parameters.gamma": 0.25}),
    "class": ({"class_names": ("a", "b", "c")}, ["--add-class", "d"],
              {"n_classes": 4, "class_names": ["a", "b", "c", "d"]}),
    "retired class": ({"retired_classes": (1,)}, ["--retire-class", "2", "--restore-class", "1"],
                      {"retired_classes": [2]}),
    "retired class with a name": ({"class_names": ("a", "b", "c")}, ["--retire-class", "b"],
                                  {"retired_classes": ["b"]}),
    "retired feature": ({}, ["--retire-feature", "3"], {"retired_features": [3]}),
    "open classes": ({"open_classes": True}, ["--classes-max", "9"], {"n_classes": 9}),
    "feature": ({}, ["--n-features", "6"], {"n_features": 6}),
    "removed challenger": (CHALLENGED, ["--remove-learner", "late-ucb"], {"challengers": {}}),
    "challenger as the only learner": (
        CHALLENGED, ["--champion", "late-ucb", "--remove-learner", "banditron"],
        {"learner": "late-ucb", "challengers": {}, "champion": "late-ucb"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURE)
def test_change_of_the_model_is_requested(on_broker: Callable[[Broker], None], onebit: Onebit, name: str) -> None:
    task, flags, expected = STRUCTURE[name]
    pipeline = Pipeline(small_task("banditron", **task))
    pipeline.context("a", 1, **({"eligible": ["a", "b"]} if "open_classes" in task else {}))
    run_until_idle(pipeline.learner())
    on_broker(pipeline.broker)
    result = onebit("change", *flags, *NOW)
    assert result.code == ExitCode.OK, result.err
    (changes,) = requested(pipeline)
    assert {name: changes[name].new for name in expected} == expected
    others = {name for name in changes if not name.startswith("parameters.") and name != "champion"}
    assert others <= expected.keys()


def test_challenger_is_added_to_the_others(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker, **CHALLENGED)
    assert onebit("change", "--challenger", "igw-logistic", *NOW).code == ExitCode.OK
    (changes,) = requested(pipeline)
    assert changes["challengers"].new.keys() == {"late-ucb", "igw-logistic"}


def test_window_that_exceeds_the_retention_is_rejected(on_broker: Callable[[Broker], None], onebit: Onebit) -> None:
    pipeline = pipeline_of(on_broker)
    pipeline.broker.alter_topics([spec for spec in TOPICS.specs(1, keep_ms=86_400_000) if spec.name != TOPICS.control])
    assert onebit("change", "--window", "12h", *NOW).code == ExitCode.USAGE
    assert onebit("change", "--window", "1h", *NOW).code == ExitCode.OK
