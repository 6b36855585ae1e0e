"""Onebit's programs, each in its own process, on a real Kafka broker.

The tests stop, kill and freeze the programs, and stop the broker.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from onebit.testing.processes import wait_for
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import connect
from stream.kafka.reading import read_partition
from stream.reporting.runs import read_runs
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.limits import within
from tests.processes import Pipeline, free_port

EVENTS = 2_000
STREAM = {"data": "synsep", "events": EVENTS, "rate": 400, "delay": "exponential:200ms", "window": "3s", "seed": 3}
"""Five seconds of events, which is enough time to kill a program."""

GRADED = STREAM | {"data": "ratings", "rewards": "graded", "reward_range": "1,5"}
"""The same with graded rewards."""

OFFERS = STREAM | {"data": "catalogue-graded", "rewards": "graded"}
"""The same with graded rewards of actions with features."""

MakePipeline = Callable[..., Pipeline]


@pytest.fixture
def pipeline(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Iterator[MakePipeline]:
    """A function that creates a pipeline and its topics on this test run's Kafka broker."""
    made: list[Pipeline] = []

    def make(**settings: object) -> Pipeline:
        made.append(Pipeline(kafka.bootstrap, prefix, tmp_path, **settings))
        made[-1].create_topics()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_partition_ending_with_a_commit_marker_is_read_without_waiting(
    kafka: LocalKafka, prefix: str, client: str
) -> None:
    broker = connect(kafka.bootstrap, client=client)
    topics = Topics.with_prefix(prefix)
    broker.create_topics(topics.specs(1))
    producer = broker.transactional_producer(prefix)
    producer.begin()
    for _ in range(5_000):  # one poll returns all records, so that the next poll finds only the commit marker
        producer.send(topics.examples, 0, b"key", b"value")
    producer.commit()
    tp = TopicPartition(topics.examples, 0)
    wait_for(lambda: broker.ends([tp])[tp].stable > 5_000, "the marker is written")
    with within(10):
        assert len(list(read_partition(broker, tp))) == 5_000
    broker.close()


def test_read_to_end_can_wait_for_an_open_transaction(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(kafka.bootstrap, client=client)
    tp = TopicPartition(Topics.with_prefix(prefix).examples, 0)
    broker.create_topics(Topics.with_prefix(prefix).specs(1))
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(tp.topic, 0, b"key", b"value")
    producer.flush()
    assert list(read_partition(broker, tp)) == []
    assert list(read_partition(broker, tp, open_ms=300)) == []
    reading = read_partition(broker, tp, open_ms=20_000)
    commit = threading.Timer(1.0, producer.commit)
    commit.start()
    assert [record.value for record in reading] == [b"value"]
    commit.join()
    broker.close()


def test_run_on_kafka_starts_all_programs_and_reports(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, data="optdigits", partitions=2)
    flags = "--events 1500 --rate 500 --delay exponential:100ms --window 2s --loss 0.02 --duplicates 0.02"
    page = tmp_path / "page.html"
    run = pipeline.start(
        "run", "--kafka", "--bootstrap", kafka.bootstrap, "--json", "--report", str(page), *flags.split()
    )
    assert run.wait() == 0, run.said()
    assert f"onebit verify --bootstrap {kafka.bootstrap} --topic-prefix {prefix}" in run.said()
    report = json.loads(run.said().splitlines()[-1])
    settled = {
        "decided": 1_500, "pending": 0, "malformed": 0, "ledger_ok": True, "data": "optdigits", "model": "shared",
    }  # fmt: skip
    assert {name: report[name] for name in settled} == settled
    (replica,) = report["replicas"]
    assert (replica["version"], replica["sha256"]) == (report["model_version"], report["state_sha256"])
    assert report["model_behind"]["max"] > 0
    assert report["matched"] + report["expired"] == 1_500
    assert report["expired"] > 0
    assert report["duplicates"] > 0
    assert 0 < report["mistakes"] < 1_250  # 1,350 are expected without learning; the replay waits for the learner
    (saved,) = read_runs(page)
    assert saved.latency is not None
    assert saved.latency_counts is not None
    assert (saved.latency_counts.of, saved.latency_counts.counts.size) == ("decision", 1_500)
    pipeline.assert_every_context_is_decided_and_settled_once(1_500)


def test_run_on_kafka_restarts_a_learner_whose_session_timed_out(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, **STREAM, partitions=2, model="own")
    run = pipeline.start("run", "--kafka", "--bootstrap", kafka.bootstrap, "--json", "--no-report")
    run.wait_until_it_says("topics .* on")
    wait_for(lambda: child(run.process.pid, "learn") is not None, "the learner is started")
    learner = child(run.process.pid, "learn")
    assert learner is not None
    with pipeline.watch() as watch:
        watch.wait_until_decided(EVENTS // 4)
        os.kill(learner, signal.SIGSTOP)
        time.sleep(4.5)  # longer than the session of 3 s
        os.kill(learner, signal.SIGCONT)
    assert run.wait() == 0, run.said()
    assert "restarting" in run.said()
    report = json.loads(run.said().splitlines()[-1])
    assert (report["model"], report["decided"], report["ledger_ok"]) == ("own", EVENTS, True)
    pipeline.assert_every_context_is_decided_and_settled_once(EVENTS)


def child(parent: int, command: str) -> int | None:
    """Return the ID of the child process that runs a command."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0{command}\0".encode()):
            return int(pid)
    return None


def test_every_record_of_another_client_is_counted(pipeline: MakePipeline, kafka: LocalKafka, client: str) -> None:
    ours = pipeline(
        n_classes=3, n_features=4, window="4s", orphan_window="8s", partitions=2, model="own", client=client
    )
    topics = ours.topics
    learner = ours.start("learn", "--learner", "banditron")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=0)
    dead: Counter[tuple[str, int, int, bytes | None, bytes | None, str]] = Counter()

    def send(topic: str, key: str | None, value: bytes | None, *, dies: str | None = None) -> None:
        """Send a record with this key, as any client would. `dies` is the kind of the expected dead letter, if any."""
        encoded = None if key is None else key.encode()
        sent = producer.send(topic, value, encoded).get(20)
        if dies is not None:
            dead[topic, sent.partition, sent.offset, encoded, value, dies] += 1

    def context(event_id: str) -> None:
        send(topics.contexts, event_id, json.dumps({"id": event_id, "x": {"i": [0, 2]}}).encode())

    def feedback(event_id: str, reward: int, *, dies: str | None = None) -> None:
        send(topics.feedback, event_id, json.dumps({"id": event_id, "reward": reward}).encode(), dies=dies)

    with ours.watch() as watch:
        learner.wait_until_it_says("started as instance")  # feedback waits at most 8 s for its context
        feedback("early", 1)
        feedback("early", 0)  # contradicts the first feedback, although no decision exists yet
        feedback("nobody", 1, dies="orphan")
        watch.wait_until(lambda ledger: ledger.feedback == 3, "the early feedback is applied")
        for event_id in ("early", "a", "b", "c", "d", "a"):  # the second a is a duplicate
            context(event_id)
        for key, value in (
            ("bad", b"{"),
            ("bad", b""),
            ("bad", None),
            ("bad", b'{"id":"bad","x":{"i":[4]}}'),  # there are 4 features: 0 to 3
            ("bad", b'{"id":"bad","x":{"i":[2,1]}}'),
            ("bad", b'{"id":"bad","x":[NaN,0,0,0]}'),
            ("bad", b'{"id":"other","x":{"i":[1]}}'),  # the id differs from the key
            ("x" * 300, b'{"id":"' + b"x" * 300 + b'","x":{"i":[1]}}'),
            (None, b'{"x":{"i":[1]}}'),
        ):
            send(topics.contexts, key, value, dies="malformed")
        for value in (b"no", None, b'{"id":"a","reward":2}', b'{"id":"a","reward":"yes"}', b'{"id":"a"}', b"[]"):
            send(topics.feedback, "a", value, dies="malformed")
        watch.wait_until(lambda ledger: ledger.contexts == 15 and ledger.feedback == 9, "all records are applied")
        feedback("a", 1)
        feedback("a", 1)  # a duplicate
        feedback("a", 0)  # a conflict
        feedback("d", 0)
        watch.wait_until(lambda ledger: ledger.expired == 2, "b and c have expired")
        feedback("b", 1)  # late
        watch.wait_until(lambda ledger: ledger.orphans_dropped == 1, "the orphan is dropped")
        feedback("waits", 0)
        watch.wait_until(lambda ledger: ledger.feedback == 15, "all feedback is applied")
    producer.close()
    assert learner.stop() == 0

    found = ours.verify()
    assert found["ok"], found
    ledgers = [Ledger(**partition["audited"]) for partition in found["partitions"]]
    assert ledgers[0] + ledgers[1] == Ledger(
        contexts=15, decided=5, context_duplicates=1, context_malformed=9,
        feedback=15, matched=3, expired=2, pending=0, late=1, feedback_duplicates=3, conflicts=2, orphans_waiting=1,
        orphans_dropped=1, feedback_malformed=6,
    )  # fmt: skip
    letters: Counter[tuple[str, int, int, bytes | None, bytes | None, str]] = Counter()
    for letter in ours.committed_records(topics.dead_letter):
        headers = {name: content.decode() for name, content in letter.headers}
        partition, offset = int(headers["onebit-partition"]), int(headers["onebit-offset"])
        letters[headers["onebit-topic"], partition, offset, letter.key, letter.value, headers["onebit-kind"]] += 1
        assert letter.partition == partition
        assert len(headers["onebit-reason"]) > 10
    assert letters == dead
    outcomes = {
        (example["id"], example["outcome"], example["reward"])
        for example in (json.loads(record.value) for record in ours.committed_records(topics.examples))
    }
    assert outcomes == {
        ("early", "matched", 1), ("a", "matched", 1), ("d", "matched", 0),
        ("b", "expired", None), ("c", "expired", None),
    }  # fmt: skip


def test_sigterm_ends_every_program_with_exit_code_0(pipeline: MakePipeline, client: str) -> None:
    ours = pipeline(
        **STREAM | {"rate": 60}, partitions=2, model="own", client=client
    )  # the replay must run longer than the learner
    learner, feedback = ours.start("learn"), ours.start("feedback")
    learner.wait_until_it_says("partition 1: decided")  # with a cold cache, after the kernels are compiled
    replay = ours.start("replay")
    with ours.watch() as watch:
        watch.wait_until_decided(EVENTS // 10)
        with within(10):
            assert learner.stop() == 0, learner.said()
        assert "stopping: completing the open transaction" in learner.said()
        assert watch.open_transactions() == []
        wait_for(lambda: watch.ledger() == watch.ledger(), "the journal is read")
        inputs = [TopicPartition(topic, n) for n in range(2) for topic in (ours.topics.contexts, ours.topics.feedback)]
        committed = watch.broker.committed(f"{ours.topics.contexts.removesuffix('contexts')}learner", inputs)
        assert [committed[tp] for tp in inputs] == [
            offset for number in range(2) for offset in watch.applied_to(number)
        ]
        for program in (feedback, replay):
            assert program.stop() == 0, program.said()
    found = ours.verify()
    assert found["ok"], found
    assert sum(partition["audited"]["pending"] for partition in found["partitions"]) > 0

    again = [ours.start("learn"), ours.start("feedback"), ours.start("replay", "--resume", "--rate", "1000")]
    assert again[2].wait() == 0, again[2].said()
    ours.assert_every_context_is_decided_and_settled_once(EVENTS)


def test_learner_waiting_for_a_broker_stops_immediately_on_sigterm(tmp_path: Path) -> None:
    learner = Pipeline(f"127.0.0.1:{free_port()}", "none.", tmp_path).start("learn", "--connect-timeout", "1m")
    learner.wait_until_it_says("waiting for Kafka")
    with within(10):
        assert learner.stop() == 0, learner.said()


def test_programs_continue_after_a_kafka_restart(tmp_path: Path, client: str) -> None:
    home, port = tmp_path / "kafka", free_port()
    ready = tmp_path / "ready"
    events = EVENTS // 2
    slow = STREAM | {"events": events, "rate": 150, "client": client}  # the replay must not end before the restart
    pipeline = Pipeline(local_kafka.start(port, home).bootstrap, "run.", tmp_path, **slow, ready_file=ready)
    try:
        pipeline.create_topics()
        programs = [pipeline.start(name) for name in ("learn", "feedback")]
        programs[0].wait_until(ready.exists, "the learner is ready")  # the learner must be ready before Kafka stops
        programs.append(pipeline.start("replay"))
        with pipeline.watch() as watch:
            watch.wait_until_decided(EVENTS // 20)
            local_kafka.stop(home)
            time.sleep(2)  # long enough for the programs to find the port closed
            assert [program.process.poll() for program in programs] == [None] * 3
            local_kafka.start(port, home)
            watch.wait_until_decided(events)
        assert programs[2].wait() == 0, programs[2].said()
        pipeline.assert_every_context_is_decided_and_settled_once(events)
        assert [program.stop() for program in programs[:2]] == [0, 0]
    finally:
        pipeline.close()
        local_kafka.stop(home)


@pytest.mark.parametrize("settings", [GRADED, OFFERS], ids=["classes", "actions"])
def test_repeatedly_killed_programs_decide_and_settle_every_context_once(
    pipeline: MakePipeline, client: str, settings: dict[str, object]
) -> None:
    ours = pipeline(**settings, client=client)
    with ours.watch() as watch:
        for decided in (300, 900):
            learner, feedback = ours.start("learn"), ours.start("feedback")
            learner.wait_until_it_says("started as instance")
            feedback.wait_until_it_says("feedback on")
            replay = ours.start("replay", "--resume")
            watch.wait_until_decided(decided)
            matched = watch.ledger().matched
            watch.wait_until(lambda ledger: ledger.matched > matched, "feedback is matched")  # noqa: B023
            for program in (learner, feedback, replay):
                program.kill()
        ours.start("feedback")
        replay = ours.start("replay", "--resume")
        for decided in (1_200, 1_600):
            learner = ours.start("learn")
            watch.wait_until_decided(decided)
            learner.kill()
        ours.start("learn")
        assert replay.wait() == 0, replay.said()
        ours.assert_every_context_is_decided_and_settled_once(EVENTS)
        sent_again = "feedback that was sent but not committed before the kill is sent again"
        watch.wait_until(lambda ledger: ledger.feedback_duplicates > 0, sent_again)
    lowest, highest = (0.0, 1.0) if settings is OFFERS else (1.0, 5.0)
    assert lowest < ours.verify("--replay")["mean_reward"] < highest


def test_resumed_learner_with_timed_out_session_is_fenced_and_writes_nothing(
    pipeline: MakePipeline, client: str
) -> None:
    ours = pipeline(**STREAM, client=client)
    ours.start("feedback")
    ours.start("replay")
    with ours.watch() as watch:
        zombie = ours.start("learn")
        watch.wait_until_decided(300)
        zombie.signal(signal.SIGSTOP)
        frozen_s = time.monotonic()
        ours.start("learn")
        watch.wait_until_decided(EVENTS * 3 // 4)
        wait_for(lambda: time.monotonic() - frozen_s > 4, "the 3-second session has timed out")
        zombie.signal(signal.SIGCONT)
        assert zombie.wait() == 3, zombie.said()
    assert "was replaced by a newer process" in zombie.said()
    assert "any uncommitted step was discarded" in zombie.said()
    assert "--instance" in zombie.said()
    ours.assert_every_context_is_decided_and_settled_once(EVENTS)


@pytest.mark.parametrize(
    ("others", "frozen_s"),
    [(0, 5), (1, 20)],  # both exceed the session timeout; 20 s also exceeds the request timeout
)
def test_learner_with_timed_out_session_is_fenced_even_without_a_successor(
    pipeline: MakePipeline, client: str, others: int, frozen_s: int
) -> None:
    ours = pipeline(**STREAM, partitions=2, model="own", client=client)
    ours.start("feedback")
    ours.start("replay")
    with ours.watch() as watch:
        zombie = ours.start("learn", "--instance", "zombie")
        names = [f"other-{number}" for number in range(others)]
        other = [ours.start("learn", "--instance", name) for name in names]
        watch.wait_until_decided(300)
        watch.wait_until_assigned([*names, "zombie"])
        # The other learner may have made these decisions. A learner without a partition cannot be fenced.
        if others:
            zombie.wait_until_it_says(r"recovering partition \d|partition \d+: decided")
        zombie.signal(signal.SIGSTOP)
        time.sleep(frozen_s)
        assert watch.members() == names
        ended = len(ours.committed_records(ours.topics.journal))
        zombie.signal(signal.SIGCONT)
        assert zombie.wait() == 3, zombie.said()
        assert "was removed from group" in zombie.said()
        assert "any uncommitted step was discarded" in zombie.said()
        if not others:  # each task may complete a commit that was in progress
            assert len(ours.committed_records(ours.topics.journal)) <= ended + 2
        ours.start("learn", "--instance", "zombie")
        ours.assert_every_context_is_decided_and_settled_once(EVENTS)
        assert [program.process.poll() for program in other] == [None] * others
