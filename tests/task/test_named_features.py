"""Contexts with named features. The feature encoder in the task's settings defines the names."""

from dataclasses import replace

import orjson
import pytest

from stream.learners import ParameterError
from stream.task.settings import TaskSettings
from stream.task.stored_settings import SettingsDifferError, resolve, restored_settings, stored_settings
from stream.task.task import Task
from stream.verifying.audit import audit_partition
from stream.wire.codec import MalformedError, decode_context
from stream.wire.named_features import Kind, build, to_plain
from tests.pipeline import TOPICS, Inputs, Pipeline, run_until_idle, small_task

ENCODER = build({"price": (Kind.NUMERIC, None), "i": (Kind.CATEGORICAL, ["de", "fr"])}, None)


def settings() -> TaskSettings:
    return replace(small_task(features=to_plain(ENCODER)), n_features=3)


def test_contexts_with_names_and_with_indices_get_the_same_decision() -> None:
    task, inputs = Task(settings(), TOPICS.contexts), Inputs()
    other, others = Task(replace(settings(), features=None), TOPICS.contexts), Inputs()
    for number, (by_name_, by_index) in enumerate(
        [
            ({"price": 2.5, "i": "fr"}, {"i": [0, 2], "v": [2.5, 1]}),
            ({"i": "de"}, {"i": [1]}),
            ({}, {"i": []}),
            ({"i": [0, 1]}, {"i": [0, 1]}),
        ]
    ):
        one, two = (
            some.add(TOPICS.contexts, number, orjson.dumps({"id": f"e{number}", "x": x}))
            for some, x in ((inputs, by_name_), (others, by_index))
        )
        x = decode_context(one, 3, None, ENCODER).x
        assert (x.indices.tolist(), x.values.tolist()) == tuple(
            one.tolist() for one in decode_context(two, 3).x
        )  # fmt: skip
        effects, expected = task.step([one], 0, -1), other.step([two], 0, -1)
        assert effects.predictions[0][0].decision.scores.tolist() == expected.predictions[0][0].decision.scores.tolist()
        assert effects.predictions[0][0].decision.action == expected.predictions[0][0].decision.action


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ({"prise": 1}, "x: no feature is called 'prise'; did you mean price?"),
        ({"price": "1"}, "x: price: expected a finite number; got '1'"),
        ({"price": [1]}, "x: price: expected a finite number; got [1]"),
    ],
)
def test_context_with_an_unknown_name_or_invalid_value_becomes_a_dead_letter(x: dict[str, object], reason: str) -> None:
    task, inputs = Task(settings(), TOPICS.contexts), Inputs()
    effects = task.step([inputs.add(TOPICS.contexts, 1, orjson.dumps({"id": "a", "x": x}))], 0, -1)
    assert [letter.reason for letter in effects.dead_letters] == [reason]
    assert effects.predictions == []


def test_context_with_named_features_is_malformed_without_an_encoder() -> None:
    record = Inputs().add(TOPICS.contexts, 1, b'{"id":"a","x":{"price":1}}')
    with pytest.raises(MalformedError, match=r"^x\.i: "):
        decode_context(record, 3)


def test_encoder_that_does_not_fit_the_learner_is_rejected() -> None:
    with pytest.raises(ParameterError, match="n_features: expected 3"):
        replace(settings(), n_features=4).make_learner()
    with pytest.raises(ParameterError, match=r"features: feature encoder: .*`version`"):
        replace(settings(), features={}).make_learner()


def test_stored_settings_contain_the_encoder_if_there_is_one() -> None:
    stored = orjson.loads(orjson.dumps(stored_settings(settings())))
    assert restored_settings(stored) == settings().resolved()
    assert stored_settings(small_task())["features"] is None


def test_encoder_of_the_user_must_be_that_of_the_pipeline() -> None:
    plain = replace(settings(), features=None)
    for stored, requested in ((plain, settings()), (settings(), plain)):
        with pytest.raises(SettingsDifferError, match="features = "):
            resolve(stored_settings(stored), requested, ("features",), place="journal 0")
        assert resolve(stored_settings(stored), requested, (), place="journal 0").features == stored.features


def test_audit_and_restarted_learner_decode_the_same_names() -> None:
    pipeline = Pipeline(settings())
    for number in range(4):
        learner = pipeline.learner()  # a new process that recovers the state of the previous process
        value = orjson.dumps({"id": f"e{number}", "x": {"price": number, "i": "fr"}})
        pipeline.send(TOPICS.contexts, value if number != 2 else value.replace(b"price", b"prise"))
        run_until_idle(learner)
        if number == 0:
            pipeline.answer("e0", 1)
        pipeline.clock.advance_to(1_100 + number)
    run_until_idle(learner)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.ok
    assert (finding.audited.decided, finding.audited.context_malformed, finding.audited.matched) == (3, 1, 1)
