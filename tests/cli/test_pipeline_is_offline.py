"""With the same learner and the same draws, the embedded pipeline and the compiled loop give identical results.

One decision is made per millisecond, and each millisecond corresponds to one round of the loop. The learner polls every
millisecond (`poll_ms=0`), so that deadlines pass in the same order as in the loop even if no feedback advances stream
time.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onebit.runs.embedded import EmbeddedPrograms, prepare_embedded, run_embedded
from onebit.runs.plan import resolve_run
from producers.datasets.base import Dataset, SparseRows
from stream.kafka.reading import read_partition
from stream.learners import registered
from stream.offline import NEVER, Examples, Patience, Run, run
from stream.randomness.draws import Draws, Purpose
from stream.recovery.state import state_digest
from stream.settings.definitions import Settings
from stream.task.settings import PolicyError
from stream.wire.actions import Action, ActionBlocks
from stream.wire.codec import decode_prediction
from stream.wire.records import NO_FEATURES, TopicPartition
from tests.learners.test_battery import CASES, Case, examples

pytestmark = pytest.mark.slow

EVENTS = 120
WINDOW = 12

AT_ONCE = {"delay": "none"}
POLICIES: dict[str, dict[str, Any]] = {
    "correct": {"on_expiry": "negative", "late": "correct"},
    "negative": {"on_expiry": "negative"},
    "drop": {"on_expiry": "drop"},
}
"""Policies for expired decisions, from most to least demanding."""

LATE = {"delay": f"lognormal:{WINDOW // 2}ms,1.0", "loss": 0.1, "window": f"{WINDOW}ms", "retain": "1h"}


class OfferedRows(Dataset):
    """Rows with the same number of actions each, whose ids change from row to row."""

    def actions(self, row: int) -> Sequence[str]:
        return [f"item-{(row + k) % 9}" for k in range(self.n_classes)]


def with_ids(rows: Examples, blocks: ActionBlocks) -> OfferedRows:
    """Return the rows as contexts with actions, with the key of each action's id."""
    named = OfferedRows("small", "small", EVENTS, blocks.n_features, blocks.places, (), "", SparseRows(*rows[:4]))
    joined = []
    for t in range(EVENTS):
        x, features = blocks.split(rows.features(t))
        features += [NO_FEATURES] * (blocks.places - len(features))
        joined.append(blocks.joined(x, list(map(Action, named.actions(t), features))))
    offsets = np.concatenate(([0], np.cumsum([x.indices.size for x in joined]))).astype(np.int64)
    indices, values = (np.concatenate(column) for column in zip(*joined, strict=True))
    return replace(named, source=SparseRows(offsets, indices, values, rows.labels), blocks=blocks)


def dataset_of(case: Case) -> Dataset:
    rows = examples(case, EVENTS, seed=11)
    if registered()[case.name].for_actions:
        context = case.parameters["context"]
        return with_ids(rows, ActionBlocks(case.n_classes, context, (case.n_features - context) // case.n_classes - 1))
    names = tuple(map(str, range(case.n_classes)))
    return Dataset("small", "small", EVENTS, case.n_features, case.n_classes, names, "", SparseRows(*rows[:4]))


def pipeline_of(case: Case, settings: dict[str, Any]) -> EmbeddedPrograms:
    given = {"learner": [case.name], "rate": 1_000.0, "seed": 3, **settings}
    given["param"] = [f"{name}={value}" for name, value in case.parameters.items()]
    return replace(prepare_embedded(resolve_run(Settings(**given), case.name, dataset_of(case))), poll_ms=0)


def run_loop(dataset: Dataset, pipeline: EmbeddedPrograms) -> tuple[Run, str]:
    """Run the loop with the pipeline's random draws. Return the result and the digest of the learner's state."""
    task = pipeline.run.task
    ids = [dataset.event_id(t) for t in range(EVENTS)]
    u, v = (np.array(list(map(Draws(task.seed, purpose), ids))) for purpose in (Purpose.ACTION, Purpose.UPDATE))
    plan = pipeline.run.plan
    delays = np.array([(plan(ids[t], dataset.label(t)) or [NEVER])[0] for t in range(EVENTS)])
    learner = task.make_learner()
    patience = Patience(task.join.window_ms, task.on_expiry, task.late)
    return run(learner, Examples(*dataset.block(0, EVENTS)), u, v, delays, patience), state_digest([learner.state()])


def check(case: Case, pipeline: EmbeddedPrograms) -> None:
    """Run the pipeline and the loop, and compare their decisions, counts and final states."""
    pipeline.run_to_end()
    topic = TopicPartition(pipeline.run.topics.predictions, 0)
    decisions = [decode_prediction(record)[0].decision for record in read_partition(pipeline.broker, topic)]
    task = pipeline.learner.tasks[0]
    result, digest = run_loop(dataset_of(case), pipeline)
    assert [decision.action for decision in decisions] == result.actions.tolist()
    assert [decision.propensity for decision in decisions] == result.propensities.tolist()
    ledger = task.join.ledger()
    assert (ledger.matched, ledger.expired, ledger.late) == (result.matched, result.expired, result.late)
    assert (ledger.late > 0) == (pipeline.run.settings["delay"] != "none"), (
        "expected late bits if and only if there are delays"
    )
    assert task.version == result.updates
    assert state_digest([task.learner.state()]) == digest


@pytest.mark.parametrize("name", ["banditron", "late-ucb"])
def test_pipeline_equals_loop_with_immediate_feedback(name: str) -> None:
    check(CASES[name], pipeline_of(CASES[name], AT_ONCE))


@pytest.mark.parametrize("name", registered())
def test_pipeline_equals_loop_with_late_feedback(name: str) -> None:
    """Test each learner with the first entry of POLICIES that it supports."""
    for policies in POLICIES.values():
        with suppress(PolicyError):
            return check(CASES[name], pipeline_of(CASES[name], LATE | policies))
    raise AssertionError(f"{name} supports none of the policies")


@pytest.mark.parametrize("name", ["soba-diag", "perceptron"])
def test_pipeline_with_shared_model_equals_loop_without_lag(name: str) -> None:
    """Test only learners whose decisions do not change the model, because the order of the tasks in a round varies."""
    case = CASES[name]
    pipeline = pipeline_of(case, {"delay": "fixed:5ms", "model": "shared", "partitions": 3})
    pipeline.run_to_end()
    topics = [TopicPartition(pipeline.run.topics.predictions, partition) for partition in range(3)]
    decisions = {
        prediction.id: prediction.decision
        for topic in topics
        for prediction, _ in map(decode_prediction, read_partition(pipeline.broker, topic))
    }
    dataset = dataset_of(case)
    result, digest = run_loop(dataset, pipeline)
    in_order = [decisions[dataset.event_id(t)] for t in range(EVENTS)]
    assert [decision.action for decision in in_order] == result.actions.tolist()
    assert [decision.propensity for decision in in_order] == result.propensities.tolist()
    pipeline.learner.read_log()
    replica = pipeline.learner.replica
    assert replica is not None
    assert (replica.version, replica.updates) == (EVENTS, result.updates)
    assert state_digest([replica.learner.state()]) == digest


def test_report_has_version_and_digest_of_a_shared_model() -> None:
    settings = Settings(learner=["late-ucb"], model="shared", partitions=3, delay="fixed:50ms")
    found = run_embedded(resolve_run(settings, "late-ucb", dataset_of(CASES["late-ucb"]))).to_dict()
    assert (found["ledger_ok"], found["model"], found["model_version"]) == (True, "shared", 2 * EVENTS)
    version, digest = 2 * EVENTS, found["state_sha256"]
    assert found["replicas"] == [{"instance": "learner-1", "version": version, "sha256": digest}]
    alone = settings.model_copy(update={"model": "own"})
    own = run_embedded(resolve_run(alone, "late-ucb", dataset_of(CASES["late-ucb"])))
    assert own.to_dict()["model"] == "own"
    assert not own.to_dict().keys() & {"model_version", "replicas"}
