"""`onebit serve` as a process on a real Kafka with a learner: killed, restarted, and next to a second gateway."""

import json
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from stream.devkafka.local_kafka import LocalKafka
from stream.testing.processes import Program, wait_for
from tests.processes import Pipeline, free_port

VISITS = 30


class Gateway:
    """A gateway process and its client."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.port = free_port()
        self.program: Program = pipeline.start("serve", "--serve-port", str(self.port), "--timeout", "30s")
        self.program.wait_until(lambda: self.status("/readyz") == 200, "the gateway is ready")

    def status(self, path: str) -> int:
        """Return the HTTP status of a path, or 0 if nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as got:
                return int(got.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0

    def post(self, path: str, body: object, **headers: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=60) as got:  # noqa: S310
            return json.loads(got.read())

    def judge(self, answer: Any) -> Any:
        """Send feedback for a decision."""
        return self.post("/v1/feedback", {"id": answer["id"], "reward": 1, "action": answer["action"]})

    def decide(self, visit: int, **headers: str) -> Any:
        return self.post("/v1/decide", {"id": f"visit-{visit}", "x": {"i": [visit % 4], "v": [1.0]}}, **headers)


def test_same_id_gets_the_same_decision_from_restarted_and_other_gateways(
    kafka: LocalKafka, prefix: str, tmp_path: Path, client: str
) -> None:
    settings = {"n_classes": 3, "n_features": 4, "partitions": 2, "model": "own", "client": client}
    with closing(Pipeline(kafka.bootstrap, prefix, tmp_path, **settings)) as pipeline:
        pipeline.create_topics()
        learner = pipeline.start("learn", "--learner", "banditron")
        gateway = Gateway(pipeline)
        answers = [gateway.decide(visit, traceparent="00-ab") for visit in range(VISITS)]
        for answer in answers:
            assert gateway.judge(answer)["id"] == answer["id"]
        gateway.program.kill()

        restarted, other = Gateway(pipeline), Gateway(pipeline)
        assert [restarted.decide(visit) for visit in range(VISITS)] == answers
        assert [other.decide(visit) for visit in range(VISITS)] == answers
        new = other.decide(VISITS)
        path = f"/v1/decisions/{new['id']}"
        wait_for(lambda: restarted.status(path) == 200, "both gateways have the decision")
        assert restarted.decide(VISITS) == new
        restarted.judge(new)
        assert [one.program.stop() for one in (restarted, other)] == [0, 0]

        contexts = pipeline.committed_records(pipeline.topics.contexts)
        assert sorted(record.key for record in contexts) == sorted(b"visit-%d" % visit for visit in range(VISITS + 1))
        assert [dict(record.headers).get("traceparent") for record in contexts].count(b"00-ab") == VISITS
        assert pipeline.verify("--wait-events", str(VISITS + 1), "--timeout", "60s")["ok"]
        ended = [json.loads(record.value) for record in pipeline.committed_records(pipeline.topics.examples)]
        assert {one["id"]: one["action"] for one in ended if one["outcome"] == "matched"} == {
            answer["id"]: answer["action"] for answer in (*answers, new)
        }
        assert learner.stop() == 0
