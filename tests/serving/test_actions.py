"""The gateway of a pipeline that decides among actions with features."""

from typing import Any

import pytest

from onebit.testing.embedded import EmbeddedPipeline
from producers.gateway.decisions import PipelineFacts
from stream.wire.actions import ActionBlocks
from stream.wire.codec import ActionReading
from tests.offers import CONTEXT, FEATURES, PLACES, offers
from tests.serving.gateway import FACTS, served

OFFER: dict[str, Any] = next(one.fields for one in offers(20) if len(one.fields["actions"]) == 3)
IDS = [action["id"] for action in OFFER["actions"]]
READING = ActionReading(ActionBlocks(PLACES, CONTEXT, FEATURES), None)
OF_ACTIONS = PipelineFacts(PLACES, CONTEXT, seed=7, reading=READING)


def a_pipeline() -> EmbeddedPipeline:
    """A pipeline whose kernels are compiled, which can take longer than a request's timeout."""
    made = EmbeddedPipeline(actions_max=PLACES, n_features=CONTEXT, action_features=FEATURES, learner="joint-ucb")
    made.send("contexts", "first", {**OFFER, "id": "first"})
    made.feedback("first", 1)
    made.work()
    return made


def test_answer_names_the_action_and_contains_the_scores_by_id() -> None:
    pipeline = a_pipeline()
    with served(pipeline, facts=OF_ACTIONS) as gateway:
        answer = gateway.ask("POST", "/v1/decide?scores=true", {**OFFER, "eligible": IDS[1:]})
        again = gateway.ask("GET", f"/v1/decisions/{OFFER['id']}?scores=true")
        feedback = gateway.ask("POST", "/v1/feedback", {"id": OFFER["id"], "reward": 1, "action": answer.json["class"]})
    assert (answer.status, feedback.status) == (200, 202)
    assert answer.json["class"] == IDS[answer.json["action"]]
    assert list(answer.json["scores"]) == IDS[1:]
    assert again.json == answer.json
    assert pipeline.example(OFFER["id"])["class"] == answer.json["class"]


@pytest.mark.parametrize(
    ("facts", "body", "field"),
    [
        (OF_ACTIONS, {**OFFER, "actions": []}, "actions"),
        (OF_ACTIONS, {**OFFER, "eligible": ["unknown"]}, "eligible"),
        (FACTS, {"id": "a", "x": [0, 1], "actions": [{"id": "tea"}]}, "actions"),
        (None, {**OFFER, "actions": [{"id": "tea"}] * 2}, "actions"),
    ],
)
def test_invalid_offer_gets_422(facts: PipelineFacts | None, body: dict[str, Any], field: str) -> None:
    with served(a_pipeline(), facts=facts) as gateway:
        answer = gateway.ask("POST", "/v1/decide", body)
    assert (answer.status, answer.json["error"].split(":")[0]) == (422, field)


@pytest.mark.parametrize(("fallback", "status"), [("uniform", 200), ("0", 200), ("3", 504), ("news", 504)])
def test_fallback_is_uniform_or_a_place_in_the_list(fallback: str, status: int) -> None:
    with served(a_pipeline(), facts=OF_ACTIONS, timeout_s=0.2, fallback=fallback, learns=False) as gateway:
        answer = gateway.ask("POST", "/v1/decide", OFFER)
    assert answer.status == status
    if status == 200:
        assert answer.json["class"] == (IDS[0] if fallback == "0" else IDS[answer.json["action"]])
        assert answer.json["propensity"] == (1.0 if fallback == "0" else pytest.approx(1 / 3))
