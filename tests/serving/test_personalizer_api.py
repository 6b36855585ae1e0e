"""Personalizer's REST interface over HTTP, with a learner on the embedded broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.processes import wait_for
from producers.gateway.decisions import PipelineFacts
from producers.gateway.server import Limits, RateLimit
from stream.wire.actions import ActionBlocks
from stream.wire.codec import ActionReading
from stream.wire.named_features import build
from stream.wire.rewards import RewardRange
from tests.serving.gateway import WAIT_S, GatewayClient, Response, served

FEATURES = Path(__file__).parents[2] / "docker/personalizer.json"
HASHED = build({}, 20, unknown=True)
FACTS = PipelineFacts(
    n_classes=3,
    n_features=HASHED.n_features,
    seed=0,
    encoder=HASHED,
    graded=RewardRange(0.0, 1.0),
    reading=ActionReading(ActionBlocks(3, HASHED.n_features, HASHED.n_features), HASHED),
)
ACTIONS = [{"id": name, "features": [{"type": name}]} for name in ("News", "Sports", "Weather")]
VERSION = "/personalizer/v1.0"


def a_pipeline(**settings: Any) -> EmbeddedPipeline:
    """A pipeline whose kernels are compiled, which can take longer than a request's timeout."""
    own = {"actions_max": 3, "features": FEATURES, "rewards": "graded", "learner": "igw-log", "param": ["bits=8"]}
    made = EmbeddedPipeline(**{**own, **settings})
    made.send("contexts", "first", {"id": "first", "actions": [{"id": "News"}], "baseline": "News"})
    made.feedback("first", 1)
    made.work()
    return made


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayClient]:
    """A gateway with Personalizer's interface that several tests share."""
    with served(a_pipeline(), facts=FACTS, personalizer=True) as client:
        yield client


def rank(gateway: GatewayClient, event_id: str, path: str = f"{VERSION}/rank", **fields: object) -> Response:
    body = {"contextFeatures": [{"timeOfDay": "Morning"}], "actions": ACTIONS, "eventId": event_id, **fields}
    return gateway.ask("POST", path, body)


def code_of(response: Response) -> tuple[int, str]:
    assert set(response.json) == {"error"}
    assert set(response.json["error"]) == {"code", "message"}
    return response.status, response.json["error"]["code"]


def test_rank_writes_a_context_and_returns_its_decision(gateway: GatewayClient) -> None:
    got = rank(gateway, "visit-1", excludedActions=["Weather"])
    prediction = gateway.pipeline.prediction("visit-1")
    assert got.status == 201
    assert got.json["rewardActionId"] == prediction["class"]
    assert got.json["ranking"][0] == {"id": prediction["class"], "probability": prediction["propensity"]}
    assert got.json["ranking"][2] == {"id": "Weather", "probability": 0.0}
    assert prediction["actions"] == ["News", "Sports", "Weather"]


def test_reward_is_the_feedback_on_the_decision(gateway: GatewayClient) -> None:
    rank(gateway, "visit/2")
    got = gateway.ask("POST", f"{VERSION}/events/visit%2F2/reward", {"value": 0.5})
    assert (got.status, got.body) == (204, b"")
    assert gateway.pipeline.example("visit/2")["reward"] == 0.5


def test_rewards_are_parts_if_the_pipeline_sums_them() -> None:
    pipeline = a_pipeline(feedback="sum", window="1s")
    with served(pipeline, facts=FACTS._replace(rule="sum"), personalizer=True) as gateway:
        rank(gateway, "visit-1")
        for value in (0.25, 0.25, 0.125):
            assert gateway.ask("POST", f"{VERSION}/events/visit-1/reward", {"value": value}).status == 204
    pipeline.advance("2s")
    assert pipeline.example("visit-1")["reward"] == 0.625


def test_activation_begins_the_window_of_a_deferred_decision(gateway: GatewayClient) -> None:
    rank(gateway, "visit-3", deferActivation=True)
    got = gateway.ask("POST", f"{VERSION}/events/visit-3/activate", raw=b"", headers={"Content-Type": ""})
    assert (got.status, got.body) == (204, b"")
    gateway.ask("POST", f"{VERSION}/events/visit-3/reward", {"value": 1})
    assert gateway.pipeline.example("visit-3")["outcome"] == "matched"


@pytest.mark.parametrize(
    "path",
    [
        "/personalizer/rank?api-version=2022-09-01-preview",
        "/personalizer/v1.1-preview.2/rank",
        "//personalizer/v1.0/rank",
        "/Personalizer/v1.0/Rank",
    ],
)
def test_every_version_of_the_path_gets_the_same_decision(gateway: GatewayClient, path: str) -> None:
    first = rank(gateway, "visit-4")
    assert rank(gateway, "visit-4", path).json == first.json


def test_event_that_was_decided_for_other_actions_is_an_error(gateway: GatewayClient) -> None:
    played = rank(gateway, "visit-5").json["rewardActionId"]
    got = rank(gateway, "visit-5", actions=[one for one in ACTIONS if one["id"] != played])
    assert code_of(got) == (400, "BadRequest")


def test_errors_of_requests_have_personalizers_body(gateway: GatewayClient) -> None:
    four = [*ACTIONS, {"id": "Music"}]
    assert code_of(rank(gateway, "visit-6", actions=four)) == (400, "BadRequest")
    assert code_of(rank(gateway, "visit-6", actions=[*ACTIONS[:2], ACTIONS[0]])) == (400, "BadRequest")
    assert code_of(rank(gateway, "x" * 257)) == (400, "BadRequest")
    assert code_of(gateway.ask("POST", f"{VERSION}/rank", raw=b"{")) == (400, "BadRequest")
    assert code_of(gateway.ask("POST", f"{VERSION}/rank", raw=b"{}", headers={"Content-Type": "text/plain"}))[0] == 415
    assert code_of(gateway.ask("POST", f"{VERSION}/rank", raw=b" " * 1_000_001)) == (413, "PayloadSizeExceeded")
    reward = gateway.ask("POST", f"{VERSION}/events/visit-6/reward", {"value": 1.5})
    assert (code_of(reward), reward.json["error"]["message"][:6]) == ((400, "BadRequest"), "value:")
    assert code_of(gateway.ask("GET", f"{VERSION}/nothing")) == (404, "ResourceNotFound")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "rank", "POST"), ("OPTIONS", "rank", "POST"), ("POST", "status", "GET, HEAD"),
     ("PUT", "events/visit-1/reward", "POST")],
)  # fmt: skip
def test_wrong_method_is_an_error_with_the_allowed_one(
    gateway: GatewayClient, method: str, path: str, allowed: str
) -> None:
    got = gateway.ask(method, f"{VERSION}/{path}")
    assert (*code_of(got), got.headers["allow"]) == (405, "BadRequest", allowed)


def test_activation_from_a_browser_is_rejected(gateway: GatewayClient) -> None:
    got = gateway.ask("POST", f"{VERSION}/events/visit-1/activate", headers={"Origin": "https://other.example"})
    assert code_of(got) == (403, "BadRequest")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "multislot/rank"),
        ("POST", "multislot/events/visit-1/reward"),
        ("GET", "configurations/service"),
        ("PUT", "configurations/policy"),
        ("POST", "configurations/applyFromEvaluation"),
        ("PUT", "Configurations/Policy"),
        ("GET", "evaluations/7"),
        ("DELETE", "logs"),
        ("GET", "model"),
    ],
)
def test_other_operations_of_personalizer_are_not_implemented(gateway: GatewayClient, method: str, path: str) -> None:
    assert code_of(gateway.ask(method, f"/personalizer/v1.1-preview.3/{path}")) == (501, "InvalidApiAccess")


def test_metrics_count_requests_by_operation(gateway: GatewayClient) -> None:
    name = 'onebit_http_requests_total{code="%s",path="/personalizer/%s"}'
    before = gateway.samples()
    rank(gateway, "visit-7")
    gateway.ask("POST", f"{VERSION}/events/visit-7/reward", {"value": 1})
    gateway.ask("GET", f"{VERSION}/status")
    after = gateway.samples()
    for labels in ((201, "rank"), (204, "events/{id}/reward"), (200, "status")):
        assert after[name % labels] == before.get(name % labels, 0) + 1


def test_late_decision_is_an_error_that_clients_repeat() -> None:
    with served(a_pipeline(), facts=FACTS, personalizer=True, timeout_s=0.05, learns=False) as gateway:
        got = rank(gateway, "visit-1")
        assert code_of(got) == (504, "InternalServerError")
        assert got.headers["retry-after"] == "1"
        gateway.pipeline.work()
        wait_for(lambda: rank(gateway, "visit-1").status == 201, "a repeated request gets the decision", WAIT_S)


def test_status_reports_whether_the_gateway_is_ready() -> None:
    with served(a_pipeline(), facts=FACTS, personalizer=True) as gateway:
        got = gateway.ask("GET", f"{VERSION}/status")
        assert (got.status, got.json["apiStatus"]) == (200, "Valid")
        gateway.broker.is_away = True
        wait_for(lambda: gateway.ask("GET", f"{VERSION}/status").status == 503, "the gateway is not ready", WAIT_S)
        assert code_of(gateway.ask("GET", f"{VERSION}/status")) == (503, "InternalServerError")


def test_key_is_the_token() -> None:
    limits = Limits(tokens=("key-1", "key-2"))
    with served(a_pipeline(), facts=FACTS, personalizer=True, limits=limits) as gateway:
        for headers in ({}, {"Ocp-Apim-Subscription-Key": "key-3"}, {"Ocp-Apim-Subscription-Key": ""}):
            assert code_of(gateway.ask("GET", f"{VERSION}/status", headers=headers)) == (401, "401")
        for headers in ({"Ocp-Apim-Subscription-Key": "key-2"}, {"Authorization": "Bearer key-1"}):
            assert gateway.ask("GET", f"{VERSION}/status", headers=headers).status == 200


def test_rate_limit_applies() -> None:
    limits = Limits(rate=RateLimit(0.001))
    with served(a_pipeline(), facts=FACTS, personalizer=True, limits=limits) as gateway:
        assert gateway.ask("GET", f"{VERSION}/status").status == 200
        got = gateway.ask("GET", f"{VERSION}/status")
        assert code_of(got) == (429, "429")
        assert int(got.headers["retry-after"]) > 1


def test_interface_is_absent_unless_it_is_requested() -> None:
    with served(a_pipeline(), facts=FACTS) as gateway:
        assert code_of(rank(gateway, "visit-1")) == (404, "ResourceNotFound")


def test_apprentice_mode_returns_the_first_action_that_is_not_excluded() -> None:
    pipeline = a_pipeline(holdout="100%", holdout_policy="baseline")
    with served(pipeline, facts=FACTS, personalizer=True) as gateway:
        for event_id, excluded, expected in (("visit-1", [], "News"), ("visit-2", ["News"], "Sports")):
            got = rank(gateway, event_id, excludedActions=excluded).json
            assert got["rewardActionId"] == expected
            assert {one["id"]: one["probability"] for one in got["ranking"]}[expected] == 1.0
