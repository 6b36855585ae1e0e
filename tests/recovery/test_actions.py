"""Whole pipelines that decide among actions with features: restarts, changes, audits, replays and model files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import onebit
from onebit.testing.embedded import EmbeddedPipeline
from stream.recovery.model_files import write_model
from stream.verifying.models import export_model
from stream.verifying.reapply import replay_journal
from tests.offers import CONTEXT, FEATURES, PLACES, Offer, offers

EVENTS = 150
SIZES: dict[str, Any] = {"actions_max": PLACES, "n_features": CONTEXT, "action_features": FEATURES, "window": "5s"}


def decide(pipeline: EmbeddedPipeline, offer: Offer, **fields: Any) -> dict[str, Any]:
    pipeline.send("contexts", offer.fields["id"], {**offer.fields, **fields})
    return pipeline.prediction(offer.fields["id"])


def run(pipeline: EmbeddedPipeline, events: int = EVENTS, seed: int = 1) -> list[int]:
    """Send contexts and delayed feedback. Restart the learner twice. Return the rewards of the decided actions."""
    rewards, waiting = [], list[tuple[str, int, str]]()
    for number, offer in enumerate(offers(events, seed)):
        played = decide(pipeline, offer, baseline=offer.fields["actions"][0]["id"])["class"]
        rewards.append(offer.rewards[played])
        waiting.append((offer.fields["id"], offer.rewards[played], played))
        if len(waiting) > 5:
            event_id, reward, action = waiting.pop(0)
            pipeline.feedback(event_id, reward, action=action)
        pipeline.advance("50ms")
        if number in (events // 3, events // 2):
            pipeline.restart_learner()
    return rewards


CASES: dict[str, dict[str, Any]] = {
    "own model": {"model": "own"},
    "shared model": {"model": "shared", "partitions": 2},
    "igw-log": {"learner": "igw-log", "param": ["bits=10"], "holdout": 0.2, "holdout_policy": "baseline"},
    "late feedback corrects": {"on_expiry": "negative", "late": "correct", "window": "200ms"},
}


@pytest.mark.parametrize("case", CASES)
def test_pipeline_is_recovered_audited_and_replayed(case: str) -> None:
    pipeline = EmbeddedPipeline(**{**SIZES, **CASES[case]})
    rewards = run(pipeline)
    assert sum(rewards[EVENTS // 2 :]) > 0.5 * (EVENTS - EVENTS // 2)
    pipeline.advance("20s")
    pipeline.finish()
    found = [replay_journal(pipeline.broker, pipeline.topics, partition) for partition in range(pipeline.partitions)]
    assert [(one.fault, one.ok) for one in found] == [("", True)] * pipeline.partitions


def test_pipeline_with_pending_decisions_adds_a_learner_that_needs_all_actions_of_later_ones() -> None:
    with onebit.embedded(**SIZES, learner="igw-log", param=["bits=10"]) as pipeline:
        for number, offer in enumerate(offers(100)):
            fields = offer.fields
            pipeline.decide(fields["id"], fields["x"], actions=fields["actions"])
            pipeline.feedback(fields["id"], 1, after="1s")
            pipeline.advance("100ms")
            if number == 20:
                pipeline.change(challengers={"joint-ucb": {}})
        pipeline.settle()
        assert pipeline.ledger.matched == 100
        assert pipeline.test.prediction("visit-99")["challenged"]["choices"].keys() == {"joint-ucb"}
        assert replay_journal(pipeline.test.broker, pipeline.test.topics, 0).ok


def test_model_file_of_a_pipeline_with_actions_is_a_holdout_policy(tmp_path: Path) -> None:
    first = EmbeddedPipeline(**SIZES, learner="igw-log", param=["bits=8"])
    run(first, 40)
    write_model(tmp_path / "model.npz", export_model(first.broker, first.topics, 0))
    policy = {"holdout": 0.5, "holdout_policy": f"model:{tmp_path / 'model.npz'}"}
    second = EmbeddedPipeline(**SIZES, learner="igw-log", param=["bits=8"], **policy)
    run(second, 40)
    arms = Counter(second.prediction(f"visit-{number}").get("arm") for number in range(40))
    assert min(arms["holdout"], arms[None]) > 10
    second.finish()
