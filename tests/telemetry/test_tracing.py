"""Spans of the gateway and the learner, in the SDK's in-memory exporter."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from consumers.learner.tracing import StepTracing
from producers.gateway.server import Limits
from stream.programs.tracing import traced
from stream.settings.definitions import SettingsError
from stream.settings.sources import given_settings
from stream.telemetry import tracing
from stream.telemetry.tracing import Tracing
from stream.wire.codec import sampled_trace
from stream.wire.records import Headers
from tests.limits import within
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, run_until_idle, small_task
from tests.serving.gateway import FACTS, GatewayClient, a_pipeline, served

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
SAMPLED, UNSAMPLED = (f"00-{TRACE:032x}-{SPAN:016x}-{flags}" for flags in ("01", "00"))


class Spans:
    """The finished spans."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(sampler))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    def names(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.of(name)
        return span


def trace_id(span: ReadableSpan) -> int:
    return place_of(span)[0]


def parent_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def place_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


@contextmanager
def traced_gateway(spans: Spans, *, timeout_s: float = 20.0, learns: bool = True) -> Iterator[GatewayClient]:
    pipeline = a_pipeline()
    pipeline.learner._tracing = StepTracing(spans.tracing, now_ns(), pipeline.topics.feedback)
    facts = FACTS._replace(class_names=None)
    with served(
        pipeline, facts=facts, tracing=spans.tracing, timeout_s=timeout_s, learns=learns, limits=Limits()
    ) as gateway:
        yield gateway


def now_ns() -> Callable[[], int]:
    """Return a clock that advances by 1 ms with each call."""
    times = iter(range(10**18, 2 * 10**18, 10**6))
    return lambda: next(times)


def test_decision_and_feedback_are_two_linked_traces() -> None:
    spans = Spans()
    with traced_gateway(spans) as gateway:
        gateway.decide("visit-1")
        gateway.ask("POST", "/v1/feedback", {"id": "visit-1", "reward": 1})
        gateway.pipeline.example("visit-1")
        (prediction,) = gateway.pipeline.records(gateway.pipeline.topics.predictions)
    requested, decided = sorted(spans.of("onebit.decide"), key=lambda span: span.kind.name, reverse=True)
    reported, learned = sorted(spans.of("onebit.feedback"), key=lambda span: span.kind.name, reverse=True)
    appends = {parent_of(span) for span in spans.of("onebit.append")}
    steps = {trace_id(span): span for span in spans.of("onebit.step")}
    assert (requested.parent, reported.parent, appends) == (None, None, {place_of(requested), place_of(reported)})
    assert (parent_of(decided), parent_of(learned)) == (place_of(requested), place_of(reported))
    assert (links_of(requested), links_of(reported)) == (set(), {place_of(requested)})
    assert links_of(decided) == {place_of(steps[trace_id(requested)])}
    assert links_of(learned) == {place_of(steps[trace_id(reported)]), place_of(requested)}
    assert {parent_of(span) for span in spans.of("onebit.commit")} == {place_of(step) for step in steps.values()}
    assert sampled_trace(prediction.headers) == b"00-%032x-%016x-01" % place_of(requested)


def test_trace_of_the_client_is_continued() -> None:
    spans = Spans(TraceIdRatioBased(0.0))
    with traced_gateway(spans) as gateway:
        gateway.decide("visit-1", traceparent=SAMPLED, tracestate="vendor=a")
        (context,) = gateway.pipeline.records(gateway.pipeline.topics.contexts)
    requested = next(span for span in spans.of("onebit.decide") if span.kind.name == "SERVER")
    assert parent_of(requested) == (TRACE, SPAN)
    headers = dict(context.headers)
    assert headers["tracestate"] == b"vendor=a"
    assert headers["traceparent"] == b"00-%032x-%016x-01" % place_of(requested)


@pytest.mark.parametrize("traceparent", [None, UNSAMPLED])
def test_request_that_is_not_sampled_has_no_spans_and_unchanged_headers(traceparent: str | None) -> None:
    spans = Spans(TraceIdRatioBased(0.0))
    given = {} if traceparent is None else {"traceparent": traceparent}
    with traced_gateway(spans) as gateway:
        gateway.decide("visit-1", **given)
        gateway.ask("POST", "/v1/feedback", {"id": "visit-1", "reward": 1}, given)
        (context,) = gateway.pipeline.records(gateway.pipeline.topics.contexts)
    assert spans.names() == []
    assert {name: value.decode() for name, value in context.headers if name == "traceparent"} == given


def test_each_context_of_a_batch_has_its_own_trace() -> None:
    spans = Spans()
    with traced_gateway(spans) as gateway:
        gateway.ask("POST", "/v1/decide", [{"id": f"visit-{number}", "x": [1.0, 0.5]} for number in range(3)])
    requested = [span for span in spans.of("onebit.decide") if span.kind.name == "SERVER"]
    assert len({trace_id(span) for span in requested}) == 3


@pytest.mark.parametrize(("x", "status", "code"), [([1.0, 0.5], 504, StatusCode.ERROR), ([1.0], 422, StatusCode.UNSET)])
def test_span_of_a_failed_request_has_its_status(x: list[float], status: int, code: StatusCode) -> None:
    spans = Spans()
    with traced_gateway(spans, timeout_s=0.1, learns=False) as gateway:
        assert gateway.decide("visit-1", x).status == status
    requested = spans.one("onebit.decide")
    assert (dict(requested.attributes or {}), requested.status.status_code) == (
        {"http.response.status_code": status},
        code,
    )


def send(pipeline: Pipeline, topic: str, value: bytes, headers: Headers) -> None:
    producer = pipeline.broker.producer()
    producer.send(topic, 0, None, value, headers)
    producer.flush()


def test_step_links_to_the_traces_of_its_records() -> None:
    spans, pipeline = Spans(), Pipeline(small_task())
    program = pipeline.learner()
    program._tracing = StepTracing(spans.tracing, now_ns(), TOPICS.feedback)
    for number in range(3):
        trace = f"00-{number + 1:032x}-{number + 7:016x}-0{number and 1}".encode()
        send(pipeline, TOPICS.contexts, context_value(f"visit-{number}"), (("traceparent", trace),))
    run_until_idle(program)
    step, commit = spans.one("onebit.step"), spans.one("onebit.commit")
    decided = [
        (parent_of(span), (span.attributes or {})["messaging.kafka.offset"]) for span in spans.of("onebit.decide")
    ]
    assert (parent_of(step), links_of(step)) == ((2, 8), {(3, 9)})  # visit-0 is not sampled
    assert decided == [((2, 8), 1), ((3, 9), 2)]
    assert step.start_time is not None
    assert commit.start_time is not None
    assert step.start_time < commit.start_time
    assert step.end_time == commit.end_time


def test_records_without_a_sampled_trace_have_no_spans() -> None:
    spans, pipeline = Spans(), Pipeline(small_task())
    program = pipeline.learner()
    program._tracing = StepTracing(spans.tracing, now_ns(), TOPICS.feedback)
    send(pipeline, TOPICS.contexts, context_value("visit-1"), (("traceparent", UNSAMPLED.encode()),))
    send(pipeline, TOPICS.feedback, feedback_value("visit-1", 1), (("traceparent", b"none"),))
    run_until_idle(program)
    assert (pipeline.ledger().matched, spans.names()) == (1, [])


def test_sampled_trace_is_that_of_a_valid_header_with_the_flag() -> None:
    given: list[tuple[Headers, bool]] = [
        ((), False),
        ((("traceparent", SAMPLED.encode()),), True),
        ((("onebit-version", b"1"), ("traceparent", SAMPLED[:-1].encode() + b"3")), True),
        ((("traceparent", UNSAMPLED.encode()),), False),
        ((("tracestate", SAMPLED.encode()),), False),
        ((("traceparent", b""),), False),
        ((("traceparent", SAMPLED.encode() + b"-01"),), False),
    ]
    assert [sampled_trace(headers) is not None for headers, _ in given] == [is_sampled for _, is_sampled in given]


def test_variables_name_the_service_and_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    names = []
    for variable in ("", "checkout"):
        monkeypatch.setenv("OTEL_SERVICE_NAME", variable)
        names.append(Tracing.from_environment("onebit-serve")._provider.resource.attributes["service.name"])
    assert names == ["onebit-serve", "checkout"]


def test_missing_exporter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "unknown")
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER"), traced(given_settings({"traces": True}), "serve"):
        pass


def test_warnings_of_the_sdk_are_logged_as_warnings_of_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with traced(given_settings({"traces": True}), "serve"):
        logging.getLogger("opentelemetry.exporter").warning("the collector is unavailable")
    assert [(record.name, record.levelno) for record in caplog.records] == [("onebit", logging.WARNING)]


def test_end_of_the_program_does_not_wait_for_an_unavailable_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 0.01)
    ended = threading.Event()

    class Unavailable(SpanProcessor):
        def shutdown(self) -> None:
            ended.wait(60)

    provider = TracerProvider()
    provider.add_span_processor(Unavailable())
    with within(30):
        Tracing(provider).close()
    ended.set()


def test_missing_package_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "stream.telemetry.tracing")
    with (
        pytest.raises(SettingsError, match=r"onebit\[otel\]"),
        traced(given_settings({"traces": True}), "serve"),
    ):
        pass
