"""examples/own_service.py, an example of a user's own service. The tests start Onebit's programs."""

import os
import re
import subprocess
import sys
from pathlib import Path

from stream.devkafka.local_kafka import LocalKafka
from tests.limits import within
from tests.processes import Pipeline

EXAMPLE = Path(__file__).parents[2] / "examples/own_service.py"


def own_service(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ONEBIT_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        env=environment | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_own_service_gets_all_predictions_and_its_learner_improves(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(
        kafka.bootstrap, prefix, tmp_path, n_classes=3, n_features=4, learner="banditron", partitions=3,
        window="5s",
    )  # fmt: skip
    try:
        pipeline.create_topics()
        pipeline.start("learn")
        for _ in range(2):  # the second run uses the same topics
            done = own_service(ONEBIT_BOOTSTRAP=kafka.bootstrap, ONEBIT_TOPIC_PREFIX=prefix)
            assert (done.returncode, done.stderr) == (0, "")
            assert re.fullmatch(r"own_service on .*: 300 visitors got a page; it was right for .*\n", done.stdout)
        shares = [int(share) for share in re.findall(r"(\d+)%", done.stdout)]
        assert shares[1] >= 45  # chance is 33%; the worst of 2,000 simulated services had 56%
        found = pipeline.verify("--wait-events", "600", "--timeout", "60s")
        assert [sum(one["learner"][name] for one in found["partitions"]) for name in ("matched", "expired")] == [600, 0]
    finally:
        pipeline.close()


def test_own_service_without_topics_or_learner_exits_with_1(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    where = ("--bootstrap", kafka.bootstrap, "--topic-prefix", prefix, "--timeout-s", "5")
    nowhere = own_service(*where)
    assert (nowhere.returncode, nowhere.stdout) == (1, "")
    assert f"onebit topics create --topic-prefix {prefix}" in nowhere.stderr
    Pipeline(kafka.bootstrap, prefix, tmp_path).create_topics()
    alone = own_service(*where)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "got 0 of 20 predictions within 5 s" in alone.stderr


def test_own_service_without_a_broker_exits_with_1() -> None:
    with within(20):
        done = own_service("--bootstrap", "127.0.0.1:1", "--timeout-s", "2")
    assert done.returncode == 1
    assert "own_service on onebit.* at 127.0.0.1:1: " in done.stderr
    assert "Traceback" not in done.stderr
