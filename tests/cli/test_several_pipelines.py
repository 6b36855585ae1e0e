"""`onebit learn` with several topic prefixes runs a learner for each pipeline in one process."""

import logging
import threading
from collections.abc import Callable

import pytest

from consumers.learner.several import PipelineError, run_learners
from producers.data import data_sizes
from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import FencedError
from stream.programs import connection
from stream.programs.process import PIPELINE, announce, monotonic_ms
from stream.settings.sources import given_settings
from stream.telemetry.exposition import exposition
from stream.telemetry.heartbeat import SLOW_MS, Heartbeat, Heartbeats
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.cli.conftest import Onebit
from tests.limits import within
from tests.pipeline import context_value

A, B = Topics.with_prefix("a."), Topics.with_prefix("b.")
SETTINGS = [
    given_settings({"topic_prefix": prefix, "n_classes": 3, "n_features": 4, "learner": ["banditron"]})
    for prefix in ("a.", "b.")
]


class Brokers:
    """A broker for each pipeline. An embedded broker is used by one thread only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of = {"a.": EmbeddedBroker(VirtualClock(1_000)), "b.": EmbeddedBroker(VirtualClock(1_000))}
        self.of["a."].create_topics(A.specs(1))
        monkeypatch.setattr(connection, "connect_to_kafka", lambda *_: self.of[PIPELINE.get()])

    def send_context(self, topics: Topics) -> None:
        producer = self.of[PIPELINE.get()].producer()
        producer.send(topics.contexts, 0, b"visit", context_value("visit"))
        producer.flush()


def _predictions(topics: Topics) -> TopicPartition:
    return TopicPartition(topics.predictions, 0)


def run(stop: Callable[[], bool]) -> None:
    with within(60):
        run_learners(SETTINGS, stop, sizes_of=data_sizes)


def test_pipelines_decide_independently_until_they_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, sent, decided = Brokers(monkeypatch), set[str](), set[str]()
    brokers.of["b."].create_topics(B.specs(1))

    def stop() -> bool:
        topics = Topics.with_prefix(prefix := PIPELINE.get())
        if prefix not in sent:
            sent.add(prefix)
            brokers.send_context(topics)
        if brokers.of[prefix].ends([_predictions(topics)])[_predictions(topics)].stable:
            decided.add(prefix)
        return decided == {"a.", "b."}

    run(stop)
    assert decided == {"a.", "b."}


def test_pipeline_with_an_error_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    brokers, sent = Brokers(monkeypatch), threading.Event()  # the topics of b do not exist

    def stop() -> bool:
        ended = {record.fields["pipeline"] for record in caplog.records if record.levelno == logging.WARNING}  # type: ignore[attr-defined]
        if PIPELINE.get() == "a." and ended == {"b."} and not sent.is_set():
            sent.set()
            brokers.send_context(A)
        tp = _predictions(A)
        return sent.is_set() and brokers.of["a."].ends([tp])[tp].stable > 0

    with pytest.raises(PipelineError) as raised:
        run(stop)
    assert (set(raised.value.errors), raised.value.exit_code) == ({"b."}, ExitCode.USAGE)


def test_exit_code_is_that_of_the_first_error() -> None:
    error = PipelineError({"a.": FencedError("replaced"), "b.": ValueError("a bug")})
    assert (error.exit_code, PipelineError({"b.": ValueError("a bug")}).exit_code) == (
        ExitCode.FENCED,
        ExitCode.CRASHED,
    )


@pytest.mark.parametrize(
    "flags", [("--topic-prefix", "a."), ("--topic-prefix", "b.", "--ready-file", "ready"), ("--topic-prefix", "b c")]
)
def test_settings_that_do_not_support_several_pipelines_are_rejected(onebit: Onebit, flags: tuple[str, ...]) -> None:
    assert onebit("learn", "--topic-prefix", "a.", *flags).code == ExitCode.USAGE


def test_notices_name_the_pipeline_of_their_thread(caplog: pytest.LogCaptureFixture) -> None:
    def work(prefix: str) -> None:
        PIPELINE.set(prefix)
        announce("recovered", step=7)

    caplog.set_level(logging.INFO)
    for prefix in ("", "a."):
        thread = threading.Thread(target=work, args=(prefix,))
        thread.start()
        thread.join()
    found = [(record.getMessage(), record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    assert found == [("recovered", {"step": 7}), ("a.*: recovered", {"step": 7, "pipeline": "a."})]


def test_process_is_ready_if_all_pipelines_are_ready() -> None:
    now_ms = 0
    a, b = (Heartbeat("learner", "1.2.3", lambda: now_ms) for _ in range(2))
    both = Heartbeats({"a.": a, "b.": b})
    a.show("", tuple)
    b.set_unready("ended: the topics do not exist")
    assert (both.alive().ok, both.ready()) == (True, (False, "b.*: ended: the topics do not exist"))
    b.show("", tuple)
    assert both.ready().ok
    now_ms = 10 * SLOW_MS
    a.show("", tuple)
    assert (both.alive().ok, both.ready().ok) == (False, False)


def test_metrics_have_the_pipeline_as_a_label() -> None:
    heartbeats = {name: Heartbeat("learner", "1.2.3", monotonic_ms) for name in ("a.", "b.")}
    heartbeats["a."].show("", tuple)
    lines = exposition(Heartbeats(heartbeats).samples())[1].decode().splitlines()
    ready = [line for line in lines if line.startswith("onebit_ready{")]
    assert ready == ['onebit_ready{pipeline="a."} 1.0', 'onebit_ready{pipeline="b."} 0.0']
