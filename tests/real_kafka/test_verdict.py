"""The last line of `onebit verify`, which reports the learner's error and whether the ledger adds up."""

import json
import re
from pathlib import Path

import pytest

from stream.devkafka.local_kafka import LocalKafka
from tests.processes import Pipeline

EVENTS = 300


def test_verify_waits_for_the_replay_and_ends_with_verdict_and_error(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(
        kafka.bootstrap, prefix, tmp_path, data="synsep", events=EVENTS, partitions=2,
        delay="exponential:200ms", window="2s", loss=0.1, duplicates=0.1, on_expiry="negative",
    )  # fmt: skip
    try:
        pipeline.create_topics()
        verify = pipeline.start("verify", "--wait-replay", "--timeout", "90s")
        for program in ("learn", "feedback", "replay"):
            pipeline.start(program)
        assert verify.wait() == 0, verify.said()
        examples = [json.loads(record.value) for record in pipeline.committed_records(pipeline.topics.examples)]
        rewards = [example["reward"] for example in examples if example["outcome"] == "matched"]
        assert len(examples) == EVENTS
        assert 0 < len(rewards) < EVENTS  # assumed rewards of expired decisions do not count
        last_line = verify.said().splitlines()[-1]
        assert last_line.startswith("✓ the ledger adds up in 2 partitions; error ")
        assert last_line.endswith(f"(decisions with reward 0, out of {len(rewards)} with feedback in time)")
        found = pipeline.verify()
        assert found["matched"] == len(rewards)
        assert found["error"] == pytest.approx(rewards.count(0) / len(rewards))
        (shown,) = re.findall(r"; error ([0-9.]+)%, last fifth", last_line)
        assert float(shown) == pytest.approx(100 * found["error"], abs=0.06)
    finally:
        pipeline.close()
