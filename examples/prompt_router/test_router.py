"""Tests for the router, on a pipeline in virtual time. Run them with `pytest examples/prompt_router`."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError

import pytest
from router import MODELS, Router, post, server, simulate

from onebit.testing.embedded import EmbeddedPipeline

SETTINGS = {
    "classes_max": len(MODELS), "n_features": 1_026, "features": Path(__file__).with_name("features.json"),
    "learner": ["igw-logistic"], "param": ["step=1"], "rewards": "graded", "reward_range": "-1,1", "window": "5m",
    "holdout": 0.05,
}  # fmt: skip

MakePipeline = Callable[..., EmbeddedPipeline]


def router_on(pipeline: EmbeddedPipeline) -> Router:
    """A router whose calls go to a pipeline instead of a gateway."""

    def call(path: str, fields: dict[str, Any]) -> dict[str, Any]:
        pipeline.send("contexts" if path == "/v1/decide" else "feedback", fields["id"], fields)
        pipeline.advance("1s")
        return pipeline.prediction(fields["id"]) if path == "/v1/decide" else fields

    numbers = count()
    return Router(call, lambda: f"request-{next(numbers)}")


def test_router_learns_from_half_of_the_thumbs(onebit_embedded: MakePipeline) -> None:
    pipeline = onebit_embedded(**SETTINGS)
    router = router_on(pipeline)
    rewards = simulate(router.ask, router.thumb, 300)
    assert sum(rewards[-100:]) / 100 > 0.55  # a random model has a mean reward of 0.39, and the best choice 0.70
    pipeline.advance("6m")
    ledger = pipeline.ledger()
    assert ledger.matched + ledger.expired == 300
    assert 110 < ledger.matched < 190


def test_models_that_are_down_get_no_requests(onebit_embedded: MakePipeline) -> None:
    router = router_on(onebit_embedded(**SETTINGS))
    assert router.models({"name": "large", "up": False}) == {"up": ["small", "code"]}
    assert {router.ask({"prompt": f"question {number}"})["model"] for number in range(20)} <= {"small", "code"}
    assert router.models({"name": "large", "up": True}) == {"up": ["small", "code", "large"]}


def test_reward_is_the_thumb_minus_the_cost_of_the_model(onebit_embedded: MakePipeline) -> None:
    pipeline = onebit_embedded(**SETTINGS)
    router = router_on(pipeline)
    for up in (True, False):
        answer = router.ask({"prompt": "hello"})
        router.thumb({"id": answer["id"], "up": up})
        reward = pipeline.example(answer["id"])["reward"]
        assert reward == pytest.approx(up - MODELS[answer["model"]].cost)


def test_router_serves_over_http(onebit_embedded: MakePipeline) -> None:
    router = router_on(onebit_embedded(**SETTINGS))
    with server(router, 0) as serving:
        url = f"http://127.0.0.1:{serving.server_port}"
        thread = Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        try:
            answer = post(f"{url}/ask", {"prompt": "hello"})
            assert answer["model"] in MODELS
            assert post(f"{url}/thumb", {"id": answer["id"], "up": True})["id"] == answer["id"]
            for path, fields in (("/thumb", {"id": answer["id"], "up": True}), ("/ask", {}), ("/other", {})):
                with pytest.raises(HTTPError) as refused:
                    post(url + path, fields)
                assert refused.value.code in (400, 404)
                refused.value.close()
        finally:
            serving.shutdown()
            thread.join()
