"""OpenTelemetry spans. Only this module imports OpenTelemetry.

A *trace* is the content of a `traceparent` header (W3C Trace Context), as bytes. Spans are created only for sampled
traces, and most of them after the work that they describe, with its times.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from threading import Thread
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stream import __version__
from stream.errors import OnebitError
from stream.wire.records import Headers

_PROPAGATOR = TraceContextTextMapPropagator()
KINDS = {"server": SpanKind.SERVER, "producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER, "": SpanKind.INTERNAL}

CLOSE_S = 3.0
"""Time limit for exporting the remaining spans at the end. A supervisor may kill a process 10 s after its request to
stop."""

ERRORS_FROM = 500
"""Lowest HTTP status that marks a span as an error."""


class ExporterError(OnebitError):
    """The exporter in the environment is not installed."""


class Tracing:
    """Creates spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("onebit", __version__)

    @classmethod
    def from_environment(cls, service: str) -> "Tracing":
        """Create an exporting instance, which the `OTEL_*` variables configure as the SDK defines.

        Args:
            service: The name of the service, unless a variable names it.

        Raises:
            ExporterError: an exporter is not installed.
        """
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        provider = TracerProvider(resource=resource)
        for name in _exporters():
            found = entry_points(group="opentelemetry_traces_exporter", name=name)
            if not found:
                raise ExporterError(
                    f"OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL: exporter {name} is not installed. Install its "
                    "package, or select another exporter"
                )
            provider.add_span_processor(BatchSpanProcessor(next(iter(found)).load()()))
        return cls(provider)

    def close(self) -> None:
        """Export the remaining spans, for at most `CLOSE_S` seconds. After that, they are lost."""
        closing = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def emit(
        self,
        name: str,
        kind: str,
        parent: bytes,
        began_ns: int,
        ended_ns: int,
        attributes: Mapping[str, Any],
        links: Sequence[bytes] = (),
    ) -> bytes:
        """Create a span for completed work and return its trace.

        Args:
            name: The span's name.
            kind: The span's kind: server, producer, consumer, or empty.
            parent: The trace of the parent span.
            began_ns: The time at which the work began, in ns since 1970.
            ended_ns: The time at which it ended.
            attributes: The span's attributes.
            links: The traces of other spans.
        """
        span = self._tracer.start_span(
            name, _context(parent), KINDS[kind], attributes, [Link(_span(one)) for one in links], began_ns
        )
        span.end(ended_ns)
        return _trace(span)

    def request(self, name: str, headers: Headers, link: bytes | None) -> "RequestSpan":
        """Begin a span for an HTTP request. The sampler decides whether it is recorded.

        Args:
            name: The span's name.
            headers: The trace headers of the request, with others.
            link: The trace of another span, or None.
        """
        parent = next((value for name, value in headers if name == "traceparent"), None)
        context = None if parent is None else _context(parent)
        links = () if link is None else (Link(_span(link)),)
        span = self._tracer.start_span(name, context or Context(), SpanKind.SERVER, links=links)
        return RequestSpan(span, headers)


class RequestSpan:
    """The span of an HTTP request."""

    def __init__(self, span: Span, headers: Headers) -> None:
        self._span = span
        self.headers = headers  # the headers of the record that the request writes
        if span.is_recording():
            others = tuple(header for header in headers if header[0] != "traceparent")
            self.headers = (*others, ("traceparent", _trace(span)))

    def end(self, status: int, error: str = "") -> None:
        """End the span with the status of the response."""
        if self._span.is_recording():
            self._span.set_attribute("http.response.status_code", status)
            if status >= ERRORS_FROM:
                self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


def _exporters() -> list[str]:
    """Return the entry points of the exporters in the environment."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    otlp = "otlp_proto_grpc" if protocol.strip() == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def _context(parent: bytes) -> Context:
    return _PROPAGATOR.extract({"traceparent": parent.decode("latin-1")}, Context())


def _span(of: bytes) -> SpanContext:
    return trace.get_current_span(_context(of)).get_span_context()


def _trace(span: Span) -> bytes:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}".encode()
