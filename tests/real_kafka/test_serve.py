"""`onebit serve` as a process with a real Kafka broker: killed, restarted, and alongside a second gateway."""

import json
from contextlib import closing
from pathlib import Path

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from tests.gateways import Gateway
from tests.processes import Pipeline

VISITS = 30


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
