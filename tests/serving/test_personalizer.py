"""Personalizer's requests as contexts and feedback, and decisions as its responses."""

from typing import Any

import pytest

from producers.gateway.personalizer import error_fields, feedback_of, normalized, rank_request, rank_response
from producers.personalizer_features import LEVELS_MAX
from stream.wire.codec import MalformedError

NEWS = [{"id": name, "features": [{"type": name}]} for name in ("News", "Sports", "Weather", "Music")]
DOTS = ["a" + "." * n for n in range(1_201)]  # the name of a category "" of a feature is the feature's name and a dot
LONG = "a" * 10_000


def features(*given: object) -> dict[str, Any]:
    x: dict[str, Any] = rank_request({"actions": NEWS, "contextFeatures": list(given)}).context["x"]
    return x


def nested(levels: int) -> dict[str, Any]:
    return {"a": 1} if levels == 1 else {"a": nested(levels - 1)}


def test_request_becomes_a_context_whose_baseline_is_the_first_action_that_is_not_excluded() -> None:
    body = {
        "contextFeatures": [{"timeOfDay": "Morning"}, {"user": {"age": 21, "device": {"mobile": True}}}],
        "actions": NEWS[:3],
        "excludedActions": ["News", "unknown"],
        "eventId": "visit-1",
        "deferActivation": True,
        "newField": 7,
    }
    assert rank_request(body).context == {
        "id": "visit-1",
        "x": {"timeOfDay": "Morning", "user.age": 21, "user.device.mobile": True},
        "actions": [{"id": name, "x": {"type": name}} for name in ("News", "Sports", "Weather")],
        "eligible": ["Sports", "Weather"],
        "baseline": "Sports",
        "deferred": True,
    }


def test_missing_fields_have_personalizers_defaults() -> None:
    first, second = (rank_request({"actions": [{"id": 17}], "eventId": None}).context for _ in range(2))
    event_id = first.pop("id")
    assert first == {"x": {}, "actions": [{"id": "17", "x": {}}], "baseline": "17", "deferred": False}
    assert event_id != second["id"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{"grams": [400, 2.5]}], {"grams[0]": 400, "grams[1]": 2.5}),
        ([{"tags": ["new", "hot", "new"]}], {"tags.new": 2, "tags.hot": 1}),
        ([{"_secret": 1, "ns": {"_ua": "x", "b": False}}, {"_ns": {"a": 1}}], {"ns.b": False}),
        ([{"a": None, "b": "", "c": {}}, {}], {"b": ""}),
        ([{"clicks": 3}, {"clicks": 4.5}], {"clicks": 7.5}),
        ([{"tag": "new"}, {"tag": "hot"}, {"tag": "hot"}], {"tag": "new", "tag.hot": 2}),
        ([{"size": "XL"}, {"size": 3}], {"size": 3, "size.XL": 1}),
        ([{"items": [{"price": 1}, {"price": 2}]}], {"items.price": 3}),
        ([{"id": 2**63}, {"id": 2**63}], {"id": 2.0**64}),
        ([nested(LEVELS_MAX)], {".".join("a" * LEVELS_MAX): 1}),
        ([{DOTS[n]: ""} for n in range(1_200)] + [{"a": ""}], {"a": ""} | dict.fromkeys(DOTS[1:], 1)),
    ],
)  # fmt: skip
def test_features_are_flattened(given: list[object], expected: dict[str, Any]) -> None:
    assert features(*given) == expected


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({}, "actions"),
        ({"actions": []}, "actions"),
        ({"actions": {"1": {}}}, "actions"),
        ({"actions": ["News"]}, "actions[0]"),
        ({"actions": [{"features": []}]}, "actions[0].id"),
        ({"actions": [{"id": True}]}, "actions[0].id"),
        ({"actions": [{"id": "a", "features": {"type": "News"}}]}, "actions[0].features"),
        ({"actions": [{"id": "a", "features": ["News"]}]}, "actions[0].features[0]"),
        ({"actions": NEWS, "contextFeatures": [{"a": [[1]]}]}, "contextFeatures[0], a[0]"),
        ({"actions": NEWS, "contextFeatures": [nested(LEVELS_MAX + 1)]}, "contextFeatures[0]"),
        ({"actions": NEWS, "contextFeatures": [{"a": 1e308}, {"a": 1e308}]}, "contextFeatures[1], a"),
        ({"actions": [{"id": "a", "features": [{"b": [{"c": -1e308}] * 2}]}]}, "actions[0].features[0], b.c"),
        (
            {"actions": NEWS, "contextFeatures": [{}, {LONG: dict.fromkeys(map(str, range(101)), 1)}]},
            "contextFeatures[1]",
        ),
        ({"actions": NEWS, "excludedActions": [one["id"] for one in NEWS]}, "excludedActions"),
        ({"actions": NEWS, "excludedActions": [None]}, "excludedActions[0]"),
        ({"actions": NEWS, "eventId": {}}, "eventId"),
        ({"actions": NEWS, "eventId": ""}, "eventId"),
        ({"actions": NEWS, "eventId": "ä" * 129}, "eventId"),
        ({"actions": NEWS, "deferActivation": 1}, "deferActivation"),
    ],
)
def test_invalid_request_is_rejected_with_the_name_of_the_field(body: object, field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        rank_request(body)
    assert str(caught.value).startswith(f"{field}: expected")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("reward: expected a number from 0 to 1; got 7.0", "value: expected a number from 0 to 1; got 7.0"),
        ("x: age: expected a number", "contextFeatures: age: expected a number"),
        ("actions[12].x: x: expected a number", "actions[12].features: x: expected a number"),
        ("actions: expected different ids; got 'x:' twice", "actions: expected different ids; got 'x:' twice"),
    ],
)
def test_error_has_the_name_of_the_clients_field(message: str, expected: str) -> None:
    assert error_fields(400, message)["error"]["message"] == expected


@pytest.mark.parametrize(
    ("excluded", "decision", "expected"),
    [
        # The other actions follow by descending score and share the rest of the probability.
        ([], {"class": "Sports", "propensity": 0.7, "scores": {"News": 1, "Sports": 4, "Weather": 2, "Music": 3}},
         [("Sports", 0.7), ("Music", 0.1), ("Weather", 0.1), ("News", 0.1)]),
        # An excluded action keeps its position in the request.
        (["News", "Weather"], {"class": "Music", "propensity": 0.8, "scores": {"Sports": 0.1, "Music": 0.4}},
         [("News", 0.0), ("Music", 0.8), ("Weather", 0.0), ("Sports", 0.2)]),
        (["News", "Sports", "Weather"], {"class": "Music", "propensity": 1.0, "scores": {"Music": 0.4}},
         [("News", 0.0), ("Sports", 0.0), ("Weather", 0.0), ("Music", 1.0)]),
        # A fallback has no scores.
        ([], {"class": "Weather", "propensity": 0.25},
         [("Weather", 0.25), ("News", 0.25), ("Sports", 0.25), ("Music", 0.25)]),
        # A decision whose propensity is unknown.
        (["News"], {"class": "Weather"}, [("News", 0.0), ("Weather", None), ("Sports", None), ("Music", None)]),
    ],
)  # fmt: skip
def test_ranking_has_the_played_action_first_and_probabilities_that_sum_to_one(
    excluded: list[str], decision: dict[str, Any], expected: list[tuple[str, float | None]]
) -> None:
    request = rank_request({"actions": NEWS, "excludedActions": excluded, "eventId": "visit-1"})
    answer = rank_response(request, {"id": "visit-1", **decision})
    assert (answer["eventId"], answer["rewardActionId"]) == ("visit-1", decision["class"])
    assert [one["id"] for one in answer["ranking"]] == [name for name, _ in expected]
    found = [one["probability"] for one in answer["ranking"]]
    assert found == [share if share is None else pytest.approx(share) for _, share in expected]
    if "propensity" in decision:
        assert sum(found) == pytest.approx(1.0)


def test_decision_for_other_actions_is_an_error_of_the_event_id() -> None:
    request = rank_request({"actions": NEWS, "excludedActions": ["News"], "eventId": "visit-1"})
    for played in ("News", "Cats"):
        with pytest.raises(MalformedError) as caught:
            rank_response(request, {"id": "visit-1", "class": played, "propensity": 1.0})
        assert str(caught.value).startswith("eventId: ")


@pytest.mark.parametrize("body", [None, [], {}, {"value": None}, {"value": "1"}, {"value": True}])
def test_reward_that_is_not_a_number_is_rejected(body: object) -> None:
    with pytest.raises(MalformedError):
        feedback_of("visit-1", body, is_part=False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/personalizer/v1.0/events/v1/reward", "/personalizer/events/v1/reward"),
        ("/personalizer/v1.1-preview.1/rank", "/personalizer/rank"),
        ("///personalizer/v1.0/status", "/personalizer/status"),
        ("/personalizer/v1.0", "/personalizer/v1.0"),
        ("/Personalizer/V1.0/RANK", "/personalizer/rank"),
        ("/PERSONALIZER/Events/Reward/Visit/1\n/Activate", "/personalizer/events/Reward/Visit/1\n/activate"),
        ("/personalizer/featureImportances", "/personalizer/featureImportances"),
        ("/v1//personalizer/rank", "/v1//personalizer/rank"),
        ("//v1/decide", "//v1/decide"),
    ],
)
def test_version_and_case_are_removed_from_paths_of_personalizer_only(path: str, expected: str) -> None:
    assert normalized(path) == expected
