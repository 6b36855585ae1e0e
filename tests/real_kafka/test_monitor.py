"""`onebit monitor` with a real Kafka broker: repeated kills, aborted transactions and a learner's death."""

from pathlib import Path

from onebit.testing.processes import Program, wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.port import Broker
from stream.learners import create
from stream.recovery import steps as journal
from stream.recovery.model_files import FILE_FORMAT, Model, write_model
from stream.recovery.state import state_digest
from stream.recovery.steps import JournalStep, encode_step
from stream.wire.codec import HEADERS
from stream.wire.ledger import Ledger
from stream.wire.topics import Topics
from tests.limits import within
from tests.monitored import decided_in_windows, reported
from tests.monitoring.test_state import example, prediction
from tests.pipeline import context_value, feedback_value, small_task
from tests.processes import Pipeline, free_port

KILLS = 3
EVENTS = 40
"""Number of contexts between two kills."""


def write(broker: Broker, topics: Topics, first: int, events: int) -> None:
    """Write contexts and their feedback, and an aborted transaction with records that the monitor must not count."""
    producer = broker.producer()
    for number in range(first, first + events):
        event_id = f"event-{number}"
        producer.send(topics.contexts, 0, event_id.encode(), context_value(event_id, number % 4), HEADERS)
        producer.send(topics.feedback, 0, event_id.encode(), feedback_value(event_id, number % 2), HEADERS)
    producer.close()
    aborted = broker.transactional_producer("somebody else")
    aborted.begin()
    for number in range(events):
        for topic, record in ((topics.predictions, prediction(number)), (topics.examples, example(number))):
            aborted.send(topic, 0, b"aborted", record.value, HEADERS)
    aborted.flush()
    aborted.abort()
    aborted.close()


def a_model(folder: Path) -> Path:
    """Return the path of a file with an untrained model."""
    state, path = create("banditron", 3, 4).state(), folder / "untrained.npz"
    meta = {
        "format": FILE_FORMAT, "digest": state_digest([state]), "learner": "banditron", "n_classes": 3,
        "n_features": 4, "parameters": {}, "scale": "none", "open_classes": False,
        "rewards": "bit", "reward_range": "0,1", "actions": None,
    }  # fmt: skip
    write_model(path, Model(meta, state))
    return path


def test_repeatedly_killed_monitor_agrees_with_verify_and_detects_a_dead_learner(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    port = free_port()
    pipeline = Pipeline(
        kafka.bootstrap, prefix, tmp_path, learner="banditron", n_classes=3, n_features=4, page_port=port
    )
    try:
        pipeline.create_topics()
        broker = pipeline.broker()
        learner = pipeline.start("learn")
        estimated = (f"model:{a_model(tmp_path)}", "constant:1")
        monitor: Program | None = None
        for kill in range(KILLS + 1):
            write(broker, pipeline.topics, kill * EVENTS, EVENTS)
            monitor = pipeline.start("monitor", *(part for policy in estimated for part in ("--estimate", policy)))
            wait_for(lambda: decided_in_windows(reported(port)) > kill * EVENTS, "new records are read")  # noqa: B023
            if kill < KILLS:
                monitor.kill()
        events = (KILLS + 1) * EVENTS

        def has_read_all() -> bool:
            told_now = reported(port)
            counts = (told_now.get("delays", {}).get("n"), told_now.get("ledger", {}).get("matched"))
            return counts == (events, events) and decided_in_windows(told_now) >= events

        wait_for(has_read_all, "the monitor has read all records", otherwise=lambda: str(reported(port)))
        picture = reported(port)
        found = pipeline.verify("--wait-events", str(events))
        assert found["ok"]
        assert (picture["ledger"]["decided"], picture["ledger"]["matched"]) == (events, events)
        assert decided_in_windows(picture) == events
        assert sum(one["decided"] for one in picture["classes"]) == events
        judged = {one["policy"]: one["n"] for one in picture["estimates"]}
        assert judged == dict.fromkeys(("greedy", "uniform", *estimated), events)
        assert picture["unreadable"] == 0
        assert picture["ledger"] == found["partitions"][0]["audited"]
        wait_for(lambda: reported(port)["condition"] == "idle", "the pipeline is idle")

        learner.kill()
        write(broker, pipeline.topics, events, 1)
        with within(10):  # this takes 3 s on an idle machine
            wait_for(lambda: reported(port)["condition"] == "stuck", "the monitor detects the learner's death")
        waits = "s while 1 context and 1 feedback wait"  # without the ticks that the learner has not read
        wait_for(lambda: waits in reported(port)["why"], waits, otherwise=lambda: str(reported(port)))
        assert monitor is not None
        assert monitor.stop() == 0
        broker.close()
    finally:
        pipeline.close()


def test_monitor_with_a_backlog_stops_quickly_and_resumes(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    port, events = free_port(), 12_000
    pipeline = Pipeline(
        kafka.bootstrap, prefix, tmp_path, learner="banditron", n_classes=3, n_features=4, page_port=port
    )
    try:
        pipeline.create_topics()
        broker = pipeline.broker()
        producer = broker.producer()
        # The test writes all records itself, because it does not need a learner.
        settings = small_task().resolved()
        first = JournalStep(1, (0, 0), (0, 0), 0, Ledger(), settings=settings)
        producer.send(pipeline.topics.journal, 0, None, encode_step(first), journal.HEADERS)
        for number in range(events):
            for topic, record in (
                (pipeline.topics.predictions, prediction(number)),
                (pipeline.topics.examples, example(number)),
            ):
                producer.send(topic, 0, record.key, record.value, HEADERS)
        producer.close()
        broker.close()
        monitor = pipeline.start("monitor")
        monitor.wait_until(lambda: decided_in_windows(reported(port)) > 0, "the monitor reads records")
        with within(4):  # this takes 1 s on an idle machine
            assert monitor.stop() == 0
        monitor = pipeline.start("monitor")

        def counted() -> tuple[int, int]:
            picture = reported(port)
            return decided_in_windows(picture), picture.get("delays", {}).get("n", 0)

        wait_for(lambda: counted() >= (events, events), "the monitor has read all records")
        assert counted() == (events, events)
        assert monitor.stop() == 0
    finally:
        pipeline.close()
