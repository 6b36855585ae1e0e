"""Snapshots, recovery and models as of earlier steps, on a real Kafka broker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumers.learner import LearnerOptions, LearnerProgram
from producers.datasets.synthetic import synsep
from stream.cli.app import app
from stream.devkafka.local_kafka import LocalKafka
from stream.journal.commit import COMMIT_STEPS
from stream.journal.recover import rebuild
from stream.kafka.connection import connect
from stream.kafka.port import Broker
from stream.snapshots.state import task_digest
from stream.task.settings import TaskSettings
from stream.verifying.model_files import ModelError
from stream.verifying.reapply import replay_journal
from stream.wire import codec
from stream.wire.records import Feedback, TopicPartition
from stream.wire.topics import Topics
from tests.pipeline import CrashError
from tests.processes import CLIENTS, Pipeline

TASK = TaskSettings("soba", 2, 400)
"""Full SOBA with 800 weights. The learner's state is 5.5 MB in twelve chunks."""


@pytest.fixture
def broker(kafka: LocalKafka, client: str) -> Iterator[Broker]:
    made = connect(kafka.bootstrap, client=client)
    yield made
    made.close()


def send_events(broker: Broker, topics: Topics, name: str, count: int) -> None:
    dataset = synsep(1)
    producer = broker.producer()
    for number in range(count):
        event_id = f"{name}-{number}"
        x = codec.encode_context(event_id, dataset.row(number).x)
        producer.send(topics.contexts, 0, event_id.encode(), x, codec.HEADERS)
    producer.flush()
    for number in range(count):
        event_id = f"{name}-{number}"
        answer = codec.encode_feedback(Feedback(event_id, number % 2))
        producer.send(topics.feedback, 0, event_id.encode(), answer, codec.HEADERS)
    producer.close()


class Kill:
    """Crashes a learner after the given step in a commit, if this commit writes the nth chunk of a snapshot."""

    def __init__(self, number: int, nth: int) -> None:
        self.number = number
        self.nth = nth
        self.program: LearnerProgram | None = None

    def __call__(self, reached: int) -> None:
        writing = None if self.program is None else self.program._snapshots._writing
        if reached == self.number and writing is not None and writing[1].count >= self.nth:
            raise CrashError


def work_on(program: LearnerProgram, broker: Broker, topics: Topics, name: str) -> None:
    """Run the learner while new events arrive at intervals."""
    for round_number in range(400):
        if round_number % 20 == 0:
            send_events(broker, topics, f"{name}-{round_number}", 10)
        program.step(50)


def test_learner_killed_while_writing_a_snapshot_recovers_bit_for_bit(broker: Broker, prefix: str) -> None:
    topics = Topics.with_prefix(prefix)
    broker.create_topics(topics.specs(1))
    for number, nth in [*((number, 12) for number in COMMIT_STEPS), (5, 1), (6, 1)]:
        kill = Kill(number, nth)
        options = LearnerOptions(group=prefix, records_max=20, snapshot_interval_ms=1, snapshot_bytes_max=1_500_000)
        kill.program = LearnerProgram(broker, topics, TASK, options, lambda: time.monotonic_ns() // 1_000_000)
        kill.program._crash_point = kill
        with pytest.raises(CrashError):
            work_on(kill.program, broker, topics, f"{number}-{nth}")
    options = LearnerOptions(group=prefix, snapshot_interval_ms=0)
    last = LearnerProgram(broker, topics, TASK, options, lambda: time.monotonic_ns() // 1_000_000)
    contexts = TopicPartition(topics.contexts, 0)
    deadline_s = time.monotonic() + 60
    while not (last.tasks and last._running[0].contexts.offset >= broker.ends([contexts])[contexts].stable - 1):
        last.step(100)
        assert time.monotonic() < deadline_s
    for _ in range(5):
        last.step(50)
    recovered = rebuild(broker, topics, 0, TASK)
    assert recovered.stored.newest is not None
    assert task_digest(recovered.task) == task_digest(last.tasks[0])
    replay = replay_journal(broker, topics, 0)
    assert replay.ok, replay
    last.close()


def test_models_are_exported_compared_and_imported_by_the_commands(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    settings = {"data": "synsep", "events": 600, "rate": 400, "delay": "exponential:50ms", "snapshot_interval": "500ms"}
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, **settings)
    pipeline.create_topics()
    learner, feedback = pipeline.start("learn"), pipeline.start("feedback")
    assert pipeline.start("replay").wait() == 0
    pipeline.verify("--wait-events", "600")
    assert (learner.stop(), feedback.stop()) == (0, 0)
    found = pipeline.verify("--replay")
    assert found["ok"]
    assert found["replay"][0]["snapshot"] > 0
    early, late, again = (str(tmp_path / name) for name in ("early.npz", "late.npz", "again.npz"))
    onebit = CliRunner(
        env={"ONEBIT_BOOTSTRAP": kafka.bootstrap, "ONEBIT_CLIENT": CLIENTS[0], "ONEBIT_TOPIC_PREFIX": prefix}
    )
    for arguments in (["--journal", "3", "--out", early], ["--out", late]):
        assert onebit.invoke(app, ["model", "export", *arguments]).exit_code == 0
    done = onebit.invoke(app, ["model", "export", "--at", "2999-01-01T00:00Z", "--out", again, "--json"])
    exported = json.loads(done.stdout.splitlines()[-1])
    assert exported["digest"] == found["replay"][0]["state"]
    assert onebit.invoke(app, ["model", "diff", late, again]).exit_code == 0
    assert onebit.invoke(app, ["model", "diff", early, late]).exit_code == 1
    raised = onebit.invoke(app, ["model", "import", late])
    assert isinstance(raised.exception, ModelError)
    assert "expected an empty journal" in str(raised.exception)
    second = Pipeline(kafka.bootstrap, f"{prefix}second.", tmp_path, **{**settings, "events": 200})
    second.create_topics()
    done = onebit.invoke(app, ["model", "import", late, "--topic-prefix", f"{prefix}second."])
    assert done.exit_code == 0, done.exception
    learner, feedback = second.start("learn"), second.start("feedback")
    assert second.start("replay").wait() == 0
    assert second.verify("--wait-events", "200", "--replay")["ok"]
    assert (learner.stop(), feedback.stop()) == (0, 0)
    broker = second.broker()
    (first, *_) = rebuild(broker, second.topics, 0, None, until=1, snapshots=False)
    assert first.version >= exported["updates"] > 0
    broker.close()
