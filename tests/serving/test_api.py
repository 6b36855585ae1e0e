"""Decisions and feedback over HTTP, with a learner on the embedded broker."""

import resource
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
import trustme
from jsonschema import Draft202012Validator

from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.processes import wait_for
from producers.gateway import link, protocol, server
from producers.gateway.decisions import TIMEOUTS, fallback_answer
from producers.gateway.openapi import document
from producers.gateway.server import Limits, RateLimit, listen
from stream.kafka.port import AccessError, BrokerError
from stream.wire.codec import HEADERS, step_headers
from stream.wire.records import Headers, Record
from stream.wire.rewards import RewardRange
from tests.serving.gateway import FACTS, HOST, WAIT_S, GatewayClient, a_pipeline, served


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[GatewayClient]:
    """A gateway that several tests share. These tests send only requests that the gateway rejects."""
    with served(a_pipeline(), facts=FACTS._replace(class_names=None)) as gateway:
        yield gateway
        assert contexts(gateway) == []


def contexts(gateway: GatewayClient) -> list[Record]:
    pipeline = gateway.pipeline
    return [one for number in range(pipeline.partitions) for one in pipeline.records(pipeline.topics.contexts, number)]


def test_context_is_answered_with_its_prediction() -> None:
    with served(a_pipeline()) as gateway:
        got = gateway.decide("visit-1")
        prediction = gateway.pipeline.prediction("visit-1")
    assert got.status == 200
    assert got.json == {name: prediction[name] for name in ("id", "action", "propensity", "model_version")}


def test_response_has_the_class_name_of_the_prediction() -> None:
    pipeline = a_pipeline()
    with served(pipeline, learns=False) as gateway, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.decide, "visit-1")
        wait_for(lambda: len(contexts(gateway)) == 1, "the context is written", WAIT_S)
        value = {
            "id": "visit-1", "action": 1, "greedy": 0, "propensity": None, "scores": [0, 0, 0], "model_version": 4,
            "context_offset": 0, "class": "offers", "target": {"action": 1, "propensity": 0.5},
        }  # fmt: skip
        send_prediction(pipeline, value, step_headers(1))
        assert asked.result().json == {"id": "visit-1", "action": 1, "class": "offers", "model_version": 4}


def send_prediction(pipeline: EmbeddedPipeline, value: Mapping[str, object], headers: Headers) -> None:
    producer = pipeline.broker.producer()
    producer.send(pipeline.topics.predictions, 0, str(value["id"]).encode(), orjson.dumps(value), headers)
    producer.flush()


@pytest.mark.parametrize("headers", [(), HEADERS, (*HEADERS, ("onebit-step", b"x")), step_headers(0)], ids=str)
def test_prediction_that_no_learner_wrote_is_not_served(headers: Headers) -> None:
    pipeline = a_pipeline()
    with served(pipeline, timeout_s=0.3, learns=False) as gateway:
        value = {
            "id": "visit-1", "action": 1, "greedy": 0, "propensity": 0.5, "scores": [0, 0, 0], "model_version": 4,
            "context_offset": 0,
        }  # fmt: skip
        send_prediction(pipeline, value, headers)
        send_prediction(pipeline, value | {"id": "visit-2"}, step_headers(1))
        wait_for(lambda: gateway.ask("GET", "/v1/decisions/visit-2").status == 200, "predictions are read", WAIT_S)
        assert gateway.ask("GET", "/v1/decisions/visit-1").status == 404
        assert gateway.decide("visit-1").status == 504


def test_context_that_the_learner_rejects_gets_422_with_the_reason() -> None:
    pipeline = EmbeddedPipeline(classes_max=2, n_features=2, learner="banditron")
    facts = FACTS._replace(n_classes=2, class_names=None, open_classes=True)
    with served(pipeline, facts=facts, fallback="uniform") as gateway:
        body = {"id": "visit-1", "x": [1.0, 0.5], "eligible": ["hats", "shoes"]}
        assert gateway.ask("POST", "/v1/decide", body).status == 200
        for event_id, eligible in (("visit-2", ["hats", "coats"]), ("visit-3", ["coats"]), ("visit-2", ["coats"])):
            got = gateway.ask("POST", "/v1/decide", {"id": event_id, "x": [1.0, 0.5], "eligible": eligible})
            assert (got.status, got.json["error"].split(":")[0]) == (422, "eligible")
        assert gateway.ask("POST", "/v1/decide", {**body, "id": "visit-2"}).status == 200


def test_gateway_with_wrong_sizes_gets_the_reason_from_the_learner() -> None:
    with served(a_pipeline(), facts=None) as gateway:
        got = gateway.decide("visit-1", (1.0, 0.5, 0.0))
    assert (got.status, got.json["error"].split(":")[0]) == (422, "x")


def test_gateway_is_not_ready_while_no_decision_is_made() -> None:
    with served(a_pipeline(), timeout_s=0.05, learns=False) as gateway:
        for number in range(TIMEOUTS - 1):
            assert gateway.decide(f"visit-{number}").status == 504
        assert gateway.ask("GET", "/readyz").status == 200
        assert gateway.decide("visit-9").status == 504
        wait_for(lambda: gateway.ask("GET", "/readyz").status == 503, "the gateway is not ready", WAIT_S)
        assert gateway.samples()["onebit_ready"] == 0
        assert (gateway.ask("GET", "/healthz").status, gateway.decide("visit-8").status) == (200, 504)
        gateway.pipeline.work()
        gateway.wait_until_ready()


def test_gateway_with_a_fallback_is_ready_while_no_decision_is_made() -> None:
    with served(a_pipeline(), timeout_s=0.05, fallback="uniform", learns=False) as gateway:
        assert {gateway.decide(f"visit-{number}").status for number in range(2 * TIMEOUTS)} == {200}
        assert gateway.link.heartbeat.ready().ok


def test_context_without_an_id_gets_a_new_id() -> None:
    with served(a_pipeline()) as gateway:
        first, second = gateway.decide(None).json, gateway.decide(None).json
        assert first["id"] != second["id"]
        assert gateway.ask("GET", f"/v1/decisions/{first['id']}").json == first


def test_repeated_id_gets_the_same_response_and_one_context() -> None:
    with served(a_pipeline()) as gateway:
        first = gateway.decide("visit-1")
        assert gateway.decide("visit-1", (0.0, 9.0)).json == first.json
        assert [record.key for record in contexts(gateway)] == [b"visit-1"]


def test_response_has_the_scores_of_the_prediction_if_requested() -> None:
    with served(a_pipeline()) as gateway:
        paths = ("/v1/decide?scores=true", "/v1/decisions/visit-1?scores=true", "/v1/decisions/visit-1?scores=false")
        first = gateway.ask("POST", paths[0], {"id": "visit-1", "x": [1.0, 0.5]})
        later, without = (gateway.ask("GET", path) for path in paths[1:])
        scores = gateway.pipeline.prediction("visit-1")["scores"]
        assert (first.json["scores"], later.json, "scores" in without.json) == (scores, first.json, False)
        assert gateway.ask("POST", "/v1/decide?scores=1", {"x": [1.0, 0.5]}).status == 422


def test_batch_is_answered_with_a_result_for_each_context_in_order() -> None:
    with served(a_pipeline()) as gateway:
        named = [{"id": f"visit-{number}", "x": [1.0, number]} for number in range(3)]
        got = gateway.ask("POST", "/v1/decide?scores=true", [*named, {"x": [1.0, 0.5]}, named[0]])
        predictions = [gateway.pipeline.prediction(f"visit-{number}") for number in range(3)]
        document = gateway.ask("GET", "/openapi.json").json
    fields = ("id", "action", "propensity", "model_version", "scores")
    assert got.json[:3] == [{name: one[name] for name in fields} for one in predictions]
    assert (got.status, len(got.json), got.json[4]) == (200, 5, got.json[0])
    results = {"$ref": "#/components/schemas/DecideResult", "components": document["components"]}
    assert Draft202012Validator(results).is_valid(got.json)


def test_error_in_a_batch_concerns_only_its_context() -> None:
    with served(a_pipeline(), timeout_s=0.2, learns=False) as gateway:
        bodies = [{"id": "a", "x": "text"}, {"id": "b", "x": [1.0, 0.5]}, 7, {"id": "", "x": [1.0, 0.5]}]
        got = gateway.ask("POST", "/v1/decide", bodies)
        assert got.status == 200
        assert [(one["status"], one.get("id")) for one in got.json] == [(422, "a"), (504, "b"), (422, None), (422, "")]
        assert [record.key for record in contexts(gateway)] == [b"b"]


@pytest.mark.parametrize("size", [0, server.BATCH_MAX + 1])
def test_batch_of_an_invalid_size_is_rejected(shared_gateway: GatewayClient, size: int) -> None:
    assert shared_gateway.ask("POST", "/v1/decide", [{"x": [1.0, 0.5]}] * size).status == 422


def test_invalid_request_is_rejected_even_if_its_id_has_a_decision() -> None:
    with served(a_pipeline()) as gateway:
        gateway.decide("visit-1")
        assert gateway.ask("POST", "/v1/decide", {"id": "visit-1", "x": [1.0, 0.5], "deferred": 1}).status == 422


def test_other_and_restarted_gateways_give_the_same_response() -> None:
    pipeline = a_pipeline()
    with served(pipeline) as gateway:
        first = gateway.decide("visit-1").json
        with served(pipeline) as other:
            assert other.decide("visit-1").json == first
            second = other.decide("visit-2").json
        wait_for(lambda: gateway.ask("GET", "/v1/decisions/visit-2").status == 200, "the decision is read", WAIT_S)
        assert gateway.decide("visit-2").json == second
    with served(pipeline, learns=False) as restarted:
        assert [restarted.decide(event_id).json for event_id in ("visit-1", "visit-2")] == [first, second]
    assert len(contexts(restarted)) == 2


def test_restarted_gateway_does_not_read_predictions_older_than_the_limit() -> None:
    pipeline = a_pipeline()
    pipeline.context("old", [1.0, 0.0])
    pipeline.work()
    pipeline.advance("2m")
    pipeline.context("young", [1.0, 0.0])
    pipeline.work()
    with served(pipeline, remember_ms=60_000) as gateway:
        statuses = {event_id: gateway.ask("GET", f"/v1/decisions/{event_id}").status for event_id in ("old", "young")}
    assert statuses == {"old": 404, "young": 200}


def test_contexts_go_to_the_partition_of_their_key() -> None:
    with served(a_pipeline(partitions=4, model="own")) as gateway:
        assert {gateway.decide(f"visit-{number}").status for number in range(20)} == {200}
        gateway.pipeline.finish()
        assert gateway.pipeline.ledger().contexts_misplaced == 0
        assert gateway.pipeline.ledger().decided == 20


def test_only_trace_headers_become_context_headers() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with served(a_pipeline()) as gateway:
        gateway.decide("visit-1", traceparent=trace, tracestate="a=1", other="2")
        gateway.decide("visit-2")
        gateway.decide("visit-3", traceparent=trace, tracestate="a=" + "1" * 4_096)
        found = [record.headers for record in contexts(gateway)]
    assert found == [(*HEADERS, ("traceparent", trace.encode()), ("tracestate", b"a=1")), HEADERS, HEADERS]


def test_decisions_are_among_the_eligible_classes() -> None:
    with served(a_pipeline(), facts=FACTS._replace(class_names=None)) as gateway:
        for event_id, eligible in (("visit-1", [0, 2]), ("visit-2", [1])):
            got = gateway.ask("POST", "/v1/decide", {"id": event_id, "x": [1.0, 0.5], "eligible": eligible})
            assert got.status == 200
            assert got.json["action"] in eligible


@pytest.mark.parametrize("eligible", [["news"], [], [1, 1], [3], [True], "0"], ids=str)
def test_invalid_eligible_classes_are_rejected(shared_gateway: GatewayClient, eligible: object) -> None:
    got = shared_gateway.ask("POST", "/v1/decide", {"id": "visit-1", "x": [1.0, 0.5], "eligible": eligible})
    assert got.status == 422


def test_requests_can_add_open_classes() -> None:
    pipeline = EmbeddedPipeline(classes_max=3, n_features=2, learner="banditron")
    with served(pipeline, facts=FACTS._replace(class_names=None, open_classes=True)) as gateway:
        got = gateway.ask("POST", "/v1/decide", {"id": "visit-1", "x": [1.0, 0.5], "eligible": ["hats", "shoes"]})
        assert got.json["class"] in ("hats", "shoes")
        assert gateway.ask("POST", "/v1/decide", {"id": "visit-2", "x": [1.0, 0.5], "eligible": [1]}).status == 422
        assert gateway.decide("visit-3").json["class"] in ("hats", "shoes")


def test_fallback_class_that_is_not_eligible_causes_a_504() -> None:
    with served(a_pipeline(), timeout_s=0.2, fallback="help", learns=False) as gateway:
        got = gateway.ask("POST", "/v1/decide", {"id": "visit-1", "x": [1.0, 0.5], "eligible": ["news"]})
        other = gateway.ask("POST", "/v1/decide", {"id": "visit-2", "x": [1.0, 0.5], "eligible": ["news", "help"]})
    assert (got.status, other.json["class"]) == (504, "help")


def test_response_names_the_remedy_for_a_fallback_class_that_was_retired() -> None:
    facts = FACTS._replace(retired=("help",))
    with served(a_pipeline(), facts=facts, timeout_s=0.2, fallback="help", learns=False) as gateway:
        got = gateway.decide("visit-1")
    assert got.status == 504
    assert "`onebit change`" in got.json["error"]


def test_deferred_decision_becomes_pending_when_it_is_shown() -> None:
    with served(a_pipeline()) as gateway:
        assert gateway.ask("POST", "/v1/decide", {"id": "visit-1", "x": [1.0, 0.5], "deferred": True}).status == 200
        assert gateway.pipeline.ledger().deferred == 1
        got = gateway.ask("POST", "/v1/shown", {"id": "visit-1"})
        assert (got.status, got.json) == (202, {"id": "visit-1"})
        gateway.pipeline.wait_until(lambda ledger: ledger.pending == 1, "the decision was shown")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/shown", {}, "id"),
        ("/v1/shown", {"id": ""}, "id"),
        ("/v1/shown", {"id": "é" * 200}, "id"),
        ("/v1/decide", {"id": "a", "x": [1.0, 0.5], "deferred": 1}, "deferred"),
        ("/v1/decide", {"id": "a", "x": [1.0, 0.5], "deferred": None}, "deferred"),
        ("/v1/decide", {"id": "a", "x": [1.0, 0.5], "elegible": ["news"]}, "body"),
        ("/v1/feedback", {"id": "a", "reward": 2}, "reward"),
        ("/v1/feedback", {"id": "a", "reward": "1"}, "reward"),
        ("/v1/feedback", [], "body"),
        ("/v1/feedback", {"id": "a"}, "reward"),
        ("/v1/feedback", {"reward": 1}, "id"),
        ("/v1/feedback", {"id": "a", "reward": 1, "action": 3}, "action"),
        ("/v1/feedback", {"id": "a", "reward": 1, "action": "3"}, "action"),
    ],
    ids=str,
)
def test_error_for_an_invalid_request_names_the_field(
    shared_gateway: GatewayClient, path: str, body: object, field: str
) -> None:
    got = shared_gateway.ask("POST", path, body)
    assert (got.status, got.json["error"].split(":")[0]) == (422, field)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decide", b'{"x": %b}'),
        ("/v1/decide", b'{"id": "a", "x": %b}'),
        ("/v1/feedback", b'{"id": "a", "reward": 1, "action": %b}'),
    ],
)
def test_deeply_nested_value_is_rejected(shared_gateway: GatewayClient, path: str, body: bytes) -> None:
    assert shared_gateway.ask("POST", path, raw=body % (b"[" * 500 + b"]" * 500)).status == 422


def test_records_contain_the_bodies_of_the_requests() -> None:
    context, feedback = b'{"x": [1e9, 0.50], "id": "a"}', b'{"reward": 1.0, "id": "a"}'
    with served(a_pipeline()) as gateway:
        assert gateway.ask("POST", "/v1/decide", raw=context).status == 200
        assert gateway.ask("POST", "/v1/feedback", raw=feedback).status == 202
        written = gateway.pipeline.records(gateway.pipeline.topics.feedback, 0)
    assert [record.value for record in contexts(gateway)] == [context]
    assert feedback in [record.value for record in written]


def test_feedback_is_accepted_and_applied() -> None:
    with served(a_pipeline()) as gateway:
        action = gateway.decide("visit-1").json["action"]
        bit = {"id": "visit-1", "reward": 1, "action": action}
        got = gateway.ask("POST", "/v1/feedback", bit)
        assert (got.status, got.json) == (202, bit)
        assert gateway.pipeline.example("visit-1")["reward"] == 1


def test_parts_of_a_reward_are_accepted_and_combined() -> None:
    facts = FACTS._replace(graded=RewardRange(0.0, 5.0), rule="sum")
    graded = a_pipeline(learner="late-ucb", param=["m=2"], rewards="graded", reward_range="0,5", feedback="sum")
    with served(graded, facts=facts) as gateway:
        gateway.decide("visit-1")
        schema = gateway.ask("GET", "/openapi.json").json["components"]["schemas"]["Feedback"]
        assert schema["required"] == ["id", "reward", "part"]
        assert "maximum" not in schema["properties"]["reward"]
        for refused in ({"reward": 1}, {"reward": 1, "part": 7}, {"reward": 1, "part": "p", "final": "yes"}):
            assert gateway.ask("POST", "/v1/feedback", {"id": "visit-1", **refused}).status == 422
        for reward, part in ((9, "order"), (-7.5, "refund")):
            sent = {"id": "visit-1", "reward": reward, "part": part, "final": part == "refund"}
            answer = gateway.ask("POST", "/v1/feedback", sent)
            assert (answer.status, answer.json) == (202, sent)
        assert gateway.pipeline.example("visit-1")["reward"] == 1.5


def test_graded_feedback_is_checked_against_the_range_of_the_pipeline() -> None:
    facts = FACTS._replace(graded=RewardRange(-1.0, 5.0))
    graded = a_pipeline(learner="late-ucb", param=["m=2"], rewards="graded", reward_range="-1,5")
    with served(graded, facts=facts) as gateway:
        gateway.decide("visit-1")
        reward = gateway.ask("GET", "/openapi.json").json["components"]["schemas"]["Feedback"]["properties"]["reward"]
        assert (reward["minimum"], reward["maximum"]) == (-1.0, 5.0)
        for refused in (5.5, -1.5, True, "3", None):
            assert gateway.ask("POST", "/v1/feedback", {"id": "visit-1", "reward": refused}).status == 422
        assert gateway.ask("POST", "/v1/feedback", {"id": "visit-1", "reward": 3.5}).status == 202
        assert gateway.pipeline.example("visit-1")["reward"] == 3.5


@pytest.mark.parametrize("event_id", ["a/b c", "a\nb", "a\n"])
def test_decision_is_found_only_by_its_exact_id(event_id: str) -> None:
    with served(a_pipeline()) as gateway:
        gateway.decide("a")
        path = f"/v1/decisions/{quote(event_id)}"
        missing = gateway.ask("GET", path)
        first = gateway.decide(event_id).json
        assert gateway.ask("GET", path).json == first
    assert (missing.status, missing.json["id"]) == (404, event_id)


def test_missing_prediction_causes_a_504_with_the_id() -> None:
    with served(a_pipeline(), timeout_s=0.2, learns=False) as gateway:
        got = gateway.decide("visit-1")
        named = gateway.decide(None)
        assert gateway.link.unready == ""
    assert (got.status, got.json["id"]) == (504, "visit-1")
    assert (named.status, len(named.json["id"])) == (504, 32)


def test_fallback_is_returned_until_the_prediction_arrives() -> None:
    with served(a_pipeline(), timeout_s=0.2, fallback="uniform", learns=False) as gateway:
        fallback = fallback_answer("uniform", "visit-1", FACTS)
        expected = {"id": "visit-1", "action": fallback.action, "class": fallback.class_name, "propensity": 1 / 3}
        assert gateway.decide("visit-1").json == {**expected, "fallback": True}
        assert gateway.samples()["onebit_http_fallbacks_total"] == 1
        gateway.pipeline.work()
        wait_for(lambda: gateway.ask("GET", "/v1/decisions/visit-1").status == 200, "the prediction is read", WAIT_S)
        assert "fallback" not in gateway.decide("visit-1").json


def test_fallback_is_impossible_before_the_pipeline_has_settings() -> None:
    with served(a_pipeline(), timeout_s=0.2, fallback="uniform", facts=None, learns=False) as gateway:
        assert gateway.decide("visit-1").status == 504


INVALID = {
    "x.i: expected indices from 0 to 1; got 2": {"id": "a", "x": {"i": [0, 2]}},
    "x: expected 2 numbers, one per feature; got 3": {"id": "a", "x": [1, 2, 3]},
    "x[1]: expected `float`; got 'b'": {"id": "a", "x": [1, "b"]},
    "x[0]: expected `float`; got nothing": {"id": "a", "x": [None, 0]},
    "x: expected a value": {"id": "a"},
    "id: expected a string of 1 to 256 bytes; got ''": {"id": "", "x": [1, 2]},
    "id: expected a string of 1 to 256 bytes; got 'é": {"id": "é" * 200, "x": [1, 2]},
    "id: expected a string of 1 to 256 bytes; got 1": {"id": 1, "x": [1, 2]},
    "id: expected a string of 1 to 256 bytes; got nothing": {"id": None, "x": [1, 2]},
    "body: expected an object; got 7": 7,
}


@pytest.mark.parametrize("error", INVALID)
def test_error_for_an_invalid_context_names_the_field_and_writes_nothing(
    shared_gateway: GatewayClient, error: str
) -> None:
    got = shared_gateway.ask("POST", "/v1/decide", INVALID[error])
    assert contexts(shared_gateway) == []
    assert got.status == 422
    assert got.json["error"].startswith(error)


BEFORE_SIZES_ARE_KNOWN: list[tuple[dict[str, object], int]] = [
    ({"x": [1, 2, 3]}, 504),
    ({"x": {"i": [999]}}, 504),
    ({"x": {"age": 3, "country": "de", "member": True, "i": 0.5}, "eligible": ["a", 7], "deferred": True}, 504),
    ({"x": [1, "b"]}, 422),
    ({"x": {"i": ["b"]}}, 422),
    ({"x": {"age": [3]}}, 422),
    ({"x": "b"}, 422),
    ({"x": {"age": 3}, "eligible": "a"}, 422),
    ({"x": {"age": 3}, "deferred": 1}, 422),
]


def test_gateway_checks_only_types_before_the_pipeline_has_settings() -> None:
    with served(a_pipeline(), facts=None, timeout_s=0.1, learns=False) as gateway:
        found = [(body, gateway.ask("POST", "/v1/decide", body).status) for body, _ in BEFORE_SIZES_ARE_KNOWN]
    assert found == BEFORE_SIZES_ARE_KNOWN


@pytest.mark.parametrize("body", [b'{"id": ', b"", b'{"id": "a", "x": [NaN, 0]}', b'{"id": "\\ud800", "x": [1, 2]}'])
def test_body_that_is_not_json_is_rejected(shared_gateway: GatewayClient, body: bytes) -> None:
    got = shared_gateway.ask("POST", "/v1/decide", raw=body)
    assert got.status == 400
    assert got.json["error"].startswith("body: expected JSON; ")


@pytest.mark.parametrize("path", ["/v1/decide", "/v1/feedback", "/v1/shown"])
@pytest.mark.parametrize("media_type", ["", "text/plain", "text/plain;application/json", "application/jsonp"])
def test_body_with_another_content_type_is_rejected(shared_gateway: GatewayClient, path: str, media_type: str) -> None:
    body = {"id": "a", "x": [1.0, 0.5], "reward": 1}
    assert shared_gateway.ask("POST", path, body, {"Content-Type": media_type}).status == 415


def test_content_type_can_have_parameters(shared_gateway: GatewayClient) -> None:
    got = shared_gateway.ask("POST", "/v1/shown", {}, {"Content-Type": "Application/JSON; charset=utf-8"})
    assert got.status == 422


def test_another_method_is_rejected(shared_gateway: GatewayClient) -> None:
    got = shared_gateway.ask("GET", "/v1/decide")
    assert (got.status, got.headers["allow"], set(got.json)) == (405, "POST", {"error"})


def test_openapi_document_describes_requests_and_responses(shared_gateway: GatewayClient) -> None:
    schemas = shared_gateway.ask("GET", "/openapi.json").json["components"]["schemas"]
    context, feedback, problem = (Draft202012Validator(schemas[name]) for name in ("Context", "Feedback", "Problem"))
    found = [context.is_valid({"x": [1, 2], "eligible": eligible}) for eligible in ([0, 2], [], [1, 1])]
    in_pipeline = [context.is_valid({"x": x}) for x in ([1, 2], [1], {"i": [1]}, {"i": [2]}, {"red": 1})]
    actions = [feedback.is_valid({"id": "a", "reward": 1, "action": action}) for action in (2, 3)]
    missing = shared_gateway.ask("GET", f"/v1/decisions/{'a' * 300}")
    assert found == [True, False, False]
    assert (in_pipeline, actions) == ([True, False, True, False, False], [True, False])
    assert (missing.status, problem.is_valid(missing.json)) == (404, True)


def test_openapi_document_allows_no_eligible_classes_if_the_learner_supports_none() -> None:
    context = document("", FACTS._replace(unsupported="ucb"), has_token=False)["components"]["schemas"]["Context"]
    found = [Draft202012Validator(context).is_valid({"x": [1, 2], **given}) for given in ({}, {"eligible": ["help"]})]
    assert found == [True, False]


def test_requests_without_the_token_are_rejected_except_health_checks() -> None:
    with served(a_pipeline(), limits=Limits(("secret",))) as gateway:
        none, wrong = gateway.decide("a"), gateway.decide("a", Authorization="Bearer other")
        right = gateway.ask("POST", "/v1/decide", {"id": "a", "x": [1, 2]}, {"Authorization": "bearer secret"})
        open_paths = [gateway.ask("GET", path).status for path in ("/healthz", "/readyz", "/metrics")]
        document = gateway.ask("GET", "/openapi.json").json
    assert [(none.status, none.headers["www-authenticate"]), wrong.status] == [(401, "Bearer"), 401]
    assert right.status == 200
    assert open_paths == [200, 200, 200]
    assert document["security"] == [{"token": []}]
    assert [document["paths"][path]["get"]["security"] for path in ("/healthz", "/readyz", "/metrics")] == [[]] * 3


def test_each_of_several_tokens_is_accepted() -> None:
    with served(a_pipeline(), limits=Limits(("new", "old"))) as gateway:
        found = [gateway.decide("a", Authorization=f"Bearer {token}").status for token in ("new", "old", "new,old", "")]
    assert found == [200, 200, 401, 401]


HOSTS = frozenset(("localhost", "decide.example.com"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("10.0.0.7:8080", 200), ("serve:8080", 200),
        ("Decide.Example.com", 200), ("decide.example.com.:443", 200), ("a.localhost", 200), ("", 200),
        ("evil.example.com", 421), ("evil.example.com:8080", 421), ("decide.example.com.evil.net", 421),
        ("127.0.0.1.evil.net", 421), ("[::1", 421), ("localhost@evil.net", 421), ("evil.net\\localhost", 421),
    ],
)  # fmt: skip
def test_requests_for_unknown_host_names_are_rejected(host: str, status: int) -> None:
    with served(a_pipeline(), limits=Limits(hosts=HOSTS)) as gateway:
        got = gateway.decide("a", Host=host)
        assert gateway.ask("GET", "/readyz", headers={"Host": host}).status == 200
    assert got.status == status


def test_second_host_header_is_checked_too() -> None:
    with (
        served(a_pipeline(), limits=Limits(hosts=HOSTS)) as gateway,
        closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client,
    ):
        client.sendall(b"GET /v1/decisions/a HTTP/1.1\r\nHost: localhost\r\nHost: evil.example.com\r\n\r\n")
        assert client.recv(1_000).startswith(b"HTTP/1.1 421 ")


def test_requests_with_a_token_may_have_any_host_name() -> None:
    with served(a_pipeline(), limits=Limits(("secret",), HOSTS)) as gateway:
        got = gateway.decide("a", Authorization="Bearer secret", Host="other.example.com")
    assert got.status == 200


def test_requests_beyond_the_rate_limit_are_rejected_temporarily() -> None:
    now_s = [0.0]
    with served(a_pipeline(), limits=Limits(rate=RateLimit(2.0, lambda: now_s[0]))) as gateway:
        statuses = [gateway.decide(f"visit-{number}").status for number in range(3)]
        raised = gateway.decide("visit-3")
        now_s[0] = 0.5
        statuses += [gateway.decide("visit-3").status, gateway.decide("visit-4").status]
    assert statuses == [200, 200, 429, 200, 429]
    assert raised.headers["retry-after"] == "1"


def test_requests_beyond_the_concurrency_limit_are_rejected_except_health_checks() -> None:
    with ThreadPoolExecutor(1) as pool, served(a_pipeline(), limits=Limits(requests_max=1), learns=False) as gateway:
        asked = pool.submit(gateway.decide, "visit-1")
        wait_for(lambda: len(contexts(gateway)) == 1, "a request is waiting", WAIT_S)
        assert (gateway.decide("visit-2").status, gateway.ask("GET", "/healthz").status) == (503, 200)
        gateway.pipeline.work()
        assert asked.result().status == 200
        assert gateway.decide("visit-1").status == 200


def test_oversized_body_is_rejected_with_and_without_content_length() -> None:
    with served(a_pipeline(), limits=Limits(body_bytes_max=1_000)) as gateway:
        announced = gateway.ask("POST", "/v1/decide", raw=b"x" * 1_001)
        with closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
            client.sendall(b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n" + b"x" * 501 + b"\r\n")
            chunked = client.recv(1_000)
        assert gateway.decide("a").status == 200
    assert announced.status == 413
    assert chunked.startswith(b"HTTP/1.1 413 ")


def test_request_with_an_incomplete_body_times_out() -> None:
    with (
        served(a_pipeline(), limits=Limits(body_s=0.1)) as gateway,
        closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client,
    ):
        client.sendall(b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        assert received(client).startswith(b"HTTP/1.1 408 ")


def received(client: socket.socket) -> bytes:
    """Return all data received until the server closes the connection."""
    return b"".join(iter(lambda: client.recv(10_000), b""))


@pytest.mark.parametrize("head", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"], ids=["none", "empty", "part"])
def test_connection_is_closed_if_the_request_head_is_not_complete_in_time(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with served(a_pipeline()) as gateway, closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
        client.sendall(head)
        assert received(client) == b""


def test_head_of_a_later_request_has_the_same_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with served(a_pipeline()) as gateway, closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
        client.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"\r\n")
        assert received(client) == b""


def test_idle_connection_stays_open_after_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with served(a_pipeline()) as gateway, closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
        client.sendall(b"HEAD /unknown HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n")
        assert client.recv(1_000).startswith(b"HTTP/1.1 404 ")
        client.sendall(b"x")  # the rest of the body
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_connection_is_closed_if_an_ignored_body_is_not_complete_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with served(a_pipeline()) as gateway, closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
        client.sendall(b"POST /unknown HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        assert received(client).startswith(b"HTTP/1.1 404 ")


def test_oversized_request_head_is_rejected() -> None:
    with served(a_pipeline()) as gateway, closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
        client.sendall(b"GET /" + b"x" * protocol.HEAD_BYTES_MAX)
        assert received(client).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(("files", "expected"), [(1_024, 924), (1_000_000, 10_000), (resource.RLIM_INFINITY, 10_000)])
def test_connection_limit_is_below_the_limit_on_open_files(
    files: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert server.connections_max() == expected


def test_disconnect_in_the_middle_of_a_request_is_counted_and_writes_nothing() -> None:
    with served(a_pipeline()) as gateway:
        with closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
            client.sendall(b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        sample = 'onebit_http_requests_total{code="499",path="/v1/decide"}'
        wait_for(lambda: gateway.samples().get(sample) == 1, "the request is counted", WAIT_S)
        assert contexts(gateway) == []


def test_disconnect_of_a_client_with_pipelined_requests_is_not_an_internal_error() -> None:
    head = b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    with served(a_pipeline()) as gateway:
        gateway.broker.responds.clear()
        with closing(socket.create_connection((HOST, gateway.port), WAIT_S)) as client:
            client.sendall(b"".join(head + b'{"id":"%c","x":[1,2]}' % event_id for event_id in b"abc"))
            wait_for(lambda: gateway.broker.flushes == 1, "the first context is written", WAIT_S)
        gateway.samples()  # after this request, the gateway has noticed the disconnect
        gateway.broker.responds.set()
        sample = 'onebit_http_requests_total{code="200",path="/v1/decide"}'
        wait_for(lambda: gateway.samples().get(sample) == 1, "the first request is counted", WAIT_S)
    assert gateway.messages == []


def test_requests_get_503_during_a_broker_outage() -> None:
    with served(a_pipeline()) as gateway:
        known = gateway.decide("visit-1").json
        gateway.broker.is_away = True
        wait_for(lambda: gateway.ask("GET", "/readyz").status == 503, "the outage is noticed", WAIT_S)
        decide, feedback = (
            gateway.decide("visit-2"),
            gateway.ask("POST", "/v1/feedback", {"id": "visit-1", "reward": 1}),
        )
        assert (decide.status, feedback.status, decide.headers["retry-after"]) == (503, 503, "1")
        assert gateway.decide("visit-1").json == known
        assert gateway.ask("GET", "/healthz").status == 200
        gateway.broker.is_away = False
        gateway.wait_until_ready()
        assert gateway.decide("visit-2").status == 200
    assert any("reconnecting: no answer from the broker" in line for line in gateway.messages)


def test_failed_write_causes_a_503() -> None:
    with served(a_pipeline()) as gateway:
        gateway.broker.is_away = True  # either a write or the reader detects the outage
        assert gateway.decide("visit-1").status == 503


def test_missing_acknowledgement_causes_a_503_and_discards_queued_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WRITE_S", 0.1)
    with served(a_pipeline()) as gateway:
        gateway.broker.responds.clear()
        found = [gateway.ask("POST", "/v1/feedback", {"id": event_id, "reward": 1}) for event_id in ("sent", "queued")]
        gateway.broker.responds.set()
        monkeypatch.undo()
        assert gateway.ask("POST", "/v1/feedback", {"id": "last", "reward": 1}).status == 202
        pipeline = gateway.pipeline
        written = [one.key for one in pipeline.records(pipeline.topics.feedback, 0) if one.key is not None]
    assert [(one.status, one.headers["retry-after"]) for one in found] == [(503, "1")] * 2
    assert written == [b"sent", b"last"]


def test_decision_times_out_as_usual_while_the_broker_does_not_acknowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WRITE_S", 0.01)  # applies to feedback only
    with served(a_pipeline(), timeout_s=0.1, fallback="uniform") as gateway:
        gateway.broker.responds.clear()
        got = gateway.decide("visit-1")
        gateway.broker.responds.set()
    assert (got.status, got.json["fallback"]) == (200, True)


def test_lost_connection_causes_a_503_for_queued_records() -> None:
    with served(a_pipeline()) as gateway, ThreadPoolExecutor(2) as pool:
        gateway.broker.responds.clear()
        sent = pool.submit(gateway.decide, "sent")
        wait_for(lambda: gateway.broker.flushes == 1, "the first record is sent", WAIT_S)
        queued = pool.submit(gateway.decide, "queued")
        waiting = "onebit_http_waiting_requests"
        wait_for(lambda: gateway.samples()[waiting] == 2, "the second record is queued", WAIT_S)
        gateway.broker.is_away = True
        gateway.broker.responds.set()
        assert [sent.result().status, queued.result().status] == [503, 503]


def test_concurrent_requests_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINGER_S", 0.3)
    with served(a_pipeline()) as gateway, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(gateway.decide, ("visit-1", "visit-2")))
        assert [one.status for one in found] == [200, 200]
        assert gateway.broker.flushes == 1


def test_record_that_the_broker_rejects_causes_a_503_and_does_not_affect_the_next() -> None:
    with served(a_pipeline()) as gateway:
        gateway.broker.refusal = refusal = BrokerError("too large")
        got = gateway.decide("visit-1")
        gateway.broker.refusal = None
        assert (got.status, got.json) == (503, {"error": "too large"})
        assert refusal.__traceback__ is None  # otherwise, its frames would keep the body in memory
        assert gateway.link.unready == ""
        assert gateway.decide("visit-2").status == 200


def test_rejected_record_does_not_affect_the_other_records_of_its_batch() -> None:
    with served(a_pipeline()) as gateway, ThreadPoolExecutor(3) as pool:
        gateway.broker.rejected = b"visit-2"
        gateway.broker.responds.clear()
        first = pool.submit(gateway.decide, "visit-0")
        wait_for(lambda: gateway.broker.flushes == 1, "the first record is being written", WAIT_S)
        batch = [pool.submit(gateway.decide, f"visit-{number}") for number in (1, 2)]
        wait_for(lambda: gateway.link._queue.qsize() == 2, "the other records are queued", WAIT_S)
        gateway.broker.responds.set()
        assert [one.result().status for one in (first, *batch)] == [200, 200, 503]


def test_gateway_is_not_ready_after_a_permanent_broker_failure() -> None:
    with served(a_pipeline()) as gateway:
        gateway.broker.refusal = AccessError("not allowed")
        assert gateway.decide("visit-1").status == 503
        wait_for(lambda: gateway.link.failure is gateway.broker.refusal, "the link reports the failure", WAIT_S)
        assert gateway.ask("GET", "/readyz").status == 503


def test_internal_error_causes_a_500_and_is_logged() -> None:
    with served(a_pipeline()) as gateway:
        gateway.link.check_ready = None  # type: ignore[assignment, method-assign]
        got = gateway.decide("visit-1")
        assert (got.status, got.json) == (500, {"error": "internal error"})
    assert gateway.messages == ["internal error: /v1/decide: TypeError: 'NoneType' object is not callable"]


def test_responses_are_counted_by_path_and_code() -> None:
    with served(a_pipeline()) as gateway:
        gateway.decide("visit-1")
        gateway.decide("visit-2", "text")
        for path in ("/v1/decisions/visit-1", "/v1/decisions/other", "/unknown", "/healthz/"):
            gateway.ask("GET", path)
        found = gateway.samples()
    counted = {name: value for name, value in found.items() if name.startswith("onebit_http_requests_total")}
    assert {name for name in counted if "readyz" not in name} == {
        'onebit_http_requests_total{code="200",path="/v1/decide"}',
        'onebit_http_requests_total{code="422",path="/v1/decide"}',
        'onebit_http_requests_total{code="200",path="/v1/decisions/{id}"}',
        'onebit_http_requests_total{code="404",path="/v1/decisions/{id}"}',
        'onebit_http_requests_total{code="404",path="other"}',
    }
    assert counted['onebit_http_requests_total{code="404",path="other"}'] == 2
    assert found["onebit_http_decide_seconds_count"] == 2
    assert (found["onebit_http_waiting_requests"], found["onebit_http_remembered_decisions"]) == (0, 1)
    assert found['onebit_build_info{program="serve",version="1.2.3"}'] == 1


def test_pending_request_is_answered_during_shutdown() -> None:
    pipeline = a_pipeline()
    with ThreadPoolExecutor(2) as pool:
        with served(pipeline, learns=False) as gateway:
            asked = pool.submit(gateway.decide, "visit-1")
            wait_for(lambda: len(contexts(gateway)) == 1, "the context is written", WAIT_S)
            pool.submit(_work_when_refused, gateway)
        assert asked.result().status == 200


def _work_when_refused(gateway: GatewayClient) -> None:
    """Wait until the server no longer accepts connections, then run the learner."""
    wait_for(lambda: _refuses(gateway.port), "the server refuses connections", WAIT_S)
    gateway.pipeline.work()


def _refuses(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex((HOST, port)) != 0


def test_connections_disable_nagles_algorithm() -> None:
    with closing(listen(HOST, 0)) as listening, closing(socket.create_connection(listening.getsockname(), WAIT_S)):
        accepted, _ = listening.accept()
        with closing(accepted):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_gateway_with_a_certificate_uses_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    own.private_key_pem.write_to_path(key)
    for part in own.cert_chain_pems:
        part.write_to_path(certificate, append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with served(a_pipeline(), tls=(certificate, key, context)) as gateway:
        assert gateway.decide("visit-1").status == 200
