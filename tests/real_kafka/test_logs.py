"""The programs on a real Kafka broker replay the log that ships with Onebit, using the log's own timestamps."""

import json
from importlib.resources import as_file, files
from pathlib import Path

from stream.devkafka.local_kafka import LocalKafka
from stream.wire.ledger import Ledger, total_ledger
from tests.processes import Pipeline

ROWS = 300
MAPPED = {"data": "offers.csv.gz", "map": "offers.toml"}
LOG_TIMES = {"limit": ROWS, "speed": "2000x", "delay": "logged", "window": "3s", "reward": "any"}


def test_log_is_replayed_and_the_audit_passes(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    shipped = files("producers.datasets") / "files"
    with as_file(shipped / MAPPED["data"]) as data, as_file(shipped / MAPPED["map"]) as mapping:
        settings = {"data": data, "map": mapping, "play": "logged", "learner": "late-ucb", **LOG_TIMES}
        pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, partitions=2, **settings)
        try:
            pipeline.create_topics()
            for program in ("learn", "feedback"):
                pipeline.start(program)
            replay = pipeline.start("replay")
            assert replay.wait() == 0, replay.said()
            found = pipeline.verify("--wait-replay", "--replay", "--limit", str(ROWS))
            answers = [json.loads(one.value) for one in pipeline.committed_records(pipeline.topics.predictions)]
        finally:
            pipeline.close()
    assert found["ok"], found
    assert {answer["class"] for answer in answers} <= {f"offer-{number:02}" for number in range(10)}
    assert all(answer["class"].endswith(f"{answer['action']:02}") for answer in answers)
    ledger = total_ledger(Ledger(**partition["audited"]) for partition in found["partitions"])
    assert (ledger.contexts, ledger.decided, ledger.pending) == (ROWS, ROWS, 0)
    assert ledger.matched > 0.8 * ROWS, "one in twenty log rows has no outcome"
    assert ledger.unmatched == 0
