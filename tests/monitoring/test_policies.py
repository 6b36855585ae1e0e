"""The importance weights of live decisions under the policies that the monitor evaluates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from consumers.monitor.dashboard import Dashboard
from consumers.monitor.named_policies import check_live, live_policies
from consumers.monitor.policies import ALWAYS, Known, Named, Policies
from stream.estimating.policies import Constant, EstimateError, Model, Policy
from stream.kafka.reading import RecordsAt
from stream.learners import create
from stream.recovery.model_files import write_model
from stream.recovery.recover import settings_in_force
from stream.verifying.models import export_model
from stream.wire.codec import HEADERS, decode_context, decode_prediction, step_headers, step_of
from stream.wire.records import HOLDOUT, NOT_ELIGIBLE, Arm, Decision, Prediction, Record, Target, TopicPartition
from tests.offers import actions_task, offers
from tests.pipeline import TOPICS, Pipeline, plan, run_until_idle, small_synsep, synsep_task

EVENTS = 300
STEP = 5
"""The number of the step after which the model is exported."""


def prediction(action: int, propensity: float, target: Target | None = None, version: int = 0) -> Prediction:
    return Prediction("event", Decision(action, 1, propensity, np.zeros(4)), version, target)


def ruled(action: int, propensity: float, baseline: int, arm: Arm | None = None) -> Prediction:
    """A decision for a context that names the class of the service's own rule."""
    return prediction(action, propensity)._replace(baseline=baseline, arm=arm)


def record_at(partition: int, step: int) -> Record:
    return Record(TOPICS.predictions, partition, 0, 0, b"event", b"", step_headers(step))


@pytest.mark.parametrize(
    ("decision", "weights"),
    [
        (prediction(1, 0.5), (2.0, 0.5, None, None)),
        (prediction(0, 0.5), (0.0, 0.5, None, None)),
        (prediction(0, 0.25, Target(0, 0.9)), (0.0, 1.0, 4.0, None)),
        (prediction(0, 0.25, Target(2, 0.9)), (0.0, 1.0, 0.0, None)),
        (prediction(0, float("nan"), Target(0, 0.9)), (None, None, None, None)),
        (prediction(1, 1.0, Target(1, 1.0)), (None, None, None, None)),  # propensity 1: the action was not random
        (ruled(0, 0.25, 0), (0.0, 1.0, None, 4.0)),
        (ruled(0, 0.25, 2), (0.0, 1.0, None, 0.0)),
        (ruled(0, 1.0, 0, HOLDOUT), (None, None, None, 1.0)),  # the rule makes all decisions
        (ruled(0, 1.0, 0), (None, None, None, None)),  # a learner that always plays one class
    ],
)
def test_weight_is_policy_probability_divided_by_propensity(
    decision: Prediction, weights: tuple[float | None, ...]
) -> None:
    found = Policies().weights(record_at(0, 1), decision, None)
    assert tuple(None if weight != weight else weight for weight in found) == weights
    assert len(weights) == len(ALWAYS)


@pytest.mark.parametrize(("policy", "weight"), [(Constant(4, 1, "1"), 2.0), (Constant(4, 3, "3"), 1.0)])
def test_weight_uses_only_the_eligible_classes(policy: Policy, weight: float) -> None:
    scores = np.array([0.0, 1.0, NOT_ELIGIBLE, NOT_ELIGIBLE])
    decision = Decision(1, 1, 0.5, scores)
    policies = Policies([Named("one", policy)], n_classes=4)
    assert policies.weights(record_at(0, 1), Prediction("event", decision, 0), None)[-1] == weight


def test_model_without_support_for_eligible_classes_has_no_weight() -> None:
    model = Named("one", Model("model:m.npz", create("newtron", 4, 2)))
    policies = Policies([model], n_classes=4, n_features=2)
    scores = np.array([0.0, 1.0, NOT_ELIGIBLE, NOT_ELIGIBLE])
    context = Record(TOPICS.contexts, 0, 0, 0, b"event", b'{"id":"event","x":[1,0]}', ())
    found = policies.weights(record_at(0, 1), Prediction("event", Decision(1, 1, 0.5, scores), 0), context)
    assert np.isnan(found[-1])


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """A pipeline that has decided all its events and received all feedback."""
    made, data = Pipeline(synsep_task("banditron")), small_synsep()
    made.run([made.replay(data, EVENTS, rate=200.0), made.feedback(data, plan("fixed:20ms"))], made.learner())
    return made


def test_policies_over_actions_use_the_offered_ids() -> None:
    made, listed = Pipeline(actions_task("igw-log")), list(offers(80))
    for number, offer in enumerate(listed):
        made.send(TOPICS.contexts, offer.encoded(), key=f"visit-{number}".encode())
    run_until_idle(made.learner())
    policies = live_policies(["first", "constant:item-3"], settings_of(made), TOPICS)
    contexts, found = made.records(TOPICS.contexts), []
    for record in made.records(TOPICS.predictions):
        prediction, offset = decode_prediction(record)
        weights = policies.weights(record, prediction, contexts[offset])[-2:]
        ids = [action["id"] for action in listed[offset].fields["actions"]]
        played, p = prediction.decision.action, prediction.decision.propensity
        if len(ids) == 1:
            assert np.isnan(weights).all()  # the decision was not drawn
            continue
        constant = float(ids[played] == "item-3") if "item-3" in ids else 1.0 / len(ids)
        assert weights == pytest.approx(((played == 0) / p, constant / p))
        found.append(constant)
    assert {0.0, 1.0} < set(found)


@pytest.fixture(scope="module")
def model(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the pipeline's model after step STEP."""
    path = tmp_path_factory.mktemp("model") / "early.npz"
    write_model(path, export_model(pipeline.broker, TOPICS, 0, number=STEP))
    return path


def settings_of(pipeline: Pipeline) -> dict[str, Any]:
    return settings_in_force(pipeline.broker, TOPICS, 0).settings


def estimates_of(pipeline: Pipeline, specs: Sequence[str], *, kept_from: int = 0) -> dict[str, Mapping[str, Any]]:
    """The monitor's estimates, keyed by policy name. The monitor reads all examples before the predictions."""
    at = RecordsAt(pipeline.broker, TopicPartition(TOPICS.contexts, 0))
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    dashboard.judge(
        live_policies(specs, settings_of(pipeline), TOPICS),
        lambda wanted: {(0, offset): one for offset, one in at.read(wanted[0]).items() if offset >= kept_from},
    )
    for topic in (TOPICS.examples, TOPICS.predictions):
        records = pipeline.records(topic)
        for start in range(0, len(records), 70):
            part = records[start : start + 70]
            dashboard.take(part, dashboard.contexts_of(part))
    return {one["policy"]: one for one in orjson.loads(dashboard.as_json())["estimates"]}


def test_estimates_equal_plain_formulas_and_models_use_unseen_events(pipeline: Pipeline, model: Path) -> None:
    found = estimates_of(pipeline, ["constant:2", f"model:{model}", "logged", "uniform", "constant:2"])
    assert list(found) == ["greedy", "uniform", "constant:2", f"model:{model}", "logged"]

    dataset = small_synsep()
    exported = export_model(pipeline.broker, TOPICS, 0, number=STEP)
    learner = create("banditron", dataset.n_classes, dataset.n_features, **exported.meta["parameters"])
    learner.load(exported.state)
    contexts = {
        record.key: decode_context(record, dataset.n_features).x for record in pipeline.records(TOPICS.contexts)
    }
    rewards = {value["id"]: value["reward"] for value in pipeline.values(TOPICS.examples)}
    rows: dict[str, list[tuple[float, int]]] = {"constant:2": [], f"model:{model}": [], "logged": []}
    for record in pipeline.records(TOPICS.predictions):
        made = decode_prediction(record)[0]
        action, propensity, reward = made.decision.action, made.decision.propensity, rewards[made.id]
        rows["constant:2"].append(((action == 2) / propensity, reward))
        rows["logged"].append((1.0, reward))
        if (step_of(record) or 0) > STEP:
            rows[f"model:{model}"].append((learner.distribution(contexts[record.key])[action] / propensity, reward))
    assert 50 < len(rows[f"model:{model}"]) < EVENTS
    for name, of_policy in rows.items():
        weights, bits = np.array(of_policy).T
        ips, snips = found[name]["estimates"]
        assert found[name]["n"] == len(of_policy)
        assert ips[1] == pytest.approx((weights * bits).mean())
        assert snips[1] == pytest.approx((weights * bits).sum() / weights.sum())


def test_deleted_contexts_are_excluded_only_from_model_estimates(pipeline: Pipeline, model: Path) -> None:
    found = estimates_of(pipeline, [f"model:{model}", "constant:1"], kept_from=EVENTS - 20)
    assert (found[f"model:{model}"]["n"], found["constant:1"]["n"]) == (20, EVENTS)


def test_contexts_are_read_only_for_policies_that_use_them(pipeline: Pipeline) -> None:
    dashboard = Dashboard(TOPICS, 1, lambda: 0)

    def asked(wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], Record]:
        raise AssertionError(wanted)

    dashboard.judge(live_policies(["constant:1"], settings_of(pipeline), TOPICS), asked)
    records = pipeline.records(TOPICS.predictions)
    dashboard.take(records, dashboard.contexts_of(records))


@pytest.mark.parametrize(
    ("known", "record", "version", "is_known"),
    [
        (Known(1, 7), record_at(1, 7), 0, True),
        (Known(1, 7), record_at(1, 8), 0, False),
        (Known(1, 7), record_at(0, 3), 0, False),
        (Known(1, 7), record_at(1, 8)._replace(headers=HEADERS), 0, True),  # without the step header
        (Known(None, 40), record_at(1, 1), 39, True),
        (Known(None, 40), record_at(1, 1), 40, False),
    ],
)
def test_decisions_that_a_model_knows_depend_on_whether_it_is_shared(
    known: Known, record: Record, version: int, is_known: bool
) -> None:
    assert known.has(record, prediction(1, 0.5, version=version)) == is_known


@pytest.mark.parametrize("spec", ["late-ucb", "igw-logistic:step=1", "best", "constant"])
def test_error_names_a_policy_without_live_estimates(spec: str) -> None:
    check_live(["logged", "first", *ALWAYS, "constant:3"])
    with pytest.raises(EstimateError) as raised:
        check_live(["logged", *ALWAYS, "constant:3", spec])
    assert spec in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        ("constant:a", {}),
        ("constant:1", {"n_classes": 2, "class_names": ["yes", "no"]}),
        ("model", {"n_features": 7}),
    ],
)
def test_policy_with_different_classes_or_features_is_rejected(
    pipeline: Pipeline, model: Path, spec: str, changed: dict[str, Any]
) -> None:
    spec = f"model:{model}" if spec == "model" else spec
    with pytest.raises(EstimateError):
        live_policies([spec], settings_of(pipeline) | changed, TOPICS)


def test_model_file_without_class_names_fits_any_class_names(pipeline: Pipeline, model: Path) -> None:
    settings, spec = settings_of(pipeline) | {"class_names": [*"abcdefghi"]}, f"model:{model}"
    assert live_policies([spec], settings, TOPICS).names == (*ALWAYS, spec)
