"""Golden pipelines in an embedded broker: what Onebit makes of them.

This module and `written_now` are the only ones of the tests here that import from Onebit what reads and what goes on.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consumers.learner import LearnerOptions, LearnerProgram
from stream.brokers.clocks import VirtualClock
from stream.brokers.embedded import EmbeddedBroker
from stream.brokers.partitioner import partition_for
from stream.brokers.reading import read_partition
from stream.joining.task_settings import TaskSettings
from stream.learners import create
from stream.recovery.digests import state_digest, task_digest
from stream.recovery.journal import JournalStep
from stream.recovery.journal_reading import last_step
from stream.recovery.model_snapshot import ModelSnapshot, decode_model, read_model_snapshots
from stream.recovery.recover import Recovered, rebuild
from stream.recovery.snapshot_format import FORMAT
from stream.sharing.replica import Replica
from stream.verifying.audit import Finding, audit_partition
from stream.verifying.model_files import Model as Model
from stream.verifying.model_files import compare_models, read_model
from stream.verifying.models import export_model
from stream.verifying.reapply import Replay, replay_journal
from stream.verifying.replicas import fresh_replica
from stream.verifying.shared_log import LogFinding, audit_log
from stream.wire.codec import HEADERS
from stream.wire.records import Headers, Record, TopicPartition
from stream.wire.topics import Topics
from tests.golden.stored import Golden


class Loaded:
    """A golden pipeline in an embedded broker: each record at its offset and with its append time."""

    def __init__(self, golden: Golden) -> None:
        self.golden = golden
        self.clock = VirtualClock()
        self.broker = EmbeddedBroker(self.clock)
        self.topics = Topics.with_prefix(golden.prefix)
        self.broker.create_topics(self.topics.specs(golden.partitions, shares_model=golden.shares_model))
        self._producer = self.broker.producer()
        self._gaps = self.broker.transactional_producer("gaps")
        self._next = dict.fromkeys(golden.ends, 0)
        for topic, partition, offset, append_ms, key, value, headers in sorted(
            golden.records, key=lambda record: (record.append_ms, record.topic, record.partition, record.offset)
        ):
            self._leave_out(topic, partition, offset)
            self.clock.advance_to(append_ms)
            self._producer.send(topic, partition, key, value, headers)
            self._next[topic, partition] = offset + 1
        for (topic, partition), end in golden.ends.items():
            self._leave_out(topic, partition, end)

    def _leave_out(self, topic: str, partition: int, up_to: int) -> None:
        """Use up offsets at which no record is seen: of an aborted transaction, where a Kafka also has its markers."""
        for _ in range(self._next[topic, partition], up_to):
            self._gaps.begin()
            self._gaps.send(topic, partition, None, b"gap")
            self._gaps.abort()

    def records(self, topic: str, partition: int) -> Iterator[Record]:
        """What can be read of a partition."""
        return read_partition(self.broker, TopicPartition(topic, partition))

    def rebuild(self, partition: int, *, snapshots: bool = True, until: int | None = None) -> Recovered:
        """The task as its topics tell it, under the settings that they hold."""
        return rebuild(self.broker, self.topics, partition, None, snapshots=snapshots, until=until)

    def last_step(self, partition: int) -> JournalStep | None:
        """The newest step of a journal."""
        return last_step(self.broker, TopicPartition(self.topics.journal, partition))

    def audit(self, partition: int) -> Finding:
        """The ledger, recomputed."""
        return audit_partition(self.broker, self.topics, partition)

    def replay(self, partition: int) -> Replay:
        """The whole journal applied again."""
        return replay_journal(self.broker, self.topics, partition)

    def export(self, partition: int, number: int | None = None, version: int | None = None) -> Model:
        """The model, as it is or as it was after a step; of one that tasks share, at a version."""
        return export_model(self.broker, self.topics, partition, number=number, version=version)

    def audit_log(self) -> LogFinding:
        """The log of a shared model beside the journals."""
        return audit_log(self.broker, self.topics, self.golden.partitions)

    def model_snapshot(self) -> ModelSnapshot:
        """The newest one of a shared model."""
        newest = read_model_snapshots(self.broker, self.topics).newest
        assert newest is not None, "no snapshot was taken of the model"
        return decode_model(newest)

    def model_of_whole_log(self) -> Replica:
        """A shared model, from its log alone."""
        replica = fresh_replica(self.rebuild(0).task.settings)
        replica.read(list(self.records(self.topics.updates, 0)))
        return replica

    def learner(self, settings: TaskSettings, *, change_settings: bool = False) -> LearnerProgram:
        """A learner program that goes on here, and takes snapshots often."""
        options = LearnerOptions(instance="golden", snapshot_interval_ms=100)
        return LearnerProgram(
            self.broker, self.topics, settings, options, lambda: self.clock.now_ms, change_settings=change_settings
        )

    def send(self, topic: str, event_id: str, fields: Mapping[str, Any], headers: Headers = HEADERS) -> int:
        """Append an event where its id belongs; the partition."""
        key = event_id.encode()
        partition = partition_for(key, self.golden.partitions)
        self._producer.send(topic, partition, key, json.dumps({"id": event_id, **fields}).encode(), headers)
        return partition


def facts(recovered: Recovered) -> dict[str, Any]:
    """What a task comes to, as JSON. All but the digests are whole numbers and texts, the same on every machine."""
    task = recovered.task
    join = task.join
    return {
        "step": recovered.number,
        "contexts_offset": recovered.contexts_offset,
        "feedback_offset": recovered.feedback_offset,
        "updates": task.updates,
        "decided_at_ms": task.decided_at_ms,
        "watermark_ms": join.watermark_ms,
        "ledger": join.ledger()._asdict(),
        "pending": [[event_id, kept.decided_at_ms, kept.decision.action] for event_id, kept in join.pending.items()],
        "orphans": [
            [event_id, kept.feedback.reward, kept.feedback.label, kept.kept_at_ms, kept.record.offset]
            for event_id, kept in join.orphans.items()
        ],
        "retained": [
            [event_id, str(kept.outcome), kept.reward, kept.settled_at_ms, kept.pending is not None]
            for event_id, kept in join.retained.items()
        ],
        "state_digest": state_digest([task.learner.state()]),
        "task_digest": task_digest(task),
    }


def model_facts(model: Model | ModelSnapshot | Replica) -> dict[str, Any]:
    """What a version of a shared model comes to, as a file, a snapshot or a replica has it."""
    if isinstance(model, Model):
        place, updates, digest = model.meta["position"], model.meta["updates"], model.meta["digest"]
        return {"version": place["version"], "offset": place["offset"], "updates": updates, "sha256": digest}
    state = model.learner if isinstance(model, ModelSnapshot) else model.learner.state()
    return {
        "version": model.version, "offset": model.offset, "updates": model.updates, "sha256": state_digest([state])
    }  # fmt: skip


def overflows(recovered: Recovered) -> dict[str, int]:
    """How often each limit was met."""
    return recovered.task.join.overflows()._asdict()


def same_facts(golden: Golden, found: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """Assert that a task is what was recorded: its counts and its ids everywhere, and to the bit where that is claimed.

    A count that has come with a later version is 0 for what an earlier one wrote. The digest of the whole task is one
    of its snapshot, and so of the snapshots' format.
    """
    exact = {*recorded} - {"ledger", "state_digest", "task_digest"}
    assert {name: found[name] for name in exact} == {name: recorded[name] for name in exact}
    assert {name: count for name, count in found["ledger"].items() if count or name in recorded["ledger"]} == recorded[
        "ledger"
    ]
    if golden.to_the_bit:
        assert found["state_digest"] == recorded["state_digest"]
        if golden.expected["snapshot_format"] == FORMAT:
            assert found["task_digest"] == recorded["task_digest"]


ERROR_MAX = 1e-9
"""Of a learner's state on another kind of processor, where BLAS and libm round otherwise, as a part of an array's
greatest entry (sums that cancel leave a rest of any relative size); far more than some hundred updates add up to."""


def same_state(golden: Golden, found: Model, recorded: Model) -> None:
    """Assert that two models are one: to the bit where that is claimed, else to rounding."""
    if golden.to_the_bit:
        assert [part for part in compare_models(found, recorded) if not part.same] == []
    assert found.state.keys() == recorded.state.keys()
    for name, value in recorded.state.items():
        if isinstance(value, str):
            assert found.state[name] == value
        else:
            array = np.asarray(value)
            error_max = ERROR_MAX * float(np.max(np.abs(array), initial=0.0))
            np.testing.assert_allclose(np.asarray(found.state[name]), array, rtol=0.0, atol=error_max)


def model_file(golden: Golden, partition: int) -> Model:
    """The model that was exported with the recording; its learner must take it."""
    return _taken(golden.path / f"model.{partition}.npz")


def shared_model_file(golden: Golden) -> Model:
    """The past version of a shared model that was exported with the recording; its learner must take it."""
    return _taken(golden.path / "model.npz")


def _taken(path: Path) -> Model:
    model = read_model(path)
    meta = model.meta
    create(meta["learner"], meta["n_classes"], meta["n_features"], **meta["parameters"]).load(model.state)
    return model
