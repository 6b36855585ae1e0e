"""The gateway: decisions and feedback over HTTP."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from producers.gateway.decisions import Decisions, FallbackError, PipelineFacts, fallback_answer
from producers.gateway.link import Access, Link
from stream import __version__
from stream.kafka.port import Broker
from stream.programs.connection import announce_start, by_client, connect, require_topics, watch_topics
from stream.programs.process import announce, monotonic_ms, tune_gc
from stream.programs.tracing import traced
from stream.recovery.recover import pipeline_settings
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Program
from stream.settings.values import tokens_of
from stream.task.stored_settings import restored_settings
from stream.telemetry.heartbeat import Heartbeat
from stream.telemetry.metrics import SERVE

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing

REQUEST_TIMEOUT_MS = 3_000
"""Timeout for requests to Kafka. An unavailable broker is detected within this time."""


def run_serve(settings: Settings, stop: Callable[[], bool]) -> None:
    """Serve requests until stopped.

    Args:
        settings: Settings for the connection and the gateway.
        stop: Returns whether to stop.

    Raises:
        SettingsError: a package, a file or a topic is missing, the port cannot be used, or a setting does not match the
            pipeline.
        BrokerUnavailableError: no broker responded at startup.
    """
    with traced(settings, SERVE) as tracing:
        _serve(settings, stop, tracing)


def _serve(settings: Settings, stop: Callable[[], bool], tracing: "Tracing | None") -> None:
    try:
        from producers.gateway.api import Gateway, make_app
        from producers.gateway.personalizer_api import PersonalizerApi
        from producers.gateway.server import Counts, Guard, Limits, RateLimit, Server, connections_max, listen
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"serve requires {error.name}, which is not installed. Run: pip install 'onebit[serve]'"
        ) from error
    if (settings.serve_certificate is None) != (settings.serve_key is None):
        raise SettingsError("TLS: expected --serve-certificate and --serve-key; got only one of them")
    if settings.personalizer and settings.fallback is not None:
        raise SettingsError(
            f"--fallback {settings.fallback}: expected none with --personalizer, because its rewards do not name the "
            "action, and would count for the learner's decision. Let the clients have their own fallback"
        )
    with closing(_connect(settings, stop)) as broker:
        partitions = require_topics(broker, settings)
    access = Access(
        partial(_connect, settings),
        lambda broker: watch_topics(broker, settings, partitions),
        lambda broker: read_facts(broker, settings, partitions),
        lambda: time.time_ns() // 1_000_000,
        announce,
    )
    topics, decisions, counts = settings.topics, Decisions(settings.remember_ms), Counts()
    link = Link(topics, partitions, access, decisions, Heartbeat(SERVE, __version__, monotonic_ms), tracing)
    tokens = () if settings.serve_token is None else tokens_of(settings.serve_token)
    hosts = frozenset(name.lower() for name in ("localhost", settings.metrics_host, *settings.allow_host))
    rate = None if settings.rate_max_per_s is None else RateLimit(settings.rate_max_per_s)
    timeout_s = settings.timeout_ms / 1_000
    gateway = Gateway(link, decisions, topics, counts, timeout_s, settings.fallback, tracing)
    limits = Limits(tokens, hosts, rate)
    more = PersonalizerApi(gateway).routes() if settings.personalizer else ()
    guard = Guard(make_app(gateway, __version__, has_token=bool(tokens), more=more), limits, counts, announce)

    def is_ended() -> bool:
        return stop() or link.failure is not None

    what = "the limit on open files is too low; raise it with ulimit -n"
    try:
        connections_max()
        what = f"cannot use --serve-certificate {settings.serve_certificate} with --serve-key {settings.serve_key}"
        server = Server(guard, is_ended, timeout_s, settings.serve_certificate, settings.serve_key)
        what = f"--serve-port {settings.serve_port}: cannot listen on {settings.metrics_host}"
        listening = listen(settings.metrics_host, settings.serve_port)
    except OSError as error:
        raise SettingsError(f"{what}: {error.strerror or error}") from error
    announce_start(Program.SERVE, settings, partitions)
    scheme = "http" if settings.serve_key is None else "https"
    address = f"{scheme}://{settings.metrics_host}:{settings.serve_port}/v1/decide"
    announce(f"decisions on {topics.predictions}: {address}, {by_client(settings)}; press Ctrl-C to stop")
    tune_gc()
    server.run([listening])
    if link.failure is not None:
        raise link.failure


def _connect(settings: Settings, stop: Callable[[], bool]) -> Broker:
    return connect(settings, stop, request_timeout_ms=REQUEST_TIMEOUT_MS)


def read_facts(broker: Broker, settings: Settings, partitions: int) -> PipelineFacts | None:
    """Return the pipeline settings that the gateway needs, or None before the learner's first step.

    Raises:
        SettingsError: the pipeline replays a log, does not have the fallback class, or has contexts that a Personalizer
            request cannot become.
    """
    found = pipeline_settings(broker, settings.topics, partitions).settings
    if "seed" not in found:  # there are no settings yet, or only the settings of an imported model
        return None
    task = restored_settings(found)
    if task.play != "own":
        raise SettingsError(f"serve requires a learner with --play own; got {task.play}")
    facts = PipelineFacts(
        task.n_classes, task.context_features, task.seed, task.class_names, task.feature_encoder(), task.open_classes,
        task.unsupported, task.retired_classes, task.graded, task.action_reading(), task.feedback,
    )  # fmt: skip
    if settings.personalizer and (facts.encoder is None or facts.reading is None or facts.reading.encoder is None):
        raise SettingsError(
            "--personalizer: expected a pipeline with named features of contexts and actions. Start the learner with "
            "--actions-max and --features"
        )
    if settings.fallback is not None:
        try:
            fallback_answer(settings.fallback, "", facts)
        except FallbackError as error:
            raise SettingsError(f"--fallback: {error}") from error
    return facts
